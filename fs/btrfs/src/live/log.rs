//! The log tree of the running transaction: what fsync made durable without a commit.

use crate::layout::key::Key;
use crate::layout::node::{ITEM_BYTES, POINTER_BYTES};
use crate::layout::superblock::TreeRoot;
use crate::numbers::FileId;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The most leaves of the log of a subvolume.
pub(crate) const LEAVES_MAX: usize = 64;

/// What the running transaction changed, and what of it the log has.
#[derive(Default)]
pub(crate) struct Log {
    /// Inodes that changed since the last commit and since they were last logged.
    pub touched: HashSet<FileId>,
    /// Inodes with changes that a log does not express.
    pub commit_only: HashSet<FileId>,
    /// Inodes that the transaction made, and the directory of each.
    pub made: HashMap<FileId, u64>,
    /// The log of each subvolume.
    pub trees: BTreeMap<u64, LogTree>,
    /// The block that the superblock leads to.
    pub root_at: Option<u64>,
    /// Blocks that only an older superblock leads to.
    pub stale: Vec<u64>,
}

impl Log {
    /// Returns the addresses of all blocks, and forgets the log: a commit has stored the changes.
    pub(crate) fn take_blocks(&mut self) -> Vec<u64> {
        let log = std::mem::take(self);
        let of_trees = log.trees.values().flat_map(LogTree::blocks);
        of_trees.chain(log.root_at).chain(log.stale.iter().copied()).collect()
    }
}

/// A leaf of a log.
#[derive(Debug, Default)]
pub(crate) struct LogLeaf {
    pub items: BTreeMap<Key, Vec<u8>>,
    /// Its block, unless its items changed since.
    pub stored_at: Option<u64>,
}

impl LogLeaf {
    fn bytes(&self) -> usize {
        self.items.values().map(|data| ITEM_BYTES + data.len()).sum()
    }
}

/// The log of a subvolume: leaves, and a node above them if there are several.
#[derive(Debug)]
pub(crate) struct LogTree {
    /// The most bytes of items in a leaf.
    capacity: usize,
    /// The leaves. The key of a leaf is not above the key of its first item.
    leaves: BTreeMap<Key, LogLeaf>,
    /// The stored root. `None`: something below it changed since.
    pub root: Option<TreeRoot>,
    /// Where the node above the leaves is stored.
    pub node_at: Option<u64>,
}

impl LogTree {
    pub(crate) fn new(capacity: usize) -> Self {
        let leaves = BTreeMap::from([(Key::new(0, 0, 0), LogLeaf::default())]);
        Self { capacity, leaves, root: None, node_at: None }
    }

    /// Returns whether a node can lead to all leaves.
    pub(crate) fn fits(&self) -> bool {
        self.leaves.len() <= LEAVES_MAX.min(self.capacity / POINTER_BYTES)
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &LogLeaf> {
        self.leaves.values()
    }

    pub(crate) fn leaves_mut(&mut self) -> impl Iterator<Item = &mut LogLeaf> {
        self.leaves.values_mut()
    }

    fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.leaves().filter_map(|leaf| leaf.stored_at).chain(self.node_at)
    }

    fn bound(&self, key: Key) -> Key {
        self.leaves.range(..=key).next_back().map_or(key, |(bound, _)| *bound)
    }

    /// Stores an item. `stale` gets the addresses of blocks that are no longer right.
    pub(crate) fn put(&mut self, key: Key, data: &[u8], stale: &mut Vec<u64>) {
        let bound = self.bound(key);
        let leaf = self.leaves.entry(bound).or_default();
        if leaf.items.get(&key).is_some_and(|stored| stored == data) {
            return;
        }
        leaf.items.insert(key, data.to_vec());
        stale.extend(leaf.stored_at.take());
        self.root = None;
        self.divide(bound);
    }

    /// Divides a leaf until its parts fit.
    fn divide(&mut self, mut bound: Key) {
        loop {
            let Some(leaf) = self.leaves.get_mut(&bound).filter(|leaf| leaf.bytes() > self.capacity) else {
                return;
            };
            let (mut bytes, half) = (0, leaf.bytes() / 2);
            let split = leaf.items.iter().skip(1).find_map(|(key, data)| {
                bytes += ITEM_BYTES + data.len();
                (bytes >= half).then_some(*key)
            });
            let Some(split) = split.or_else(|| leaf.items.keys().next_back().copied()) else { return };
            let items = leaf.items.split_off(&split);
            self.leaves.insert(split, LogLeaf { items, stored_at: None });
            if self.leaves.get(&bound).is_some_and(|leaf| leaf.bytes() <= self.capacity) {
                bound = split;
            }
        }
    }

    fn remove(&mut self, key: Key, stale: &mut Vec<u64>) {
        let bound = self.bound(key);
        let Some(leaf) = self.leaves.get_mut(&bound) else { return };
        if leaf.items.remove(&key).is_none() {
            return;
        }
        stale.extend(leaf.stored_at.take());
        self.root = None;
        if leaf.items.is_empty() && self.leaves.len() > 1 {
            self.leaves.remove(&bound);
            // The bound of the first leaf stays below all keys.
            let is_first = self.leaves.keys().next().is_some_and(|first| *first > bound);
            if is_first && let Some((_, first)) = self.leaves.pop_first() {
                self.leaves.insert(bound, first);
            }
        }
    }

    /// Replaces all items of an inode by `items`.
    pub(crate) fn replace(&mut self, objectid: u64, items: &BTreeMap<Key, Vec<u8>>, stale: &mut Vec<u64>) {
        let own = self.leaves.values().flat_map(|leaf| leaf.items.keys());
        let gone = own.filter(|key| key.objectid == objectid && !items.contains_key(key));
        for key in gone.copied().collect::<Vec<_>>() {
            self.remove(key, stale);
        }
        for (key, data) in items {
            self.put(*key, data, stale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn a_log_keeps_what_a_map_keeps() {
        const CAPACITY: usize = 2000;
        let mut random = SmallRng::seed_from_u64(2);
        let (mut tree, mut model) = (LogTree::new(CAPACITY), BTreeMap::new());
        let (mut next, mut stored) = (0, HashSet::new());
        for step in 0..4000u32 {
            let objectid = random.random_range(0..40);
            let count = random.random_range(0..6);
            let new: BTreeMap<Key, Vec<u8>> = (0..count)
                .map(|_| {
                    let size = [20, 300, CAPACITY - ITEM_BYTES][random.random_range(0..3)];
                    (Key::new(objectid, random.random_range(0..9), 0), vec![step as u8; size])
                })
                .collect();
            let mut stale = Vec::new();
            tree.replace(objectid, &new, &mut stale);
            model.retain(|key: &Key, _| key.objectid != objectid);
            model.extend(new);
            // A stale block was stored, and is reported once.
            assert!(stale.iter().all(|block| stored.remove(block)), "step {step}");
            let mut items = Vec::new();
            for leaf in tree.leaves_mut() {
                assert!(leaf.bytes() <= CAPACITY, "step {step}");
                items.extend(leaf.items.clone());
                if leaf.stored_at.is_none() {
                    next += 1;
                    leaf.stored_at = Some(next);
                    stored.insert(next);
                }
            }
            assert!(items == model.clone().into_iter().collect::<Vec<_>>(), "step {step}");
            assert_eq!(tree.blocks().collect::<HashSet<_>>(), stored, "step {step}");
        }
        assert!(tree.leaves.len() > 10);
    }
}
