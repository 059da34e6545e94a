//! `mount`: mounts an image through FUSE.
//!
//! A mount is two processes. The supervisor opens the image and the FUSE device, mounts, and unmounts on a
//! signal. Of the image it reads only [which device it is](crate::image::other_devices). The [`worker`]
//! parses the image and serves requests in the sandbox. Only the supervisor keeps the rights that fusermount3
//! needs to unmount, and those to open mounted files and flush them.
//!
//! | module | contents |
//! |---|---|
//! | [`args`] | options |
//! | [`measurement`] | the files of a mount that measures |
//! | [`protocol`] | messages between supervisor and worker |
//! | [`worker`] | the worker |
//! | [`background`] | the mount as a background process |

mod args;
mod background;
mod help;
mod measurement;
mod protocol;
mod worker;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ivers_fuse::{Attached, FuseOptions, MountError};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::arguments::{ImageName, canonical_image, escape_option, is_server, split_image, with_partition};
use crate::file_info::{self, is_dead_mount};
use crate::image::channel::Channel;
use crate::image::image_files::ImageFiles;
use crate::image::image_lock::kernel_writes;
use crate::image::mount_options::{Options, parse};
use crate::image::open::open_device_or_fall_back;
use crate::image::server::{ConnectionMaker, ServerConnection, check_options_of_image};
use crate::image::unmount_status::{LostData, StatusServer};
use crate::output::failure::{self, BUSY, FAILED, REFUSED, failure, line, reported, usage, warn};
use crate::output::format::Shown;
use crate::output::{format, log as output_log, print};
use crate::process::{describe_exit, this_program};
pub use args::Args;
use background::MountStatus;
use measurement::Opened;
use protocol::{Event, Request};

/// Runs `ivers mount`.
pub fn run(mut args: Args, json: bool) -> Result<()> {
    if args.read_only {
        args.options.push("ro".to_owned());
    }
    args.options = measurement::with_absolute_paths(&args.options)?;
    let mut options = parse(&args.options)?;
    options.image = options.image.with_format(&args.fs_type);
    if args.worker {
        return worker::run(&args, options);
    }
    if args.image.is_dir() && !args.dir.is_dir() && args.dir.exists() {
        let (image, dir) = (args.dir.shown(), args.image.shown());
        return Err(usage(format!(
            "{dir}: a directory, not an image; did you mean `ivers mount {image} {dir}`?"
        )));
    }
    let names: Vec<_> = split_image(&args.image).iter().map(|part| ImageName::parse(part)).collect();
    check_options_of_image(&args.image, &options.image)?;
    if is_server(&args.image) {
        if options.measure.policy.is_some() || options.measure.appraise {
            let image = args.image.shown();
            return Err(failure(REFUSED, format!("{image}: files of a server cannot be measured")));
        }
    } else if args.fs_type != "mem" {
        // The processes of the mount have another current directory.
        args.image =
            canonical_image(&args.image).with_context(|| format!("cannot open {}", args.image.shown()))?;
        // The worker cannot see which part of the name is the file. If there are several, their devices are
        // limited to the partitions.
        if options.image.partition.is_none()
            && let [ImageName { partition: Some(partition), .. }] = &names[..]
        {
            args.options.push(escape_option(&format!("partition={partition}")));
            options.image.partition = Some(partition.clone());
        }
    }
    check_dir(&mut args, &options)?;
    if args.supervisor || args.foreground {
        return serve(&args, options, json);
    }
    let log = args.log.take().map(std::path::absolute).transpose()?;
    if let Some(log) = &log {
        let id = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        if id(log).is_some_and(|log| names.iter().any(|name| id(&name.file) == Some(log))) {
            return Err(usage(format!("--log {}: this file is the image", log.shown())));
        }
    }
    if options.image.read_only {
        names.iter().filter_map(|name| kernel_writes(&args.image, &name.file)).for_each(warn);
    }
    let (pid, status) = background::start(&words(&args, "--supervisor"), log.as_deref())?;
    if let Some(why) = &status.read_only_because {
        warn(read_only_warning(&args, why));
    }
    if json { print_status(&args, pid, &status) } else { Ok(()) }
}

/// Resolves the mount point and checks that it can be mounted on.
fn check_dir(args: &mut Args, options: &Options) -> Result<()> {
    let busy = |what: &str| {
        let dir = args.dir.shown();
        failure(BUSY, format!("{dir}: {what}; run ivers unmount {dir} first"))
    };
    if is_dead_mount(&args.dir) {
        return Err(busy("a mount whose process died is there"));
    }
    let dir = args.dir.canonicalize().with_context(|| args.dir.shown())?;
    if options.nonempty {
        args.dir = dir;
        return Ok(());
    }
    if is_mount_point(&dir)
        && let Ok(mount) = file_info::served_json(&dir, ivers_fuse::MOUNT)
    {
        let fs = mount["fs"].as_str().unwrap_or("a filesystem");
        return Err(busy(&format!("{fs} is mounted there already")));
    }
    if std::fs::read_dir(&dir).is_ok_and(|mut names| names.next().is_some()) {
        return Err(usage(format!("{}: not empty; -o nonempty mounts over its contents", dir.shown())));
    }
    args.dir = dir;
    Ok(())
}

