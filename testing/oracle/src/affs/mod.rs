//! AFFS: other projects' tools.
//!
//! amitools (`xdftool`, `xdfscan`, `rdbtool`; Python) and `unadf` (C) make, fill, read and check images, and
//! are independent of each other. `xdfscan` reports hard and soft links as damage and does not know directory
//! caches, and neither checks for the remains of a crash: the checker in `ivers-affs` does.

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// amitools, installed by pip.
pub struct Amitools {
    bin: PathBuf,
}

/// A fixed version, because its output is parsed.
const AMITOOLS: &str = "amitools==0.8.1";

impl Amitools {
    /// Returns the installed amitools; otherwise installs them below `work`.
    pub fn new(work: &Path) -> Result<Self> {
        if let Some(found) = crate::find_program("xdftool") {
            let bin = found.parent().context("the program has no directory")?.to_owned();
            return Ok(Self { bin });
        }
        std::fs::create_dir_all(work)?;
        // Tests run concurrently in separate processes.
        let lock = File::create(work.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let bin = work.join("venv/bin");
        if !bin.join("xdftool").is_file() {
            println!("== oracles: pip install {AMITOOLS}");
            crate::run("python3", [OsStr::new("-m"), "venv".as_ref(), work.join("venv").as_ref()])?;
            let pip = Command::new(bin.join("pip"))
                .args(["install", "-q", AMITOOLS])
                .output()
                .context("cannot run pip")?;
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

    /// Runs `xdftool IMAGE WORDS` and returns its output.
    pub fn xdftool(&self, image: &Path, words: &[&str]) -> Result<String> {
        self.tool("xdftool", image, words)
    }

    /// Runs `rdbtool IMAGE WORDS` and returns its output.
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

    /// Runs `xdfscan`, which must find no errors.
    pub fn xdfscan(&self, image: &Path) -> Result<()> {
        self.xdfscan_beside(image, &[])
    }

    /// Runs `xdfscan` on a volume with directory caches in these blocks: it must report exactly these
    /// blocks as unexpectedly used.
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

/// Returns the block that a line of `xdfscan` reports as free but marked as used; `None` for any other line.
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

/// Lists a floppy image with `unadf`, from its headers or, if `cached`, from its directory caches: size and
/// date of each path.
pub fn unadf_list(image: &Path, cached: bool) -> Result<Vec<(String, String)>> {
    let how = OsStr::new(if cached { "-lrc" } else { "-lr" });
    let said = crate::said(&crate::run("unadf", [image.as_ref(), how])?);
    let mut entries: Vec<(String, String)> = said.lines().filter_map(unadf_entry).collect();
    entries.sort();
    if entries.is_empty() { bail!("unadf: {said}") } else { Ok(entries) }
}

/// Parses size, date, time and path. A directory has no size or size 0, and perhaps a trailing slash.
fn unadf_entry(line: &str) -> Option<(String, String)> {
    let at = line.find('/').filter(|at| *at >= 4)? - 4;
    let (date, path) = line.get(at..)?.split_at_checked(21)?;
    let is_date = date.bytes().all(|byte| byte.is_ascii_digit() || b"/: ".contains(&byte));
    let size = line[..at].trim().parse::<u64>().unwrap_or(0);
    is_date.then(|| (path.trim().trim_end_matches('/').to_owned(), format!("{size} {date}")))
}

/// Unpacks all files of a floppy image into a directory with `unadf`.
pub fn unadf(image: &Path, into: &Path) -> Result<()> {
    let output = crate::run("unadf", [image.as_ref(), OsStr::new("-d"), into.as_ref()])?;
    let said = crate::said(&output);
    if said.contains("Warning") || said.contains("Error") { bail!("unadf: {said}") } else { Ok(()) }
}
