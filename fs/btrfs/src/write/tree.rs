//! Changes of trees: copy on write, inserting, replacing and removing items.
//!
//! A block that the running transaction has made is changed in memory. Any other block on the way to a change
//! is replaced by a copy at a new address, from the root down.

use super::tx::Tx;
use crate::layout::edit::Place;
use crate::layout::extent_item::Ref;
use crate::layout::items::extents_of_leaf;
use crate::layout::key::{Key, is_subvolume, object};
use crate::layout::node::{Expected, Node, Pointer};
use crate::layout::superblock::{MAX_LEVEL, TreeRoot};
use crate::live::groups::Use;
use crate::live::refs::Kind;
use crate::tree::{Root, Tree};
use ivers_vfs::Result;
use std::sync::Arc;

/// Trees without a root item.
pub(super) const NO_ITEM: [u64; 2] = [object::ROOT_TREE, object::CHUNK_TREE];

/// The way from a leaf up to the root: at each level a block and a place in it. All of them are dirty.
pub(super) struct Path(Vec<(u64, usize)>);

impl Path {
    fn leaf(&self) -> u64 {
        self.0[0].0
    }

    fn slot(&self) -> usize {
        self.0[0].1
    }
}

impl Tx<'_> {
    /// A tree as it is now.
    pub(super) fn tree(&self, id: u64) -> Result<Tree> {
        Ok(Tree { id, root: self.root(id)?.root })
    }

    pub(super) fn root(&self, id: u64) -> Result<Root> {
        self.fs.root_of(id)?.ok_or_else(|| self.broken(format!("there is no tree {id}")))
    }

    fn set_root(&mut self, id: u64, root: TreeRoot) -> Result<()> {
        let mut known = self.root(id)?;
        known.root = root;
        self.fs.forest.roots.lock().insert(id, known);
        if !NO_ITEM.contains(&id) {
            self.live.changed_roots.insert(id);
        }
        Ok(())
    }

    fn dirty(&self, bytenr: u64) -> Result<Arc<Node>> {
        self.fs
            .forest
            .dirty_node(bytenr)
            .ok_or_else(|| self.broken(format!("block {bytenr} is not in memory")))
    }

    fn edit<R>(&self, bytenr: u64, change: impl FnOnce(&mut Node) -> R) -> Result<R> {
        let edited = self.fs.forest.dirty.edit(bytenr, change);
        edited.ok_or_else(|| self.broken(format!("block {bytenr} is not in memory")))
    }

    fn put_dirty(&mut self, bytenr: u64, node: Node) {
        self.fs.forest.dirty.insert(bytenr, node);
        self.fs.forest.cache.shrink();
        self.live.fresh.insert(bytenr);
    }

    /// Takes an address for a block of a tree.
    fn new_place(&mut self, tree: u64, level: u8) -> Result<Place> {
        let purpose = if tree == object::CHUNK_TREE { Use::System } else { Use::Metadata };
        let size = u64::from(self.sb().node_size);
        let bytenr = match self.live.groups.take_block(purpose, size) {
            Some(bytenr) => bytenr,
            None if self.add_chunk(purpose)? => {
                let found = self.live.groups.take_block(purpose, size);
                found.ok_or_else(|| self.broken("a new chunk has no free block"))?
            }
            // The reservations were too small: nothing of the transaction is stored.
            None => return Err(self.broken("there is no space for a block of a tree")),
        };
        self.live.refs.create(bytenr, Kind::Block { level }, Ref::TreeBlock { root: tree });
        self.live.count_blocks(tree, 1);
        Ok(Place { bytenr, generation: self.live.transid, owner: tree })
    }

    /// Drops the reference of a tree to one of its blocks.
    fn drop_block(&mut self, tree: u64, bytenr: u64, level: u8) {
        self.live.refs.change(bytenr, Kind::Block { level }, Ref::TreeBlock { root: tree }, -1);
        self.live.count_blocks(tree, -1);
        if self.live.fresh.contains(&bytenr) {
            self.fs.forest.dirty.remove(bytenr);
            if self.live.refs.take_unused(bytenr) {
                self.live.fresh.remove(&bytenr);
                self.live.groups.give_back(bytenr, u64::from(self.sb().node_size));
            }
        }
    }

    /// Changes the references to everything that a block leads to. They name the block `parent`, or the tree
    /// `owner`.
    fn change_refs_below(&mut self, node: &Node, parent: Option<u64>, owner: u64, delta: i64) -> Result<()> {
        if node.level > 0 {
            let by = match parent {
                Some(parent) => Ref::SharedBlock { parent },
                None => Ref::TreeBlock { root: owner },
            };
            for index in 0..node.count() {
                let kind = Kind::Block { level: node.level - 1 };
                self.live.refs.change(node.pointer(index).bytenr, kind, by, delta);
            }
            return Ok(());
        }
        for extent in extents_of_leaf(node).map_err(|what| self.broken(what))? {
            let by = match parent {
                Some(parent) => Ref::SharedData { parent },
                None => Ref::Data { root: owner, objectid: extent.objectid, offset: extent.offset },
            };
            self.live.refs.change(extent.bytenr, Kind::Data { bytes: extent.bytes }, by, delta);
        }
        Ok(())
    }

    /// Returns whether other trees may refer to a block, or references from it may name it instead of a tree.
    fn may_share(&self, tree: u64, root: &Root, node: &Node, bytenr: u64) -> bool {
        is_subvolume(tree)
            && !self.live.fresh.contains(&bytenr)
            && (node.generation <= root.last_snapshot || node.has_old_references())
    }

    /// Returns whether copying a block adds references to what is below it.
    pub(super) fn adds_references(&self, tree: u64, root: &Root, node: &Node, bytenr: u64) -> Result<bool> {
        if !self.may_share(tree, root, node, bytenr) {
            return Ok(false);
        }
        let (refs, is_full) = self.block_refs(bytenr, node.level)?;
        Ok(refs > 1 || is_full)
    }

    /// Moves references so that a copy of a block can replace it in a tree.
    fn share_refs(&mut self, tree: u64, root: &Root, node: &Node, bytenr: u64, copy: &Node) -> Result<()> {
        if !self.may_share(tree, root, node, bytenr) {
            return Ok(());
        }
        let (refs, is_full) = self.block_refs(bytenr, node.level)?;
        if refs > 1 {
            if node.owner == tree && !is_full {
                // The references that name the tree now belong to the copy. The old block gets new ones that
                // name the block.
                self.change_refs_below(node, Some(bytenr), tree, 1)?;
                self.live.refs.set_full_backref(bytenr, node.level);
            } else {
                self.change_refs_below(copy, None, tree, 1)?;
            }
        } else if is_full {
            self.change_refs_below(copy, None, tree, 1)?;
            self.change_refs_below(node, Some(bytenr), tree, -1)?;
        }
        Ok(())
    }

    /// Makes a block dirty: copies it, unless it is. Returns its address now.
    fn cow(&mut self, tree: u64, expected: &Expected) -> Result<u64> {
        let bytenr = expected.bytenr;
        if self.live.fresh.contains(&bytenr) {
            return Ok(bytenr);
        }
        let node = self.fs.forest.node(expected)?;
        let root = self.root(tree)?;
        let place = self.new_place(tree, node.level)?;
        let copy = node.copied(place);
        self.share_refs(tree, &root, &node, bytenr, &copy)?;
        self.put_dirty(place.bytenr, copy);
        self.drop_block(tree, bytenr, node.level);
        Ok(place.bytenr)
    }

    /// Returns what must be in the block that the pointer at `slot` of the dirty block `parent` leads to.
    fn expected_child(&self, tree: u64, parent: u64, slot: usize) -> Result<Expected> {
        let node = self.dirty(parent)?;
        let pointer = node.pointer(slot);
        Ok(Expected {
            bytenr: pointer.bytenr,
            generation: pointer.generation,
            level: node.level - 1,
            tree,
            first: Some(pointer.key),
            below: (slot + 1 < node.count()).then(|| node.key(slot + 1)),
        })
    }

    fn cow_child(&mut self, tree: u64, parent: u64, slot: usize) -> Result<u64> {
        let expected = self.expected_child(tree, parent, slot)?;
        let pointer = self.dirty(parent)?.pointer(slot);
        let bytenr = self.cow(tree, &expected)?;
        if bytenr != pointer.bytenr {
            let generation = self.live.transid;
            self.edit(parent, |node| node.set_pointer(slot, Pointer { bytenr, generation, ..pointer }))?;
        }
        Ok(bytenr)
    }

    /// Makes the root of a tree dirty. Returns its address and level.
    pub(super) fn cow_root(&mut self, tree: u64) -> Result<(u64, u8)> {
        let root = self.root(tree)?.root;
        let at = self.cow(tree, &Expected::root_of(tree, root))?;
        if at != root.bytenr {
            self.set_root(tree, TreeRoot { bytenr: at, generation: self.live.transid, ..root })?;
        }
        Ok((at, root.level))
    }

    /// Makes the blocks on the path to a key dirty, down to a level.
    pub(super) fn copy_path(&mut self, tree: u64, key: Key, level: u8) -> Result<()> {
        let (mut at, _) = self.cow_root(tree)?;
        loop {
            let node = self.dirty(at)?;
            if node.level <= level {
                return Ok(());
            }
            at = self.cow_child(tree, at, node.at_most(key).saturating_sub(1))?;
        }
    }

    /// Finds the place of a key, and makes all blocks on the path dirty. Returns whether the key exists.
    fn search(&mut self, tree: u64, key: Key) -> Result<(Path, bool)> {
        let (mut at, level) = self.cow_root(tree)?;
        let mut path = Vec::with_capacity(usize::from(level) + 1);
        loop {
            let node = self.dirty(at)?;
            let not_above = node.at_most(key);
            if node.level == 0 {
                let found = not_above > 0 && node.key(not_above - 1) == key;
                path.push((at, not_above - usize::from(found)));
                path.reverse();
                return Ok((Path(path), found));
            }
            let slot = not_above.saturating_sub(1);
            path.push((at, slot));
            at = self.cow_child(tree, at, slot)?;
        }
    }

    /// The first key of a block changed: changes the pointers to it.
    fn fix_first_key(&self, path: &Path, level: usize) -> Result<()> {
        for above in level + 1..path.0.len() {
            let first = self.dirty(path.0[above - 1].0)?.first_key();
            let (bytenr, slot) = path.0[above];
            let Some(key) = first else { break };
            self.edit(bytenr, |node| node.set_key(slot, key))?;
            if slot > 0 {
                break;
            }
        }
        Ok(())
    }

    fn new_node(&mut self, tree: u64, level: u8) -> Result<(u64, Node)> {
        let place = self.new_place(tree, level)?;
        Ok((place.bytenr, Node::empty(self.sb(), self.live.chunk_uuid, place, level)))
    }

    /// Puts a new root above the old one, if the path has no such level.
    fn ensure_level(&mut self, tree: u64, path: &mut Path, level: usize) -> Result<()> {
        if path.0.len() > level {
            return Ok(());
        }
        if level >= usize::from(MAX_LEVEL) {
            return Err(self.broken(format!("tree {tree} is too high")));
        }
        let below = path.0[level - 1].0;
        let key = self.dirty(below)?.first_key().ok_or_else(|| self.broken("an empty block is divided"))?;
        let (bytenr, mut node) = self.new_node(tree, level as u8)?;
        let generation = self.live.transid;
        node.insert_pointer(0, Pointer { key, bytenr: below, generation });
        self.put_dirty(bytenr, node);
        self.set_root(tree, TreeRoot { bytenr, generation, level: level as u8 })?;
        path.0.push((bytenr, 0));
        Ok(())
    }

    /// Inserts a pointer before or after the one that the path has at a level.
    fn add_pointer(
        &mut self,
        tree: u64,
        path: &mut Path,
        level: usize,
        new: Pointer,
        after: bool,
    ) -> Result<()> {
        self.ensure_level(tree, path, level)?;
        if !self.dirty(path.0[level].0)?.fits(0) {
            self.divide_node(tree, path, level)?;
        }
        let (bytenr, slot) = path.0[level];
        self.edit(bytenr, |node| node.insert_pointer(slot + usize::from(after), new))?;
        if !after && slot == 0 {
            self.fix_first_key(path, level)?;
        }
        Ok(())
    }

    /// Moves the upper half of a block on a path into a new block after it. Returns the address of the new
    /// block, and how many entries stay in the old one.
    fn move_half(&mut self, tree: u64, path: &mut Path, level: usize) -> Result<(u64, usize)> {
        let (right, mut new) = self.new_node(tree, level as u8)?;
        let middle = self.edit(path.0[level].0, |node| {
            let middle = node.middle();
            node.move_tail(middle, &mut new);
            middle
        })?;
        let key = new.first_key().ok_or_else(|| self.broken("a block has one entry and is full"))?;
        self.put_dirty(right, new);
        let pointer = Pointer { key, bytenr: right, generation: self.live.transid };
        self.add_pointer(tree, path, level + 1, pointer, true)?;
        Ok((right, middle))
    }

    fn divide_node(&mut self, tree: u64, path: &mut Path, level: usize) -> Result<()> {
        let (_, slot) = path.0[level];
        let (right, middle) = self.move_half(tree, path, level)?;
        if slot >= middle {
            path.0[level] = (right, slot - middle);
            path.0[level + 1].1 += 1;
        }
        Ok(())
    }

    /// Divides a leaf, so that there is more space where `key` goes.
    fn divide_leaf(&mut self, tree: u64, path: &mut Path, key: Key) -> Result<()> {
        let (leaf, slot) = path.0[0];
        let count = self.dirty(leaf)?.count();
        if slot == count || slot == 0 {
            let after = slot > 0;
            let (bytenr, new) = self.new_node(tree, 0)?;
            self.put_dirty(bytenr, new);
            let pointer = Pointer { key, bytenr, generation: self.live.transid };
            self.add_pointer(tree, path, 1, pointer, after)?;
            path.0[1].1 += usize::from(after);
            path.0[0] = (bytenr, 0);
            return Ok(());
        }
        let (right, middle) = self.move_half(tree, path, 0)?;
        if slot > middle {
            path.0[1].1 += 1;
            path.0[0] = (right, slot - middle);
        }
        Ok(())
    }

    fn insert_at(&mut self, tree: u64, path: &mut Path, key: Key, data: &[u8]) -> Result<()> {
        while !self.dirty(path.leaf())?.fits(data.len()) {
            if self.dirty(path.leaf())?.count() == 0 {
                return Err(self.broken(format!("an item of {} bytes is too large", data.len())));
            }
            self.divide_leaf(tree, path, key)?;
        }
        let slot = path.slot();
        self.edit(path.leaf(), |node| node.insert_item(slot, key, data))?;
        if slot == 0 {
            self.fix_first_key(path, 0)?;
        }
        Ok(())
    }

    /// Inserts an item, or replaces its data.
    pub(super) fn put(&mut self, tree: u64, key: Key, data: &[u8]) -> Result<()> {
        let (mut path, found) = self.search(tree, key)?;
        if found {
            let slot = path.slot();
            let replaced = self.edit(path.leaf(), |node| {
                let same = node.data(slot).len() == data.len();
                if same {
                    node.data_mut(slot).copy_from_slice(data)
                } else {
                    node.remove_item(slot)
                }
                same
            })?;
            if replaced {
                return Ok(());
            }
            // Where the leaf is divided, the pointer to it must have its first key.
            if slot == 0 {
                self.fix_first_key(&path, 0)?;
            }
        }
        self.insert_at(tree, &mut path, key, data)
    }

    /// Inserts an item that is not there.
    pub(super) fn insert(&mut self, tree: u64, key: Key, data: &[u8]) -> Result<()> {
        let (mut path, found) = self.search(tree, key)?;
        if found {
            return Err(self.broken(format!("tree {tree} has item {key} already")));
        }
        self.insert_at(tree, &mut path, key, data)
    }

    /// Changes the key of an item, whose place in the order stays.
    pub(super) fn rekey(&mut self, tree: u64, old: Key, new: Key) -> Result<()> {
        let (path, found) = self.search(tree, old)?;
        if !found {
            return Err(self.broken(format!("tree {tree} has no item {old}")));
        }
        let slot = path.slot();
        self.edit(path.leaf(), |node| node.set_key(slot, new))?;
        if slot == 0 { self.fix_first_key(&path, 0) } else { Ok(()) }
    }

    /// Removes an item that is there.
    pub(super) fn remove(&mut self, tree: u64, key: Key) -> Result<()> {
        let (mut path, found) = self.search(tree, key)?;
        if !found {
            return Err(self.broken(format!("tree {tree} has no item {key}")));
        }
        let slot = path.slot();
        let (count, free, capacity) = self.edit(path.leaf(), |node| {
            node.remove_item(slot);
            (node.count(), node.free_bytes(), node.capacity())
        })?;
        if count == 0 {
            if path.0.len() > 1 {
                self.drop_block(tree, path.leaf(), 0);
                self.remove_pointer(tree, &mut path, 1)?;
            }
            return Ok(());
        }
        if slot == 0 {
            self.fix_first_key(&path, 0)?;
        }
        if path.0.len() > 1 && free > capacity / 4 * 3 {
            self.join_leaves(tree, &mut path)?;
        }
        Ok(())
    }

    /// Moves the items of the next leaf into a leaf that has few, if all of them fit.
    fn join_leaves(&mut self, tree: u64, path: &mut Path) -> Result<()> {
        let (parent, slot) = path.0[1];
        if slot + 1 >= self.dirty(parent)?.count() {
            return Ok(());
        }
        let right = self.cow_child(tree, parent, slot + 1)?;
        let mut next = (*self.dirty(right)?).clone();
        let left = self.dirty(path.leaf())?;
        if next.capacity() - next.free_bytes() > left.free_bytes() {
            return Ok(());
        }
        self.edit(path.leaf(), |node| next.move_tail(0, node))?;
        self.drop_block(tree, right, 0);
        path.0[1].1 += 1;
        self.remove_pointer(tree, path, 1)
    }

    /// Removes the pointer that the path has at a level. Its block is gone already.
    fn remove_pointer(&mut self, tree: u64, path: &mut Path, level: usize) -> Result<()> {
        let (bytenr, slot) = path.0[level];
        let count = self.edit(bytenr, |node| {
            node.remove_pointer(slot);
            node.count()
        })?;
        let is_root = level + 1 == path.0.len();
        if count == 0 {
            self.drop_block(tree, bytenr, level as u8);
            if !is_root {
                return self.remove_pointer(tree, path, level + 1);
            }
            let (bytenr, leaf) = self.new_node(tree, 0)?;
            self.put_dirty(bytenr, leaf);
            return self.set_root(tree, TreeRoot { bytenr, generation: self.live.transid, level: 0 });
        }
        if slot == 0 {
            self.fix_first_key(path, level)?;
        }
        if is_root && count == 1 {
            self.lower_root(tree, bytenr, level)?;
        }
        Ok(())
    }

    /// A root with one pointer is not needed.
    fn lower_root(&mut self, tree: u64, root: u64, level: usize) -> Result<()> {
        let (mut bytenr, mut level) = (root, level);
        while level > 0 && self.dirty(bytenr)?.count() == 1 {
            let child = self.cow_child(tree, bytenr, 0)?;
            self.drop_block(tree, bytenr, level as u8);
            (bytenr, level) = (child, level - 1);
        }
        self.set_root(tree, TreeRoot { bytenr, generation: self.live.transid, level: level as u8 })
    }

    /// Returns whether other trees use a block, and nothing below it names this tree. If the tree made the
    /// block, the references to what the block points to name the tree. Copying the block makes them name
    /// the block instead. The other trees that use the block need that.
    pub(super) fn is_of_others(&self, tree: u64, node: &Node, bytenr: u64) -> Result<bool> {
        if self.live.fresh.contains(&bytenr) {
            return Ok(false);
        }
        let (refs, is_full) = self.block_refs(bytenr, node.level)?;
        Ok(refs > 1 && (is_full || node.owner != tree))
    }

    /// Drops the last block of a tree that is being dropped, and what it refers to. If other trees use the
    /// block, only this reference to it is dropped. Returns false when the tree has no block left.
    pub(super) fn drop_last_block(&mut self, tree: u64) -> Result<bool> {
        let (mut at, level) = self.cow_root(tree)?;
        let mut path = Vec::with_capacity(usize::from(level) + 1);
        loop {
            let node = self.dirty(at)?;
            let slot = node.count().saturating_sub(1);
            path.push((at, slot));
            if node.level == 0 {
                break;
            }
            let (child, below) = (node.pointer(slot).bytenr, node.level - 1);
            let expected = self.expected_child(tree, at, slot)?;
            if self.is_of_others(tree, &*self.fs.forest.node(&expected)?, child)? {
                self.drop_block(tree, child, below);
                path.extend((0..node.level).map(|_| (0, 0)));
                path.reverse();
                return self.remove_pointer(tree, &mut Path(path), node.level.into()).map(|()| true);
            }
            at = self.cow_child(tree, at, slot)?;
        }
        let leaf = self.dirty(at)?;
        self.change_refs_below(&leaf, None, tree, -1)?;
        self.drop_block(tree, at, 0);
        if path.len() == 1 {
            return Ok(false);
        }
        path.reverse();
        self.remove_pointer(tree, &mut Path(path), 1).map(|()| true)
    }

    /// Makes the root of a new tree: an empty leaf.
    pub(super) fn new_root(&mut self, tree: u64) -> Result<u64> {
        let (bytenr, leaf) = self.new_node(tree, 0)?;
        self.put_dirty(bytenr, leaf);
        Ok(bytenr)
    }

    /// Copies the root of a tree for a new tree, which shares everything below it.
    pub(super) fn copy_root(&mut self, tree: u64, node: &Node) -> Result<u64> {
        let place = self.new_place(tree, node.level)?;
        // The root item of the other tree counts this block already.
        self.live.count_blocks(tree, -1);
        let copy = node.copied(place);
        self.change_refs_below(&copy, None, tree, 1)?;
        self.put_dirty(place.bytenr, copy);
        Ok(place.bytenr)
    }
}
