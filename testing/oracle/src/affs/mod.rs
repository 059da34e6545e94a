//! The Amiga's filesystems: others' tools, and a checker of our own where they have none.
//!
//! amitools (`xdftool`, `xdfscan`, `rdbtool`; Python) and `unadf` (C) make, fill, read and check images, and know nothing of each other. `xdfscan` takes hard links,
//! soft links and directory caches for damage, and neither looks for what a crash leaves: [`check()`] does. It shares no line with the driver.

mod check;

pub use check::{Report, check};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// amitools, as installed by pip.
pub struct Amitools {
    bin: PathBuf,
}

/// Pinned: what it prints is read.
const AMITOOLS: &str = "amitools==0.8.1";

impl Amitools {
    /// The installed ones; otherwise they are installed below `work`, where they stay.
    pub fn new(work: &Path) -> Result<Self> {
        if let Some(found) = crate::find_program("xdftool") {
            let bin = found.parent().context("a program without a directory")?.to_owned();
            return Ok(Self { bin });
        }
        std::fs::create_dir_all(work)?;
        // Tests run side by side, in processes of their own.
        let lock = File::create(work.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let bin = work.join("venv/bin");
        if !bin.join("xdftool").is_file() {
            println!("== oracles: pip install {AMITOOLS}");
            crate::run("python3", [OsStr::new("-m"), "venv".as_ref(), work.join("venv").as_ref()])?;
            let pip =
                Command::new(bin.join("pip")).args(["install", "-q", AMITOOLS]).output().context("pip")?;
            if !pip.status.success() {
                bail!("{AMITOOLS} cannot be installed\n{}", crate::said(&pip));
            }
        }
        Ok(Self { bin })
    }

    fn call<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Result<Output> {
        Command::new(self.bin.join(program))
            .args(args)
            .env("LC_ALL", "C.UTF-8")
            .output()
            .with_context(|| format!("cannot run {program}"))
    }

    /// Run `xdftool IMAGE WORDS`; what it prints.
    pub fn xdftool(&self, image: &Path, words: &[&str]) -> Result<String> {
        self.tool("xdftool", image, words)
    }

    /// Run `rdbtool IMAGE WORDS`; what it prints.
    pub fn rdbtool(&self, image: &Path, words: &[&str]) -> Result<String> {
        self.tool("rdbtool", image, words)
    }

    fn tool(&self, program: &str, image: &Path, words: &[&str]) -> Result<String> {
        let args = [image.as_os_str()].into_iter().chain(words.iter().map(OsStr::new));
        let output = self.call(program, args)?;
        let said = crate::said(&output);
        if !output.status.success() {
            bail!("{program} {words:?}: {}\n{said}", output.status);
        }
        Ok(said)
    }

    /// What `xdfscan` finds wrong: nothing, of a sound image.
    pub fn xdfscan(&self, image: &Path) -> Result<()> {
        let output = self.call("xdfscan", [OsStr::new("-v"), image.as_os_str()])?;
        let said = crate::said(&output);
        let sound = output.status.success() && said.contains(" ok ") && !said.contains("NOK");
        if sound { Ok(()) } else { bail!("xdfscan: {}\n{said}", output.status) }
    }
}

/// All files of a floppy image, unpacked by `unadf` into a directory.
pub fn unadf(image: &Path, into: &Path) -> Result<()> {
    let output = crate::run("unadf", [image.as_ref(), OsStr::new("-d"), into.as_ref()])?;
    let said = crate::said(&output);
    if said.contains("Warning") || said.contains("Error") { bail!("unadf: {said}") } else { Ok(()) }
}
