//! Types that drivers, the VFS and front ends share.

use bitflags::bitflags;

/// An inode number, unique in one mounted filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A point in time: seconds since 1970 and nanoseconds below a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub sec: i64,
    /// 0..1_000_000_000.
    pub nsec: u32,
}

impl Timestamp {
    /// Whether it is later than `other` by less than two clocks of one machine may differ: a few ticks.
    pub(crate) fn is_ahead_by_clock_skew(self, other: Self) -> bool {
        let ns = |time: Self| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        self > other && ns(self) - ns(other) < 100_000_000
    }

    /// Rounds down to a granularity, as a format with coarse times stores it. `granularity_ns` divides 10^9
    /// or is a multiple of it.
    pub fn truncate(self, granularity_ns: u32) -> Self {
        match granularity_ns {
            0 | 1 => self,
            g if g < 1_000_000_000 => Self { nsec: self.nsec - self.nsec % g, ..self },
            g => {
                let step = i64::from(g / 1_000_000_000);
                Self { sec: self.sec - self.sec.rem_euclid(step), nsec: 0 }
            }
        }
    }
}

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileType {
    /// The S_IFMT bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileType::Fifo => 0o010000,
            FileType::CharDevice => 0o020000,
            FileType::Directory => 0o040000,
            FileType::BlockDevice => 0o060000,
            FileType::Regular => 0o100000,
            FileType::Symlink => 0o120000,
            FileType::Socket => 0o140000,
        }
    }

    /// The type that the S_IFMT bits of a mode encode, if any.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170000 {
            0o010000 => FileType::Fifo,
            0o020000 => FileType::CharDevice,
            0o040000 => FileType::Directory,
            0o060000 => FileType::BlockDevice,
            0o100000 => FileType::Regular,
            0o120000 => FileType::Symlink,
            0o140000 => FileType::Socket,
            _ => return None,
        })
    }

    /// The number that directory entries of ext2 to ext4, XFS and btrfs store for the type.
    pub fn dirent_number(self) -> u8 {
        match self {
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::CharDevice => 3,
            FileType::BlockDevice => 4,
            FileType::Fifo => 5,
            FileType::Socket => 6,
            FileType::Symlink => 7,
        }
    }

    /// The type of a number that a directory entry stores, if any.
    pub fn from_dirent_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => FileType::Regular,
            2 => FileType::Directory,
            3 => FileType::CharDevice,
            4 => FileType::BlockDevice,
            5 => FileType::Fifo,
            6 => FileType::Socket,
            7 => FileType::Symlink,
            _ => return None,
        })
    }
}

bitflags! {
    /// Inode flags as FS_IOC_GETFLAGS shows them (`<linux/fs.h>`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct InodeFlags: u32 {
        /// Writes reach the device before they return.
        const SYNC = 0x8;
        /// Cannot be changed.
        const IMMUTABLE = 0x10;
        /// Can only be appended to.
        const APPEND = 0x20;
        /// Left out by dump(8).
        const NODUMP = 0x40;
        /// Its access time is not updated.
        const NOATIME = 0x80;
        /// Directory changes reach the device before they return.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy, for the allocator.
        const TOPDIR = 0x2_0000;
        /// New children take the project id.
        const PROJINHERIT = 0x2000_0000;
    }
}

/// The attributes of an inode that every format has, as they are in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Its type; never changes.
    pub kind: FileType,
    /// The permission bits, set-id and sticky bits (07777).
    pub perm: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The project id; 0 where the format has none.
    pub project: u32,
    /// Link count.
    pub nlink: u32,
    /// Size in bytes as a reader sees it now, including appends that are not written back.
    pub size: u64,
    /// Space on the device in units of 512 bytes. [`crate::Vfs::stat`] adds reserved space.
    pub blocks_512: u64,
    /// The device number of a device node, in the kernel's 32-bit encoding (`makedev` with 12/20 bits).
    pub rdev: u32,
    /// Time of the last read.
    pub atime: Timestamp,
    /// Time of the last change of the data.
    pub mtime: Timestamp,
    /// Time of the last change of anything.
    pub ctime: Timestamp,
    /// Time of creation, where the format stores it.
    pub btime: Option<Timestamp>,
    /// Inode flags.
    pub flags: InodeFlags,
}

impl Attr {
    /// `st_mode`: type and permission.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }
}

/// Which promises of the change attribute a filesystem keeps (C1 to C4 of the contract).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeSemantics {
    /// A change of data changes it.
    pub data: bool,
    /// A change of metadata changes it.
    pub metadata: bool,
    /// It only grows.
    pub monotonic: bool,
    /// It is the same after a clean remount.
    pub persistent: bool,
    /// After a crash no earlier value vouches for other contents.
    pub crash_safe: bool,
}

impl ChangeSemantics {
    /// The promises of a format that stores no counter: everything until unmount, nothing beyond.
    pub const WITHIN_A_MOUNT: Self =
        Self { data: true, metadata: true, monotonic: true, persistent: false, crash_safe: false };
}

/// How long change attributes are valid if they are not [`persistent`](ChangeSemantics::persistent).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidUntil {
    /// Until the filesystem is unmounted. The text says why stored change attributes are not served; `None`:
    /// the format stores none.
    Unmount(Option<&'static str>),
    /// Until a program writes to the filesystem. Each writer changes these bytes.
    Write([u8; 16]),
}

/// The change attribute of a directory before and after one namespace change, atomic in the sense of RFC
/// 8881, section 3.3.3 (`change_info4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeInfo {
    /// Before the change.
    pub before: u64,
    /// After it.
    pub after: u64,
}

/// A range of a file's block map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedRange {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// What it contains.
    pub kind: RangeKind,
}

/// What a range of a file contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKind {
    /// No blocks: reads as zeros.
    Hole,
    /// Blocks with data.
    Data,
    /// Blocks that are allocated and read as zeros.
    Unwritten,
}

bitflags! {
    /// What `fallocate` does; no flag means allocate.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FallocateMode: u32 {
        /// Keep the size.
        const KEEP_SIZE = 0x01;
        /// Free the range: it reads as zeros.
        const PUNCH_HOLE = 0x02;
        /// Remove the range and close the gap.
        const COLLAPSE_RANGE = 0x08;
        /// The range reads as zeros and stays allocated.
        const ZERO_RANGE = 0x10;
        /// Insert a hole and move what follows.
        const INSERT_RANGE = 0x20;
    }
}

impl FallocateMode {
    /// The flags of which a call has at most one. Without one it allocates.
    pub const KINDS: Self =
        Self::PUNCH_HOLE.union(Self::COLLAPSE_RANGE).union(Self::ZERO_RANGE).union(Self::INSERT_RANGE);
}

/// Free space and inodes, as statvfs(3) reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes.
    pub block_size: u32,
    /// Blocks in all, without overhead.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks available to ordinary users.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// One entry that a driver emits from a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode.
    pub ino: Ino,
    /// The name, as stored on the device.
    pub name: &'a [u8],
    /// Its type, where the directory stores it.
    pub kind: Option<FileType>,
    /// The cursor after this entry. Below 2^63 + 2^32, since front ends add small numbers.
    pub next: u64,
}
