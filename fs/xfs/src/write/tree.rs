//! The B-trees of groups: lookup, insertion, deletion. One code for all six kinds.
//!
//! A block that is not the root has at least half of the entries that fit. A node has the lowest key of each
//! child, and in the reverse map also the highest, since the records of shared blocks overlap.

use super::tree_block::{Entry, Shape};
use super::tx::Tx;
use crate::layout::bytes::{NULL_AGBLOCK, number};
use crate::layout::checksum::SHORT_BTREE;
use crate::layout::tree::{Key, TreeKind};
use crate::search::partition;
use crate::unit::{Unit, Whose};
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};
use smallvec::SmallVec;
use std::ops::ControlFlow;

/// Levels of a cursor without memory of its own.
const CURSOR_LEVELS: usize = 4;
/// The bytes of the longest record: that of the reverse map.
const RECORD_BYTES_MAX: usize = 24;

/// A B-tree of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree {
    pub kind: TreeKind,
    pub ag: u32,
}

/// A block on the way to a record, and the entry in it.
#[derive(Debug, Clone, Copy)]
struct Step {
    block: u32,
    index: usize,
}

/// The place of a record: the steps from the leaf to the root.
#[derive(Debug, Clone)]
pub(super) struct Cursor(SmallVec<[Step; CURSOR_LEVELS]>);

/// A record.
pub(super) type Record = SmallVec<[u8; RECORD_BYTES_MAX]>;

/// Whether an entry went into the new right half of a split block.
type WentRight = bool;

impl Tree {
    pub(super) const fn new(kind: TreeKind, ag: u32) -> Self {
        Self { kind, ag }
    }

    fn whose(self) -> Whose {
        Whose::Group(self.ag)
    }
}

