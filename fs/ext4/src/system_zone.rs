//! The blocks of the filesystem's own structures: superblocks, descriptors, bitmaps, inode tables, the
//! journal.
//!
//! A file's map that refers to one of them is corrupt: a read would show the filesystem's structures to a
//! user, and a write would change them. Every mapped run is checked at lookup, and every run when it is
//! freed.
//!
//! The positions are computed for one flexible group at a time, when a run in it is first checked, because
//! its groups store their bitmaps and tables together. An unreadable descriptor is left out of the checks;
//! every use of its group reports it.

use crate::fs::Ext4;
use ivers_block::BlockNo;
use ivers_vfs::sync::{RankedRwLock, rank};
use ivers_vfs::{Error, Inode, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Upper bound of the groups that are computed together.
const MAX_FLEX_GROUPS: u32 = 64;

/// `(first, end)`, sorted and disjoint.
type Ranges = Arc<[(BlockNo, BlockNo)]>;

/// The positions in a flexible group, as of the time when the filesystem had this many groups.
#[derive(Debug)]
struct Known {
    groups: u32,
    ranges: Ranges,
}

/// The positions computed so far.
#[derive(Debug, Default)]
pub(crate) struct SystemZone {
    journal: Vec<(BlockNo, BlockNo)>,
    /// By flexible group.
    known: RankedRwLock<rank::Leaf, HashMap<u32, Known>>,
}

/// Sorts ranges and merges those that touch.
fn merged(mut ranges: Vec<(BlockNo, BlockNo)>) -> Ranges {
    ranges.sort_unstable();
    let mut out: Vec<(BlockNo, BlockNo)> = Vec::with_capacity(ranges.len());
    for (first, end) in ranges {
        match out.last_mut() {
            Some(last) if last.1 >= first => last.1 = last.1.max(end),
            _ => out.push((first, end)),
        }
    }
    out.into()
}

/// The first block of `start..end` that lies in one of the ranges.
fn first_overlap(ranges: &[(BlockNo, BlockNo)], start: BlockNo, end: BlockNo) -> Option<BlockNo> {
    let next = ranges.get(ranges.partition_point(|range| range.1 <= start))?;
    (next.0 < end).then(|| next.0.max(start))
}

impl SystemZone {
    /// Starts with the blocks of the journal.
    pub(crate) fn new(journal: Vec<(BlockNo, BlockNo)>) -> Self {
        Self { journal: merged(journal).to_vec(), known: RankedRwLock::default() }
    }
}

impl Ext4 {
    fn system_ranges(&self, together: u32, size: u32) -> Ranges {
        let groups = self.sb.groups();
        if let Some(known) = self.system_zone.known.read().get(&together)
            && known.groups == groups
        {
            return known.ranges.clone();
        }
        let first = together * size;
        let mut ranges = Vec::new();
        for group in first..first.saturating_add(size).min(groups) {
            let start = self.sb.group_first_block(group);
            let base = u64::from(self.sb.base_meta_blocks(group));
            if base > 0 {
                ranges.push((start, start + base));
            }
            if let Ok(desc) = self.groups.read_desc(group) {
                ranges.extend(self.groups.fixed_runs(&desc).map(|(_, start, len)| (start, start + len)));
            }
        }
        let ranges = merged(ranges);
        let known = Known { groups, ranges: ranges.clone() };
        self.system_zone.known.write().insert(together, known);
        ranges
    }

    /// The first block in a run that belongs to the filesystem's own structures. The run lies within the
    /// filesystem.
    pub(crate) fn own_block_in(&self, start: BlockNo, len: u64) -> Option<BlockNo> {
        let end = start + len;
        let size =
            1u32.checked_shl(self.sb.log_groups_per_flex).unwrap_or(MAX_FLEX_GROUPS).min(MAX_FLEX_GROUPS);
        let (first, last) = (self.sb.group_of_block(start).0, self.sb.group_of_block(start + (len - 1)).0);
        first_overlap(&self.system_zone.journal, start, end).or_else(|| {
            (first / size..=last / size)
                .find_map(|together| first_overlap(&self.system_ranges(together, size), start, end))
        })
    }

    /// Refuses a mapped run that contains a block of the filesystem's own structures.
    pub(crate) fn check_not_own(&self, inode: &Inode, start: BlockNo, len: u64) -> Result<()> {
        match self.own_block_in(start, len) {
            None => Ok(()),
            Some(block) => Err(Error::corrupt(
                "a file's map contains a block of the filesystem's own structures",
                format!("{}, inode {}, block {block}", self.place, inode.ino),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_searched() {
        let range = |(first, end)| (BlockNo(first), BlockNo(end));
        let ranges = merged([(10, 20), (1, 2), (20, 25), (12, 13), (40, 41)].map(range).to_vec());
        assert_eq!(&ranges[..], [(1, 2), (10, 25), (40, 41)].map(range));
        let overlap = |start, end| first_overlap(&ranges, BlockNo(start), BlockNo(end)).map(|block| block.0);
        assert_eq!(overlap(2, 10), None);
        assert_eq!(overlap(2, 11), Some(10));
        assert_eq!(overlap(24, 30), Some(24));
        assert_eq!(overlap(25, 40), None);
        assert_eq!(overlap(25, 100), Some(40));
        assert_eq!(overlap(41, 100), None);
    }
}
