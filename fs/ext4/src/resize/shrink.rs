//! Making a filesystem smaller.
//!
//! The order of writes is in docs/ext4.md. Until the last transaction the filesystem has its old size and all
//! its contents: a crash, or a lack of space, leaves a filesystem that needs no repair. The exception is the
//! journal's move; see the module `journal`.

use super::fits::Fits;
use super::plan::{Plan, check_features, least_blocks};
use super::session::{report, session, write_copies};
use super::{blocks, inodes, journal, resize_inode};
use crate::fs::{Ext4, Handle};
use crate::groups::next_set;
use crate::layout::group::BLOCK_UNINIT;
use crate::open::{OpenOptions, unwritable_features};
use ivers_block::{BlockNo, Device};
use ivers_vfs::{Error, NameError, ResizeReport, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size to shrink to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Smaller {
    /// At most this many bytes.
    Bytes(u64),
    /// As small as the contents allow.
    Minimum,
}

/// The sizes of a filesystem before and after [`shrink`].
#[derive(Debug, Clone)]
pub struct ShrinkPlan {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks before.
    pub old_blocks: u64,
    /// The sizes to shrink to in turn, in blocks; empty if it stays as it is.
    stages: Vec<u64>,
}

impl ShrinkPlan {
    /// Number of blocks afterwards.
    pub fn blocks(&self) -> u64 {
        self.stages.last().copied().unwrap_or(self.old_blocks)
    }
}

/// Returns what [`shrink`] would do, or why it would refuse; writes nothing.
pub fn plan_shrink(device: &Arc<dyn Device>, to: Smaller, options: &OpenOptions) -> Result<ShrinkPlan> {
    let mut options = options.clone();
    options.common.read_only = true;
    let fs = Ext4::open(device.clone(), options)?;
    check_features(&fs.sb, &fs.place)?;
    if let Some(why) = unwritable_features(&fs.sb) {
        return Err(Error::Incompatible(format!("{} cannot be resized: {why}", fs.place)));
    }
    blocks::check_no_bad_blocks(&fs)?;
    let mut fits = Fits::new(&fs)?;
    let block_size = fs.sb.block_size;
    let wanted = match to {
        Smaller::Minimum => None,
        Smaller::Bytes(bytes) => Some(whole_groups(&fs, bytes / u64::from(block_size))),
    };
    if wanted.is_some_and(|wanted| wanted >= fs.sb.blocks_count()) {
        return Ok(ShrinkPlan { block_size, old_blocks: fs.sb.blocks_count(), stages: Vec::new() });
    }
    let credits = fs.least_credits()?;
    loop {
        let stages = fits.stages(wanted).map_err(|least| {
            let kib = (least * u64::from(block_size)).div_ceil(1024);
            Error::Incompatible(format!(
                "{} cannot shrink so far: its contents need {least} blocks of {block_size} bytes; the \
                 smallest size is {kib}K",
                fs.place
            ))
        })?;
        let end = stages.last().copied().unwrap_or(fs.sb.blocks_count());
        if !fits.keep_unmovable(&fs, fits.groups_of(end), credits)? {
            return Ok(ShrinkPlan { block_size, old_blocks: fs.sb.blocks_count(), stages });
        }
    }
}

/// Leaves out a last group that would be too small for its metadata.
fn whole_groups(fs: &Ext4, blocks: u64) -> u64 {
    let sb = &fs.sb;
    if blocks <= sb.first_data_block.0 {
        return sb.first_data_block.0 + 1;
    }
    let (last, len) = sb.group_of_block(BlockNo(blocks - 1));
    if last > 0 && len + 1 < least_blocks(sb, last) { sb.group_first_block(last).0 } else { blocks }
}

/// Makes a filesystem smaller. Nothing else may use the device. The new size is durable on return; the
/// device keeps its length.
///
/// The journal is replayed and orphans are removed first, as by a mount.
pub fn shrink(device: &Arc<dyn Device>, to: Smaller, options: &OpenOptions) -> Result<ResizeReport> {
    let plan = plan_shrink(device, to, options)?;
    let mut done: Option<ResizeReport> = None;
    for &stage in &plan.stages {
        let mut blocks = stage;
        let before = done.as_ref().map_or(plan.old_blocks, |done| done.blocks);
        let reached = loop {
            match shrink_to(device, blocks, options) {
                // The estimate was too small.
                Err(Error::Name(NameError::NoSpace)) if to == Smaller::Minimum => {
                    let more = blocks + (blocks / 64).max(256);
                    let more = Smaller::Bytes(more * u64::from(plan.block_size));
                    blocks = plan_shrink(device, more, options)?.blocks();
                    if blocks >= before {
                        break None;
                    }
                }
                Err(Error::Name(NameError::NoSpace)) => {
                    return Err(Error::Incompatible(format!(
                        "{} has not enough free space to move what lies beyond the new end; nothing is lost: \
                         try a larger size",
                        options.common.place
                    )));
                }
                reached => break Some(reached?),
            }
        };
        let Some(reached) = reached else { break };
        done = Some(ResizeReport { old_blocks: plan.old_blocks, ..reached });
        if blocks > stage {
            break;
        }
    }
    match done {
        Some(done) => Ok(done),
        None => session(device, options, |fs| Ok(report(&fs.sb, &fs.sb))),
    }
}

fn shrink_to(device: &Arc<dyn Device>, blocks: u64, options: &OpenOptions) -> Result<ResizeReport> {
    let limit = BlockNo(blocks);
    journal::relocate(device, limit, options)?;
    session(device, options, |fs| {
        fs.groups.limit.store(blocks, Ordering::Relaxed);
        let groups = fs.sb.group_of_block(BlockNo(blocks - 1)).0 + 1;
        inodes::relocate(fs, groups)?;
        blocks::relocate(fs, groups, limit)
    })?;
    // A session of its own: its log has no block beyond the new end. A replay that finds the new superblock
    // would refuse such blocks.
    let plan = session(device, options, |fs| {
        fs.groups.limit.store(blocks, Ordering::Relaxed);
        cut(fs, blocks)
    })?;
    write_copies(&**device, &plan)?;
    Ok(report(&plan.old, &plan.new))
}

/// The last transaction: everything from `blocks` on is gone.
fn cut(fs: &Ext4, blocks: u64) -> Result<Plan> {
    let plan = Plan::shrink(&fs.sb, &fs.raw_super()?, blocks, &fs.place)?;
    let end = Cut::new(fs, &plan)?;
    end.check_nothing_is_left()?;
    let double = resize_inode::checked_double(fs, &plan.old)?;
    let (credits, most) = (end.credits(), fs.journal.max_credits());
    if credits > most {
        return Err(Error::Incompatible(format!(
            "{} cannot shrink so far at once: its journal is too small ({credits} blocks change together, \
             and it has room for {most}); shrink it in several steps",
            fs.place
        )));
    }
    let mut h = fs.begin(4)?;
    if double.is_some() {
        end.shorten_lists(&mut h)?;
    }
    h.ensure(credits)?;
    end.free_metadata(&mut h)?;
    end.end_last_group(&mut h)?;
    if let Some(double) = double {
        end.reserve_descriptors(&mut h)?;
        resize_inode::update(fs, &mut h, &plan, double)?;
    }
    let (mut free_blocks, mut free_inodes) = (0, 0);
    for group in 0..plan.new.groups() {
        let desc = fs.groups.read_desc(group)?;
        free_blocks += u64::from(desc.free_blocks);
        free_inodes += desc.free_inodes;
    }
    fs.groups.free_blocks.store(free_blocks as i64, Ordering::Relaxed);
    fs.groups.free_inodes.store(free_inodes.into(), Ordering::Relaxed);
    fs.modify_super(&mut h, |raw| {
        plan.apply(raw);
        raw.s_free_blocks_count_lo = (free_blocks as u32).into();
        raw.s_free_blocks_count_hi = ((free_blocks >> 32) as u32).into();
        raw.s_free_inodes_count = free_inodes.into();
    })?;
    Ok(plan)
}

struct Cut<'a> {
    fs: &'a Ext4,
    plan: &'a Plan,
    /// Metadata of the groups that go: first block and length.
    gone: Vec<(BlockNo, u64)>,
    /// Parts of it in groups that stay, and descriptor blocks that are no longer needed.
    freed: Vec<(BlockNo, u64)>,
}

