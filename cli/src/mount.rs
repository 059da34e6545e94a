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
use ivers_fuse::{Attached, FuseOptions, MountError};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGSYS, SIGTERM};

use crate::channel::{Channel, Order, Report};
use crate::failure::{BUSY, FAILED, failure, usage};
use crate::options::{Options, parse};
use crate::outcome::Outcome;
use crate::{args, daemon, facts, image, show, worker};

/// `ivers mount`.
pub fn mount(mut args: args::Mount, json: bool) -> Result<()> {
    let options = parse(&args.options)?;
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
        return serve(&args, options);
    }
    let log = args.log.take().map(std::path::absolute).transpose()?;
    if let Some(log) = &log {
        let number = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        if number(log).is_some_and(|log| number(&args.image) == Some(log)) {
            return Err(usage(format!("--log {}: that is the image", log.display())));
        }
    }
    let pid = daemon::start(&words(&args, "--serve"), log.as_deref())?;
    if json {
        show::json_line(
            &json!({ "dir": args.dir.to_string_lossy(), "image": args.image.to_string_lossy(), "pid": pid }),
        )?;
    }
    Ok(())
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
    words.extend(["--".into(), args.image.clone().into(), args.dir.clone().into()]);
    words
}

fn serve(args: &args::Mount, options: Options) -> Result<()> {
    daemon::start_log();
    if !args.serve {
        return supervise(args, options, |_| {});
    }
    daemon::leave_terminal()?;
    let mut told = false;
    let result = supervise(args, options, |result| {
        told = true;
        daemon::tell_parent(result);
    });
    if told {
        if let Err(error) = &result {
            log::error!("{}", crate::failure::line(error));
        }
    } else {
        daemon::tell_parent(&result);
    }
    result
}

fn supervise(args: &args::Mount, options: Options, ready: impl FnOnce(&Result<()>)) -> Result<()> {
    let mut fuse = options.fuse;
    if fuse.fsname == FuseOptions::default().fsname {
        fuse.fsname = args.image.display().to_string();
    }
    let device = image::open_device(&args.fs_type, &args.image, &options.how)?;
    let mut worker = Worker::start(args)?;
    worker.channel.send(&Order::Open, &device.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    // The lock on the image is the worker's now.
    drop(device);
    let Report::Opened { read_only } = worker.report()? else { bail!("the worker talks nonsense") };
    fuse.read_only |= read_only;

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
    ready(&Ok(()));
    let closed = worker.report();
    // A mount whose worker died stays: programs get errors, and nothing of theirs lands in the directory below.
    attached.leave();
    handle.close();
    let _ = watcher.join();
    let result = match closed {
        Ok(Report::Closed) => worker.wait(),
        Ok(_) => Err(anyhow::anyhow!("the worker talks nonsense")),
        Err(error) => {
            Err(error.context(format!("{}: dead until it is unmounted (ivers unmount)", args.dir.display())))
        }
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
