//! Growing a filesystem that is not mounted.
//!
//! The order of writes, and what a crash between two of them leaves:
//!
//! 1. The metadata of the new groups, past the old end: nothing refers to it yet. A flush.
//! 2. The lists of the resize inode: for each reserved block, where its copies lie. With a large journal this
//!    is part of the next transaction. With a small one it may be durable before: then e2fsck rebuilds the
//!    resize inode, and a second run of this writes the same lists.
//! 3. One transaction with descriptors, bitmap and count of the group that was last, the resize inode, and
//!    the sizes in the superblock. A crash before its commit leaves the old size, one after it the new size.
//! 4. Copies of superblock and descriptors. Until then they have the old size; e2fsck updates them, and so
//!    does a second run with the same size.
//!
//! Blocks in use are never moved or overwritten. Without a journal the writes of step 3 have no order; the
//! superblock is marked as not cleanly unmounted meanwhile, so that every system asks for e2fsck, which
//! repairs them.

use super::plan::{Plan, decode};
use crate::fs::{Ext4, Handle};
use crate::groups::fill;
use crate::layout::features::Compat;
use crate::layout::group::BLOCK_UNINIT;
use crate::layout::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSET};
use crate::mkfs::space::Space;
use crate::new_groups::{self, State};
use crate::open::OpenOptions;
use ivers_block::{BlockNo, ByteOffset, Device};
use ivers_vfs::{Error, FileSystem, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The inode that maps the blocks reserved for descriptors.
const RESIZE_INO: u32 = 7;
/// The position of the double-indirect block in `i_block`.
const DOUBLE_INDIRECT: usize = 13 * 4;
/// `i_block` in a slot.
const I_BLOCK: usize = 0x28;
/// `i_blocks_lo` in a slot.
const I_BLOCKS_LO: usize = 0x1C;

/// The sizes of a filesystem that was resized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeReport {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks before.
    pub old_blocks: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Number of block groups.
    pub groups: u32,
}

impl ResizeReport {
    fn of(plan: &Plan) -> Self {
        Self {
            block_size: plan.new.block_size,
            old_blocks: plan.old.blocks_count,
            blocks: plan.new.blocks_count,
            inodes: plan.new.inodes_count,
            groups: plan.new.groups,
        }
    }
}

/// Returns the sizes after [`grow`] with the same size; writes nothing. The device may be smaller.
pub fn plan_grow(device: &dyn Device, new_bytes: u64, place: &str) -> Result<ResizeReport> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    if device.size_bytes() < (SUPERBLOCK_OFFSET + SUPERBLOCK_LEN as u64).0 {
        return Err(Error::Incompatible(format!("{place} holds no ext2, ext3 or ext4 filesystem")));
    }
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let old = crate::layout::Superblock::parse(&bytes, device.size_bytes(), place)?;
    let plan = Plan::grow(&old, &decode(&bytes, place)?, new_bytes, place)?;
    Ok(ResizeReport::of(&plan))
}

/// Makes a filesystem larger: it then has at most `new_bytes`, which the device must have. Nothing else may
/// use the device. From `zeroed_from` on the device reads as zeros. The new size is durable on return.
///
/// The journal is replayed and orphans are removed first, as by a mount.
pub fn grow(
    device: &Arc<dyn Device>,
    new_bytes: u64,
    zeroed_from: ByteOffset,
    options: OpenOptions,
) -> Result<ResizeReport> {
    let place = options.common.place.clone();
    if new_bytes > device.size_bytes() {
        return Err(Error::Incompatible(format!(
            "{place} has {} bytes and cannot hold a filesystem of {new_bytes}",
            device.size_bytes()
        )));
    }
    let fs = Ext4::open(device.clone(), options)?;
    if let Some(why) = &fs.read_only {
        return Err(Error::Incompatible(format!("{place} cannot be resized: {why}")));
    }
    let grown = grow_open(&fs, new_bytes, zeroed_from);
    if let Err(error @ (Error::Io(_) | Error::Corrupt { .. })) = &grown {
        // Part of a transaction may be in memory: it must not reach the device.
        fs.abort(error);
    }
    let closed = fs.unmount();
    let plan = grown?;
    closed?;
    write_copies(device.as_ref(), &plan)?;
    Ok(ResizeReport::of(&plan))
}

