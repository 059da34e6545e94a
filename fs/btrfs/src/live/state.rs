//! What a writer has in memory.

use super::groups::Groups;
use super::log::Log;
use super::refs::Refs;
use crate::layout::features::Incompat;
use crate::layout::key::object;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A chunk whose items are not stored yet.
pub(crate) struct NewChunk {
    pub start: u64,
    pub item: Vec<u8>,
}

/// The trees that change when delayed references are stored.
pub(crate) const REF_TREES: [u64; 3] = [object::EXTENT_TREE, object::CSUM_TREE, object::FREE_SPACE_TREE];

/// The state of a filesystem that is open for writing.
pub(crate) struct Live {
    /// The running transaction.
    pub transid: u64,
    pub groups: Groups,
    pub refs: Refs,
    /// Blocks of trees that the running transaction allocated: nothing durable leads to them.
    pub fresh: HashSet<u64>,
    /// Trees whose roots moved since their items were stored.
    pub changed_roots: BTreeSet<u64>,
    /// For each tree, how many more blocks it has than its root item says.
    pub more_blocks: BTreeMap<u64, i64>,
    /// The number of blocks in [`REF_TREES`].
    pub ref_tree_blocks: u64,
    pub new_chunks: Vec<NewChunk>,
    /// The superblock of each device, by number.
    pub supers: Vec<(u64, Vec<u8>)>,
    pub chunk_uuid: [u8; 16],
    /// The chunks in the superblock.
    pub sys_chunks: Vec<u8>,
    pub is_skinny: bool,
    pub has_free_space_tree: bool,
    /// The tree with the items of block groups.
    pub group_tree: u64,
    /// The next inode number of each subvolume.
    pub next_objectid: HashMap<u64, u64>,
    /// Bytes of data that are reserved.
    pub reserved: u64,
    /// Features that the superblock gets with the next commit or log.
    pub features: Incompat,
    /// What fsync made durable since the last commit.
    pub log: Log,
}

impl Live {
    /// Notes that a tree has this many more blocks (negative: fewer).
    pub(crate) fn count_blocks(&mut self, tree: u64, more: i64) {
        let sum = self.more_blocks.entry(tree).or_default();
        *sum += more;
        if *sum == 0 {
            self.more_blocks.remove(&tree);
        }
        if REF_TREES.contains(&tree) {
            self.ref_tree_blocks = self.ref_tree_blocks.saturating_add_signed(more);
        }
    }

    /// Returns whether the running transaction has something to commit.
    pub(crate) fn is_changed(&self) -> bool {
        !self.fresh.is_empty() || !self.new_chunks.is_empty()
    }
}
