//! The kinds of B-trees: sizes, keys and magics.

use super::bytes::number;
use super::owner::{Owner, UNWRITTEN};
use super::raw::{RawLongBlock, RawShortBlock};
use std::mem::{offset_of, size_of};

/// A kind of B-tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeKind {
    FreeByBlock,
    FreeBySize,
    Inodes,
    FreeInodes,
    ReverseMap,
    Refcounts,
    Extents,
}

/// A key: numbers that compare in order.
pub(crate) type Key = [u64; 3];

impl TreeKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FreeByBlock => "the B-tree of free space by block",
            Self::FreeBySize => "the B-tree of free space by size",
            Self::Inodes => "the inode B-tree",
            Self::FreeInodes => "the B-tree of free inodes",
            Self::ReverseMap => "the reverse map",
            Self::Refcounts => "the B-tree of reference counts",
            Self::Extents => "the extent B-tree",
        }
    }

    pub(crate) fn magic(self, v5: bool) -> &'static [u8; 4] {
        match (self, v5) {
            (Self::FreeByBlock, true) => b"AB3B",
            (Self::FreeByBlock, false) => b"ABTB",
            (Self::FreeBySize, true) => b"AB3C",
            (Self::FreeBySize, false) => b"ABTC",
            (Self::Inodes, true) => b"IAB3",
            (Self::Inodes, false) => b"IABT",
            (Self::FreeInodes, _) => b"FIB3",
            (Self::ReverseMap, _) => b"RMB3",
            (Self::Refcounts, _) => b"R3FC",
            (Self::Extents, true) => b"BMA3",
            (Self::Extents, false) => b"BMAP",
        }
    }

    pub(crate) fn is_long(self) -> bool {
        self == Self::Extents
    }

    pub(crate) fn header_bytes(self, v5: bool) -> usize {
        match (self.is_long(), v5) {
            (true, true) => size_of::<RawLongBlock>(),
            (true, false) => offset_of!(RawLongBlock, bb_blkno),
            (false, true) => size_of::<RawShortBlock>(),
            (false, false) => offset_of!(RawShortBlock, bb_blkno),
        }
    }

    pub(crate) fn record_bytes(self) -> usize {
        match self {
            Self::FreeByBlock | Self::FreeBySize => 8,
            Self::Inodes | Self::FreeInodes | Self::Extents => 16,
            Self::ReverseMap => 24,
            Self::Refcounts => 12,
        }
    }

    pub(crate) fn key_bytes(self) -> usize {
        match self {
            Self::FreeByBlock | Self::FreeBySize | Self::Extents => 8,
            Self::Inodes | Self::FreeInodes | Self::Refcounts => 4,
            // The lowest and the highest key.
            Self::ReverseMap => 40,
        }
    }

    pub(crate) fn pointer_bytes(self) -> usize {
        if self.is_long() { 8 } else { 4 }
    }

    /// The lowest and the highest key of a record.
    pub(crate) fn keys(self, record: &[u8]) -> (Key, Key) {
        let field = |at, len| number(record, at, len).unwrap_or(0);
        let key = match self {
            Self::FreeByBlock => [field(0, 4), field(4, 4), 0],
            Self::FreeBySize => [field(4, 4), field(0, 4), 0],
            Self::Inodes | Self::FreeInodes | Self::Refcounts => [field(0, 4), 0, 0],
            Self::Extents => [field(0, 8) << 1 >> 10, 0, 0],
            Self::ReverseMap => {
                let (start, more) = (field(0, 4), field(4, 4).saturating_sub(1));
                let owner = Owner { owner: field(8, 8), offset: field(16, 8) & !UNWRITTEN };
                let last = owner.after(more);
                return ([start, owner.owner, owner.offset], [start + more, last.owner, last.offset]);
            }
        };
        (key, key)
    }

    /// The keys of a child as a node has them.
    pub(crate) fn encode_keys(self, low: Key, high: Key) -> Vec<u8> {
        let word = |value: u64| (value as u32).to_be_bytes();
        match self {
            Self::FreeByBlock => [word(low[0]), word(low[1])].concat(),
            Self::FreeBySize => [word(low[1]), word(low[0])].concat(),
            Self::Inodes | Self::FreeInodes | Self::Refcounts => word(low[0]).to_vec(),
            Self::Extents => low[0].to_be_bytes().to_vec(),
            Self::ReverseMap => {
                let key = |key: Key| {
                    [&word(key[0])[..], &key[1].to_be_bytes()[..], &key[2].to_be_bytes()[..]].concat()
                };
                [key(low), key(high)].concat()
            }
        }
    }

    /// The keys of a child in a node.
    pub(crate) fn node_keys(self, bytes: &[u8]) -> (Key, Key) {
        let field = |at, len| number(bytes, at, len).unwrap_or(0);
        let key = match self {
            Self::FreeByBlock => [field(0, 4), field(4, 4), 0],
            Self::FreeBySize => [field(4, 4), field(0, 4), 0],
            Self::Inodes | Self::FreeInodes | Self::Refcounts => [field(0, 4), 0, 0],
            Self::Extents => [field(0, 8), 0, 0],
            Self::ReverseMap => {
                let key = |at| [field(at, 4), field(at + 4, 8), field(at + 12, 8) & !UNWRITTEN];
                return (key(0), key(20));
            }
        };
        (key, key)
    }
}
