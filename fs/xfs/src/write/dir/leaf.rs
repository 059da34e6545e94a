//! Leaves of directories, and blocks of the index of free space.

use crate::layout::bytes::number;
use crate::layout::directory::{FREE_MAGICS, LEAF1_MAGICS, LEAFN_MAGICS, NO_BEST, hash_entries_start};
use crate::layout::raw::RawDaHeader;
use crate::layout::raw::RawDirLeafEntry;
use crate::layout::superblock::Superblock;
use crate::write::hashes::{self, ENTRY_BYTES, Hashes};
use std::mem::{offset_of, size_of};
use zerocopy::FromBytes;

/// Offset of the counts in a leaf.
const COUNTS: usize = size_of::<RawDaHeader>();
/// Offsets of the numbers of an index block, and of its values.
const FREE_NUMBERS: usize = 48;
const FREE_USED: usize = FREE_NUMBERS + 8;
const FREE_BESTS: usize = 64;

/// A leaf of a node directory, changed in its block: most changes are of one entry.
pub(super) struct LeafEdit<'a> {
    counts: &'a mut [u8],
    places: &'a mut [RawDirLeafEntry],
    count: usize,
    stale: usize,
}

impl<'a> LeafEdit<'a> {
    /// Checks the counts of a leaf. The order of its hashes is not checked: where it is wrong, an entry may
    /// not be found.
    pub(super) fn new(sb: &Superblock, bytes: &'a mut [u8]) -> Result<Self, String> {
        let field = |at| number(bytes, at, 2).unwrap_or(0) as usize;
        let (magic, count, stale) = (field(offset_of!(RawDaHeader, magic)), field(COUNTS), field(COUNTS + 2));
        let (header, table) = bytes.split_at_mut(hash_entries_start(sb).min(bytes.len()));
        let room = table.len() / ENTRY_BYTES;
        let places = <[RawDirLeafEntry]>::mut_from_prefix_with_elems(table, room);
        match (places, header.get_mut(COUNTS..COUNTS + 4)) {
            (Ok((places, _)), Some(counts))
                if magic == usize::from(LEAFN_MAGICS[0]) && stale <= count && count <= room =>
            {
                Ok(Self { counts, places, count, stale })
            }
            _ => Err(format!("a leaf of a directory has magic {magic:#06x} and {count} entries")),
        }
    }

    /// Entries that are not removed.
    pub(super) fn live(&self) -> usize {
        self.count - self.stale
    }

    pub(super) fn last_hash(&self) -> u32 {
        self.places[..self.count].last().map_or(0, |entry| entry.hashval.get())
    }

    /// Adds an entry; returns whether there was a place.
    pub(super) fn insert(&mut self, hash: u32, address: u32) -> bool {
        match hashes::insert(self.places, self.count, self.stale > 0, hash, address) {
            Some(count) => {
                self.stale -= usize::from(count == self.count);
                self.count = count;
                self.store_counts();
                true
            }
            None => false,
        }
    }

    /// Marks an entry as removed; returns whether it was there.
    pub(super) fn remove(&mut self, hash: u32, address: u32) -> bool {
        let removed = hashes::remove(&mut self.places[..self.count], hash, address);
        self.stale += usize::from(removed);
        self.store_counts();
        removed
    }

    fn store_counts(&mut self) {
        self.counts[..2].copy_from_slice(&(self.count as u16).to_be_bytes());
        self.counts[2..].copy_from_slice(&(self.stale as u16).to_be_bytes());
    }
}

/// A leaf that is being changed in more than one entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Leaf {
    pub(super) hashes: Hashes,
    /// The largest free range of each data block, if this is the only leaf.
    pub(super) bests: Option<Vec<u16>>,
}

