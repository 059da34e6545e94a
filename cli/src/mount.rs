//! `mount`: the command, and the process that supervises the one that serves.
//!
//! A mount is two processes. The supervisor opens the image and the FUSE device, mounts, and unmounts when a signal says so; it reads no byte of
//! the image. The [`worker`](crate::worker) parses and serves, locked in. Unmounting by fusermount3 needs privileges that the
//! worker has given up, and opening mounted files to flush them needs rights that it has given up too.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ivers_block::FileDevice;
use ivers_fuse::{Attached, FuseOptions, MountError};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGSYS, SIGTERM};

use crate::channel::{Channel, Order, Report};
use crate::daemon::Served;
use crate::failure::{BUSY, FAILED, REFUSED, failure, line, say, usage};
use crate::measure::mounted::{self, Opened};
use crate::options::{Options, parse};
use crate::outcome::Outcome;
use crate::{args, daemon, facts, image, show, worker};

/// `ivers mount`.
pub fn mount(mut args: args::Mount, json: bool) -> Result<()> {
    args.options = mounted::absolute(&args.options)?;
    let mut options = parse(&args.options)?;
    options.how = options.how.of_format(&args.fs_type);
    if args.worker {
        return worker::work(&args, options);
    }
    // The processes that serve work in another directory.
    if args.fs_type != "mem" {
        args.image =
            args.image.canonicalize().with_context(|| format!("cannot open {}", args.image.display()))?;
    }
    if crate::unmount::is_dead(&args.dir) {
        let dir = args.dir.display();
        return Err(failure(
            BUSY,
            format!("{dir}: a dead mount is there: ivers unmount {dir} takes it away"),
        ));
    }
    args.dir = args.dir.canonicalize().with_context(|| args.dir.display().to_string())?;
    let holds_something = std::fs::read_dir(&args.dir).is_ok_and(|mut names| names.next().is_some());
    if holds_something && !options.nonempty {
        let dir = args.dir.display();
        if let Ok(mount) = facts::served_json(&args.dir, ivers_fuse::MOUNT)
            && is_mount_point(&args.dir)
        {
            let fs = mount["fs"].as_str().unwrap_or("filesystem");
            return Err(failure(
                BUSY,
                format!("{dir}: {fs} is mounted there already: ivers unmount {dir} takes it away"),
            ));
        }
        return Err(usage(format!("{dir}: not empty: -o nonempty mounts over what is in it")));
    }
    if args.serve || args.foreground {
        return serve(&args, options, json);
    }
    let log = args.log.take().map(std::path::absolute).transpose()?;
    if let Some(log) = &log {
        let number = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        if number(log).is_some_and(|log| number(&args.image) == Some(log)) {
            return Err(usage(format!("--log {}: that is the image", log.display())));
        }
    }
    let (pid, served) = daemon::start(&words(&args, "--serve"), log.as_deref())?;
    if let Some(why) = &served.read_only_because {
        say(format_args!("ivers: {}", show::one_line(&fallen_back(&args, why))));
    }
    if json { tell(&args, pid, &served) } else { Ok(()) }
}

fn fallen_back(args: &args::Mount, why: &str) -> String {
    format!("{}: mounted read-only: {why}", args.image.display())
}

/// The mount, in JSON.
fn tell(args: &args::Mount, pid: u32, served: &Served) -> Result<()> {
    show::json_line(&json!({
        "dir": args.dir.to_string_lossy(),
        "image": args.image.to_string_lossy(),
        "pid": pid,
        "read_only": served.read_only,
        "read_only_because": served.read_only_because,
    }))
}

/// Whether another filesystem begins at a directory.
fn is_mount_point(dir: &Path) -> bool {
    let number = |dir: &Path| std::fs::metadata(dir).map(|found| found.dev()).ok();
    number(dir) != number(&dir.join(".."))
}

/// The same mount, to be done by another process of this program in the role of `role`.
fn words(args: &args::Mount, role: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec!["mount".into(), role.into(), "--type".into(), args.fs_type.clone().into()];
    for option in &args.options {
        words.extend(["-o".into(), OsString::from(option)]);
    }
    if args.rw_unasked {
        words.push("--rw-unasked".into());
    }
    words.extend(["--".into(), args.image.clone().into(), args.dir.clone().into()]);
    words
}

fn serve(args: &args::Mount, options: Options, json: bool) -> Result<()> {
    daemon::start_log();
    if !args.serve {
        return supervise(args, options, |served| {
            // Who does not listen is no reason not to serve.
            if json && let Err(error) = tell(args, std::process::id(), &served) {
                log::warn!("{}", line(&error));
            }
        });
    }
    daemon::leave_terminal()?;
    let mut told = false;
    let result = supervise(args, options, |served| {
        told = true;
        daemon::tell_parent(Ok(&served));
    });
    match &result {
        Err(error) if !told => daemon::tell_parent(Err(error)),
        Err(error) => log::error!("{}", line(error)),
        Ok(()) => {}
    }
    result
}

/// Whoever asked for `rw` gets nothing less.
fn check_wish(args: &args::Mount, options: &Options, why: &str) -> Result<()> {
    if options.writable && !args.rw_unasked {
        let image = args.image.display();
        return Err(failure(
            REFUSED,
            format!("{image}: cannot be mounted for writing: {why}; without rw it is mounted read-only"),
        ));
    }
    Ok(())
}

