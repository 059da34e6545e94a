//! The open filesystem, its fragments and inodes.

use crate::alloc::{Allocator, order_error};
use crate::layout::dinode::Dinode;
use crate::layout::superblock::{ROOT, Superblock};
use ivers_block::{BlockNo, BufferCache, BufferRead};
use ivers_vfs::sync::atomic::AtomicU64;
use ivers_vfs::sync::{RankedRwLock, rank};
use ivers_vfs::{
    Error, FileType, InitialCounter, Ino, Inode, LoadedInode, NameError, NameIndexes, Result, SearchStart,
};
use ivers_write_ordering::{Change, Ordered, Stage, Ticket};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// An open UFS1 or UFS2.
pub struct Ufs {
    pub(crate) sb: Superblock,
    /// The image's name in errors.
    pub(crate) place: String,
    /// Its blocks are fragments.
    pub(crate) cache: Arc<BufferCache>,
    /// The names of large directories.
    pub(crate) names: NameIndexes,
    /// Why nothing can be changed, if so.
    pub(crate) read_only: Option<String>,
    /// The state of writing; `None` if nothing can be changed.
    pub(crate) writer: Option<Writer>,
}

/// The state of a mount that writes.
pub(crate) struct Writer {
    pub ordered: Ordered,
    pub alloc: Arc<Allocator>,
    /// Inodes without a name that are not deleted yet. If the filesystem is closed with some, it stays marked
    /// as dirty.
    pub orphans: AtomicU64,
}

/// The driver's data of an inode in memory.
pub(crate) struct Private {
    pub state: RankedRwLock<rank::Driver<0>, State>,
    /// Where the next lookup in a directory without an index begins.
    pub search_start: SearchStart,
}

/// The part of [`Private`] that changes.
pub(crate) struct State {
    /// The inode with all changes that are in the batch. Its size is that on the device.
    pub dinode: Dinode,
    /// Blocks that are reserved for dirty pages: the height above the data, and the first file block.
    pub reserved: BTreeSet<(u32, u64)>,
    /// The last change that must be durable before the next one.
    pub ticket: Ticket,
    /// Changes of a directory in the batch.
    pub pending: Pending,
    /// The unit of a directory before which no space was found.
    pub space_from: u64,
}

/// Changes of a directory in the batch, which later changes of the batch must know.
#[derive(Default)]
pub(crate) struct Pending {
    /// The batch.
    pub ticket: Ticket,
    /// The bytes of entries that the batch added: the device has none there.
    pub added: HashSet<u64>,
    /// The bytes of entries that are removed in the last stage. Their space cannot be used before.
    pub cut: HashSet<u64>,
    /// Names that the device has until others are added. They cannot be added again in the batch, or they
    /// could be there twice.
    pub removed: HashSet<Vec<u8>>,
    /// Whether the last fragments have moved: the device has the old ones until the inode is written.
    pub moved: bool,
}

impl Pending {
    /// Returns what is known for the batch of a change.
    pub fn of_batch(&mut self, change: &Change<'_>) -> &mut Self {
        let ticket = change.ticket();
        if self.ticket != ticket {
            *self = Self { ticket, ..Self::default() };
        }
        self
    }
}

impl Private {
    pub fn new(dinode: Dinode) -> Self {
        let state = State {
            dinode,
            reserved: BTreeSet::new(),
            ticket: Ticket::default(),
            pending: Pending::default(),
            space_from: 0,
        };
        Self { state: RankedRwLock::new(state), search_start: SearchStart::default() }
    }
}

pub(crate) fn private_of(inode: &Inode) -> &Private {
    inode.private()
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

    /// Checks that `frags` fragments from one on can be changed as a part of an inode.
    pub(crate) fn check_writable(&self, ino: u32, start: u64, frags: u64) -> Result<()> {
        self.check_frags(ino, start, frags)?;
        match (start..start + frags).find(|&fragment| self.sb.is_structure(fragment)) {
            Some(fragment) => {
                let what =
                    format!("it refers to fragment {fragment} of the filesystem itself; run ivers check");
                Err(self.corrupt(ino, what))
            }
            None => Ok(()),
        }
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
        Ok(Self::loaded(Private::new(dinode)))
    }

    /// Returns an inode for the VFS.
    pub(crate) fn loaded(private: Private) -> LoadedInode {
        let (ino, generation, attr) = {
            let dinode = &private.state.read().dinode;
            (Ino(dinode.ino.into()), dinode.generation, dinode.attr())
        };
        LoadedInode { ino, generation, attr, counter: InitialCounter::NotStored, private: Box::new(private) }
    }

    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| NameError::ReadOnly.into())
    }

    pub(crate) fn alloc(&self) -> Result<&Allocator> {
        Ok(&self.writer()?.alloc)
    }

    /// Opens a change. The caller holds no lock of this driver.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        let writer = self.writer()?;
        writer.ordered.change().map_err(order_error)
    }

    /// Runs `wait`, which may wait until no change is open. The caller holds no change and no lock of this
    /// driver.
    pub(crate) fn wait_for_batch<T>(
        &self,
        wait: impl FnOnce(&Ordered) -> ivers_write_ordering::Result<T>,
    ) -> Result<T> {
        let writer = self.writer()?;
        wait(&writer.ordered).map_err(order_error)
    }

    /// Waits until the change on which later changes of an inode depend is durable.
    pub(crate) fn settle(&self, inode: &Inode) -> Result<()> {
        let ticket = private_of(inode).state.read().ticket;
        self.wait_for_batch(|ordered| ordered.settle(ticket))
    }

    /// Puts an inode into the batch.
    pub(crate) fn put_dinode(&self, change: &Change<'_>, stage: Stage, dinode: &Dinode) -> Result<()> {
        self.put_slot(change, stage, dinode.ino, |bytes| dinode.encode(bytes, &self.sb))
    }

    /// Changes the bytes of an inode. `edit` runs once for each version that includes the stage.
    pub(crate) fn put_slot(
        &self,
        change: &Change<'_>,
        stage: Stage,
        ino: u32,
        edit: impl Fn(&mut [u8]),
    ) -> Result<()> {
        let (fragment, at) = self.sb.inode_place(ino);
        let buffer = self.cache.get(BlockNo(fragment))?;
        change.put(&buffer, stage, |bytes| edit(&mut bytes[at..at + self.sb.inode_size() as usize]));
        Ok(())
    }

    /// Stores the attributes of an inode, and where its blocks are.
    pub(crate) fn log_state(&self, change: &Change<'_>, inode: &Inode, state: &mut State) -> Result<()> {
        let attr = inode.attr();
        state.dinode.set_attr(&attr);
        self.alloc()?.note_change_time(attr.ctime);
        self.alloc()?.keep_links(state.dinode.ino);
        self.put_dinode(change, Stage::Attach, &state.dinode)
    }
}
