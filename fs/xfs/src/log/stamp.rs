//! LSN and checksum of a unit that is about to be written in place.

use crate::layout::bytes::{MAGIC_INODE, number};
use crate::layout::checksum::{SelfDescription, is_whole_inode, seal_inode};
use crate::layout::raw::RawDinode;
use crate::layout::superblock::Superblock;
use ivers_block::BlockNo;
use std::mem::offset_of;

/// The number of sectors at the start of a group that are buffers of their own: superblock, AGF, AGI, AGFL.
const HEADS: u64 = 4;

/// The number of sectors in the blocks of a buffer that are heads of a group. `None` if it has none.
pub(super) fn heads_in(sb: &Superblock, blocks: &[BlockNo]) -> Option<usize> {
    let [block] = blocks else { return None };
    let per_block = u64::from(sb.block_size / sb.sector_size);
    let first = block.0 % u64::from(sb.ag_blocks) * per_block;
    (first < HEADS).then(|| (HEADS - first).min(per_block) as usize)
}

/// Stores an LSN and the checksum in each structure of a unit: the write hook of the journal. An LSN of 0 is
/// for changes that no log has.
pub fn stamp(sb: &Superblock, blocks: &[BlockNo], lsn: u64, bytes: &mut [u8]) {
    if let Some(heads) = heads_in(sb, blocks) {
        for sector in bytes.chunks_exact_mut(sb.sector_size as usize).take(heads) {
            if let Some(kind) = SelfDescription::of(sector) {
                kind.seal(sector, lsn);
            }
        }
    } else if number(bytes, 0, 2) == Some(MAGIC_INODE.into()) {
        stamp_inodes(sb, lsn, bytes);
    } else if let Some(kind) = SelfDescription::of(bytes) {
        kind.seal(bytes, lsn);
    }
}

/// Stores an LSN and the checksum in each inode of a cluster. One that was damaged when it was read stays so.
pub(super) fn stamp_inodes(sb: &Superblock, lsn: u64, bytes: &mut [u8]) {
    for inode in bytes.chunks_exact_mut(sb.inode_size as usize) {
        if number(inode, 0, 2) == Some(MAGIC_INODE.into()) && is_whole_inode(inode) {
            inode[offset_of!(RawDinode, di_lsn)..][..8].copy_from_slice(&lsn.to_be_bytes());
            seal_inode(inode);
        }
    }
}
