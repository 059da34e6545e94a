//! Writing contents of files one after the other to standard output, a FIFO or a device.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use ivers_vfs::FileType;

use super::super::stream::FileHeader;
use super::{Target, Xattrs};
use crate::arguments::STANDARD;
use crate::output::failure::{StdoutError, usage};
use crate::output::format::Shown;

/// A stream that is written to.
pub struct Stream {
    out: File,
    path: PathBuf,
    /// Bytes of the current file that were written.
    position: Cell<u64>,
}

impl Stream {
    /// Opens `path`, or standard output if it is `-`.
    pub fn open(path: &Path) -> Result<Self> {
        let out = if path == Path::new(STANDARD) {
            File::from(std::io::stdout().as_fd().try_clone_to_owned()?)
        } else {
            OpenOptions::new().write(true).open(path).with_context(|| path.shown())?
        };
        Ok(Self { out, path: path.to_owned(), position: Cell::new(0) })
    }

    fn put(&self, bytes: &[u8]) -> Result<()> {
        // The reader has what it needs, as `head` does: no error of the copy.
        (&self.out).write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => StdoutError(error).into(),
            _ => anyhow::Error::from(error),
        })?;
        self.position.set(self.position.get() + bytes.len() as u64);
        Ok(())
    }

    /// Writes the zeros of a hole.
    fn fill_to(&self, offset: u64) -> Result<()> {
        let mut zeros = std::io::repeat(0).take(offset.saturating_sub(self.position.get()));
        let mut buffer = vec![0; 64 << 10];
        loop {
            match zeros.read(&mut buffer)? {
                0 => return Ok(()),
                n => self.put(&buffer[..n])?,
            }
        }
    }
}

impl Target for Stream {
    type Destination = ();
    type File = ();
    type Linked = ();
    const KEEPS_PARTIAL: bool = true;

    fn destination(&self, _: Option<&[u8]>) -> Result<()> {
        Ok(())
    }

    fn child_destination(&self, (): &(), _: &[u8]) {}

    fn create(&self, (): (), header: &FileHeader, _: u32) -> Result<()> {
        self.position.set(0);
        match header.kind()? {
            FileType::Regular => Ok(()),
            FileType::Directory => {
                Err(usage(format!("is a directory; {} takes contents of files only", self.path.shown())))
            }
            _ => Err(anyhow!("has no contents to write to {}", self.path.shown())),
        }
    }

    fn write(&self, (): &(), offset: u64, bytes: &[u8]) -> Result<()> {
        if offset < self.position.get() {
            return Err(super::protocol_error("contents that are not in order"));
        }
        self.fill_to(offset)?;
        self.put(bytes)
    }

    fn finish(&self, (): &(), _: &FileHeader, size: u64, _: &Xattrs) -> Result<()> {
        self.fill_to(size)
    }

    fn link(&self, (): (), (): &()) -> Result<()> {
        Err(anyhow!("another hard link to a file that was written already"))
    }

    fn remember(&self, (): &()) {}

    fn existing(&self, _: Option<&[u8]>, _: &[Vec<u8>]) -> Option<FileType> {
        None
    }

    fn destination_path(&self, _: Option<&[u8]>) -> Vec<u8> {
        self.path.as_os_str().as_bytes().to_vec()
    }

    fn abandon(&self, (): &(), (): &()) -> bool {
        false
    }
}
