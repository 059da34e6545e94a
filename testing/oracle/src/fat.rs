//! dosfstools and mtools: make, fill, read and check FAT images.

use crate::{output, run, said};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// The programs that tests of FAT need.
pub const FAT_PROGRAMS: &[&str] = &["mkfs.fat", "fsck.fat", "mcopy", "mdir", "mtype", "mmd"];

/// A FAT image in a temporary directory.
pub struct FatImage {
    dir: tempfile::TempDir,
}

impl FatImage {
    /// Makes an image with mkfs.fat.
    pub fn mkfs(bytes: u64, args: &[&str]) -> Result<Self> {
        let image = Self { dir: tempfile::tempdir()? };
        let path = image.path();
        std::fs::File::create(&path)?.set_len(bytes)?;
        let path = path.display().to_string();
        run("mkfs.fat", args.iter().copied().chain([path.as_str()]))?;
        Ok(image)
    }

    /// Returns the image file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Runs a command of mtools on this image and returns its output. The last words are paths in the image
    /// (`::/a`) or on the host.
    pub fn mtools(&self, command: &str, args: &[&str]) -> Result<Vec<u8>> {
        let path = self.path().display().to_string();
        // UTF-8 as on Linux, so that names of all alphabets work.
        let output = std::process::Command::new(command)
            .env("LC_ALL", "C.UTF-8")
            .env("MTOOLS_SKIP_CHECK", "1")
            .args(["-i", &path])
            .args(args)
            .output()?;
        if !output.status.success() {
            bail!("{command} {args:?}: {}\n{}", output.status, said(&output));
        }
        Ok(output.stdout)
    }
}

/// Runs fsck.fat without repairs and returns its output; an error if it found anything.
pub fn fsck_fat(image: &Path) -> Result<String> {
    let path = image.display().to_string();
    let output = output("fsck.fat", ["-n", "-v", &path])?;
    let text = said(&output);
    if !output.status.success() {
        bail!("fsck.fat: {}\n{text}", output.status);
    }
    Ok(text)
}

/// Findings of fsck.fat that only waste space.
const ONLY_SPACE: &[&str] = &[
    "Dirty bit is set. Fs was not properly unmounted and some data may be corrupt.",
    " Automatically removing dirty bit.",
    "Reclaimed ",
    "Free cluster summary wrong (",
    "  Auto-correcting.",
    "There are differences between boot sector and its backup.",
    "This is mostly harmless. Differences: (offset:original/backup)",
    "  65:01/00",
    "  65:00/01",
    "  Not automatically fixing this.",
    "  Using first FAT.",
    "FATs differ but appear to be intact.",
    "  File size is ",
    "  Truncating file to ",
    "Orphaned long file name part",
    "  Auto-deleting.",
    "Leaving filesystem unchanged.",
    "fsck.fat ",
    "Warning: Filesystem is FAT32 according to",
    "  but has only ",
    "  This may lead to problems on some systems.",
];

/// Runs fsck.fat on an image after a crash; everything except lost space is an error.
pub fn fsck_fat_after_crash(image: &Path) -> Result<()> {
    let path = image.display().to_string();
    let text = said(&output("fsck.fat", ["-n", &path])?);
    for line in text.lines() {
        // The file that a finding is about.
        let about = line.starts_with('/') || line.starts_with(&path) || line.trim().is_empty();
        let known = ONLY_SPACE.iter().any(|known| line.starts_with(known));
        // A chain longer than the size is lost space; a shorter one is lost data.
        let shorter = line.starts_with("  File size is ") && !line.contains("cluster chain length is >");
        if !(about || known) || shorter {
            bail!("{line}\n{text}");
        }
    }
    Ok(())
}

/// Repairs an image as at boot.
pub fn fsck_fat_repair(image: &Path) -> Result<String> {
    let path = image.display().to_string();
    let output = output("fsck.fat", ["-a", &path])?;
    match output.status.code() {
        Some(0 | 1) => Ok(said(&output)),
        _ => bail!("fsck.fat -a: {}\n{}", output.status, said(&output)),
    }
}
