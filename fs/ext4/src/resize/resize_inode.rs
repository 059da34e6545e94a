//! The resize inode: its double-indirect block maps the blocks that are reserved for descriptors. Each of
//! them contains, as an indirect block, the list of its copies in other groups.

use super::plan::Plan;
use crate::dir::linear::{le32, put32};
use crate::fs::{Ext4, Handle};
use crate::layout::features::Compat;
use crate::layout::inode::RESIZE_INO;
use crate::layout::inode::offset::{I_BLOCK, I_BLOCKS_LO};
use crate::layout::superblock::Superblock;
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};

/// The double-indirect block in a slot.
const DOUBLE_INDIRECT: usize = I_BLOCK + 13 * 4;

/// Returns the double-indirect block, which must map exactly the reserved blocks. `None`: no blocks are
/// reserved.
pub(super) fn checked_double(fs: &Ext4, sb: &Superblock) -> Result<Option<BlockNo>> {
    if !sb.compat.contains(Compat::RESIZE_INODE) || sb.reserved_gdt_blocks() == 0 {
        return Ok(None);
    }
    let wrong = || {
        let place = format!("{}, inode {RESIZE_INO}", fs.place);
        Error::corrupt("it does not map the blocks reserved for descriptors: run e2fsck", place)
    };
    let slot = fs.raw_inode(RESIZE_INO)?;
    let double = BlockNo(le32(&slot, DOUBLE_INDIRECT).into());
    if !sb.is_valid_block(double) || fs.own_block_in(double, 1).is_some() {
        return Err(wrong());
    }
    let bytes = fs.block(double)?.read();
    let pointers: Vec<u32> = bytes.chunks_exact(4).map(|word| le32(word, 0)).collect();
    let first = sb.superblock_place().0 + 1;
    let mut reserved = u64::from(sb.desc_blocks())..u64::from(sb.desc_blocks() + sb.reserved_gdt_blocks());
    let maps_all = reserved.all(|nth| u64::from(pointers[nth as usize % pointers.len()]) == (first + nth).0);
    if maps_all { Ok(Some(double)) } else { Err(wrong()) }
}

/// Writes the list of the copies of a reserved block.
pub(super) fn write_list(fs: &Ext4, h: &mut Handle, sb: &Superblock, block: BlockNo) -> Result<()> {
    let buffer = fs.block(block)?;
    h.modify(&buffer, |bytes| {
        bytes.fill(0);
        for (bytes, group) in bytes.chunks_exact_mut(4).zip(sb.copies()) {
            let copy = block.0 + u64::from(group) * u64::from(sb.blocks_per_group);
            put32(bytes, 0, copy as u32);
        }
    })
}

/// Maps the blocks that are reserved after the change, and counts their copies.
pub(super) fn update(fs: &Ext4, h: &mut Handle, plan: &Plan, double: BlockNo) -> Result<()> {
    let Plan { old, new, .. } = plan;
    fs.modify_slot(h, RESIZE_INO, |slot| {
        let copies = new.copies().count() as u64;
        let blocks = 1 + u64::from(new.reserved_gdt_blocks()) * (1 + copies);
        let sectors = (blocks << (new.block_bits - 9)) as u32;
        put32(slot, I_BLOCKS_LO, sectors);
    })?;
    let pointers = u64::from(new.block_size / 4);
    let first = new.superblock_place().0 + 1;
    let reserved = u64::from(new.desc_blocks())..u64::from(new.desc_blocks() + new.reserved_gdt_blocks());
    let all = u64::from(old.desc_blocks().min(new.desc_blocks()))
        ..u64::from((old.desc_blocks() + old.reserved_gdt_blocks()).max(new.desc_blocks()));
    let buffer = fs.block(double)?;
    h.modify(&buffer, |bytes| {
        // The positions wrap: clear before setting.
        for nth in all.clone().filter(|nth| !reserved.contains(nth)).chain(reserved.clone()) {
            let at = (nth % pointers) as usize * 4;
            let block = if reserved.contains(&nth) { (first + nth).0 as u32 } else { 0 };
            put32(bytes, at, block);
        }
    })
}

/// Moves the double-indirect block if it lies at `limit` or after it.
pub(super) fn relocate(fs: &Ext4, limit: BlockNo) -> Result<()> {
    let Some(double) = checked_double(fs, &fs.sb)?.filter(|&double| double >= limit) else {
        return Ok(());
    };
    let inode = ivers_vfs::Inode::detached(fs.load(RESIZE_INO, true)?);
    let mut h = fs.begin(16)?;
    let new = fs.alloc_meta_block(&mut h, &inode, BlockNo(0))?;
    let bytes = fs.block(double)?.read().to_vec();
    let copy = fs.new_block(new)?;
    h.modify(&copy, |block| block.copy_from_slice(&bytes))?;
    fs.modify_slot(&mut h, RESIZE_INO, |slot| {
        put32(slot, DOUBLE_INDIRECT, new.0 as u32);
    })?;
    fs.free_blocks(&mut h, double, 1, true)
}
