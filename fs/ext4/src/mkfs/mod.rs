//! Making an ext4 filesystem.
//!
//! The result has the features that e2fsprogs 1.47 enables by default: journal, extents, 64bit, flex_bg, checksums of all
//! metadata, hashed directories, room to grow online (resize inode). Every byte follows from the options: the same
//! options give the same image.

mod geometry;
mod space;
mod write;

pub use geometry::MkfsOptions;

use geometry::Geometry;
use ivers_block::Device;
use ivers_vfs::Result;
use std::sync::Arc;

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// Bytes a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// Blocks of the journal; 0: none.
    pub journal_blocks: u32,
}

/// Check that a filesystem with these options fits a device of this size; nothing is touched.
pub fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<()> {
    Geometry::plan(size_bytes, options).map(drop)
}

/// Make a filesystem that fills the device. All checks pass before the first byte is written; when it returns, the
/// filesystem is durable.
pub fn mkfs(device: &Arc<dyn Device>, options: &MkfsOptions) -> Result<MkfsReport> {
    let geometry = Geometry::plan(device.size_bytes(), options)?;
    write::write(device.as_ref(), &geometry, options)
}

#[cfg(test)]
mod tests;