impl<'a> Cut<'a> {
    fn new(fs: &'a Ext4, plan: &'a Plan) -> Result<Self> {
        let Plan { old, new, .. } = plan;
        let mut gone = Vec::new();
        for group in new.groups()..old.groups() {
            let base = u64::from(old.base_meta_blocks(group));
            if base > 0 {
                gone.push((old.group_first_block(group), base));
            }
            let desc = fs.groups.read_desc(group)?;
            gone.extend(fs.groups.fixed_runs(&desc).map(|(_, start, len)| (start, len)));
        }
        let end = BlockNo(new.blocks_count());
        let mut freed: Vec<_> = gone
            .iter()
            .filter(|(start, _)| *start < end)
            .map(|&(start, len)| (start, len.min(end - start)))
            .collect();
        for group in 0..new.groups() {
            let (before, after) = (old.base_meta_blocks(group), new.base_meta_blocks(group));
            if after < before {
                freed.push((old.group_first_block(group) + u64::from(after), u64::from(before - after)));
            }
        }
        Ok(Self { fs, plan, gone, freed })
    }

    /// Refuses to cut off blocks or inodes that are marked as used: no file has them.
    fn check_nothing_is_left(&self) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        let (groups, end) = (&self.fs.groups, BlockNo(new.blocks_count()));
        let mut used = 0;
        for number in new.groups()..old.groups() {
            let desc = groups.read_desc(number)?;
            used += u64::from(old.group_blocks(number) - desc.free_blocks);
            if desc.free_inodes != old.inodes_per_group {
                return Err(self.left("inodes"));
            }
        }
        let last = new.groups() - 1;
        let (from, to) = (new.group_blocks(last), old.group_blocks(last));
        let group = groups.get(last)?;
        let mut group = group.lock();
        let bits = groups.busy(&mut group)?;
        let mut bit = next_set(bits, from, to);
        while bit < to {
            used += 1;
            bit = next_set(bits, bit + 1, to);
        }
        let known: u64 =
            self.gone.iter().map(|&(start, len)| (start + len).0.saturating_sub(start.max(end).0)).sum();
        if used == known { Ok(()) } else { Err(self.left("blocks")) }
    }

    fn left(&self, what: &str) -> Error {
        Error::corrupt(
            format!("{what} beyond the new end are marked as used, and no file has them: run e2fsck"),
            self.fs.place.clone(),
        )
    }

    fn credits(&self) -> u32 {
        let Plan { old, new, .. } = self.plan;
        let mut touched: BTreeSet<u32> = BTreeSet::from([new.groups() - 1]);
        for &(start, len) in &self.freed {
            touched.extend(old.group_of_block(start).0..=old.group_of_block(start + (len - 1)).0);
        }
        // Bitmap and descriptor of each, lists of the blocks that are reserved again, slot and map of the
        // resize inode, superblock.
        2 * touched.len() as u32 + (old.desc_blocks() - new.desc_blocks()) + 4
    }

    /// Removes the copies in groups that go from the list of each block that is reserved before and after.
    fn shorten_lists(&self, h: &mut Handle) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        if new.copies().eq(old.copies()) {
            return Ok(());
        }
        let first = new.superblock_place().0 + 1;
        let end = (new.desc_blocks() + new.reserved_gdt_blocks())
            .min(old.desc_blocks() + old.reserved_gdt_blocks());
        for nth in old.desc_blocks()..end {
            h.ensure(1)?;
            resize_inode::write_list(self.fs, h, new, first + u64::from(nth))?;
        }
        Ok(())
    }

    /// Turns descriptor blocks into reserved ones.
    fn reserve_descriptors(&self, h: &mut Handle) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        let first = new.superblock_place().0 + 1;
        let end = old.desc_blocks().min(new.desc_blocks() + new.reserved_gdt_blocks());
        (new.desc_blocks()..end)
            .try_for_each(|nth| resize_inode::write_list(self.fs, h, new, first + u64::from(nth)))
    }

    /// Frees the metadata of groups that go in groups that stay.
    fn free_metadata(&self, h: &mut Handle) -> Result<()> {
        let sb = &self.plan.old;
        for &(start, len) in &self.freed {
            let (mut start, mut left) = (start, len);
            while left > 0 {
                let (number, bit) = sb.group_of_block(start);
                let part = left.min(u64::from(sb.group_blocks(number) - bit));
                let group = self.fs.groups.get(number)?;
                let mut group = group.lock();
                if group.desc.flags & BLOCK_UNINIT != 0 {
                    self.fs.groups.init_block_bitmap(h, &mut group)?;
                }
                self.fs.groups.change_blocks(h, &mut group, bit, part as u32, false)?;
                start += part;
                left -= part;
            }
        }
        Ok(())
    }

    /// Marks the blocks after the end in the bitmap of the group that is last now.
    fn end_last_group(&self, h: &mut Handle) -> Result<()> {
        let Plan { old, new, .. } = self.plan;
        let number = new.groups() - 1;
        let (from, to) = (new.group_blocks(number), old.group_blocks(number));
        let groups = &self.fs.groups;
        let group = groups.get(number)?;
        let mut group = group.lock();
        if group.desc.flags & BLOCK_UNINIT != 0 {
            groups.init_block_bitmap(h, &mut group)?;
        }
        let used = {
            let bits = groups.read_block_bitmap(&group)?;
            let bits = bits.read();
            (from..to).filter(|&bit| crate::groups::is_set(&bits, bit)).count() as u32
        };
        groups.change_tail(h, &mut group, from, to - from, true)?;
        group.desc.free_blocks = group.desc.free_blocks.saturating_sub(to - from - used);
        groups.store(h, &group)
    }
}
