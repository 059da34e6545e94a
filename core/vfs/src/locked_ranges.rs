//! The byte-range locks of one owner on one file, as POSIX counts them.

use std::ops::Range;

/// Locked ranges: in order, without overlaps, neighbours of one kind merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockedRanges(Vec<(Range<u64>, bool)>);

impl LockedRanges {
    /// Locks a range, exclusively or shared, whatever it was before.
    pub fn lock(&mut self, range: Range<u64>, exclusive: bool) {
        if range.is_empty() {
            return;
        }
        self.unlock(range.clone());
        let at = self.0.partition_point(|(held, _)| held.start < range.start);
        self.0.insert(at, (range, exclusive));
        self.merge(at);
        if at > 0 {
            self.merge(at - 1);
        }
    }

    /// Joins an entry with the next one, if they are neighbours of one kind.
    fn merge(&mut self, at: usize) {
        if let [(first, kind), (second, other), ..] = &mut self.0[at..]
            && (first.end, *kind) == (second.start, *other)
        {
            first.end = second.end;
            self.0.remove(at + 1);
        }
    }

    /// Unlocks a range. What is locked beside it stays.
    pub fn unlock(&mut self, range: Range<u64>) {
        let from = self.0.partition_point(|(held, _)| held.end <= range.start);
        let to = self.0.partition_point(|(held, _)| held.start < range.end);
        if range.is_empty() || from >= to {
            return;
        }
        let (first, last) = (self.0[from].clone(), self.0[to - 1].clone());
        let before = (first.0.start..range.start, first.1);
        let after = (range.end..last.0.end, last.1);
        let rest = [before, after].into_iter().filter(|(rest, _)| !rest.is_empty());
        self.0.splice(from..to, rest);
    }

    /// Returns whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges in order, and whether each is exclusive.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
        self.0.iter().cloned()
    }

    /// Returns the first range that stands in the way of another owner's lock.
    pub fn conflict(&self, range: &Range<u64>, exclusive: bool) -> Option<(Range<u64>, bool)> {
        let overlaps = |held: &Range<u64>| held.start < range.end && range.start < held.end;
        self.iter().find(|(held, kind)| overlaps(held) && (*kind || exclusive))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64, bool)]) -> LockedRanges {
        LockedRanges(ranges.iter().map(|(start, end, kind)| (*start..*end, *kind)).collect())
    }

    #[test]
    fn locks_are_split_converted_and_merged() {
        let mut locked = LockedRanges::default();
        locked.lock(0..100, true);
        locked.unlock(40..60);
        assert_eq!(locked, of(&[(0, 40, true), (60, 100, true)]));
        locked.lock(30..70, false);
        assert_eq!(locked, of(&[(0, 30, true), (30, 70, false), (70, 100, true)]));
        locked.lock(30..70, true);
        assert_eq!(locked, of(&[(0, 100, true)]));
        locked.lock(100..u64::MAX, true);
        assert_eq!(locked, of(&[(0, u64::MAX, true)]));
        locked.unlock(5..5);
        locked.unlock(0..u64::MAX);
        assert!(locked.is_empty());
    }

    #[test]
    fn every_byte_is_as_it_was_locked_last() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (mut locked, mut bytes) = (LockedRanges::default(), [None; 32]);
            for _ in 0..20 {
                let (start, len, what) = (next(32), next(12), next(3));
                let range = start..(start + len).min(32);
                match what {
                    0 => locked.unlock(range.clone()),
                    kind => locked.lock(range.clone(), kind == 1),
                }
                bytes[range.start as usize..range.end as usize].fill((what > 0).then_some(what == 1));
                let mut found = [None; 32];
                for (range, kind) in locked.iter() {
                    assert!(!range.is_empty());
                    found[range.start as usize..range.end as usize].fill(Some(kind));
                }
                assert_eq!(found, bytes);
                let merged =
                    locked.0.windows(2).all(|two| two[0].0.end < two[1].0.start || two[0].1 != two[1].1);
                assert!(merged, "{locked:?}");
            }
        }
    }

    #[test]
    fn shared_locks_do_not_conflict() {
        let locked = of(&[(0, 10, false), (20, 30, true)]);
        assert_eq!(locked.conflict(&(5..25), false), Some((20..30, true)));
        assert_eq!(locked.conflict(&(5..6), true), Some((0..10, false)));
        assert_eq!(locked.conflict(&(5..20), false), None);
        assert_eq!(locked.conflict(&(10..20), true), None);
    }
}
