//! The bytes of a block of a group's B-tree.

use crate::layout::bytes::number;
use crate::layout::raw::RawShortBlock;
use crate::layout::tree::{Key, TreeKind};
use std::mem::{offset_of, size_of};
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

const HEADER_BYTES: usize = size_of::<RawShortBlock>();
const POINTER_BYTES: usize = 4;

/// An entry of a block, in the arrays of the block: a record; or keys and a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Record(Vec<u8>),
    Child(Vec<u8>, u32),
}

impl Entry {
    pub(super) fn record(bytes: &[u8]) -> Self {
        Self::Record(bytes.to_vec())
    }
}

/// Where the parts of a block are.
pub(super) struct Shape {
    kind: TreeKind,
    record: usize,
    key: usize,
    block: usize,
}

impl Shape {
    pub(super) fn new(kind: TreeKind, block: usize) -> Self {
        Self { kind, record: kind.record_bytes(), key: kind.key_bytes(), block }
    }

    /// The most entries.
    pub(super) fn most(&self, level: usize) -> usize {
        let each = if level == 0 { self.record } else { self.key + POINTER_BYTES };
        (self.block - HEADER_BYTES) / each
    }

    /// Checks what the header says.
    pub(super) fn check_header(&self, bytes: &[u8], level: usize) -> Result<(), String> {
        let (name, found) = (self.kind.name(), number(bytes, 4, 2).unwrap_or(0));
        if !bytes.starts_with(self.kind.magic(true)) {
            return Err(format!("a block of {name} has a wrong magic"));
        }
        if found != level as u64 {
            return Err(format!("a block of {name} has level {found} instead of {level}"));
        }
        if self.count(bytes) > self.most(level) {
            return Err(format!("a block of {name} has {} entries", self.count(bytes)));
        }
        Ok(())
    }

    /// As [`Shape::check_header`], and a node has a child.
    pub(super) fn check(&self, bytes: &[u8], level: usize) -> Result<(), String> {
        self.check_header(bytes, level)?;
        if level > 0 && self.count(bytes) == 0 {
            return Err(format!("a node of {} has no child", self.kind.name()));
        }
        Ok(())
    }

    pub(super) fn count(&self, bytes: &[u8]) -> usize {
        number(bytes, offset_of!(RawShortBlock, bb_numrecs), 2).unwrap_or(0) as usize
    }

    fn set_count(&self, bytes: &mut [u8], count: usize) {
        put(bytes, offset_of!(RawShortBlock, bb_numrecs), &(count as u16).to_be_bytes());
    }

    pub(super) fn right(&self, bytes: &[u8]) -> u32 {
        number(bytes, offset_of!(RawShortBlock, bb_rightsib), 4).unwrap_or(0) as u32
    }

    pub(super) fn set_right(&self, bytes: &mut [u8], block: u32) {
        put(bytes, offset_of!(RawShortBlock, bb_rightsib), &block.to_be_bytes());
    }

    pub(super) fn set_left(&self, bytes: &mut [u8], block: u32) {
        put(bytes, offset_of!(RawShortBlock, bb_leftsib), &block.to_be_bytes());
    }

