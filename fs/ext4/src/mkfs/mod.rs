//! Making an ext2, ext3 or ext4 filesystem.
//!
//! The result has the default features of e2fsprogs 1.47. All have hashed directories and online growing
//! (resize inode); ext3 and ext4 have a journal; ext4 has extents, 64bit, flex_bg, and checksums of all
//! metadata. Other features are chosen by name. The same options give the same image, byte for byte.

mod block_map;
mod features;
mod geometry;
pub(crate) mod space;
mod write;

pub use features::FeatureChanges;
pub use geometry::{ExtType, MkfsOptions};

use geometry::Geometry;
use ivers_block::Device;
use ivers_vfs::Result;
use std::sync::Arc;

/// The sizes of the new filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Number of block groups.
    pub groups: u32,
    /// Blocks of the journal; 0: none.
    pub journal_blocks: u32,
}

/// Checks that a filesystem with these options fits a device of this size; writes nothing.
pub fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<()> {
    Geometry::plan(size_bytes, options).map(drop)
}

/// Makes a filesystem that fills the device. All checks pass before the first write. The filesystem is
/// durable on return.
pub fn mkfs(device: &Arc<dyn Device>, options: &MkfsOptions) -> Result<MkfsReport> {
    let geometry = Geometry::plan(device.size_bytes(), options)?;
    write::write(device.as_ref(), &geometry, options)
}

#[cfg(test)]
mod tests;
