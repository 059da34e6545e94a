//! Hash trees: nodes, and which leaf has a hash. What is in leaves is known to directories and attributes.
//!
//! The root stays at one file block. When it is split, its contents move to a new block; when it has one
//! child left, the contents of the child move into it.

use super::node::Node;
use super::tx::Tx;
use crate::fork::Which;
use crate::inode::Dinode;
use crate::layout::bytes::number;
use crate::layout::checksum::{DA_BLOCK, SelfDescription};
use crate::layout::directory::{dir_unit, leaf_root};
use crate::layout::raw::RawDaHeader;
use crate::unit::Whose;
use ivers_block::{BlockNo, FileBlock, Unit};
use ivers_vfs::{NameError, Result};
use std::collections::BTreeSet;
use std::mem::{offset_of, size_of};

/// The most levels of nodes that Linux reads.
const MOST_LEVELS: usize = 5;

/// Which tree of an inode it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) which: Which,
    /// The file block of the root.
    pub(super) root: FileBlock,
    /// Filesystem blocks of a block of the tree.
    pub(super) unit: u64,
}

/// Where a leaf is.
#[derive(Debug, Clone)]
pub(super) struct Path {
    /// From the root down: nodes, and in each the index of the child.
    nodes: Vec<(FileBlock, usize)>,
    pub(super) leaf: FileBlock,
    /// Leaves before this one. A damaged tree could lead to a leaf again and again.
    seen: BTreeSet<FileBlock>,
}

