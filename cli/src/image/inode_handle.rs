//! A way to find an inode again later, without keeping it in memory where that is possible.

use ivers_vfs::{Ino, InodeRef, Result, Vfs};

/// Finds an inode again.
#[derive(Debug)]
pub enum InodeHandle {
    /// Its inode number and generation. The inode may leave memory.
    Number(Ino, u32),
    /// Its inode number is not persistent.
    Inode(InodeRef),
}

impl InodeHandle {
    /// Creates the handle of an inode.
    pub fn new(vfs: &Vfs, inode: &InodeRef) -> Self {
        if vfs.info().persistent_inos {
            Self::Number(inode.ino, inode.generation)
        } else {
            Self::Inode(inode.clone())
        }
    }

    /// Returns the inode.
    pub fn get(&self, vfs: &Vfs) -> Result<InodeRef> {
        match self {
            Self::Number(ino, generation) => vfs.get_generation(*ino, *generation),
            Self::Inode(inode) => Ok(inode.clone()),
        }
    }
}
