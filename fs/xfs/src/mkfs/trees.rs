//! The roots of the B-trees of an allocation group: each is one leaf.

use super::geometry::{Plan, Tree};
use super::space::{Group, Owner};
use crate::layout::bytes::NULL_AGBLOCK;
use crate::layout::checksum::SHORT_BTREE;
use crate::layout::chunk::{CHUNK_INODES, InodeChunk};
use crate::layout::raw::RawShortBlock;
use std::ops::Range;
use zerocopy::IntoBytes;

/// A chunk of inodes, for its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// The number of its first inode in the group.
    pub first: u32,
    /// Its inodes in use, which are its first.
    pub used: u32,
}

impl Tree {
    fn magic(self) -> u32 {
        u32::from_be_bytes(*match self {
            Self::FreeByBlock => b"AB3B",
            Self::FreeBySize => b"AB3C",
            Self::Inodes => b"IAB3",
            Self::FreeInodes => b"FIB3",
            Self::ReverseMap => b"RMB3",
            Self::ReferenceCounts => b"R3FC",
        })
    }

    /// The records, and the bytes of all of them.
    fn records(self, group: &Group, chunks: &[Chunk], sparse: bool) -> (usize, Vec<u8>) {
        let pair = |run: &Range<u32>| [run.start, run.end - run.start].map(u32::to_be_bytes).concat();
        let records: Vec<Vec<u8>> = match self {
            Self::FreeByBlock => group.free.iter().map(pair).collect(),
            Self::FreeBySize => {
                let mut runs = group.free.clone();
                runs.sort_by_key(|run| (run.end - run.start, run.start));
                runs.iter().map(pair).collect()
            }
            Self::Inodes => chunks.iter().map(|chunk| chunk.record(sparse)).collect(),
            Self::FreeInodes => {
                chunks.iter().filter(|chunk| chunk.used < 64).map(|chunk| chunk.record(sparse)).collect()
            }
            Self::ReverseMap => {
                let record = |(run, owner): &(Range<u32>, Owner)| {
                    // The offset in the owner is 0: the owner is no file.
                    [pair(run), (*owner as i64).to_be_bytes().to_vec(), vec![0; 8]].concat()
                };
                group.used.iter().map(record).collect()
            }
            // No block is shared.
            Self::ReferenceCounts => Vec::new(),
        };
        (records.len(), records.concat())
    }

    /// The block of the root.
    pub fn root(self, plan: &Plan, group: &Group, contents: &Contents<'_>) -> Vec<u8> {
        let block = plan.tree_root(self).unwrap_or(0);
        let (count, records) = self.records(group, contents.chunks, contents.sparse);
        let sectors = u64::from(plan.block_size / 512);
        let first = u64::from(group.number) * u64::from(plan.group_blocks) + u64::from(block);
        let head = RawShortBlock {
            bb_magic: self.magic().into(),
            bb_level: 0.into(),
            bb_numrecs: (count as u16).into(),
            bb_leftsib: NULL_AGBLOCK.into(),
            bb_rightsib: NULL_AGBLOCK.into(),
            bb_blkno: (first * sectors).into(),
            bb_lsn: 0.into(),
            bb_uuid: *contents.uuid,
            bb_owner: group.number.into(),
            bb_crc: 0.into(),
        };
        let mut bytes = [head.as_bytes(), &records].concat();
        bytes.resize(plan.block_size as usize, 0);
        SHORT_BTREE.seal(&mut bytes, 0);
        bytes
    }
}

/// What the records are made from, beside the blocks of the group.
pub(super) struct Contents<'a> {
    pub uuid: &'a [u8; 16],
    pub chunks: &'a [Chunk],
    /// Records have the form of sparse chunks.
    pub sparse: bool,
}

impl Chunk {
    fn record(self, sparse: bool) -> Vec<u8> {
        let chunk = InodeChunk {
            first: self.first,
            holes: 0,
            count: CHUNK_INODES,
            free_count: CHUNK_INODES - u64::from(self.used),
            free: u64::MAX.checked_shl(self.used).unwrap_or(0),
        };
        chunk.encode(sparse).to_vec()
    }
}
