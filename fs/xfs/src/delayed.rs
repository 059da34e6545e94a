//! Delayed allocation: blocks of a file for which space is reserved until write-back allocates it.
//!
//! A reservation costs the blocks themselves and what the map of the file may need for them. The cost of a
//! file depends only on its ranges, so it ends with the value that it started with.

use ivers_block::FileBlock;
use ivers_sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of a file: ranges, neither overlapping nor adjacent.
#[derive(Debug, Default, Clone)]
pub(crate) struct Ranges {
    /// First block, and the block after the last.
    ranges: BTreeMap<FileBlock, FileBlock>,
}

/// The blocks of a file that have a reservation.
#[derive(Debug, Default, Clone)]
pub(crate) struct Delayed {
    /// Blocks that the file does not have yet.
    pub holes: Ranges,
    /// Blocks that are shared, and get copies.
    pub copies: Ranges,
}

/// What the reservations of all files need, in blocks.
#[derive(Debug, Default)]
pub(crate) struct Reserved(AtomicU64);

impl Reserved {
    /// Reserves `blocks` more if `free` blocks suffice for all reservations.
    pub(crate) fn take(&self, blocks: u64, free: u64) -> bool {
        let more = |reserved: u64| reserved.checked_add(blocks).filter(|sum| *sum <= free);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// The cost of a file's reservations changed without a new one.
    pub(crate) fn adjust(&self, before: u64, after: u64) {
        let moved = |reserved: u64| Some((reserved + after).saturating_sub(before));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, moved);
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Delayed {
    /// What the reservations cost. A block of the map, at least half full, has room for `per_map_block`
    /// extents. In the worst case each block becomes an extent; a copy also splits the extent that it is in.
    pub(crate) fn cost(&self, per_map_block: u64) -> u64 {
        self.holes.cost(per_map_block, 1) + self.copies.cost(per_map_block, 2)
    }

    /// Ends the reservations of a range.
    pub(crate) fn remove(&mut self, range: Range<FileBlock>) {
        self.holes.remove(range.clone());
        self.copies.remove(range);
    }
}

impl Ranges {
    pub(crate) fn len(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| *end - *start).sum()
    }

    /// Blocks from a block on.
    pub(crate) fn len_from(&self, from: FileBlock) -> u64 {
        self.ranges.iter().map(|(start, end)| end.0.saturating_sub(start.0.max(from.0))).sum()
    }

    /// Blocks in a range.
    pub(crate) fn len_in(&self, range: Range<FileBlock>) -> u64 {
        self.len_from(range.start) - self.len_from(range.end.max(range.start))
    }

    /// What the blocks cost if each of them adds so many extents to the map.
    fn cost(&self, per_map_block: u64, extents_a_block: u64) -> u64 {
        let cost = |(start, end): (&FileBlock, &FileBlock)| {
            let blocks = *end - *start;
            blocks + (blocks * extents_a_block).div_ceil(per_map_block)
        };
        self.ranges.iter().map(cost).sum()
    }

    /// The range that contains a block.
    pub(crate) fn around(&self, block: FileBlock) -> Option<Range<FileBlock>> {
        let (start, end) = self.ranges.range(..=block).next_back()?;
        (*end > block).then_some(*start..*end)
    }

    /// Adds a range.
    pub(crate) fn add(&mut self, range: Range<FileBlock>) {
        if range.start >= range.end {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((first, last)) =
            self.ranges.range(..=end).next_back().map(|(a, b)| (*a, *b)).filter(|(_, last)| *last >= start)
        {
            self.ranges.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ranges.insert(start, end);
    }

    /// Removes a range.
    pub(crate) fn remove(&mut self, range: Range<FileBlock>) {
        if range.start >= range.end {
            return;
        }
        while let Some((first, last)) = self
            .ranges
            .range(..range.end)
            .next_back()
            .map(|(a, b)| (*a, *b))
            .filter(|(_, last)| *last > range.start)
        {
            self.ranges.remove(&first);
            if first < range.start {
                self.ranges.insert(first, range.start);
            }
            if last > range.end {
                self.ranges.insert(range.end, last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    fn range(start: u64, end: u64) -> Range<FileBlock> {
        FileBlock(start)..FileBlock(end)
    }

    #[test]
    fn ranges_are_those_of_a_set() {
        let mut rng = StdRng::seed_from_u64(5);
        let (mut delayed, mut model) = (Ranges::default(), BTreeSet::new());
        for step in 0..5000 {
            let start = rng.random_range(0..60);
            let end = start + rng.random_range(0..12);
            if rng.random() {
                delayed.add(range(start, end));
                model.extend(start..end);
            } else {
                delayed.remove(range(start, end));
                model.retain(|block| !(start..end).contains(block));
            }
            let has: BTreeSet<u64> =
                (0..80).filter(|block| delayed.around(FileBlock(*block)).is_some()).collect();
            assert_eq!(has, model, "step {step}");
            assert_eq!(delayed.len(), model.len() as u64);
            assert_eq!(delayed.len_from(FileBlock(30)), model.range(30..).count() as u64);
            assert_eq!(delayed.len_in(range(30, 40)), model.range(30..40).count() as u64);
            let ends: Vec<_> = delayed.ranges.iter().collect();
            assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ends:?}");
        }
        delayed.remove(range(0, 100));
        assert_eq!((delayed.len(), delayed.cost(10, 1)), (0, 0));
    }

    #[test]
    fn a_reservation_needs_space_for_all() {
        let reserved = Reserved::default();
        assert!(reserved.take(7, 10) && !reserved.take(4, 10) && reserved.take(3, 10));
        reserved.adjust(5, 2);
        assert_eq!(reserved.blocks(), 7);
    }

    #[test]
    fn scattered_blocks_cost_a_block_of_the_map_each() {
        let mut delayed = Delayed::default();
        delayed.holes.add(range(0, 10));
        assert_eq!(delayed.cost(10), 11);
        delayed.holes.remove(range(4, 5));
        assert_eq!((delayed.cost(10), delayed.holes.around(FileBlock(5))), (9 + 2, Some(range(5, 10))));
        // Copies split extents.
        delayed.copies.add(range(20, 30));
        assert_eq!(delayed.cost(10), 11 + 12);
        delayed.remove(range(0, 100));
        assert_eq!(delayed.cost(10), 0);
    }
}
