//! Extent trees.
//!
//! Invariants: entries are sorted and do not overlap; the key of an index entry is the first key of its
//! child; no node but the root is empty. A node that violates them is reported as corrupt and never followed.

use super::node::{
    END, ENTRY, Extent, HEADER, MAGIC, MAX_DEPTH, MIN_CAPACITY, capacity, child, depth, empty_root, entries,
    entry, find, first_key, index_entry, insert_at, key, put_header, put_key, remove_at, set_entries, u16_at,
    u32_at,
};
use crate::fs::{Ext4, Handle, InodeCore};
use ivers_block::{BlockNo, Buffer, FileBlock};
use ivers_vfs::{Inode, Result};
use std::sync::Arc;

/// One step on the path from the root to a leaf. The root has no buffer.
pub(super) struct Step {
    pub buffer: Option<Arc<Buffer>>,
    pub index: usize,
}

pub(super) type Path = Vec<Step>;

impl Ext4 {
    fn check_node(&self, inode: &Inode, node: &[u8], expected_depth: Option<u16>) -> Result<()> {
        let bad = |what: &str| Err(self.corrupt_inode(format!("extent node: {what}"), inode));
        if u16_at(node, 0) != MAGIC {
            return bad("wrong magic");
        }
        let (count, max, deep) = (entries(node), capacity(node), depth(node));
        if max > (node.len() - HEADER) / ENTRY || count > max {
            return bad("more entries than fit");
        }
        if max < MIN_CAPACITY {
            return bad("no room for entries");
        }
        if deep > MAX_DEPTH || expected_depth.is_some_and(|expected| deep != expected) {
            return bad("wrong depth");
        }
        if count == 0 && (expected_depth.is_some() || deep > 0) {
            return bad("empty");
        }
        let mut next = FileBlock(0);
        for index in 0..count {
            let first = key(node, index);
            if first < next {
                return bad("entries out of order");
            }
            if deep > 0 {
                next = first + 1;
                if !self.sb.is_valid_block(child(node, index)) {
                    return bad("a child lies outside the filesystem");
                }
            } else {
                let extent = Extent::decode(entry(node, index));
                next = extent.end();
                if extent.len == 0 || next > END {
                    return bad("an extent has no blocks or ends after the largest file");
                }
                if !self.sb.is_valid_run(extent.start, u64::from(extent.len)) {
                    return bad("an extent lies outside the filesystem");
                }
            }
        }
        Ok(())
    }

    fn node_csum(&self, inode: &Inode, node: &[u8]) -> u32 {
        self.csum(
            self.inode_seed(inode.ino.0 as u32, inode.generation),
            &node[..HEADER + capacity(node) * ENTRY],
        )
    }

    /// Reads and checks a node that is not the root.
    fn extent_node(&self, inode: &Inode, block: BlockNo, expected_depth: u16) -> Result<Arc<Buffer>> {
        let buffer = self.block(block)?;
        if !buffer.is_verified() {
            let node = buffer.read();
            self.check_node(inode, &node, Some(expected_depth))?;
            let tail = HEADER + capacity(&node) * ENTRY;
            if self.has_csum()
                && (tail + 4 > node.len() || u32_at(&node, tail) != self.node_csum(inode, &node))
            {
                return Err(self.corrupt_block("extent node: bad checksum", block));
            }
            buffer.set_verified();
        } else {
            // Another owner of the same block may have verified it as something else.
            let node = buffer.read();
            let (count, max) = (entries(&node), capacity(&node));
            let sound = u16_at(&node, 0) == MAGIC
                && depth(&node) == expected_depth
                && (1..=max).contains(&count)
                && (MIN_CAPACITY..=(node.len() - HEADER) / ENTRY).contains(&max);
            if !sound {
                return Err(self.corrupt_block("extent node: it does not match its parent", block));
            }
        }
        Ok(buffer)
    }

    pub(super) fn change_node<R>(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        step: &Step,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        match &step.buffer {
            None => Ok(f(&mut core.i_block)),
            Some(buffer) => h.modify(buffer, |node| {
                let result = f(node);
                self.seal_node(inode, node);
                result
            }),
        }
    }

    fn seal_node(&self, inode: &Inode, node: &mut [u8]) {
        if self.has_csum() {
            let (csum, tail) = (self.node_csum(inode, node), HEADER + capacity(node) * ENTRY);
            node[tail..tail + 4].copy_from_slice(&csum.to_le_bytes());
        }
    }

