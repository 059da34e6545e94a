//! Waiting for the lock on an image.
//!
//! umount(8) and fusermount3 return as soon as the kernel has detached a mount. The process of the mount then
//! writes back its caches and closes the image. A script that mounts the image again at once would find it in
//! use. So [`open_when_closed`] waits for such a process, and for one that was killed. It waits for no other.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ivers_block::{BlockError, DiskFile, FileDevice, FileRange, KernelUse, OpenMode, kernel_use};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::unmount_status::{self, UnmountStatus};
use crate::output::format;
use crate::output::format::Shown;
use crate::output::progress::Waiting;

/// Time within which a process notices that its mount is gone. An image that stays mounted delays the error
/// by it.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to close an image: writing back the caches to a slow disk takes minutes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time for a killed process to end: its writes that the disk has begun are finished first.
const DEATH_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens and locks an image as [`FileDevice::open`] does. If a mount of it has just ended, waits until the
/// image is closed.
pub fn open_when_closed(image: &Path, mode: OpenMode) -> Result<FileDevice, BlockError> {
    when_closed(image, || FileDevice::open(image, mode))
}

/// Opens an image to use a partition of it, as [`open_when_closed`] does.
pub fn open_disk_when_closed(image: &Path, mode: OpenMode) -> Result<DiskFile, BlockError> {
    when_closed(image, || DiskFile::open(image, mode))
}

/// Locks a partition. If a mount of it has just ended, waits until it is closed.
pub fn lock_when_closed(disk: &DiskFile, range: FileRange) -> Result<(), BlockError> {
    match disk.lock(range) {
        Err(BlockError::Busy { .. }) => {}
        locked => return locked,
    }
    // Who holds the range is not visible. Mounts of other partitions go on.
    let image = disk.whole().path();
    let Ok(meta) = std::fs::metadata(image) else { return disk.lock(range) };
    for pid in lock_holders(&meta) {
        if let Some(status) = closing(pid) {
            wait(status, image);
        }
    }
    when_killed_have_ended(&meta, || disk.lock(range))
}

/// Takes a lock on an image. If a mount of it has just ended, waits until the image is closed.
fn when_closed<T>(image: &Path, lock: impl Fn() -> Result<T, BlockError>) -> Result<T, BlockError> {
    let busy = match lock() {
        Err(busy @ BlockError::Busy { .. }) => busy,
        locked => return locked,
    };
    let Ok(meta) = std::fs::metadata(image) else { return Err(busy) };
    for pid in lock_holders(&meta).into_iter().filter(|&pid| !was_killed(pid)) {
        wait(closing(pid).ok_or(busy.clone())?, image);
    }
    when_killed_have_ended(&meta, lock)
}

/// Takes a lock, and tries again while a process that was killed holds it. It polls, because a wait for a
/// lock cannot have a time limit.
fn when_killed_have_ended<T>(
    file: &Metadata,
    lock: impl Fn() -> Result<T, BlockError>,
) -> Result<T, BlockError> {
    let started = Instant::now();
    loop {
        match lock() {
            Err(BlockError::Busy { .. })
                if started.elapsed() < DEATH_TIMEOUT && lock_holders(file).into_iter().any(was_killed) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            locked => return locked,
        }
    }
}

/// Returns whether the process that took a lock was killed. Its lock remains until its files are closed. The
/// files of a supervisor are also open in its worker, which is killed with it.
fn was_killed(pid: i32) -> bool {
    match std::fs::read(format!("/proc/{pid}/cmdline")) {
        // A process that ends gives up its memory, which has the command line, before it closes its files.
        Ok(words) => words.is_empty(),
        // It is gone, or it belongs to another user and /proc hides it.
        Err(_) => Pid::from_raw(pid).is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH)),
    }
}

/// Connects to the process of a mount that has ended or ends soon.
fn closing(pid: i32) -> Option<UnmountStatus> {
    unmount_status::connect(pid).filter(|status| status.is_closing(NOTICE_TIMEOUT))
}

/// Waits until a mount has closed its image.
fn wait(status: UnmountStatus, image: &Path) {
    let waiting = Waiting::to("waiting for the previous mount to close the image");
    let failure = status.with_timeout(CLOSE_TIMEOUT).wait();
    drop(waiting);
    if let Some((_, failure)) = failure {
        log::warn!("{}: the previous mount: {failure}", image.shown());
    }
}

/// Returns an error for an image, or a partition of one, that is in use: who uses it, and what to do. `None`
/// if no visible process holds its lock. `file` is the file of the image.
pub fn explain_busy(image: &Path, file: &Path) -> Option<String> {
    let holders = lock_holders(&std::fs::metadata(file).ok()?);
    let users = match &holders[..] {
        [] => return None,
        // Which of them uses the partition is not visible.
        [_, _, ..] if image != file => {
            let users: Vec<_> = holders.iter().map(|&pid| describe_holder(pid)).collect();
            format!("in use by one of these: {}", users.join(" / "))
        }
        [pid, ..] => describe_holder(*pid),
    };
    Some(format!("{}: {users}", image.shown()))
}

