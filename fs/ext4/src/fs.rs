//! The opened filesystem, and the data that the driver keeps with every inode.

use crate::balloc::{InodeAlloc, Reserved};
use crate::groups::Groups;
use crate::layout::csum::crc32c;
use crate::layout::inode::inode_seed;
use crate::layout::slot_body::SlotBody;
use crate::layout::superblock::Superblock;
use crate::map::Delayed;
use crate::orphan::Orphans;
use crate::system_zone::SystemZone;
pub use crate::transaction::Handle;
use crate::transaction::Transactions;
use ivers_block::{BlockNo, Buffer, BufferCache, ByteOffset, Device};
use ivers_journal::LastChange;
use ivers_vfs::sync::{RankedMutex, RankedRwLock, rank};
use ivers_vfs::{
    Clock, CoarseClock, Error, Inode, NameError, ReservationWindows, Result, ServedEpoch, Timestamp,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};

pub use crate::layout::inode::ROOT_INO;

/// An open ext2, ext3 or ext4 filesystem.
pub struct Ext4 {
    /// The geometry and features.
    pub sb: Superblock,
    /// The image's name in errors.
    pub place: String,
    /// Metadata blocks.
    pub cache: Arc<BufferCache>,
    /// The device that holds the blocks.
    pub dev: Arc<dyn Device>,
    /// Group descriptors and bitmaps.
    pub groups: Arc<Groups>,
    /// Why the filesystem is read-only, if it is.
    pub read_only: Option<String>,
    /// How it was closed before this open, for people.
    pub closed_before: &'static str,
    pub(crate) journal: Transactions,
    pub(crate) epoch: ServedEpoch,
    /// The OPEN record is in the running transaction, and may not be durable.
    pub(crate) open_waits: AtomicBool,
    pub(crate) orphans: Orphans,
    pub(crate) reservation_windows: ReservationWindows<Reserved>,
    pub(crate) system_zone: SystemZone,
    /// The private part of the root, shared by every copy of that inode because it holds the epoch record.
    pub(crate) root_private: RankedMutex<rank::Leaf, Weak<Ext4Inode>>,
    /// High halves of counters that overflowed their 32 stored bits in this mount.
    pub(crate) wrapped: RankedMutex<rank::Leaf, HashMap<u32, u64>>,
    /// Serializes swaps with the boot loader.
    pub(crate) boot: RankedMutex<rank::BeforeHandle, ()>,
    /// The number of groups, and the overhead computed for it, if the superblock does not store it.
    pub(crate) overhead: RankedMutex<rank::Leaf, (u32, u64)>,
    /// Serializes growing.
    pub(crate) growing: RankedMutex<rank::BeforeHandle, ()>,
    pub(crate) closed: AtomicBool,
    /// Closing does not mark the filesystem as cleanly unmounted: e2fsck is to look at it. It was found so,
    /// or a resize is in progress.
    pub(crate) stays_unclean: AtomicBool,
    /// Distinguishes successive inodes with one inode number.
    pub(crate) next_generation: AtomicU32,
    /// See [`crate::OpenOptions::filling`].
    pub(crate) filling: bool,
    /// The time, if the clock stands still.
    pub(crate) stopped_clock: Option<Timestamp>,
}

/// The driver's data of an inode. [`Inode::private`] is an [`Arc`] of it: the copies of an inode share it.
/// All of it is one allocation, since the inode cache has many.
pub struct Ext4Inode {
    /// The contents of the slot without the attributes.
    pub core: CoreLock,
    /// Allocation hint.
    pub alloc: RankedMutex<rank::Leaf, InodeAlloc>,
    /// Its newest change, for fsync.
    pub(crate) last_change: LastChange,
}

/// The lock of an inode's core; its key is the inode number. It follows the list of orphans and precedes
/// groups.
pub type CoreLock = RankedRwLock<rank::Driver<5>, InodeCore>;

