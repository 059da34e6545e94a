//! The bytes on disk. Integers are little-endian. A block has 4096 bytes.
//!
//! | blocks | contents |
//! |---|---|
//! | 0 | [`RawSuper`], within the first sector, which a crash does not tear |
//! | `log_blocks` | the log: JBD2 |
//! | `inodes` | the inode table: a [`RawInode`] each. A free one has mode 0, keeps generation and counter |
//! | 1 | the bitmap: a bit a block, set where it is in use |
//! | the rest | file data, and directories: 64 [`RawName`] a block, where inode 0 is a free record |

#![allow(missing_docs)]

use ivers_block::{BlockNo, ByteOffset};
use ivers_vfs::epoch::{EpochRecord, RECORD_LEN};
use ivers_vfs::raises::Raises;
use ivers_vfs::{Attr, FileType, Ino, InodeFlags, NewInode, Timestamp};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Blocks of the largest file.
pub const MAX_BLOCKS: usize = 1003;
/// Blocks of the largest directory: few enough to free them in one transaction.
pub const MAX_DIR_BLOCKS: usize = 64;
/// Records in a block of a directory.
pub const NAMES: usize = BLOCK / size_of::<RawName>();
/// Longest name in bytes.
pub const NAME_MAX: usize = 59;
/// Stands for no block.
pub const HOLE: BlockNo = BlockNo(0);
/// The superblock.
pub const SUPER: ByteOffset = ByteOffset(0);
/// The root directory.
pub const ROOT: Ino = Ino(1);
/// The inode of a free record.
pub const FREE: Ino = Ino(0);
/// Blocks that a transaction changes, besides those of a deleted directory. A rename is the largest: four
/// inodes, two blocks of directories, the bitmap.
pub const CREDITS: u32 = 8;
/// Fewest blocks of the log: a transaction may have a quarter of them.
pub const MIN_LOG_BLOCKS: u32 = 4 * (CREDITS + MAX_DIR_BLOCKS as u32) + 64;
pub const MAGIC: [u8; 16] = *b"ivers example 01";

/// The superblock.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawSuper {
    pub magic: [u8; 16],
    pub blocks: U32,
    pub inodes: U32,
    pub log_blocks: U32,
    pub uuid: [u8; 16],
    /// See [`ivers_vfs::epoch`].
    pub epoch_record: [u8; RECORD_LEN],
    /// Checksum of all bytes before it.
    pub crc32c: U32,
}

/// An inode.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInode {
    /// Checksum of the inode number and all bytes after it. At the end of the block it would cancel the
    /// block's CRC-32C in the log: that would be the same for every version of an inode.
    pub crc32c: U32,
    /// Type and permission bits, as in `st_mode`.
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    /// Number of names; 0: an orphan, which the next mount frees.
    pub nlink: U32,
    pub size: U64,
    pub counter: U64,
    pub generation: U32,
    pub rdev: U32,
    pub flags: U32,
    /// The directory that has the name of this directory.
    pub parent: U32,
    /// Access, modification, change, creation, in seconds since 1970.
    pub times: [I64; 4],
    /// The block of each file block; of a symbolic link, the target.
    pub map: [U32; MAX_BLOCKS],
}

/// A record of a directory. `.` and `..` have none.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawName {
    pub ino: U32,
    pub len: u8,
    pub name: [u8; NAME_MAX],
}

const _: () = assert!(size_of::<RawSuper>() == 96);
const _: () = assert!(size_of::<RawInode>() == BLOCK && size_of::<RawName>() == 64);

