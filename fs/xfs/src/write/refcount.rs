//! Reference counts: how many files share blocks. Blocks without a record have one owner.
//!
//! Blocks for copy on write that no file has yet have records of their own, in the upper half of the keys:
//! after a crash the next mount frees them.

use super::busy::Freed;
use super::extent::FreeExtent;
use super::tree::{Tree, field};
use super::tx::Tx;
use super::works::CountChange;
use crate::layout::owner::COPY_FLAG;
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_vfs::Result;

/// The most records that one step changes. The rest is another step, with an intent of its own.
const RECORDS_A_STEP: usize = 16;
/// A count that stays as it is: the blocks are never free again.
const COUNT_MAX: u32 = u32::MAX;

/// A record. `start` is without [`COPY_FLAG`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    blocks: FreeExtent,
    count: u32,
}

impl Counted {
    fn encode(self, flag: u32) -> Vec<u8> {
        let words = [self.blocks.start | flag, self.blocks.len, self.count];
        words.map(u32::to_be_bytes).concat()
    }
}

const fn tree(ag: u32) -> Tree {
    Tree::new(TreeKind::Refcounts, ag)
}

/// Joins runs that continue each other with the same count, and leaves out those that need no record.
fn joined(all: impl IntoIterator<Item = Counted>) -> Vec<Counted> {
    let mut out: Vec<Counted> = Vec::new();
    for next in all.into_iter().filter(|next| next.count > 1 && next.blocks.len > 0) {
        match out.last_mut() {
            Some(last) if last.count == next.count && last.blocks.end() == next.blocks.start => {
                last.blocks.len += next.blocks.len;
            }
            _ => out.push(next),
        }
    }
    out
}

/// The runs of `blocks` with their counts, where records say them, and 1 between.
fn runs_of(records: &[Counted], blocks: FreeExtent) -> Vec<Counted> {
    let mut runs = Vec::new();
    let mut at = blocks.start;
    for record in records {
        let (start, end) = (record.blocks.start.max(at), record.blocks.end().min(blocks.end()));
        if start >= end {
            continue;
        }
        runs.push(Counted { blocks: FreeExtent { start: at, len: start - at }, count: 1 });
        runs.push(Counted { blocks: FreeExtent { start, len: end - start }, count: record.count });
        at = end;
    }
    runs.push(Counted { blocks: FreeExtent { start: at, len: blocks.end() - at }, count: 1 });
    runs.retain(|run| run.blocks.len > 0);
    runs
}