    /// The nodes below the root, at most `most`; `None` if there are more.
    pub(crate) fn extent_nodes(
        &self,
        inode: &Inode,
        core: &InodeCore,
        most: usize,
    ) -> Result<Option<Vec<Arc<Buffer>>>> {
        self.check_node(inode, &core.i_block, None)?;
        let mut nodes: Vec<Arc<Buffer>> = Vec::new();
        let children = |node: &[u8]| -> Vec<(BlockNo, u16)> {
            let deep = depth(node);
            (0..if deep > 0 { entries(node) } else { 0 }).map(|nth| (child(node, nth), deep - 1)).collect()
        };
        let mut next = children(&core.i_block);
        while let Some((block, deep)) = next.pop() {
            let buffer = self.extent_node(inode, block, deep)?;
            next.extend(children(&buffer.read()));
            nodes.push(buffer);
            if nodes.len() + next.len() > most {
                return Ok(None);
            }
        }
        Ok(Some(nodes))
    }

    /// Changes the checksums of nodes to those of their new owner.
    pub(crate) fn adopt_nodes(&self, h: &mut Handle, inode: &Inode, nodes: &[Arc<Buffer>]) -> Result<()> {
        nodes.iter().try_for_each(|buffer| h.modify(buffer, |node| self.seal_node(inode, node)))
    }

    /// Returns the path from the root to the leaf that holds `block` or would hold it.
    pub(super) fn extent_path(&self, inode: &Inode, core: &InodeCore, block: FileBlock) -> Result<Path> {
        self.check_node(inode, &core.i_block, None)?;
        let mut deep = depth(&core.i_block);
        let mut path = vec![Step { buffer: None, index: find(&core.i_block, block) }];
        let mut next = (deep > 0).then(|| child(&core.i_block, path[0].index));
        while let Some(place) = next {
            deep -= 1;
            let buffer = self.extent_node(inode, place, deep)?;
            let node = buffer.read();
            let index = find(&node, block);
            next = (deep > 0).then(|| child(&node, index));
            drop(node);
            path.push(Step { buffer: Some(buffer), index });
        }
        Ok(path)
    }

    pub(super) fn with_node<R>(&self, core: &InodeCore, step: &Step, f: impl FnOnce(&[u8]) -> R) -> R {
        match &step.buffer {
            None => f(&core.i_block),
            Some(buffer) => f(&buffer.read()),
        }
    }

    /// Returns the extent that holds `block`, or the next one.
    pub(super) fn extent_at_or_after(
        &self,
        inode: &Inode,
        core: &InodeCore,
        block: FileBlock,
    ) -> Result<Option<Extent>> {
        let found = self.extent_search(inode, core, block)?;
        match found {
            Some(extent)
                if extent.len == 0
                    || extent.end() > END
                    || !self.sb.is_valid_run(extent.start, u64::from(extent.len)) =>
            {
                Err(self.corrupt_inode("an extent lies outside the filesystem", inode))
            }
            found => Ok(found),
        }
    }

    fn extent_search(&self, inode: &Inode, core: &InodeCore, block: FileBlock) -> Result<Option<Extent>> {
        let path = self.extent_path(inode, core, block)?;
        let leaf = path.last().expect("a path has at least the root");
        let here = self.with_node(core, leaf, |node| {
            let count = entries(node);
            (leaf.index..count.min(leaf.index + 2))
                .map(|index| Extent::decode(entry(node, index)))
                .find(|extent| extent.end() > block)
        });
        if here.is_some() {
            return Ok(here);
        }
        // The leaf ends before the block: the first entry of the next leaf, if there is one.
        for step in path.iter().rev().skip(1) {
            let next_key = self.with_node(core, step, |node| {
                (step.index + 1 < entries(node)).then(|| key(node, step.index + 1))
            });
            if let Some(next_key) = next_key {
                let path = self.extent_path(inode, core, next_key)?;
                let leaf = path.last().expect("a path has at least the root");
                let found = self.with_node(core, leaf, |node| {
                    (leaf.index < entries(node)).then(|| Extent::decode(entry(node, leaf.index)))
                });
                return match found {
                    Some(extent) if extent.end() > block => Ok(Some(extent)),
                    _ => Err(self.corrupt_inode("extent node: a key without an extent", inode)),
                };
            }
        }
        Ok(None)
    }

    /// Updates the index entries above a node whose first key has changed.
    pub(super) fn update_parent_keys(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        path: &Path,
        from: usize,
    ) -> Result<()> {
        let mut level = from;
        while level > 0 {
            let first = self.with_node(core, &path[level], |node| key(node, 0));
            let parent = &path[level - 1];
            self.change_node(h, inode, core, parent, |node| {
                let at = HEADER + parent.index * ENTRY;
                put_key(&mut node[at..], first);
            })?;
            if parent.index > 0 {
                break;
            }
            level -= 1;
        }
        Ok(())
    }

