//! The process of a mount that parses the image and answers the kernel. It locks itself in before it reads the first byte and
//! before it starts a thread; what it needs from then on comes through descriptors that the supervisor opened.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use ivers_block::FileDevice;
use ivers_fuse::{Connection, FuseOptions, Server};
use ivers_vfs::Vfs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::channel::{Channel, Order, Report};
use crate::measure::mounted;
use crate::options::Options;
use crate::{args, daemon, failure, image};

/// The whole life of the worker.
pub fn work(args: &args::Mount, options: Options) -> Result<()> {
    daemon::start_log();
    let channel = Channel::inherited()?;
    // With the supervisor nobody is left who could unmount: its death is ours, and to the image it is a crash.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Signals are the supervisor's; those of a terminal reach both.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let report = match run(args, options, &channel) {
        Ok(()) => Report::Closed,
        Err(error) => Report::Failed { code: failure::code(&error), line: failure::short_line(&error) },
    };
    channel.send(&report, &[])
}

fn run(args: &args::Mount, options: Options, channel: &Channel) -> Result<()> {
    let Options { mut how, mut vfs, fuse, .. } = options;
    let mut order = channel.receive()?;
    let mut measure = None;
    if let Some((Order::Measure(orders), fds)) = order {
        measure = Some((orders, fds));
        order = channel.receive()?;
    }
    let Some((Order::Open { read_only }, fds)) = order else { bail!("the worker has no supervisor") };
    how.read_only |= read_only;
    let image = fds
        .into_iter()
        .next()
        .map(|fd| FileDevice::adopt(File::from(fd), args.image.clone(), how.open_mode()));
    let image = image.transpose()?;
    let needs = ivers_sandbox::Needs { give_way: fuse.company, ..Default::default() };
    let sandbox = how.sandbox.then(|| ivers_sandbox::enter_with(&needs));
    if let Some(sandbox) = sandbox.as_ref().filter(|sandbox| !sandbox.is_whole()) {
        log::warn!("{}: the sandbox is not whole: {sandbox}", args.dir.display());
    }
    vfs.watch = measure.map(|(orders, fds)| mounted::watch(orders, fds)).transpose()?;
    let vfs = image::open_on(image, &args.image, &how, vfs)?;
    let served = serve(channel, vfs.clone(), fuse, sandbox.map(|sandbox| sandbox.to_string()));
    // Whatever ended the session: what was written goes to the image.
    let closed = vfs.unmount();
    served?;
    closed.with_context(|| format!("{}: closing the image", args.image.display()))
}

fn serve(channel: &Channel, vfs: Arc<Vfs>, fuse: FuseOptions, sandbox: Option<String>) -> Result<()> {
    channel.send(&Report::Opened { read_only: vfs.info().read_only.clone() }, &[])?;
    // Without an order the supervisor could not mount: there is nothing to serve.
    let Some((Order::Serve { thread_ids, pid }, fds)) = channel.receive()? else { return Ok(()) };
    let connection = Connection::from_parts(fds, thread_ids).context("the connection came in parts")?;
    let served = ivers_fuse::serve(vfs, connection, fuse, Server { pid, sandbox })?;
    channel.send(&Report::Serving, &[])?;
    let ended = served.wait();
    channel.send(&Report::Ended, &[])?;
    Ok(ended?)
}
