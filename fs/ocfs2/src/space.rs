//! What a mount that writes knows of free space. The bitmaps are in the groups. This module keeps hints for
//! finding free bits, and the clusters that look free and must not be taken.

use std::collections::BTreeMap;
use std::ops::Range;

/// The number of free bits of a group that was not read yet.
pub(crate) const UNKNOWN: u16 = u16::MAX;

/// A set of clusters, as ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl Clusters {
    /// Adds clusters that are not in the set.
    pub fn insert(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.count += range.end - range.start;
            self.ranges.insert(range.start, range.end);
        }
    }

    /// Removes clusters that are in the set.
    pub fn remove(&mut self, range: Range<u64>) {
        while let Some((start, end)) = self.overlap(&range) {
            self.ranges.remove(&start);
            self.count -= end - start;
            self.insert(start..range.start.max(start));
            self.insert(range.end.min(end)..end);
        }
    }

    /// Returns the last range of the set that overlaps this one.
    pub fn overlap(&self, range: &Range<u64>) -> Option<(u64, u64)> {
        let (&start, &end) = self.ranges.range(..range.end).next_back()?;
        (end > range.start && !range.is_empty()).then_some((start, end))
    }

    /// The number of clusters.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// A group of an allocator of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubGroup {
    pub block: u64,
    /// Free bits that may be taken: none if the group is not contiguous.
    pub free: u16,
}

/// The allocator of inodes, or of extent blocks, of our slot.
#[derive(Debug, Default)]
pub(crate) struct SubAllocator {
    pub ino: u64,
    pub groups: Vec<SubGroup>,
}

impl SubAllocator {
    pub fn free(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.free)).sum()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Free bits of each group of clusters, or [`UNKNOWN`].
    pub groups: Vec<u16>,
    /// Clear bits of all groups of clusters.
    pub free: u64,
    /// Clusters whose bits are clear, and that must not be taken: data is written there and not mapped yet,
    /// or they were freed by a transaction that is not durable.
    pub busy: Clusters,
    /// Clusters that dirty pages need.
    pub reserved: u64,
    /// Extent blocks that dirty pages need.
    pub reserved_blocks: u64,
    pub inodes: SubAllocator,
    pub blocks: SubAllocator,
    /// The generation of the next inode.
    pub generation: u32,
    /// Where the next run of clusters is looked for.
    pub goal: u64,
}

impl Space {
    /// Clusters that can be taken, of which `credit` are reserved for the caller.
    pub fn available(&self, credit: u64) -> u64 {
        let others = self.reserved.saturating_sub(credit);
        self.free.saturating_sub(self.busy.count()).saturating_sub(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_ranges_are_removed() {
        let mut set = Clusters::default();
        set.insert(10..20);
        set.insert(30..40);
        set.insert(20..30);
        set.remove(15..32);
        assert_eq!((set.overlap(&(0..15)), set.overlap(&(15..32)), set.count()), (Some((10, 15)), None, 13));
        set.remove(0..100);
        assert_eq!((set.overlap(&(0..100)), set.count()), (None, 0));
    }
}
