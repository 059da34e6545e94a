//! `mount` and `unmount`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ivers_fuse::{FuseOptions, MOUNT, MountError};
use ivers_vfs::{AtimeMode, ChangeMode, MountOptions};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{BUSY, FAILED, failure, usage};
use crate::image::How;
use crate::{args, daemon, facts, show};

/// What `-o` said, sorted by whom it concerns.
struct Options {
    how: How,
    vfs: MountOptions,
    fuse: FuseOptions,
}

/// Split at commas; `\,` is a comma in a value.
fn split(words: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for word in words {
        let mut one = String::new();
        let mut chars = word.chars();
        while let Some(c) = chars.next() {
            match c {
                ',' => all.push(std::mem::take(&mut one)),
                '\\' => one.extend(chars.next()),
                c => one.push(c),
            }
        }
        all.push(one);
    }
    all.retain(|option| !option.is_empty());
    all
}

fn parse(words: &[String]) -> Result<Options> {
    let mut how = How { read_only: false, ..How::default() };
    let mut vfs = MountOptions::default();
    let mut fuse = FuseOptions::default();
    for option in split(words) {
        let bad = |why: &str| usage(format!("mount option {option}: {why}"));
        let (name, value) = option.split_once('=').map_or((option.as_str(), None), |(n, v)| (n, Some(v)));
        match (name, value) {
            ("iversion", Some("lazy")) | ("i_version", None) => vfs.mode = ChangeMode::Lazy,
            ("iversion", Some("eager")) => vfs.mode = ChangeMode::Eager,
            ("iversion", Some("off")) | ("noiversion", None) => vfs.mode = ChangeMode::Off,
            ("iversion", _) => return Err(bad("must be lazy, eager or off")),
            ("lazytime", None) => vfs.lazytime = true,
            ("nolazytime", None) => vfs.lazytime = false,
            ("relatime", None) => vfs.atime = AtimeMode::Relative,
            ("noatime", None) => vfs.atime = AtimeMode::Never,
            ("strictatime" | "atime", None) => vfs.atime = AtimeMode::Strict,
            ("cache", value) => {
                how.cache_bytes = value
                    .and_then(show::parse_size)
                    .filter(|&bytes| bytes >= 4 << 20)
                    .ok_or_else(|| bad("must be a size of at least 4M, as 64M or 1G"))?;
            }
            ("commit", value) => {
                how.commit_s = value
                    .and_then(|v| v.parse().ok())
                    .filter(|s| (1..=900).contains(s))
                    .ok_or_else(|| bad("must be a number of seconds from 1 to 900"))?;
            }
            ("trust-foreign", None) => how.trust_foreign = true,
            ("norecovery" | "noload", None) => how.no_replay = true,
            // What mount(8) and fstab add for themselves.
            (
                "defaults" | "auto" | "noauto" | "user" | "users" | "nouser" | "nofail" | "_netdev" | "loop",
                None,
            ) => {}
            (name, _) if name.starts_with("x-") => {}
            _ => {
                if !fuse.set(&option).map_err(|e| usage(e.to_string()))? {
                    return Err(bad("unknown; see ivers mount --help"));
                }
            }
        }
    }
    how.read_only = fuse.read_only;
    if how.no_replay && !how.read_only {
        return Err(usage("mount option norecovery: only with ro, or the journal would be lost"));
    }
    Ok(Options { how, vfs, fuse })
}

/// `ivers mount`.
pub fn mount(mut args: args::Mount, json: bool) -> Result<()> {
    let options = parse(&args.options)?;
    if args.serve || args.foreground {
        return serve(&args, options);
    }
    // The process that serves works in another directory.
    if args.fs_type != "mem" {
        args.image =
            args.image.canonicalize().with_context(|| format!("cannot open {}", args.image.display()))?;
    }
    args.dir = args.dir.canonicalize().with_context(|| args.dir.display().to_string())?;
    let log = args.log.take().map(std::path::absolute).transpose()?;
    let mut words: Vec<OsString> =
        vec!["mount".into(), "--serve".into(), "--type".into(), args.fs_type.clone().into()];
    for option in &args.options {
        words.extend(["-o".into(), OsString::from(option)]);
    }
    words.extend(["--".into(), args.image.clone().into(), args.dir.clone().into()]);
    let pid = daemon::start(&words, log.as_deref())?;
    if json {
        show::json_line(
            &json!({ "dir": args.dir.to_string_lossy(), "image": args.image.to_string_lossy(), "pid": pid }),
        )?;
    }
    Ok(())
}

