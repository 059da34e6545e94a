//! What a caller asks for, and what it gets.

use super::features::Features;

/// Options of a new filesystem.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// Block size in bytes: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Sector size in bytes: a power of two from 512 to 32768, at most a block. A device must be able to
    /// write such a sector alone.
    pub sector_size: u32,
    /// Inode size in bytes: a power of two from 512 to 2048, at most half a block.
    pub inode_size: u32,
    /// Number of allocation groups; `None`: by size.
    pub groups: Option<u32>,
    /// Bytes of the log: a multiple of the block size; `None`: by size.
    pub log_bytes: Option<u64>,
    /// The optional features.
    pub features: Features,
    /// The label, at most 12 bytes.
    pub label: String,
    /// The UUID. Linux does not mount one of zeros.
    pub uuid: [u8; 16],
    /// Seconds since 1970: the times of the root directory.
    pub timestamp: u32,
    /// Owner of the root directory: user and group.
    pub root_owner: (u32, u32),
    /// Allow less than 300 MiB, and a log of less than 64 MiB.
    pub small: bool,
    /// The device reads as zeros: the log needs no zeroing.
    pub zeroed: bool,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            block_size: 4096,
            sector_size: 512,
            inode_size: 512,
            groups: None,
            log_bytes: None,
            features: Features::default(),
            label: String::new(),
            uuid: [0; 16],
            timestamp: 0,
            root_owner: (0, 0),
            small: false,
            zeroed: false,
        }
    }
}

/// The sizes of a new filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks. A rest that is too small for an allocation group is not used.
    pub blocks: u64,
    /// Number of allocation groups.
    pub groups: u32,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Sector size in bytes.
    pub sector_size: u32,
    /// Inode size in bytes.
    pub inode_size: u32,
    /// Names of the features.
    pub features: Vec<String>,
}
