//! A comparison of two sides that must agree, in little memory.
//!
//! Each side hashes its entries and adds the hashes, one side with a negative sign. The first pass keeps only
//! the sum of each bucket: it is zero if the sides agree. The second pass keeps the entries of the buckets
//! whose sum is not zero, until the other side cancels them. The entries that are left are on one side only.

use std::collections::HashMap;

const BUCKETS: usize = 1 << 16;
/// The bytes of memory that a kept entry takes, with its share of the table.
const ENTRY_BYTES: usize = 32;

/// The sums of all buckets, and in the second pass the entries of those that are not zero.
pub(super) struct Ledger<T> {
    sums: Vec<u64>,
    kept: Option<HashMap<u64, (i64, T)>>,
}

/// Returns a hash of numbers. Other numbers have another hash, with high probability.
pub(super) fn mix(numbers: &[u64]) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for number in numbers {
        state = (state ^ number).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state = (state ^ (state >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^= state >> 32;
    }
    state
}

/// Returns a hash of a name and numbers.
pub(super) fn mix_name(numbers: &[u64], name: &[u8]) -> u64 {
    twox_hash::XxHash64::oneshot(mix(numbers), name)
}

impl<T> Ledger<T> {
    pub(super) fn new() -> Self {
        Self { sums: vec![0; BUCKETS], kept: None }
    }

    /// Adds an entry `count` times. The other side has negative counts. `bucket` chooses the bucket, `hash`
    /// identifies the entry.
    pub(super) fn add(&mut self, bucket: u64, hash: u64, count: i64, entry: impl FnOnce() -> T) {
        let at = mix(&[bucket]) as usize % BUCKETS;
        let Some(kept) = &mut self.kept else {
            self.sums[at] = self.sums[at].wrapping_add(hash.wrapping_mul(count as u64));
            return;
        };
        if self.sums[at] == 0 || count == 0 {
            return;
        }
        let found = kept.entry(hash).or_insert_with(|| (0, entry()));
        found.0 = found.0.wrapping_add(count);
        if found.0 == 0 {
            kept.remove(&hash);
        }
    }

    /// Returns whether both sides have added the same entries.
    pub(super) fn agrees(&self) -> bool {
        self.sums.iter().all(|sum| *sum == 0)
    }

    /// Begins the second pass.
    pub(super) fn keep_entries(&mut self) {
        self.kept = Some(HashMap::new());
    }

    /// Returns the number of kept entries.
    pub(super) fn entries_kept(&self) -> usize {
        self.kept.as_ref().map_or(0, HashMap::len)
    }

    /// Returns the bytes of memory that the ledger takes, without the memory that entries refer to.
    pub(super) fn bytes_kept(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, HashMap::capacity);
        self.sums.len() * size_of::<u64>() + kept * (size_of::<T>() + ENTRY_BYTES)
    }

    /// Returns the entries that only one side has, after the second pass.
    pub(super) fn take_differences(&mut self) -> Vec<(i64, T)> {
        let kept = self.kept.take().unwrap_or_default();
        let mut left: Vec<_> = kept.into_iter().collect();
        left.sort_by_key(|(hash, _)| *hash);
        left.into_iter().map(|(_, entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_left() {
        let mut ledger = Ledger::new();
        let pass = |ledger: &mut Ledger<u64>| {
            for number in 0..100_000u64 {
                ledger.add(number / 8, mix(&[number]), 2, || number);
            }
            for number in (0..100_000u64).rev() {
                let count = if number == 77 { -1 } else { -2 };
                ledger.add(number / 8, mix(&[number]), count, || number);
            }
            ledger.add(5, mix(&[1 << 40]), -1, || 1 << 40);
        };
        pass(&mut ledger);
        assert!(!ledger.agrees());
        ledger.keep_entries();
        pass(&mut ledger);
        let mut left = ledger.take_differences();
        left.sort();
        assert_eq!(left, [(-1, 1 << 40), (1, 77)]);
    }

    #[test]
    fn the_order_of_numbers_counts() {
        assert_ne!(mix(&[1, 2]), mix(&[2, 1]));
        assert_ne!(mix_name(&[1], b"a"), mix_name(&[1], b"b"));
    }
}
