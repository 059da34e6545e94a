//! The worker of a mount: it parses the image and serves the requests of the kernel. It enters the sandbox
//! before it reads the first byte and before it starts a thread. What it needs later comes through
//! descriptors that the supervisor opened.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ivers_fuse::{FuseOptions, MountChannels, Server};
use ivers_vfs::{Error, LostFiles, MountOptions, Vfs};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::args::Args;
use super::measurement;
use super::protocol::{Event, Request};
use crate::image::channel::Channel;
use crate::image::image_files::ImageFiles;
use crate::image::mount_options::Options;
use crate::image::open::open_on;
use crate::image::open_options::ImageOptions;
use crate::image::server::{self, ServerConnection};
use crate::output::format::Shown;
use crate::output::{failure, log as output_log};
use crate::process;

/// How long requests of a mount that has ended may wait for a server.
const TIME_TO_ANSWER: Duration = Duration::from_secs(3);

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
        Ok(LostFiles { count, names }) => Event::Closed { lost_files: count, names },
        Err(error) => Event::Failed { code: failure::code(&error), line: failure::short_line(&error) },
    };
    channel.send(&event, &[])
}

/// Returns the files that lack data that programs wrote.
fn serve_mount(args: &Args, options: Options, channel: &Channel) -> Result<LostFiles> {
    let Options { image: mut image_options, mut vfs, fuse, .. } = options;
    let mut request = channel.receive()?;
    let mut measure = None;
    if let Some((Request::Measure(setup), fds)) = request {
        measure = Some((setup, fds));
        request = channel.receive()?;
    }
    let (read_only, files, fds) = match request {
        Some((Request::Open { read_only, files }, fds)) => (read_only, files, fds),
        Some((Request::OpenServer, fds)) => {
            return serve_server(args, &image_options, vfs, fuse, channel, fds);
        }
        _ => bail!("a worker is started by a supervisor only"),
    };
    image_options.read_only |= read_only;
    let files = ImageFiles::adopt(&args.image, files, fds, image_options.open_mode())?;
    // Opened before the sandbox. A filesystem in memory is larger than its caches.
    vfs.budget = files.as_ref().and_then(|_| process::metered_budget(image_options.cache_bytes));
    let sandbox = enter_sandbox(args, image_options.sandbox, &fuse);
    vfs.observer = measure.map(|(setup, fds)| measurement::observer(setup, fds)).transpose()?;
    let vfs = open_on(files, &args.image, &image_options, vfs)?;
    let served = serve(channel, vfs.clone(), fuse, sandbox);
    unmount(&vfs, served, || format!("{}: cannot close the image", args.image.shown()))
}

/// Unmounts, also after an error, so that earlier writes are stored. Returns the files that lack data that
/// programs wrote.
fn unmount(vfs: &Vfs, served: Result<()>, failure: impl FnOnce() -> String) -> Result<LostFiles> {
    let closed = vfs.unmount();
    served?;
    let lost = vfs.lost_files();
    match closed {
        // The files that this error is about are among these.
        Err(Error::FileData(_) | Error::DataRefused(_)) if lost.count > 0 => {}
        closed => closed.with_context(failure)?,
    }
    Ok(lost)
}

/// Serves the files of a server. Returns the files that lack data that programs wrote.
fn serve_server(
    args: &Args,
    image_options: &ImageOptions,
    mut vfs: MountOptions,
    fuse: FuseOptions,
    channel: &Channel,
    fds: Vec<OwnedFd>,
) -> Result<LostFiles> {
    let mut fds = fds.into_iter();
    let (Some(stream), Some(maker)) = (fds.next(), fds.next()) else { bail!("a connection is missing") };
    let connection = ServerConnection::adopt(&args.image, stream, image_options)?;
    let maker = Channel::adopt(maker);
    server::limit_asking(&maker)?;
    vfs.budget = process::metered_budget(image_options.cache_bytes);
    let sandbox = enter_sandbox(args, image_options.sandbox, &fuse);
    let busy_poll = fuse.busy_poll.map(|us| Duration::from_micros(us.into()));
    let vfs = connection.open_for_mount(maker, image_options, busy_poll, vfs)?;
    let served = serve(channel, vfs.clone(), fuse, sandbox);
    unmount(&vfs, served, || format!("{}: cannot leave the server", args.image.shown()))
}

/// Enters the sandbox, if wanted. Returns which parts of it are in force.
fn enter_sandbox(args: &Args, wanted: bool, fuse: &FuseOptions) -> Option<String> {
    let needs = ivers_sandbox::Needs { give_way: fuse.caller_affinity, ..Default::default() };
    let sandbox = wanted.then(|| ivers_sandbox::enter_with(&needs))?;
    if !sandbox.is_whole() {
        log::warn!("{}: the kernel supports only part of the sandbox: {sandbox}", args.dir.shown());
    }
    Some(sandbox.to_string())
}

/// Gives up the server when the supervisor says so, and once the mount has ended and requests still wait.
/// Otherwise the mount would end only when the server answers. `device` is the FUSE device.
///
/// The returned sender is dropped when the last request is answered.
fn give_up_in_time(vfs: &Arc<Vfs>, channel: &Channel, device: OwnedFd) -> Result<Sender<()>> {
    const STEP: Duration = Duration::from_secs(1);
    let channel = Channel::adopt(channel.duplicate()?);
    let told = Arc::downgrade(vfs);
    std::thread::Builder::new().name("ivers-told".into()).spawn(move || {
        // The end of the supervisor is the end of this process.
        if let Ok(Some((Request::GiveUp, _))) = channel.receive()
            && let Some(vfs) = told.upgrade()
        {
            vfs.stop_waiting();
        }
    })?;
    let vfs = Arc::downgrade(vfs);
    let (end, ended) = mpsc::channel();
    let goes_on = move |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    std::thread::Builder::new().name("ivers-end".into()).spawn(move || {
        while goes_on(STEP) {
            // The kernel reports an error on the device when the mount is gone. Each request wakes a thread
            // that waits for that, so this one only looks.
            let mut device = [PollFd::new(&device, PollFlags::empty())];
            let polled = rustix::event::poll(&mut device, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if polled.is_ok_and(|ready| ready > 0) {
                if goes_on(TIME_TO_ANSWER)
                    && let Some(vfs) = vfs.upgrade()
                {
                    log::warn!("the mount has ended, and the server does not answer: giving it up");
                    vfs.stop_waiting();
                }
                return;
            }
        }
    })?;
    Ok(end)
}

fn serve(channel: &Channel, vfs: Arc<Vfs>, fuse: FuseOptions, sandbox: Option<String>) -> Result<()> {
    channel.send(&Event::Opened { read_only: vfs.health().read_only }, &[])?;
    // Without a request the supervisor failed to mount, and there is nothing to serve.
    let Some((Request::Serve { thread_ids, pid }, fds)) = channel.receive()? else { return Ok(()) };
    let mut serving = None;
    if vfs.fs().server().is_some() {
        let device = fds.first().context("an incomplete connection")?.try_clone()?;
        serving = Some(give_up_in_time(&vfs, channel, device)?);
    }
    let connection = MountChannels::from_parts(fds, thread_ids).context("an incomplete connection")?;
    let served = ivers_fuse::serve(vfs.clone(), connection, fuse, Server { pid, sandbox })?;
    channel.send(&Event::Serving, &[])?;
    let result = served.wait();
    drop(serving);
    channel.send(&Event::Ended, &[])?;
    Ok(result?)
}