    /// Adds to the block count of a file; `blocks` may be negative.
    pub(crate) fn charge_blocks(&self, inode: &Inode, core: &mut InodeCore, blocks: i64) {
        let units = blocks << (self.sb.block_bits - 9);
        core.blocks_512 = core.blocks_512.saturating_add_signed(units);
        let total = core.blocks_512;
        inode.with_attr(|attr| attr.blocks_512 = total);
    }

    fn new_node(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        deep: u16,
        moved: &[u8],
    ) -> Result<BlockNo> {
        let block = self.alloc_meta_block(h, inode, self.goal_for(inode))?;
        self.charge_blocks(inode, core, 1);
        let buffer = self.new_block(block)?;
        h.modify(&buffer, |node| {
            put_header(node, (node.len() - HEADER) / ENTRY, deep);
            node[HEADER..HEADER + moved.len()].copy_from_slice(moved);
            set_entries(node, moved.len() / ENTRY);
            self.seal_node(inode, node);
        })?;
        buffer.set_verified();
        Ok(block)
    }

    /// Makes space in the full node at `level`: moves its upper part to a new node, or the root's entries
    /// down.
    fn split(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        path: &Path,
        level: usize,
        at_end: bool,
    ) -> Result<()> {
        if level == 0 {
            let deep = depth(&core.i_block);
            if deep >= MAX_DEPTH {
                return Err(self.corrupt_inode("extent tree: deeper than the format allows", inode));
            }
            let moved = core.i_block[HEADER..HEADER + entries(&core.i_block) * ENTRY].to_vec();
            let first = key(&core.i_block, 0);
            let block = self.new_node(h, inode, core, deep, &moved)?;
            put_header(&mut core.i_block, 4, deep + 1);
            insert_at(&mut core.i_block, 0, &index_entry(first, block));
            return Ok(());
        }
        let parent = &path[level - 1];
        if self.with_node(core, parent, |node| entries(node) == capacity(node)) {
            let parent_at_end = self.with_node(core, parent, |node| parent.index + 1 == entries(node));
            return self.split(h, inode, core, path, level - 1, at_end && parent_at_end);
        }
        // Files mostly grow at their end: keep the node full and start the new one with one entry.
        let (deep, moved, keep) = self.with_node(core, &path[level], |node| {
            let count = entries(node);
            let keep = if at_end { count - 1 } else { count / 2 };
            (depth(node), node[HEADER + keep * ENTRY..HEADER + count * ENTRY].to_vec(), keep)
        });
        let first = first_key(&moved);
        let block = self.new_node(h, inode, core, deep, &moved)?;
        self.change_node(h, inode, core, &path[level], |node| set_entries(node, keep))?;
        self.change_node(h, inode, core, parent, |node| {
            insert_at(node, parent.index + 1, &index_entry(first, block));
        })
    }

    /// Maps a run that is a hole. Changes at most three blocks a level.
    pub(super) fn extent_insert(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        new: Extent,
    ) -> Result<()> {
        loop {
            let path = self.extent_path(inode, core, new.file_block)?;
            let level = path.len() - 1;
            let leaf = &path[level];
            let (count, full, left, right) = self.with_node(core, leaf, |node| {
                let count = entries(node);
                let at = |index: usize| (index < count).then(|| Extent::decode(entry(node, index)));
                let left = at(leaf.index);
                (count, count == capacity(node), left, at(leaf.index + 1))
            });
            // `find` also returns 0 if the new extent comes before all others.
            let before_all = left.is_some_and(|left| left.file_block > new.file_block);
            let (left, right, place) = match () {
                () if count == 0 => (None, None, 0),
                () if before_all => (None, left, 0),
                () => (left, right, leaf.index + 1),
            };
            if left.is_some_and(|left| left.end() > new.file_block)
                || right.is_some_and(|right| new.end() > right.file_block)
            {
                return Err(self.corrupt_inode("extent tree: a new extent overlaps an old one", inode));
            }
            if let Some(left) = left.filter(|left| left.joins(&new)) {
                let joined = Extent { len: left.len + new.len, ..left };
                let closes_gap = right.filter(|right| joined.joins(right));
                self.change_node(h, inode, core, leaf, |node| {
                    let at = HEADER + (place - 1) * ENTRY;
                    let len = joined.len + closes_gap.map_or(0, |right| right.len);
                    node[at..at + ENTRY].copy_from_slice(&Extent { len, ..joined }.encode());
                    if closes_gap.is_some() {
                        remove_at(node, place);
                    }
                })?;
                return self.shorten(h, inode, core);
            }
            if let Some(right) = right.filter(|right| new.joins(right)) {
                self.change_node(h, inode, core, leaf, |node| {
                    let at = HEADER + place * ENTRY;
                    node[at..at + ENTRY]
                        .copy_from_slice(&Extent { len: new.len + right.len, ..new }.encode());
                })?;
                return if place == 0 {
                    self.update_parent_keys(h, inode, core, &path, level)
                } else {
                    Ok(())
                };
            }
            if !full {
                self.change_node(h, inode, core, leaf, |node| insert_at(node, place, &new.encode()))?;
                return if place == 0 {
                    self.update_parent_keys(h, inode, core, &path, level)
                } else {
                    Ok(())
                };
            }
            self.split(h, inode, core, &path, level, place == count)?;
        }
    }

