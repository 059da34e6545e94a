//! `unmount`: detaches a mount and waits until its image is closed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use ivers_fuse::{MOUNT, MountEntry, all_mounts, mounts_of};
use serde_json::{Value, json};

use crate::file_info::{self, is_dead_mount};
use crate::image::image_lock::explain_busy;
use crate::image::unmount_status;
use crate::output::failure::{self, BUSY, FAILED, REFUSED, failure, usage, warn};
use crate::output::format::Shown;
use crate::output::{format, print, progress};

const HELP: &str = "\
If a program has a file open there, nothing is done (exit code 6): close it, or use --lazy. Exit code 1 \
means that the image could not be closed without error, or that files lack data that programs wrote (a full \
image or server, and a program that ignored the error); the message says what, and names files. A mount \
whose process died is removed as well. After umount(8) the command waits until the image is closed.

JSON: dir, fs, uuid.

Examples:
  ivers unmount mnt
  ivers unmount --lazy mnt";

/// Options of `unmount`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The directory
    dir: PathBuf,
    /// Detach the mount now, even if it is in use; the command still waits until the last open file is closed
    #[arg(long)]
    lazy: bool,
}

/// Runs `ivers unmount`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    if is_dead_mount(&args.dir) {
        return remove_dead(&args.dir, json);
    }
    match unmount_served(args, json) {
        // The process died in the meantime.
        Err(_) if is_dead_mount(&args.dir) => remove_dead(&args.dir, json),
        // Such a mount cannot even be looked at, unless it has allow_other.
        Err(error) => Err(of_other_user(&args.dir).unwrap_or(error)),
        Ok(()) => Ok(()),
    }
}

/// Returns the error for a mount of a user whose mounts this user may not unmount.
fn of_other_user(dir: &Path) -> Option<anyhow::Error> {
    let own = rustix::process::geteuid().as_raw();
    let place = resolve_parent(dir).ok()?;
    let mount = all_mounts().into_iter().rfind(|mount| mount.dir == place)?;
    let uid = mounter(&mount).filter(|uid| own != 0 && *uid != own)?;
    let name = uzers::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| format!("with number {uid}"));
    let why = if uid == 0 { "only root may" } else { "only that user and root may" };
    Some(failure(FAILED, format!("{}: mounted by user {name}: {why} unmount it", dir.shown())))
}

/// Returns the user of a FUSE mount.
fn mounter(mount: &MountEntry) -> Option<u32> {
    // After the separator and the type; the name of the image could contain such text.
    let options = mount.line.rsplit(' ').next()?;
    options.split(',').find_map(|option| option.strip_prefix("user_id="))?.parse().ok()
}

/// Returns the path of a directory that cannot be resolved itself: its parent can.
fn resolve_parent(dir: &Path) -> Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    Ok(match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().with_context(|| parent.shown())?.join(name),
        _ => dir,
    })
}

fn unmount_served(args: &Args, json: bool) -> Result<()> {
    let dir = args.dir.canonicalize().with_context(|| args.dir.shown())?;
    let Some(mount) = file_info::served_json_if_any(&dir, MOUNT)? else {
        if let Some(status) = unmount_status::that_left(&dir) {
            // umount(8) was first, and has not waited.
            let waiting = progress::Waiting::to("waiting until the image is closed");
            let failed = status.wait();
            drop(waiting);
            if failed.is_none() && json {
                print_closed(&dir, &Value::Null)?;
            }
            return failed.map_or(Ok(()), |(code, why)| {
                Err(failure(code, format!("{}: was detached already: {why}", dir.shown())))
            });
        }
        // umount(8) also takes what is mounted.
        let user = dir.is_file().then(|| explain_busy(&args.dir, &dir)).flatten();
        let nothing = || format!("{}: not on an ivers mount: nothing to unmount", args.dir.shown());
        return Err(failure(REFUSED, user.unwrap_or_else(nothing)));
    };
    let pid = mount["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(rustix::process::Pid::from_raw);
    // Opened before the unmount: the process ID could be reused.
    let process =
        pid.and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
    let status = pid.and_then(|pid| unmount_status::connect(pid.as_raw_nonzero().get()));
    // Fails on another user's mount, which root may unmount but not access.
    let device = std::fs::metadata(&dir).ok().map(|found| found.dev());
    let device = device.map(|dev| (rustix::fs::major(dev), rustix::fs::minor(dev)));
    let before = device.map(mounts_of).unwrap_or_default();
    let waiting = progress::Waiting::to("waiting until the image is closed");
    detach(&dir, args.lazy)?;
    // A new mount can have the same device number, but not the same line.
    let after = device.map(mounts_of).unwrap_or_default();
    if let Some(other) = after.iter().find(|line| before.contains(line)) {
        // The process continues to serve: waiting for it could take forever.
        let (dir, other) = (dir.shown(), other.dir.shown());
        return Err(failure(BUSY, format!("{dir}: detached, but {other} is the same mount; unmount it too")));
    }
    if let Some(process) = process {
        let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the process of the mount"),
            }
        }
    } else if let Some(pid) = pid {
        while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    drop(waiting);
    if let Some((code, why)) = status.and_then(unmount_status::UnmountStatus::wait) {
        let dir = dir.shown();
        return Err(failure(code, format!("{dir}: detached: {why}")));
    }
    if json {
        print_closed(&dir, &mount)?;
    }
    Ok(())
}

