//! Trees: finding an item, and visiting items in order.
//!
//! A search starts at the root each time. Every step down is checked: the level falls, the first key is the
//! pointer's, and no key reaches the next pointer's. So no block is met twice in a walk, and every walk ends.

use crate::dirty_nodes::DirtyNodes;
use crate::layout::key::{Key, object};
use crate::layout::node::{Expected, Node};
use crate::layout::superblock::TreeRoot;
use crate::node_cache::NodeCache;
use crate::volume::Volume;
use ivers_block::Budget;
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, Result};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A tree: its number and its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    pub id: u64,
    pub root: TreeRoot,
}

/// The trees of a filesystem.
pub(crate) struct Forest {
    pub volume: Volume,
    pub cache: NodeCache,
    /// Blocks that the running transaction has made, by address.
    pub dirty: DirtyNodes,
    /// The roots of trees that were used.
    pub roots: RankedMutex<rank::Leaf, HashMap<u64, Root>>,
}

/// What is known of the root of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub root: TreeRoot,
    /// The key of its item in the tree of roots, if it is there.
    pub key: Option<Key>,
    /// Blocks that are not younger may be shared with a snapshot.
    pub last_snapshot: u64,
    pub read_only: bool,
    /// It is deleted, and its blocks are being dropped.
    pub dropped: bool,
}

/// A leaf, and where the next one starts.
struct Leaf {
    node: Arc<Node>,
    below: Option<Key>,
}

impl Forest {
    pub(crate) fn new(volume: Volume, budget: Arc<Budget>) -> Self {
        let sb = &volume.sb;
        let root = |root| Root { root, key: None, last_snapshot: 0, read_only: false, dropped: false };
        let roots = [(object::ROOT_TREE, root(sb.root)), (object::CHUNK_TREE, root(sb.chunk_root))];
        let roots = RankedMutex::new(HashMap::from(roots));
        let (cache, dirty) = (NodeCache::new(budget.clone()), DirtyNodes::new(budget));
        Self { volume, cache, dirty, roots }
    }

    /// Damage of a tree.
    pub(crate) fn corrupt(&self, what: impl Into<String>, tree: &Tree, key: Key) -> Error {
        Error::corrupt(what, format!("{}, tree {}, item {key}", self.volume.place, tree.id))
    }

    /// Returns a block that the running transaction has made.
    pub(crate) fn dirty_node(&self, bytenr: u64) -> Option<Arc<Node>> {
        self.dirty.get(bytenr)
    }

    /// Returns a block, which is as the pointer to it says.
    pub(crate) fn node(&self, expected: &Expected) -> Result<Arc<Node>> {
        if let Some(node) = self.dirty_node(expected.bytenr) {
            let place = || format!("{}, block {}", self.volume.place, expected.bytenr);
            node.check(expected).map_err(|what| Error::corrupt(what, place()))?;
            return Ok(node);
        }
        if let Some(node) = self.cache.get(expected.bytenr) {
            // A block of a hostile image may have several parents, and only some may be right.
            if node.check(expected).is_ok() {
                return Ok(node);
            }
        }
        let volume = &self.volume;
        let what = || format!("block {} of tree {}", expected.bytenr, expected.tree);
        let size = volume.sb.node_size as usize;
        let node = volume.read_accepted(what, expected.bytenr, size, |bytes| {
            let node = Node::parse(&volume.sb, expected.bytenr, bytes)?;
            node.check(expected)?;
            Ok(node)
        })?;
        let node = Arc::new(node);
        self.cache.insert(expected.bytenr, node.clone());
        Ok(node)
    }

    /// Finds the leaf that has the last key that is at most `key`, or the first leaf.
    fn leaf(&self, tree: &Tree, key: Key) -> Result<Leaf> {
        let mut expected = Expected::root_of(tree.id, tree.root);
        loop {
            let node = self.node(&expected)?;
            if node.level == 0 {
                return Ok(Leaf { node, below: expected.below });
            }
            let index = node.at_most(key).saturating_sub(1);
            expected = node.expected_below(index, &expected);
        }
    }

    /// Decodes the last item whose key is at most `key`.
    pub(crate) fn last_at_most<T>(
        &self,
        tree: &Tree,
        key: Key,
        decode: impl FnOnce(Key, &[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let leaf = self.leaf(tree, key)?;
        match leaf.node.at_most(key).checked_sub(1) {
            Some(index) => decode(leaf.node.key(index), leaf.node.data(index)).map(Some),
            None => Ok(None),
        }
    }

    /// Decodes the item with a key.
    pub(crate) fn get<T>(
        &self,
        tree: &Tree,
        key: Key,
        decode: impl FnOnce(&[u8]) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let found = self.last_at_most(tree, key, |found, data| {
            if found != key {
                return Ok(None);
            }
            decode(data).map(Some).map_err(|what| self.corrupt(what, tree, key))
        })?;
        Ok(found.flatten())
    }

    /// Visits the items from `first` to `last` in order, until `visit` breaks.
    pub(crate) fn scan<B>(
        &self,
        tree: &Tree,
        first: Key,
        last: Key,
        mut visit: impl FnMut(Key, &[u8]) -> Result<ControlFlow<B>>,
    ) -> Result<Option<B>> {
        let mut from = first;
        loop {
            let leaf = self.leaf(tree, from)?;
            let start = leaf.node.at_most(from);
            // `from` itself counts.
            let start = start - usize::from(start > 0 && leaf.node.key(start - 1) == from);
            for index in start..leaf.node.count() {
                let key = leaf.node.key(index);
                if key > last {
                    return Ok(None);
                }
                if let ControlFlow::Break(value) = visit(key, leaf.node.data(index))? {
                    return Ok(Some(value));
                }
            }
            match leaf.below {
                Some(next) if next > last => return Ok(None),
                // It is above `from`: the search chose the last pointer that is not.
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }
}
