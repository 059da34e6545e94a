//! Changes of blocks in memory: items of leaves, pointers of nodes, and dividing and joining both.
//!
//! Callers check with [`Node::free_bytes`] that what they add fits.

use super::key::Key;
use super::node::{HEADER_BYTES, ITEM_BYTES, Node, POINTER_BYTES, Pointer};
use super::raw::{RawHeader, RawItem, RawKey, RawKeyPtr};
use super::superblock::Superblock;
use zerocopy::IntoBytes;

/// The block was written as a whole (`flags` of the header).
const WRITTEN: u64 = 1;
/// A relocation made the block.
const RELOCATED: u64 = 1 << 1;
/// The block uses mixed back references, which name a tree or a block. Only the oldest filesystems have
/// others.
const MIXED_BACKREF: u64 = 1 << 56;

/// Where fields of a header are.
const BYTENR: usize = 0x30;
const FLAGS: usize = 0x38;
const GENERATION: usize = 0x50;
const OWNER: usize = 0x58;
const COUNT: usize = 0x60;

impl Node {
    /// Makes an empty block.
    pub(crate) fn empty(sb: &Superblock, chunk_uuid: [u8; 16], place: Place, level: u8) -> Self {
        let header = RawHeader {
            csum: [0; 32],
            fsid: sb.metadata_uuid,
            bytenr: place.bytenr.into(),
            flags: (WRITTEN | MIXED_BACKREF).into(),
            chunk_tree_uuid: chunk_uuid,
            generation: place.generation.into(),
            owner: place.owner.into(),
            nritems: 0.into(),
            level,
        };
        let mut bytes = vec![0; sb.node_size as usize].into_boxed_slice();
        bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        Self { bytes, level, generation: place.generation, owner: place.owner, count: 0 }
    }

    /// Makes a copy for another place.
    pub(crate) fn copied(&self, place: Place) -> Self {
        let mut copy = self.clone();
        copy.bytes[BYTENR..BYTENR + 8].copy_from_slice(&place.bytenr.to_le_bytes());
        let flags = (self.header_flags() | WRITTEN | MIXED_BACKREF) & !RELOCATED;
        copy.bytes[FLAGS..FLAGS + 8].copy_from_slice(&flags.to_le_bytes());
        copy.bytes[GENERATION..GENERATION + 8].copy_from_slice(&place.generation.to_le_bytes());
        copy.bytes[OWNER..OWNER + 8].copy_from_slice(&place.owner.to_le_bytes());
        copy.generation = place.generation;
        copy.owner = place.owner;
        copy
    }

    fn header_flags(&self) -> u64 {
        let mut flags = [0; 8];
        flags.copy_from_slice(&self.bytes[FLAGS..FLAGS + 8]);
        u64::from_le_bytes(flags)
    }

    /// Returns whether references from this block may name the block instead of a tree: a relocation or
    /// an old driver made the block.
    pub(crate) fn has_old_references(&self) -> bool {
        let flags = self.header_flags();
        flags & RELOCATED != 0 || flags & MIXED_BACKREF == 0
    }

