//! The headers of an allocation group: superblock, AGF, AGI and AGFL, a sector each.

use super::geometry::{Plan, Tree};
use super::options::MkfsOptions;
use super::space::Group;
use crate::layout::bytes::{MAGIC_AGF, MAGIC_AGFL, MAGIC_AGI, MAGIC_SUPERBLOCK, NULL_AGBLOCK, NULL_AGINO};
use crate::layout::checksum::{AGF, AGFL, AGI, SUPERBLOCK, SelfDescription};
use crate::layout::features::{Features2, Incompat, RoCompat, Version};
use crate::layout::raw::{RawAgf, RawAgfl, RawAgi, RawSuperblock};
use zerocopy::{FromZeros, IntoBytes};

/// Sizes of the smallest extent of a realtime device, and of the smallest directory block.
const REALTIME_EXTENT_BYTES: u32 = 4096;
const DIRECTORY_BLOCK_BYTES: u32 = 4096;
/// The list of free blocks starts at its second place, as that of mkfs.xfs.
const FREE_LIST_FIRST: u32 = 1;
const TIB: u64 = 1 << 40;

/// What the superblock says beside the sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    pub root: u64,
    /// Inodes in use.
    pub used_inodes: u32,
    pub free_blocks: u64,
}

/// Makes a sector of a header: its LSN is 0, from before the log.
fn sector(plan: &Plan, head: &[u8], description: &SelfDescription) -> Vec<u8> {
    let mut bytes = head.to_vec();
    bytes.resize(plan.sector_size as usize, 0);
    description.seal(&mut bytes, 0);
    bytes
}

/// The block of the format that is a block of a group.
pub(super) fn fs_block(plan: &Plan, group: u32, block: u32) -> u64 {
    u64::from(group) << group_block_bits(plan) | u64::from(block)
}

fn group_block_bits(plan: &Plan) -> u32 {
    plan.group_blocks.next_power_of_two().ilog2()
}

/// The superblock, which is the same in all groups.
pub(super) fn superblock(plan: &Plan, options: &MkfsOptions, totals: &Totals) -> Vec<u8> {
    let inodes_per_block = plan.block_size / plan.inode_size;
    let (inode_alignment, sparse_alignment) = plan.inode_alignment(options);
    let mut version = Version::NLINK
        | Version::ALIGN
        | Version::LOGV2
        | Version::EXTFLG
        | Version::DIRV2
        | Version::MOREBITS;
    let features2 = Features2::LAZYSBCOUNT | Features2::ATTR2 | Features2::PROJID32 | Features2::CRC;
    if options.features.has_incompat(Incompat::PARENT) {
        // A parent pointer is an attribute.
        version |= Version::ATTR;
    }
    let mut label = [0; 12];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());

    let mut raw = RawSuperblock::new_zeroed();
    raw.sb_magicnum = MAGIC_SUPERBLOCK.into();
    raw.sb_blocksize = plan.block_size.into();
    raw.sb_dblocks = plan.blocks.into();
    raw.sb_uuid = options.uuid;
    raw.sb_logstart = fs_block(plan, plan.log_group(), plan.fixed_blocks()).into();
    raw.sb_rootino = totals.root.into();
    raw.sb_rbmino = (totals.root + 1).into();
    raw.sb_rsumino = (totals.root + 2).into();
    raw.sb_rextsize = (REALTIME_EXTENT_BYTES / plan.block_size).max(1).into();
    raw.sb_agblocks = plan.group_blocks.into();
    raw.sb_agcount = plan.groups.into();
    raw.sb_logblocks = plan.log_blocks.into();
    raw.sb_sectsize = (plan.sector_size as u16).into();
    raw.sb_inodesize = (plan.inode_size as u16).into();
    raw.sb_inopblock = (inodes_per_block as u16).into();
    raw.sb_fname = label;
    raw.sb_blocklog = plan.block_size.ilog2() as u8;
    raw.sb_sectlog = plan.sector_size.ilog2() as u8;
    raw.sb_inodelog = plan.inode_size.ilog2() as u8;
    raw.sb_inopblog = inodes_per_block.ilog2() as u8;
    raw.sb_agblklog = group_block_bits(plan) as u8;
    raw.sb_imax_pct = inode_percent(plan.blocks * u64::from(plan.block_size));
    raw.sb_icount = u64::from(plan.chunk_inodes()).into();
    raw.sb_ifree = u64::from(plan.chunk_inodes() - totals.used_inodes).into();
    raw.sb_fdblocks = totals.free_blocks.into();
    raw.sb_inoalignmt = inode_alignment.into();
    raw.sb_dirblklog = (DIRECTORY_BLOCK_BYTES / plan.block_size).max(1).ilog2() as u8;
    raw.sb_logsunit = plan.log_unit().unwrap_or(1).into();
    if plan.log_unit().is_some() {
        version |= Version::SECTOR;
        raw.sb_logsectlog = raw.sb_sectlog;
        raw.sb_logsectsize = raw.sb_sectsize;
    }
    raw.sb_versionnum = (version.bits() | 5).into();
    raw.sb_features2 = features2.bits().into();
    // A copy for old versions of Linux, which had it at another place.
    raw.sb_bad_features2 = raw.sb_features2;
    raw.sb_features_ro_compat = options.features.ro_compat.bits().into();
    raw.sb_features_incompat = options.features.incompat.bits().into();
    raw.sb_spino_align = sparse_alignment.into();
    sector(plan, raw.as_bytes(), &SUPERBLOCK)
}