/// Returns the error for an image that the kernel uses: a loop device, or a mount of a block device.
pub fn explain_kernel_use(image: &Path, file: &Path) -> Option<String> {
    let found = kernel_use(&std::fs::metadata(file).ok()?)?;
    let how = match &found.dir {
        Some(dir) => format!("unmount it there first (umount {})", dir.shown()),
        None => format!("detach it first (losetup -d {})", found.device.shown()),
    };
    Some(format!("{}: in use: {}; {how}", image.shown(), kernel_in_words(&found)))
}

/// Returns a warning for the reader of an image that the kernel writes to.
pub fn kernel_writes(image: &Path, file: &Path) -> Option<String> {
    let found = kernel_use(&std::fs::metadata(file).ok()?).filter(|found| found.is_writer)?;
    let what = "what is shown may be old, or may look damaged";
    Some(format!("{}: {}: {what}", image.shown(), kernel_in_words(&found)))
}

fn kernel_in_words(found: &KernelUse) -> String {
    let device = found.device.shown();
    match &found.dir {
        Some(dir) => format!("the kernel has it mounted on {} ({device})", dir.shown()),
        None => format!("the kernel has it open ({device})"),
    }
}

/// Returns the error for an image whose user is not visible.
pub fn unknown_user(image: &Path, file: &Path) -> String {
    format!(
        "{}: in use by a process of another user or container, or by a loop mount of the kernel \
         (losetup -j {} shows it); unmount it there first",
        image.shown(),
        file.shown()
    )
}

fn describe_holder(pid: i32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = words.split(|&byte| byte == 0).map(format::name).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    holder_in_words(pid, &words)
}

/// Describes a process with this command line, and how to end its use of an image.
fn holder_in_words(pid: i32, words: &[&str]) -> String {
    let is_ivers = words.first().is_some_and(|word| Path::new(word).ends_with("ivers"));
    match words {
        // The supervisor of a mount has the mount point last.
        [_, "mount", .., dir] if is_ivers => {
            format!("in use: mounted on {dir} (process {pid}); run `ivers unmount {dir}` first")
        }
        [_, "serve", ..] if is_ivers => {
            format!("in use by a server, ivers serve (process {pid}); stop it first (kill {pid})")
        }
        [_, command, ..] if is_ivers => {
            let command = if command.contains("process") { "command" } else { *command };
            format!("in use by another ivers {command} (process {pid}); wait until it has ended")
        }
        [program, ..] => format!("in use by {program} (process {pid}); close it there first"),
        [] => format!("in use by process {pid}; close it there first"),
    }
}

/// Returns the other visible processes that hold a `flock(2)` on a file. Every user of an image holds one.
fn lock_holders(file: &Metadata) -> Vec<i32> {
    // A line is "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1022 0 EOF"; the device is in hexadecimal
    // (proc_locks(5)).
    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let own = std::process::id().cast_signed();
    let holder = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, on, ..] if on == id => pid.parse().ok().filter(|pid| *pid != own),
            _ => None,
        }
    };
    table.lines().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn a_lock_whose_taker_has_died_is_waited_for() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 16).unwrap();
        // flock(1) takes the lock and ends. The shell has the file open until its input ends.
        let mut shell = Command::new("sh")
            .args(["-c", "exec 9<>\"$0\" && flock 9 && echo && read -r line"])
            .arg(image.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let (tries, shell) = (Cell::new(0), RefCell::new(shell));
        let opened = when_closed(image.path(), || {
            tries.set(tries.get() + 1);
            if tries.get() == 4 {
                drop(shell.borrow_mut().stdin.take());
                shell.borrow_mut().wait().unwrap();
            }
            FileDevice::open(image.path(), OpenMode::ReadWrite)
        });
        assert!(opened.is_ok(), "{:?}", opened.err());
        assert_eq!(tries.get(), 4);
    }

    #[test]
    fn the_holder_and_the_way_out_are_named() {
        let mount = ["ivers", "mount", "--supervisor", "--", "/x/disk.img", "/mnt/d"];
        let serve = ["/usr/bin/ivers", "serve", "--export", "disk.img"];
        for (words, parts) in [
            (&mount[..], ["mounted on /mnt/d (process 7)", "`ivers unmount /mnt/d`"]),
            (&serve[..], ["ivers serve (process 7)", "stop it first"]),
            (&["ivers", "image-process"][..], ["ivers command (process 7)", "wait"]),
            (&["qemu"][..], ["in use by qemu (process 7)", "close it"]),
            (&[][..], ["in use by process 7", "close it"]),
        ] {
            let text = holder_in_words(7, words);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
