//! Tables of hashes of names: in a block directory, and in the leaves of directories.
//!
//! Each entry is a hash and the address of the name, in the order of hashes. The address 0 is that of a
//! removed entry: its place is used again.

use crate::layout::raw::RawDirLeafEntry;
use crate::search::partition;
use std::mem::size_of;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = size_of::<RawDirLeafEntry>();

impl RawDirLeafEntry {
    fn new(hash: u32, address: u32) -> Self {
        Self { hashval: hash.into(), address: address.into() }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.address.get() == 0
    }
}

/// Returns the first of the entries with this hash or a larger one.
fn first_with(entries: &[RawDirLeafEntry], hash: u32) -> usize {
    partition(entries.len(), |index| entries[index].hashval.get() < hash)
}

/// Marks an entry as removed; returns whether it was there.
pub(super) fn remove(entries: &mut [RawDirLeafEntry], hash: u32, address: u32) -> bool {
    let first = first_with(entries, hash);
    let same = entries[first..].iter_mut().take_while(|entry| entry.hashval.get() == hash);
    match same.into_iter().find(|entry| entry.address.get() == address) {
        Some(entry) => {
            entry.address = 0.into();
            true
        }
        None => false,
    }
}

/// Adds an entry to the first `count` of the places. `stale`: some of them are of removed entries. It takes
/// the nearest one of those, so that few bytes change. Returns the new count; `None` if no place is left.
pub(super) fn insert(
    places: &mut [RawDirLeafEntry],
    count: usize,
    stale: bool,
    hash: u32,
    address: u32,
) -> Option<usize> {
    let entries = &mut places[..count];
    let at = first_with(entries, hash);
    let before = stale.then(|| entries[..at].iter().rposition(RawDirLeafEntry::is_removed)).flatten();
    let most = before.map_or(count, |before| (at + (at - before)).min(count));
    let after = stale.then(|| entries[at..most].iter().position(RawDirLeafEntry::is_removed)).flatten();
    let new = RawDirLeafEntry::new(hash, address);
    match (before, after.map(|found| at + found)) {
        (_, Some(after)) => {
            entries[at..=after].rotate_right(1);
            entries[at] = new;
            Some(count)
        }
        (Some(before), None) => {
            entries[before..at].rotate_left(1);
            entries[at - 1] = new;
            Some(count)
        }
        (None, None) => {
            let entries = places.get_mut(..=count)?;
            entries[at..].rotate_right(1);
            entries[at] = new;
            Some(count + 1)
        }
    }
}

/// A table that is being changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Hashes(pub(super) Vec<RawDirLeafEntry>);

impl PartialEq for Hashes {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes() == other.0.as_bytes()
    }
}

impl Hashes {
    /// Decodes `count` entries. `None` if they end past the bytes, or are out of order.
    pub(super) fn decode(bytes: &[u8], at: usize, count: usize) -> Option<Self> {
        let (all, _) = <[RawDirLeafEntry]>::ref_from_prefix_with_elems(bytes.get(at..)?, count).ok()?;
        all.is_sorted_by_key(|entry| entry.hashval.get()).then(|| Self(all.to_vec()))
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        out[..self.0.len() * ENTRY_BYTES].copy_from_slice(self.0.as_bytes());
    }

    /// Removed entries.
    pub(super) fn stale(&self) -> usize {
        self.0.iter().filter(|entry| entry.is_removed()).count()
    }

    /// Entries that are not removed.
    pub(super) fn live(&self) -> usize {
        self.0.len() - self.stale()
    }

    pub(super) fn last_hash(&self) -> u32 {
        self.0.last().map_or(0, |entry| entry.hashval.get())
    }

    /// Adds an entry; see [`insert`].
    pub(super) fn insert(&mut self, hash: u32, address: u32) {
        let count = self.0.len();
        self.0.push(RawDirLeafEntry::new_zeroed());
        let count = insert(&mut self.0, count, true, hash, address).unwrap_or(count);
        self.0.truncate(count);
    }

    /// Marks an entry as removed; returns whether it was there.
    pub(super) fn remove(&mut self, hash: u32, address: u32) -> bool {
        remove(&mut self.0, hash, address)
    }

    /// Drops the places of removed entries.
    pub(super) fn compact(&mut self) {
        self.0.retain(|entry| !entry.is_removed());
    }
}

#[cfg(test)]
impl Hashes {
    /// Hash and address of each entry.
    pub(super) fn pairs(&self) -> Vec<(u32, u32)> {
        self.0.iter().map(|entry| (entry.hashval.get(), entry.address.get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_removed_entries_are_used_again() {
        let mut all = Hashes::default();
        for hash in [5, 1, 9, 5, 7] {
            all.insert(hash, hash * 10 + all.0.len() as u32);
        }
        assert!(all.pairs().is_sorted_by_key(|(hash, _)| *hash) && all.last_hash() == 9);
        assert!(all.remove(5, 53) && !all.remove(5, 53) && !all.remove(6, 1));
        assert_eq!((all.stale(), all.live()), (1, 4));
        let mut bytes = vec![0; 3 + 5 * ENTRY_BYTES];
        all.encode(&mut bytes[3..]);
        assert_eq!(Hashes::decode(&bytes, 3, 5).unwrap().pairs(), all.pairs());
        assert!(Hashes::decode(&bytes, 3, 6).is_none());
        for (hash, address) in [(9, 77), (8, 78), (1, 79), (0, 80)] {
            let (mut copy, len) = (all.clone(), all.0.len());
            copy.insert(hash, address);
            let pairs = copy.pairs();
            assert!(pairs.is_sorted_by_key(|(hash, _)| *hash), "{pairs:?}");
            assert_eq!((pairs.len(), copy.stale()), (len, 0));
            assert!(pairs.contains(&(hash, address)));
        }
        all.compact();
        assert_eq!(all.0.len(), 4);
        bytes[3] = 0xFF;
        assert!(Hashes::decode(&bytes, 3, 5).is_none(), "out of order");
    }

    /// A new entry takes the nearest place of a removed one, and the entries between move by one.
    #[test]
    fn the_nearest_place_is_used() {
        let table = |removed: &[u32]| {
            let address = |nth| if removed.contains(&nth) { 0 } else { nth };
            (1..=9).map(|nth| RawDirLeafEntry::new(nth * 10, address(nth))).collect::<Vec<_>>()
        };
        for (removed, place) in [(&[1, 8][..], 8), (&[1, 9], 1), (&[3, 6], 6), (&[4, 7], 4), (&[9], 9)] {
            let (before, mut after) = (table(removed), table(removed));
            assert_eq!(insert(&mut after, 9, true, 45, 99), Some(9), "{removed:?}");
            assert!(after.is_sorted_by_key(|entry| entry.hashval.get()));
            let (moved, kept) = if place <= 4 { (place - 1..4, 4..9) } else { (4..place, 0..4) };
            assert_eq!(after[kept.clone()].as_bytes(), before[kept].as_bytes(), "{removed:?}");
            assert!(after[moved].iter().any(|entry| entry.address.get() == 99), "{removed:?}");
        }
        assert_eq!(insert(&mut table(&[]), 9, true, 45, 99), None, "no place is left");
    }
}
