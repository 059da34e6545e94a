//! Values of the fields of inodes.

/// Forms of a fork (`di_format`, `di_aformat`).
pub(crate) mod format {
    /// The number of a device; no contents.
    pub(crate) const DEVICE: u8 = 0;
    /// In the inode itself.
    pub(crate) const LOCAL: u8 = 1;
    /// A list of extents.
    pub(crate) const EXTENTS: u8 = 2;
    /// A B-tree of extents.
    pub(crate) const BTREE: u8 = 3;
}

/// Bits of `di_flags`.
pub(crate) mod flags {
    pub(crate) const REALTIME: u16 = 0x1;
    /// The bitmap of the realtime device has its new form: its access time is no time.
    pub(crate) const REALTIME_BITMAP: u16 = 0x4;
    pub(crate) const IMMUTABLE: u16 = 0x8;
    pub(crate) const APPEND: u16 = 0x10;
    pub(crate) const SYNC: u16 = 0x20;
    pub(crate) const NOATIME: u16 = 0x40;
    pub(crate) const NODUMP: u16 = 0x80;
    pub(crate) const PROJINHERIT: u16 = 0x200;
    pub(crate) const EXTENT_SIZE: u16 = 0x800;
    pub(crate) const EXTENT_SIZE_INHERITED: u16 = 0x1000;
    /// Only directories have them.
    pub(crate) const OF_DIRECTORIES: u16 = 0x100 | PROJINHERIT | 0x400 | EXTENT_SIZE_INHERITED;
    pub(crate) const ALL: u16 = 0x7FFF;
}

/// Bits of `di_flags2`.
pub(crate) mod flags2 {
    pub(crate) const DAX: u64 = 0x1;
    pub(crate) const REFLINK: u64 = 0x2;
    pub(crate) const COW_EXTENT_SIZE: u64 = 0x4;
    pub(crate) const BIGTIME: u64 = 0x8;
    pub(crate) const NREXT64: u64 = 0x10;
    pub(crate) const METADATA: u64 = 0x20;
    /// What this driver knows.
    pub(crate) const ALL: u64 = 0x1F;
}

/// Seconds from the first large time, in 1901, to 1970.
pub(crate) const BIGTIME_EPOCH_SEC: u64 = 1 << 31;
pub(crate) const NS_PER_SEC: u32 = 1_000_000_000;

/// Links that an inode can have: counts have 32 bits, Linux uses 31.
pub(crate) const LINKS_MAX: u32 = i32::MAX as u32;
/// The longest target of a symbolic link in bytes.
pub(crate) const TARGET_MAX: u64 = 1024;
/// The longest extent in blocks.
pub(crate) const EXTENT_MAX: u32 = (1 << 21) - 1;
/// The first file block that no extent can have.
pub(crate) const FILE_BLOCKS_END: u64 = 1 << 54;
