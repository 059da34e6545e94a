//! Oracles: others' tools and the kernel, asked about images that ivers wrote. For tests; shipped to nobody.
//!
//! | module | who is asked |
//! |---|---|
//! | [`affs`] | amitools and unadf, and a checker of our own for OFS and FFS |
//! | [`e2fs`] | e2fsprogs: mkfs, e2fsck, debugfs |
//! | [`fat`] | dosfstools and mtools |
//! | [`kernel`] | the kernel's own driver, by a loop mount (root) |
//! | [`machine`] | a Linux kernel in an emulated machine |
//! | [`tree()`] | nobody: a digest of a tree, equal for equal trees whoever serves them |

#![forbid(unsafe_code)]

pub mod affs;
pub mod e2fs;
pub mod fat;
pub mod kernel;
pub mod machine;
pub mod tree;

pub use e2fs::{Image, debugfs, e2fsck, e2fsck_repair, stored_version};
pub use fat::{FAT_PROGRAMS, FatImage, fsck_fat, fsck_fat_after_crash, fsck_fat_repair};
pub use kernel::LoopMount;
pub use tree::{TreeOptions, tree};

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

/// Where a program is. The directories of system programs are looked at too: an ordinary user's PATH lacks them.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Whether a test that needs these programs can run. Under CI a missing one is a failure, not a skip.
pub fn have_programs(names: &[&str]) -> bool {
    let missing: Vec<_> = names.iter().filter(|name| find_program(name).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI is set and these programs are missing: {missing:?}");
    skipped(&format!("needs {missing:?}"));
    false
}

/// A test is left out: said past the test runner, which keeps what a passing test prints to itself.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Tells other threads that it is over, also if a check fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether this process may mount through FUSE.
fn have_fuse() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}

/// Whether tests that mount through FUSE and need these programs can run. Under CI what they need must be there.
pub fn can_mount(programs: &[&str]) -> bool {
    if !have_fuse() {
        assert!(std::env::var_os("CI").is_none(), "CI is set and /dev/fuse cannot be opened");
        skipped("/dev/fuse cannot be opened");
        return false;
    }
    have_programs(programs)
}

/// Run a program to its end; anything but a success is an error that shows what it said.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<Output> {
    let output = output(program, args)?;
    if !output.status.success() {
        bail!("{program}: {}\n{}", output.status, said(&output));
    }
    Ok(output)
}

/// Run a program to its end, whatever it exits with.
pub fn output<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<Output> {
    let path = find_program(program).with_context(|| format!("{program} is not installed"))?;
    Command::new(&path)
        .args(args)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run {program}"))
}

/// All that a program said.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
