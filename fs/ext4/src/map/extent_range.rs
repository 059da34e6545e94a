//! Changes of many extents: marking, shifting and splitting.

use super::node::{ENTRY, Extent, HEADER, MAX_UNWRITTEN, entries, entry, key, put_key, remove_at};
use crate::fs::{Ext4, Handle, InodeCore};
use ivers_block::FileBlock;
use ivers_vfs::{Inode, Result};

impl Ext4 {
    /// Joins the extent that begins at `file_block` with its neighbours in the same leaf.
    pub(super) fn extent_join(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        file_block: FileBlock,
    ) -> Result<()> {
        let path = self.extent_path(inode, core, file_block)?;
        let leaf = &path[path.len() - 1];
        for index in [leaf.index, leaf.index.wrapping_sub(1)] {
            let joined = self.with_node(core, leaf, |node| {
                if index.saturating_add(1) >= entries(node) {
                    return None;
                }
                let (left, right) =
                    (Extent::decode(entry(node, index)), Extent::decode(entry(node, index + 1)));
                left.joins(&right).then(|| Extent { len: left.len + right.len, ..left })
            });
            if let Some(joined) = joined {
                self.change_node(h, inode, core, leaf, |node| {
                    let at = HEADER + index * ENTRY;
                    node[at..at + ENTRY].copy_from_slice(&joined.encode());
                    remove_at(node, index + 1);
                })?;
            }
        }
        self.shorten(h, inode, core)
    }

    /// Marks the mapped blocks in `from..to` written or unwritten. An error leaves every block mapped.
    pub(super) fn extent_mark(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        from: FileBlock,
        to: FileBlock,
        unwritten: bool,
    ) -> Result<()> {
        let mut at = from;
        while at < to {
            let Some(extent) = self.extent_at_or_after(inode, core, at)? else { return Ok(()) };
            let start = extent.file_block;
            let first = at.max(start);
            let mut last = to.min(extent.end());
            if first >= last {
                return Ok(());
            }
            if extent.unwritten != unwritten {
                last = last.min(first + u64::from(MAX_UNWRITTEN));
                let marked = Extent { unwritten, ..extent.part(first, last) };
                let head = (first > start).then(|| extent.part(start, first));
                let tail = (last < extent.end()).then(|| extent.part(last, extent.end()));
                let pieces: Vec<Extent> = head.into_iter().chain([marked]).chain(tail).collect();
                self.extent_replace(h, inode, core, extent.file_block, &pieces)?;
                self.extent_join(h, inode, core, marked.file_block)?;
            }
            at = last;
        }
        Ok(())
    }

    /// Shifts the extents of one leaf that begin at `from` or later down by `by` blocks; the range that they
    /// move over must be a hole. Returns where to continue, `None` at the end. Needs no new blocks.
    pub(super) fn extent_shift_down(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        from: FileBlock,
        by: u64,
    ) -> Result<Option<FileBlock>> {
        let Some(extent) = self.extent_at_or_after(inode, core, from)? else { return Ok(None) };
        let path = self.extent_path(inode, core, extent.file_block)?;
        let level = path.len() - 1;
        let leaf = &path[level];
        if extent.file_block.0 < by || extent.file_block < from {
            return Err(self.corrupt_inode("extent tree: an extent in the range that was removed", inode));
        }
        let end = self.change_node(h, inode, core, leaf, |node| {
            let mut end = from;
            for index in leaf.index..entries(node) {
                let extent = Extent::decode(entry(node, index));
                end = extent.end();
                let at = HEADER + index * ENTRY;
                put_key(&mut node[at..], FileBlock(extent.file_block.0.saturating_sub(by)));
            }
            end
        })?;
        if leaf.index == 0 {
            self.update_parent_keys(h, inode, core, &path, level)?;
        }
        if end <= from {
            return Err(self.corrupt_inode("extent tree: a leaf without end", inode));
        }
        Ok(Some(end))
    }

    /// Shifts the extents of the last leaf that begins before `limit` up by `by` blocks, if they begin at
    /// `from` or later. Returns the next limit, `None` when all are shifted. Needs no new blocks.
    pub(super) fn extent_shift_up(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        from: FileBlock,
        limit: FileBlock,
        by: u64,
    ) -> Result<Option<FileBlock>> {
        if limit <= from {
            return Ok(None);
        }
        let path = self.extent_path(inode, core, FileBlock(limit.0 - 1))?;
        let level = path.len() - 1;
        let leaf = &path[level];
        let (first, last_end) = self.with_node(core, leaf, |node| {
            let count = entries(node).min(leaf.index + 1);
            let first = (0..count).find(|&index| (from..limit).contains(&key(node, index)));
            (first, first.map(|_| Extent::decode(entry(node, count - 1)).end()))
        });
        let (Some(first), Some(last_end)) = (first, last_end) else { return Ok(None) };
        if (last_end + by).0 > u64::from(u32::MAX) {
            return Err(ivers_vfs::NameError::TooLarge.into());
        }
        let next = self.change_node(h, inode, core, leaf, |node| {
            let next = key(node, first);
            for index in first..=leaf.index {
                let moved = key(node, index) + by;
                let at = HEADER + index * ENTRY;
                put_key(&mut node[at..], moved);
            }
            next
        })?;
        if first == 0 {
            self.update_parent_keys(h, inode, core, &path, level)?;
            return Ok(Some(next));
        }
        Ok(None)
    }

    /// Splits the extent that holds `at`, so that no extent crosses it.
    pub(super) fn extent_cut(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        at: FileBlock,
    ) -> Result<()> {
        match self.extent_at_or_after(inode, core, at)? {
            Some(extent) if extent.file_block < at => {
                let pieces = [extent.part(extent.file_block, at), extent.part(at, extent.end())];
                self.extent_replace(h, inode, core, extent.file_block, &pieces)
            }
            _ => Ok(()),
        }
    }
}
