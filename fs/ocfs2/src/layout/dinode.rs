//! Inodes as stored. An inode takes a block, and its number is that of the block.

use super::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use super::superblock::Superblock;
use ivers_vfs::{Attr, FileType, InodeFlags, Timestamp};

/// The offset of `id2`: a list of extents, inline data, or the target of a link.
pub const ID2_AT: usize = 0xC0;
/// The offset of `i_clusters`.
pub const CLUSTERS_AT: usize = 0x14;
/// The offset of `i_size`.
pub const SIZE_AT: usize = 0x20;
/// The offset of `i_flags`.
pub const FLAGS_AT: usize = 0x2C;
/// The offset of `i_dtime`.
pub const DTIME_AT: usize = 0x48;
/// The offset of `i_orphaned_slot`.
pub const ORPHANED_SLOT_AT: usize = 0x74;
/// The offset of `i_xattr_loc`.
pub const XATTR_LOC_AT: usize = 0x78;
/// The offset of `i_dx_root`.
pub const DX_ROOT_AT: usize = 0x88;
/// The offset of inline data.
pub const INLINE_AT: usize = 0xC8;

/// Bits of `i_flags`.
pub mod flags {
    /// The inode is in use.
    pub const VALID: u32 = 0x1;
    /// It has no name, and is in the directory of orphans of a slot.
    pub const ORPHANED: u32 = 0x4;
    /// A system file.
    pub const SYSTEM: u32 = 0x10;
    /// A window of clusters that a slot may allocate from.
    pub const LOCAL_ALLOC: u32 = 0x40;
    /// Groups in chains.
    pub const CHAIN: u32 = 0x400;
    /// A list of clusters that wait to be freed.
    pub const DEALLOC: u32 = 0x800;
}

/// Bits of `i_dyn_features`.
pub mod dyn_features {
    /// The contents are in the inode.
    pub const INLINE_DATA: u16 = 0x1;
    /// It has extended attributes.
    pub const HAS_XATTR: u16 = 0x2;
    /// It has extended attributes at its end.
    pub const INLINE_XATTR: u16 = 0x4;
    /// The directory has an index.
    pub const INDEXED_DIR: u16 = 0x8;
    /// Some of its extents are shared.
    pub const HAS_REFCOUNT: u16 = 0x10;
}

/// An inode.
#[derive(Debug, Clone)]
pub struct Dinode {
    /// Its number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u16,
    /// Link count.
    pub links: u32,
    /// Bytes of the contents.
    pub size: u64,
    /// Clusters of the contents.
    pub clusters: u32,
    /// Distinguishes successive inodes of this number.
    pub generation: u32,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Bits of [`dyn_features`].
    pub dyn_features: u16,
    /// Bytes of the extended attributes at its end.
    pub xattr_inline_size: u16,
    /// The block of further extended attributes; 0: none.
    pub xattr_loc: u64,
    /// The root of the directory's index.
    pub dx_root: u64,
    /// The root of the reference counts of its extents.
    pub refcount_loc: u64,
    /// The allocator that it comes from: the slot, and the bit in its group.
    pub suballoc: (u16, u16),
    /// The descriptor of its group, if that is not contiguous.
    pub suballoc_loc: u64,
    /// The slot whose directory of orphans has it.
    pub orphaned_slot: u16,
    /// The time at which it was deleted; 0: it was not.
    pub dtime: u64,
    /// A device number, counts of a bitmap, or flags of a journal.
    pub id1: u64,
    attr: u32,
    owner: (u32, u32),
    /// Of access, contents, attributes.
    times: [Timestamp; 3],
}

impl Dinode {
    /// Decodes an inode of which the block was checked.
    pub fn parse(bytes: &[u8], ino: u64, sb: &Superblock) -> Result<Self, String> {
        let time = |sec_at: usize, nsec_at: usize| {
            // A damaged value counts as none.
            let nsec = Some(u32_at(bytes, nsec_at)).filter(|nsec| *nsec < 1_000_000_000);
            Timestamp { sec: u64_at(bytes, sec_at) as i64, nsec: nsec.unwrap_or(0) }
        };
        let inode = Self {
            ino,
            mode: u16_at(bytes, 0x28),
            links: u32::from(u16_at(bytes, 0x2A)) | u32::from(u16_at(bytes, 0x10)) << 16,
            size: u64_at(bytes, 0x20),
            clusters: u32_at(bytes, 0x14),
            generation: u32_at(bytes, 0x08),
            flags: u32_at(bytes, 0x2C),
            dyn_features: u16_at(bytes, 0x76),
            xattr_inline_size: u16_at(bytes, 0x12),
            xattr_loc: u64_at(bytes, 0x78),
            dx_root: u64_at(bytes, 0x88),
            refcount_loc: u64_at(bytes, 0x90),
            suballoc: (u16_at(bytes, 0x0C), u16_at(bytes, 0x0E)),
            suballoc_loc: u64_at(bytes, 0x98),
            orphaned_slot: u16_at(bytes, 0x74),
            dtime: u64_at(bytes, 0x48),
            id1: u64_at(bytes, 0xB8),
            attr: u32_at(bytes, 0x70),
            owner: (u32_at(bytes, 0x18), u32_at(bytes, 0x1C)),
            times: [time(0x30, 0x64), time(0x40, 0x6C), time(0x38, 0x68)],
        };
        inode.check(sb)?;
        Ok(inode)
    }

