//! Values of the fields of directories and of hash trees.

use super::raw::{RawDaHeader, RawDirDataHeader};
use super::superblock::Superblock;
use ivers_block::FileBlock;
use std::mem::{offset_of, size_of};

/// The longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// The byte of the fork at which the hashes start.
pub(crate) const LEAF_OFFSET: u64 = 1 << 35;
/// The byte of the fork at which the index of free space starts.
pub(crate) const FREE_OFFSET: u64 = 1 << 36;
/// The end of the index of free space.
pub(crate) const SPACE_END: u64 = 3 << 35;

/// Magics of the one leaf of a leaf directory, in version 5 and 4.
pub(crate) const LEAF1_MAGICS: [u16; 2] = [0x3df1, 0xd2f1];
/// Magics of the leaves of a node directory.
pub(crate) const LEAFN_MAGICS: [u16; 2] = [0x3dff, 0xd2ff];
/// Magics of a node of a hash tree.
pub(crate) const NODE_MAGICS: [u16; 2] = [0x3ebe, 0xfebe];
/// The most levels of nodes of a hash tree.
pub(crate) const MAX_DEPTH: usize = 8;

/// Magics of a data block.
pub(crate) const DATA_MAGICS: [&[u8; 4]; 2] = [b"XDD3", b"XD2D"];
/// Magics of a data block with its hashes.
pub(crate) const BLOCK_MAGICS: [&[u8; 4]; 2] = [b"XDB3", b"XD2B"];
/// Magics of a block of the index of free space.
pub(crate) const FREE_MAGICS: [&[u8; 4]; 2] = [b"XDF3", b"XD2F"];

/// Addresses of entries are in units of this many bytes.
pub(crate) const ADDRESS_UNIT: u64 = 8;
/// Starts a free range of a data block.
pub(crate) const FREE_TAG: u64 = 0xFFFF;
/// The largest free range of a data block that does not exist.
pub(crate) const NO_BEST: u16 = 0xFFFF;

/// Types of inodes in entries.
pub(crate) mod ftype {
    pub(crate) const DIRECTORY: u8 = 2;
    /// The whiteout of an overlay, which is a character device.
    pub(crate) const WHITEOUT: u8 = 8;
}

/// Bytes of an entry in a data block: inode number, length, name, type and the offset of the entry itself,
/// padded.
pub(crate) fn entry_bytes(sb: &Superblock, name_len: usize) -> usize {
    (8 + 1 + name_len + usize::from(sb.has_ftype()) + 2).next_multiple_of(ADDRESS_UNIT as usize)
}

/// The offset of the first entry in a data block. The header of version 4 is magic and largest free ranges.
pub(crate) fn data_start(sb: &Superblock) -> usize {
    if sb.is_v5() { size_of::<RawDirDataHeader>() } else { 4 + 12 }
}

/// Filesystem blocks of a directory block.
pub(crate) fn dir_unit(sb: &Superblock) -> u64 {
    u64::from(sb.dir_block_size / sb.block_size)
}

/// The file block with the root of the hashes.
pub(crate) fn leaf_root(sb: &Superblock) -> FileBlock {
    FileBlock(LEAF_OFFSET / u64::from(sb.block_size))
}

/// Bytes of the header that leaves and nodes of hash trees share.
pub(crate) fn da_header_bytes(sb: &Superblock) -> usize {
    if sb.is_v5() { size_of::<RawDaHeader>() } else { offset_of!(RawDaHeader, crc) }
}

/// The offset of the entries of a node of a hash tree, and of a leaf of a directory.
pub(crate) fn hash_entries_start(sb: &Superblock) -> usize {
    da_header_bytes(sb) + if sb.is_v5() { 8 } else { 4 }
}