impl Leaf {
    /// Decodes a leaf, and checks it.
    pub(super) fn decode(sb: &Superblock, bytes: &[u8]) -> Result<Self, String> {
        let field = |at, len| number(bytes, at, len).unwrap_or(0);
        let magic = field(offset_of!(RawDaHeader, magic), 2) as u16;
        let count = field(COUNTS, 2) as usize;
        let mut end = bytes.len();
        let bests = match magic {
            magic if magic == LEAFN_MAGICS[0] => None,
            magic if magic == LEAF1_MAGICS[0] => {
                let tail = bytes.len() - 4;
                let count = field(tail, 4) as usize;
                end = count.checked_mul(2).and_then(|len| tail.checked_sub(len)).unwrap_or(0);
                Some((0..count.min(tail / 2)).map(|nth| field(end + nth * 2, 2) as u16).collect())
            }
            magic => return Err(format!("a leaf of a directory has the magic {magic:#06x}")),
        };
        let hashes = Hashes::decode(bytes.get(..end).unwrap_or_default(), hash_entries_start(sb), count)
            .ok_or_else(|| format!("the {count} entries of a leaf of a directory are invalid"))?;
        Ok(Self { hashes, bests })
    }

    /// The most entries of a leaf with `bests` values of data blocks; `None` if it has none of them.
    pub(super) fn room(sb: &Superblock, bests: Option<usize>) -> usize {
        let tail = bests.map_or(0, |count| 4 + count * 2);
        (sb.dir_block_size as usize - hash_entries_start(sb)).saturating_sub(tail) / ENTRY_BYTES
    }

    /// Whether it has a place for one more hash, with `bests` values of data blocks.
    pub(super) fn takes_one(&self, sb: &Superblock, bests: usize) -> bool {
        let entries = if self.hashes.stale() > 0 { self.hashes.0.len() } else { self.hashes.0.len() + 1 };
        entries <= Self::room(sb, Some(bests))
    }

    /// Writes it into its block; its neighbours, and what a block says of itself, stay.
    pub(super) fn encode(&self, sb: &Superblock, bytes: &mut [u8]) {
        let magic = if self.bests.is_some() { LEAF1_MAGICS[0] } else { LEAFN_MAGICS[0] };
        bytes[8..10].copy_from_slice(&magic.to_be_bytes());
        bytes[10..12].fill(0);
        bytes[COUNTS..COUNTS + 2].copy_from_slice(&(self.hashes.0.len() as u16).to_be_bytes());
        bytes[COUNTS + 2..COUNTS + 4].copy_from_slice(&(self.hashes.stale() as u16).to_be_bytes());
        bytes[COUNTS + 4..COUNTS + 8].fill(0);
        self.hashes.encode(&mut bytes[hash_entries_start(sb)..]);
        if let Some(bests) = &self.bests {
            let tail = bytes.len() - 4;
            bytes[tail..].copy_from_slice(&(bests.len() as u32).to_be_bytes());
            let start = tail - bests.len() * 2;
            for (place, best) in bytes[start..tail].chunks_exact_mut(2).zip(bests) {
                place.copy_from_slice(&best.to_be_bytes());
            }
        }
    }
}

/// A block of the index of free space that is being changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FreeBlock {
    /// The first data block of which it knows.
    pub(super) first: u32,
    /// The largest free range of each data block.
    pub(super) bests: Vec<u16>,
}

impl FreeBlock {
    /// Data blocks of which an index block knows, at most.
    pub(super) fn room(sb: &Superblock) -> usize {
        (sb.dir_block_size as usize - FREE_BESTS) / 2
    }

    /// Checks the index block with a number. Returns the first data block of which it knows, and of how many.
    fn check(sb: &Superblock, bytes: &[u8], nth: u64) -> Result<(u32, usize), String> {
        let field = |at, len| number(bytes, at, len).unwrap_or(0);
        let (first, count) = (field(FREE_NUMBERS, 4), field(FREE_NUMBERS + 4, 4) as usize);
        let (room, is_whole) = (Self::room(sb), bytes.len() >= sb.dir_block_size as usize);
        if !is_whole || !bytes.starts_with(FREE_MAGICS[0]) || first != nth * room as u64 || count > room {
            return Err("a block of the index of free space has a wrong magic, number or length".into());
        }
        Ok((first as u32, count))
    }

    /// Decodes the index block with a number, and checks it.
    pub(super) fn decode(sb: &Superblock, bytes: &[u8], nth: u64) -> Result<Self, String> {
        let (first, count) = Self::check(sb, bytes, nth)?;
        let (bests, _) = bytes[FREE_BESTS..].as_chunks::<2>();
        Ok(Self { first, bests: bests[..count].iter().map(|best| u16::from_be_bytes(*best)).collect() })
    }

