//! Maps of forks: adding, removing and converting extents.

use super::alloc::{AllocRequest, Run};
use super::bmbt::Edit;
use super::claims::Claim;
use super::tx::Tx;
use super::windows::Growth;
use crate::fork::{EXTENT_BYTES, Extent, Fork, ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::dinode::{EXTENT_MAX, FILE_BLOCKS_END};
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use ivers_block::{FileBlock, Unit};
use ivers_vfs::{NameError, Result};

/// A hole that gets blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MapRequest {
    /// The first file block.
    pub(crate) at: FileBlock,
    /// At least so many blocks.
    pub(crate) min: u32,
    /// At most so many, all of them a hole.
    pub(crate) max: u32,
    /// Where the blocks should be; `None`: after the extent before, or near the inode.
    pub(crate) goal: Option<FsBlock>,
    pub(crate) unwritten: bool,
    /// If the file ends here: free blocks that other files should leave for it.
    pub(crate) ahead: u32,
}

/// The owner of an extent's blocks.
pub(super) fn owner_of(inode: &Dinode, which: Which, extent: &Extent) -> Owner {
    let owner = match which {
        Which::Data => Owner::data(inode.ino, extent.file_block.0),
        Which::Attributes => Owner::attributes(inode.ino, extent.file_block.0),
    };
    if extent.unwritten { owner.unwritten() } else { owner }
}

fn run_of(extent: &Extent) -> Run {
    Run { start: extent.start, len: extent.len as u32 }
}

/// Whether `b` continues `a`.
fn joins(a: &Extent, b: &Extent) -> bool {
    a.end() == b.file_block
        && a.start.0 + a.len == b.start.0
        && a.unwritten == b.unwritten
        && a.len + b.len <= EXTENT_MAX.into()
}

/// The part of an extent from one file block to another.
fn part(extent: &Extent, from: FileBlock, to: FileBlock) -> Extent {
    let skipped = from - extent.file_block;
    Extent { file_block: from, start: FsBlock(extent.start.0 + skipped), len: to - from, ..*extent }
}

