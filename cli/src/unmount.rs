//! `unmount`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use ivers_fuse::{MOUNT, mounts_of};
use serde_json::json;

use crate::failure::{BUSY, FAILED, REFUSED, failure, say, usage};
use crate::{args, facts, progress, show};

/// `ivers unmount`.
pub fn unmount(args: &args::Unmount, json: bool) -> Result<()> {
    if is_dead(&args.dir) {
        return take_away_dead(&args.dir, json);
    }
    match unmount_served(args, json) {
        // Its process died meanwhile.
        Err(_) if is_dead(&args.dir) => take_away_dead(&args.dir, json),
        done => done,
    }
}

fn unmount_served(args: &args::Unmount, json: bool) -> Result<()> {
    let dir = args.dir.canonicalize().with_context(|| args.dir.display().to_string())?;
    let Some(mount) = facts::served_json_if_any(&dir, MOUNT)? else {
        let dir = args.dir.display();
        return Err(failure(REFUSED, format!("{dir}: not on an ivers mount: nothing to unmount")));
    };
    let pid = mount["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(rustix::process::Pid::from_raw);
    // Held from before the unmount, so that the number cannot come to mean another process.
    let process =
        pid.and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
    let ending = pid.and_then(|pid| crate::outcome::ask(pid.as_raw_nonzero().get()));
    // Root may unmount what another user's mount does not let it look at.
    let number = std::fs::metadata(&dir).ok().map(|found| found.dev());
    let number = number.map(|dev| (rustix::fs::major(dev), rustix::fs::minor(dev)));
    let before = number.map(mounts_of).unwrap_or_default();
    let waiting = progress::Waiting::to("until the image is safe");
    detach(&dir, args.lazy)?;
    // A new mount may have the number already, but not the whole line.
    let after = number.map(mounts_of).unwrap_or_default();
    if let Some(other) = after.iter().find(|line| before.contains(line)) {
        // The process goes on serving: waiting for it could last for ever.
        let (dir, other) = (dir.display(), other.dir.display());
        return Err(failure(
            BUSY,
            format!("{dir}: taken away, but {other} shows the same mount: unmount it too"),
        ));
    }
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
    drop(waiting);
    if let Some((code, complaint)) = ending.and_then(crate::outcome::Ending::complaint) {
        let dir = dir.display();
        return Err(failure(
            code,
            format!("{dir}: taken away, but the image was not closed in good order: {complaint}"),
        ));
    }
    if json {
        show::json_line(&json!({ "dir": dir.to_string_lossy(), "fs": mount["fs"], "uuid": mount["uuid"] }))?;
    }
    Ok(())
}

/// Whether a directory shows a mount whose process is gone. Asked by a call that no cache of the kernel answers.
pub fn is_dead(dir: &Path) -> bool {
    use rustix::io::Errno;
    rustix::fs::statfs(dir).is_err_and(|error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED))
}

fn take_away_dead(dir: &Path, json: bool) -> Result<()> {
    // The directory itself cannot be looked at any more.
    let dir = std::path::absolute(dir)?;
    let dir = match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().with_context(|| parent.display().to_string())?.join(name)
        }
        _ => dir,
    };
    detach(&dir, true)?;
    say(format_args!(
        "ivers: {}: the process that served it had died; what was not synced is lost; the next mount replays the journal (an image without one is for its checker first)",
        dir.display()
    ));
    if json {
        show::json_line(&json!({ "dir": dir.to_string_lossy(), "fs": null, "uuid": null }))?;
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
            Err(rustix::io::Errno::INVAL) => {
                Err(usage(format!("{}: in a mount, but not the directory it is mounted on", dir.display())))
            }
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
