//! What a caller asks for, and what it gets.

use ivers_vfs::Timestamp;

/// The width of an entry of the file allocation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FatType {
    /// Up to 4,084 clusters.
    Fat12,
    /// 4,085 to 65,524 clusters.
    Fat16,
    /// 65,525 clusters or more.
    Fat32,
}

impl FatType {
    /// The name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fat12 => "fat12",
            Self::Fat16 => "fat16",
            Self::Fat32 => "fat32",
        }
    }

    pub(super) fn bits(self) -> u64 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 => 32,
        }
    }

    /// `BS_FilSysType`.
    pub(super) fn stored_name(self) -> [u8; 8] {
        *match self {
            Self::Fat12 => b"FAT12   ",
            Self::Fat16 => b"FAT16   ",
            Self::Fat32 => b"FAT32   ",
        }
    }
}

/// Options of a new volume.
#[derive(Debug, Clone, Default)]
pub struct MkfsOptions {
    /// The type; `None`: by size, FAT32 from 512 MiB.
    pub fat_type: Option<FatType>,
    /// Bytes of a cluster: a power of two from 512 to 64 KiB; `None`: by size.
    pub cluster_bytes: Option<u32>,
    /// The label: at most 11 characters, stored in upper case. Empty: none.
    pub label: String,
    /// The serial number.
    pub volume_id: u32,
    /// The time of creation, which only a label stores.
    pub time: Timestamp,
    /// The device reads as zeros: the tables need no zeroing.
    pub zeroed: bool,
}

/// The sizes of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// The type.
    pub fat_type: FatType,
    /// Bytes of a cluster.
    pub cluster_bytes: u32,
    /// Number of clusters.
    pub clusters: u32,
    /// Slots of the root directory; 0 in FAT32, whose root directory is a chain of clusters.
    pub root_entries: u32,
}
