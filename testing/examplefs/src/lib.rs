//! The second example for authors of drivers: a local format with a journal and a stored change counter. It
//! is not a shipped format: only tests make and mount it, and its layout may change at any time.
//!
//! Read [`fs/mem`](../../../fs/mem/src/lib.rs) first. A device adds what the modules here show:
//!
//! | module | shows |
//! |---|---|
//! | [`layout`] | the bytes on disk, checked when they are read |
//! | `open` | the order of a mount: superblock, replay, epoch, orphans |
//! | `space` | blocks: taken before they are mapped, busy until their freeing commits |
//! | `inode` | transactions; loading, logging and deleting inodes |
//! | `dir` | names, each change in one transaction |
//! | `file` | write-back: data to the device, then the transaction that maps it |
//!
//! `mkfs` makes images for the tests and is not part of the example.
//!
//! # Invariants
//!
//! | # | statement | established by |
//! |---|---|---|
//! | E1 | half a change never commits | after an error `change` aborts while its handle is open |
//! | E2 | no transaction fails for lack of space | blocks and inodes are taken in memory before it begins |
//! | E3 | a freed block is not reused before its freeing commits | `Space` keeps it busy until then |
//! | E4 | data is durable no later than the map that refers to it | `write_back`; J6 of the journal |
//! | E5 | a value is above those of earlier inodes with this number | a free inode keeps its counter |
//! | E6 | no value stands for two states across a crash | the record is OPEN from `open` to `unmount` |
//!
//! Order of locks: a journal handle, the lock of a `Core`, then those of `Space` and of the free inodes.
//! Debug builds check their ranks.

#![forbid(unsafe_code)]

mod dir;
mod file;
mod inode;
pub mod layout;
mod mkfs;
mod open;
mod space;

pub use file::BLOCK_ON_DEVICE;
use inode::{core, journal_error, loaded};
use ivers_block::{BlockNo, BufferCache, Device};
use ivers_journal::{Handle, Journal, JournalError, JournalOptions};
use ivers_vfs::sync::{RankedMutex, RankedRwLock, rank};
use ivers_vfs::*;
use layout::*;
pub use mkfs::format;
use space::Space;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The mounted filesystem.
pub struct ExampleFs {
    place: String,
    sb: RawSuper,
    device: Arc<dyn Device>,
    cache: Arc<BufferCache>,
    journal: Journal,
    read_only: bool,
    space: Arc<Space>,
    free_inodes: RankedMutex<rank::Leaf, BTreeSet<Ino>>,
    /// The epoch that is served.
    epoch: u64,
    /// Leave the epoch record OPEN at unmount.
    stays_open: AtomicBool,
}

impl FileSystem for ExampleFs {
    fn info(&self) -> FsInfo {
        let within = ChangeSemantics::WITHIN_A_MOUNT;
        FsInfo {
            uuid: self.sb.uuid,
            root: ROOT,
            name_max: NAME_MAX as u32,
            max_file_size: (MAX_BLOCKS * BLOCK) as u64,
            semantics: ChangeSemantics { persistent: true, crash_safe: true, ..within },
            persistent_inos: true,
            ..FsInfo::usual("example", BLOCK as u32)
        }
    }

    fn health(&self) -> Health {
        let aborted = self.journal.aborted();
        let requested = self.read_only.then(|| "requested, or the image is read-only".to_owned());
        Health { no_change_attribute: aborted.clone(), read_only: requested.or(aborted) }
    }

    fn ioctls(&self) -> Option<&dyn IoctlOps> {
        Some(self)
    }

    fn serves_change_attribute(&self) -> bool {
        !self.journal.is_aborted()
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let free = self.space.free() as u64;
        Ok(StatFs {
            block_size: BLOCK as u32,
            blocks: u64::from(self.sb.blocks.get()) - self.sb.data().0,
            blocks_free: free,
            blocks_available: free,
            files: self.sb.inodes.get().into(),
            files_free: self.free_inodes.lock().len() as u64,
            name_max: NAME_MAX as u32,
        })
    }

    /// Also flushes the device, and so the data that was written before.
    fn sync(&self) -> Result<()> {
        self.journal.commit_all().map_err(journal_error)
    }

    /// Blocks that were freed are free after a commit.
    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn reclaim_space(&self) -> Result<bool> {
        self.sync().map(|()| true)
    }

    fn abort(&self, why: &Error) {
        self.journal.abort(why);
    }

    fn unmount(&self) -> Result<()> {
        // CLOSED commits together with all that is left, or not at all.
        if !self.stays_open.load(Ordering::Acquire) {
            let sb = self.sb.clone().with_epoch(self.epoch, false);
            let buffer = self.cache.get(BlockNo(0))?;
            self.change(CREDITS, |h| {
                h.modify(&buffer, |bytes| bytes[..size_of::<RawSuper>()].copy_from_slice(sb.as_bytes()));
                Ok(())
            })?;
        }
        self.journal.shutdown().map_err(journal_error)
    }

    fn epochs(&self) -> Option<&dyn EpochOps> {
        Some(self)
    }
}

impl EpochOps for ExampleFs {
    fn base(&self) -> u64 {
        epoch::base_of(self.epoch)
    }

    /// The record is OPEN since the mount: left so, it raises the epoch of the next one.
    fn raise(&self) -> Result<()> {
        self.keep_open();
        Ok(())
    }

    fn keep_open(&self) {
        self.stays_open.store(true, Ordering::Release);
    }
}
