//! The opened filesystem, its transactions, and what it keeps beside every inode.

use crate::balloc::InodeAlloc;
use crate::epoch::Epoch;
use crate::groups::Groups;
use crate::layout::csum::crc32c;
use crate::layout::inode::inode_seed;
use crate::layout::superblock::Superblock;
use crate::map::Delayed;
use crate::orphan::Orphans;
pub use crate::tx::Handle;
use crate::tx::{LastChange, Tx};
use crate::windows::Windows;
use crate::zones::Zones;
use ivers_block::{Buffer, BufferCache, Device};
use ivers_vfs::{
    AtimeMode, ChangeMode, CoarseClock, Error, HeldBack, Inode, LoadedInode, NameError, Policy, Result,
};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock, Weak};

/// The inode number of the root directory.
pub const ROOT_INO: u32 = 2;

/// An ext2, ext3 or ext4 filesystem, opened.
pub struct Ext4 {
    /// The geometry and features.
    pub sb: Superblock,
    /// The image's name in errors.
    pub place: String,
    /// Metadata blocks.
    pub cache: Arc<BufferCache>,
    /// What the blocks lie on.
    pub dev: Arc<dyn Device>,
    /// Group descriptors and bitmaps.
    pub groups: Arc<Groups>,
    /// Why nothing may be written, if so.
    pub read_only: Option<String>,
    pub(crate) journal: Tx,
    pub(crate) epoch: Epoch,
    pub(crate) orphans: Orphans,
    pub(crate) windows: Windows,
    pub(crate) zones: Zones,
    /// The private part of the root, shared by every copy of that inode: the epoch record lives there.
    pub(crate) root_core: Mutex<Weak<RwLock<InodeCore>>>,
    /// High halves of counters that ran over their 32 stored bits in this mount.
    pub(crate) wrapped: Mutex<HashMap<u32, u64>>,
    /// One swap with the boot loader at a time. Rank: above handles.
    pub(crate) boot: Mutex<()>,
    /// Counted when it is first asked for, where the superblock does not tell.
    pub(crate) overhead: OnceLock<u64>,
    pub(crate) closed: AtomicBool,
    /// Tells lives of one inode number apart.
    pub(crate) next_generation: AtomicU32,
    /// For inodes that the driver handles without the VFS.
    pub(crate) own_policy: Arc<Policy>,
}

/// What the driver keeps beside an inode: [`Inode::private`].
pub struct Ext4Inode {
    /// What the slot holds beside the attributes. Rank: below `Inode::lock`, above buffers and the leaf lock of attributes.
    pub core: Arc<RwLock<InodeCore>>,
    /// Where its next blocks go. A leaf lock.
    pub alloc: Mutex<InodeAlloc>,
    /// Its newest change, for fsync.
    pub(crate) last_change: LastChange,
}

/// The slot's contents that are no attributes.
#[derive(Debug)]
pub struct InodeCore {
    /// The block map, the extent tree's root, a short link's target or inline data.
    pub i_block: [u8; 60],
    /// `i_flags` as stored; the flags that users see are kept in `Attr::flags` and win.
    pub flags: u32,
    /// The size that the device may show: never beyond written data.
    pub disk_size: u64,
    /// 512-byte units, as `Attr::blocks_512`.
    pub blocks_512: u64,
    /// The block of extended attributes, or 0.
    pub file_acl: u64,
    /// Bytes of extra fields.
    pub extra_isize: u16,
    /// What follows the extra fields in the slot, always as long as the slot has room.
    pub body_xattrs: Vec<u8>,
    /// `i_dtime`: the next orphan while it is on the list.
    pub dtime: u32,
    /// Delayed allocation.
    pub delayed: Delayed,
}

/// The private part of an inode.
pub fn core_of(inode: &Inode) -> &RwLock<InodeCore> {
    &inode.private::<Ext4Inode>().core
}

impl Ext4 {
    /// A corruption at a block.
    pub fn corrupt_block(&self, what: impl Into<String>, block: u64) -> Error {
        Error::corrupt(what, format!("{}, block {block}", self.place))
    }

    /// A corruption in an inode.
    pub fn corrupt_inode(&self, what: impl Into<String>, inode: &Inode) -> Error {
        Error::corrupt(what, format!("{}, inode {}", self.place, inode.ino))
    }

    /// A metadata block, read if it is not in memory. Numbers outside the filesystem are corruption.
    pub fn block(&self, block: u64) -> Result<Arc<Buffer>> {
        if !self.sb.is_valid_block(block) {
            return Err(self.corrupt_block("metadata names a block outside the filesystem", block));
        }
        Ok(self.cache.get(block)?)
    }

    /// The buffer of a block that was just allocated: zeros, not read from the device.
    pub fn new_block(&self, block: u64) -> Result<Arc<Buffer>> {
        if !self.sb.is_valid_block(block) {
            return Err(self.corrupt_block("a new block lies outside the filesystem", block));
        }
        Ok(self.cache.get_zeroed(block)?)
    }

    /// Start a transaction that changes at most `credits` blocks.
    pub fn begin(&self, credits: u32) -> Result<Handle> {
        if self.read_only.is_some() {
            return Err(NameError::ReadOnly.into());
        }
        self.journal.begin(credits)
    }

    /// Write data of an inode straight to the device.
    pub(crate) fn write_data(&self, inode: &Inode, byte: u64, data: &[u8]) -> Result<()> {
        let written = self.dev.write_at(byte, data);
        self.journal.data_written(&inode.private::<Ext4Inode>().last_change);
        Ok(written?)
    }

    /// Chain a crc32c, inverted at neither end.
    pub fn csum(&self, seed: u32, bytes: &[u8]) -> u32 {
        crc32c(seed, bytes)
    }

    /// Whether metadata carries crc32c checksums.
    pub fn has_csum(&self) -> bool {
        self.sb.has_csum()
    }

    /// The seed of checksums over what an inode owns.
    pub fn inode_seed(&self, ino: u32, generation: u32) -> u32 {
        inode_seed(&self.sb, ino, generation)
    }

    /// An inode outside the VFS's cache, for inodes that only the driver sees.
    pub fn detached(&self, loaded: LoadedInode) -> Inode {
        Inode::new(loaded, self.own_policy.clone())
    }
}

/// The policy of inodes that only the driver sees.
pub(crate) fn own_policy() -> Arc<Policy> {
    Arc::new(Policy::new(
        ChangeMode::Lazy,
        HeldBack::default(),
        AtimeMode::Never,
        false,
        Box::new(CoarseClock),
        1,
    ))
}