impl RawSuper {
    fn checksum(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[..size_of::<Self>() - 4])
    }

    /// Sets the epoch record and the checksum.
    pub fn with_epoch(mut self, epoch: u64, open: bool) -> Self {
        // No other program writes this format, and nobody asks why the epoch rose.
        let (fingerprint, raises) = ([0; 16], Raises::default());
        self.epoch_record = EpochRecord { open, uuid: self.uuid, epoch, fingerprint, raises }.encode();
        self.crc32c = self.checksum().into();
        self
    }

    /// Checks everything but the epoch record.
    pub fn check(&self, device_bytes: u64) -> Result<(), &'static str> {
        let (blocks, inodes) = (self.blocks.get(), self.inodes.get());
        if self.magic != MAGIC {
            Err("no example filesystem of version 01")
        } else if self.crc32c.get() != self.checksum() {
            Err("bad checksum")
        } else if blocks as usize > BLOCK * 8 || u64::from(blocks) * BLOCK as u64 > device_bytes {
            Err("more blocks than the bitmap or the device has")
        } else if !(MIN_LOG_BLOCKS..blocks).contains(&self.log_blocks.get()) {
            Err("the log has a bad length")
        } else if inodes == 0 || inodes > blocks || self.data().0 >= u64::from(blocks) {
            Err("the inode table has a bad length")
        } else {
            Ok(())
        }
    }

    /// The block of an inode.
    pub fn inode_block(&self, ino: Ino) -> Option<BlockNo> {
        let inos = 1..=u64::from(self.inodes.get());
        inos.contains(&ino.0).then(|| BlockNo(u64::from(self.log_blocks.get()) + ino.0))
    }

    /// The block of the bitmap.
    pub fn bitmap(&self) -> BlockNo {
        BlockNo(1 + u64::from(self.log_blocks.get()) + u64::from(self.inodes.get()))
    }

    /// The first block that files may use.
    pub fn data(&self) -> BlockNo {
        self.bitmap() + 1
    }
}

impl RawInode {
    /// Covers the inode number, so that an inode in a wrong place is found.
    pub fn checksum(&self, ino: Ino) -> u32 {
        crc32c::crc32c_append(ino.0 as u32, &self.as_bytes()[4..])
    }

    pub fn sealed(mut self, ino: Ino) -> Self {
        self.crc32c = self.checksum(ino).into();
        self
    }

    pub fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.mode.get())
    }

    pub fn has_blocks(&self) -> bool {
        matches!(self.kind(), Some(FileType::Regular | FileType::Directory))
    }

    /// The block of a file block.
    pub fn block(&self, at: usize) -> BlockNo {
        self.map.get(at).map_or(HOLE, |block| BlockNo(block.get().into()))
    }

    pub fn set_block(&mut self, at: usize, block: BlockNo) {
        self.map[at] = (block.0 as u32).into();
    }

    /// Counts its blocks.
    pub fn blocks(&self) -> usize {
        (0..MAX_BLOCKS).filter(|at| self.has_blocks() && self.block(*at) != HOLE).count()
    }

    /// Sets counter and attributes, except the size: that is the size on disk.
    pub fn with_attr(mut self, attr: &Attr, counter: u64) -> Self {
        (self.mode, self.nlink) = (attr.mode().into(), attr.nlink.into());
        (self.uid, self.gid) = (attr.uid.into(), attr.gid.into());
        (self.rdev, self.flags) = (attr.rdev.into(), attr.flags.bits().into());
        let times = [attr.atime, attr.mtime, attr.ctime, attr.btime.unwrap_or_default()];
        (self.times, self.counter) = (times.map(|time| time.sec.into()), counter.into());
        self
    }

    /// The attributes, unless the type is unknown. The number of blocks is left out: the map has it.
    pub fn attr(&self) -> Option<Attr> {
        let [atime, mtime, ctime, btime] = self.times.map(|time| Timestamp { sec: time.get(), nsec: 0 });
        let new = NewInode::new(self.kind()?, btime).attr(self.nlink.get());
        let (perm, flags) = (self.mode.get() & 0o7777, InodeFlags::from_bits_truncate(self.flags.get()));
        let (uid, gid, rdev) = (self.uid.get(), self.gid.get(), self.rdev.get());
        Some(Attr { perm, uid, gid, size: self.size.get(), rdev, atime, mtime, ctime, flags, ..new })
    }
}

impl RawName {
    pub fn ino(&self) -> Ino {
        Ino(self.ino.get().into())
    }

    /// The name; empty if its length is bad.
    pub fn name(&self) -> &[u8] {
        self.name.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Whether it is free or has a name that may be stored.
    pub fn is_valid(&self) -> bool {
        let name = self.name();
        self.ino.get() == 0
            || !(matches!(name, b"" | b"." | b"..") || name.contains(&0) || name.contains(&b'/'))
    }
}
