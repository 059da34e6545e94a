//! B-trees of extents: lookup is in `fork`; here records are inserted, removed and replaced.
//!
//! Blocks other than the root have at least half as many entries as fit. The root is in the inode.

use super::alloc::{AllocRequest, Run};
use super::tx::Tx;
use crate::btree::MAX_LEVELS;
use crate::fork::{Extent, Fork, TreeRoot, Which, root_room};
use crate::inode::Dinode;
use crate::layout::bytes::number;
use crate::layout::checksum::LONG_BTREE;
use crate::layout::owner::Owner;
use crate::layout::raw::RawLongBlock;
use crate::layout::superblock::{FsBlock, Superblock};
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_block::BlockNo;
use ivers_vfs::{NameError, Result};
use std::mem::size_of;

const HEADER_BYTES: usize = size_of::<RawLongBlock>();
/// Bytes of a record, and of a key with its pointer.
const ENTRY_BYTES: usize = 16;
/// No neighbour.
const NO_BLOCK: u64 = u64::MAX;

/// A record as two numbers, or key and pointer of a child.
type Entry = (u64, u64);

/// A change of the tree.
#[derive(Debug, Clone, Copy)]
pub(super) enum Edit {
    Insert(Extent),
    /// Removes the extent that starts at a file block.
    Remove(u64),
    /// Replaces the extent that starts at a file block. The order of extents stays.
    Replace(u64, Extent),
}

impl Edit {
    /// The file block by which the place is found.
    fn key(&self) -> u64 {
        match self {
            Self::Insert(extent) => extent.file_block.0,
            Self::Remove(at) | Self::Replace(at, _) => *at,
        }
    }
}

/// Which tree it is.
#[derive(Debug, Clone, Copy)]
struct Tree {
    ino: u64,
    owner: Owner,
    /// The most entries of a block.
    most: usize,
}

/// A block that is being changed.
struct Block {
    at: BlockNo,
    pointer: u64,
    level: u32,
    left: u64,
    right: u64,
    entries: Vec<Entry>,
}

/// What changed in a block.
struct Changed {
    /// The key of the first entry; `None` if none is left.
    first: Option<u64>,
    count: usize,
    /// A new block after it.
    split: Option<Entry>,
}

fn key_of(level: u32, entry: Entry) -> u64 {
    if level == 0 { Extent::from_words(entry).file_block.0 } else { entry.0 }
}

/// The most entries of a block.
fn block_room(sb: &Superblock) -> usize {
    (sb.block_size as usize - HEADER_BYTES) / ENTRY_BYTES
}

