//! The root filesystem of an emulated machine: busybox and the files of a test.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The files of a root filesystem.
pub struct Initramfs {
    dir: TempDir,
}

impl Initramfs {
    /// Returns a root with only `/bin/busybox`.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ivers-initramfs-").tempdir()?;
        let root = Self { dir };
        let busybox = crate::find_program("busybox").context("busybox is not installed")?;
        root.file("bin/busybox", &busybox)?;
        Ok(root)
    }

    fn place(&self, name: &str) -> Result<PathBuf> {
        let place = self.dir.path().join("root").join(name);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(place)
    }

    /// Copies a file with its mode.
    pub fn file(&self, name: &str, source: &Path) -> Result<()> {
        fs::copy(source, self.place(name)?).with_context(|| source.display().to_string())?;
        Ok(())
    }

    /// Adds an executable script.
    pub fn script(&self, name: &str, text: &str) -> Result<()> {
        let place = self.place(name)?;
        fs::write(&place, text)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Packs the archive that the kernel unpacks.
    pub fn pack(&self) -> Result<PathBuf> {
        let archive = self.dir.path().join("initramfs.cpio");
        let line = r#"cd "$1" && find . | cpio --quiet -o -H newc > "$2""#;
        let root = self.dir.path().join("root");
        let words: [&OsStr; 5] =
            ["-c".as_ref(), line.as_ref(), "sh".as_ref(), root.as_ref(), archive.as_ref()];
        crate::run("sh", words)?;
        Ok(archive)
    }
}
