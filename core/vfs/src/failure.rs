//! The reaction to failures, the same for every format.
//!
//! - No space: running deletions end and the driver reclaims what it can; then the call is tried once more.
//! - Data of a file could not be written, or was refused: that is an error of the file, and everything else
//!   goes on. A fallocate or a truncate that makes a file longer returns it. After a write-back, or a
//!   truncate that made a file shorter, every descriptor's next fsync reports it once. The file shows what
//!   the driver has.
//! - A server did not do a request: written data stays in the cache and is written later.
//! - A structure of the format is damaged or could not be written: the filesystem stops. The driver aborts,
//!   and nothing changes until the next mount.
//!
//! The first and the last are here, the others are in [`crate::writeback`].

use crate::driver::Health;
use crate::error::{Error, NameError, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::update_policy::ChangeMode;
use crate::vfs::Vfs;

/// Why the filesystem has stopped, once it has.
#[derive(Default)]
pub(crate) struct Failure {
    stopped: AtomicBool,
    why: RankedMutex<rank::Leaf, Option<String>>,
    /// Files of which the device lost data.
    pub(crate) lost_files: AtomicU64,
    /// Why data of a file was lost the first time.
    first_loss: RankedMutex<rank::Leaf, Option<Error>>,
}

impl Failure {
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn why(&self) -> Option<String> {
        if self.has_stopped() { self.why.lock().clone() } else { None }
    }

    pub(crate) fn note_loss(&self, why: &Error) {
        self.first_loss.lock().get_or_insert_with(|| why.clone());
    }
}

impl Vfs {
    /// Runs a driver call that changes something. If it fails in a way that may leave a change half done, the
    /// filesystem stops. [`Error::FileData`] is not one: the driver returns it with nothing half done.
    pub(crate) fn guarded<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = call();
        if let Err(error @ (Error::Corrupt { .. } | Error::Io(_))) = &result {
            self.stop(error);
        }
        result
    }

    /// [`Vfs::guarded`], with a second try where space was missing. Under the locks of inodes, with no handle
    /// open.
    pub(crate) fn with_space<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        self.guarded(|| self.retry_without_space(&mut call))
    }

    /// [`Vfs::with_space`], with a last try after dirty data is written back: it needs less than was reserved
    /// for the worst case. Not under a write-back lock.
    pub(crate) fn with_space_of_dirty_data<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        self.guarded(|| match self.retry_without_space(&mut call) {
            Err(Error::Name(NameError::NoSpace)) if self.write_back_for_space() => {
                self.retry_without_space(&mut call)
            }
            other => other,
        })
    }

    /// The retry alone, for a call whose errors the caller handles.
    pub(crate) fn retry_without_space<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        self.pending_deletes.retry(|| match call() {
            Err(Error::Name(NameError::NoSpace)) if self.fs.reclaim_space()? => call(),
            other => other,
        })
    }

    /// Stops all further changes.
    pub(crate) fn stop(&self, why: &Error) {
        if self.policy.read_only {
            return;
        }
        self.fs.abort(why);
        {
            let mut stored = self.failure.why.lock();
            if stored.is_none() {
                log::error!("the filesystem is read-only until it is mounted again: {why}");
                *stored = Some(format!("stopped after an error: {why}"));
            }
        }
        self.failure.stopped.store(true, Ordering::Release);
    }

    /// Returns why written data of a file was lost the first time. `None`: none was lost. Call it after
    /// [`Vfs::unmount`] if files were written without [`Vfs::fsync`].
    pub fn data_loss(&self) -> Option<Error> {
        self.failure.first_loss.lock().clone()
    }

    /// What the filesystem can do at this moment: the driver's word, this mount's options and what has
    /// failed.
    pub fn health(&self) -> Health {
        let mut health = self.fs.health();
        if let Some(why) = self.failure.why() {
            health.read_only.get_or_insert_with(|| why.clone());
            health.no_change_attribute.get_or_insert(why);
        }
        if self.policy.mode == ChangeMode::Off {
            health.no_change_attribute = Some("iversion=off".to_owned());
        }
        health
    }
}