impl Tx<'_> {
    /// Gives blocks to a hole. `None` if there is no space.
    pub(crate) fn map_extent(
        &mut self,
        inode: &mut Dinode,
        which: Which,
        request: MapRequest,
    ) -> Result<Option<Extent>> {
        let MapRequest { at, min, max, goal, unwritten, ahead } = request;
        if at.saturating_add(max.into()).0 > FILE_BLOCKS_END {
            return Err(NameError::TooLarge.into());
        }
        let (before, next) = self.find_extent(inode.fork(which), at, inode.ino)?;
        let growth = Growth {
            continues: goal.is_none() && before.is_some_and(|before| before.end() == at),
            ahead: if next.is_none() { ahead } else { 0 },
        };
        let goal = goal.unwrap_or_else(|| match before {
            Some(before) => FsBlock(before.start.0 + (at - before.file_block)),
            None => self.block_of_inode(inode.ino),
        });
        let goal = if self.space().sb.run(goal, 1).is_some() { goal } else { self.block_of_inode(inode.ino) };
        let mut extent = Extent { file_block: at, start: goal, len: 0, unwritten };
        let owner = owner_of(inode, which, &extent);
        let max = max.min(EXTENT_MAX);
        let request = AllocRequest { goal, min: min.min(max), max, alignment: 1, owner };
        let Some(run) = self.allocate_growing(request, growth)? else { return Ok(None) };
        (extent.start, extent.len) = (run.start, run.len.into());
        self.insert_extent(inode, which, extent)?;
        inode.add_blocks(extent.len as i64);
        Ok(Some(extent))
    }

    /// Maps claimed blocks into a hole. Returns false, and changes nothing, if the group has too few free
    /// blocks for its B-trees.
    pub(crate) fn map_claim(&mut self, inode: &mut Dinode, at: FileBlock, claim: &Claim<'_>) -> Result<bool> {
        let start = self.space().sb.fs_block(claim.ag, claim.extent.start);
        let extent = Extent { file_block: at, start, len: claim.extent.len.into(), unwritten: false };
        let owner = owner_of(inode, Which::Data, &extent);
        if !self.allocate_claim(claim, owner)? {
            return Ok(false);
        }
        self.insert_extent(inode, Which::Data, extent)?;
        inode.add_blocks(extent.len as i64);
        Ok(true)
    }

    /// The block with an inode.
    pub(crate) fn block_of_inode(&self, ino: u64) -> FsBlock {
        FsBlock(ino >> self.space().sb.inopb_bits)
    }

    /// Maps file blocks, all of them, to any number of extents. `NoSpace` if there is not enough space: then
    /// the transaction must be dropped.
    pub(super) fn map_all(
        &mut self,
        inode: &mut Dinode,
        which: Which,
        first: FileBlock,
        count: u64,
    ) -> Result<()> {
        let end = first.saturating_add(count);
        let mut at = first;
        while at < end {
            let max = (end - at).min(EXTENT_MAX.into()) as u32;
            let request = MapRequest { at, min: 1, max, goal: None, unwritten: false, ahead: 0 };
            let extent = self.map_extent(inode, which, request)?.ok_or(NameError::NoSpace)?;
            at = extent.end();
        }
        Ok(())
    }

    /// Adds an extent where there is none. It joins those beside it.
    pub(crate) fn insert_extent(&mut self, inode: &mut Dinode, which: Which, extent: Extent) -> Result<()> {
        let (before, next) = self.find_extent(inode.fork(which), extent.file_block, inode.ino)?;
        let overlaps = before.is_some_and(|before| before.end() > extent.file_block)
            || next.is_some_and(|next| next < extent.end());
        if overlaps {
            let what = format!("file block {} has a block already", extent.file_block);
            return Err(self.space().corrupt(what, inode.whose()));
        }
        let after = match next.filter(|next| *next == extent.end()) {
            Some(next) => self.find_extent(inode.fork(which), next, inode.ino)?.0,
            None => None,
        };
        let before = before.filter(|before| joins(before, &extent));
        let after = after.filter(|after| joins(&extent, after));
        let mut whole = extent;
        if let Some(before) = before {
            whole = Extent { len: before.len + extent.len, ..before };
        }
        let after = after.filter(|after| whole.len + after.len <= EXTENT_MAX.into());
        if let Some(after) = after {
            whole.len += after.len;
        }
        match (before, after) {
            (None, None) => self.edit_fork(inode, which, Edit::Insert(whole)),
            (Some(before), None) => self.edit_fork(inode, which, Edit::Replace(before.file_block.0, whole)),
            (None, Some(after)) => self.edit_fork(inode, which, Edit::Replace(after.file_block.0, whole)),
            (Some(before), Some(after)) => {
                self.edit_fork(inode, which, Edit::Remove(after.file_block.0))?;
                self.edit_fork(inode, which, Edit::Replace(before.file_block.0, whole))
            }
        }
    }

    /// Removes what is mapped between two file blocks from the end on, at most `limit` extents, and frees the
    /// blocks. Returns whether nothing is left there. The caller forgets units of metadata.
    pub(crate) fn unmap_range(
        &mut self,
        inode: &mut Dinode,
        which: Which,
        first: FileBlock,
        end: FileBlock,
        limit: usize,
    ) -> Result<bool> {
        for _ in 0..limit {
            let Some(removed) = self.cut_last(inode, which, first, end)? else { return Ok(true) };
            inode.add_blocks(-(removed.len as i64));
            self.free(run_of(&removed), owner_of(inode, which, &removed))?;
        }
        let left = self.last_between(inode, which, first, end)?;
        Ok(left.is_none())
    }

    /// Where the copy of a shared block should be: after the block before it, or near the old one.
    pub(crate) fn goal_of_copy(&self, inode: &Dinode, at: FileBlock) -> Result<FsBlock> {
        let before = FileBlock(at.0.saturating_sub(1));
        let extent = self.find_extent(inode.fork(Which::Data), before, inode.ino)?.0;
        let goal = extent.map(|extent| FsBlock(extent.start.0 + (at - extent.file_block)));
        Ok(goal
            .filter(|goal| self.space().sb.run(*goal, 1).is_some())
            .unwrap_or(self.block_of_inode(inode.ino)))
    }

    /// Replaces what is mapped from a file block on by blocks for copy on write. All of it is one extent, or
    /// a part of one.
    pub(crate) fn map_copy(&mut self, inode: &mut Dinode, at: FileBlock, copy: Run) -> Result<()> {
        let new = Extent { file_block: at, start: copy.start, len: copy.len.into(), unwritten: false };
        let old = self.last_between(inode, Which::Data, at, new.end())?;
        if old.is_none_or(|old| old.file_block > at || old.end() < new.end()) {
            return Err(self.space().corrupt("shared blocks are not one extent", inode.whose()));
        }
        self.unmap_range(inode, Which::Data, at, new.end(), 1)?;
        self.insert_extent(inode, Which::Data, new)?;
        inode.add_blocks(new.len as i64);
        self.take_copy(copy, owner_of(inode, Which::Data, &new))
    }

    /// What a file has from a block on, without its blocks before: an extent, or a hole, and its length.
    fn extent_at(&self, inode: &Dinode, at: FileBlock) -> Result<(Option<Extent>, u64)> {
        let (extent, next) = self.find_extent(&inode.data, at, inode.ino)?;
        Ok(match extent.filter(|extent| extent.end() > at) {
            Some(extent) => (Some(part(&extent, at, extent.end())), extent.end() - at),
            None => (None, next.unwrap_or(FileBlock(FILE_BLOCKS_END)) - at),
        })
    }

    /// Gives a file the blocks of `source`, or of itself, from the block `from` on: in place of what it has
    /// at `to`. What is not written becomes a hole. Returns how many file blocks are done, at most `most`.
    pub(crate) fn share_extent(
        &mut self,
        source: Option<&Dinode>,
        inode: &mut Dinode,
        (from, to): (FileBlock, FileBlock),
        most: u64,
    ) -> Result<u64> {
        let (theirs, their_len) = self.extent_at(source.unwrap_or(inode), from)?;
        let (ours, our_len) = self.extent_at(inode, to)?;
        let len = most.min(their_len).min(our_len);
        let theirs = theirs.filter(|extent| !extent.unwritten);
        if ours.zip(theirs).is_some_and(|(ours, theirs)| !ours.unwritten && ours.start == theirs.start) {
            return Ok(len);
        }
        self.unmap_range(inode, Which::Data, to, to + len, 1)?;
        if let Some(theirs) = theirs {
            let new = Extent { file_block: to, len, ..theirs };
            self.insert_extent(inode, Which::Data, new)?;
            inode.add_blocks(len as i64);
            self.share(run_of(&new), owner_of(inode, Which::Data, &new))?;
        }
        Ok(len)
    }

    /// Removes the last extent between two file blocks, or the part of it that lies there, from the map.
    pub(super) fn cut_last(
        &mut self,
        inode: &mut Dinode,
        which: Which,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<Option<Extent>> {
        let Some(extent) = self.last_between(inode, which, first, end)? else { return Ok(None) };
        let (from, to) = (first.max(extent.file_block), end.min(extent.end()));
        let key = extent.file_block.0;
        let (head, tail) = (part(&extent, extent.file_block, from), part(&extent, to, extent.end()));
        match (head.len > 0, tail.len > 0) {
            (false, false) => self.edit_fork(inode, which, Edit::Remove(key))?,
            (true, false) => self.edit_fork(inode, which, Edit::Replace(key, head))?,
            (false, true) => self.edit_fork(inode, which, Edit::Replace(key, tail))?,
            (true, true) => {
                self.edit_fork(inode, which, Edit::Replace(key, head))?;
                self.edit_fork(inode, which, Edit::Insert(tail))?;
            }
        }
        Ok(Some(part(&extent, from, to)))
    }

    fn last_between(
        &self,
        inode: &Dinode,
        which: Which,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<Option<Extent>> {
        if end <= first {
            return Ok(None);
        }
        let last = FileBlock(end.0 - 1);
        let found = self.find_extent(inode.fork(which), last, inode.ino)?.0;
        Ok(found.filter(|extent| extent.end() > first))
    }

    /// Marks what is mapped and unwritten between two file blocks as written, or the other way round.
    pub(crate) fn convert_range(
        &mut self,
        inode: &mut Dinode,
        first: FileBlock,
        end: FileBlock,
        unwritten: bool,
    ) -> Result<()> {
        let mut end = end;
        while let Some(extent) = self.last_between(inode, Which::Data, first, end)? {
            let from = first.max(extent.file_block);
            if extent.unwritten != unwritten {
                let Some(old) = self.cut_last(inode, Which::Data, from, end)? else { break };
                let new = Extent { unwritten, ..old };
                self.insert_extent(inode, Which::Data, new)?;
                let owners = [&old, &new].map(|extent| owner_of(inode, Which::Data, extent));
                self.change_owner(run_of(&old), owners[0], owners[1])?;
            }
            end = from;
        }
        Ok(())
    }

    /// Changes one extent of a fork, and its form if it does not fit or becomes small.
    pub(super) fn edit_fork(&mut self, inode: &mut Dinode, which: Which, edit: Edit) -> Result<()> {
        let room = inode.space(&self.space().sb, which) / EXTENT_BYTES;
        let whose = inode.whose();
        self.forget_units();
        let count = match inode.fork_mut(which) {
            Fork::Btree(_) => return self.edit_tree(inode, which, edit),
            Fork::Extents(list) => {
                let find = |list: &[Extent], at| list.binary_search_by_key(&at, |extent| extent.file_block.0);
                let found = match edit {
                    Edit::Insert(extent) => {
                        let at = find(list, extent.file_block.0).unwrap_or_else(|at| at);
                        list.insert(at, extent);
                        Ok(())
                    }
                    Edit::Remove(at) => find(list, at).map(|index| {
                        list.remove(index);
                    }),
                    Edit::Replace(at, extent) => find(list, at).map(|index| list[index] = extent),
                };
                if found.is_err() {
                    return Err(self.space().corrupt("an extent is not where it was", whose));
                }
                list.len()
            }
            _ => return Err(self.space().corrupt("a fork has no extents", whose)),
        };
        if count > room {
            return self.extents_to_tree(inode, which);
        }
        inode.set_extents(which, count as u64)
    }

    /// The first hole of `count` file blocks at or after `from`.
    pub(super) fn first_hole(
        &self,
        inode: &Dinode,
        which: Which,
        from: FileBlock,
        count: u64,
    ) -> Result<FileBlock> {
        let mut at = from;
        loop {
            let (extent, next) = self.find_extent(inode.fork(which), at, inode.ino)?;
            if let Some(extent) = extent.filter(|extent| extent.end() > at) {
                // Blocks of a unit stay together.
                at = from + (extent.end() - from).next_multiple_of(count);
            } else if next.is_none_or(|next| next >= at.saturating_add(count)) {
                return Ok(at);
            } else {
                at = at.saturating_add(count);
            }
        }
    }

    /// The end of the last extent that starts before a file block.
    pub(super) fn end_before(&self, inode: &Dinode, which: Which, end: FileBlock) -> Result<FileBlock> {
        Ok(self.last_between(inode, which, FileBlock(0), end)?.map_or(FileBlock(0), |extent| extent.end()))
    }

    /// The device blocks of a unit of a fork.
    pub(super) fn unit_blocks(
        &self,
        inode: &Dinode,
        which: Which,
        at: FileBlock,
        count: u64,
    ) -> Result<Unit> {
        self.mapped_blocks(inode.fork(which), inode.unit(which, at, count))
    }
}
