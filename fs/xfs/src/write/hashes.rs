//! Tables of hashes of names: in a block directory, and in the leaves of directories.

use crate::layout::bytes::number;
use crate::layout::raw::RawDirLeafEntry;
use std::mem::size_of;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = size_of::<RawDirLeafEntry>();

/// Hash and address of each entry, in the order of hashes. The address 0 is that of a removed entry: its
/// place is used again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hashes(pub(super) Vec<(u32, u32)>);

impl Hashes {
    /// Decodes `count` entries. `None` if they end past the bytes, or are out of order.
    pub(super) fn decode(bytes: &[u8], at: usize, count: usize) -> Option<Self> {
        let end = count.checked_mul(ENTRY_BYTES)?.checked_add(at)?;
        let field = |at| number(bytes, at, 4).unwrap_or(0) as u32;
        let all: Vec<_> =
            (at..end.min(bytes.len())).step_by(ENTRY_BYTES).map(|at| (field(at), field(at + 4))).collect();
        (end <= bytes.len() && all.is_sorted_by_key(|(hash, _)| *hash)).then_some(Self(all))
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        for (place, (hash, address)) in out.chunks_exact_mut(ENTRY_BYTES).zip(&self.0) {
            place[..4].copy_from_slice(&hash.to_be_bytes());
            place[4..].copy_from_slice(&address.to_be_bytes());
        }
    }

    /// Removed entries.
    pub(super) fn stale(&self) -> usize {
        self.0.iter().filter(|(_, address)| *address == 0).count()
    }

    /// Entries that are not removed.
    pub(super) fn live(&self) -> usize {
        self.0.len() - self.stale()
    }

    pub(super) fn last_hash(&self) -> u32 {
        self.0.last().map_or(0, |(hash, _)| *hash)
    }

    /// The first entry with this hash or a larger one.
    pub(super) fn first_with(&self, hash: u32) -> usize {
        self.0.partition_point(|(found, _)| *found < hash)
    }

    /// Adds an entry. It takes the place of the nearest removed one, so that few bytes change.
    pub(super) fn insert(&mut self, hash: u32, address: u32) {
        let at = self.first_with(hash);
        let before = self.0[..at].iter().rposition(|(_, address)| *address == 0);
        let after = self.0[at..].iter().position(|(_, address)| *address == 0).map(|found| at + found);
        let stale = match (before, after) {
            (Some(before), Some(after)) => Some(if at - before <= after - at { before } else { after }),
            (before, after) => before.or(after),
        };
        match stale {
            Some(stale) => {
                self.0.remove(stale);
                self.0.insert(at - usize::from(stale < at), (hash, address));
            }
            None => self.0.insert(at, (hash, address)),
        }
    }

    /// Marks an entry as removed; returns whether it was there.
    pub(super) fn remove(&mut self, hash: u32, address: u32) -> bool {
        let first = self.first_with(hash);
        let found = self.0[first..].iter_mut().take_while(|(found, _)| *found == hash);
        match found.into_iter().find(|(_, found)| *found == address) {
            Some(entry) => {
                entry.1 = 0;
                true
            }
            None => false,
        }
    }

    /// Drops the places of removed entries.
    pub(super) fn compact(&mut self) {
        self.0.retain(|(_, address)| *address != 0);
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
        assert!(all.0.is_sorted_by_key(|(hash, _)| *hash) && all.last_hash() == 9);
        assert!(all.remove(5, 53) && !all.remove(5, 53) && !all.remove(6, 1));
        assert_eq!((all.stale(), all.live()), (1, 4));
        let mut bytes = vec![0; 3 + 5 * ENTRY_BYTES];
        all.encode(&mut bytes[3..]);
        assert_eq!(Hashes::decode(&bytes, 3, 5), Some(all.clone()));
        assert_eq!(Hashes::decode(&bytes, 3, 6), None);
        for (hash, address) in [(9, 77), (8, 78), (1, 79), (0, 80)] {
            let (mut copy, len) = (all.clone(), all.0.len());
            copy.insert(hash, address);
            assert!(copy.0.is_sorted_by_key(|(hash, _)| *hash), "{copy:?}");
            assert_eq!((copy.0.len(), copy.stale()), (len, 0));
            assert!(copy.0.contains(&(hash, address)));
        }
        all.compact();
        assert_eq!(all.0.len(), 4);
        bytes[3] = 0xFF;
        assert_eq!(Hashes::decode(&bytes, 3, 5), None, "out of order");
    }
}