fn supervise(args: &args::Mount, options: Options, ready: impl FnOnce(Served)) -> Result<()> {
    let mut fuse = options.fuse.clone();
    if fuse.fsname == FuseOptions::default().fsname {
        fuse.fsname = args.image.display().to_string();
    }
    let (device, only_read) = image::open_device_or_fall_back(&args.fs_type, &args.image, &options.how)?;
    if let Some(why) = &only_read {
        check_wish(args, &options, why)?;
    }
    // Before the worker: a policy that cannot be read is the caller's to mend.
    let measure = (!options.measure.is_none()).then(|| options.measure.open(&args.image)).transpose()?;
    let mut worker = Worker::start(args)?;
    if let Some(Opened { orders, files }) = measure {
        worker.channel.send(&Order::Measure(orders), &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    }
    let order = Order::Open { read_only: only_read.is_some() };
    worker.channel.send(&order, &device.iter().map(FileDevice::lend).collect::<Vec<_>>())?;
    // The lock on the image is the worker's now.
    drop(device);
    let Report::Opened { read_only } = worker.report()? else { bail!("the worker talks nonsense") };
    let because = only_read.or(read_only.filter(|_| !options.how.read_only));
    if let Some(why) = &because {
        if let Err(refused) = check_wish(args, &options, why) {
            worker.dismiss()?;
            return Err(refused);
        }
        log::warn!("{}", fallen_back(args, why));
    }
    fuse.read_only |= because.is_some();
    let served = Served { read_only: fuse.read_only, read_only_because: because };

    // Before the mount shows: a signal from then on is an unmount.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let (attached, connection) = match ivers_fuse::attach(&args.dir, &fuse) {
        Ok((attached, connection)) => (Arc::new(attached), connection),
        Err(error) => {
            worker.dismiss()?;
            return Err(error.into());
        }
    };
    let (fds, thread_ids) = connection.into_parts();
    let order = Order::Serve { thread_ids, pid: std::process::id() };
    worker.channel.send(&order, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    // The worker's end of the mount must be the only one, or nobody would notice that it is gone.
    drop(fds);
    let Report::Serving = worker.report()? else { bail!("the worker talks nonsense") };

    let handle = signals.handle();
    let on_signal = attached.clone();
    let watcher = std::thread::Builder::new().name("ivers-signals".into()).spawn(move || {
        for signal in signals.forever() {
            log::info!("signal {signal}: unmounting");
            unmount(&on_signal);
        }
    })?;
    let outcome =
        Outcome::listen().inspect_err(|error| log::warn!("unmount cannot ask how this mount ends: {error}"));
    ready(served);
    let mut closed = worker.report();
    if let Ok(Report::Ended) = closed {
        if let Ok(outcome) = &outcome {
            outcome.closing();
        }
        closed = worker.report();
    }
    // A mount whose worker died stays: programs get errors, and nothing of theirs lands in the directory below.
    attached.leave();
    handle.close();
    let _ = watcher.join();
    let result = match closed {
        Ok(Report::Closed) => worker.wait(),
        Ok(_) => Err(anyhow::anyhow!("the worker talks nonsense")),
        // Unmounted already if closing the image failed.
        Err(error) if crate::unmount::is_dead(&args.dir) => {
            Err(error.context(format!("{}: dead until it is unmounted (ivers unmount)", args.dir.display())))
        }
        Err(error) => Err(error),
    };
    if let Ok(outcome) = outcome {
        outcome.tell(&result);
    }
    result
}

fn unmount(attached: &Attached) {
    match attached.unmount() {
        Err(MountError::Busy(_)) => {
            log::warn!("the mount is in use: detached, it ends with the last open file");
            if let Err(error) = attached.detach() {
                log::error!("{error}");
            }
        }
        Err(error) => log::error!("{error}"),
        Ok(()) => {}
    }
}

/// The process that parses, seen from the supervisor. It must be started by the main thread: it dies with the one that started it.
struct Worker {
    child: Child,
    channel: Channel,
}

impl Worker {
    fn start(args: &args::Mount) -> Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let child = daemon::this_program()?
            .args(words(args, "--worker"))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the process that parses")?;
        Ok(Self { child, channel })
    }

    /// What it says next; its failure is ours.
    fn report(&mut self) -> Result<Report> {
        match self.channel.receive()? {
            Some((Report::Failed { code, line }, _)) => {
                self.child.wait()?;
                Err(failure(code, line))
            }
            Some((report, _)) => Ok(report),
            None => bail!("the process that serves {}", ending(self.child.wait()?)),
        }
    }

    /// There is nothing to serve: let it close the image.
    fn dismiss(mut self) -> Result<()> {
        self.channel.finish()?;
        self.report()?;
        self.wait()
    }

    fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(failure(FAILED, format!("the worker {}", ending(status)))) }
    }
}

/// How a process ended, said so that one knows what to think of it.
pub fn ending(status: ExitStatus) -> String {
    match status.signal() {
        Some(SIGSYS) => "was killed: it tried what the sandbox forbids (a hostile image, or a bug)".into(),
        Some(signal) => format!("was killed by signal {signal}"),
        None => format!("ended with {status}"),
    }
}
