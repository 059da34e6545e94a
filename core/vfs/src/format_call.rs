//! Calls that only one format knows.

use crate::api::{ChangeKind, Cred};
use crate::error::{NameError, Result};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};

impl Vfs {
    /// Whether the format has a call of its own by this number, that of a Linux ioctl without an argument.
    pub fn has_format_call(&self, number: u32) -> bool {
        self.fs.has_call(number)
    }

    /// Have the format do a call of its own with a file. For the superuser only. A front end whose kernel keeps pages of the file
    /// has them handed over before, and dropped afterwards.
    pub fn format_call(&self, cred: &Cred, inode: &InodeRef, number: u32) -> Result<()> {
        if !self.fs.has_call(number) {
            return Err(NameError::NotSupported.into());
        }
        // Nobody else has checked this: permissions of the file do not matter.
        if cred.uid != 0 {
            return Err(NameError::NotPermitted.into());
        }
        self.balance();
        {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            if inode.with_attr(|attr| attr.flags).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
                return Err(NameError::NotPermitted.into());
            }
            let _writeback = inode.writeback_lock.lock();
            self.write_pages(inode, 0, u64::MAX)?;
            inode.pages.drop_pages(0, u64::MAX, &self.memory);
            self.fs.call(inode, number)?;
        }
        self.notify(inode, ChangeKind::Data);
        Ok(())
    }
}
