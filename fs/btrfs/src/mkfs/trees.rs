//! The trees of a new filesystem, and the layout of their items in blocks.

use crate::layout::edit::Place;
use crate::layout::key::Key;
use crate::layout::node::{HEADER_BYTES, ITEM_BYTES, Node, Pointer};
use crate::layout::superblock::{Superblock, TreeRoot};

/// A tree with its items, in the order of keys.
#[derive(Debug, Clone)]
pub(super) struct NewTree {
    pub id: u64,
    pub items: Vec<(Key, Vec<u8>)>,
    /// The addresses of its leaves, and of the node above them if there are several.
    pub blocks: Vec<u64>,
}

/// Returns the number of items of each leaf.
fn leaves(sizes: impl Iterator<Item = usize>, node_size: u32) -> Vec<usize> {
    let capacity = node_size as usize - HEADER_BYTES;
    let (mut counts, mut free) = (vec![0], capacity);
    for size in sizes {
        let needed = size + ITEM_BYTES;
        if needed > free {
            counts.push(0);
            free = capacity;
        }
        free -= needed;
        *counts.last_mut().expect("it is never empty") += 1;
    }
    counts
}

/// Returns the number of blocks of a tree with items of these sizes.
pub(super) fn block_count(sizes: impl Iterator<Item = usize>, node_size: u32) -> usize {
    match leaves(sizes, node_size).len() {
        1 => 1,
        leaves => leaves + 1,
    }
}

impl NewTree {
    pub(super) fn new(id: u64, items: Vec<(Key, Vec<u8>)>) -> Self {
        Self { id, items, blocks: Vec::new() }
    }

    pub(super) fn block_count(&self, node_size: u32) -> usize {
        block_count(self.items.iter().map(|(_, data)| data.len()), node_size)
    }

    /// Returns the level of the block `index`.
    pub(super) fn level(&self, index: usize) -> u8 {
        u8::from(self.blocks.len() > 1 && index + 1 == self.blocks.len())
    }

    /// Returns the address of its root.
    pub(super) fn root(&self, generation: u64) -> TreeRoot {
        let last = self.blocks.len() - 1;
        TreeRoot { bytenr: self.blocks[last], generation, level: self.level(last) }
    }

    /// Returns all blocks as bytes, with their addresses.
    pub(super) fn encode(&self, sb: &Superblock, chunk_uuid: [u8; 16]) -> Vec<(u64, Box<[u8]>)> {
        let generation = sb.generation;
        let place = |bytenr: u64| Place { bytenr, generation, owner: self.id };
        let mut rest = &self.items[..];
        let (mut encoded, mut firsts) = (Vec::new(), Vec::new());
        let counts = leaves(self.items.iter().map(|(_, data)| data.len()), sb.node_size);
        for (count, address) in counts.into_iter().zip(&self.blocks) {
            let (items, others) = rest.split_at(count);
            rest = others;
            let mut leaf = Node::empty(sb, chunk_uuid, place(*address), 0);
            for (index, (key, data)) in items.iter().enumerate() {
                leaf.insert_item(index, *key, data);
            }
            firsts.extend(leaf.first_key().map(|key| Pointer { key, bytenr: *address, generation }));
            encoded.push((*address, leaf.sealed(sb)));
        }
        if self.blocks.len() > 1 {
            let address = self.blocks[self.blocks.len() - 1];
            let mut node = Node::empty(sb, chunk_uuid, place(address), 1);
            for (index, pointer) in firsts.into_iter().enumerate() {
                node.insert_pointer(index, pointer);
            }
            encoded.push((address, node.sealed(sb)));
        }
        encoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::superblock::test_superblock;

    #[test]
    fn leaves_are_filled_in_order() {
        let sb = test_superblock();
        let items = (0..30).map(|number| (Key::new(number, 1, 0), vec![number as u8; 400])).collect();
        let mut tree = NewTree::new(1, items);
        let count = tree.block_count(sb.node_size);
        assert_eq!(count, 5, "four leaves of at most nine items, and a node");
        tree.blocks = (0..count as u64).map(|number| (number + 1) * 4096).collect();
        let blocks = tree.encode(&sb, [3; 16]);
        let parsed: Vec<_> =
            blocks.into_iter().map(|(at, bytes)| Node::parse(&sb, at, bytes).unwrap()).collect();
        assert_eq!(parsed.iter().map(Node::count).collect::<Vec<_>>(), [9, 9, 9, 3, 4]);
        assert_eq!((parsed[4].level, parsed[4].pointer(1).key), (1, Key::new(9, 1, 0)));
        assert_eq!(tree.root(7).level, 1);
        assert_eq!(NewTree::new(7, Vec::new()).block_count(4096), 1);
    }
}