fn read_only_warning(args: &Args, why: &str) -> String {
    format!("{}: mounted read-only: {why}", args.image.shown())
}

/// Prints the mount in JSON.
fn print_status(args: &Args, pid: u32, status: &MountStatus) -> Result<()> {
    let object = json!({
        "pid": pid,
        "read_only": status.read_only,
        "read_only_because": status.read_only_because,
    });
    print::json_line(&format::with_paths(object, [("dir", &*args.dir), ("image", &*args.image)]))
}

/// Returns whether a directory is a mount point.
fn is_mount_point(dir: &Path) -> bool {
    let device = |dir: &Path| std::fs::metadata(dir).map(|found| found.dev()).ok();
    device(dir) != device(&dir.join(".."))
}

/// Returns the arguments for another process of this mount, in the role that the option `role` selects.
fn words(args: &Args, role: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec!["mount".into(), role.into(), "--type".into(), args.fs_type.clone().into()];
    for option in &args.options {
        words.extend(["-o".into(), OsString::from(option)]);
    }
    if args.rw_optional {
        words.push("--rw-optional".into());
    }
    words.extend(["--".into(), args.image.clone().into(), args.dir.clone().into()]);
    words
}

fn serve(args: &Args, options: Options, json: bool) -> Result<()> {
    output_log::start(false);
    if !args.supervisor {
        return supervise(args, options, |status| {
            // The mount serves even if standard output is closed.
            if json && let Err(error) = print_status(args, std::process::id(), &status) {
                log::warn!("{}", line(&error));
            }
        });
    }
    background::leave_terminal()?;
    let _bound = output_log::bound_file();
    let mut serving = false;
    let result = supervise(args, options, |status| {
        serving = true;
        background::report_to_parent(Ok(&status));
    });
    result.map_err(|error| {
        if !serving {
            background::report_to_parent(Err(&error));
        }
        log::error!("{}", line(&error));
        // Printed again, it would be a line without a date.
        reported(failure::code(&error))
    })
}

/// Refuses a read-only mount if `rw` was requested.
fn check_writable(args: &Args, options: &Options, why: &str) -> Result<()> {
    if options.writable && !args.rw_optional {
        let image = args.image.shown();
        return Err(failure(
            REFUSED,
            format!("{image}: cannot be mounted for writing: {why}; omit rw to mount it read-only"),
        ));
    }
    Ok(())
}

fn supervise(args: &Args, options: Options, ready: impl FnOnce(MountStatus)) -> Result<()> {
    let mut fuse = options.fuse.clone();
    if fuse.fsname == FuseOptions::default().fsname {
        fuse.fsname = args.image.shown();
    }
    let (worker, because) = open_in_worker(args, &options)?;
    fuse.read_only |= because.is_some();
    let status = MountStatus { read_only: fuse.read_only, read_only_because: because };

    // Registered before the mount is visible: a signal from then on unmounts.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let (attached, mut worker) = attach(args, &fuse, worker)?;
    let handle = signals.handle();
    let on_signal = attached.clone();
    let to_worker =
        is_server(&args.image).then(|| worker.channel.duplicate()).transpose()?.map(Channel::adopt);
    let watcher = std::thread::Builder::new().name("ivers-signals".into()).spawn(move || {
        for (nth, signal) in signals.forever().enumerate() {
            log::info!("signal {signal}: unmounting");
            unmount(&on_signal);
            // Programs that wait for the server keep the mount. The second signal lets them go.
            if let Some(worker) = to_worker.as_ref().filter(|_| nth > 0) {
                log::warn!("another signal: giving up the server");
                let _ = worker.send(&Request::GiveUp, &[]);
            }
        }
    })?;
    let status_server = StatusServer::listen()
        .inspect_err(|error| log::warn!("cannot report to `ivers unmount` how the mount ends: {error}"));
    ready(status);
    let mut closed = worker.receive();
    if let Ok(Event::Ended) = closed {
        if let Ok(server) = &status_server {
            server.closing();
        }
        closed = worker.receive();
    }
    // If the worker died, the mount stays: programs get errors and do not write to the directory below it.
    attached.leave();
    handle.close();
    let _ = watcher.join();
    let result = match closed {
        Ok(Event::Closed { lost_files: 0, .. }) => worker.wait(),
        Ok(Event::Closed { lost_files, names }) => {
            worker.wait().and_then(|()| Err(LostData::of(lost_files, &names).into()))
        }
        Ok(_) => Err(unexpected_event()),
        // If only closing the image failed, the directory is unmounted already.
        Err(error) if is_dead_mount(&args.dir) => {
            Err(error.context(format!("{}: dead until it is unmounted (ivers unmount)", args.dir.shown())))
        }
        Err(error) => Err(error),
    };
    if let Ok(server) = status_server {
        server.finish(&result);
    }
    result
}

