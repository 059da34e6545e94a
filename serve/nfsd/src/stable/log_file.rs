//! The files of a log. Each method is one step, after which a crash may happen.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};

/// The log and its replacement.
pub(super) trait LogFile: Send {
    /// Returns the contents of the log, or `None` if it does not exist.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>>;
    /// Writes the replacement.
    fn write_next(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the replacement durable.
    fn sync_next(&mut self) -> io::Result<()>;
    /// Replaces the log atomically.
    fn rename_next(&mut self) -> io::Result<()>;
    /// Makes the replacement of the name durable.
    fn sync_names(&mut self) -> io::Result<()>;
    /// Writes to the log at an offset.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the written bytes durable.
    fn sync_log(&mut self) -> io::Result<()>;
    /// Returns whether the next start will find the log. `Ok(false)` means that it can be written there
    /// again.
    fn is_in_place(&mut self) -> io::Result<bool>;
}

/// A log in a directory.
pub(super) struct Directory {
    path: PathBuf,
    names: File,
    log: Option<File>,
    next: Option<File>,
    /// Held for the lifetime of this value. It excludes other servers.
    lock: File,
}

/// Unlocks explicitly: a child process that another thread is starting may hold a copy of the descriptor,
/// which would keep the lock.
impl Drop for Directory {
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The name of the log.
pub(super) const LOG: &str = "state";
const NEXT: &str = "state.new";
const LOCK: &str = "lock";

impl Directory {
    /// Opens a directory, and creates it if necessary. Returns `None` if another server uses it.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut made = path;
        while let Some(parent) = made.parent().filter(|_| !made.exists()) {
            made = parent;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        // The names of new directories must be durable, too, up to the first one that existed.
        let mut above = path;
        while let Some(parent) = above.parent().filter(|_| above != made) {
            File::open(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?.sync_all()?;
            above = parent;
        }
        let Some(lock) = Self::lock(path)? else { return Ok(None) };
        let names = File::open(path)?;
        Ok(Some(Self { path: path.to_owned(), names, log: None, next: None, lock }))
    }

    /// Locks the directory. Returns `None` if another server uses it.
    fn lock(path: &Path) -> io::Result<Option<File>> {
        let lock = Self::options().write(true).create(true).open(path.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(lock)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the identity of a file, or `None` if it does not exist. Not by stat(2), which the sandbox
    /// permits only for open files.
    fn at(path: &Path) -> io::Result<Option<(u64, u64)>> {
        match openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(there) => Self::number(there).map(Some),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn number(open: impl AsFd) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(open)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    fn leads_to(path: &Path, open: &File) -> io::Result<bool> {
        Ok(Self::at(path)? == Some(Self::number(open)?))
    }

    /// Only the owner can read the file, and a symbolic link is not followed.
    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options
    }

    fn opened(file: &Option<File>) -> io::Result<&File> {
        file.as_ref().ok_or_else(|| io::Error::other("not written yet"))
    }
}

impl LogFile for Directory {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match Self::options().read(true).write(true).open(self.path.join(LOG)) {
            Ok(mut file) => {
                file.read_to_end(&mut bytes)?;
                self.log = Some(file);
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write_next(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file =
            Self::options().read(true).write(true).create(true).truncate(true).open(self.path.join(NEXT))?;
        file.write_all(bytes)?;
        self.next = Some(file);
        Ok(())
    }

    fn sync_next(&mut self) -> io::Result<()> {
        Self::opened(&self.next)?.sync_all()
    }

    fn rename_next(&mut self) -> io::Result<()> {
        Self::opened(&self.next)?;
        std::fs::rename(self.path.join(NEXT), self.path.join(LOG))?;
        self.log = self.next.take();
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.names.sync_all()
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Self::opened(&self.log)?.write_all_at(bytes, at)
    }

    fn sync_log(&mut self) -> io::Result<()> {
        Self::opened(&self.log)?.sync_data()
    }

    fn is_in_place(&mut self) -> io::Result<bool> {
        let Some(there) = Self::at(&self.path.join("."))? else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it was removed, or moved away"));
        };
        let anew = there != Self::number(&self.names)?;
        if anew || !Self::leads_to(&self.path.join(LOCK), &self.lock)? {
            // Another server may use the directory meanwhile.
            let names = if anew { Some(File::open(&self.path)?) } else { None };
            let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "another server has taken its place");
            self.lock = Self::lock(&self.path)?.ok_or_else(busy)?;
            if let Some(names) = names {
                self.names = names;
            }
            self.log = None;
        }
        match &self.log {
            Some(log) => Self::leads_to(&self.path.join(LOG), log),
            None => Ok(false),
        }
    }
}
