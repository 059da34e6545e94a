//! The open filesystem, its fragments and inodes.

use crate::layout::dinode::Dinode;
use crate::layout::superblock::{ROOT, Superblock};
use ivers_block::{BlockNo, BufferCache, BufferRead};
use ivers_vfs::{Error, FileType, InitialCounter, Ino, Inode, LoadedInode, NameError, Result};
use std::sync::atomic::AtomicU64;

/// An open UFS1 or UFS2. It is only read.
pub struct Ufs {
    pub(crate) sb: Superblock,
    /// The image's name in errors.
    pub(crate) place: String,
    /// Its blocks are fragments.
    pub(crate) cache: BufferCache,
    /// Why nothing can be changed.
    pub(crate) read_only: String,
}

/// What is kept with an inode.
pub(crate) struct Private {
    pub dinode: Dinode,
    /// The byte of a directory after the entry that was found last. The next lookup begins there: programs
    /// look names up in the order in which they were listed.
    pub after_last: AtomicU64,
}

pub(crate) fn private_of(inode: &Inode) -> &Private {
    inode.private()
}

pub(crate) fn dinode_of(inode: &Inode) -> &Dinode {
    &private_of(inode).dinode
}

impl Ufs {
    /// Damage of an inode.
    pub(crate) fn corrupt(&self, ino: u32, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, inode {ino}", self.place))
    }

    /// Checks that `frags` fragments from one on are inside the filesystem. Fragment 0 is in the boot area,
    /// which no inode has.
    pub(crate) fn check_frags(&self, ino: u32, start: u64, frags: u64) -> Result<()> {
        if start == 0 || start.checked_add(frags).is_none_or(|end| end > self.sb.size) {
            let what = format!("it refers to fragment {start}, outside the filesystem");
            return Err(self.corrupt(ino, what));
        }
        Ok(())
    }

    /// Reads a fragment that `ino` refers to, and perhaps its neighbours inside a block.
    pub(crate) fn fragment(&self, ino: u32, fragment: u64) -> Result<BufferRead> {
        self.check_frags(ino, fragment, 1)?;
        let per_block = u64::from(self.sb.frags_per_block);
        let start = fragment - fragment % per_block;
        let block = BlockNo(start)..BlockNo((start + per_block).min(self.sb.size));
        Ok(self.cache.get_in_range(BlockNo(fragment), block)?.read())
    }

    /// Reads an inode. A free one is [`NameError::Stale`].
    pub(crate) fn dinode(&self, ino: u64) -> Result<Dinode> {
        let known = u32::try_from(ino).ok().filter(|ino| (ROOT..self.sb.inodes()).contains(ino));
        let ino = known.ok_or(NameError::Stale)?;
        let (fragment, at) = self.sb.inode_place(ino);
        let bytes = self.fragment(ino, fragment)?;
        let bytes = &bytes[at..at + self.sb.inode_size() as usize];
        let parsed = Dinode::parse(bytes, &self.sb, ino).map_err(|what| {
            Error::corrupt(what, format!("{}, inode {ino}, fragment {fragment}", self.place))
        })?;
        Ok(parsed.ok_or(NameError::Stale)?)
    }

    pub(crate) fn load(&self, ino: u64) -> Result<LoadedInode> {
        let dinode = self.dinode(ino)?;
        if dinode.kind() == Some(FileType::Directory) {
            self.check_directory(&dinode)?;
        }
        Ok(LoadedInode {
            ino: Ino(ino),
            generation: dinode.generation,
            attr: dinode.attr(),
            counter: InitialCounter::NotStored,
            private: Box::new(Private { dinode, after_last: AtomicU64::new(0) }),
        })
    }
}