/// The contents of a slot that are not attributes of the VFS.
#[derive(Debug)]
pub struct InodeCore {
    /// The block map, the extent tree's root, a short link's target or inline data.
    pub i_block: [u8; 60],
    /// `i_flags` as stored; the flags that users see are in `Attr::flags` and take precedence.
    pub flags: u32,
    /// The size stored on the device: never beyond written data.
    pub disk_size: u64,
    /// 512-byte units, as `Attr::blocks_512`.
    pub blocks_512: u64,
    /// The block of extended attributes, or 0.
    pub file_acl: BlockNo,
    /// Bytes of extra fields.
    pub extra_isize: u16,
    /// The bytes after the extra fields, up to the end of the slot.
    pub body_xattrs: SlotBody,
    /// `i_dtime`: the next orphan while the inode is on the orphan list.
    pub dtime: u32,
    /// Reservations of delayed writes.
    pub delayed: Delayed,
}

/// The driver's data of an inode.
pub(crate) fn private_of(inode: &Inode) -> &Arc<Ext4Inode> {
    inode.private::<Arc<Ext4Inode>>()
}

/// The contents of an inode's slot.
pub fn core_of(inode: &Inode) -> &CoreLock {
    &private_of(inode).core
}

impl Ext4 {
    /// An error for a corrupt block.
    pub fn corrupt_block(&self, what: impl Into<String>, block: BlockNo) -> Error {
        Error::corrupt(what, format!("{}, block {block}", self.place))
    }

    /// An error for a corrupt inode.
    pub fn corrupt_inode(&self, what: impl Into<String>, inode: &Inode) -> Error {
        Error::corrupt(what, format!("{}, inode {}", self.place, inode.ino))
    }

    /// Returns a metadata block; reads it if necessary. A block number outside the filesystem is corruption.
    pub fn block(&self, block: BlockNo) -> Result<Arc<Buffer>> {
        if !self.sb.is_valid_block(block) {
            return Err(self.corrupt_block("metadata refers to a block outside the filesystem", block));
        }
        Ok(self.cache.get(block)?)
    }

    /// As [`Ext4::block`], for one of the blocks of `range`, which are often read together.
    pub(crate) fn block_in_range(&self, block: BlockNo, range: Range<BlockNo>) -> Result<Arc<Buffer>> {
        if !self.sb.is_valid_block(block) {
            return self.block(block);
        }
        Ok(self.cache.get_in_range(block, range)?)
    }

    /// Returns the buffer of a newly allocated block: zeros, not read from the device.
    pub fn new_block(&self, block: BlockNo) -> Result<Arc<Buffer>> {
        if !self.sb.is_valid_block(block) {
            return Err(self.corrupt_block("a new block lies outside the filesystem", block));
        }
        Ok(self.cache.get_zeroed(block)?)
    }

    /// Starts a handle that changes at most `credits` blocks.
    pub fn begin(&self, credits: u32) -> Result<Handle> {
        if self.read_only.is_some() {
            return Err(NameError::ReadOnly.into());
        }
        self.journal.begin(credits)
    }

    /// Writes data of an inode directly to the device. This thread must hold no handle.
    pub(crate) fn write_data(&self, inode: &Inode, offset: ByteOffset, data: &[u8]) -> Result<()> {
        self.record_open()?;
        let written = self.dev.write_at(offset, data);
        self.journal.data_written(&private_of(inode).last_change);
        written.map_err(Error::file_data)
    }

    /// Continues a crc32c; inverts neither the seed nor the result.
    pub fn csum(&self, seed: u32, bytes: &[u8]) -> u32 {
        crc32c(seed, bytes)
    }

    /// The time of what the driver stores by itself.
    pub(crate) fn now(&self) -> Timestamp {
        self.stopped_clock.unwrap_or_else(|| CoarseClock.now())
    }

    /// Whether there is a journal.
    pub(crate) fn has_journal(&self) -> bool {
        self.sb.compat.contains(crate::layout::features::Compat::HAS_JOURNAL)
    }

    /// Whether metadata carries crc32c checksums.
    pub fn has_csum(&self) -> bool {
        self.sb.has_csum()
    }

    /// The checksum seed of the structures that an inode owns.
    pub fn inode_seed(&self, ino: u32, generation: u32) -> u32 {
        inode_seed(&self.sb, ino, generation)
    }
}
