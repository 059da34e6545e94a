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

use super::plan::Plan;
use super::resize_inode;
use super::session::{report, session, write_copies};
use crate::fs::{Ext4, Handle};
use crate::groups::{Group, GroupLock};
use crate::layout::group::BLOCK_UNINIT;
use crate::mkfs::space::Space;
use crate::new_groups::{self, State};
use crate::open::{OpenOptions, read_super};
use ivers_block::{BlockNo, ByteOffset, Device, write_zeros};
use ivers_vfs::{Error, ResizeReport, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Returns the size of the filesystem on a device.
pub fn filesystem_bytes(device: &dyn Device, place: &str) -> Result<u64> {
    let (_, old) = read_super(device, place)?;
    Ok(old.blocks_count() * u64::from(old.block_size))
}

/// Returns the sizes after [`grow`] with the same size; writes nothing. The device may be smaller.
pub fn plan_grow(device: &dyn Device, new_bytes: u64, place: &str) -> Result<ResizeReport> {
    let (raw, old) = read_super(device, place)?;
    let plan = Plan::grow(&old, &raw, new_bytes, place)?;
    Ok(report(&plan.old, &plan.new))
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
    let plan = session(device, &options, |fs| grow_open(fs, new_bytes, zeroed_from))?;
    write_copies(device.as_ref(), &plan)?;
    Ok(report(&plan.old, &plan.new))
}

/// Plans the growth of an open filesystem.
pub(super) fn plan_open(fs: &Ext4, new_bytes: u64) -> Result<Plan> {
    let raw = fs.raw_super()?;
    let plan = Plan::grow(&fs.sb, &raw, new_bytes, &fs.place)?;
    let (credits, most) = (final_credits(&plan), fs.journal.max_credits());
    if credits > most {
        return Err(Error::Incompatible(format!(
            "{} cannot grow so far at once: its journal is too small ({credits} blocks change together, and \
             it has room for {most}); grow it in several steps",
            fs.place
        )));
    }
    Ok(plan)
}

/// Grows an open filesystem, which may be in use. From `zeroed_from` on the device reads as zeros.
pub(super) fn grow_open(fs: &Ext4, new_bytes: u64, zeroed_from: ByteOffset) -> Result<Plan> {
    let plan = plan_open(fs, new_bytes)?;
    if plan.is_same() {
        return Ok(plan);
    }
    let new = Growing { fs, plan: &plan };
    let double = resize_inode::checked_double(fs, &plan.old)?;
    let (descs, free_blocks) = new.write_groups(zeroed_from)?;
    fs.dev.flush()?;
    // Held, so that its bitmap in memory stays: it and the bitmap on the device differ until the new size is
    // visible.
    let last = fs.groups.get(plan.old.groups() - 1)?;
    fs.groups.busy(&mut last.lock())?;
    let mut h = fs.begin(4)?;
    if double.is_some() {
        new.extend_lists(&mut h)?;
    }
    new.commit_sizes(&mut h, &last, &descs, double)?;
    drop(h);
    // The new superblock is in place before the log contains any block of the new groups: a replay refuses
    // blocks beyond the end.
    fs.journal.commit_in_place()?;
    new.publish(&mut last.lock());
    fs.groups.free_blocks.fetch_add(free_blocks as i64, Ordering::Relaxed);
    let inodes = plan.new.inodes_count() - plan.old.inodes_count();
    fs.groups.free_inodes.fetch_add(inodes.into(), Ordering::Relaxed);
    Ok(plan)
}

/// The blocks that [`Growing::commit_sizes`] changes.
fn final_credits(plan: &Plan) -> u32 {
    let Plan { old, new, .. } = plan;
    // Bitmap, slot and map of the resize inode, superblock.
    new.desc_blocks() - (old.groups() - 1) / old.descs_per_block + 4
}

struct Growing<'a> {
    fs: &'a Ext4,
    plan: &'a Plan,
}

impl Growing<'_> {
    fn put(&self, block: BlockNo, bytes: &[u8]) -> Result<()> {
        Ok(self.fs.dev.write_at(block.offset(self.plan.new.block_size), bytes)?)
    }

    fn zero(&self, block: BlockNo, blocks: u64, zeroed_from: ByteOffset) -> Result<()> {
        let size = self.plan.new.block_size;
        let start = block.offset(size);
        let end = (block + blocks).offset(size).min(zeroed_from.max(start));
        Ok(write_zeros(&self.fs.dev, start, end - start)?)
    }

    /// Writes bitmaps and tables of the new groups. Returns their descriptors, and the free blocks that the
    /// filesystem gains.
    fn write_groups(&self, zeroed_from: ByteOffset) -> Result<(Vec<Vec<u8>>, u64)> {
        let Plan { old, new, .. } = self.plan;
        let mut free = u64::from(new.group_blocks(old.groups() - 1) - old.group_blocks(old.groups() - 1));
        if old.groups() == new.groups() {
            return Ok((Vec::new(), free));
        }
        let first = new.group_first_block(old.groups());
        let mut space = Space::new(first, BlockNo(new.blocks_count()));
        let places = new_groups::place(new, &mut space, old.groups()..new.groups())?;
        let mut descs = Vec::with_capacity(places.len());
        for (group, places) in (old.groups()..).zip(places) {
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

    /// Adds the copies in new groups to the list of each block that stays reserved.
    fn extend_lists(&self, h: &mut Handle) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        if new.copies().eq(old.copies()) {
            return Ok(());
        }
        let first = new.superblock_place().0 + 1 + u64::from(new.desc_blocks());
        for block in first.run(u64::from(new.reserved_gdt_blocks())) {
            h.ensure(1)?;
            resize_inode::write_list(self.fs, h, new, block)?;
        }
        Ok(())
    }

    /// Everything that takes effect at once.
    fn commit_sizes(
        &self,
        h: &mut Handle,
        last: &GroupLock,
        descs: &[Vec<u8>],
        double: Option<BlockNo>,
    ) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        h.ensure(final_credits(self.plan))?;
        for (group, desc) in (old.groups()..).zip(descs) {
            let (block, byte) = new.desc_place(group);
            let buffer = if group / new.descs_per_block >= old.desc_blocks()
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
            resize_inode::update(self.fs, h, self.plan, double)?;
        }
        self.fs.modify_super(h, |raw| self.plan.apply(raw))?;
        let mut last = last.lock();
        let (before, gained) = self.gained();
        if gained == 0 {
            return Ok(());
        }
        if last.desc.flags & BLOCK_UNINIT == 0 {
            self.fs.groups.change_tail(h, &mut last, before, gained, false)?;
        }
        last.desc.free_blocks += gained;
        self.fs.groups.store(h, &last)
    }

    /// The length of the group that was last, and the blocks that it gains.
    fn gained(&self) -> (u32, u32) {
        let Plan { old, new, .. } = self.plan;
        let number = old.groups() - 1;
        let before = old.group_blocks(number);
        (before, new.group_blocks(number) - before)
    }

    /// Shows the new size to others. Under the lock of the group that was last, so that its bitmap, its
    /// counts and its length agree.
    fn publish(&self, last: &mut Group) {
        let (before, gained) = self.gained();
        last.gain(before, gained);
        self.fs.sb.grow_to(&self.plan.new);
    }
}