impl Tx<'_> {
    fn counted(&mut self, ag: u32, record: &[u8]) -> Result<(Counted, bool)> {
        let (first, len) = (field(record, 0, 4) as u32, field(record, 4, 4) as u32);
        let count = field(record, 8, 4) as u32;
        let (start, is_copy) = (first & !COPY_FLAG, first & COPY_FLAG != 0);
        let space = self.space();
        let inside = start.checked_add(len).is_some_and(|end| end <= space.sb.ag_len(ag));
        if len == 0 || !inside || count == 0 || (is_copy && count != 1) {
            let what = format!("{len} blocks at {start} of the group have {count} references");
            return Err(space.corrupt(what, Whose::Group(ag)));
        }
        Ok((Counted { blocks: FreeExtent { start, len }, count }, is_copy))
    }

    /// The records of shared blocks that overlap or touch a range, and where to stop: there are at most
    /// [`RECORDS_A_STEP`].
    fn records_near(&mut self, ag: u32, blocks: FreeExtent) -> Result<(Vec<Counted>, u32)> {
        let (tree, mut records, mut end) = (tree(ag), Vec::new(), blocks.end());
        let before = self.at_most(tree, [blocks.start.saturating_sub(1).into(), 0, 0])?;
        let cursor = match before {
            Some(cursor) => Some(cursor),
            None => self.at_least(tree, [0; 3])?,
        };
        let Some(mut cursor) = cursor else { return Ok((records, end)) };
        // A group has no more records than blocks.
        for _ in 0..self.space().sb.ag_len(ag) {
            let record = self.record(tree, &cursor)?;
            let (counted, is_copy) = self.counted(ag, &record)?;
            if is_copy || counted.blocks.start > end {
                return Ok((records, end));
            }
            if counted.blocks.end() >= blocks.start {
                if records.len() == RECORDS_A_STEP {
                    // The record at the new end may continue what is before it.
                    end = counted.blocks.start.max(blocks.start + 1).min(end);
                    records.push(counted);
                    return Ok((records, end));
                }
                records.push(counted);
            }
            if !self.next(tree, &mut cursor)? {
                return Ok((records, end));
            }
        }
        Err(self.endless(tree))
    }

    fn delete_counted(&mut self, ag: u32, counted: Counted, flag: u32) -> Result<()> {
        let lost = || "the B-tree of reference counts is out of order".to_owned();
        let cursor = self.exact(tree(ag), &counted.encode(flag), lost)?;
        self.delete(tree(ag), cursor)
    }

    /// Changes the counts of blocks, or of their first part. Returns the length of that part. Blocks without
    /// a reference are freed.
    pub(super) fn change_counts(&mut self, ag: u32, blocks: FreeExtent, change: CountChange) -> Result<u32> {
        let (records, end) = self.records_near(ag, blocks)?;
        let part = FreeExtent { start: blocks.start, len: end - blocks.start };
        let (mut free, mut unshared) = (Vec::new(), Vec::new());
        let changed = runs_of(&records, part).into_iter().filter_map(|run| {
            let count = match (change, run.count) {
                (_, COUNT_MAX) => COUNT_MAX,
                (CountChange::Increase, count) => count + 1,
                (CountChange::Decrease, count) => count - 1,
            };
            if count == 0 {
                free.push(run.blocks);
                return None;
            }
            if count == 1 {
                unshared.push(Freed { ag, extent: run.blocks });
            }
            Some(Counted { count, ..run })
        });
        let changed: Vec<Counted> = changed.collect();
        // The parts of records before and after.
        let before = records.iter().filter(|record| record.blocks.start < part.start).map(|record| Counted {
            blocks: FreeExtent {
                start: record.blocks.start,
                len: record.blocks.end().min(part.start) - record.blocks.start,
            },
            ..*record
        });
        let after = records.iter().filter(|record| record.blocks.end() > end).map(|record| {
            let start = record.blocks.start.max(end);
            Counted { blocks: FreeExtent { start, len: record.blocks.end() - start }, ..*record }
        });
        let new = joined(before.chain(changed).chain(after));
        for record in records.iter().filter(|record| !new.contains(record)) {
            self.delete_counted(ag, *record, 0)?;
        }
        for record in new.iter().filter(|record| !records.contains(record)) {
            self.insert(tree(ag), &record.encode(0))?;
        }
        for run in free {
            self.defer_free_in_group(ag, run);
        }
        self.unshared.extend(unshared);
        Ok(part.len)
    }

    /// Records blocks for copy on write, which no file has yet.
    pub(super) fn add_copy(&mut self, ag: u32, blocks: FreeExtent) -> Result<()> {
        self.insert(tree(ag), &Counted { blocks, count: 1 }.encode(COPY_FLAG))
    }

    /// Removes the record of blocks for copy on write, or a part of it.
    pub(super) fn remove_copy(&mut self, ag: u32, blocks: FreeExtent) -> Result<()> {
        let found = self.at_most(tree(ag), [u64::from(blocks.start | COPY_FLAG), 0, 0])?;
        if let Some(cursor) = found {
            let record = self.record(tree(ag), &cursor)?;
            let (counted, is_copy) = self.counted(ag, &record)?;
            let (start, end) = (counted.blocks.start, counted.blocks.end());
            if is_copy && start <= blocks.start && end >= blocks.end() {
                self.delete_counted(ag, counted, COPY_FLAG)?;
                let before = FreeExtent { start, len: blocks.start - start };
                let after = FreeExtent { start: blocks.end(), len: end - blocks.end() };
                for blocks in [before, after].into_iter().filter(|rest| rest.len > 0) {
                    self.add_copy(ag, blocks)?;
                }
                return Ok(());
            }
        }
        let what =
            format!("{} blocks at {} of the group are not for copy on write", blocks.len, blocks.start);
        Err(self.space().corrupt(what, Whose::Group(ag)))
    }

    /// The first blocks for copy on write in a group at or after a block.
    pub(super) fn next_copy(&mut self, ag: u32, from: u32) -> Result<Option<FreeExtent>> {
        let Some(cursor) = self.at_least(tree(ag), [u64::from(from | COPY_FLAG), 0, 0])? else {
            return Ok(None);
        };
        let record = self.record(tree(ag), &cursor)?;
        Ok(Some(self.counted(ag, &record)?.0.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(start: u32, len: u32, count: u32) -> Counted {
        Counted { blocks: FreeExtent { start, len }, count }
    }

    #[test]
    fn runs_without_a_record_have_one_owner() {
        let records = [counted(5, 10, 3), counted(20, 5, 2)];
        let runs = runs_of(&records, FreeExtent { start: 10, len: 20 });
        assert_eq!(runs, [counted(10, 5, 3), counted(15, 5, 1), counted(20, 5, 2), counted(25, 5, 1)]);
        assert_eq!(runs_of(&[], FreeExtent { start: 3, len: 2 }), [counted(3, 2, 1)]);
        let all = vec![counted(1, 2, 2), counted(3, 1, 2), counted(4, 1, 1), counted(5, 1, 2)];
        assert_eq!(joined(all), [counted(1, 3, 2), counted(5, 1, 2)]);
    }
}
