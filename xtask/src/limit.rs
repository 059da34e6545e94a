//! Time limits for steps under CI.
//!
//! A CI machine that stops a run that hangs also discards its output. So this module ends a step that exceeds
//! the limit of the run and prints its threads, which bear the names of tests. A process that waits for a
//! dead FUSE server cannot be killed, so mounts are aborted first. Because even that can fail, steps write to
//! a pipe of this process and inherit none of the caller's descriptors.

use anyhow::{Context, Result};
use procfs::process::{MountInfo, Process, all_processes};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The limit for all steps of a run: well above their usual time and below the limit of CI machines.
const RUN: Duration = Duration::from_secs(75 * 60);
/// The interval between checks of a step.
const LOOK: Duration = Duration::from_millis(50);
/// The time that a killed process gets to exit, and its output to arrive.
const GRACE: Duration = Duration::from_secs(10);

/// The start of a run with a limit.
static BEGAN: OnceLock<Instant> = OnceLock::new();

/// Starts the limit under CI, where nobody can press Ctrl-C.
pub fn begin() {
    if std::env::var_os("CI").is_some() {
        BEGAN.get_or_init(Instant::now);
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// The processor time of the command, and of the processes that it started and waited for. Unlike the
    /// duration it hardly depends on what else runs.
    pub processor_time: Duration,
}

impl Ended {
    /// Returns the status of a child that has exited or is about to.
    fn wait(child: &mut Child) -> std::io::Result<Self> {
        let pid = Pid::from_child(child);
        // The kernel knows its times until it is waited for.
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let processor_time = processor_time(pid).unwrap_or_default();
        Ok(Self { status: child.wait()?, processor_time })
    }

    /// Returns the status of a child, or `None` while it runs.
    fn try_wait(child: &mut Child) -> std::io::Result<Option<Self>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(Pid::from_child(child)), options)? {
            Some(_) => Self::wait(child).map(Some),
            None => Ok(None),
        }
    }
}

/// Returns the processor time of a process and of its children that were waited for.
fn processor_time(pid: Pid) -> Option<Duration> {
    let stat = Process::new(pid.as_raw_nonzero().get()).and_then(|process| process.stat()).ok()?;
    let ticks = stat.utime + stat.stime + u64::try_from(stat.cutime + stat.cstime).ok()?;
    Some(Duration::from_millis(ticks * 1000 / procfs::ticks_per_second()))
}

/// Returns how long a command took, for a message.
pub fn took(start: Instant, ended: &Result<Ended>) -> String {
    let seconds = start.elapsed().as_secs();
    match ended {
        Ok(ended) => format!("{seconds} s, {} s of processor time", ended.processor_time.as_secs()),
        Err(_) => format!("{seconds} s"),
    }
}

/// Runs a command until it ends or the limit of the run is reached.
pub fn status(command: &mut Command) -> Result<Ended> {
    if BEGAN.get().is_none() {
        return Ok(Ended::wait(&mut command.spawn()?)?);
    }
    status_of_run(command, std::io::stdout())
}

/// As [`status`], and returns what the command wrote to standard output and standard error.
pub fn output(command: &mut Command) -> (Result<Ended>, Vec<u8>) {
    let written = Arc::new(Mutex::new(Vec::new()));
    let status = status_of_run(command, Shared(written.clone()));
    let written = std::mem::take(&mut *written.lock().unwrap());
    (status, written)
}

/// An output buffer that two threads share.
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn status_of_run(command: &mut Command, sink: impl Write + Send + 'static) -> Result<Ended> {
    let Some(began) = BEGAN.get() else {
        return status_within(command, None, sink, || ());
    };
    let left = RUN.saturating_sub(began.elapsed());
    let which = |mount: &MountInfo| (mount.mnt_id, mount.mount_point.clone());
    let mounted_before: HashSet<_> = test_mounts().map(|mount| which(&mount)).collect();
    status_within(command, Some(left), sink, move || {
        test_mounts().filter(|mount| !mounted_before.contains(&which(mount))).for_each(|mount| abort(&mount));
    })
}

