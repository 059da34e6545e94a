//! The used blocks of a filesystem under construction.

use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};
use std::collections::BTreeMap;

/// The used blocks: first block and end of each run, adjacent runs joined.
#[derive(Debug)]
pub(crate) struct Space {
    used: BTreeMap<BlockNo, BlockNo>,
    end: BlockNo,
}

impl Space {
    /// Starts with all blocks from `first` to `end` free.
    pub fn new(first: BlockNo, end: BlockNo) -> Self {
        let mut used = BTreeMap::new();
        if first > BlockNo(0) {
            used.insert(BlockNo(0), first);
        }
        Self { used, end }
    }

    /// Marks a free run as used.
    pub fn take(&mut self, start: BlockNo, len: u64) {
        let mut start = start;
        let mut end = start + len;
        if let Some((&before, &before_end)) = self.used.range(..=start).next_back()
            && before_end == start
        {
            self.used.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.used.remove(&end) {
            end = after_end;
        }
        self.used.insert(start, end);
    }

    /// The first free run at `goal` or later.
    fn free_run(&self, goal: BlockNo) -> Option<(BlockNo, u64)> {
        let mut start = goal;
        if let Some((_, &end)) = self.used.range(..=start).next_back() {
            start = start.max(end);
        }
        let end = self.used.range(start..).next().map_or(self.end, |(&next, _)| next);
        (start < self.end).then_some((start, end - start))
    }

    /// Allocates `len` contiguous blocks at the goal or later, else anywhere.
    pub fn allocate(&mut self, goal: BlockNo, len: u64) -> Result<BlockNo> {
        for from in [goal, BlockNo(0)] {
            let mut at = from;
            while let Some((start, free)) = self.free_run(at) {
                if free >= len {
                    self.take(start, len);
                    return Ok(start);
                }
                at = start + free;
            }
        }
        Err(Error::Incompatible(format!("no {len} contiguous blocks: the device is too small")))
    }

    /// Allocates `len` blocks in at most `pieces` runs at the goal or later.
    pub fn allocate_pieces(
        &mut self,
        goal: BlockNo,
        len: u64,
        pieces: usize,
        longest: u64,
    ) -> Result<Vec<(BlockNo, u64)>> {
        for from in [goal, BlockNo(0)] {
            let mut at = from;
            let mut runs = Vec::new();
            let mut missing = len;
            while missing > 0
                && runs.len() < pieces
                && let Some((start, free)) = self.free_run(at)
            {
                let take = free.min(missing).min(longest);
                runs.push((start, take));
                missing -= take;
                at = start + take;
            }
            if missing == 0 {
                for &(start, len) in &runs {
                    self.take(start, len);
                }
                return Ok(runs);
            }
        }
        let start = self.allocate(BlockNo(0), len)?;
        Ok(vec![(start, len)])
    }

    /// Used runs inside `start..end`, clipped to it.
    pub fn used_in(&self, start: BlockNo, end: BlockNo) -> impl Iterator<Item = (BlockNo, BlockNo)> + '_ {
        let first = self.used.range(..=start).next_back().map_or(start, |(&s, _)| s);
        self.used.range(first..end).map(move |(&s, &e)| (s.max(start), e.min(end))).filter(|(s, e)| s < e)
    }
}