    fn check(&self, sb: &Superblock) -> Result<(), String> {
        if self.flags & flags::VALID == 0 {
            return Ok(());
        }
        self.kind().ok_or_else(|| format!("mode {:#o} has no known type", self.mode))?;
        let area = sb.block_size as usize - ID2_AT;
        if self.has_inline_xattrs() && usize::from(self.xattr_inline_size) > area - 16 {
            return Err(format!("i_xattr_inline_size is {}", self.xattr_inline_size));
        }
        let most = sb.block_size as usize - self.inline_xattr_bytes() - INLINE_AT;
        if self.is_inline() && self.size > most as u64 {
            return Err(format!("{} bytes are inline, where {most} fit", self.size));
        }
        if self.size > sb.file_size_max() {
            return Err(format!("its size is {}, more than a file can have", self.size));
        }
        Ok(())
    }

    /// Its type.
    pub fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.mode.into())
    }

    /// Whether it is in use.
    pub fn is_valid(&self) -> bool {
        self.flags & flags::VALID != 0
    }

    /// Whether the contents are in the inode.
    pub fn is_inline(&self) -> bool {
        self.dyn_features & dyn_features::INLINE_DATA != 0
    }

    /// Whether its target is in the inode of a symbolic link.
    pub fn is_fast_link(&self) -> bool {
        self.kind() == Some(FileType::Symlink) && self.clusters == 0 && !self.is_inline()
    }

    fn has_inline_xattrs(&self) -> bool {
        self.dyn_features & dyn_features::INLINE_XATTR != 0
    }

    /// Bytes at the end of the block that extended attributes take.
    pub fn inline_xattr_bytes(&self) -> usize {
        if self.has_inline_xattrs() { self.xattr_inline_size.into() } else { 0 }
    }

    /// Whether it has a list of extents.
    pub fn has_extents(&self) -> bool {
        let special = flags::LOCAL_ALLOC | flags::CHAIN | flags::DEALLOC;
        let has_contents =
            matches!(self.kind(), Some(FileType::Regular | FileType::Directory | FileType::Symlink));
        has_contents && !self.is_inline() && !self.is_fast_link() && self.flags & special == 0
    }

    /// Its attributes.
    pub fn attr(&self, sb: &Superblock) -> Attr {
        let kind = self.kind().unwrap_or(FileType::Regular);
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let [atime, mtime, ctime] = self.times;
        let inline_512 = if self.is_inline() { self.size.div_ceil(512) } else { 0 };
        Attr {
            kind,
            perm: u32::from(self.mode) & 0o7777,
            uid: self.owner.0,
            gid: self.owner.1,
            project: 0,
            nlink: self.links,
            size: self.size,
            blocks_512: u64::from(self.clusters) * u64::from(sb.cluster_size() / 512) + inline_512,
            rdev: if is_device { self.id1 as u32 } else { 0 },
            atime,
            mtime,
            ctime,
            btime: None,
            flags: InodeFlags::from_bits_truncate(self.attr) & FLAGS_SHOWN,
        }
    }
}

/// Stores attributes. The size and the number of clusters are not stored.
pub fn put_attr(bytes: &mut [u8], attr: &Attr) {
    put_u16(bytes, 0x28, attr.mode() as u16);
    put_links(bytes, attr.nlink);
    put_u32(bytes, 0x18, attr.uid);
    put_u32(bytes, 0x1C, attr.gid);
    for (time, sec_at, nsec_at) in
        [(attr.atime, 0x30, 0x64), (attr.mtime, 0x40, 0x6C), (attr.ctime, 0x38, 0x68)]
    {
        put_u64(bytes, sec_at, time.sec as u64);
        put_u32(bytes, nsec_at, time.nsec);
    }
    let kept = u32_at(bytes, 0x70) & !FLAGS_SHOWN.bits();
    put_u32(bytes, 0x70, kept | (attr.flags & FLAGS_SHOWN).bits());
}

/// Stores a link count.
pub fn put_links(bytes: &mut [u8], links: u32) {
    put_u16(bytes, 0x2A, links as u16);
    put_u16(bytes, 0x10, (links >> 16) as u16);
}

/// Changes bits of `i_dyn_features`.
pub fn put_features(bytes: &mut [u8], set: u16, clear: u16) {
    let features = u16_at(bytes, 0x76);
    put_u16(bytes, 0x76, features & !clear | set);
}

/// Flags of `i_attr` that are shown; they have the values of Linux.
pub const FLAGS_SHOWN: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC);