/// The part of the blocks that may be inodes, as mkfs.xfs has it.
fn inode_percent(bytes: u64) -> u8 {
    match bytes {
        ..TIB => 25,
        TIB..FIFTY_TIB => 5,
        _ => 1,
    }
}

const FIFTY_TIB: u64 = 50 * TIB;

pub(super) fn agf(plan: &Plan, options: &MkfsOptions, group: &Group) -> Vec<u8> {
    let root = |tree| plan.tree_root(tree).unwrap_or(0);
    let level = |tree| u32::from(plan.tree_root(tree).is_some());
    let mut raw = RawAgf::new_zeroed();
    raw.agf_magicnum = MAGIC_AGF.into();
    raw.agf_versionnum = 1.into();
    raw.agf_seqno = group.number.into();
    raw.agf_length = group.len.into();
    let trees = [Tree::FreeByBlock, Tree::FreeBySize, Tree::ReverseMap];
    raw.agf_roots = trees.map(|tree| root(tree).into());
    raw.agf_levels = trees.map(|tree| level(tree).into());
    raw.agf_flfirst = FREE_LIST_FIRST.into();
    raw.agf_fllast = (FREE_LIST_FIRST + plan.free_list - 1).into();
    raw.agf_flcount = plan.free_list.into();
    raw.agf_freeblks = group.free_blocks().into();
    raw.agf_longest = group.free.iter().map(|run| run.end - run.start).max().unwrap_or(0).into();
    raw.agf_uuid = options.uuid;
    // The roots alone.
    raw.agf_rmap_blocks = level(Tree::ReverseMap).into();
    raw.agf_refcount_blocks = level(Tree::ReferenceCounts).into();
    raw.agf_refcount_root = root(Tree::ReferenceCounts).into();
    raw.agf_refcount_level = level(Tree::ReferenceCounts).into();
    sector(plan, raw.as_bytes(), &AGF)
}

/// `chunk`: the first inode of the group's only chunk, and its inodes and free inodes.
pub(super) fn agi(
    plan: &Plan,
    options: &MkfsOptions,
    group: &Group,
    chunk: Option<(u32, u32, u32)>,
) -> Vec<u8> {
    let counted = options.features.has(RoCompat::INOBTCNT);
    let free_root = plan.tree_root(Tree::FreeInodes);
    let (first, count, free) = chunk.unwrap_or((NULL_AGINO, 0, 0));
    let mut raw = RawAgi::new_zeroed();
    raw.agi_magicnum = MAGIC_AGI.into();
    raw.agi_versionnum = 1.into();
    raw.agi_seqno = group.number.into();
    raw.agi_length = group.len.into();
    raw.agi_count = count.into();
    raw.agi_root = plan.tree_root(Tree::Inodes).unwrap_or(0).into();
    raw.agi_level = 1.into();
    raw.agi_freecount = free.into();
    raw.agi_newino = first.into();
    raw.agi_dirino = NULL_AGINO.into();
    raw.agi_unlinked = [NULL_AGINO.into(); 64];
    raw.agi_uuid = options.uuid;
    raw.agi_free_root = free_root.unwrap_or(0).into();
    raw.agi_free_level = u32::from(free_root.is_some()).into();
    raw.agi_iblocks = u32::from(counted).into();
    raw.agi_fblocks = u32::from(counted && free_root.is_some()).into();
    sector(plan, raw.as_bytes(), &AGI)
}

pub(super) fn agfl(plan: &Plan, options: &MkfsOptions, group: &Group) -> Vec<u8> {
    let head = RawAgfl {
        agfl_magicnum: MAGIC_AGFL.into(),
        agfl_seqno: group.number.into(),
        agfl_uuid: options.uuid,
        agfl_lsn: 0.into(),
        agfl_crc: 0.into(),
    };
    let places = (plan.sector_size as usize - size_of::<RawAgfl>()) / size_of::<u32>();
    let mut blocks = vec![NULL_AGBLOCK; places];
    for (place, block) in blocks[FREE_LIST_FIRST as usize..].iter_mut().zip(group.free_list.clone()) {
        *place = block;
    }
    let blocks: Vec<u8> = blocks.into_iter().flat_map(u32::to_be_bytes).collect();
    sector(plan, &[head.as_bytes(), &blocks].concat(), &AGFL)
}