/// Runs a command until it ends or the limit is reached. What it writes goes to `sink`. `release` frees
/// processes that cannot be killed. Without a limit Ctrl-C reaches the command; with one, it is in a group of
/// its own, so that what it started can be killed.
fn status_within(
    command: &mut Command,
    limit: Option<Duration>,
    sink: impl Write + Send + 'static,
    release: impl FnOnce() + Send + 'static,
) -> Result<Ended> {
    let start = Instant::now();
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    if limit.is_some() {
        command.process_group(0);
    }
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    // Drops the command's copies of the pipe's write end.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let written = pass_on(reader, sink);
    let group = Pid::from_child(&child);
    loop {
        if let Some(ended) = Ended::try_wait(&mut child)? {
            if written.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("xtask: something that {command:?} started still runs");
                with_timeout(move || print_threads(group));
            }
            return Ok(ended);
        }
        if limit.is_some_and(|limit| start.elapsed() > limit) {
            break;
        }
        std::thread::sleep(LOOK);
    }
    eprintln!("xtask: {command:?} has not ended in {} s; what runs:", start.elapsed().as_secs());
    // Both can block on what hangs.
    with_timeout(move || print_threads(group));
    with_timeout(release);
    let _ = kill_process_group(group, Signal::KILL);
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < GRACE {
        std::thread::sleep(LOOK);
    }
    let _ = written.recv_timeout(GRACE);
    anyhow::bail!("ended after {} s", start.elapsed().as_secs())
}

/// Runs a function, and waits for it for a limited time.
fn with_timeout(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(GRACE);
}

/// Copies a pipe to `sink`. The channel reports its end.
fn pass_on(mut from: std::io::PipeReader, mut sink: impl Write + Send + 'static) -> mpsc::Receiver<()> {
    let (ended, has_ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sink.write_all(&buffer[..length]).and_then(|()| sink.flush()).is_err() {
                break;
            }
        }
        let _ = ended.send(());
    });
    has_ended
}

/// Prints the threads of a process group and of all servers, and the kernel function in which each waits.
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

/// Returns mounts of the types that tests use, newest first.
fn test_mounts() -> impl Iterator<Item = MountInfo> {
    let mounts = Process::myself().and_then(|me| me.mountinfo()).map(|mounts| mounts.0).unwrap_or_default();
    let kinds = ["fuse.ivers", "fuse.fuse2fs", "fuse.passthrough_ll"];
    mounts.into_iter().rev().filter(move |mount| kinds.contains(&&*mount.fs_type))
}

/// Aborts a mount: requests that wait for its server fail.
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

    const A_MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_step_that_ends_returns_its_status() {
        for code in [0, 3] {
            let ended =
                status_within(&mut shell(&format!("exit {code}")), A_MINUTE, std::io::stdout(), || ())
                    .unwrap();
            assert_eq!(ended.status.code(), Some(code));
        }
        let mut absent = Command::new("/nonexistent");
        assert!(status_within(&mut absent, A_MINUTE, std::io::stdout(), || ()).is_err());
    }

    #[test]
    fn the_output_of_a_step_can_be_kept() {
        let (ended, output) = output(&mut shell("echo one; echo two >&2; exit 4"));
        assert_eq!(ended.unwrap().status.code(), Some(4));
        assert_eq!(output, b"one\ntwo\n");
    }

    #[test]
    fn the_processor_time_of_children_counts() {
        let (ended, _) = output(&mut shell("head -c 200000000 /dev/zero | md5sum"));
        assert!(ended.unwrap().processor_time > Duration::from_millis(20));
        let (ended, _) = output(&mut shell("sleep 1"));
        assert!(ended.unwrap().processor_time < Duration::from_millis(500));
    }

    #[test]
    fn a_step_that_hangs_is_killed_with_its_children() {
        let start = Instant::now();
        let dir = std::env::temp_dir().join(format!("ivers-limit-{}", std::process::id()));
        let script = format!("sleep 1000 & echo $! > {}; wait", dir.display());
        let error =
            status_within(&mut shell(&script), Some(Duration::from_secs(1)), std::io::stdout(), || ())
                .unwrap_err();
        assert!(error.to_string().contains("ended after"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(1) + 2 * GRACE);
        let sleeper: i32 = std::fs::read_to_string(&dir).unwrap().trim().parse().unwrap();
        std::fs::remove_file(&dir).unwrap();
        // Gone, or a zombie that its new parent has not reaped; dying takes a moment.
        let is_gone =
            || Process::new(sleeper).and_then(|p| p.stat()).map_or(true, |stat| "ZX".contains(stat.state));
        let killed = Instant::now();
        while !is_gone() {
            assert!(killed.elapsed() < GRACE, "it still runs");
            std::thread::sleep(LOOK);
        }
    }
}
