//! Allocating and freeing blocks.
//!
//! Allocation has two steps, so that data reaches the device before the map refers to its block: a
//! reservation in memory, then the change of the bitmap in the transaction that maps the block. A freed block
//! may be allocated again only after the transaction that freed it has committed: a crash before that commit
//! brings the old owner back.

use crate::fs::{Ext4, Handle, private_of};
use crate::groups::{Groups, fill, next_clear, next_set};
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::{BlockPool, FileType, Inode, NameError, Result, Window, window_blocks};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Free blocks that delayed writes must leave for the maps and directories that they will need.
const METADATA_MARGIN: u64 = 64;

/// Limit of the blocks that a growing file reserves ahead of its end.
const MAX_WINDOW: u64 = 2048;

/// Allocation hint of an inode.
#[derive(Debug, Default)]
pub struct InodeAlloc {
    /// The block after its last allocation, or 0.
    pub(crate) next: BlockNo,
    /// Of a directory: the group of the last inode that was created in it.
    pub(crate) inode_group: Option<u32>,
}

/// Blocks that are allocated in memory and not yet on the device. Dropping it releases them.
#[derive(Debug)]
pub struct Reserved {
    /// First block.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
    group: u32,
    bit: u32,
    groups: Arc<Groups>,
}

impl Reserved {
    /// Keeps the first `len` blocks and returns the others, if there are any.
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

impl Window for Reserved {
    fn blocks(&self) -> u64 {
        self.len.into()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.len > 0 {
            self.groups.release(self.group, self.bit, self.len);
        }
    }
}

/// How well a free run must fit a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// It starts at the goal, or has the full length.
    Whole,
    /// It has at least an eighth of the length.
    Part,
    /// Any free run.
    Any,
}

impl Ext4 {
    /// Reserves up to `max_len` contiguous blocks near `goal`, in memory only.
    pub fn reserve_blocks(&self, inode: &Inode, goal: BlockNo, max_len: u32) -> Result<Reserved> {
        loop {
            if let Some(reserved) = self.try_reserve(inode, goal, max_len)? {
                return Ok(reserved);
            }
            if !self.reservation_windows.clear() {
                return Err(NameError::NoSpace.into());
            }
        }
    }

    /// Reserves up to `max_len` blocks for a file that has grown to `file_block`. Takes them from the file's
    /// reservation window and renews the window; the window is as long as the file.
    pub(crate) fn reserve_growing(
        &self,
        inode: &Inode,
        goal: BlockNo,
        file_block: FileBlock,
        max_len: u32,
    ) -> Result<Reserved> {
        // A window that starts elsewhere is released: the file continues at another position.
        let own = self.reservation_windows.remove(inode.ino).filter(|window| window.start == goal);
        let mut reserved = match own {
            Some(window) => window,
            None => {
                let window = window_blocks(file_block.0, MAX_WINDOW) as u32;
                self.reserve_blocks(inode, goal, max_len.saturating_add(window))?
            }
        };
        if let Some(rest) = reserved.split_off(max_len) {
            self.reservation_windows.keep(inode.ino, rest);
        }
        Ok(reserved)
    }

