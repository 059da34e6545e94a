//! A set of ranges of numbers: free space, pinned space, reserved bytes.

use std::collections::BTreeMap;

/// Ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// Start and end.
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    /// How many numbers are in the set.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All ranges in order: start and end.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.iter().map(|(start, end)| (*start, *end))
    }

    /// Adds a range. Returns how many of its numbers are new.
    pub(crate) fn add(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut from, mut to, mut gone) = (start, end, 0);
        let joined: Vec<_> = self
            .ends
            .range(..=end)
            .rev()
            .take_while(|(_, old_end)| **old_end >= start)
            .map(|(old_start, old_end)| (*old_start, *old_end))
            .collect();
        for (old_start, old_end) in joined {
            self.ends.remove(&old_start);
            gone += old_end - old_start;
            from = from.min(old_start);
            to = to.max(old_end);
        }
        self.ends.insert(from, to);
        let new = (to - from) - gone;
        self.total += new;
        new
    }

    /// Removes a range. Returns how many of its numbers were in the set.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let cut: Vec<_> = self
            .ends
            .range(..end)
            .rev()
            .take_while(|(_, old_end)| **old_end > start)
            .map(|(old_start, old_end)| (*old_start, *old_end))
            .collect();
        let mut removed = 0;
        for (old_start, old_end) in cut {
            self.ends.remove(&old_start);
            if old_start < start {
                self.ends.insert(old_start, start);
            }
            if old_end > end {
                self.ends.insert(end, old_end);
            }
            removed += old_end.min(end) - old_start.max(start);
        }
        self.total -= removed;
        removed
    }

    /// The parts of the set in a range.
    pub(crate) fn pieces_in(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.ends.range(..end).rev().take_while(|(_, old_end)| **old_end > start);
        before.map(|(old_start, old_end)| ((*old_start).max(start), (*old_end).min(end))).collect()
    }

    /// Finds `len` numbers that begin at a multiple of `unit`, from `from` on if there are some.
    pub(crate) fn find(&self, len: u64, unit: u64, from: u64) -> Option<u64> {
        let fits = |(start, end): (&u64, &u64)| {
            let first = start.next_multiple_of(unit);
            (first < *end && *end - first >= len).then_some(first)
        };
        self.ends.range(from..).find_map(fits).or_else(|| self.ends.iter().find_map(fits))
    }

    /// The longest range, but at most `most` numbers: start and length.
    pub(crate) fn longest(&self, most: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        for (start, end) in self.iter() {
            let len = (end - start).min(most);
            if best.is_none_or(|(_, other)| len > other) {
                best = Some((start, len));
            }
            if len == most {
                break;
            }
        }
        best
    }

    /// Takes all ranges out.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    #[test]
    fn ranges_are_as_a_set_of_numbers() {
        let mut random = SmallRng::seed_from_u64(3);
        let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
        for _ in 0..3000 {
            let start: u64 = random.random_range(0..200);
            let end = start + random.random_range(0..20);
            let inside = model.range(start..end.max(start)).count() as u64;
            let pieces: u64 = ranges.pieces_in(start, end).iter().map(|(start, end)| end - start).sum();
            assert_eq!(pieces, inside);
            if random.random_bool(0.5) {
                assert_eq!(ranges.add(start, end), end - start - inside);
                model.extend(start..end);
            } else {
                assert_eq!(ranges.remove(start, end), inside);
                model.retain(|number| !(start..end).contains(number));
            }
            assert_eq!(ranges.total(), model.len() as u64);
            let listed: Vec<u64> = ranges.iter().flat_map(|(start, end)| start..end).collect();
            assert_eq!(listed, model.iter().copied().collect::<Vec<_>>());
            if let Some(found) = ranges.find(5, 4, 100) {
                assert!(found % 4 == 0 && (found..found + 5).all(|number| model.contains(&number)));
            }
        }
    }
}