impl Path {
    /// Whether the root is the leaf.
    pub(super) fn is_root(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Tx<'_> {
    /// The tree of a directory.
    pub(super) fn dir_tree(&self) -> Shape {
        let sb = &self.space().sb;
        Shape { which: Which::Data, root: leaf_root(sb), unit: dir_unit(sb) }
    }

    /// Damage of a block of a fork.
    pub(super) fn bad_unit(&self, ino: u64, blocks: &[BlockNo], what: String) -> ivers_vfs::Error {
        let first = blocks.first().copied().unwrap_or_default();
        self.space().corrupt_block(what, Whose::Inode(ino), first)
    }

    /// Changes a unit of a fork; `change` may find damage.
    pub(super) fn change_unit<R>(
        &mut self,
        ino: u64,
        blocks: &[BlockNo],
        kind: &SelfDescription,
        change: impl FnOnce(&mut [u8]) -> std::result::Result<R, String>,
    ) -> Result<R> {
        self.modify(blocks, Some(kind), Whose::Inode(ino), change)?
            .map_err(|what| self.bad_unit(ino, blocks, what))
    }

    /// Gives blocks to a unit of a fork, zeroed but for what it says of itself.
    pub(super) fn new_fork_unit(
        &mut self,
        inode: &mut Dinode,
        which: Which,
        (at, count): (FileBlock, u64),
        kind: &SelfDescription,
    ) -> Result<Unit> {
        self.map_all(inode, which, at, count)?;
        let blocks = self.unit_blocks(inode, which, at, count)?;
        self.new_described(&blocks, kind, inode.whose(), |_| ())?;
        Ok(blocks)
    }

    /// Frees a unit of a fork.
    pub(super) fn free_fork_unit(
        &mut self,
        inode: &mut Dinode,
        which: Which,
        at: FileBlock,
        count: u64,
    ) -> Result<()> {
        let blocks = self.unit_blocks(inode, which, at, count)?;
        self.forget_unit(&blocks);
        self.unmap_range(inode, which, at, at + count, usize::MAX)?;
        Ok(())
    }

    fn tree_unit(&self, inode: &Dinode, shape: Shape, at: FileBlock) -> Result<Unit> {
        self.unit_blocks(inode, shape.which, at, shape.unit)
    }

    /// Reads a block of the tree, and decodes it.
    pub(super) fn read_tree<R>(
        &self,
        inode: &Dinode,
        shape: Shape,
        at: FileBlock,
        decode: impl FnOnce(&[u8]) -> std::result::Result<R, String>,
    ) -> Result<R> {
        let blocks = self.tree_unit(inode, shape, at)?;
        let bytes = self.read_unit(&blocks, Some(&DA_BLOCK), inode.whose())?;
        decode(&bytes).map_err(|what| self.bad_unit(inode.ino, &blocks, what))
    }

    /// Changes a block of the tree.
    pub(super) fn change_tree(
        &mut self,
        inode: &Dinode,
        shape: Shape,
        at: FileBlock,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.try_change_tree(inode, shape, at, |bytes| {
            change(bytes);
            Ok(())
        })
    }

    /// As [`Tx::change_tree`]; `change` may find damage.
    pub(super) fn try_change_tree<R>(
        &mut self,
        inode: &Dinode,
        shape: Shape,
        at: FileBlock,
        change: impl FnOnce(&mut [u8]) -> std::result::Result<R, String>,
    ) -> Result<R> {
        let blocks = self.tree_unit(inode, shape, at)?;
        self.change_unit(inode.ino, &blocks, &DA_BLOCK, change)
    }

    fn node_at(&self, inode: &Dinode, shape: Shape, at: FileBlock) -> Result<Option<Node>> {
        self.read_tree(inode, shape, at, |bytes| Node::decode(&self.space().sb, bytes))
    }

    /// A node that a path goes through.
    fn node_on_path(&self, inode: &Dinode, shape: Shape, at: FileBlock) -> Result<Node> {
        self.node_at(inode, shape, at)?
            .ok_or_else(|| self.space().corrupt("a node of a hash tree is a leaf", inode.whose()))
    }

    fn store_node(&mut self, inode: &Dinode, shape: Shape, at: FileBlock, node: &Node) -> Result<()> {
        let sb = &self.space().sb;
        self.change_tree(inode, shape, at, |bytes| node.encode(sb, bytes))
    }

    /// Finds the first leaf that may have a hash: the last one if the hash is above all others.
    pub(super) fn find_leaf(&self, inode: &Dinode, shape: Shape, hash: u32) -> Result<Path> {
        let mut path = Path { nodes: Vec::new(), leaf: shape.root, seen: BTreeSet::new() };
        let mut above: Option<u16> = None;
        let sb = &self.space().sb;
        let child_for = |at| self.read_tree(inode, shape, at, |bytes| Node::child_for(sb, bytes, hash));
        while let Some((level, index, child)) = child_for(path.leaf)? {
            if above.is_some_and(|above| level + 1 != above) {
                return Err(self.space().corrupt("levels of a hash tree are wrong", inode.whose()));
            }
            above = Some(level);
            path.nodes.push((path.leaf, index));
            path.leaf = FileBlock(child.into());
        }
        if above.is_some_and(|above| above != 1) {
            return Err(self.space().corrupt("a leaf of a hash tree is at a wrong level", inode.whose()));
        }
        Ok(path)
    }

    /// Moves to the next leaf; returns whether there is one.
    pub(super) fn next_leaf(&self, inode: &Dinode, shape: Shape, path: &mut Path) -> Result<bool> {
        if !path.seen.insert(path.leaf) {
            return Err(self.space().corrupt("the leaves of a hash tree have a cycle", inode.whose()));
        }
        for depth in (0..path.nodes.len()).rev() {
            let (at, index) = path.nodes[depth];
            let node = self.node_on_path(inode, shape, at)?;
            if index + 1 < node.children.len() {
                path.nodes.truncate(depth);
                path.nodes.push((at, index + 1));
                let mut child = FileBlock(node.children[index + 1].1.into());
                for _ in 1..node.level {
                    let below = self.node_on_path(inode, shape, child)?;
                    path.nodes.push((child, 0));
                    child = FileBlock(below.children[0].1.into());
                }
                path.leaf = child;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The leaf beside another below the same node: first the right one, or else the left one. The result is
    /// the pair in order.
    pub(super) fn leaf_pair(
        &self,
        inode: &Dinode,
        shape: Shape,
        path: &Path,
    ) -> Result<Option<(Path, Path)>> {
        let Some(&(at, index)) = path.nodes.last() else { return Ok(None) };
        let node = self.node_on_path(inode, shape, at)?;
        let left = if index + 1 < node.children.len() { index } else { index.wrapping_sub(1) };
        let (Some(a), Some(b)) = (node.children.get(left), node.children.get(left.wrapping_add(1))) else {
            return Ok(None);
        };
        let with = |index: usize, block: u32| {
            let mut path = path.clone();
            if let Some(last) = path.nodes.last_mut() {
                last.1 = index;
            }
            path.leaf = FileBlock(block.into());
            path
        };
        Ok(Some((with(left, a.1), with(left + 1, b.1))))
    }

    /// Notes the last hash of a leaf in the nodes above it.
    pub(super) fn set_last_hash(
        &mut self,
        inode: &Dinode,
        shape: Shape,
        path: &Path,
        hash: u32,
    ) -> Result<()> {
        self.set_hash_above(inode, shape, &path.nodes, hash)
    }

    fn set_hash_above(
        &mut self,
        inode: &Dinode,
        shape: Shape,
        nodes: &[(FileBlock, usize)],
        hash: u32,
    ) -> Result<()> {
        for &(at, index) in nodes.iter().rev() {
            let mut node = self.node_on_path(inode, shape, at)?;
            let is_last = index + 1 == node.children.len();
            match node.children.get_mut(index) {
                Some(child) if child.0 != hash => child.0 = hash,
                _ => return Ok(()),
            }
            self.store_node(inode, shape, at, &node)?;
            if !is_last {
                break;
            }
        }
        Ok(())
    }

    /// A new block of the tree.
    pub(super) fn new_tree_unit(&mut self, inode: &mut Dinode, shape: Shape) -> Result<FileBlock> {
        let at = self.first_hole(inode, shape.which, shape.root, shape.unit)?;
        if at.0 > u32::MAX.into() {
            return Err(NameError::NoSpace.into());
        }
        self.new_fork_unit(inode, shape.which, (at, shape.unit), &DA_BLOCK)?;
        Ok(at)
    }

    /// Moves the contents of a block to another one, or a copy of them.
    fn copy_contents(&mut self, inode: &Dinode, shape: Shape, from: FileBlock, to: FileBlock) -> Result<()> {
        let (magic, crc) = (offset_of!(RawDaHeader, magic), offset_of!(RawDaHeader, crc));
        let contents = self.read_tree(inode, shape, from, |bytes| Ok(bytes.to_vec()))?;
        self.change_tree(inode, shape, to, |bytes| {
            bytes[magic..crc].copy_from_slice(&contents[magic..crc]);
            bytes[size_of::<RawDaHeader>()..].copy_from_slice(&contents[size_of::<RawDaHeader>()..]);
        })
    }

    /// Moves the root's contents to a new block, which becomes its only child. `last` is the last hash of a
    /// root that is a leaf.
    pub(super) fn push_root_down(
        &mut self,
        inode: &mut Dinode,
        shape: Shape,
        path: &mut Path,
        last: u32,
    ) -> Result<()> {
        if path.nodes.len() >= MOST_LEVELS {
            return Err(NameError::NoSpace.into());
        }
        let (last, level) = match self.node_at(inode, shape, shape.root)? {
            Some(node) => (node.children.last().map_or(0, |(hash, _)| *hash), node.level + 1),
            None => (last, 1),
        };
        let new = self.new_tree_unit(inode, shape)?;
        self.copy_contents(inode, shape, shape.root, new)?;
        self.store_node(inode, shape, shape.root, &Node { level, children: vec![(last, new.0 as u32)] })?;
        match path.nodes.first_mut() {
            Some(first) => first.0 = new,
            None => path.leaf = new,
        }
        path.nodes.insert(0, (shape.root, 0));
        Ok(())
    }

    fn links(&self, inode: &Dinode, shape: Shape, at: FileBlock) -> Result<(u32, u32)> {
        let field = |bytes: &[u8], at| number(bytes, at, 4).unwrap_or(0) as u32;
        self.read_tree(inode, shape, at, |bytes| Ok((field(bytes, 0), field(bytes, 4))))
    }

    fn set_link(&mut self, inode: &Dinode, shape: Shape, at: u32, offset: usize, to: u32) -> Result<()> {
        if at == 0 {
            return Ok(());
        }
        self.change_tree(inode, shape, FileBlock(at.into()), |bytes| {
            bytes[offset..offset + 4].copy_from_slice(&to.to_be_bytes());
        })
    }

    /// Puts a new block after another one of its level.
    fn link_after(&mut self, inode: &Dinode, shape: Shape, at: FileBlock, new: FileBlock) -> Result<()> {
        let (next, _) = self.links(inode, shape, at)?;
        let (at, new) = (at.0 as u32, new.0 as u32);
        self.set_link(inode, shape, new, 0, next)?;
        self.set_link(inode, shape, new, 4, at)?;
        self.set_link(inode, shape, at, 0, new)?;
        self.set_link(inode, shape, next, 4, new)
    }

    fn unlink_and_free(&mut self, inode: &mut Dinode, shape: Shape, at: FileBlock) -> Result<()> {
        let (next, before) = self.links(inode, shape, at)?;
        self.set_link(inode, shape, before, 0, next)?;
        self.set_link(inode, shape, next, 4, before)?;
        self.free_fork_unit(inode, shape.which, at, shape.unit)
    }

    /// Puts a new leaf after the one of a path, which is not the root. The hashes are the last of both.
    pub(super) fn add_leaf_after(
        &mut self,
        inode: &mut Dinode,
        shape: Shape,
        path: &Path,
        (last, new_last): (u32, u32),
        new: FileBlock,
    ) -> Result<()> {
        self.link_after(inode, shape, path.leaf, new)?;
        let depth = path.nodes.len() - 1;
        self.add_child(inode, shape, &mut path.clone(), depth, (last, (new_last, new.0 as u32)))
    }

    /// Adds a child to the node at a depth of a path, after the child of the path.
    fn add_child(
        &mut self,
        inode: &mut Dinode,
        shape: Shape,
        path: &mut Path,
        mut depth: usize,
        (last, new): (u32, (u32, u32)),
    ) -> Result<()> {
        let (mut at, index) = path.nodes[depth];
        let mut node = self.node_on_path(inode, shape, at)?;
        let sb = &self.space().sb;
        let room = Node::room(sb, (shape.unit << sb.block_bits) as usize);
        if node.children.len() >= room && depth == 0 {
            self.push_root_down(inode, shape, path, 0)?;
            depth = 1;
            at = path.nodes[1].0;
        }
        if let Some(child) = node.children.get_mut(index) {
            child.0 = last;
        }
        node.children.insert((index + 1).min(node.children.len()), new);
        let hash_of = |node: &Node| node.children.last().map_or(0, |(hash, _)| *hash);
        if node.children.len() <= room {
            self.store_node(inode, shape, at, &node)?;
            return self.set_hash_above(inode, shape, &path.nodes[..depth], hash_of(&node));
        }
        let rest = node.children.split_off(node.children.len() / 2);
        let right = Node { level: node.level, children: rest };
        let right_at = self.new_tree_unit(inode, shape)?;
        self.store_node(inode, shape, at, &node)?;
        self.store_node(inode, shape, right_at, &right)?;
        self.link_after(inode, shape, at, right_at)?;
        let new = (hash_of(&right), right_at.0 as u32);
        self.add_child(inode, shape, path, depth - 1, (hash_of(&node), new))
    }

    /// Removes a leaf that is not the root.
    pub(super) fn remove_leaf(&mut self, inode: &mut Dinode, shape: Shape, path: &Path) -> Result<()> {
        self.unlink_and_free(inode, shape, path.leaf)?;
        for depth in (0..path.nodes.len()).rev() {
            let (at, index) = path.nodes[depth];
            let mut node = self.node_on_path(inode, shape, at)?;
            if index >= node.children.len() {
                return Err(self.space().corrupt("a node of a hash tree lost a child", inode.whose()));
            }
            node.children.remove(index);
            match node.children.last() {
                Some((hash, _)) => {
                    let hash = *hash;
                    self.store_node(inode, shape, at, &node)?;
                    self.set_hash_above(inode, shape, &path.nodes[..depth], hash)?;
                    return self.pull_root_up(inode, shape);
                }
                None if depth > 0 => self.unlink_and_free(inode, shape, at)?,
                None => return Err(self.space().corrupt("a hash tree has no leaf", inode.whose())),
            }
        }
        Ok(())
    }

    /// While the root has one child, the child's contents move into it.
    fn pull_root_up(&mut self, inode: &mut Dinode, shape: Shape) -> Result<()> {
        while let Some(node) = self.node_at(inode, shape, shape.root)? {
            let [(_, child)] = node.children[..] else { break };
            let child = FileBlock(child.into());
            self.copy_contents(inode, shape, child, shape.root)?;
            self.free_fork_unit(inode, shape.which, child, shape.unit)?;
        }
        Ok(())
    }
}