fn serve(args: &args::Mount, options: Options) -> Result<()> {
    daemon::start_log();
    if !args.serve {
        return run(args, options, |_| {});
    }
    daemon::leave_terminal()?;
    let mut told = false;
    let result = run(args, options, |result| {
        told = true;
        daemon::tell_parent(result);
    });
    if !told {
        daemon::tell_parent(&result);
    }
    result
}

fn run(args: &args::Mount, options: Options, ready: impl FnOnce(&Result<()>)) -> Result<()> {
    let Options { how, vfs, mut fuse } = options;
    if fuse.fsname == FuseOptions::default().fsname {
        fuse.fsname = args.image.display().to_string();
    }
    let vfs = crate::image::open(&args.fs_type, &args.image, &how, vfs)?;
    if let Some(why) = vfs.info().read_only.as_ref().filter(|_| !how.read_only) {
        log::warn!("{}: mounted read-only: {why}", args.image.display());
    }
    // Before the mount shows: a signal from then on is an unmount.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let session = match ivers_fuse::mount(vfs.clone(), &args.dir, fuse) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            vfs.unmount()?;
            return Err(error.into());
        }
    };
    let handle = signals.handle();
    let on_signal = session.clone();
    let watcher = std::thread::Builder::new().name("ivers-signals".into()).spawn(move || {
        for signal in signals.forever() {
            log::info!("signal {signal}: unmounting");
            match on_signal.unmount() {
                Err(MountError::Busy(_)) => {
                    log::warn!("the mount is in use: detached, it ends with the last open file");
                    if let Err(error) = on_signal.detach() {
                        log::error!("{error}");
                    }
                }
                Err(error) => log::error!("{error}"),
                Ok(()) => {}
            }
        }
    })?;
    ready(&Ok(()));
    let served = session.wait();
    handle.close();
    let _ = watcher.join();
    // Whatever ended the session: what was written goes to the image.
    let closed = vfs.unmount();
    served?;
    closed.with_context(|| format!("{}: closing the image", args.image.display()))?;
    Ok(())
}

/// `ivers unmount`.
pub fn unmount(args: &args::Unmount, json: bool) -> Result<()> {
    let dir = args.dir.canonicalize().with_context(|| args.dir.display().to_string())?;
    let mount = facts::served_json(&dir, MOUNT)?;
    let pid = mount["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(rustix::process::Pid::from_raw);
    // Held from before the unmount, so that the number cannot come to mean another process.
    let process =
        pid.and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
    detach(&dir, args.lazy)?;
    if let Some(process) = process {
        let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the process that serves"),
            }
        }
    } else if let Some(pid) = pid {
        while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    if json {
        show::json_line(&json!({ "dir": dir.to_string_lossy(), "fs": mount["fs"], "uuid": mount["uuid"] }))?;
    }
    Ok(())
}

/// Take a mount out of the tree: umount for root, fusermount3 for everybody else.
fn detach(dir: &PathBuf, lazy: bool) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags =
            if lazy { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
        return match rustix::mount::unmount(dir, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(busy(dir)),
            Err(error) => Err(failure(FAILED, format!("{}: {error}", dir.display()))),
        };
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .context("fusermount3 (package fuse3) is needed to unmount without root")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") { Err(busy(dir)) } else { Err(failure(FAILED, said)) }
}

fn busy(dir: &Path) -> anyhow::Error {
    failure(
        BUSY,
        format!("{}: busy: close what is open in it (fuser -vm finds it), or use --lazy", dir.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Options> {
        parse(&[text.to_owned()])
    }

    #[test]
    fn options_find_their_way() {
        let all =
            options("ro,iversion=eager,lazytime,noatime,cache=64M,commit=9,allow_other,x-systemd.automount")
                .unwrap();
        assert!(all.how.read_only && all.vfs.lazytime && all.fuse.allow_other);
        assert_eq!((all.how.cache_bytes, all.how.commit_s), (64 << 20, 9));
        assert_eq!((all.vfs.mode, all.vfs.atime), (ChangeMode::Eager, AtimeMode::Never));
        assert_eq!(options("noiversion").unwrap().vfs.mode, ChangeMode::Off);
        assert_eq!(split(&["a,fsname=b\\,c".into()]), ["a", "fsname=b,c"]);
        for bad in ["iversion=maybe", "cache=1", "cache", "commit=0", "norecovery", "nonsense", "threads=0"] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
