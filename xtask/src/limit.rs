//! Steps under CI: how long each took, and an end to one that hangs, with a word on where.
//!
//! A machine that runs CI takes a run that does not end away, and what it printed with it. So a step that has not ended when the run should
//! have is ended here, behind a list of its threads: tests bear their names. A process that waits for a FUSE server that is gone cannot be
//! killed, so mounts are aborted first; and because not even that is sure, the steps write to a pipe of ours and hold nothing of the caller's.

use anyhow::{Context, Result};
use procfs::process::{MountInfo, Process, all_processes};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What all steps of a run may take together: far more than they do, and less than a machine waits.
const RUN: Duration = Duration::from_secs(75 * 60);
/// How often a step is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// For what was killed to be gone, and for the last that a step wrote.
const GRACE: Duration = Duration::from_secs(10);

/// When the run that has a limit began.
static BEGAN: OnceLock<Instant> = OnceLock::new();

/// From here on steps have a limit, if nobody is there to look for himself and to press Ctrl-C.
pub fn begin() {
    if std::env::var_os("CI").is_some() {
        BEGAN.get_or_init(Instant::now);
    }
}

/// Run a command to its end, or to that of the time for the whole run.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    let Some(began) = BEGAN.get() else { return Ok(command.status()?) };
    let left = RUN.saturating_sub(began.elapsed());
    let which = |mount: &MountInfo| (mount.mnt_id, mount.mount_point.clone());
    let mounted_before: HashSet<_> = test_mounts().map(|mount| which(&mount)).collect();
    status_within(command, left, move || {
        test_mounts().filter(|mount| !mounted_before.contains(&which(mount))).for_each(|mount| abort(&mount));
    })
}

/// `release` lets those go who cannot be killed.
fn status_within(
    command: &mut Command,
    limit: Duration,
    release: impl FnOnce() + Send + 'static,
) -> Result<ExitStatus> {
    let start = Instant::now();
    let (reader, writer) = std::io::pipe()?;
    command.process_group(0).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    // The command holds the ends to write to.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let written = pass_on(reader);
    let group = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait()? {
            if written.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("xtask: something that {command:?} started still runs");
                in_time(move || print_threads(group));
            }
            return Ok(status);
        }
        if start.elapsed() > limit {
            break;
        }
        std::thread::sleep(LOOK);
    }
    eprintln!("xtask: {command:?} has not ended in {} s; what runs:", start.elapsed().as_secs());
    // Either may have to wait for what hangs.
    in_time(move || print_threads(group));
    in_time(release);
    let _ = kill_process_group(group, Signal::KILL);
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < GRACE {
        std::thread::sleep(LOOK);
    }
    let _ = written.recv_timeout(GRACE);
    anyhow::bail!("ended after {} s", start.elapsed().as_secs())
}

/// Do something, and wait for it as long as there is hope.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(GRACE);
}

/// What comes out of a pipe goes to our own output. The end of it is told.
fn pass_on(mut from: std::io::PipeReader) -> mpsc::Receiver<()> {
    let (ended, has_ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut out = std::io::stdout().lock();
            if out.write_all(&buffer[..length]).and_then(|()| out.flush()).is_err() {
                break;
            }
        }
        let _ = ended.send(());
    });
    has_ended
}

/// The threads of a group of processes and of all servers, those of mounts among them: what they wait for in the kernel.
fn print_threads(group: Pid) {
    let Ok(processes) = all_processes() else { return };
    for process in processes.flatten() {
        let Ok(stat) = process.stat() else { continue };
        if stat.pgrp == group.as_raw_nonzero().get() || stat.comm.starts_with("ivers") {
            print_process(&process);
        }
    }
}

fn print_process(process: &Process) {
    eprintln!("  {}", process.pid);
    for task in process.tasks().into_iter().flatten().flatten() {
        let Ok(stat) = task.stat() else { continue };
        let path = format!("/proc/{}/task/{}/wchan", task.pid, task.tid);
        let waits_for = std::fs::read_to_string(path).unwrap_or_default();
        eprintln!("    {} {} {waits_for} {}", task.tid, stat.state, stat.comm);
    }
}

/// What is mounted of the kinds that tests mount, the latest first.
fn test_mounts() -> impl Iterator<Item = MountInfo> {
    let mounts = Process::myself().and_then(|me| me.mountinfo()).map(|mounts| mounts.0).unwrap_or_default();
    let kinds = ["fuse.ivers", "fuse.fuse2fs", "fuse.passthrough_ll"];
    mounts.into_iter().rev().filter(move |mount| kinds.contains(&&*mount.fs_type))
}

/// Let whoever waits for the server of a mount have an error instead.
fn abort(mount: &MountInfo) {
    eprintln!("  mounted: {} on {}", mount.fs_type, mount.mount_point.display());
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
    if let Err(error) = rustix::mount::unmount(&mount.mount_point, flags) {
        eprintln!("  it stays mounted: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_step_that_ends_says_how() {
        for code in [0, 3] {
            let status =
                status_within(&mut shell(&format!("exit {code}")), Duration::from_secs(60), || ()).unwrap();
            assert_eq!(status.code(), Some(code));
        }
        assert!(status_within(&mut Command::new("/nonexistent"), Duration::from_secs(60), || ()).is_err());
    }

    #[test]
    fn a_step_that_hangs_is_ended_with_its_children() {
        let start = Instant::now();
        let dir = std::env::temp_dir().join(format!("ivers-limit-{}", std::process::id()));
        let script = format!("sleep 1000 & echo $! > {}; wait", dir.display());
        let error = status_within(&mut shell(&script), Duration::from_secs(1), || ()).unwrap_err();
        assert!(error.to_string().contains("ended after"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(1) + 2 * GRACE);
        let sleeper: i32 = std::fs::read_to_string(&dir).unwrap().trim().parse().unwrap();
        std::fs::remove_file(&dir).unwrap();
        // Dead, or not yet buried by whoever inherited it; it takes a moment to die.
        let is_gone =
            || Process::new(sleeper).and_then(|p| p.stat()).map_or(true, |stat| "ZX".contains(stat.state));
        let killed = Instant::now();
        while !is_gone() {
            assert!(killed.elapsed() < GRACE, "it still runs");
            std::thread::sleep(LOOK);
        }
    }
}
