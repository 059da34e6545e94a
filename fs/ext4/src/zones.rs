//! The filesystem's own blocks: superblocks, descriptors, bitmaps, inode tables, the journal.
//!
//! A map that names one of them is damaged, whoever damaged it: reading would show the filesystem's structures to a user, and
//! writing would let one rewrite them. Every mapped run is checked when it is looked up, and every run when it is freed.
//!
//! What lies where is worked out for one flexible group at a time, when a run in it is first met: the groups of one keep their
//! bitmaps and tables together. A descriptor that cannot be read takes part in no check; who needs that group is told.

use crate::ctx::Ext4;
use ivers_vfs::{Error, Inode, Result};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Groups that are looked at together, at most.
const MOST_TOGETHER: u32 = 64;

/// `(first, end)`, sorted, apart from each other.
type Ranges = Arc<[(u64, u64)]>;

/// What was worked out so far.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    journal: Vec<(u64, u64)>,
    /// By flexible group. A leaf lock.
    known: RwLock<HashMap<u32, Ranges>>,
}

/// Sort, and join what touches.
fn joined(mut ranges: Vec<(u64, u64)>) -> Ranges {
    ranges.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (first, end) in ranges {
        match out.last_mut() {
            Some(last) if last.1 >= first => last.1 = last.1.max(end),
            _ => out.push((first, end)),
        }
    }
    out.into()
}

/// The first block of `start..end` that lies in one of the ranges.
fn meets(ranges: &[(u64, u64)], start: u64, end: u64) -> Option<u64> {
    let next = ranges.get(ranges.partition_point(|range| range.1 <= start))?;
    (next.0 < end).then(|| next.0.max(start))
}

impl Zones {
    /// With the blocks of the journal, sorted.
    pub(crate) fn new(journal: Vec<(u64, u64)>) -> Self {
        Self { journal: joined(journal).to_vec(), known: RwLock::default() }
    }
}

impl Ext4 {
    fn zones_of(&self, together: u32, size: u32) -> Ranges {
        if let Some(ranges) = self.zones.known.read().get(&together) {
            return ranges.clone();
        }
        let first = together * size;
        let mut ranges = Vec::new();
        for group in first..first.saturating_add(size).min(self.sb.groups) {
            let start = self.sb.group_first_block(group);
            let base = u64::from(self.sb.base_meta_blocks(group));
            if base > 0 {
                ranges.push((start, start + base));
            }
            if let Ok(desc) = self.groups.read_desc(group) {
                ranges.extend(self.groups.fixed_runs(&desc).map(|(_, start, len)| (start, start + len)));
            }
        }
        let ranges = joined(ranges);
        self.zones.known.write().insert(together, ranges.clone());
        ranges
    }

    /// The first of the filesystem's own blocks in a run that lies within the filesystem.
    pub(crate) fn own_block_in(&self, start: u64, len: u64) -> Option<u64> {
        let end = start + len;
        let size = 1u32.checked_shl(self.sb.log_groups_per_flex).unwrap_or(MOST_TOGETHER).min(MOST_TOGETHER);
        let (first, last) = (self.sb.group_of_block(start).0, self.sb.group_of_block(end - 1).0);
        meets(&self.zones.journal, start, end).or_else(|| {
            (first / size..=last / size)
                .find_map(|together| meets(&self.zones_of(together, size), start, end))
        })
    }

    /// Refuse a mapped run that names the filesystem's own blocks.
    pub(crate) fn check_not_own(&self, inode: &Inode, start: u64, len: u64) -> Result<()> {
        match self.own_block_in(start, len) {
            None => Ok(()),
            Some(block) => Err(Error::corrupt(
                "a file's map names a block of the filesystem's own",
                format!("{}, inode {}, block {block}", self.place, inode.ino),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_met() {
        let ranges = joined(vec![(10, 20), (1, 2), (20, 25), (12, 13), (40, 41)]);
        assert_eq!(&ranges[..], [(1, 2), (10, 25), (40, 41)]);
        assert_eq!(meets(&ranges, 2, 10), None);
        assert_eq!(meets(&ranges, 2, 11), Some(10));
        assert_eq!(meets(&ranges, 24, 30), Some(24));
        assert_eq!(meets(&ranges, 25, 40), None);
        assert_eq!(meets(&ranges, 25, 100), Some(40));
        assert_eq!(meets(&ranges, 41, 100), None);
    }
}
