//! A file of a mount in this process that threads share.

use std::sync::Arc;

use ivers_vfs::{Cred, InodeRef, OpenMode, Vfs, WriteFlags, XattrMode};

use crate::inprocess::refused;
use crate::subject::{Refused, Result, SharedFile};

pub(crate) struct SharedInode {
    pub(crate) inode: InodeRef,
    pub(crate) vfs: Arc<Vfs>,
    /// Each read and each write opens the file.
    pub(crate) opens: bool,
}

impl SharedInode {
    fn open<T>(&self, mode: OpenMode, call: impl FnOnce() -> ivers_vfs::Result<T>) -> Result<T> {
        if self.opens {
            self.vfs.open(&Cred::root(), &self.inode, mode).map_err(refused)?;
        }
        let done = call();
        if self.opens {
            self.vfs.close(&self.inode, mode);
        }
        done.map_err(refused)
    }
}

const NOTE: &str = "user.note";

impl SharedFile for SharedInode {
    fn write(&self, data: &[u8]) -> Result<()> {
        let write = || self.vfs.write(&Cred::root(), &self.inode, 0, data, WriteFlags::empty());
        self.open(OpenMode::WRITE, write).map(drop)
    }

    fn read(&self, buf: &mut [u8]) -> Result<usize> {
        self.open(OpenMode::READ, || self.vfs.read(&Cred::root(), &self.inode, 0, buf))
    }

    fn set_note(&self, number: u64) -> Result<()> {
        let value = number.to_le_bytes();
        self.vfs.set_xattr(&Cred::root(), &self.inode, NOTE, &value, XattrMode::Any).map_err(refused)
    }

    fn note(&self) -> Result<u64> {
        let value = self.vfs.get_xattr(&Cred::root(), &self.inode, NOTE).map_err(refused)?;
        let bytes = value.try_into().map_err(|_| Refused::Error("the note has a wrong length".into()))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn query(&self) -> Result<Option<u64>> {
        Ok(self.vfs.change(&self.inode))
    }
}
