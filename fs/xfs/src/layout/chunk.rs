//! Chunks of inodes, and the clusters in which inodes are read and written.

use super::bytes::number;
use super::features::Version;
use super::superblock::Superblock;

/// Inodes of a chunk.
pub(crate) const CHUNK_INODES: u64 = 64;
/// Inodes for which a bit of `ir_holemask` counts.
const HOLE_INODES: u32 = 4;

/// A record of an inode B-tree: a chunk of 64 inodes, of which some may not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeChunk {
    /// The first inode, in the group.
    pub(crate) first: u32,
    /// Inodes that do not exist.
    pub(crate) holes: u64,
    /// Inodes that exist.
    pub(crate) count: u64,
    /// Inodes that exist and are free.
    pub(crate) free_count: u64,
    /// Inodes that are free, or do not exist.
    pub(crate) free: u64,
}

impl InodeChunk {
    pub(crate) fn decode(bytes: &[u8], sparse: bool) -> Self {
        let field = |at, len| number(bytes, at, len).unwrap_or(0);
        let (first, free) = (field(0, 4) as u32, field(8, 8));
        if !sparse {
            return Self { first, holes: 0, count: CHUNK_INODES, free_count: field(4, 4), free };
        }
        let mask = field(4, 2);
        let holes = (0..16)
            .filter(|bit| mask >> bit & 1 != 0)
            .fold(0, |holes, bit| holes | 0xF << (bit * HOLE_INODES));
        Self { first, holes, count: field(6, 1), free_count: field(7, 1), free }
    }

    /// Returns whether an inode of the group belongs to this chunk and is in use.
    pub(crate) fn has(&self, agino: u32) -> bool {
        let index = agino.checked_sub(self.first).filter(|index| u64::from(*index) < CHUNK_INODES);
        index.is_some_and(|index| (self.free | self.holes) >> index & 1 == 0)
    }

    /// What contradicts itself in the record.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let present = CHUNK_INODES - u64::from(self.holes.count_ones());
        if self.count != present || present == 0 {
            return Some("a chunk of inodes has another number of inodes than its mask of holes says");
        }
        if self.free & self.holes != self.holes {
            return Some("inodes in a hole of a chunk are not marked as free");
        }
        if self.free_count != u64::from((self.free & !self.holes).count_ones()) {
            return Some("a chunk of inodes has another number of free inodes than its mask says");
        }
        None
    }

    /// The bytes of the record.
    pub(crate) fn encode(&self, sparse: bool) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.first.to_be_bytes());
        if sparse {
            let hole = |bit: u32| self.holes >> (bit * HOLE_INODES) & 1 != 0;
            let mask = (0..16).filter(|bit| hole(*bit)).fold(0u16, |mask, bit| mask | 1 << bit);
            bytes[4..6].copy_from_slice(&mask.to_be_bytes());
            (bytes[6], bytes[7]) = (self.count as u8, self.free_count as u8);
        } else {
            bytes[4..8].copy_from_slice(&(self.free_count as u32).to_be_bytes());
        }
        bytes[8..].copy_from_slice(&self.free.to_be_bytes());
        bytes
    }
}

impl Superblock {
    /// Blocks of a chunk; if a block has several chunks, 1.
    pub(crate) fn chunk_blocks(&self) -> u32 {
        (CHUNK_INODES as u32 >> self.inopb_bits).max(1)
    }

    /// The alignment of chunks in blocks.
    pub(crate) fn chunk_alignment(&self) -> u32 {
        if self.flags.contains(Version::ALIGN) { self.geometry.inode_alignment.max(1) } else { 1 }
    }

    /// The number of an inode of a group.
    pub(crate) fn ino(&self, ag: u32, agino: u32) -> u64 {
        u64::from(ag) << (self.ag_block_bits + self.inopb_bits) | u64::from(agino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_sparse_chunks() {
        let mut bytes = vec![0, 0, 0, 64, 0xFF, 0x00, 32, 1];
        bytes.extend(0xFFFF_FFFF_0000_0010_u64.to_be_bytes());
        let record = InodeChunk::decode(&bytes, true);
        assert_eq!((record.holes, record.contradiction()), (0xFFFF_FFFF_0000_0000, None));
        assert_eq!(record.encode(true)[..], bytes);
        bytes[7] = 2;
        assert!(InodeChunk::decode(&bytes, true).contradiction().unwrap().contains("free inodes"));
        bytes[8] = 0x7F;
        assert!(InodeChunk::decode(&bytes, true).contradiction().unwrap().contains("hole"));
        bytes[6] = 33;
        assert!(InodeChunk::decode(&bytes, true).contradiction().unwrap().contains("mask of holes"));
    }
}
