//! Where the files of a new filesystem come from, and how much space they need at least.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::cp::reader::{Host, Source as _};
use super::super::tar::open_input;
use crate::output::format::Shown;
use crate::output::progress;
use crate::process::refuse_fakeroot;

/// The operand of `--from`.
pub enum Source {
    /// A directory of the host.
    Dir(PathBuf),
    /// An archive, and the offset at which it starts. `None`: it can be read once.
    Archive(File, Option<u64>),
}

impl Source {
    /// Opens a directory, a file that contains an archive, or standard input.
    pub fn open(from: &Path) -> Result<Self> {
        if from.is_dir() {
            refuse_fakeroot("use fakeroot tar -c -C DIR . | ivers mkfs IMAGE --from -")?;
            let dir = from.canonicalize().with_context(|| from.shown())?;
            return Ok(Self::Dir(dir));
        }
        let mut file = open_input(from)?;
        let start = file.stream_position().ok();
        Ok(Self::Archive(file, start))
    }

    /// Makes sure that the source can be read several times: copies a pipe to a temporary file.
    pub fn make_repeatable(&mut self) -> Result<()> {
        if let Self::Archive(pipe, start @ None) = self {
            let mut file = tempfile::tempfile().context("cannot make a temporary file for the archive")?;
            std::io::copy(&mut BufReader::with_capacity(1 << 20, &*pipe), &mut file)
                .context("cannot copy the archive to a temporary file")?;
            *pipe = file;
            *start = Some(0);
        }
        Ok(())
    }

    /// Goes back to the start.
    pub fn rewind(&mut self) -> Result<()> {
        if let Self::Archive(file, Some(start)) = self {
            file.seek(SeekFrom::Start(*start)).context("cannot read the archive again")?;
        }
        Ok(())
    }

    /// Returns a descriptor of the archive.
    pub fn archive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match self {
            Self::Archive(file, _) => Some(file.as_fd()),
            Self::Dir(_) => None,
        }
    }

    /// Returns a size in bytes to try first: about what the files need, and how many there are. Of an
    /// archive, nothing is parsed here: its size is a good guess, unless its files have holes.
    pub fn first_guess(&self) -> Result<u64> {
        match self {
            Self::Archive(file, start) => {
                let len = file.metadata().context("the archive")?.len();
                Ok(len.saturating_sub(start.unwrap_or(0)))
            }
            Self::Dir(dir) => Ok(size_of_tree(dir).space),
        }
    }

    /// Returns the bytes that filling reads, for the progress. 0 if unknown.
    pub fn bytes(&self) -> u64 {
        match self {
            // The walk takes as long as filling does without contents, so nobody else pays for it.
            Self::Dir(_) if progress::is_silent() || !std::io::stderr().is_terminal() => 0,
            Self::Dir(dir) => size_of_tree(dir).contents,
            Self::Archive(..) => self.first_guess().unwrap_or(0),
        }
    }
}

/// The size of a tree, in bytes.
struct TreeSize {
    /// What the files take in an image, about.
    space: u64,
    /// The contents of files, without holes.
    contents: u64,
}

/// Adds up the space that the files of a directory take. What cannot be read counts as nothing: filling
/// reports it.
fn size_of_tree(dir: &Path) -> TreeSize {
    let mut linked = HashSet::new();
    let mut dirs = vec![dir.to_owned()];
    let mut size = TreeSize { space: 0, contents: 0 };
    while let Some(dir) = dirs.pop() {
        size.space += 4096;
        for name in Host.names(&dir).0 {
            let Ok(path) = Host.child(&dir, &name) else { continue };
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            size.space += 2 * name.len() as u64 + 16;
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.nlink() == 1 || linked.insert((meta.dev(), meta.ino())) {
                size.space += 256 + meta.len().next_multiple_of(1024).min(meta.blocks() * 512 + 4096);
                if meta.is_file() {
                    size.contents += meta.len().min(meta.blocks() * 512);
                }
            }
        }
    }
    size
}
