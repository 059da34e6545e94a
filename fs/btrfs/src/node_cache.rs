//! Blocks of trees in memory, charged to the mount's budget.
//!
//! `ivers_block::BufferCache` has one device and blocks at multiples of their size. A block of a tree may lie
//! at any sector and has copies on several devices.

use crate::layout::node::Node;
use ivers_block::Budget;
use ivers_vfs::sync::{RankedMutex, rank};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Blocks that stay when the budget is over, so that a search does not read each block twice.
const LEAST_NODES: usize = 32;

/// A bounded cache. Evicts blocks that were not used since the clock last passed.
pub(crate) struct NodeCache {
    budget: Arc<Budget>,
    nodes: RankedMutex<rank::Leaf, Nodes>,
}

#[derive(Default)]
struct Nodes {
    by_address: HashMap<u64, Entry>,
    /// The addresses in `by_address`, each once; the clock's hand is at the front.
    clock: VecDeque<u64>,
}

struct Entry {
    node: Arc<Node>,
    used: bool,
}

impl NodeCache {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, nodes: RankedMutex::new(Nodes::default()) }
    }

    pub(crate) fn get(&self, address: u64) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.lock();
        let entry = nodes.by_address.get_mut(&address)?;
        entry.used = true;
        Some(entry.node.clone())
    }

    /// Keeps a block in place of an older one at its address.
    pub(crate) fn insert(&self, address: u64, node: Arc<Node>) {
        let mut nodes = self.nodes.lock();
        self.budget.charge(node.memory_bytes());
        match nodes.by_address.insert(address, Entry { node, used: true }) {
            Some(old) => self.budget.uncharge(old.node.memory_bytes()),
            None => nodes.clock.push_back(address),
        }
        self.shrink_to_budget(&mut nodes);
    }

    /// Evicts blocks while the budget is exceeded. Call it after charging the budget for something else.
    pub(crate) fn shrink(&self) {
        if self.budget.over() {
            self.shrink_to_budget(&mut self.nodes.lock());
        }
    }

    fn shrink_to_budget(&self, nodes: &mut Nodes) {
        while self.budget.over() && nodes.clock.len() > LEAST_NODES {
            self.evict_one(nodes);
        }
    }

    /// Evicts about this many bytes.
    pub(crate) fn evict(&self, bytes: u64) {
        let mut nodes = self.nodes.lock();
        let mut evicted = 0;
        while evicted < bytes && nodes.clock.len() > LEAST_NODES {
            evicted += self.evict_one(&mut nodes);
        }
    }

    /// Evicts one block that was not used lately. Returns its bytes.
    fn evict_one(&self, nodes: &mut Nodes) -> u64 {
        // The hand clears each mark once, so it comes around at most once.
        while let Some(address) = nodes.clock.pop_front() {
            let Some(entry) = nodes.by_address.get_mut(&address) else { continue };
            if std::mem::take(&mut entry.used) {
                nodes.clock.push_back(address);
                continue;
            }
            let bytes = entry.node.memory_bytes();
            nodes.by_address.remove(&address);
            self.budget.uncharge(bytes);
            return bytes;
        }
        0
    }
}

impl Drop for NodeCache {
    fn drop(&mut self) {
        let nodes = self.nodes.lock();
        self.budget.uncharge(nodes.by_address.values().map(|entry| entry.node.memory_bytes()).sum());
    }
}
