//! The index of a hashed directory.

use super::map::{Run, find};
use super::state::{Checker, Slot};
use crate::dir::hash::NameHasher;
use crate::dir::index::{self, Table};
use crate::layout::csum::crc32c;
use crate::layout::features::Incompat;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::{BTreeMap, HashSet};

/// The index of a directory: its blocks, and the hashes that each leaf may hold.
pub(super) struct Tree {
    hasher: Option<NameHasher>,
    nodes: HashSet<u64>,
    leaves: BTreeMap<u64, (u32, u32)>,
}

impl Tree {
    pub(super) fn is_index(&self, logical: u64) -> bool {
        self.nodes.contains(&logical)
    }

    pub(super) fn leaf(&self, logical: u64) -> Option<(u32, u32)> {
        self.hasher?;
        self.leaves.get(&logical).copied()
    }

    pub(super) fn hash(&self, name: &[u8]) -> u32 {
        self.hasher.map_or(0, |hasher| hasher.hash(name).major)
    }
}

/// A node to visit: its block in the directory, levels below it, and its hashes.
struct Todo {
    logical: u64,
    levels: u8,
    low: u32,
    high: u32,
}

impl Checker {
    /// Checks the index. `None` if its root is unusable: then the directory is read as a list.
    pub(super) fn check_tree(&mut self, slot: &Slot, runs: &[Run], blocks: u64) -> Result<Option<Tree>> {
        let sb = self.sb();
        let format = self.format();
        let Some(first) = find(runs, 0) else { return Ok(None) };
        let Some(bytes) = self.reader.block(first)? else { return Ok(None) };
        let place = || Place::inode(slot.ino).at(first);
        let root = match index::parse_root(&format, &bytes) {
            Ok(root) => root,
            Err(what) => {
                self.bad("htree-root-invalid", place(), what);
                return Ok(None);
            }
        };
        let most = if sb.incompat.contains(Incompat::LARGEDIR) { 3 } else { 2 };
        if root.levels >= most {
            self.bad("htree-depth-wrong", place(), format!("the index has {} levels", root.levels));
            return Ok(None);
        }
        let hasher = NameHasher::new(root.hash_version, sb.hash_unsigned, sb.hash_seed);
        if hasher.is_none() && root.hash_version != 6 {
            let what = format!("the hash of the index is {}", root.hash_version);
            self.bad("htree-hash-version-invalid", place(), what);
            return Ok(None);
        }
        let mut tree = Tree { hasher, nodes: HashSet::from([0]), leaves: BTreeMap::new() };
        let mut todo = Vec::new();
        self.check_rows(slot, &bytes, &root.table, (0, root.levels, 0, u32::MAX), first, &mut |next| {
            todo.push(next);
        });
        while let Some(next) = todo.pop() {
            let Some(block) = find(runs, next.logical).filter(|_| next.logical < blocks) else {
                let what = format!("the index refers to block {}, beyond the directory", next.logical);
                self.bad("htree-block-out-of-range", place(), what);
                continue;
            };
            if tree.nodes.contains(&next.logical) || tree.leaves.contains_key(&next.logical) {
                let what = format!("the index refers to block {} twice", next.logical);
                self.bad("htree-block-referenced-twice", Place::inode(slot.ino).at(block), what);
                continue;
            }
            if next.levels == 0 {
                tree.leaves.insert(next.logical, (next.low, next.high));
                continue;
            }
            tree.nodes.insert(next.logical);
            let Some(bytes) = self.reader.block(block)? else { continue };
            match index::parse_node(&format, &bytes) {
                Err(what) => self.bad("htree-node-invalid", Place::inode(slot.ino).at(block), what),
                Ok(table) => {
                    let bounds = (next.logical, next.levels - 1, next.low, next.high);
                    self.check_rows(slot, &bytes, &table, bounds, block, &mut |next| todo.push(next));
                }
            }
        }
        Ok(Some(tree))
    }

    fn check_rows(
        &mut self,
        slot: &Slot,
        bytes: &[u8],
        table: &Table,
        (logical, levels, low, high): (u64, u8, u32, u32),
        block: u64,
        push: &mut dyn FnMut(Todo),
    ) {
        let place = || Place::inode(slot.ino).at(block);
        if self.sb().has_csum() {
            let seed = self.reader.seed(slot);
            let right = table.checksum(bytes, seed, crc32c);
            if right != table.stored_checksum(bytes) {
                let what = format!("the checksum of index block {logical} is wrong");
                self.bad("htree-checksum-wrong", place(), what);
            }
        }
        let rows = table.rows(bytes);
        let mut before = low;
        for (nth, &(hash, target)) in rows.iter().enumerate() {
            let start = if nth == 0 { low } else { hash & !1 };
            if start < before || start > high {
                let what = format!("row {nth} of index block {logical} is out of order");
                self.bad("htree-order-wrong", place(), what);
            }
            before = start;
            // A row with the lowest bit set continues the hash of the row before.
            let end = rows
                .get(nth + 1)
                .map_or(high, |&(next, _)| if next & 1 == 1 { next } else { next.wrapping_sub(1) });
            push(Todo { logical: target.into(), levels, low: start, high: end.max(start) });
        }
    }

    /// Reports blocks of the directory that the index does not refer to.
    pub(super) fn check_unreferenced(&mut self, slot: &Slot, tree: Tree, blocks: u64) {
        let known = (tree.nodes.len() + tree.leaves.len()) as u64;
        if known >= blocks {
            return;
        }
        let missing = (0..blocks).filter(|at| !tree.nodes.contains(at) && !tree.leaves.contains_key(at));
        let missing: Vec<u64> = missing.take(16).collect();
        for logical in missing {
            let what = format!("the index does not refer to block {logical} of the directory");
            self.bad("htree-block-unreferenced", Place::inode(slot.ino), what);
        }
    }
}
