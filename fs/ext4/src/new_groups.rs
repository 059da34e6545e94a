//! Groups of a new filesystem, and those that a filesystem gains: where their metadata lies, and its first
//! contents.

use crate::layout::Superblock;
use crate::layout::csum::crc32c;
use crate::layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, ITABLE_ZEROED};
use crate::layout::raw::RawGroupDesc;
use crate::mkfs::space::Space;
use ivers_block::BlockNo;
use ivers_vfs::Result;
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

/// The positions of a group's own metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub block_bitmap: BlockNo,
    pub inode_bitmap: BlockNo,
    pub inode_table: BlockNo,
}

/// A group whose inode table is empty, or has only the first inodes in use.
pub(crate) struct NewGroup {
    /// The descriptor, `desc_size` bytes.
    pub desc: Vec<u8>,
    pub free_blocks: u32,
    /// Absent if the descriptor says that it was never written.
    pub block_bitmap: Option<Vec<u8>>,
    /// Absent if the descriptor says that it was never written.
    pub inode_bitmap: Option<Vec<u8>>,
}

/// Places the metadata of new groups: copies of superblock and descriptors first, then the bitmaps and
/// tables of each flexible group together.
pub(crate) fn place(sb: &Superblock, space: &mut Space, groups: Range<u32>) -> Result<Vec<Places>> {
    for group in groups.clone() {
        let len = sb.base_meta_blocks(group);
        if len > 0 {
            space.take(sb.group_first_block(group), u64::from(len));
        }
    }
    let mut all = Vec::new();
    let per_flex = 1_u32 << sb.log_groups_per_flex.min(16);
    let mut first = groups.start;
    while first < groups.end {
        let next_flex = (first / per_flex + 1).saturating_mul(per_flex);
        let members = first..groups.end.min(next_flex);
        let goal = sb.group_first_block(first);
        let mut together = |len: u64| -> Result<Vec<BlockNo>> {
            members.clone().map(|_| space.allocate(goal, len)).collect()
        };
        let block_bitmaps = together(1)?;
        let inode_bitmaps = together(1)?;
        let tables = together(u64::from(sb.inode_table_blocks))?;
        for ((block_bitmap, inode_bitmap), inode_table) in
            block_bitmaps.into_iter().zip(inode_bitmaps).zip(tables)
        {
            all.push(Places { block_bitmap, inode_bitmap, inode_table });
        }
        first = next_flex;
    }
    Ok(all)
}

/// What [`describe`] must know about a group.
pub(crate) struct State {
    pub places: Places,
    /// Inodes in use, from the first of the table on.
    pub used_inodes: u32,
    /// Directories among them.
    pub directories: u32,
    /// The table reads as zeros.
    pub table_zeroed: bool,
}

/// Returns the descriptor and the bitmaps of a group, whose used blocks are those of `space`.
pub(crate) fn describe(sb: &Superblock, space: &Space, group: u32, state: &State) -> NewGroup {
    let start = sb.group_first_block(group);
    let len = u64::from(sb.group_blocks(group));
    let per_group = sb.inodes_per_group;
    let csum_of = |bits: &[u8], count: u32| {
        if sb.has_csum() { crc32c(sb.csum_seed, &bits[..count as usize / 8]) } else { 0 }
    };
    let mut block_bits = vec![0_u8; sb.block_size as usize];
    let mut used = 0;
    for (first, end) in space.used_in(start, start + len) {
        used += end - first;
        (first - start..end - start).for_each(|bit| set_bit(&mut block_bits, bit));
    }
    (len..block_bits.len() as u64 * 8).for_each(|bit| set_bit(&mut block_bits, bit));
    let mut inode_bits = vec![0_u8; sb.block_size as usize];
    (0..u64::from(state.used_inodes)).for_each(|bit| set_bit(&mut inode_bits, bit));
    (u64::from(per_group)..inode_bits.len() as u64 * 8).for_each(|bit| set_bit(&mut inode_bits, bit));

    let has_flags = sb.has_group_csum();
    // With only copies of superblock and descriptors, the bitmap follows from the superblock. Always write
    // the last group's: that group may be shorter.
    let untouched = has_flags && used == u64::from(sb.base_meta_blocks(group)) && group + 1 < sb.groups();
    let block_bitmap = (!untouched).then_some(block_bits);
    let inode_bitmap = (!has_flags || state.used_inodes > 0).then_some(inode_bits);
    let mut flags = if state.table_zeroed { ITABLE_ZEROED } else { 0 };
    flags |= if block_bitmap.is_none() { BLOCK_UNINIT } else { 0 };
    flags |= if inode_bitmap.is_none() { INODE_UNINIT } else { 0 };
    let free_inodes = per_group - state.used_inodes;
    let counts = GroupDesc {
        block_bitmap: state.places.block_bitmap,
        inode_bitmap: state.places.inode_bitmap,
        inode_table: state.places.inode_table,
        free_blocks: (len - used) as u32,
        free_inodes,
        used_dirs: state.directories,
        itable_unused: if has_flags { free_inodes } else { 0 },
        flags,
        block_bitmap_csum: block_bitmap.as_ref().map_or(0, |bits| csum_of(bits, sb.blocks_per_group)),
        inode_bitmap_csum: inode_bitmap.as_ref().map_or(0, |bits| csum_of(bits, per_group)),
    };
    let mut raw = RawGroupDesc::new_zeroed();
    let split = |block: BlockNo| ((block.0 as u32).into(), ((block.0 >> 32) as u32).into());
    (raw.bg_block_bitmap_lo, raw.bg_block_bitmap_hi) = split(counts.block_bitmap);
    (raw.bg_inode_bitmap_lo, raw.bg_inode_bitmap_hi) = split(counts.inode_bitmap);
    (raw.bg_inode_table_lo, raw.bg_inode_table_hi) = split(counts.inode_table);
    let mut desc = vec![0; sb.desc_size as usize];
    let len = desc.len().min(raw.as_bytes().len());
    desc[..len].copy_from_slice(&raw.as_bytes()[..len]);
    counts.encode(sb, group, &mut desc);
    NewGroup { desc, free_blocks: counts.free_blocks, block_bitmap, inode_bitmap }
}

fn set_bit(bitmap: &mut [u8], bit: u64) {
    bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
}
