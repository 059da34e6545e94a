//! Hash tables by number: of a block, of an inode.
//!
//! Work goes through neighbours: the inodes of a directory, the blocks of an inode table. In a table of
//! millions each search is a cache miss or two, and a hash that scatters its keys has no hits. This one keeps
//! [`RUN`] neighbours side by side, and spreads only the runs.
//!
//! The numbers come from images and servers, which may be hostile. So where a run begins depends on a random
//! key.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

const RUN_BITS: u32 = 5;
/// Numbers that a table keeps side by side.
pub const RUN: u64 = 1 << RUN_BITS;

/// A hash table by number. It keeps neighbours side by side, since most work goes through neighbours.
pub type NumberMap<K, V> = HashMap<K, V, NumberHash>;

/// The hash function of a [`NumberMap`].
#[derive(Debug, Clone)]
pub struct NumberHash {
    key: u64,
    factor: u64,
}

impl Default for NumberHash {
    fn default() -> Self {
        let random = RandomState::new();
        Self { key: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher { key: self.key, factor: self.factor, hash: 0 }
    }
}

/// The hash of one key.
#[derive(Debug)]
pub struct NumberHasher {
    key: u64,
    factor: u64,
    hash: u64,
}

impl NumberHasher {
    fn multiply(&self, number: u64) -> u64 {
        let product = u128::from(number ^ self.key) * u128::from(self.factor);
        product as u64 ^ (product >> 64) as u64
    }
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..word.len()].copy_from_slice(word);
            self.write_u64(u64::from_le_bytes(number));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // One multiplication is too few: with one factor in a hundred, runs in a row share half of their
        // places.
        let mixed = self.multiply(self.multiply((number >> RUN_BITS) ^ self.hash));
        let within = number % RUN;
        // The low bits are the place in the table. The high seven are compared before the key: they differ
        // within a run too.
        self.hash = (mixed & !(RUN - 1) | within) ^ within << 57;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: u64 = 1 << 16;

    #[test]
    fn neighbours_are_side_by_side() {
        let hash = NumberHash::default();
        for run in 0..1000 {
            let hashes: Vec<_> = (0..RUN).map(|within| hash.hash_one::<u64>(run * RUN + within)).collect();
            let start = hashes[0] % PLACES;
            assert!(hashes.iter().zip(start..).all(|(hash, place)| hash % PLACES == place));
            let tags: std::collections::HashSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
            assert_eq!(tags.len() as u64, RUN);
        }
    }

    #[test]
    fn runs_are_spread_with_every_key() {
        for _ in 0..1000 {
            let hash = NumberHash::default();
            let mut starts: Vec<_> = (0..1000).map(|run| hash.hash_one::<u64>(run * RUN) % PLACES).collect();
            starts.sort_unstable();
            starts.dedup();
            // 1,000 of 2,048 places at random leave 791 different ones, seldom fewer than 750.
            assert!(starts.len() > 700, "{} places with {hash:?}", starts.len());
        }
    }

    #[test]
    fn tables_have_different_keys() {
        let places = |hash: NumberHash| (0..64).map(|run| hash.hash_one(run * RUN)).collect::<Vec<_>>();
        assert_ne!(places(NumberHash::default()), places(NumberHash::default()));
    }

    #[test]
    fn a_table_finds_what_was_put_into_it() {
        let mut map = NumberMap::<u64, u64>::default();
        let numbers = || (0..5000).map(|i| i * 7).chain((0..5000).map(|i| u64::MAX - i * RUN));
        numbers().for_each(|number| _ = map.insert(number, !number));
        assert_eq!(map.len(), 10_000);
        assert!(numbers().all(|number| map.remove(&number) == Some(!number)));
        assert!(map.is_empty());
    }
}