    /// Sets one value where it is. False, and nothing is changed, if the number of values would change.
    pub(super) fn set_in_place(
        sb: &Superblock,
        bytes: &mut [u8],
        nth: u64,
        index: usize,
        best: u16,
    ) -> Result<bool, String> {
        let count = Self::check(sb, bytes, nth)?.1;
        if index >= count || (best == NO_BEST && index + 1 == count) {
            return Ok(false);
        }
        let used = number(bytes, FREE_USED, 4).unwrap_or(0) as u32;
        let at = FREE_BESTS + index * 2;
        let old = number(bytes, at, 2).unwrap_or(0) as u16;
        let used = used.wrapping_add(u32::from(old == NO_BEST)).wrapping_sub(u32::from(best == NO_BEST));
        bytes[at..at + 2].copy_from_slice(&best.to_be_bytes());
        bytes[FREE_USED..FREE_USED + 4].copy_from_slice(&used.to_be_bytes());
        Ok(true)
    }

    /// Finds the first data block with a free range of so many bytes.
    pub(super) fn find(sb: &Superblock, bytes: &[u8], nth: u64, len: u16) -> Result<Option<u64>, String> {
        let (first, count) = Self::check(sb, bytes, nth)?;
        let (bests, _) = bytes[FREE_BESTS..].as_chunks::<2>();
        let has_room = |best: &[u8; 2]| {
            let best = u16::from_be_bytes(*best);
            best != NO_BEST && best >= len
        };
        Ok(bests[..count].iter().position(has_room).map(|found| u64::from(first) + found as u64))
    }

    pub(super) fn used(&self) -> usize {
        self.bests.iter().filter(|best| **best != NO_BEST).count()
    }

    /// Writes it into its block; the fields with which a block describes itself stay.
    pub(super) fn encode(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(FREE_MAGICS[0]);
        let numbers = [self.first, self.bests.len() as u32, self.used() as u32, 0];
        for (place, number) in bytes[FREE_NUMBERS..FREE_BESTS].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        for (place, best) in bytes[FREE_BESTS..].chunks_exact_mut(2).zip(&self.bests) {
            place.copy_from_slice(&best.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::tests::samples::superblock;

    #[test]
    fn leaves_decode_as_they_were_encoded() {
        let sb = superblock();
        for bests in [None, Some(vec![8, 0xFFFF, 4032])] {
            let mut hashes = Hashes::default();
            (0..100).for_each(|nth| hashes.insert(nth * 3, nth));
            let leaf = Leaf { hashes, bests };
            let mut bytes = vec![0xAA; 4096];
            leaf.encode(&sb, &mut bytes);
            assert_eq!(Leaf::decode(&sb, &bytes).unwrap(), leaf);
            assert_eq!((&bytes[..8], &bytes[12..56]), (&[0xAA; 8][..], &[0xAA; 44][..]));
            for at in [8, 56, 57, 64, 4092, 4093] {
                let mut copy = bytes.clone();
                copy[at] ^= 0xF0;
                let same = Leaf::decode(&sb, &copy).as_ref() == Ok(&leaf);
                assert_eq!(same, at > 4000 && leaf.bests.is_none(), "{at}");
            }
        }
        assert_eq!((Leaf::room(&sb, None), Leaf::room(&sb, Some(2))), (504, 503));
    }

    #[test]
    fn index_blocks_decode_as_they_were_encoded() {
        let sb = superblock();
        let free = FreeBlock { first: 2016, bests: vec![1, 0xFFFF, 16] };
        let mut bytes = vec![0; 4096];
        free.encode(&mut bytes);
        assert_eq!(FreeBlock::decode(&sb, &bytes, 1).unwrap(), free);
        assert_eq!(free.used(), 2);
        assert!(FreeBlock::decode(&sb, &bytes, 0).is_err());
        bytes[53] = 0xFF;
        assert!(FreeBlock::decode(&sb, &bytes, 1).is_err());
    }
}
