//! Blocks of trees: what one says of itself is checked once, what its parent says of it at each use.

use super::bytes::{read, slice};
use super::key::{Key, is_subvolume};
use super::raw::{RawHeader, RawItem, RawKeyPtr};
use super::superblock::{MAX_LEVEL, Superblock, TreeRoot};
use std::mem::size_of;

pub(crate) const HEADER_BYTES: usize = size_of::<RawHeader>();
pub(crate) const ITEM_BYTES: usize = size_of::<RawItem>();
pub(crate) const POINTER_BYTES: usize = size_of::<RawKeyPtr>();

/// A block of a tree whose checksum, place, filesystem, keys and bounds are right.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(super) bytes: Box<[u8]>,
    pub level: u8,
    pub generation: u64,
    pub owner: u64,
    pub(super) count: usize,
}

/// What the parent of a block, or the root item of a tree, says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub bytenr: u64,
    pub generation: u64,
    pub level: u8,
    /// The tree. A block that subvolumes share names another subvolume.
    pub tree: u64,
    pub first: Option<Key>,
    /// All keys are below this one.
    pub below: Option<Key>,
}

impl Expected {
    /// What must be in the root of a tree.
    pub(crate) fn root_of(tree: u64, root: TreeRoot) -> Self {
        let TreeRoot { bytenr, generation, level } = root;
        Self { bytenr, generation, level, tree, first: None, below: None }
    }
}

/// A pointer of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pointer {
    pub key: Key,
    pub bytenr: u64,
    pub generation: u64,
}

impl Node {
    /// Checks a block that was read from the logical address `bytenr`.
    pub(crate) fn parse(sb: &Superblock, bytenr: u64, bytes: Box<[u8]>) -> Result<Self, String> {
        if !sb.checksum.is_valid(&bytes) {
            return Err("bad checksum".into());
        }
        let header: RawHeader = read(&bytes, 0).ok_or("too short")?;
        if header.bytenr.get() != bytenr {
            return Err(format!("it names {} as its address", header.bytenr.get()));
        }
        if header.fsid != sb.metadata_uuid {
            return Err("it belongs to another filesystem".into());
        }
        if header.level >= MAX_LEVEL {
            return Err(format!("its level is {}", header.level));
        }
        let entry_bytes = if header.level == 0 { ITEM_BYTES } else { POINTER_BYTES };
        let count = header.nritems.get() as usize;
        if count > (bytes.len() - HEADER_BYTES) / entry_bytes || (header.level > 0 && count == 0) {
            return Err(format!("it has {count} items"));
        }
        let node = Self {
            bytes,
            level: header.level,
            generation: header.generation.get(),
            owner: header.owner.get(),
            count,
        };
        node.check_contents(sb)?;
        Ok(node)
    }

    /// Checks the order of keys, and where items or pointers lead.
    pub(crate) fn check_contents(&self, sb: &Superblock) -> Result<(), String> {
        self.check_keys()?;
        if self.level == 0 { self.check_items() } else { self.check_pointers(sb) }
    }

    fn check_keys(&self) -> Result<(), String> {
        match (1..self.count).find(|index| self.key(index - 1) >= self.key(*index)) {
            Some(index) => Err(format!("key {index} is not above the one before it")),
            None => Ok(()),
        }
    }

    /// Data of items lies side by side, from the end of the leaf towards its table.
    fn check_items(&self) -> Result<(), String> {
        let mut end = self.bytes.len() - HEADER_BYTES;
        let table = self.count * ITEM_BYTES;
        for index in 0..self.count {
            let item = self.raw_item(index);
            let (offset, size) = (item.offset.get() as usize, item.size.get() as usize);
            if offset < table || offset.checked_add(size) != Some(end) {
                return Err(format!("item {index} has {size} bytes at {offset}"));
            }
            end = offset;
        }
        Ok(())
    }

    fn check_pointers(&self, sb: &Superblock) -> Result<(), String> {
        let sector = u64::from(sb.sector_size);
        let bad = |pointer: &Pointer| !pointer.bytenr.is_multiple_of(sector) || pointer.bytenr == 0;
        match (0..self.count).map(|index| self.pointer(index)).find(bad) {
            Some(pointer) => Err(format!("a pointer leads to {}", pointer.bytenr)),
            None => Ok(()),
        }
    }

    /// Checks the block against what leads to it.
    pub(crate) fn check(&self, expected: &Expected) -> Result<(), String> {
        if self.generation != expected.generation {
            return Err(format!("its generation is {}, not {}", self.generation, expected.generation));
        }
        if self.level != expected.level {
            return Err(format!("its level is {}, not {}", self.level, expected.level));
        }
        if self.owner != expected.tree && !(is_subvolume(self.owner) && is_subvolume(expected.tree)) {
            return Err(format!("it belongs to tree {}, not {}", self.owner, expected.tree));
        }
        let (first, last) = (self.first_key(), self.last_key());
        if expected.first.is_some_and(|key| first != Some(key)) {
            return Err("its first key is not that of the pointer to it".into());
        }
        if expected.below.zip(last).is_some_and(|(below, last)| last >= below) {
            return Err("it has keys of the block after it".into());
        }
        Ok(())
    }

    /// What a node above the leaves, which is as expected itself, says of the block below a pointer.
    pub(crate) fn expected_below(&self, index: usize, own: &Expected) -> Expected {
        let pointer = self.pointer(index);
        let next = (index + 1 < self.count).then(|| self.key(index + 1));
        Expected {
            bytenr: pointer.bytenr,
            generation: pointer.generation,
            // `parse` refused a node of level 0 with pointers.
            level: self.level - 1,
            tree: own.tree,
            first: Some(pointer.key),
            below: next.or(own.below),
        }
    }

    /// Returns the flags in the header, and the revision of the references.
    pub(crate) fn flags(&self) -> (u64, u8) {
        let flags = read::<RawHeader>(&self.bytes, 0).map_or(0, |header| header.flags.get());
        (flags & (u64::MAX >> 8), (flags >> 56) as u8)
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + size_of::<Self>()) as u64
    }

    /// Items of a leaf, or pointers of a node.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn first_key(&self) -> Option<Key> {
        (self.count > 0).then(|| self.key(0))
    }

    fn last_key(&self) -> Option<Key> {
        self.count.checked_sub(1).map(|last| self.key(last))
    }

    /// The key of an item or a pointer below `count`.
    pub(crate) fn key(&self, index: usize) -> Key {
        if self.level == 0 { Key::from(&self.raw_item(index).key) } else { self.pointer(index).key }
    }

    pub(super) fn raw_item(&self, index: usize) -> RawItem {
        read(&self.bytes, HEADER_BYTES + index * ITEM_BYTES).expect("the table fits, as `parse` checked")
    }

    /// A pointer below `count` of a node above the leaves.
    pub(crate) fn pointer(&self, index: usize) -> Pointer {
        let raw: RawKeyPtr = read(&self.bytes, HEADER_BYTES + index * POINTER_BYTES)
            .expect("the table fits, as `parse` checked");
        Pointer { key: Key::from(&raw.key), bytenr: raw.blockptr.get(), generation: raw.generation.get() }
    }

    /// The data of an item of a leaf.
    pub(crate) fn data(&self, index: usize) -> &[u8] {
        let item = self.raw_item(index);
        slice(&self.bytes, HEADER_BYTES + item.offset.get() as usize, item.size.get() as usize)
            .expect("items lie inside the leaf, as `parse` checked")
    }

    /// How many keys are at most `key`.
    pub(crate) fn at_most(&self, key: Key) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low
    }
}
