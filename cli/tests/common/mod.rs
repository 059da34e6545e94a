//! Mounts made by the command, and ways to inspect them.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ivers_oracle::Image;

pub mod disk;
pub mod full_disk;
pub mod image_place;
pub mod served;
pub mod source_tree;

pub const IVERS: &str = env!("CARGO_BIN_EXE_ivers");

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether tests that mount can run; under CI they must.
pub fn can_mount() -> bool {
    ivers_oracle::can_mount(&["mkfs.ext4", "e2fsck"])
}

pub fn ivers<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(IVERS).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Returns the status and all output of a program, for messages.
pub fn said(output: &Output) -> String {
    format!("{}: {}", output.status, ivers_oracle::said(output))
}

/// Runs a command that must succeed. Returns what it prints.
pub fn works(words: &[&str]) -> String {
    let output = ivers(words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// An image and its mount point. Unmounted when the test ends.
pub struct Place {
    pub image: Image,
    pub dir: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        Self::of(Image::new("ext4", 64 << 20, &[]).unwrap())
    }

    pub fn of(image: Image) -> Self {
        let dir = image.dir().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        Self { image, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.image.dir().join("log")).unwrap_or_default()
    }

    /// Mounts with these options; returns the supervisor's process id.
    pub fn mount(&self, options: &str) -> i32 {
        let log = self.image.dir().join("log");
        let output = Command::new(IVERS)
            .args(["mount", "--json", "-o", options, "--log"])
            .args([&log, self.image.path(), &self.dir])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["pid"], about(&self.dir)["pid"], "both name the supervisor");
        i32::try_from(told["pid"].as_i64().unwrap()).unwrap()
    }

    /// Unmounts. Another test's child, between fork and exec, may have our files open for a moment, so a busy
    /// mount is tried again.
    pub fn unmount(&self) {
        const BUSY: i32 = 6;
        wait_until("the mount is no longer busy", || {
            let output = ivers([OsStr::new("unmount"), self.dir.as_os_str()]);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | BUSY)), "{}", said(&output));
            code == Some(0)
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        let _ = Command::new("fusermount3").args(["-q", "-u", "-z"]).arg(&self.dir).output();
    }
}

/// Returns the information that the mount reports about itself.
pub fn about(dir: &Path) -> serde_json::Value {
    let text = xattr::get(dir, "system.ivers.mount").unwrap().expect("an ivers mount");
    serde_json::from_slice(&text).unwrap()
}

pub fn change(path: &Path) -> u64 {
    let value = xattr::get(path, "system.ivers.change").unwrap().expect("a change attribute");
    String::from_utf8(value).unwrap().parse().unwrap()
}

/// Returns the children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let output = Command::new("pgrep").args(["-P", &pid.to_string()]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().unwrap()).collect()
}

/// Returns one field of /proc/PID/status; empty if the process is gone.
pub fn status(pid: i32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().trim().to_owned()
}

/// Returns whether a process still runs.
pub fn runs(pid: i32) -> bool {
    !["", "Z", "X"].contains(&status(pid, "State").split(' ').next().unwrap_or_default())
}

pub fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "waited 20 s in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the line of /proc/mounts of a directory.
pub fn mount_line(dir: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = dir.to_str().unwrap();
    mounts.lines().find(|line| line.split(' ').nth(1) == Some(dir)).map(str::to_owned)
}