    fn try_reserve(&self, inode: &Inode, goal: BlockNo, max_len: u32) -> Result<Option<Reserved>> {
        let goal = if self.sb.is_valid_block(goal) { goal } else { self.goal_for(inode) };
        let max_len = max_len.clamp(1, self.sb.blocks_per_group);
        if self.groups.free_blocks.load(Ordering::Relaxed) <= 0 {
            return Ok(None);
        }
        let (goal_group, goal_bit) = self.sb.group_of_block(goal);
        for fit in [Fit::Whole, Fit::Part, Fit::Any] {
            for step in 0..self.sb.groups() {
                let number = ((u64::from(goal_group) + u64::from(step)) % u64::from(self.sb.groups())) as u32;
                let from = if step == 0 { goal_bit } else { 0 };
                if let Some(reserved) = self.reserve_in(number, from, step == 0, max_len, fit)? {
                    private_of(inode).alloc.lock().next = reserved.start + u64::from(reserved.len);
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
        let blocks = self.groups.allocatable(number);
        if blocks == 0 {
            return Ok(None);
        }
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
        let bits = match self.groups.busy(&mut group) {
            Ok(bits) => bits,
            Err(error) => {
                // A damaged group loses its free space; the other groups stay usable.
                log::warn!("{error}; this group is not used for allocation");
                group.free = 0;
                return Ok(None);
            }
        };
        let run_at = |bits: &[u8], start: u32| {
            next_set(bits, start, blocks.min(start.saturating_add(max_len))) - start
        };
        let mut found = None;
        // At the goal even a short run is good: the file continues without a seek.
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

    /// Marks reserved blocks as used in the bitmap.
    pub fn commit_reserved(&self, h: &mut Handle, mut reserved: Reserved) -> Result<()> {
        let group = self.groups.get(reserved.group)?;
        self.groups.change_blocks(h, &mut group.lock(), reserved.bit, reserved.len, true)?;
        reserved.len = 0;
        Ok(())
    }

    /// Allocates one block for an extent tree, a directory or attributes: both steps.
    pub fn alloc_meta_block(&self, h: &mut Handle, inode: &Inode, goal: BlockNo) -> Result<BlockNo> {
        let reserved = self.reserve_blocks(inode, goal, 1)?;
        let block = reserved.start;
        self.commit_reserved(h, reserved)?;
        Ok(block)
    }

    /// Allocates one metadata block that has no reservation: for names, attributes or links. Leaves the
    /// blocks that are reserved for delayed writes.
    pub(crate) fn alloc_own_block(&self, h: &mut Handle, inode: &Inode) -> Result<BlockNo> {
        let groups = &self.groups;
        let free = groups.free_blocks.load(Ordering::Relaxed) + self.reservation_windows.blocks() as i64;
        if free <= groups.delayed.load(Ordering::Relaxed) {
            return Err(NameError::NoSpace.into());
        }
        self.alloc_meta_block(h, inode, self.goal_for(inode))
    }

    /// Frees a run of blocks; `metadata` says whether they were written through the journal.
    pub fn free_blocks(&self, h: &mut Handle, start: BlockNo, len: u32, metadata: bool) -> Result<()> {
        if !self.sb.is_valid_run(start, u64::from(len)) {
            return Err(self.corrupt_block(format!("freeing {len} blocks outside the filesystem"), start));
        }
        if let Some(own) = self.own_block_in(start, u64::from(len)) {
            return Err(self.corrupt_block("freeing blocks of the filesystem's own structures", own));
        }
        if metadata {
            for block in start.run(u64::from(len)) {
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
                // Load `busy` before the bits are cleared: the freed blocks stay busy until the commit.
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

    /// Reserves free blocks for delayed writes.
    pub fn reserve_delayed(&self, blocks: u64, pool: BlockPool) -> Result<()> {
        if self.try_claim(blocks, pool) {
            return Ok(());
        }
        // A commit makes freed blocks available.
        if self.groups.pending.load(Ordering::Relaxed) > 0 {
            self.journal.commit()?;
            if self.try_claim(blocks, pool) {
                return Ok(());
            }
        }
        Err(NameError::NoSpace.into())
    }

    fn try_claim(&self, blocks: u64, pool: BlockPool) -> bool {
        let groups = &self.groups;
        let margin = METADATA_MARGIN.min(self.sb.blocks_count() / 64);
        // The reserved blocks leave enough space for metadata.
        let margin =
            if pool == BlockPool::Unreserved { margin.max(self.sb.reserved_blocks()) } else { margin } as i64;
        let claim = blocks as i64;
        let before = groups.delayed.fetch_add(claim, Ordering::AcqRel);
        if before + claim + margin
            > groups.free_blocks.load(Ordering::Relaxed) + self.reservation_windows.blocks() as i64
        {
            groups.delayed.fetch_sub(claim, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Ends the reservation of blocks that are now allocated or no longer needed.
    pub fn release_delayed(&self, blocks: u64) {
        self.groups.delayed.fetch_sub(blocks as i64, Ordering::AcqRel);
    }

    /// The preferred position of an inode's next block: after its last block, else in its group, spread over
    /// the group by inode number.
    pub fn goal_for(&self, inode: &Inode) -> BlockNo {
        let next = private_of(inode).alloc.lock().next;
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
