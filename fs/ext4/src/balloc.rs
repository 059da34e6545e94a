//! Blocks: where they are taken, and when they may be used again.
//!
//! Taking has two steps, so that data reaches the device before the map names its block: a reservation in memory, and the
//! bitmap within the transaction that maps it. What a transaction frees may be taken again once it has committed: before
//! that a crash would bring the old owner back.

use crate::ctx::{Ext4, Ext4Inode, Handle};
use crate::groups::{Groups, fill, next_clear, next_set};
use ivers_vfs::{Error, FileType, Inode, NameError, Result, Room};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks that delayed writes may not claim, for the maps and directories that they will need.
const METADATA_MARGIN: u64 = 64;

/// Blocks that a growing file keeps ahead of it: as many as it has, within these bounds.
const LEAST_AHEAD: u64 = 16;
const MOST_AHEAD: u64 = 2048;

/// Where an inode's next blocks go.
#[derive(Debug, Default)]
pub struct InodeAlloc {
    /// One behind its last allocation, or 0.
    pub(crate) next: u64,
}

/// Blocks that are taken in memory and not yet on the device. Dropping gives them back.
#[derive(Debug)]
pub struct Reserved {
    /// First block.
    pub start: u64,
    /// Blocks.
    pub len: u32,
    group: u32,
    bit: u32,
    groups: Arc<Groups>,
}

impl Reserved {
    /// Keep the first `len` blocks; the others, if there are any, come back.
    pub(crate) fn split_off(&mut self, len: u32) -> Option<Reserved> {
        let rest = self.len.checked_sub(len).filter(|rest| *rest > 0)?;
        self.len = len;
        Some(Reserved {
            start: self.start + u64::from(len),
            len: rest,
            group: self.group,
            bit: self.bit + len,
            groups: self.groups.clone(),
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.len > 0 {
            self.groups.release(self.group, self.bit, self.len);
        }
    }
}

/// How well a run must fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The goal itself, or a run of the full length.
    Whole,
    /// A run of at least an eighth of the length.
    Part,
    /// Anything.
    Any,
}

impl Ext4 {
    /// Take up to `max_len` blocks in a row near `goal`, in memory only.
    pub fn reserve_blocks(&self, inode: &Inode, goal: u64, max_len: u32) -> Result<Reserved> {
        loop {
            if let Some(reserved) = self.try_reserve(inode, goal, max_len)? {
                return Ok(reserved);
            }
            if !self.windows.clear() {
                return Err(NameError::NoSpace.into());
            }
        }
    }

    /// Take up to `max_len` blocks for a file that has grown to `file_block`, from the room that it keeps ahead, and keep more
    /// room: as much as the file is long.
    pub(crate) fn reserve_growing(
        &self,
        inode: &Inode,
        goal: u64,
        file_block: u64,
        max_len: u32,
    ) -> Result<Reserved> {
        let ino = inode.ino.0 as u32;
        if let Some(reserved) = self.windows.take(ino, goal, max_len) {
            return Ok(reserved);
        }
        // A file that is written at once needs none, and most files are.
        let ahead = if file_block == 0 { 0 } else { file_block.clamp(LEAST_AHEAD, MOST_AHEAD) as u32 };
        let mut reserved = self.reserve_blocks(inode, goal, max_len.saturating_add(ahead))?;
        if let Some(rest) = reserved.split_off(max_len) {
            self.windows.keep(ino, rest);
        }
        Ok(reserved)
    }

