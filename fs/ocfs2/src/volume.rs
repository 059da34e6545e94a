//! The open filesystem, its blocks and inodes.

use crate::layout::blockcheck::{self, Verdict};
use crate::layout::dinode::Dinode;
use crate::layout::shape::{DINODE, Shape};
use crate::layout::superblock::{SUPERBLOCK, Superblock, incompat};
use crate::space::Space;
use ivers_block::{BlockNo, Buffer, BufferCache, BufferRead, Contents};
use ivers_journal::{Commits, LastChange};
use ivers_vfs::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ivers_vfs::sync::{RankedMutex, RankedRwLock, rank};
use ivers_vfs::{
    Error, FileType, InitialCounter, Ino, Inode, LoadedInode, NameError, NameIndexes, Result, SearchStart,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// An open OCFS2.
pub struct Ocfs2 {
    pub(crate) sb: Superblock,
    /// The image's name in errors.
    pub(crate) place: String,
    pub(crate) cache: Arc<BufferCache>,
    /// Indexes of large directories that have none on the device.
    pub(crate) names: NameIndexes,
    /// Why nothing can be changed, if so.
    pub(crate) read_only: Option<String>,
    /// The state of writing; `None` if nothing can be changed.
    pub(crate) writer: Option<Writer>,
    /// How it was closed, for users.
    pub(crate) state: String,
    /// The inode of the bitmap of clusters.
    pub(crate) global_bitmap: u64,
    /// Reads of a structure in which one bit was corrected.
    pub(crate) corrected: AtomicU64,
}

/// The state of a mount that writes.
pub(crate) struct Writer {
    pub commits: Commits,
    /// Changes are made one at a time, under this lock.
    pub space: RankedMutex<rank::BeforeHandle, Space>,
    /// Clusters that durable transactions freed, and that [`Space::busy`] still has.
    pub released: Arc<RankedMutex<rank::Leaf, Vec<Range<u64>>>>,
    pub files: SystemFiles,
    /// The newest write of data of any file.
    pub data: LastChange,
    /// The inode of our journal.
    pub journal: u64,
    pub closed: AtomicBool,
}

/// The system files by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct SystemFiles(pub BTreeMap<Vec<u8>, u64>);

impl SystemFiles {
    pub fn find(&self, name: &str) -> Option<u64> {
        self.0.get(name.as_bytes()).copied()
    }

    /// The file of a slot.
    pub fn of_slot(&self, name: &str, slot: u16) -> Option<u64> {
        self.find(&format!("{name}:{slot:04}"))
    }
}

/// What is kept with an inode.
pub(crate) struct Private {
    /// The inode as it is stored: its size is that of the data on the device.
    pub state: RankedRwLock<rank::Driver<0>, Dinode>,
    pub reserved: RankedMutex<rank::Leaf, Reserved>,
    /// Where the next lookup in a directory begins.
    pub search_start: SearchStart,
}

/// What is reserved for dirty pages of a file.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    /// Positions of clusters that must be taken or converted.
    pub clusters: BTreeSet<u32>,
    /// Extent blocks.
    pub blocks: u64,
}

impl Private {
    pub fn new(dinode: Dinode) -> Self {
        Self {
            state: RankedRwLock::new(dinode),
            reserved: RankedMutex::default(),
            search_start: SearchStart::default(),
        }
    }
}

pub(crate) fn private_of(inode: &Inode) -> &Private {
    inode.private()
}

impl Ocfs2 {
    /// Damage of an inode.
    pub(crate) fn corrupt(&self, ino: u64, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, inode {ino}", self.place))
    }

    /// Damage of a block.
    pub(crate) fn corrupt_block(&self, block: u64, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, block {block}", self.place))
    }

    /// Reads a block, and verifies the checksum of the structure in it once.
    pub(crate) fn block(&self, number: u64, check_at: usize) -> Result<BufferRead> {
        if number <= SUPERBLOCK || number >= self.sb.blocks() {
            let what = format!("block {number} is outside the filesystem");
            return Err(Error::corrupt(what, self.place.clone()));
        }
        let buffer = self.cache.get(BlockNo(number))?;
        if self.sb.has(incompat::META_ECC) && !buffer.is_verified() {
            self.verify(&buffer, number, check_at)?;
        }
        Ok(buffer.read())
    }

    fn verify(&self, buffer: &Buffer, number: u64, check_at: usize) -> Result<()> {
        let before = buffer.read();
        if let Some(bytes) = self.corrected_bytes(&before, number, check_at)? {
            // If another thread corrected it first, its contents stay.
            let _ = buffer.replace_if_unchanged(&before, Contents::new(bytes, self.cache.budget()));
        }
        buffer.set_verified();
        Ok(())
    }

    /// Verifies the checksum of a structure. Returns its right bytes if one bit was wrong.
    pub(crate) fn corrected_bytes(
        &self,
        bytes: &[u8],
        block: u64,
        check_at: usize,
    ) -> Result<Option<Vec<u8>>> {
        match blockcheck::verify(bytes, check_at) {
            Verdict::Good => Ok(None),
            Verdict::Bad => Err(self.corrupt_block(block, "bad checksum; run fsck.ocfs2")),
            Verdict::Corrected(right) => {
                log::warn!("{}: block {block}: one bit was wrong, and is corrected in memory", self.place);
                self.corrected.fetch_add(1, Ordering::Relaxed);
                Ok(Some(right))
            }
        }
    }

    /// Reads a structure of a block, and checks what all structures have.
    pub(crate) fn structure(&self, number: u64, shape: &Shape) -> Result<BufferRead> {
        let bytes = self.block(number, shape.check_at)?;
        shape.check(&bytes, number, self.sb.generation).map_err(|what| self.corrupt_block(number, what))?;
        Ok(bytes)
    }

    /// Reads an inode and its block, whether it is in use or not.
    pub(crate) fn any_dinode(&self, ino: u64) -> Result<(Dinode, BufferRead)> {
        let bytes = self.structure(ino, &DINODE)?;
        let dinode = Dinode::parse(&bytes, ino, &self.sb).map_err(|what| self.corrupt(ino, what))?;
        Ok((dinode, bytes))
    }

    /// Reads an inode that is in use, and its block. A free one is [`NameError::Stale`].
    pub(crate) fn dinode(&self, ino: u64) -> Result<(Dinode, BufferRead)> {
        let found = self.any_dinode(ino)?;
        if found.0.is_valid() { Ok(found) } else { Err(NameError::Stale.into()) }
    }

    /// Reads the block of an inode in memory, which was in use when it was loaded.
    pub(crate) fn block_of(&self, inode: &Dinode) -> Result<BufferRead> {
        self.structure(inode.ino, &DINODE)
    }

    pub(crate) fn load(&self, ino: u64) -> Result<LoadedInode> {
        // A number from outside may be that of any block.
        if ino <= SUPERBLOCK || ino >= self.sb.blocks() {
            return Err(NameError::Stale.into());
        }
        let dinode = self.dinode(ino)?.0;
        if dinode.kind() == Some(FileType::Directory) {
            self.check_directory(&dinode)?;
        }
        Ok(self.loaded(dinode))
    }

    /// Returns an inode for the VFS.
    pub(crate) fn loaded(&self, dinode: Dinode) -> LoadedInode {
        LoadedInode {
            ino: Ino(dinode.ino),
            generation: dinode.generation,
            attr: dinode.attr(&self.sb),
            counter: InitialCounter::NotStored,
            private: Box::new(Private::new(dinode)),
        }
    }
}
