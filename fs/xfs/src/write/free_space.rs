//! The two B-trees of free space, which always have the same extents, and the counts of them.

use super::extent::FreeExtent;
use super::tree::{Cursor, Tree, field};
use super::tx::Tx;
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_vfs::Result;

/// The B-tree of free space by block.
pub(super) const fn by_block(ag: u32) -> Tree {
    Tree::new(TreeKind::FreeByBlock, ag)
}

/// The B-tree of free space by size.
pub(super) const fn by_size(ag: u32) -> Tree {
    Tree::new(TreeKind::FreeBySize, ag)
}

impl Tx<'_> {
    /// The free extent at a cursor of either tree.
    pub(super) fn free_extent(&mut self, tree: Tree, cursor: &Cursor) -> Result<FreeExtent> {
        let record = self.record(tree, cursor)?;
        let extent = FreeExtent { start: field(&record, 0, 4) as u32, len: field(&record, 4, 4) as u32 };
        let space = self.space();
        let inside = extent.start.checked_add(extent.len).is_some_and(|end| end <= space.sb.ag_len(tree.ag));
        if extent.len == 0 || !inside {
            let what = format!("free space has {} blocks at {} of the group", extent.len, extent.start);
            return Err(space.corrupt(what, Whose::Group(tree.ag)));
        }
        Ok(extent)
    }

    /// The last free extent that starts at or before a block.
    pub(super) fn free_at_or_before(&mut self, ag: u32, block: u32) -> Result<Option<FreeExtent>> {
        let tree = by_block(ag);
        match self.at_most(tree, [block.into(), u64::MAX, 0])? {
            Some(cursor) => Ok(Some(self.free_extent(tree, &cursor)?)),
            None => Ok(None),
        }
    }

    fn size_cursor(&mut self, ag: u32, extent: FreeExtent) -> Result<Cursor> {
        self.exact(by_size(ag), &extent.encode(), || {
            format!("free space by size lacks {} blocks at {} of the group", extent.len, extent.start)
        })
    }

    fn block_cursor(&mut self, ag: u32, extent: FreeExtent) -> Result<Cursor> {
        self.exact(by_block(ag), &extent.encode(), || {
            format!("free space by block lacks {} blocks at {} of the group", extent.len, extent.start)
        })
    }

    /// Takes a part of a free extent out of both trees.
    pub(super) fn cut_free(&mut self, ag: u32, extent: FreeExtent, part: FreeExtent) -> Result<()> {
        let before = FreeExtent { start: extent.start, len: part.start - extent.start };
        let after = FreeExtent { start: part.end(), len: extent.end() - part.end() };
        let cursor = self.size_cursor(ag, extent)?;
        self.delete(by_size(ag), cursor)?;
        for rest in [before, after].into_iter().filter(|rest| rest.len > 0) {
            self.insert(by_size(ag), &rest.encode())?;
        }
        let cursor = self.block_cursor(ag, extent)?;
        match (before.len, after.len) {
            (0, 0) => self.delete(by_block(ag), cursor)?,
            (0, _) => self.update(by_block(ag), &cursor, &after.encode())?,
            (_, 0) => self.update(by_block(ag), &cursor, &before.encode())?,
            _ => {
                self.update(by_block(ag), &cursor, &before.encode())?;
                self.insert(by_block(ag), &after.encode())?;
            }
        }
        self.count_free(ag, -i64::from(part.len))
    }

    /// Adds an extent to both trees, joined with its neighbours.
    pub(super) fn add_free(&mut self, ag: u32, extent: FreeExtent) -> Result<()> {
        let space = self.space();
        let len = space.sb.ag_len(ag);
        let inside = extent.start.checked_add(extent.len).is_some_and(|end| end <= len);
        let whose = Whose::Group(ag);
        if extent.len == 0 || !inside {
            let what = format!("{} blocks at {} of the group cannot be freed", extent.len, extent.start);
            return Err(space.corrupt(what, whose));
        }
        let mut joined = extent;
        let left = self.free_at_or_before(ag, extent.end())?;
        // The extent that starts at our end, and then the one before us.
        let (left, right) = match left {
            Some(right) if right.start == extent.end() => {
                let left = match right.start.checked_sub(1) {
                    Some(before) => self.free_at_or_before(ag, before)?,
                    None => None,
                };
                (left, Some(right))
            }
            left => (left, None),
        };
        if left.is_some_and(|left| left.end() > extent.start) {
            let what = format!("blocks at {} of the group are freed twice", extent.start);
            return Err(space.corrupt(what, whose));
        }
        let left = left.filter(|left| left.end() == extent.start);
        for neighbour in [left, right].into_iter().flatten() {
            let cursor = self.size_cursor(ag, neighbour)?;
            self.delete(by_size(ag), cursor)?;
            joined.len += neighbour.len;
            joined.start = joined.start.min(neighbour.start);
        }
        self.insert(by_size(ag), &joined.encode())?;
        match (left, right) {
            (None, None) => self.insert(by_block(ag), &joined.encode())?,
            (Some(neighbour), None) | (None, Some(neighbour)) => {
                let cursor = self.block_cursor(ag, neighbour)?;
                self.update(by_block(ag), &cursor, &joined.encode())?;
            }
            (Some(left), Some(right)) => {
                let cursor = self.block_cursor(ag, right)?;
                self.delete(by_block(ag), cursor)?;
                let cursor = self.block_cursor(ag, left)?;
                self.update(by_block(ag), &cursor, &joined.encode())?;
            }
        }
        self.count_free(ag, extent.len.into())
    }

    fn count_free(&mut self, ag: u32, delta: i64) -> Result<()> {
        let longest = match self.last(by_size(ag))? {
            Some(cursor) => self.free_extent(by_size(ag), &cursor)?.len,
            None => 0,
        };
        let free = i64::from(self.agf(ag)?.agf_freeblks.get()) + delta;
        let free = u32::try_from(free).map_err(|_| {
            self.space().corrupt("the AGF has a wrong count of free blocks", Whose::Group(ag))
        })?;
        self.modify_agf(ag, |agf| {
            agf.agf_freeblks = free.into();
            agf.agf_longest = longest.into();
        })
    }
}
