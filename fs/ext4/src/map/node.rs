//! Extent tree nodes as bytes.
//!
//! A node is a header of 12 bytes and entries of 12 bytes (format documentation, "Extent Tree"). The root is
//! stored in the 60 bytes of `i_block`; every other node fills a block and ends with a checksum if metadata
//! has checksums.
//!
//! This module does not check bounds: callers have verified the node, or made it.

use ivers_block::{BlockNo, FileBlock};

pub(crate) const MAGIC: u16 = 0xF30A;
pub(crate) const HEADER: usize = 12;
pub(crate) const ENTRY: usize = 12;
pub(crate) const MAX_DEPTH: u16 = 5;
/// Capacity of the smallest node, the root.
pub(crate) const MIN_CAPACITY: usize = 4;
/// Longest written extent, in blocks; a longer `ee_len` means `ee_len - 32768` unwritten blocks.
pub(crate) const MAX_LEN: u32 = 32_768;
/// Longest unwritten extent, in blocks.
pub(crate) const MAX_UNWRITTEN: u32 = 32_767;
/// The end of the largest file.
pub(crate) const END: FileBlock = FileBlock(1 << 32);

/// A run of file blocks and its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub file_block: FileBlock,
    pub len: u32,
    pub start: BlockNo,
    pub unwritten: bool,
}

impl Extent {
    pub fn end(&self) -> FileBlock {
        self.file_block + u64::from(self.len)
    }

    pub fn decode(bytes: &[u8]) -> Self {
        let len = u32::from(u16_at(bytes, 4));
        let unwritten = len > MAX_LEN;
        Self {
            file_block: first_key(bytes),
            len: if unwritten { len - MAX_LEN } else { len },
            start: BlockNo(u64::from(u32_at(bytes, 8)) | u64::from(u16_at(bytes, 6)) << 32),
            unwritten,
        }
    }

    pub fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let len = if self.unwritten { self.len + MAX_LEN } else { self.len };
        put_key(&mut bytes, self.file_block);
        bytes[4..6].copy_from_slice(&(len as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&((self.start.0 >> 32) as u16).to_le_bytes());
        bytes[8..].copy_from_slice(&(self.start.0 as u32).to_le_bytes());
        bytes
    }

    /// Whether `next` continues this run in the file and on the device, and both fit into one entry.
    pub fn joins(&self, next: &Extent) -> bool {
        let max = if self.unwritten { MAX_UNWRITTEN } else { MAX_LEN };
        self.unwritten == next.unwritten
            && self.end() == next.file_block
            && self.start + u64::from(self.len) == next.start
            && self.len + next.len <= max
    }

    /// The part of the extent from `from` to `to`, file blocks inside it.
    pub fn part(&self, from: FileBlock, to: FileBlock) -> Extent {
        Extent {
            file_block: from,
            len: (to - from) as u32,
            start: self.start + (from - self.file_block),
            ..*self
        }
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn entries(node: &[u8]) -> usize {
    usize::from(u16_at(node, 2))
}

pub(crate) fn capacity(node: &[u8]) -> usize {
    usize::from(u16_at(node, 4))
}

pub(crate) fn depth(node: &[u8]) -> u16 {
    u16_at(node, 6)
}

pub(crate) fn entry(node: &[u8], index: usize) -> &[u8] {
    &node[HEADER + index * ENTRY..HEADER + (index + 1) * ENTRY]
}

pub(crate) fn key(node: &[u8], index: usize) -> FileBlock {
    first_key(entry(node, index))
}

/// The key at the start of entries.
pub(crate) fn first_key(entries: &[u8]) -> FileBlock {
    FileBlock(u64::from(u32_at(entries, 0)))
}

/// Sets the key at the start of an entry.
pub(crate) fn put_key(entry: &mut [u8], key: FileBlock) {
    entry[..4].copy_from_slice(&(key.0 as u32).to_le_bytes());
}

pub(crate) fn child(node: &[u8], index: usize) -> BlockNo {
    let bytes = entry(node, index);
    BlockNo(u64::from(u32_at(bytes, 4)) | u64::from(u16_at(bytes, 8)) << 32)
}

/// Changes the block of a child.
pub(super) fn put_child(node: &mut [u8], index: usize, block: BlockNo) {
    let at = HEADER + index * ENTRY;
    let entry = index_entry(key(node, index), block);
    node[at..at + ENTRY].copy_from_slice(&entry);
}

pub(crate) fn index_entry(key: FileBlock, block: BlockNo) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    put_key(&mut bytes, key);
    bytes[4..8].copy_from_slice(&(block.0 as u32).to_le_bytes());
    bytes[8..10].copy_from_slice(&((block.0 >> 32) as u16).to_le_bytes());
    bytes
}

pub(crate) fn set_entries(node: &mut [u8], count: usize) {
    node[2..4].copy_from_slice(&(count as u16).to_le_bytes());
}

pub(crate) fn put_header(node: &mut [u8], capacity: usize, depth: u16) {
    node[..2].copy_from_slice(&MAGIC.to_le_bytes());
    node[2..4].fill(0);
    node[4..6].copy_from_slice(&(capacity as u16).to_le_bytes());
    node[6..8].copy_from_slice(&depth.to_le_bytes());
    node[8..12].fill(0);
}

pub(crate) fn insert_at(node: &mut [u8], index: usize, bytes: &[u8; ENTRY]) {
    let count = entries(node);
    let (from, to) = (HEADER + index * ENTRY, HEADER + count * ENTRY);
    node.copy_within(from..to, from + ENTRY);
    node[from..from + ENTRY].copy_from_slice(bytes);
    set_entries(node, count + 1);
}

pub(crate) fn remove_at(node: &mut [u8], index: usize) {
    let count = entries(node);
    node.copy_within(HEADER + (index + 1) * ENTRY..HEADER + count * ENTRY, HEADER + index * ENTRY);
    set_entries(node, count - 1);
}

/// The last entry whose key is not above `block`; 0 if all are.
pub(crate) fn find(node: &[u8], block: FileBlock) -> usize {
    let (mut low, mut high) = (0, entries(node));
    while low < high {
        let middle = (low + high) / 2;
        if key(node, middle) <= block { low = middle + 1 } else { high = middle }
    }
    low.saturating_sub(1)
}

/// An empty root.
pub(crate) fn empty_root() -> [u8; 60] {
    let mut root = [0; 60];
    put_header(&mut root, 4, 0);
    root
}