fn unexpected_event() -> anyhow::Error {
    anyhow::anyhow!("protocol error from the worker: an unexpected message")
}

/// Opens the image in a worker. Returns also why it is read-only, if that was not requested.
fn open_in_worker(args: &Args, options: &Options) -> Result<(Worker, Option<String>)> {
    if is_server(&args.image) {
        return open_server_in_worker(args, options);
    }
    let (files, only_readable) = open_device_or_fall_back(&args.fs_type, &args.image, &options.image)?;
    if let Some(why) = &only_readable {
        check_writable(args, options, why)?;
    }
    // Before the worker starts: an unreadable policy is an error of the command line.
    let image = with_partition(&args.image, options.image.partition.as_deref());
    let measure = (!options.measure.is_none()).then(|| measurement::open(&options.measure, &image));
    let measure = measure.transpose()?;
    let worker = Worker::start(args)?;
    if let Some(Opened { setup, files }) = measure {
        worker.channel.send(&Request::Measure(setup), &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    }
    let sent = files.as_ref().map(ImageFiles::sent).unwrap_or_default();
    let request = Request::Open { read_only: only_readable.is_some(), files: sent };
    worker.channel.send(&request, &files.as_ref().map(ImageFiles::lend).unwrap_or_default())?;
    // From here on the worker holds the locks on the image.
    drop(files);
    opened_in(worker, args, options, only_readable)
}

/// Opens the server in a worker. This process makes its connections.
fn open_server_in_worker(args: &Args, options: &Options) -> Result<(Worker, Option<String>)> {
    let connection = ServerConnection::open(&args.image, &options.image)?;
    let worker = Worker::start(args)?;
    let (maker, theirs) = ConnectionMaker::new(&args.image)?;
    worker.channel.send(&Request::OpenServer, &[connection.lend(), theirs.as_fd()])?;
    maker.start()?;
    opened_in(worker, args, options, None)
}

/// Waits until the worker has opened what it serves.
fn opened_in(
    mut worker: Worker,
    args: &Args,
    options: &Options,
    only_readable: Option<String>,
) -> Result<(Worker, Option<String>)> {
    let Event::Opened { read_only } = worker.receive()? else { return Err(unexpected_event()) };
    let because = only_readable.or(read_only.filter(|_| !options.image.read_only));
    if let Some(why) = &because {
        if let Err(refused) = check_writable(args, options, why) {
            worker.dismiss()?;
            return Err(refused);
        }
        log::warn!("{}", read_only_warning(args, why));
    }
    Ok((worker, because))
}

/// Mounts and waits until the worker serves.
fn attach(args: &Args, fuse: &FuseOptions, mut worker: Worker) -> Result<(Arc<Attached>, Worker)> {
    let mut fuse = fuse.clone();
    // The requests of an ordinary user's mount carry that user's credentials. So the kernel must keep other
    // users from files that only this user may read.
    if is_server(&args.image) && (!fuse.allow_other || rustix::process::geteuid().is_root()) {
        fuse.leave_to_server();
    }
    let (attached, connection) = match ivers_fuse::attach(&args.dir, &fuse) {
        Ok((attached, connection)) => (Arc::new(attached), connection),
        Err(error) => {
            worker.dismiss()?;
            return Err(error.into());
        }
    };
    let (fds, thread_ids) = connection.into_parts();
    let request = Request::Serve { thread_ids, pid: std::process::id() };
    worker.channel.send(&request, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    // The worker must hold the only descriptor of the connection: when it dies, the kernel ends the mount.
    drop(fds);
    let Event::Serving = worker.receive()? else { return Err(unexpected_event()) };
    Ok((attached, worker))
}

fn unmount(attached: &Attached) {
    match attached.unmount() {
        Err(MountError::Busy(_)) => {
            log::warn!("the mount is in use: detached; it ends when the last file is closed");
            if let Err(error) = attached.detach() {
                log::error!("{error}");
            }
        }
        Err(error) => log::error!("{error}"),
        Ok(()) => {}
    }
}

/// The supervisor's end of the connection to the worker. Start it on the main thread: the worker dies with
/// the thread that started it.
struct Worker {
    child: Child,
    channel: Channel,
}

impl Worker {
    fn start(args: &Args) -> Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let child = this_program()?
            .args(words(args, "--worker"))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the worker")?;
        Ok(Self { child, channel })
    }

    /// Receives the next message. A failure of the worker becomes the error.
    fn receive(&mut self) -> Result<Event> {
        match self.channel.receive()? {
            Some((Event::Failed { code, line }, _)) => {
                self.child.wait()?;
                Err(failure(code, line))
            }
            Some((event, _)) => Ok(event),
            None => bail!("the worker {}", describe_exit(self.child.wait()?)),
        }
    }

    /// Lets the worker close the image: there is nothing to serve.
    fn dismiss(mut self) -> Result<()> {
        self.channel.finish()?;
        self.receive()?;
        self.wait()
    }

    fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(failure(FAILED, format!("the worker {}", describe_exit(status))))
        }
    }
}
