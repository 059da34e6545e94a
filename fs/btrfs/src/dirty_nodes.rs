//! The tree blocks that the running transaction made, charged to the mount's budget.

use crate::layout::node::Node;
use ivers_block::Budget;
use ivers_vfs::sync::{RankedMutex, rank};
use std::collections::BTreeMap;
use std::sync::Arc;

type Nodes = BTreeMap<u64, Arc<Node>>;

/// The blocks, by address. They cannot be evicted, so they stay charged until a commit or their removal.
pub(crate) struct DirtyNodes {
    budget: Arc<Budget>,
    nodes: RankedMutex<rank::Leaf, Nodes>,
}

impl DirtyNodes {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, nodes: RankedMutex::default() }
    }

    pub(crate) fn get(&self, address: u64) -> Option<Arc<Node>> {
        self.nodes.lock().get(&address).cloned()
    }

    /// Adds a block at an address that should have none.
    pub(crate) fn insert(&self, address: u64, node: Node) {
        self.budget.charge(node.memory_bytes());
        if let Some(old) = self.nodes.lock().insert(address, Arc::new(node)) {
            self.budget.uncharge(old.memory_bytes());
        }
    }

    /// Changes a block. Returns `None` if there is none.
    pub(crate) fn edit<R>(&self, address: u64, change: impl FnOnce(&mut Node) -> R) -> Option<R> {
        self.nodes.lock().get_mut(&address).map(|node| change(Arc::make_mut(node)))
    }

    pub(crate) fn remove(&self, address: u64) {
        if let Some(node) = self.nodes.lock().remove(&address) {
            self.budget.uncharge(node.memory_bytes());
        }
    }

    /// Returns all blocks, by address.
    pub(crate) fn all(&self) -> Nodes {
        self.nodes.lock().clone()
    }

    /// Removes and returns all blocks.
    pub(crate) fn take(&self) -> Nodes {
        let taken = std::mem::take(&mut *self.nodes.lock());
        self.budget.uncharge(taken.values().map(|node| node.memory_bytes()).sum());
        taken
    }

    /// Returns how many bytes of blocks may wait for a commit: a quarter of the budget, but at most `most`,
    /// and at least what a few changes need.
    pub(crate) fn most_bytes(&self, most: u64) -> u64 {
        const LEAST: u64 = 1 << 20;
        most.min((self.budget.limit() / 4).max(LEAST))
    }
}

impl Drop for DirtyNodes {
    fn drop(&mut self) {
        self.take();
    }
}