    /// Unmaps the first mapped piece inside `from..to` and returns it; `None` if nothing is mapped there. The
    /// caller owns its blocks then. Changes at most three blocks a level.
    pub(super) fn extent_take(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        from: FileBlock,
        to: FileBlock,
    ) -> Result<Option<Extent>> {
        if from >= to {
            return Ok(None);
        }
        let Some(extent) = self.extent_at_or_after(inode, core, from)? else { return Ok(None) };
        let (first, last) = (from.max(extent.file_block), to.min(extent.end()));
        if first >= last {
            return Ok(None);
        }
        let taken = extent.part(first, last);
        let head = (first > extent.file_block).then(|| extent.part(extent.file_block, first));
        let tail = (last < extent.end()).then(|| extent.part(last, extent.end()));
        let kept: Vec<Extent> = head.into_iter().chain(tail).collect();
        if kept.is_empty() {
            let path = self.extent_path(inode, core, extent.file_block)?;
            self.remove_entry(h, inode, core, &path, path.len() - 1)?;
        } else {
            self.extent_replace(h, inode, core, extent.file_block, &kept)?;
        }
        self.shorten(h, inode, core)?;
        Ok(Some(taken))
    }

    /// Replaces the extent that begins at `file_block` by one to three pieces. Makes space first: an error
    /// leaves every mapping unchanged.
    pub(super) fn extent_replace(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        file_block: FileBlock,
        pieces: &[Extent],
    ) -> Result<()> {
        loop {
            let path = self.extent_path(inode, core, file_block)?;
            let level = path.len() - 1;
            let leaf = &path[level];
            let (here, room) = self.with_node(core, leaf, |node| {
                let here = leaf.index < entries(node) && key(node, leaf.index) == file_block;
                (here, capacity(node) - entries(node))
            });
            if !here {
                return Err(self.corrupt_inode("extent tree: an extent is not where it was found", inode));
            }
            if room + 1 < pieces.len() {
                self.split(h, inode, core, &path, level, false)?;
                continue;
            }
            self.change_node(h, inode, core, leaf, |node| {
                let at = HEADER + leaf.index * ENTRY;
                node[at..at + ENTRY].copy_from_slice(&pieces[0].encode());
                for (nth, piece) in pieces.iter().enumerate().skip(1) {
                    insert_at(node, leaf.index + nth, &piece.encode());
                }
            })?;
            if leaf.index == 0 && pieces[0].file_block != file_block {
                self.update_parent_keys(h, inode, core, &path, level)?;
            }
            return Ok(());
        }
    }

    /// Moves the entries of a root's only child into the root, if they fit.
    pub(super) fn shorten(&self, h: &mut Handle, inode: &Inode, core: &mut InodeCore) -> Result<()> {
        while depth(&core.i_block) > 0 && entries(&core.i_block) == 1 {
            let deep = depth(&core.i_block) - 1;
            let block = child(&core.i_block, 0);
            let buffer = self.extent_node(inode, block, deep)?;
            let node = buffer.read();
            let count = entries(&node);
            if count > capacity(&core.i_block) {
                return Ok(());
            }
            let moved = node[HEADER..HEADER + count * ENTRY].to_vec();
            drop(node);
            put_header(&mut core.i_block, 4, deep);
            core.i_block[HEADER..HEADER + moved.len()].copy_from_slice(&moved);
            set_entries(&mut core.i_block, count);
            self.free_blocks(h, block, 1, true)?;
            self.charge_blocks(inode, core, -1);
        }
        Ok(())
    }

    /// Removes the entry that the path refers to at `level`, and every node that becomes empty.
    fn remove_entry(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        path: &Path,
        level: usize,
    ) -> Result<()> {
        let step = &path[level];
        let left = self.with_node(core, step, entries) - 1;
        if left == 0 && level > 0 {
            let block = step.buffer.as_ref().expect("only the root has no buffer").block();
            self.free_blocks(h, block, 1, true)?;
            self.charge_blocks(inode, core, -1);
            return self.remove_entry(h, inode, core, path, level - 1);
        }
        self.change_node(h, inode, core, step, |node| remove_at(node, step.index))?;
        if left == 0 {
            core.i_block = empty_root();
        } else if step.index == 0 {
            self.update_parent_keys(h, inode, core, path, level)?;
        }
        Ok(())
    }
}
