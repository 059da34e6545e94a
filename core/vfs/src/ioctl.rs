//! Format-specific ioctls.

use crate::error::{NameError, Result};
use crate::requests::{ChangeKind, Cred};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};

impl Vfs {
    /// Whether the format has a Linux ioctl by this number.
    pub fn has_ioctl(&self, number: u32) -> bool {
        self.fs.ioctls().is_some_and(|ioctls| ioctls.has_ioctl(number))
    }

    /// Runs a format-specific ioctl on a file, for root. A front end whose kernel caches pages of the file
    /// has them written back first, and dropped afterwards. `input` is the argument; returns what the caller
    /// gets back.
    pub fn ioctl(&self, cred: &Cred, inode: &InodeRef, number: u32, input: &[u8]) -> Result<Vec<u8>> {
        let ioctls =
            self.fs.ioctls().filter(|ioctls| ioctls.has_ioctl(number)).ok_or(NameError::NotSupported)?;
        // No other check was made; the file's permissions do not matter.
        if cred.uid != 0 {
            return Err(NameError::NotPermitted.into());
        }
        self.reclaim();
        let output = {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            if inode.with_attr(|attr| attr.flags).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
                return Err(NameError::NotPermitted.into());
            }
            let _writeback = inode.writeback_lock.lock();
            self.write_pages(inode, 0, u64::MAX)?;
            inode.pages.drop_pages(0, u64::MAX, &self.memory);
            self.guarded(|| ioctls.ioctl(cred, inode, number, input))?
        };
        self.notify(inode, ChangeKind::Data);
        Ok(output)
    }
}