    /// The UUID of the tree of chunks in the header.
    pub(crate) fn chunk_uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&self.bytes[0x40..0x50]);
        uuid
    }

    /// The bytes to write, with their checksum.
    pub(crate) fn sealed(&self, sb: &Superblock) -> Box<[u8]> {
        let mut bytes = self.bytes.clone();
        sb.checksum.seal(&mut bytes);
        bytes
    }

    fn set_count(&mut self, count: usize) {
        self.count = count;
        self.bytes[COUNT..COUNT + 4].copy_from_slice(&(count as u32).to_le_bytes());
    }

    /// The most bytes that items with their table, or pointers, take.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len() - HEADER_BYTES
    }

    /// Where the data of the items starts, counted from the header's end.
    fn data_start(&self) -> usize {
        match self.count {
            0 => self.capacity(),
            count => self.raw_item(count - 1).offset.get() as usize,
        }
    }

    /// Bytes between the table and the data of a leaf, or for more pointers.
    pub(crate) fn free_bytes(&self) -> usize {
        if self.level == 0 {
            self.data_start() - self.count * ITEM_BYTES
        } else {
            self.capacity() - self.count * POINTER_BYTES
        }
    }

    /// Whether a leaf has space for an item with so much data, or a node for a pointer.
    pub(crate) fn fits(&self, data_bytes: usize) -> bool {
        self.free_bytes() >= if self.level == 0 { ITEM_BYTES + data_bytes } else { POINTER_BYTES }
    }

    fn put_item(&mut self, index: usize, item: &RawItem) {
        let at = HEADER_BYTES + index * ITEM_BYTES;
        self.bytes[at..at + ITEM_BYTES].copy_from_slice(item.as_bytes());
    }

    /// Moves the data of the items from `first` on by `by` bytes.
    fn shift_data(&mut self, first: usize, by: isize) {
        if first >= self.count || by == 0 {
            return;
        }
        let start = self.data_start();
        let last = self.raw_item(first);
        let end = (last.offset.get() + last.size.get()) as usize;
        let to = (HEADER_BYTES + start).wrapping_add_signed(by);
        self.bytes.copy_within(HEADER_BYTES + start..HEADER_BYTES + end, to);
        for index in first..self.count {
            let mut item = self.raw_item(index);
            item.offset = item.offset.get().wrapping_add_signed(by as i32).into();
            self.put_item(index, &item);
        }
    }

    /// Inserts an item before the one at `index`.
    pub(crate) fn insert_item(&mut self, index: usize, key: Key, data: &[u8]) {
        debug_assert!(self.level == 0 && index <= self.count && self.fits(data.len()));
        let end = if index == 0 { self.capacity() } else { self.raw_item(index - 1).offset.get() as usize };
        self.shift_data(index, -(data.len() as isize));
        let table = HEADER_BYTES + index * ITEM_BYTES..HEADER_BYTES + self.count * ITEM_BYTES;
        self.bytes.copy_within(table.clone(), table.start + ITEM_BYTES);
        let offset = end - data.len();
        let (place, size) = ((offset as u32).into(), (data.len() as u32).into());
        self.put_item(index, &RawItem { key: RawKey::from(key), offset: place, size });
        self.bytes[HEADER_BYTES + offset..HEADER_BYTES + end].copy_from_slice(data);
        self.set_count(self.count + 1);
    }

    /// Removes an item of a leaf.
    pub(crate) fn remove_item(&mut self, index: usize) {
        let size = self.raw_item(index).size.get() as isize;
        self.shift_data(index + 1, size);
        let table = HEADER_BYTES + (index + 1) * ITEM_BYTES..HEADER_BYTES + self.count * ITEM_BYTES;
        self.bytes.copy_within(table.clone(), table.start - ITEM_BYTES);
        self.set_count(self.count - 1);
    }

    /// The data of an item, to be changed in place.
    pub(crate) fn data_mut(&mut self, index: usize) -> &mut [u8] {
        let item = self.raw_item(index);
        let at = HEADER_BYTES + item.offset.get() as usize;
        &mut self.bytes[at..at + item.size.get() as usize]
    }

    /// Changes the key of an item or a pointer, which stays in order.
    pub(crate) fn set_key(&mut self, index: usize, key: Key) {
        let entry = if self.level == 0 { ITEM_BYTES } else { POINTER_BYTES };
        let at = HEADER_BYTES + index * entry;
        let raw = RawKey::from(key);
        self.bytes[at..at + raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
    }

    fn put_pointer(&mut self, index: usize, pointer: Pointer) {
        let raw = RawKeyPtr {
            key: RawKey::from(pointer.key),
            blockptr: pointer.bytenr.into(),
            generation: pointer.generation.into(),
        };
        let at = HEADER_BYTES + index * POINTER_BYTES;
        self.bytes[at..at + POINTER_BYTES].copy_from_slice(raw.as_bytes());
    }

    /// Replaces a pointer of a node.
    pub(crate) fn set_pointer(&mut self, index: usize, pointer: Pointer) {
        debug_assert!(index < self.count);
        self.put_pointer(index, pointer);
    }

    /// Inserts a pointer before the one at `index`.
    pub(crate) fn insert_pointer(&mut self, index: usize, pointer: Pointer) {
        debug_assert!(self.level > 0 && index <= self.count && self.fits(0));
        let table = HEADER_BYTES + index * POINTER_BYTES..HEADER_BYTES + self.count * POINTER_BYTES;
        self.bytes.copy_within(table.clone(), table.start + POINTER_BYTES);
        self.put_pointer(index, pointer);
        self.set_count(self.count + 1);
    }

    /// Removes a pointer of a node.
    pub(crate) fn remove_pointer(&mut self, index: usize) {
        let table = HEADER_BYTES + (index + 1) * POINTER_BYTES..HEADER_BYTES + self.count * POINTER_BYTES;
        self.bytes.copy_within(table.clone(), table.start - POINTER_BYTES);
        self.set_count(self.count - 1);
    }

    /// Moves the entries from `index` on to the end of `to`, where they fit.
    pub(crate) fn move_tail(&mut self, index: usize, to: &mut Self) {
        for from in index..self.count {
            if self.level == 0 {
                to.insert_item(to.count, self.key(from), self.data(from));
            } else {
                to.insert_pointer(to.count, self.pointer(from));
            }
        }
        // From the end, so that nothing else moves.
        while self.count > index {
            if self.level == 0 { self.remove_item(self.count - 1) } else { self.set_count(self.count - 1) }
        }
    }

    /// Where to divide a full block: about half of the bytes stay. At least one entry is on each side.
    pub(crate) fn middle(&self) -> usize {
        if self.level > 0 {
            return self.count / 2;
        }
        let used = self.capacity() - self.free_bytes();
        let mut bytes = 0;
        for index in 0..self.count {
            bytes += ITEM_BYTES + self.data(index).len();
            if bytes * 2 >= used {
                return (index + 1).clamp(1, self.count.saturating_sub(1).max(1));
            }
        }
        self.count / 2
    }
}