fn grow_open(fs: &Ext4, new_bytes: u64, zeroed_from: ByteOffset) -> Result<Plan> {
    let (block, byte) = fs.sb.superblock_place();
    let raw = decode(&fs.cache.get(block)?.read()[byte..], &fs.place)?;
    let plan = Plan::grow(&fs.sb, &raw, new_bytes, &fs.place)?;
    if plan.is_same() {
        return Ok(plan);
    }
    let new = Growth { fs, plan: &plan };
    let (credits, most) = (new.final_credits(), fs.journal.max_credits());
    if credits > most {
        return Err(Error::Incompatible(format!(
            "{} cannot grow so far at once: its journal is too small ({credits} blocks change together, and \
             it has room for {most}); grow it in several steps",
            fs.place
        )));
    }
    let double = new.checked_double()?;
    let (descs, free_blocks) = new.write_groups(zeroed_from)?;
    fs.dev.flush()?;
    let mut h = fs.begin(4)?;
    if double.is_some() {
        new.extend_lists(&mut h)?;
    }
    new.commit_sizes(&mut h, &descs, double)?;
    drop(h);
    fs.groups.free_blocks.fetch_add(free_blocks as i64, Ordering::Relaxed);
    let inodes = plan.new.inodes_count - plan.old.inodes_count;
    fs.groups.free_inodes.fetch_add(inodes.into(), Ordering::Relaxed);
    Ok(plan)
}

struct Growth<'a> {
    fs: &'a Ext4,
    plan: &'a Plan,
}