impl Tx<'_> {
    fn tree_of(&self, inode: &Dinode, which: Which) -> Tree {
        let owner = Owner::extent_tree(inode.ino, which == Which::Attributes);
        Tree { ino: inode.ino, owner, most: block_room(&self.space().sb) }
    }

    fn bad_tree(&self, tree: Tree, what: impl Into<String>) -> ivers_vfs::Error {
        self.space().corrupt(what, Whose::Inode(tree.ino))
    }

    /// Reads a block of a tree, and checks it.
    fn extent_block(&self, tree: Tree, pointer: u64, level: u32) -> Result<Block> {
        let sb = &self.space().sb;
        let at = sb
            .run(FsBlock(pointer), 1)
            .ok_or_else(|| self.bad_tree(tree, format!("the extent B-tree refers to block {pointer}")))?;
        let bytes = self.read_unit(&[at], Some(&LONG_BTREE), Whose::Inode(tree.ino))?;
        let field = |at, len| number(&bytes, at, len).unwrap_or(0);
        let count = field(6, 2) as usize;
        let is_right = bytes.starts_with(TreeKind::Extents.magic(true))
            && field(4, 2) == u64::from(level)
            && (1..=tree.most).contains(&count);
        let (first, second) = match level {
            0 => (0, 8),
            _ => (0, tree.most * 8),
        };
        let step = if level == 0 { ENTRY_BYTES } else { ENTRY_BYTES / 2 };
        let entry = |nth: usize| {
            let at = HEADER_BYTES + nth * step;
            (field(at + first, 8), field(at + second, 8))
        };
        let entries: Vec<Entry> = (0..count.min(tree.most)).map(entry).collect();
        let in_order = entries.windows(2).all(|pair| key_of(level, pair[0]) < key_of(level, pair[1]));
        if !is_right || !in_order {
            let what =
                format!("a block of the extent B-tree has a wrong magic, level, order or {count} records");
            return Err(self.space().corrupt_block(what, Whose::Inode(tree.ino), at));
        }
        Ok(Block { at, pointer, level, left: field(8, 8), right: field(16, 8), entries })
    }

    fn store_extent_block(&mut self, tree: Tree, block: &Block) -> Result<()> {
        let (level, count) = (block.level as u16, block.entries.len() as u16);
        self.modify(&[block.at], Some(&LONG_BTREE), Whose::Inode(tree.ino), |bytes| {
            bytes[4..6].copy_from_slice(&level.to_be_bytes());
            bytes[6..8].copy_from_slice(&count.to_be_bytes());
            bytes[8..16].copy_from_slice(&block.left.to_be_bytes());
            bytes[16..24].copy_from_slice(&block.right.to_be_bytes());
            for (nth, (first, second)) in block.entries.iter().enumerate() {
                let (a, b) = match level {
                    0 => (nth * ENTRY_BYTES, nth * ENTRY_BYTES + 8),
                    _ => (nth * 8, (tree.most + nth) * 8),
                };
                bytes[HEADER_BYTES + a..][..8].copy_from_slice(&first.to_be_bytes());
                bytes[HEADER_BYTES + b..][..8].copy_from_slice(&second.to_be_bytes());
            }
        })
    }

    /// Makes a block of a tree; returns its pointer.
    fn new_extent_block(
        &mut self,
        inode: &mut Dinode,
        tree: Tree,
        near: u64,
        level: u32,
        (left, right): (u64, u64),
        entries: Vec<Entry>,
    ) -> Result<u64> {
        let request = AllocRequest { goal: FsBlock(near), min: 1, max: 1, alignment: 1, owner: tree.owner };
        let run = self.allocate(request)?.ok_or(NameError::NoSpace)?;
        let sb = &self.space().sb;
        let at = sb
            .run(run.start, 1)
            .ok_or_else(|| self.bad_tree(tree, "a block outside the filesystem was allocated"))?;
        self.new_described(&[at], &LONG_BTREE, Whose::Inode(tree.ino), |bytes| {
            bytes[..4].copy_from_slice(TreeKind::Extents.magic(true));
        })?;
        let block = Block { at, pointer: run.start.0, level, left, right, entries };
        self.store_extent_block(tree, &block)?;
        if right != NO_BLOCK {
            let mut next = self.extent_block(tree, right, level)?;
            next.left = run.start.0;
            self.store_extent_block(tree, &next)?;
        }
        inode.add_blocks(1);
        Ok(run.start.0)
    }

    fn free_extent_block(&mut self, inode: &mut Dinode, tree: Tree, block: &Block) -> Result<()> {
        self.forget_unit(&[block.at]);
        inode.add_blocks(-1);
        self.free(Run { start: FsBlock(block.pointer), len: 1 }, tree.owner)
    }

    /// Makes a tree of the extents of a fork.
    pub(super) fn extents_to_tree(&mut self, inode: &mut Dinode, which: Which) -> Result<()> {
        let Fork::Extents(list) = inode.fork(which) else { return Ok(()) };
        let tree = self.tree_of(inode, which);
        let entries: Vec<Entry> = list.iter().map(Extent::words).collect();
        let (first, near) = list.first().map_or((0, 0), |extent| (extent.file_block.0, extent.start.0));
        inode.set_extents(which, entries.len() as u64)?;
        let pointer = self.new_extent_block(inode, tree, near, 0, (NO_BLOCK, NO_BLOCK), entries)?;
        *inode.fork_mut(which) = Fork::Btree(TreeRoot { level: 1, children: vec![(first, pointer)] });
        Ok(())
    }

    /// Changes a tree. It becomes a list of extents if that fits in the inode.
    pub(super) fn edit_tree(&mut self, inode: &mut Dinode, which: Which, edit: Edit) -> Result<()> {
        let tree = self.tree_of(inode, which);
        let room = root_room(inode.space(&self.space().sb, which));
        let Fork::Btree(root) = inode.fork(which) else {
            return Err(self.bad_tree(tree, "the fork has no extent B-tree"));
        };
        let (mut level, mut children) = (root.level, root.children.clone());
        let index = children.partition_point(|(key, _)| *key <= edit.key()).saturating_sub(1);
        let changed = self.edit_below(inode, tree, children[index].1, level - 1, edit)?;
        self.update_children(inode, tree, level, &mut children, index, &changed)?;
        if children.len() > room {
            // All children go into a new block below the root. A block has more room than an inode.
            let (first, near) = children[0];
            let links = (NO_BLOCK, NO_BLOCK);
            let pointer = self.new_extent_block(inode, tree, near, level, links, children)?;
            children = vec![(first, pointer)];
            level += 1;
            if level >= MAX_LEVELS {
                return Err(self.bad_tree(tree, "the extent B-tree has too many levels"));
            }
        }
        while level > 1 && children.len() == 1 {
            let block = self.extent_block(tree, children[0].1, level - 1)?;
            if block.entries.len() > room {
                break;
            }
            self.free_extent_block(inode, tree, &block)?;
            children = block.entries;
            level -= 1;
        }
        let count = match edit {
            Edit::Insert(_) => inode.extents(which).saturating_add(1),
            Edit::Remove(_) => inode.extents(which).saturating_sub(1),
            Edit::Replace(..) => inode.extents(which),
        };
        inode.set_extents(which, count)?;
        *inode.fork_mut(which) = Fork::Btree(TreeRoot { level, children });
        self.tree_to_extents(inode, which, tree)
    }

    /// Turns the data's tree into a list of extents if the data has the space now. xfs_repair takes a tree
    /// that would fit for damage.
    pub(super) fn data_tree_to_extents(&mut self, inode: &mut Dinode) -> Result<()> {
        let tree = self.tree_of(inode, Which::Data);
        self.tree_to_extents(inode, Which::Data, tree)
    }

    /// Turns a tree of one leaf into a list of extents if that fits.
    fn tree_to_extents(&mut self, inode: &mut Dinode, which: Which, tree: Tree) -> Result<()> {
        let room = inode.space(&self.space().sb, which) / ENTRY_BYTES;
        let Fork::Btree(root) = inode.fork(which) else { return Ok(()) };
        let list = match root.children.first() {
            None => Vec::new(),
            Some(_) if root.level > 1 || root.children.len() > 1 => return Ok(()),
            Some((_, pointer)) => {
                let block = self.extent_block(tree, *pointer, 0)?;
                if block.entries.len() > room {
                    return Ok(());
                }
                self.free_extent_block(inode, tree, &block)?;
                block.entries
            }
        };
        *inode.fork_mut(which) = Fork::Extents(list.into_iter().map(Extent::from_words).collect());
        Ok(())
    }

    /// Changes a block and what is below it.
    fn edit_below(
        &mut self,
        inode: &mut Dinode,
        tree: Tree,
        pointer: u64,
        level: u32,
        edit: Edit,
    ) -> Result<Changed> {
        let mut block = self.extent_block(tree, pointer, level)?;
        let after = block.entries.partition_point(|entry| key_of(level, *entry) <= edit.key());
        if level == 0 {
            self.edit_leaf(tree, &mut block, after, edit)?;
        } else {
            let index = after.saturating_sub(1);
            let changed = self.edit_below(inode, tree, block.entries[index].1, level - 1, edit)?;
            let mut children = std::mem::take(&mut block.entries);
            self.update_children(inode, tree, level, &mut children, index, &changed)?;
            block.entries = children;
        }
        let mut split = None;
        if block.entries.len() > tree.most {
            let rest = block.entries.split_off(block.entries.len() / 2);
            let key = key_of(level, rest[0]);
            let links = (pointer, block.right);
            let right = self.new_extent_block(inode, tree, pointer, level, links, rest)?;
            block.right = right;
            split = Some((key, right));
        }
        let first = block.entries.first().map(|entry| key_of(level, *entry));
        let count = block.entries.len();
        if count == 0 {
            self.unlink_extent_block(tree, &block)?;
            self.free_extent_block(inode, tree, &block)?;
        } else {
            self.store_extent_block(tree, &block)?;
        }
        Ok(Changed { first, count, split })
    }

    fn edit_leaf(&self, tree: Tree, leaf: &mut Block, after: usize, edit: Edit) -> Result<()> {
        if let Edit::Insert(extent) = edit {
            leaf.entries.insert(after, extent.words());
            return Ok(());
        }
        let index = after.checked_sub(1).filter(|index| key_of(0, leaf.entries[*index]) == edit.key());
        let index = index.ok_or_else(|| {
            self.bad_tree(tree, format!("the extent B-tree has no extent at file block {}", edit.key()))
        })?;
        match edit {
            Edit::Replace(_, extent) => leaf.entries[index] = extent.words(),
            _ => {
                leaf.entries.remove(index);
            }
        }
        Ok(())
    }

    /// Takes a block out of the list of its level.
    fn unlink_extent_block(&mut self, tree: Tree, block: &Block) -> Result<()> {
        if block.left != NO_BLOCK {
            let mut left = self.extent_block(tree, block.left, block.level)?;
            left.right = block.right;
            self.store_extent_block(tree, &left)?;
        }
        if block.right != NO_BLOCK {
            let mut right = self.extent_block(tree, block.right, block.level)?;
            right.left = block.left;
            self.store_extent_block(tree, &right)?;
        }
        Ok(())
    }

    /// Updates the children of a block of `level` after the child `index` was changed. A child with too few
    /// entries is joined with one beside it, or gets some of its entries.
    fn update_children(
        &mut self,
        inode: &mut Dinode,
        tree: Tree,
        level: u32,
        children: &mut Vec<Entry>,
        index: usize,
        changed: &Changed,
    ) -> Result<()> {
        match changed.first {
            Some(key) => children[index].0 = key,
            None => {
                children.remove(index);
                return Ok(());
            }
        }
        if let Some(split) = changed.split {
            children.insert(index + 1, split);
            return Ok(());
        }
        if changed.count >= tree.most / 2 || children.len() < 2 {
            return Ok(());
        }
        let left_index = if index + 1 < children.len() { index } else { index - 1 };
        let mut left = self.extent_block(tree, children[left_index].1, level - 1)?;
        let mut right = self.extent_block(tree, children[left_index + 1].1, level - 1)?;
        left.entries.append(&mut right.entries);
        if left.entries.len() <= tree.most {
            self.unlink_extent_block(tree, &right)?;
            left.right = right.right;
            self.store_extent_block(tree, &left)?;
            children.remove(left_index + 1);
            return self.free_extent_block(inode, tree, &right);
        }
        right.entries = left.entries.split_off(left.entries.len() / 2);
        children[left_index + 1].0 = key_of(level - 1, right.entries[0]);
        self.store_extent_block(tree, &left)?;
        self.store_extent_block(tree, &right)
    }
}
