//! The worker of a mount: it parses the image and serves the requests of the kernel. It enters the sandbox
//! before it reads the first byte and before it starts a thread. What it needs later comes through
//! descriptors that the supervisor opened.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use ivers_fuse::{FuseOptions, MountChannels, Server};
use ivers_vfs::Vfs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::args::Args;
use super::measurement;
use super::protocol::{Event, Request};
use crate::image::channel::Channel;
use crate::image::mount_options::Options;
use crate::image::open::open_on;
use crate::image::process::adopt_device;
use crate::output::format::Shown;
use crate::output::{failure, log as output_log};
use crate::process;

/// Runs the worker.
pub fn run(args: &Args, options: Options) -> Result<()> {
    output_log::start(false);
    let channel = Channel::inherited()?;
    // Without the supervisor nothing can unmount. So the worker dies with it, which is a crash for the image.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The supervisor handles signals. Those of a terminal reach both processes.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let event = match serve_mount(args, options, &channel) {
        Ok(lost_files) => Event::Closed { lost_files },
        Err(error) => Event::Failed { code: failure::code(&error), line: failure::short_line(&error) },
    };
    channel.send(&event, &[])
}

/// Returns the number of files that lack data that programs wrote.
fn serve_mount(args: &Args, options: Options, channel: &Channel) -> Result<u64> {
    let Options { image: mut image_options, mut vfs, fuse, .. } = options;
    let mut request = channel.receive()?;
    let mut measure = None;
    if let Some((Request::Measure(setup), fds)) = request {
        measure = Some((setup, fds));
        request = channel.receive()?;
    }
    let Some((Request::Open { read_only, range }, fds)) = request else {
        bail!("a worker is started by a supervisor only")
    };
    image_options.read_only |= read_only;
    let image = fds.into_iter().next();
    let image = image.map(|fd| adopt_device(File::from(fd), &args.image, image_options.open_mode(), range));
    let image = image.transpose()?;
    // Opened before the sandbox. A filesystem in memory is larger than its caches.
    vfs.budget = image.as_ref().and_then(|_| process::metered_budget(image_options.cache_bytes));
    let needs = ivers_sandbox::Needs { give_way: fuse.caller_affinity, ..Default::default() };
    let sandbox = image_options.sandbox.then(|| ivers_sandbox::enter_with(&needs));
    if let Some(sandbox) = sandbox.as_ref().filter(|sandbox| !sandbox.is_whole()) {
        log::warn!("{}: the kernel supports only part of the sandbox: {sandbox}", args.dir.shown());
    }
    vfs.observer = measure.map(|(setup, fds)| measurement::observer(setup, fds)).transpose()?;
    let vfs = open_on(image, &args.image, &image_options, vfs)?;
    let served = serve(channel, vfs.clone(), fuse, sandbox.map(|sandbox| sandbox.to_string()));
    // Unmount also on error, so that earlier writes reach the image.
    let closed = vfs.unmount();
    let lost_files = served?;
    closed.with_context(|| format!("{}: cannot close the image", args.image.shown()))?;
    Ok(lost_files)
}

fn serve(channel: &Channel, vfs: Arc<Vfs>, fuse: FuseOptions, sandbox: Option<String>) -> Result<u64> {
    channel.send(&Event::Opened { read_only: vfs.health().read_only }, &[])?;
    // Without a request the supervisor failed to mount, and there is nothing to serve.
    let Some((Request::Serve { thread_ids, pid }, fds)) = channel.receive()? else { return Ok(0) };
    let connection = MountChannels::from_parts(fds, thread_ids).context("an incomplete connection")?;
    let served = ivers_fuse::serve(vfs.clone(), connection, fuse, Server { pid, sandbox })?;
    channel.send(&Event::Serving, &[])?;
    let ended = served.wait();
    channel.send(&Event::Ended, &[])?;
    ended?;
    Ok(served.report_lost_data(&vfs))
}
