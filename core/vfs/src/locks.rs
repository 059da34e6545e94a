//! Byte-range locks that a driver keeps itself, such as those of a server ([`LockOps`](crate::LockOps)).
//!
//! The next owner of a lock sees what the last one wrote under it, on any machine. Before an unlock all
//! written data is made durable; after a lock the cache is revalidated. Sending the data is not enough: if
//! the server lost it, this client would send it again, over what the next owner wrote.

use crate::driver::{LockConflict, LockOps, LockOwner, LockRequest};
use crate::error::{NameError, Result};
use crate::requests::Cred;
use crate::types::Ino;
use crate::vfs::{InodeRef, Vfs};
use std::ops::Range;

/// Is called with the number of an inode of which a lock may be free. Must not block or call the VFS.
pub type LockListener = Box<dyn Fn(Ino) + Send + Sync>;

impl Vfs {
    /// Sets the listener that is called whenever the server reports that a lock may be free. Later calls do
    /// nothing.
    pub fn on_lock_available(&self, listener: LockListener) {
        let _ = self.lock_listener.set(listener);
    }

    /// See [`CacheHandle::lock_available`](crate::CacheHandle::lock_available).
    pub(crate) fn lock_available(&self, ino: Ino) {
        if let Some(listener) = self.lock_listener.get() {
            listener(ino);
        }
    }

    /// Returns whether the driver keeps byte-range locks. Otherwise the front end keeps them.
    pub fn has_locks(&self) -> bool {
        self.fs.locks().is_some()
    }

    fn locks(&self) -> Result<&dyn LockOps> {
        self.alive()?;
        Ok(self.fs.locks().ok_or(NameError::NotSupported)?)
    }

    /// Gets a byte-range lock of an open file. Fails with [`NameError::Busy`] if another owner has a
    /// conflicting one, and with `NotSupported` without [`Vfs::has_locks`].
    pub fn lock(&self, cred: &Cred, inode: &InodeRef, lock: &LockRequest) -> Result<()> {
        self.locks()?.lock(cred, inode, lock)?;
        // The last owner may have changed the bytes that are cached, however new they are.
        self.revalidate(&Cred::system(), inode)
    }

    /// Finds a lock of another owner that conflicts with this one.
    pub fn test_lock(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        lock: &LockRequest,
    ) -> Result<Option<LockConflict>> {
        self.locks()?.test_lock(cred, inode, lock)
    }

    /// Releases the locks of an owner in a range. Their next owner sees what was written under them.
    pub fn unlock(&self, cred: &Cred, inode: &InodeRef, owner: LockOwner, range: Range<u64>) -> Result<()> {
        let locks = self.locks()?;
        if !locks.holds_locks(inode, owner) {
            return Ok(());
        }
        let written = if self.policy.read_only { Ok(()) } else { self.write_back_durably(inode) };
        // Also after an error: locks that stay would block other owners.
        locks.unlock(cred, inode, owner, range)?;
        written
    }
}