    fn try_reserve(&self, inode: &Inode, goal: u64, max_len: u32) -> Result<Option<Reserved>> {
        let goal = if self.sb.is_valid_block(goal) { goal } else { self.goal_for(inode) };
        let max_len = max_len.clamp(1, self.sb.blocks_per_group);
        if self.groups.free_blocks.load(Ordering::Relaxed) <= 0 {
            return Ok(None);
        }
        let (goal_group, goal_bit) = self.sb.group_of_block(goal);
        for fit in [Fit::Whole, Fit::Part, Fit::Any] {
            for step in 0..self.sb.groups {
                let number = ((u64::from(goal_group) + u64::from(step)) % u64::from(self.sb.groups)) as u32;
                let from = if step == 0 { goal_bit } else { 0 };
                if let Some(reserved) = self.reserve_in(number, from, step == 0, max_len, fit)? {
                    inode.private::<Ext4Inode>().alloc.lock().next = reserved.start + u64::from(reserved.len);
                    return Ok(Some(reserved));
                }
            }
        }
        Ok(None)
    }

    fn reserve_in(
        &self,
        number: u32,
        from: u32,
        is_goal: bool,
        max_len: u32,
        fit: Fit,
    ) -> Result<Option<Reserved>> {
        let group = self.groups.get(number)?;
        let mut group = group.lock();
        let least = match fit {
            Fit::Whole => max_len,
            Fit::Part => (max_len / 8).max(1),
            Fit::Any => 1,
        };
        if group.free == 0 || (group.free < least && !is_goal) {
            return Ok(None);
        }
        let blocks = self.sb.group_blocks(number);
        let bits = match self.groups.busy(&mut group) {
            Ok(bits) => bits,
            Err(error) => {
                // A damaged group loses its free space; the rest of the filesystem goes on.
                log::warn!("{error}; nothing is allocated there");
                group.free = 0;
                return Ok(None);
            }
        };
        let run_at = |bits: &[u8], start: u32| {
            next_set(bits, start, blocks.min(start.saturating_add(max_len))) - start
        };
        let mut found = None;
        // Right at the goal even a short run is good: the file goes on without a seek.
        if is_goal && fit == Fit::Whole && from < blocks && next_clear(bits, from, blocks) == from {
            found = Some((from, run_at(bits, from)));
        }
        let mut bit = from;
        let mut wrapped = from == 0;
        while found.is_none() {
            bit = next_clear(bits, bit, blocks);
            if bit >= blocks {
                if wrapped {
                    break;
                }
                wrapped = true;
                bit = 0;
                continue;
            }
            let len = run_at(bits, bit);
            if len >= least {
                found = Some((bit, len));
            } else {
                bit += len.max(1);
            }
        }
        let Some((bit, len)) = found else { return Ok(None) };
        fill(bits, bit, len, true);
        group.free -= len;
        self.groups.free_blocks.fetch_sub(i64::from(len), Ordering::Relaxed);
        let start = self.sb.group_first_block(number) + u64::from(bit);
        Ok(Some(Reserved { start, len, group: number, bit, groups: self.groups.clone() }))
    }

    /// Put reserved blocks into the bitmap: from here on they are used.
    pub fn commit_reserved(&self, h: &mut Handle, mut reserved: Reserved) -> Result<()> {
        let group = self.groups.get(reserved.group)?;
        self.groups.change_blocks(h, &mut group.lock(), reserved.bit, reserved.len, true)?;
        reserved.len = 0;
        Ok(())
    }

    /// One block for a tree, a directory or attributes: both steps.
    pub fn alloc_meta_block(&self, h: &mut Handle, inode: &Inode, goal: u64) -> Result<u64> {
        let reserved = self.reserve_blocks(inode, goal, 1)?;
        let block = reserved.start;
        self.commit_reserved(h, reserved)?;
        Ok(block)
    }

    /// The same for a block that nobody was promised: names, attributes, links. What delayed writes were promised is not to be had.
    pub(crate) fn alloc_own_block(&self, h: &mut Handle, inode: &Inode) -> Result<u64> {
        let groups = &self.groups;
        let free = groups.free_blocks.load(Ordering::Relaxed) + self.windows.blocks();
        if free <= groups.delayed.load(Ordering::Relaxed) {
            return Err(NameError::NoSpace.into());
        }
        self.alloc_meta_block(h, inode, self.goal_for(inode))
    }

