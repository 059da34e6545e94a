//! The map from log blocks to filesystem blocks.

use ivers_block::{BlockNo, ByteOffset};

use crate::{JournalError, Result};

/// A contiguous run of the journal's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogExtent {
    /// The first block within the journal.
    pub log_block: u32,
    /// Its block number in the filesystem.
    pub fs_block: BlockNo,
    /// The length in blocks.
    pub len: u32,
}

/// The blocks of the journal in the filesystem.
#[derive(Debug, Clone, Default)]
pub struct LogMap {
    /// Sorted by log block. `check` verifies that they start at 0 and have no holes.
    extents: Vec<LogExtent>,
    /// `(first, end)` filesystem blocks, sorted.
    fs_ranges: Vec<(BlockNo, BlockNo)>,
}

impl LogMap {
    /// Returns a map of extents in any order. [`super::Jbd2Log::open`] checks it.
    pub fn new(mut extents: Vec<LogExtent>) -> Self {
        extents.retain(|e| e.len > 0);
        extents.sort_unstable_by_key(|e| e.log_block);
        let mut fs_ranges: Vec<_> =
            extents.iter().map(|e| (e.fs_block, e.fs_block.saturating_add(u64::from(e.len)))).collect();
        fs_ranges.sort_unstable();
        Self { extents, fs_ranges }
    }

    /// Returns the map of a journal with one extent.
    pub fn contiguous(fs_block: BlockNo, len: u32) -> Self {
        Self::new(vec![LogExtent { log_block: 0, fs_block, len }])
    }

    /// The length in blocks.
    pub fn len(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.len)).sum()
    }

    /// True if the map has no blocks.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns the filesystem block of a log block.
    pub fn fs_block(&self, log_block: u32) -> Option<BlockNo> {
        let at = self.extents.partition_point(|e| e.log_block <= log_block).checked_sub(1)?;
        let e = self.extents[at];
        let within = log_block - e.log_block;
        (within < e.len).then(|| e.fs_block + u64::from(within))
    }

    /// The filesystem blocks of the journal: `(first, end)`, sorted.
    pub fn fs_ranges(&self) -> &[(BlockNo, BlockNo)] {
        &self.fs_ranges
    }

    /// True if the filesystem block belongs to the journal.
    pub fn contains(&self, fs_block: BlockNo) -> bool {
        let at = self.fs_ranges.partition_point(|&(first, _)| first <= fs_block);
        at > 0 && fs_block < self.fs_ranges[at - 1].1
    }

    /// Checks that the extents have no holes and no overlaps, and that they lie inside the filesystem.
    pub(super) fn check(&self, fs_blocks: u64) -> Result<()> {
        let corrupt = |what: &str, log_block| Err(JournalError::Corrupt { what: what.into(), log_block });
        let mut next = 0u64;
        for e in &self.extents {
            if u64::from(e.log_block) != next {
                return corrupt("the journal has a hole, or a block mapped twice", next);
            }
            next += u64::from(e.len);
            if e.fs_block == BlockNo(0)
                || e.fs_block.checked_add(u64::from(e.len)).is_none_or(|end| end > BlockNo(fs_blocks))
            {
                return corrupt("the journal lies outside the filesystem", u64::from(e.log_block));
            }
        }
        if self.fs_ranges.windows(2).any(|w| w[0].1 > w[1].0) {
            return corrupt("two blocks of the journal map to the same block", 0);
        }
        if next > u64::from(u32::MAX) {
            return corrupt("the journal is longer than 2^32 blocks", 0);
        }
        Ok(())
    }

    /// Returns the byte offset of a log block on the device.
    pub(super) fn offset(&self, log_block: u32, block_size: u32) -> Result<ByteOffset> {
        self.fs_block(log_block).map(|block| block.offset(block_size)).ok_or_else(|| JournalError::Corrupt {
            what: "the journal does not have this block".into(),
            log_block: u64::from(log_block),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_log_blocks_and_refuses_invalid_extents() {
        let e = |log_block, fs_block, len| LogExtent { log_block, fs_block, len };
        let map = LogMap::new(vec![e(10, BlockNo(50), 5), e(0, BlockNo(100), 10)]);
        map.check(110).unwrap();
        assert_eq!(
            (map.fs_block(9), map.fs_block(10), map.fs_block(15)),
            (Some(BlockNo(109)), Some(BlockNo(50)), None)
        );
        assert!(
            map.contains(BlockNo(54))
                && map.contains(BlockNo(100))
                && !map.contains(BlockNo(55))
                && !map.contains(BlockNo(49))
        );
        assert!(map.check(109).is_err());
        assert!(LogMap::new(vec![e(1, BlockNo(50), 5)]).check(1000).is_err());
        assert!(LogMap::new(vec![e(0, BlockNo(50), 5), e(5, BlockNo(54), 5)]).check(1000).is_err());
        assert!(LogMap::new(vec![e(0, BlockNo(u64::MAX), 5)]).check(u64::MAX).is_err());
    }
}
