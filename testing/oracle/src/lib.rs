//! Oracles: other projects' tools and the kernel, which judge images that ivers wrote. Only for tests.
//!
//! | module | oracle |
//! |---|---|
//! | [`affs`] | amitools and unadf |
//! | [`btrfs`] | btrfs-progs, and the kernel's own driver |
//! | [`btrfs_fields`] | none: where the fields of an image are, to damage them one by one |
//! | [`e2fs`] | e2fsprogs: mkfs, e2fsck, debugfs |
//! | [`fat`] | dosfstools and mtools |
//! | [`read_image()`] | none: the bytes of an image |
//! | [`kernel`] | the kernel's own driver, by loop mounts (root) |
//! | [`machine`] | a Linux kernel in an emulated machine |
//! | [`ocfs2`] | ocfs2-tools, and Linux in an emulated machine |
//! | [`ufs`] | fsck_ffs and newfs of FreeBSD, if they are there |
//! | [`xfs`] | xfsprogs, and the kernel's own driver |
//! | [`tree()`] | none: a digest of a tree, equal for equal trees on any server |

#![forbid(unsafe_code)]

pub mod affs;
pub mod btrfs;
pub mod btrfs_fields;
pub mod e2fs;
pub mod fat;
mod image;
pub mod kernel;
pub mod machine;
pub mod ocfs2;
pub mod tree;
pub mod ufs;
pub mod xfs;

pub use e2fs::{Image, debugfs, e2fsck, e2fsck_repair, stored_counter};
pub use fat::{FAT_PROGRAMS, FatImage, fsck_fat, fsck_fat_after_crash, fsck_fat_repair};
pub use image::read_image;
pub use kernel::LoopMount;
pub use ocfs2::{OCFS2_PROGRAMS, Ocfs2Machine, can_fill_ocfs2, fsck_ocfs2, mkfs_ocfs2};
pub use tree::{TreeOptions, tree};

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

/// Finds a program in PATH and in the directories of system programs, which a user's PATH can lack.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Returns whether a test that needs these programs can run. Under CI a missing program is a failure.
pub fn have_programs(names: &[&str]) -> bool {
    let missing: Vec<_> = names.iter().filter(|name| find_program(name).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI is set and these programs are missing: {missing:?}");
    skipped(&format!("needs {missing:?}"));
    false
}

/// Reports a skipped test. It bypasses the test runner, which hides the output of passing tests.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Plants each defect in a copy of `whole`: its name, the findings that it must give, and how to plant it.
/// Asserts that `codes`, the findings of a checker, are exactly these.
pub fn each_defect_is_found<T: Clone, E: AsRef<[&'static str]>>(
    whole: &T,
    planted: impl IntoIterator<Item = (&'static str, E, fn(&mut T))>,
    codes: impl Fn(&T) -> BTreeSet<&'static str>,
) {
    let mut wrong = Vec::new();
    for (what, expected, plant) in planted {
        let mut damaged = whole.clone();
        plant(&mut damaged);
        let (found, expected) = (codes(&damaged), expected.as_ref());
        if found != expected.iter().copied().collect() {
            wrong.push(format!("{what}: found {found:?}, planted {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sets a flag when dropped, so that other threads end even if a check fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns whether this process may mount through FUSE.
fn have_fuse() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}

/// Returns whether tests that mount through FUSE and need these programs can run. Under CI they must.
pub fn can_mount(programs: &[&str]) -> bool {
    if !have_fuse() {
        assert!(std::env::var_os("CI").is_none(), "CI is set and /dev/fuse cannot be opened");
        skipped("/dev/fuse cannot be opened");
        return false;
    }
    have_programs(programs)
}

/// Runs a program. Anything but success is an error with its output.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<Output> {
    let output = output(program, args)?;
    if !output.status.success() {
        bail!("{program}: {}\n{}", output.status, said(&output));
    }
    Ok(output)
}

/// Runs a program and returns its output, whatever its exit code.
pub fn output<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<Output> {
    let path = find_program(program).with_context(|| format!("{program} is not installed"))?;
    Command::new(&path)
        .args(args)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run {program}"))
}

/// Returns all output of a program as text.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