/// Prints in JSON what was unmounted. `mount` is what the mount said of itself; null if it could not.
fn print_closed(dir: &Path, mount: &Value) -> Result<()> {
    let object = json!({ "fs": mount["fs"], "uuid": mount["uuid"] });
    print::json_line(&format::with_paths(object, [("dir", dir)]))
}

fn remove_dead(dir: &Path, json: bool) -> Result<()> {
    let dir = resolve_parent(dir)?;
    detach(&dir, true)?;
    warn(format_args!(
        "{}: the process of the mount had died: changes that were not synced are lost. \
         If the format has a journal, or is btrfs or UFS, the next mount recovers the image; otherwise check \
         it first (e2fsck, fsck.fat)",
        dir.shown()
    ));
    if json {
        print_closed(&dir, &Value::Null)?;
    }
    Ok(())
}

/// Times between the attempts to detach a mount that is busy. A program that has just ended can still hold
/// its files there for a moment: the kernel closes them after the program's exit status is available.
const BUSY_PAUSES_MS: [u64; 5] = [5, 20, 50, 100, 200];

/// Detaches a mount. If it is busy, tries again for a moment.
fn detach(dir: &PathBuf, lazy: bool) -> Result<()> {
    for pause in BUSY_PAUSES_MS {
        match detach_once(dir, lazy) {
            Err(error) if failure::code(&error) == BUSY => {
                std::thread::sleep(Duration::from_millis(pause));
            }
            done => return done,
        }
    }
    detach_once(dir, lazy)
}

/// Detaches a mount: with umount2(2) as root, else with fusermount3.
fn detach_once(dir: &PathBuf, lazy: bool) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags =
            if lazy { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
        return match rustix::mount::unmount(dir, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(busy(dir)),
            Err(rustix::io::Errno::INVAL) => {
                Err(usage(format!("{}: not a mount point, but a directory below one", dir.shown())))
            }
            Err(error) => Err(failure(FAILED, format!("{}: {error}", dir.shown()))),
        };
    }
    let mounts = || all_mounts().into_iter().filter(|mount| mount.dir == *dir).collect::<Vec<_>>();
    let before = mounts();
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .context("cannot run fusermount3 (package fuse3), which unmounts without root")?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let uid = rustix::process::geteuid().as_raw();
    after_refusal(dir, lazy, uid, &before, &mounts(), message.trim())
}

/// Judges a failed fusermount3 by the mounts on the directory before and after it. Its exit status does not
/// tell why it failed. Its message ends with the error of umount2(2), if that failed.
fn after_refusal(
    dir: &Path,
    lazy: bool,
    uid: u32,
    before: &[MountEntry],
    after: &[MountEntry],
    message: &str,
) -> Result<()> {
    let Some(top) = before.last() else {
        return Err(usage(format!("{}: not a mount point, but a directory below one", dir.shown())));
    };
    if !after.contains(top) {
        return Ok(());
    }
    // A user may unmount its own mounts, and may always do so lazily.
    if mounter(top) == Some(uid) && !lazy && message.ends_with("busy") {
        return Err(busy(dir));
    }
    let message = if message.is_empty() { "fusermount3 failed and does not say why" } else { message };
    Err(failure(FAILED, format!("{}: cannot be unmounted: {message}", dir.shown())))
}

fn busy(dir: &Path) -> anyhow::Error {
    failure(
        BUSY,
        format!(
            "{}: busy: close the files that are open in it (fuser -vm lists them), or use --lazy",
            dir.shown()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::failure::{Failure, USAGE};

    #[test]
    fn a_failed_fusermount_is_judged_by_the_mounts() {
        let entry = |number: u32, uid: u32| MountEntry {
            line: format!("{number} 1 0:{number} / /m rw - fuse.ivers i rw,user_id={uid},group_id=7"),
            dir: "/m".into(),
        };
        let (own, other) = ([entry(1, 1000)], [entry(2, 100)]);
        let both = [entry(2, 100), entry(1, 1000)];
        let code = |lazy, before: &[MountEntry], after: &[MountEntry]| {
            let message = "fusermount3: failed to unmount /m: Device or resource busy";
            let error = after_refusal(Path::new("/m"), lazy, 1000, before, after, message).err()?;
            Some(error.downcast::<Failure>().unwrap().code)
        };
        let table = "fusermount3: failed to open /etc/mtab: No such file or directory";
        let error = after_refusal(Path::new("/m"), false, 1000, &own, &own, table).unwrap_err();
        assert_eq!((error.to_string().ends_with(table), failure::code(&error)), (true, FAILED));
        assert_eq!(code(false, &own, &own), Some(BUSY));
        assert_eq!(code(true, &own, &own), Some(FAILED), "lazily it is never busy");
        assert_eq!(code(false, &other, &other), Some(FAILED), "of another user");
        assert_eq!(code(false, &both, &other), None, "it is gone");
        assert_eq!(code(false, &[], &[]), Some(USAGE), "no mount point");
    }
}