/// What the header of a new block says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub bytenr: u64,
    pub generation: u64,
    pub owner: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::superblock::test_superblock;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;

    const PLACE: Place = Place { bytenr: 1 << 20, generation: 7, owner: 5 };

    #[test]
    fn a_leaf_keeps_what_a_map_keeps() {
        let sb = test_superblock();
        let mut random = SmallRng::seed_from_u64(1);
        let mut leaf = Node::empty(&sb, [1; 16], PLACE, 0);
        let mut model = BTreeMap::new();
        for step in 0..3000u32 {
            let key = Key::new(random.random_range(0..80), 1, 0);
            let index = leaf.at_most(key);
            let found = index > 0 && leaf.key(index - 1) == key;
            let data = vec![step as u8; random.random_range(0..200)];
            if found {
                leaf.remove_item(index - 1);
                model.remove(&key);
            } else if leaf.fits(data.len()) {
                leaf.insert_item(index, key, &data);
                model.insert(key, data);
            }
            let bytes = leaf.sealed(&sb);
            let parsed = Node::parse(&sb, PLACE.bytenr, bytes).unwrap();
            let items: Vec<_> =
                (0..parsed.count()).map(|it| (parsed.key(it), parsed.data(it).to_vec())).collect();
            assert_eq!(items, model.clone().into_iter().collect::<Vec<_>>(), "step {step}");
        }
        let mut right = Node::empty(&sb, [1; 16], PLACE, 0);
        let (middle, count) = (leaf.middle(), leaf.count());
        assert!(count > 3 && middle > 0 && middle < count);
        leaf.move_tail(middle, &mut right);
        assert_eq!((leaf.count(), right.count()), (middle, count - middle));
        for node in [&leaf, &right] {
            Node::parse(&sb, PLACE.bytenr, node.sealed(&sb)).unwrap();
        }
    }
}