    /// Do something for which room may be lacking that a commit will give: what the running transaction freed. `f` leaves
    /// nothing half done when there is no room, and has no handle open when it returns.
    pub(crate) fn with_room<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        match f() {
            Err(Error::Name(NameError::NoSpace)) if self.groups.pending.load(Ordering::Relaxed) > 0 => {
                self.journal.commit()?;
                f()
            }
            other => other,
        }
    }

    /// Free a run of blocks; `metadata` if they were written through the journal.
    pub fn free_blocks(&self, h: &mut Handle, start: u64, len: u32, metadata: bool) -> Result<()> {
        if !self.sb.is_valid_run(start, u64::from(len)) {
            return Err(self.corrupt_block(format!("{len} blocks outside the filesystem are freed"), start));
        }
        if let Some(own) = self.own_block_in(start, u64::from(len)) {
            return Err(self.corrupt_block("the filesystem's own blocks are freed", own));
        }
        if metadata {
            for block in start..start + u64::from(len) {
                h.forget(block)?;
            }
        }
        let mut start = start;
        let mut left = len;
        while left > 0 {
            let (number, bit) = self.sb.group_of_block(start);
            let part = left.min(self.sb.group_blocks(number) - bit);
            let group = self.groups.get(number)?;
            {
                let mut group = group.lock();
                // Load what may be given out before the bits are cleared: they stay busy until the commit.
                if let Err(error) = self.groups.busy(&mut group) {
                    log::warn!("{error}");
                }
                self.groups.change_blocks(h, &mut group, bit, part, false)?;
            }
            self.groups.pending.fetch_add(i64::from(part), Ordering::Relaxed);
            let groups = self.groups.clone();
            h.on_commit(move || {
                groups.release(number, bit, part);
                groups.pending.fetch_sub(i64::from(part), Ordering::Relaxed);
            });
            start += u64::from(part);
            left -= part;
        }
        Ok(())
    }

    /// Promise blocks to delayed writes.
    pub fn claim_delayed(&self, blocks: u64, room: Room) -> Result<()> {
        if self.try_claim(blocks, room) {
            return Ok(());
        }
        // What was freed may only need a commit.
        if self.groups.pending.load(Ordering::Relaxed) > 0 {
            self.journal.commit()?;
            if self.try_claim(blocks, room) {
                return Ok(());
            }
        }
        Err(NameError::NoSpace.into())
    }

    fn try_claim(&self, blocks: u64, room: Room) -> bool {
        let groups = &self.groups;
        let margin = METADATA_MARGIN.min(self.sb.blocks_count / 64);
        // The reserve has room for the metadata too.
        let margin = if room == Room::Open { margin.max(self.sb.reserved_blocks) } else { margin } as i64;
        let claim = blocks as i64;
        let before = groups.delayed.fetch_add(claim, Ordering::AcqRel);
        if before + claim + margin > groups.free_blocks.load(Ordering::Relaxed) + self.windows.blocks() {
            groups.delayed.fetch_sub(claim, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Give a promise back: it was kept, or is no longer needed.
    pub fn release_delayed(&self, blocks: u64) {
        self.groups.delayed.fetch_sub(blocks as i64, Ordering::AcqRel);
    }

    /// Where the next block of an inode goes: behind its last one, or in its group, files of one group apart.
    pub fn goal_for(&self, inode: &Inode) -> u64 {
        let next = inode.private::<Ext4Inode>().alloc.lock().next;
        if self.sb.is_valid_block(next) {
            return next;
        }
        let ino = inode.ino.0 as u32;
        let group = self.sb.group_of_inode(ino.max(1)).0;
        let color = if inode.kind == FileType::Directory { 0 } else { ino % 16 };
        let first = self.sb.group_first_block(group);
        let goal = first + u64::from(self.sb.group_blocks(group) / 16 * color);
        if self.sb.is_valid_block(goal) { goal } else { self.sb.first_data_block + 1 }
    }
}