impl Growth<'_> {
    fn put(&self, block: BlockNo, bytes: &[u8]) -> Result<()> {
        Ok(self.fs.dev.write_at(block.offset(self.plan.new.block_size), bytes)?)
    }

    fn zero(&self, block: BlockNo, blocks: u64, zeroed_from: ByteOffset) -> Result<()> {
        let size = self.plan.new.block_size;
        let end = (block + blocks).offset(size).min(zeroed_from.max(block.offset(size)));
        let zeros = vec![0; 1 << 20];
        let mut at = block.offset(size);
        while at < end {
            let len = (end - at).min(zeros.len() as u64);
            self.fs.dev.write_at(at, &zeros[..len as usize])?;
            at += len;
        }
        Ok(())
    }

    /// Writes bitmaps and tables of the new groups. Returns their descriptors, and the free blocks that the
    /// filesystem gains.
    fn write_groups(&self, zeroed_from: ByteOffset) -> Result<(Vec<Vec<u8>>, u64)> {
        let Plan { old, new, .. } = self.plan;
        let mut free = u64::from(new.group_blocks(old.groups - 1) - old.group_blocks(old.groups - 1));
        if old.groups == new.groups {
            return Ok((Vec::new(), free));
        }
        let first = new.group_first_block(old.groups);
        let mut space = Space::new(first, BlockNo(new.blocks_count));
        let places = new_groups::place(new, &mut space, old.groups..new.groups)?;
        let mut descs = Vec::with_capacity(places.len());
        for (group, places) in (old.groups..).zip(places) {
            self.zero(places.inode_table, u64::from(new.inode_table_blocks), zeroed_from)?;
            let state = State { places, used_inodes: 0, directories: 0, table_zeroed: true };
            let described = new_groups::describe(new, &space, group, &state);
            if let Some(bits) = &described.block_bitmap {
                self.put(places.block_bitmap, bits)?;
            }
            if let Some(bits) = &described.inode_bitmap {
                self.put(places.inode_bitmap, bits)?;
            }
            free += u64::from(described.free_blocks);
            descs.push(described.desc);
        }
        Ok((descs, free))
    }

    /// Returns the double-indirect block of the resize inode, which must map exactly the reserved blocks.
    /// `None`: no blocks are reserved.
    fn checked_double(&self) -> Result<Option<BlockNo>> {
        let (fs, old) = (self.fs, &self.plan.old);
        if !old.compat.contains(Compat::RESIZE_INODE) || old.reserved_gdt_blocks == 0 {
            return Ok(None);
        }
        let wrong = || {
            let place = format!("{}, inode {RESIZE_INO}", fs.place);
            Error::corrupt("it does not map the blocks reserved for descriptors: run e2fsck", place)
        };
        let slot = fs.raw_inode(RESIZE_INO)?;
        let at = I_BLOCK + DOUBLE_INDIRECT;
        let double = BlockNo(u32::from_le_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]).into());
        if !old.is_valid_block(double) || fs.own_block_in(double, 1).is_some() {
            return Err(wrong());
        }
        let bytes = fs.block(double)?.read();
        let pointers: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let first = old.superblock_place().0 + 1;
        let mut reserved = u64::from(old.desc_blocks)..u64::from(old.desc_blocks + old.reserved_gdt_blocks);
        let maps_all =
            reserved.all(|nth| u64::from(pointers[nth as usize % pointers.len()]) == (first + nth).0);
        if maps_all { Ok(Some(double)) } else { Err(wrong()) }
    }

    /// The groups that hold copies, and their number before.
    fn copies(&self) -> (Vec<u32>, usize) {
        let new = &self.plan.new;
        let all: Vec<u32> = (1..new.groups).filter(|&group| new.has_super(group)).collect();
        let before = all.iter().filter(|&&group| group < self.plan.old.groups).count();
        (all, before)
    }

    /// Adds the copies in new groups to the list of each block that stays reserved.
    fn extend_lists(&self, h: &mut Handle) -> Result<()> {
        let (copies, before) = self.copies();
        if copies.len() == before {
            return Ok(());
        }
        let new = &self.plan.new;
        let first = new.superblock_place().0 + 1 + u64::from(new.desc_blocks);
        for block in first.run(u64::from(new.reserved_gdt_blocks)) {
            h.ensure(1)?;
            let buffer = self.fs.block(block)?;
            h.modify(&buffer, |bytes| {
                for (bytes, &group) in bytes.chunks_exact_mut(4).zip(&copies) {
                    let copy = block.0 + u64::from(group) * u64::from(new.blocks_per_group);
                    bytes.copy_from_slice(&(copy as u32).to_le_bytes());
                }
            })?;
        }
        Ok(())
    }

    /// The blocks that [`Growth::commit_sizes`] changes.
    fn final_credits(&self) -> u32 {
        let Plan { old, new, .. } = self.plan;
        // Bitmap, slot and map of the resize inode, superblock.
        new.desc_blocks - (old.groups - 1) / old.descs_per_block + 4
    }

    /// Everything that takes effect at once.
    fn commit_sizes(&self, h: &mut Handle, descs: &[Vec<u8>], double: Option<BlockNo>) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        h.ensure(self.final_credits())?;
        self.extend_last_group(h)?;
        for (group, desc) in (old.groups..).zip(descs) {
            let (block, byte) = new.desc_place(group);
            let buffer = if group / new.descs_per_block >= old.desc_blocks
                && group.is_multiple_of(new.descs_per_block)
            {
                // It was reserved, and held a list of the resize inode.
                let buffer = self.fs.block(block)?;
                h.modify(&buffer, |bytes| bytes.fill(0))?;
                buffer
            } else {
                self.fs.block(block)?
            };
            h.modify(&buffer, |bytes| bytes[byte..byte + desc.len()].copy_from_slice(desc))?;
        }
        if let Some(double) = double {
            self.update_resize_inode(h, double)?;
        }
        self.fs.modify_super(h, |raw| self.plan.apply(raw))
    }

    /// Frees the blocks that the group gains that was last.
    fn extend_last_group(&self, h: &mut Handle) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        let number = old.groups - 1;
        let (before, after) = (old.group_blocks(number), new.group_blocks(number));
        if before == after {
            return Ok(());
        }
        let groups = &self.fs.groups;
        let group = groups.get(number)?;
        let mut group = group.lock();
        if group.desc.flags & BLOCK_UNINIT == 0 {
            groups.change_tail(h, &mut group, before, after - before)?;
        }
        group.desc.free_blocks += after - before;
        groups.store(h, &group)
    }

    /// Removes the blocks that became descriptors from the map of the resize inode, and counts the copies.
    fn update_resize_inode(&self, h: &mut Handle, double: BlockNo) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        let pointers = u64::from(new.block_size / 4);
        self.fs.modify_slot(h, RESIZE_INO, |slot| {
            let copies = self.copies().0.len() as u64;
            let blocks = 1 + u64::from(new.reserved_gdt_blocks) * (1 + copies);
            let sectors = (blocks << (new.block_bits - 9)) as u32;
            slot[I_BLOCKS_LO..I_BLOCKS_LO + 4].copy_from_slice(&sectors.to_le_bytes());
        })?;
        let buffer = self.fs.block(double)?;
        h.modify(&buffer, |bytes| {
            for index in u64::from(old.desc_blocks)..u64::from(new.desc_blocks) {
                let at = (index % pointers) as usize * 4;
                fill(bytes, at as u32 * 8, 32, false);
            }
        })
    }
}

/// Writes the copies of superblock and descriptors. The filesystem is closed.
fn write_copies(device: &dyn Device, plan: &Plan) -> Result<()> {
    let sb = &plan.new;
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let mut raw = decode(&bytes, "superblock")?;
    let first = sb.superblock_place().0 + 1;
    let mut table = vec![0; sb.desc_blocks as usize * sb.block_size as usize];
    device.read_at(first.offset(sb.block_size), &mut table)?;
    for group in (1..sb.groups).filter(|&group| sb.has_super(group)) {
        let block = sb.group_first_block(group);
        raw.s_block_group_nr = (group as u16).into();
        crate::layout::superblock::seal(&mut raw);
        device.write_at((block + 1).offset(sb.block_size), &table)?;
        device.write_at(block.offset(sb.block_size), zerocopy::IntoBytes::as_bytes(&raw))?;
    }
    Ok(device.flush()?)
}
