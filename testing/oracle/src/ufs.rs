//! UFS: fsck_ffs and newfs of FreeBSD.
//!
//! Debian 12 has no package with them, so tests use them only if they are in PATH, under CI too. A build for
//! Linux must accept regular files in place of devices.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::Path;

const FSCK_FFS: &str = "fsck_ffs";
const NEWFS: &str = "newfs";

fn have(program: &str) -> bool {
    let found = crate::find_program(program).is_some();
    if !found {
        crate::skipped(&format!("no {program} of FreeBSD in PATH"));
    }
    found
}

/// Returns whether fsck_ffs is installed.
pub fn have_fsck_ffs() -> bool {
    have(FSCK_FFS)
}

/// Returns whether newfs is installed.
pub fn have_newfs() -> bool {
    have(NEWFS)
}

/// Makes a filesystem in a new image.
pub fn newfs(image: &Path, bytes: u64, options: &[&str]) -> Result<()> {
    File::create(image)?.set_len(bytes)?;
    // A size in sectors is required for files. The name of a device would be looked up in /dev without a
    // slash.
    let sectors = (bytes / 512).to_string();
    let mut words = options.to_vec();
    words.extend(["-s", &*sectors, image.to_str().context("the image's name is not UTF-8")?]);
    crate::run(NEWFS, words)?;
    Ok(())
}

/// Returns an error if fsck_ffs finds anything. It changes nothing. Its exit code says nothing.
pub fn fsck_ffs(image: &Path) -> Result<()> {
    let output = crate::output(FSCK_FFS, ["-fn".as_ref(), image.as_os_str()])?;
    let said = crate::said(&output);
    let is_usual = |line: &str| {
        line.starts_with("** ") || (line.contains(" files, ") && line.contains(" used, ")) || line.is_empty()
    };
    let is_complete = said.contains("** Phase 5") && said.contains(" files, ");
    ensure!(is_complete && said.lines().all(is_usual), "fsck_ffs:\n{said}");
    Ok(())
}

/// Repairs an image as FreeBSD does at boot. Damage that a crash does not cause is an error.
pub fn fsck_ffs_preen(image: &Path) -> Result<()> {
    // It begins again by itself after it made lost+found.
    let output = crate::output(FSCK_FFS, ["-pR".as_ref(), image.as_os_str()])?;
    let said = crate::said(&output);
    let is_refused = said.contains("UNEXPECTED INCONSISTENCY") || said.contains("CANNOT");
    ensure!(output.status.success() && !is_refused, "fsck_ffs -p: {}\n{said}", output.status);
    Ok(())
}
