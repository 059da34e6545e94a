//! Moving the nodes of a file's map below the end that the filesystem is to have.

use super::indirect::{pointer, put};
use super::node::{entries, key, put_child};
use crate::fs::{Ext4, Handle, core_of};
use crate::layout::inode::FL_EXTENTS;
use crate::map::HOLE;
use ivers_block::{BlockNo, Buffer, FileBlock};
use ivers_vfs::{Inode, Result};
use std::sync::Arc;

/// Blocks that moving a node changes: the node, its parent, the inode, two bitmaps, two descriptors; and a
/// margin.
const CREDITS: u32 = 16;
/// The slots of `i_block` that refer to trees of one, two and three levels.
const TREES: [usize; 3] = [12, 13, 14];

impl Ext4 {
    /// Moves the nodes that lie at `limit` or after it.
    pub(super) fn relocate_nodes(&self, inode: &Inode, limit: BlockNo) -> Result<()> {
        if core_of(inode).read().flags & FL_EXTENTS != 0 {
            return self.relocate_extent_nodes(inode, limit);
        }
        for (depth, slot) in TREES.into_iter().enumerate() {
            let root = self.checked(inode, pointer(&core_of(inode).read().i_block, slot))?;
            if root != HOLE {
                let root = self.relocate_indirect(inode, limit, None, slot, root)?;
                self.relocate_indirect_below(inode, limit, root, depth)?;
            }
        }
        Ok(())
    }

    /// The blocks of all nodes of a map.
    pub(crate) fn map_nodes(&self, inode: &Inode) -> Result<Vec<BlockNo>> {
        let core = core_of(inode).read();
        if core.flags & FL_EXTENTS != 0 {
            let nodes = self.extent_nodes(inode, &core, usize::MAX)?.unwrap_or_default();
            return Ok(nodes.iter().map(|node| node.block()).collect());
        }
        let mut nodes = Vec::new();
        let mut next: Vec<(BlockNo, usize)> = Vec::new();
        for (depth, slot) in TREES.into_iter().enumerate() {
            next.push((pointer(&core.i_block, slot), depth));
        }
        while let Some((node, depth)) = next.pop() {
            if self.checked(inode, node)? == HOLE {
                continue;
            }
            nodes.push(node);
            if depth > 0 {
                let buffer = self.block(node)?;
                let bytes = buffer.read();
                next.extend((0..self.pointers() as usize).map(|index| (pointer(&bytes, index), depth - 1)));
            }
        }
        Ok(nodes)
    }

    fn relocate_extent_nodes(&self, inode: &Inode, limit: BlockNo) -> Result<()> {
        let mut at = FileBlock(0);
        loop {
            let (level, next) = {
                let core = core_of(inode).read();
                let path = self.extent_path(inode, &core, at)?;
                let far = |step: &super::extent::Step| {
                    step.buffer.as_ref().is_some_and(|buffer| buffer.block() >= limit)
                };
                let next = path.iter().rev().skip(1).find_map(|step| {
                    self.with_node(&core, step, |node| {
                        (step.index + 1 < entries(node)).then(|| key(node, step.index + 1))
                    })
                });
                (path.iter().position(far), next)
            };
            match (level, next) {
                (Some(level), _) => self.relocate_extent_node(inode, at, level)?,
                (None, Some(next)) if next > at => at = next,
                _ => return Ok(()),
            }
        }
    }

    fn relocate_extent_node(&self, inode: &Inode, at: FileBlock, level: usize) -> Result<()> {
        let mut h = self.begin(CREDITS)?;
        let mut core = core_of(inode).write();
        let path = self.extent_path(inode, &core, at)?;
        let (Some(old), Some(parent)) =
            (path.get(level).and_then(|step| step.buffer.clone()), path.get(level.wrapping_sub(1)))
        else {
            return Err(self.corrupt_inode("extent tree: a node is not where it was found", inode));
        };
        let new = self.copy_node(&mut h, inode, &old)?;
        self.change_node(&mut h, inode, &mut core, parent, |node| put_child(node, parent.index, new))?;
        drop(core);
        self.free_blocks(&mut h, old.block(), 1, true)?;
        self.log(&mut h, inode)
    }

    /// Copies a node to a new block. Its checksum does not depend on its position.
    fn copy_node(&self, h: &mut Handle, inode: &Inode, old: &Arc<Buffer>) -> Result<BlockNo> {
        let new = self.alloc_meta_block(h, inode, self.goal_for(inode))?;
        let copy = self.new_block(new)?;
        let bytes = old.read().to_vec();
        h.modify(&copy, |node| node.copy_from_slice(&bytes))?;
        Ok(new)
    }

    /// Moves a node of a block map, if necessary. `parent` is `None` for a root, whose pointer is in the
    /// inode. Returns where it is.
    fn relocate_indirect(
        &self,
        inode: &Inode,
        limit: BlockNo,
        parent: Option<&Arc<Buffer>>,
        index: usize,
        node: BlockNo,
    ) -> Result<BlockNo> {
        if node < limit {
            return Ok(node);
        }
        let mut h = self.begin(CREDITS)?;
        let new = self.copy_node(&mut h, inode, &self.block(node)?)?;
        match parent {
            Some(parent) => h.modify(parent, |bytes| put(bytes, index, new))?,
            None => put(&mut core_of(inode).write().i_block, index, new),
        }
        self.free_blocks(&mut h, node, 1, true)?;
        self.log(&mut h, inode)?;
        Ok(new)
    }

    fn relocate_indirect_below(
        &self,
        inode: &Inode,
        limit: BlockNo,
        node: BlockNo,
        depth: usize,
    ) -> Result<()> {
        if depth == 0 {
            return Ok(());
        }
        let buffer = self.block(node)?;
        for index in 0..self.pointers() as usize {
            let child = self.checked(inode, pointer(&buffer.read(), index))?;
            if child != HOLE {
                let child = self.relocate_indirect(inode, limit, Some(&buffer), index, child)?;
                self.relocate_indirect_below(inode, limit, child, depth - 1)?;
            }
        }
        Ok(())
    }
}
