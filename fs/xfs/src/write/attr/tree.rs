//! Attributes in blocks: one, or a hash tree of them.

use super::key::Key;
use super::leaf::{AttrLeaf, Item};
use super::{fork_offset, short};
use crate::attr::{Attribute, Value};
use crate::fork::{Extent, Fork, ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::attribute::{VALUE_MAX, flags};
use crate::layout::checksum::DA_BLOCK;
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::write::hash_tree::{Path, Shape};
use crate::write::tx::Tx;
use ivers_block::{BlockNo, FileBlock, Unit};
use ivers_vfs::{NameError, Result};

const TREE: Shape = Shape { which: Which::Attributes, root: FileBlock(0), unit: 1 };

impl Tx<'_> {
    fn attr_leaf(&self, inode: &Dinode, at: FileBlock) -> Result<AttrLeaf> {
        self.read_tree(inode, TREE, at, |bytes| AttrLeaf::decode(&self.space().sb, bytes))
    }

    fn store_attr_leaf(&mut self, inode: &Dinode, at: FileBlock, leaf: &mut AttrLeaf) -> Result<()> {
        let sb = &self.space().sb;
        self.change_tree(inode, TREE, at, |bytes| leaf.encode(sb, bytes))
    }

    /// Moves all attributes from the inode to a block. One of them may be new.
    pub(super) fn short_to_leaf(&mut self, inode: &mut Dinode, all: Vec<Attribute>) -> Result<()> {
        inode.attrs = Fork::Extents(Vec::new());
        inode.set_extents(Which::Attributes, 0)?;
        inode.raw.di_forkoff = self.offset_for_blocks(inode)?;
        self.new_fork_unit(inode, Which::Attributes, (FileBlock(0), 1), &DA_BLOCK)?;
        self.store_attr_leaf(inode, FileBlock(0), &mut AttrLeaf::default())?;
        for attribute in all {
            let item = self.item_of(inode, attribute)?;
            self.add_item(inode, item)?;
        }
        Ok(())
    }

    /// Makes space for an attribute fork of extents.
    fn offset_for_blocks(&mut self, inode: &mut Dinode) -> Result<u8> {
        if let Some(offset) = fork_offset::for_blocks(inode, &self.space().sb) {
            return Ok(offset);
        }
        match inode.data {
            Fork::Extents(_) => self.extents_to_tree(inode, Which::Data)?,
            Fork::Local(_) => self.data_out_of_inode(inode)?,
            _ => {}
        }
        let offset = fork_offset::for_blocks(inode, &self.space().sb);
        offset.ok_or_else(|| NameError::NoSpace.into())
    }

    pub(super) fn change_tree_attributes(
        &mut self,
        inode: &mut Dinode,
        old: Option<Key<'_>>,
        new: Option<(Key<'_>, &[u8])>,
    ) -> Result<()> {
        if let Some(old) = old {
            self.remove_item(inode, old)?;
        }
        match new {
            Some((key, value)) => {
                let (name, value) = (key.name.to_vec(), Value::Here(value.to_vec()));
                let item = self.item_of(inode, Attribute { flags: key.namespace, name, value })?;
                self.add_item(inode, item)
            }
            None => self.leaf_to_short(inode),
        }
    }

    /// Removes an attribute. The root may have none after that.
    fn remove_item(&mut self, inode: &mut Dinode, key: Key<'_>) -> Result<()> {
        let hash = key.hash();
        let mut path = self.find_leaf(inode, TREE, hash)?;
        let (mut leaf, index) = loop {
            let leaf = self.attr_leaf(inode, path.leaf)?;
            let first = leaf.first_with(hash);
            let same = leaf.items[first..].iter().take_while(|item| item.hash == hash);
            if let Some(found) = same.into_iter().position(|item| key.is(&item.attribute)) {
                break (leaf, first + found);
            }
            if leaf.last_hash() > hash || !self.next_leaf(inode, TREE, &mut path)? {
                return Err(self.space().corrupt("an attribute is not where it was", inode.whose()));
            }
        };
        let item = leaf.items.remove(index);
        if let Value::Remote { block, len } = item.attribute.value {
            if len > VALUE_MAX {
                let what = format!("the value of an attribute has {len} bytes");
                return Err(self.space().corrupt(what, inode.whose()));
            }
            self.free_remote_value(inode, block, len)?;
        }
        if leaf.items.is_empty() && !path.is_root() {
            return self.remove_leaf(inode, TREE, &path);
        }
        self.store_attr_leaf(inode, path.leaf, &mut leaf)?;
        if !path.is_root() {
            self.set_last_hash(inode, TREE, &path, leaf.last_hash())?;
            self.join_attr_leaves(inode, &path, &leaf)?;
        }
        Ok(())
    }

    /// Joins a block with one beside it if both fit easily in one.
    fn join_attr_leaves(&mut self, inode: &mut Dinode, path: &Path, leaf: &AttrLeaf) -> Result<()> {
        let size = self.space().sb.block_size as usize;
        let bytes = |leaf: &AttrLeaf| leaf.items.iter().map(Item::bytes).sum::<usize>();
        if bytes(leaf) * 3 > size {
            return Ok(());
        }
        let Some((left_path, right_path)) = self.leaf_pair(inode, TREE, path)? else { return Ok(()) };
        let mut left = self.attr_leaf(inode, left_path.leaf)?;
        let right = self.attr_leaf(inode, right_path.leaf)?;
        if (bytes(&left) + bytes(&right)) * 4 > size * 3 {
            return Ok(());
        }
        left.items.extend(right.items.into_iter().map(|item| Item::new(item.hash, item.attribute)));
        self.store_attr_leaf(inode, left_path.leaf, &mut left)?;
        self.set_last_hash(inode, TREE, &left_path, left.last_hash())?;
        self.remove_leaf(inode, TREE, &right_path)
    }

    /// Adds an attribute.
    fn add_item(&mut self, inode: &mut Dinode, item: Item) -> Result<()> {
        let sb = &self.space().sb;
        let mut path = self.find_leaf(inode, TREE, item.hash)?;
        let mut leaf = self.attr_leaf(inode, path.leaf)?;
        let last = leaf.last_hash();
        leaf.insert(item);
        if AttrLeaf::fits(sb, &leaf.items) {
            self.store_attr_leaf(inode, path.leaf, &mut leaf)?;
            return self.set_last_hash(inode, TREE, &path, leaf.last_hash());
        }
        if path.is_root() {
            self.push_root_down(inode, TREE, &mut path, last)?;
        }
        let mut parts = split(sb.block_size as usize, leaf.items, |items| AttrLeaf::fits(sb, items));
        // From the right: each new block comes after the one on the left.
        let first = parts.remove(0);
        let first_last = first.last().map_or(0, |item| item.hash);
        for part in parts.into_iter().rev() {
            let new = self.new_tree_unit(inode, TREE)?;
            let items = part.into_iter().map(|item| Item::new(item.hash, item.attribute)).collect();
            let mut right = AttrLeaf { items };
            self.store_attr_leaf(inode, new, &mut right)?;
            self.add_leaf_after(inode, TREE, &path, (first_last, right.last_hash()), new)?;
            // A split of nodes moved the place of the leaf.
            path = self.path_to(inode, path.leaf, first_last)?;
        }
        self.store_attr_leaf(inode, path.leaf, &mut AttrLeaf { items: first })
    }

    /// Frees blocks of the attribute fork from the end on: at most `limit` extents, and as many blocks as
    /// this transaction can log. Returns whether none is left. If some are, the root becomes an empty leaf:
    /// no name leads to blocks that are gone.
    pub(super) fn free_attribute_blocks(&mut self, inode: &mut Dinode, limit: usize) -> Result<bool> {
        // Blocks of the tree and of values are a buffer each. The other half is for maps and groups.
        let each = self.space().costs.of_revoke(&Unit::new(&[BlockNo(0)]));
        let mut rest = (u64::from(self.credits) / 2 / each.max(1)).max(1);
        for _ in 0..limit {
            let Some(extent) = self.last_attribute_extent(inode)? else { return Ok(true) };
            let count = extent.len.min(rest);
            let first = FileBlock(extent.end().0 - count);
            for block in self.unit_blocks(inode, Which::Attributes, first, count)?.iter().copied() {
                self.forget_unit(&[block]);
            }
            self.unmap_range(inode, Which::Attributes, first, extent.end(), 1)?;
            rest -= count;
            if rest == 0 {
                break;
            }
        }
        if self.last_attribute_extent(inode)?.is_none() {
            return Ok(true);
        }
        let blocks = self.unit_blocks(inode, Which::Attributes, TREE.root, TREE.unit)?;
        self.new_described(&blocks, &DA_BLOCK, inode.whose(), |_| ())?;
        self.store_attr_leaf(inode, TREE.root, &mut AttrLeaf::default())?;
        Ok(false)
    }

    fn last_attribute_extent(&self, inode: &Dinode) -> Result<Option<Extent>> {
        Ok(self.find_extent(&inode.attrs, FileBlock(FILE_BLOCKS_END), inode.ino)?.0)
    }

    /// The path to a leaf by its last hash.
    fn path_to(&self, inode: &Dinode, at: FileBlock, last: u32) -> Result<Path> {
        let mut path = self.find_leaf(inode, TREE, last)?;
        while path.leaf != at {
            if !self.next_leaf(inode, TREE, &mut path)? {
                return Err(self.space().corrupt("a hash tree lost a leaf", inode.whose()));
            }
        }
        Ok(path)
    }

    /// Moves the attributes of the only block to the inode if they fit there.
    fn leaf_to_short(&mut self, inode: &mut Dinode) -> Result<()> {
        if !self.find_leaf(inode, TREE, 0)?.is_root() {
            return Ok(());
        }
        let leaf = self.attr_leaf(inode, FileBlock(0))?;
        let stays = |item: &Item| item.attribute.flags & flags::INCOMPLETE != 0;
        let all: Vec<Attribute> = leaf.items.iter().map(|item| item.attribute.clone()).collect();
        let bytes = if leaf.items.iter().any(stays) { None } else { short::encode(&all) };
        let offset =
            bytes.as_ref().and_then(|bytes| fork_offset::for_local(inode, &self.space().sb, bytes.len()));
        if offset.is_none() {
            return Ok(());
        }
        self.free_fork_unit(inode, Which::Attributes, FileBlock(0), 1)?;
        if all.is_empty() {
            fork_offset::drop_attributes(inode);
            return Ok(());
        }
        // In the inode no attribute is marked as being in a block.
        let all: Vec<Attribute> =
            all.into_iter().map(|one| Attribute { flags: one.flags & !flags::LOCAL, ..one }).collect();
        self.store_short_attributes(inode, &all)?;
        Ok(())
    }
}

/// Splits items that do not fit in one block into two or three parts that do.
fn split(size: usize, mut items: Vec<Item>, fits: impl Fn(&[Item]) -> bool) -> Vec<Vec<Item>> {
    let total: usize = items.iter().map(Item::bytes).sum();
    let mut best: Option<(usize, usize)> = None;
    let mut left = 0;
    for at in 1..items.len() {
        left += items[at - 1].bytes();
        let difference = left.abs_diff(total - left);
        if fits(&items[..at]) && fits(&items[at..]) && best.is_none_or(|(found, _)| difference < found) {
            best = Some((difference, at));
        }
    }
    if let Some((_, at)) = best {
        let right = items.split_off(at);
        return vec![items, right];
    }
    // A large one in the middle is alone.
    let mut parts: Vec<Vec<Item>> = vec![Vec::new()];
    let mut used = 0;
    for item in items {
        let bytes = item.bytes();
        if used > 0 && used + bytes > size / 4 * 3 {
            parts.push(Vec::new());
            used = 0;
        }
        used += bytes;
        if let Some(last) = parts.last_mut() {
            last.push(item);
        }
    }
    parts
}
