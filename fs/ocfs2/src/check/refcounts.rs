//! Reference counts: trees of records, and the extents that share clusters.

use super::state::{Checker, Shared};
use crate::layout::bytes::{u16_at, u32_at, u64_at};
use crate::layout::extents::{ExtentList, Keys};
use crate::layout::shape::REFCOUNT_BLOCK;
use crate::map::Owner;
use ivers_block::BufferRead;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeMap;

/// The offset of the list of records, or of extents.
const LIST_AT: usize = 0x80;
/// The flag of a block with extents.
const TREE: u32 = 0x2;

/// Changes of a count, by cluster.
type Steps = BTreeMap<u64, i64>;

fn add(steps: &mut Steps, start: u64, clusters: u32, count: i64) {
    *steps.entry(start).or_default() += count;
    *steps.entry(start.saturating_add(clusters.into())).or_default() -= count;
}

impl Checker {
    /// Compares all reference counts with the extents that have been found.
    pub(super) fn check_refcounts(&mut self) -> Result<()> {
        let mut sharing = std::mem::take(&mut self.sharing);
        sharing.sort_by_key(|shared| shared.root);
        let mut rest = &sharing[..];
        for (root, inodes) in std::mem::take(&mut self.refcount_roots) {
            // The root of every extent is in `refcount_roots`.
            let mine = rest.partition_point(|shared| shared.root <= root);
            let (mine, after) = rest.split_at(mine);
            rest = after;
            self.check_refcount_tree(root, inodes, mine)?;
        }
        self.charge(0)
    }

    fn check_refcount_tree(&mut self, root: u64, inodes: u32, sharing: &[Shared]) -> Result<()> {
        let place = Place::block(root);
        let Some(block) = self.refcount_block(root)? else { return Ok(()) };
        if u32_at(&block, 0x30) != inodes {
            let what = format!("rf_count is {}, the tree has {inodes} inodes", u32_at(&block, 0x30));
            self.bad("refcount-wrong", place.clone(), what);
        }
        let mut steps = Steps::new();
        let whole = if u32_at(&block, 0x34) & TREE != 0 {
            let owner = Owner { ino: root, keys: Keys::RefcountBlocks };
            let read = self.fs.parse_list(&block[LIST_AT..], owner);
            match self.caught("refcount-invalid", place.clone(), read)? {
                Some(list) => self.add_refcount_leaves(&list, owner, &mut steps)?,
                None => false,
            }
        } else {
            self.add_records(&block, root, &mut steps)
        };
        if !whole {
            return Ok(());
        }
        // For each cluster, the stored count minus the owners that were found must be 0.
        for shared in sharing {
            add(&mut steps, shared.cluster, shared.clusters, -1);
        }
        self.charge(steps.len() * 4 * size_of::<u64>())?;
        let mut count = 0;
        for (cluster, step) in steps {
            count += step;
            if count != 0 {
                let what = format!("the count of cluster {cluster} is wrong by {count}");
                self.bad("refcount-wrong", place, what);
                break;
            }
        }
        Ok(())
    }

    /// Reads a block of reference counts that was not read before.
    fn refcount_block(&mut self, number: u64) -> Result<Option<BufferRead>> {
        if !self.claim_block(number, number) {
            return Ok(None);
        }
        let read = self.fs.structure(number, &REFCOUNT_BLOCK);
        self.caught("refcount-invalid", Place::block(number), read)
    }

    /// Adds the records of the leaves of a tree. Returns whether all could be read.
    fn add_refcount_leaves(&mut self, list: &ExtentList, owner: Owner, steps: &mut Steps) -> Result<bool> {
        let mut whole = true;
        for extent in &list.records {
            if list.depth == 0 {
                whole &= match self.refcount_block(extent.start)? {
                    Some(leaf) => self.add_records(&leaf, extent.start, steps),
                    None => false,
                };
                continue;
            }
            if !self.claim_block(owner.ino, extent.start) {
                whole = false;
                continue;
            }
            let place = Place::block(extent.start);
            let read = self.fs.extent_block(extent.start, list.depth - 1, owner);
            whole &= match self.caught("extent-block-invalid", place, read)? {
                Some(below) => self.add_refcount_leaves(&below, owner, steps)?,
                None => false,
            };
        }
        Ok(whole)
    }

    fn add_records(&mut self, block: &[u8], number: u64, steps: &mut Steps) -> bool {
        let list = &block[LIST_AT..];
        let (count, used) = (usize::from(u16_at(list, 0)), usize::from(u16_at(list, 2)));
        let records = list[16..].chunks_exact(16);
        if used > count || count > records.len() {
            let what = format!("the list has {used} of {count} records, and room for {}", records.len());
            self.bad("refcount-invalid", Place::block(number), what);
            return false;
        }
        for record in records.take(used) {
            add(steps, u64_at(record, 0), u32_at(record, 8), u32_at(record, 12).into());
        }
        true
    }
}