impl Tx<'_> {
    fn shape(&self, tree: Tree) -> Shape {
        Shape::new(tree.kind, self.space().sb.block_size as usize)
    }

    fn tree_place(&self, tree: Tree, block: u32) -> Result<BlockNo> {
        let space = self.space();
        space.sb.ag_block(tree.ag, block).ok_or_else(|| {
            let what = format!("{} refers to block {block}", tree.kind.name());
            space.corrupt(what, tree.whose())
        })
    }

    /// Reads and checks a block of a tree.
    fn tree_block(&self, tree: Tree, block: u32, level: usize) -> Result<Unit> {
        self.checked_block(tree, block, |shape, bytes| shape.check(bytes, level))
    }

    /// Like [`Tx::tree_block`], but also accepts a node without children.
    fn tree_block_or_empty(&self, tree: Tree, block: u32, level: usize) -> Result<Unit> {
        self.checked_block(tree, block, |shape, bytes| shape.check_header(bytes, level))
    }

    fn checked_block(
        &self,
        tree: Tree,
        block: u32,
        check: impl FnOnce(&Shape, &[u8]) -> std::result::Result<(), String>,
    ) -> Result<Unit> {
        let place = self.tree_place(tree, block)?;
        let bytes = self.read_unit(&[place], Some(&SHORT_BTREE), tree.whose())?;
        check(&self.shape(tree), &bytes)
            .map_err(|what| self.space().corrupt_block(what, tree.whose(), place))?;
        Ok(bytes)
    }

    fn modify_tree_block<R>(
        &mut self,
        tree: Tree,
        block: u32,
        f: impl FnOnce(&Shape, &mut [u8]) -> R,
    ) -> Result<R> {
        let (place, shape) = (self.tree_place(tree, block)?, self.shape(tree));
        self.modify(&[place], Some(&SHORT_BTREE), tree.whose(), |bytes| f(&shape, bytes))
    }

    /// The place of the last record with at most this key, or else before the first record: then the second
    /// value is false.
    fn descend(&mut self, tree: Tree, key: Key) -> Result<(Cursor, bool)> {
        let (root, levels) = self.root(tree.kind, tree.ag)?;
        let shape = self.shape(tree);
        let (mut block, mut steps, mut found) = (root, SmallVec::new(), false);
        for level in (0..levels as usize).rev() {
            let bytes = self.tree_block(tree, block, level)?;
            // Entries are in order, so that those with at most this key come first.
            let after = partition(shape.count(&bytes), |index| shape.keys(&bytes, level, index).0 <= key);
            found = after > 0;
            let index = after.saturating_sub(1);
            steps.push(Step { block, index });
            if level > 0 {
                block = shape.pointer(&bytes, index);
            }
        }
        steps.reverse();
        Ok((Cursor(steps), found))
    }

    /// The last record with at most this key.
    pub(super) fn at_most(&mut self, tree: Tree, key: Key) -> Result<Option<Cursor>> {
        let (cursor, found) = self.descend(tree, key)?;
        Ok(found.then_some(cursor))
    }

    /// The place of a record; `lost` says that the tree lacks it.
    pub(super) fn exact(
        &mut self,
        tree: Tree,
        record: &[u8],
        lost: impl FnOnce() -> String,
    ) -> Result<Cursor> {
        let found = self.at_most(tree, tree.kind.keys(record).0)?;
        if let Some(cursor) = found
            && *self.record(tree, &cursor)? == *record
        {
            return Ok(cursor);
        }
        Err(self.space().corrupt(lost(), tree.whose()))
    }

    /// The first record with at least this key.
    pub(super) fn at_least(&mut self, tree: Tree, key: Key) -> Result<Option<Cursor>> {
        let (mut cursor, found) = self.descend(tree, key)?;
        if found {
            let record = self.record(tree, &cursor)?;
            if tree.kind.keys(&record).0 == key {
                return Ok(Some(cursor));
            }
            return Ok(self.next(tree, &mut cursor)?.then_some(cursor));
        }
        let first = self.tree_block(tree, cursor.0[0].block, 0)?;
        Ok((self.shape(tree).count(&first) > 0).then_some(cursor))
    }

    /// The first record with at least a key, or the last one with at most that key.
    pub(super) fn beside(&mut self, tree: Tree, key: Key, forward: bool) -> Result<Option<Cursor>> {
        if forward { self.at_least(tree, key) } else { self.at_most(tree, key) }
    }

    /// The last record.
    pub(super) fn last(&mut self, tree: Tree) -> Result<Option<Cursor>> {
        self.at_most(tree, [u64::MAX; 3])
    }

    /// Moves to the next record. False if there is none: the cursor stays.
    pub(super) fn next(&mut self, tree: Tree, cursor: &mut Cursor) -> Result<bool> {
        self.step(tree, cursor, true)
    }

    /// Moves to the previous record. False if there is none: the cursor stays.
    pub(super) fn previous(&mut self, tree: Tree, cursor: &mut Cursor) -> Result<bool> {
        self.step(tree, cursor, false)
    }

    /// Moves to the next or to the previous record. False if there is none: the cursor stays.
    pub(super) fn step(&mut self, tree: Tree, cursor: &mut Cursor, forward: bool) -> Result<bool> {
        let shape = self.shape(tree);
        for level in 0..cursor.0.len() {
            let Step { block, index } = cursor.0[level];
            let bytes = self.tree_block(tree, block, level)?;
            let to = if forward { index + 1 } else { index.wrapping_sub(1) };
            if to >= shape.count(&bytes) {
                continue;
            }
            cursor.0[level].index = to;
            let mut child = if level > 0 { shape.pointer(&bytes, to) } else { 0 };
            for below in (0..level).rev() {
                let bytes = self.tree_block(tree, child, below)?;
                let last = shape.count(&bytes).saturating_sub(1);
                cursor.0[below] = Step { block: child, index: if forward { 0 } else { last } };
                if below > 0 {
                    child = shape.pointer(&bytes, cursor.0[below].index);
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// The record at a cursor.
    pub(super) fn record(&mut self, tree: Tree, cursor: &Cursor) -> Result<Record> {
        let Step { block, index } = cursor.0[0];
        let bytes = self.tree_block(tree, block, 0)?;
        let shape = self.shape(tree);
        if index < shape.count(&bytes) {
            return Ok(Record::from_slice(shape.record(&bytes, index)));
        }
        let what = format!("an empty block in {}", tree.kind.name());
        Err(self.space().corrupt_block(what, tree.whose(), self.tree_place(tree, block)?))
    }

    /// Calls `f` with each record that overlaps a range of keys, in order, until it breaks.
    pub(super) fn overlapping(
        &mut self,
        tree: Tree,
        (low, high): (Key, Key),
        f: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (root, levels) = self.root(tree.kind, tree.ag)?;
        // A tree has no more blocks than the group. A damaged one could lead to a block again and again.
        let mut budget = self.space().sb.ag_len(tree.ag);
        let flow = self.overlapping_below(tree, (root, levels as usize - 1), (low, high), &mut budget, f)?;
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = flow;
        Ok(())
    }

    fn overlapping_below(
        &mut self,
        tree: Tree,
        (block, level): (u32, usize),
        (low, high): (Key, Key),
        budget: &mut u32,
        f: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        *budget = budget.checked_sub(1).ok_or_else(|| self.endless(tree))?;
        let bytes = self.tree_block(tree, block, level)?;
        let shape = self.shape(tree);
        for index in 0..shape.count(&bytes) {
            let (first, last) = shape.keys(&bytes, level, index);
            if first > high {
                break;
            }
            if last < low {
                continue;
            }
            let flow = match level {
                0 => f(shape.record(&bytes, index)),
                _ => {
                    let child = (shape.pointer(&bytes, index), level - 1);
                    self.overlapping_below(tree, child, (low, high), budget, f)?
                }
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A walk visited more than the group can have.
    pub(super) fn endless(&self, tree: Tree) -> Error {
        self.space().corrupt(format!("{} has a block twice", tree.kind.name()), tree.whose())
    }

    /// Replaces a record by one that belongs at the same place.
    pub(super) fn update(&mut self, tree: Tree, cursor: &Cursor, record: &[u8]) -> Result<()> {
        let Step { block, index } = cursor.0[0];
        let (place, shape) = (self.tree_place(tree, block)?, self.shape(tree));
        let (kind, range) = (Some(&SHORT_BTREE), shape.record_range(index));
        self.modify_within(&[place], kind, tree.whose(), range, |bytes| {
            shape.set_record(bytes, index, record);
        })?;
        self.fix_keys(tree, cursor, 0)
    }

    /// Inserts a record. Fails if there is one with the same key.
    pub(super) fn insert(&mut self, tree: Tree, record: &[u8]) -> Result<()> {
        let key = tree.kind.keys(record).0;
        let (mut cursor, found) = self.descend(tree, key)?;
        if found && tree.kind.keys(&self.record(tree, &cursor)?).0 == key {
            let what = format!("{} already has the record to insert", tree.kind.name());
            return Err(self.space().corrupt(what, tree.whose()));
        }
        let (mut entry, mut went_right) = (Entry::record(record), false);
        // A record goes after the one that was found, a new block after the one that was split.
        let mut at = cursor.0[0].index + usize::from(found);
        for level in 0..cursor.0.len() {
            if level > 0 {
                at = cursor.0[level].index + 1;
            }
            let position = if level == 0 || went_right { at } else { at - 1 };
            let block = cursor.0[level].block;
            let bytes = self.tree_block(tree, block, level)?;
            let shape = self.shape(tree);
            if shape.count(&bytes) < shape.most(level) {
                self.modify_tree_block(tree, block, |shape, bytes| shape.insert(bytes, level, at, &entry))?;
                cursor.0[level].index = position;
                return self.fix_keys(tree, &cursor, 0);
            }
            let (right, keep) = self.split(tree, block, level, at, &entry)?;
            went_right = position >= keep;
            cursor.0[level] = match went_right {
                true => Step { block: right, index: position - keep },
                false => Step { block, index: position },
            };
            let left_entry = self.entry_of(tree, block, level)?;
            entry = self.entry_of(tree, right, level)?;
            match cursor.0.get(level + 1).copied() {
                Some(parent) => self.modify_tree_block(tree, parent.block, |shape, bytes| {
                    shape.set_keys(bytes, level + 1, parent.index, &left_entry);
                })?,
                None => return self.grow(tree, cursor, went_right, level + 1, &[left_entry, entry]),
            }
        }
        Ok(())
    }

    /// Makes a root above the halves of the old one.
    fn grow(
        &mut self,
        tree: Tree,
        mut cursor: Cursor,
        went_right: WentRight,
        level: usize,
        halves: &[Entry],
    ) -> Result<()> {
        let root = self.new_tree_block(tree, level, NULL_AGBLOCK, NULL_AGBLOCK)?;
        self.modify_tree_block(tree, root, |shape, bytes| shape.set_entries(bytes, level, halves))?;
        self.set_root(tree.kind, tree.ag, root, level as u32 + 1)?;
        cursor.0.push(Step { block: root, index: usize::from(went_right) });
        self.fix_keys(tree, &cursor, 0)
    }

    /// Splits a full block and inserts an entry. Returns the new right block, and how many entries stay.
    fn split(
        &mut self,
        tree: Tree,
        block: u32,
        level: usize,
        at: usize,
        entry: &Entry,
    ) -> Result<(u32, usize)> {
        let bytes = self.tree_block(tree, block, level)?;
        let shape = self.shape(tree);
        let mut entries = shape.entries(&bytes, level);
        entries.insert(at.min(entries.len()), entry.clone());
        let after = shape.right(&bytes);
        let right = self.new_tree_block(tree, level, block, after)?;
        let keep = entries.len().div_ceil(2);
        self.modify_tree_block(tree, block, |shape, bytes| {
            shape.set_entries(bytes, level, &entries[..keep]);
            shape.set_right(bytes, right);
        })?;
        self.modify_tree_block(tree, right, |shape, bytes| {
            shape.set_entries(bytes, level, &entries[keep..]);
        })?;
        if after != NULL_AGBLOCK {
            self.tree_block(tree, after, level)?;
            self.modify_tree_block(tree, after, |shape, bytes| shape.set_left(bytes, right))?;
        }
        Ok((right, keep))
    }

    /// Deletes the record at a cursor.
    pub(super) fn delete(&mut self, tree: Tree, mut cursor: Cursor) -> Result<()> {
        let mut level = 0;
        loop {
            let Step { block, index } = cursor.0[level];
            self.modify_tree_block(tree, block, |shape, bytes| shape.remove(bytes, level, index))?;
            if level + 1 == cursor.0.len() {
                return self.shrink(tree, cursor);
            }
            let shape = self.shape(tree);
            let bytes = self.tree_block_or_empty(tree, block, level)?;
            let parent = cursor.0[level + 1];
            let siblings = shape.count(&self.tree_block(tree, parent.block, level + 1)?);
            if shape.count(&bytes) >= shape.most(level) / 2 || siblings < 2 {
                break;
            }
            let left_index = parent.index.saturating_sub(1);
            let at = |index| Step { index, ..parent };
            let (left, right) = (
                self.child(tree, at(left_index), level + 1)?,
                self.child(tree, at(left_index + 1), level + 1)?,
            );
            cursor.0[level + 1].index = left_index + 1;
            if !self.join(tree, (left, right), level, at(left_index))? {
                // Both halves have new keys, and the parent knows them.
                return self.fix_keys(tree, &cursor, level + 1);
            }
            // Next, the parent loses its entry of the right block.
            level += 1;
        }
        self.fix_keys(tree, &cursor, level)
    }

    /// The child at an entry of a node.
    fn child(&mut self, tree: Tree, at: Step, level: usize) -> Result<u32> {
        let bytes = self.tree_block(tree, at.block, level)?;
        Ok(self.shape(tree).pointer(&bytes, at.index))
    }

    /// Joins two neighbours, or moves entries between them if they do not fit in one block. `parent` is the
    /// place of the left one in the parent. Returns whether the right one is gone.
    fn join(&mut self, tree: Tree, (left, right): (u32, u32), level: usize, parent: Step) -> Result<bool> {
        let shape = self.shape(tree);
        let mut entries = Vec::new();
        let mut after = NULL_AGBLOCK;
        for block in [left, right] {
            let bytes = self.tree_block_or_empty(tree, block, level)?;
            entries.extend(shape.entries(&bytes, level));
            after = shape.right(&bytes);
        }
        let joins = entries.len() <= shape.most(level);
        let keep = if joins { entries.len() } else { entries.len().div_ceil(2) };
        self.modify_tree_block(tree, left, |shape, bytes| {
            shape.set_entries(bytes, level, &entries[..keep]);
        })?;
        if joins {
            self.modify_tree_block(tree, left, |shape, bytes| shape.set_right(bytes, after))?;
            if after != NULL_AGBLOCK {
                self.tree_block(tree, after, level)?;
                self.modify_tree_block(tree, after, |shape, bytes| shape.set_left(bytes, left))?;
            }
            self.free_tree_block(tree, right)?;
        } else {
            self.modify_tree_block(tree, right, |shape, bytes| {
                shape.set_entries(bytes, level, &entries[keep..]);
            })?;
            let entry = self.entry_of(tree, right, level)?;
            self.modify_tree_block(tree, parent.block, |shape, bytes| {
                shape.set_keys(bytes, level + 1, parent.index + 1, &entry);
            })?;
        }
        let entry = self.entry_of(tree, left, level)?;
        self.modify_tree_block(tree, parent.block, |shape, bytes| {
            shape.set_keys(bytes, level + 1, parent.index, &entry);
        })?;
        Ok(joins)
    }

    /// Removes roots that have one child only.
    fn shrink(&mut self, tree: Tree, mut cursor: Cursor) -> Result<()> {
        while cursor.0.len() > 1 {
            let level = cursor.0.len() - 1;
            let root = cursor.0[level].block;
            let bytes = self.tree_block(tree, root, level)?;
            let shape = self.shape(tree);
            if shape.count(&bytes) > 1 {
                break;
            }
            let child = shape.pointer(&bytes, 0);
            self.set_root(tree.kind, tree.ag, child, level as u32)?;
            self.free_tree_block(tree, root)?;
            cursor.0.pop();
            // The block on the path may be gone: the child is the one that it was joined with.
            cursor.0[level - 1].block = child;
        }
        Ok(())
    }

    /// The entry of a parent for a block.
    fn entry_of(&mut self, tree: Tree, block: u32, level: usize) -> Result<Entry> {
        let bytes = self.tree_block(tree, block, level)?;
        Ok(self.shape(tree).entry_of(&bytes, level, block))
    }

    /// Corrects the keys of the blocks on the path from a level on, in the blocks above them.
    fn fix_keys(&mut self, tree: Tree, cursor: &Cursor, from: usize) -> Result<()> {
        for level in from..cursor.0.len() - 1 {
            let entry = self.entry_of(tree, cursor.0[level].block, level)?;
            let parent = cursor.0[level + 1];
            let bytes = self.tree_block(tree, parent.block, level + 1)?;
            let shape = self.shape(tree);
            if parent.index >= shape.count(&bytes)
                || shape.pointer(&bytes, parent.index) != cursor.0[level].block
            {
                let what = format!("{} has a block twice", tree.kind.name());
                return Err(self.space().corrupt(what, tree.whose()));
            }
            if !shape.has_keys(&bytes, level + 1, parent.index, &entry) {
                self.modify_tree_block(tree, parent.block, |shape, bytes| {
                    shape.set_keys(bytes, level + 1, parent.index, &entry);
                })?;
            }
        }
        Ok(())
    }

    /// A new block of a tree, without entries.
    fn new_tree_block(&mut self, tree: Tree, level: usize, left: u32, right: u32) -> Result<u32> {
        let block = self.allocate_tree_block(tree.kind, tree.ag)?;
        self.count_tree_block(tree.kind, tree.ag, 1)?;
        let place = self.tree_place(tree, block)?;
        let head = self.shape(tree).head(level, left, right);
        self.new_described(&[place], &SHORT_BTREE, tree.whose(), |bytes| {
            bytes[..head.len()].copy_from_slice(&head);
        })?;
        Ok(block)
    }

    fn free_tree_block(&mut self, tree: Tree, block: u32) -> Result<()> {
        let place = self.tree_place(tree, block)?;
        self.forget_unit(&[place]);
        self.count_tree_block(tree.kind, tree.ag, -1)?;
        self.release_tree_block(tree.kind, tree.ag, block)
    }
}

/// A field of a record.
pub(super) fn field(record: &[u8], at: usize, len: usize) -> u64 {
    number(record, at, len).unwrap_or(0)
}
