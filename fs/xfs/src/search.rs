//! Binary search where the keys are behind an index. Keys of a damaged block may be in any order: then the
//! result is some index.

/// Returns the first of `count` indexes for which `before` is false, if it is true for those before.
pub(crate) fn partition(count: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the index of the last of `count` ascending keys that is not above `wanted`.
pub(crate) fn last_at_most(count: usize, wanted: u64, key: impl Fn(usize) -> u64) -> Option<usize> {
    partition(count, |index| key(index) <= wanted).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_key_at_most() {
        let keys = [3u64, 5, 5, 9];
        let find = |wanted| last_at_most(keys.len(), wanted, |index| keys[index]);
        let found = [0, 3, 4, 5, 8, 9, 99].map(find);
        assert_eq!(found, [None, Some(0), Some(0), Some(2), Some(2), Some(3), Some(3)]);
        assert_eq!(last_at_most(0, 7, |_| 0), None);
    }

    #[test]
    fn partition_finds_the_first() {
        let hashes = [1, 4, 4, 9];
        let first = |hash| partition(hashes.len(), |index| hashes[index] < hash);
        assert_eq!([0, 1, 4, 5, 9, 10].map(first), [0, 0, 1, 3, 3, 4]);
    }
}
