//! Locked byte ranges of an owner, split and merged as POSIX requires.

use std::collections::BTreeMap;

use ivers_nfs4::status::NfsStat;

use super::ids::{Step, fail};

/// First to last byte, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    pub first: u64,
    pub last: u64,
}

impl Range {
    /// Creates a range from wire values. A length of all ones means to the end.
    pub fn new(offset: u64, length: u64) -> Step<Self> {
        // [RFC8881 18.10.3]
        let last = match length {
            0 => None,
            u64::MAX => Some(u64::MAX),
            // Only a lock to the end includes the last byte.
            length => offset.checked_add(length).map(|end| end - 1),
        };
        match last {
            Some(last) => Ok(Self { first: offset, last }),
            None => fail(NfsStat::Inval),
        }
    }

    pub fn length(self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 }
    }
}

/// The locked ranges of one owner: first byte to last byte and whether for writing. Adjacent ranges of one
/// type are merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, (u64, bool)>);

impl Ranges {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Range, bool)> + '_ {
        self.0.iter().map(|(&first, &(last, write))| (Range { first, last }, write))
    }

    fn overlapping(&self, range: Range) -> impl Iterator<Item = (Range, bool)> + '_ {
        let before = self.0.range(..range.first).next_back().filter(|(_, (last, _))| *last >= range.first);
        let inside = self.0.range(range.first..=range.last);
        before.into_iter().chain(inside).map(|(&first, &(last, write))| (Range { first, last }, write))
    }

    /// Returns a conflicting range.
    pub fn conflict(&self, range: Range, write: bool) -> Option<(Range, bool)> {
        self.overlapping(range).find(|(_, held)| write || *held)
    }

    /// Locks a range for writing (`Some(true)`) or reading, or unlocks it (`None`).
    pub fn set(&mut self, range: Range, lock: Option<bool>) {
        let old: Vec<_> = self.overlapping(range).collect();
        for (it, write) in old {
            self.0.remove(&it.first);
            if it.first < range.first {
                self.0.insert(it.first, (range.first - 1, write));
            }
            if it.last > range.last {
                self.0.insert(range.last + 1, (it.last, write));
            }
        }
        let Some(write) = lock else { return };
        let Range { mut first, mut last } = range;
        let before = self.0.range(..first).next_back().map(|(&at, &it)| (at, it));
        if let Some((at, (end, kind))) = before
            && kind == write
            && end + 1 == first
        {
            self.0.remove(&at);
            first = at;
        }
        let behind = last.checked_add(1).and_then(|next| self.0.get(&next).map(|&it| (next, it)));
        if let Some((at, (end, kind))) = behind
            && kind == write
        {
            self.0.remove(&at);
            last = end;
        }
        self.0.insert(first, (last, write));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rng;
    use super::super::tests::Seeded;
    use super::*;

    /// [RFC8881 18.10.3]
    #[test]
    fn lengths_are_checked() {
        assert_eq!(Range::new(5, 0), fail(NfsStat::Inval));
        assert_eq!(Range::new(5, u64::MAX), Ok(Range { first: 5, last: u64::MAX }));
        assert_eq!(Range::new(u64::MAX, u64::MAX), Ok(Range { first: u64::MAX, last: u64::MAX }));
        for (offset, length) in [(u64::MAX, 1), (u64::MAX, 2), (u64::MAX - 5, 6), (2, u64::MAX - 1)] {
            assert_eq!(Range::new(offset, length), fail(NfsStat::Inval), "{offset} and {length}");
        }
        assert_eq!(Range::new(u64::MAX - 5, 5), Ok(Range { first: u64::MAX - 5, last: u64::MAX - 1 }));
        assert_eq!(Range::new(5, 3).unwrap().length(), 3);
    }

    #[test]
    fn ranges_agree_with_an_array() {
        const SIZE: usize = 24;
        // The last byte of the model is either the 24th byte or the last possible byte.
        let shift = u64::MAX - (SIZE as u64 - 1);
        for (seed, base) in (0..400).map(|seed| (seed, if seed % 2 == 0 { 0 } else { shift })) {
            let mut rng = Seeded(seed);
            let mut ranges = Ranges::default();
            let mut model = [None; SIZE];
            for _ in 0..60 {
                let a = (rng.next_u64() % SIZE as u64) as usize;
                let b = a + (rng.next_u64() % (SIZE - a) as u64) as usize;
                let range = Range { first: base + a as u64, last: base + b as u64 };
                let kind = [None, Some(false), Some(true)][(rng.next_u64() % 3) as usize];
                ranges.set(range, kind);
                model[a..=b].fill(kind);
                let mut pieces = 0;
                for at in 0..SIZE {
                    let byte = Range { first: base + at as u64, last: base + at as u64 };
                    assert_eq!(ranges.conflict(byte, true).map(|(_, write)| write), model[at], "seed {seed}");
                    assert_eq!(ranges.conflict(byte, false).is_some(), model[at] == Some(true));
                    pieces += usize::from(model[at].is_some() && (at == 0 || model[at - 1] != model[at]));
                }
                assert_eq!(ranges.len(), pieces, "seed {seed}");
            }
        }
    }
}
