//! The Amiga's filesystems: others' tools, and a checker of our own where they have none.
//!
//! amitools (`xdftool`, `xdfscan`, `rdbtool`; Python) and `unadf` (C) make, fill, read and check images, and know nothing of each other. `xdfscan` takes hard links
//! and soft links for damage and knows no directory caches, and neither looks for what a crash leaves: [`check()`] does. It shares no line with the driver.

mod check;

pub use check::{Report, check};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
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
        self.xdfscan_beside(image, &[])
    }

    /// The same where directory caches are, in these blocks: it wonders why exactly these are in use, and at nothing else.
    pub fn xdfscan_beside(&self, image: &Path, caches: &[usize]) -> Result<()> {
        let output = self.call("xdfscan", [OsStr::new("-v"), image.as_os_str()])?;
        let said = crate::said(&output);
        let marked: Option<Vec<Vec<usize>>> =
            said.lines().filter(|line| line.contains("ERROR")).map(needlessly_marked).collect();
        let marked: Option<BTreeSet<usize>> = marked.map(|blocks| blocks.into_iter().flatten().collect());
        let scanned = said.contains(if caches.is_empty() { " ok " } else { "NOK" });
        let sound = scanned && marked.is_some_and(|marked| marked.into_iter().eq(sorted(caches)));
        if output.status.success() && sound { Ok(()) } else { bail!("xdfscan: {}\n{said}", output.status) }
    }
}

fn sorted(blocks: &[usize]) -> BTreeSet<usize> {
    blocks.iter().copied().collect()
}

/// Blocks that a line of `xdfscan` takes for free and the bitmap does not. `None`: it tells of something else.
fn needlessly_marked(line: &str) -> Option<Vec<usize>> {
    let (_, rest) = line.split_once("Invalid bitmap allocation")?.1.split_once("blks [")?;
    let (first, rest) = rest.split_once("...")?;
    let word = |name: &str| {
        let digits = rest.split_once(name)?.1.get(..8)?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (first, got, expect) = (first.parse::<usize>().ok()?, word("got=")?, word("expect=")?);
    let marked = (0..32).filter(|bit| (got ^ expect) >> bit & 1 != 0).map(|bit| first + bit).collect();
    (got & !expect == 0).then_some(marked)
}

/// What `unadf` lists of a floppy image, told by its headers or, if `cached`, by its directory caches: size and date of each path.
pub fn unadf_list(image: &Path, cached: bool) -> Result<Vec<(String, String)>> {
    let how = OsStr::new(if cached { "-lrc" } else { "-lr" });
    let said = crate::said(&crate::run("unadf", [image.as_ref(), how])?);
    let mut entries: Vec<(String, String)> = said.lines().filter_map(unadf_entry).collect();
    entries.sort();
    if entries.is_empty() { bail!("unadf: {said}") } else { Ok(entries) }
}

/// Size, date, time and path; a directory has size 0 or none, and perhaps a slash at its end.
fn unadf_entry(line: &str) -> Option<(String, String)> {
    let at = line.find('/').filter(|at| *at >= 4)? - 4;
    let (date, path) = line.get(at..)?.split_at_checked(21)?;
    let is_date = date.bytes().all(|byte| byte.is_ascii_digit() || b"/: ".contains(&byte));
    let size = line[..at].trim().parse::<u64>().unwrap_or(0);
    is_date.then(|| (path.trim().trim_end_matches('/').to_owned(), format!("{size} {date}")))
}

/// All files of a floppy image, unpacked by `unadf` into a directory.
pub fn unadf(image: &Path, into: &Path) -> Result<()> {
    let output = crate::run("unadf", [image.as_ref(), OsStr::new("-d"), into.as_ref()])?;
    let said = crate::said(&output);
    if said.contains("Warning") || said.contains("Error") { bail!("unadf: {said}") } else { Ok(()) }
}