    pub(super) fn record<'a>(&self, bytes: &'a [u8], index: usize) -> &'a [u8] {
        let at = HEADER_BYTES + index * self.record;
        bytes.get(at..at + self.record).unwrap_or_default()
    }

    pub(super) fn set_record(&self, bytes: &mut [u8], index: usize, record: &[u8]) {
        put(bytes, HEADER_BYTES + index * self.record, record);
    }

    /// The bytes of a record.
    pub(super) fn record_range(&self, index: usize) -> Range<usize> {
        let start = HEADER_BYTES + index * self.record;
        start..start + self.record
    }

    fn key_at(&self, index: usize) -> usize {
        HEADER_BYTES + index * self.key
    }

    fn pointer_at(&self, index: usize) -> usize {
        HEADER_BYTES + self.most(1) * self.key + index * POINTER_BYTES
    }

    pub(super) fn pointer(&self, bytes: &[u8], index: usize) -> u32 {
        number(bytes, self.pointer_at(index), POINTER_BYTES).unwrap_or(0) as u32
    }

    /// The lowest and the highest key of an entry.
    pub(super) fn keys(&self, bytes: &[u8], level: usize, index: usize) -> (Key, Key) {
        match level {
            0 => self.kind.keys(self.record(bytes, index)),
            _ => self.kind.node_keys(bytes.get(self.key_at(index)..).unwrap_or_default()),
        }
    }

    pub(super) fn has_keys(&self, bytes: &[u8], level: usize, index: usize, entry: &Entry) -> bool {
        let at = self.key_at(index);
        matches!(entry, Entry::Child(keys, _) if level > 0 && bytes.get(at..at + self.key) == Some(keys))
    }

    pub(super) fn set_keys(&self, bytes: &mut [u8], level: usize, index: usize, entry: &Entry) {
        if let (true, Entry::Child(keys, _)) = (level > 0, entry) {
            put(bytes, self.key_at(index), keys);
        }
    }

    /// The entry of the parent of a block.
    pub(super) fn entry_of(&self, bytes: &[u8], level: usize, block: u32) -> Entry {
        let count = self.count(bytes);
        let (low, mut high) = if count > 0 { self.keys(bytes, level, 0) } else { Default::default() };
        if self.kind == TreeKind::ReverseMap {
            // Records are in the order of their lowest keys only.
            high = (1..count).map(|index| self.keys(bytes, level, index).1).fold(high, Key::max);
        }
        Entry::Child(self.kind.encode_keys(low, high), block)
    }

    pub(super) fn entries(&self, bytes: &[u8], level: usize) -> Vec<Entry> {
        let entry = |index| match level {
            0 => Entry::record(self.record(bytes, index)),
            _ => {
                let keys = bytes.get(self.key_at(index)..self.key_at(index + 1)).unwrap_or_default();
                Entry::Child(keys.to_vec(), self.pointer(bytes, index))
            }
        };
        (0..self.count(bytes).min(self.most(level))).map(entry).collect()
    }

    pub(super) fn set_entries(&self, bytes: &mut [u8], level: usize, entries: &[Entry]) {
        entries.iter().enumerate().for_each(|(index, entry)| self.set_entry(bytes, level, index, entry));
        self.set_count(bytes, entries.len());
    }

    fn set_entry(&self, bytes: &mut [u8], level: usize, index: usize, entry: &Entry) {
        match entry {
            Entry::Record(record) => self.set_record(bytes, index, record),
            Entry::Child(_, pointer) => {
                self.set_keys(bytes, level, index, entry);
                put(bytes, self.pointer_at(index), &pointer.to_be_bytes());
            }
        }
    }

    /// The arrays of a block: where each starts, and the bytes of an element.
    fn arrays(&self, level: usize) -> Vec<(usize, usize)> {
        match level {
            0 => vec![(HEADER_BYTES, self.record)],
            _ => vec![(self.key_at(0), self.key), (self.pointer_at(0), POINTER_BYTES)],
        }
    }

    /// Inserts an entry; there is space for it.
    pub(super) fn insert(&self, bytes: &mut [u8], level: usize, index: usize, entry: &Entry) {
        let count = self.count(bytes);
        if count >= self.most(level) || index > count {
            return;
        }
        for (start, each) in self.arrays(level) {
            bytes.copy_within(start + index * each..start + count * each, start + (index + 1) * each);
        }
        self.set_entry(bytes, level, index, entry);
        self.set_count(bytes, count + 1);
    }

    pub(super) fn remove(&self, bytes: &mut [u8], level: usize, index: usize) {
        let count = self.count(bytes);
        if index >= count || count > self.most(level) {
            return;
        }
        for (start, each) in self.arrays(level) {
            bytes.copy_within(start + (index + 1) * each..start + count * each, start + index * each);
        }
        self.set_count(bytes, count - 1);
    }

    /// The header of a block without entries; its self-describing fields are zero.
    pub(super) fn head(&self, level: usize, left: u32, right: u32) -> Vec<u8> {
        let mut head = RawShortBlock::new_zeroed();
        head.bb_magic = u32::from_be_bytes(*self.kind.magic(true)).into();
        head.bb_level = (level as u16).into();
        head.bb_leftsib = left.into();
        head.bb_rightsib = right.into();
        head.as_bytes().to_vec()
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}
