//! The reverse map and the reference counts, against the real owners of blocks.

use super::mapping::{Mapping, join};
use super::state::Checker;
use super::tree::{TreeKind, Walk};
use crate::layout::bytes::number;
use crate::layout::features::RoCompat;
use crate::layout::owner::{self, FILE_BLOCK, Owner, UNWRITTEN};
use crate::layout::raw::RawAgf;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::cmp::Ordering;

const COPY_FLAG: u64 = owner::COPY_FLAG as u64;

/// A run of blocks with one reference count.
type Count = (u32, u32, u32);

impl Checker {
    /// Walks the reverse map to claim its blocks. Returns their number, and whether all could be read.
    pub(super) fn read_reverse_map(&mut self, ag: u32, agf: &RawAgf) -> Result<(u64, bool)> {
        if !self.has_rmap() {
            return Ok((0, true));
        }
        let mut visit = |_: &mut Checker, _: &[u8]| Ok(());
        let mut walk = Walk::of_group(TreeKind::ReverseMap, ag, Owner::SPACE, &mut visit);
        walk.walk(self, agf.agf_roots[2].get(), agf.agf_levels[2].get())?;
        let (blocks, sound) = (walk.blocks(), walk.sound);
        self.maps_unsound |= !sound;
        Ok((blocks, sound))
    }

    /// Walks the reference counts to claim their blocks, and the blocks for copy on write.
    pub(super) fn read_refcounts(&mut self, ag: u32, agf: &RawAgf) -> Result<()> {
        let len = u64::from(self.sb.ag_len(ag));
        let base = u64::from(ag) * u64::from(self.sb.ag_blocks);
        let mut copies = 0;
        let mut end = 0u64;
        let mut visit = |checker: &mut Checker, record: &[u8]| {
            let field = |at| number(record, at, 4).unwrap_or(0);
            let (start, count, references) = (field(0) & !COPY_FLAG, field(4), field(8));
            let is_copy = field(0) & COPY_FLAG != 0;
            let place = Place::group(ag).at(base + start.min(len - 1));
            let enough = if is_copy { references == 1 } else { references >= 2 };
            let overlaps = field(0) < end;
            end = (field(0)) + count;
            if count == 0 || start + count > len || !enough || overlaps {
                let what = format!("{count} blocks at {start} of the group have {references} references");
                checker.bad("reference-count-invalid", place, what);
                return Ok(());
            }
            if is_copy {
                copies += count;
                let what = "an extent for copy on write";
                checker.claim(base + start, count, Owner::COPY, &place, what);
            }
            Ok(())
        };
        let mut walk = Walk::of_group(TreeKind::Refcounts, ag, Owner::REFCOUNT, &mut visit);
        walk.walk(self, agf.agf_refcount_root.get(), agf.agf_refcount_level.get())?;
        let (blocks, sound) = (walk.blocks(), walk.sound);
        if sound {
            self.check_count(ag, "agf_refcount_blocks", agf.agf_refcount_blocks.get(), blocks);
        } else {
            self.maps_unsound = true;
        }
        self.copies += copies;
        Ok(())
    }

    /// Compares the reverse maps and the reference counts with the owners that were found.
    pub(super) fn check_owners(&mut self) -> Result<()> {
        if self.maps_unsound {
            if self.has_rmap() || self.sb.ro_compat.contains(RoCompat::REFLINK) {
                self.found
                    .note("reverse maps and reference counts are not compared: not all owners are known");
            }
            return Ok(());
        }
        for ag in 0..self.sb.ag_count {
            let Some(agf) = self.groups[ag as usize].agf.clone() else { continue };
            if self.has_rmap() {
                self.compare_reverse_map(ag, &agf)?;
            }
            if self.sb.ro_compat.contains(RoCompat::REFLINK) {
                self.compare_refcounts(ag, &agf)?;
            }
        }
        Ok(())
    }

    /// The parts of a run of a group that no unfinished intent has. The others are not judged: an intent can
    /// have a part of a run.
    fn settled(&self, ag: u32, start: u32, len: u32) -> Vec<(u32, u32)> {
        let base = u64::from(ag) * u64::from(self.sb.ag_blocks);
        let (mut at, end) = (base + u64::from(start), base + u64::from(start) + u64::from(len));
        let mut parts = Vec::new();
        while let Some(first) = self.pending.find(at, end - at, false) {
            let last = self.pending.find(first, end - first, true).unwrap_or(end);
            parts.push(((first - base) as u32, (last - first) as u32));
            at = last;
        }
        parts
    }

    fn settled_mappings(&mut self, ag: u32, runs: Vec<Mapping>) -> Result<Vec<Mapping>> {
        if self.pending.is_empty() {
            return Ok(runs);
        }
        let mut settled = Vec::with_capacity(runs.len());
        for run in runs {
            let part = |(start, len): (u32, u32)| Mapping {
                start,
                len,
                owner: run.owner.after((start - run.start).into()),
            };
            settled.extend(self.settled(ag, run.start, run.len).into_iter().map(part));
            // Runs that overlap, on a damaged image, can have many parts each.
            self.charge(settled.capacity() * size_of::<Mapping>())?;
        }
        Ok(settled)
    }

    fn settled_counts(&mut self, ag: u32, runs: Vec<Count>) -> Result<Vec<Count>> {
        if self.pending.is_empty() {
            return Ok(runs);
        }
        let mut settled = Vec::with_capacity(runs.len());
        for (start, len, references) in runs {
            let parts = self.settled(ag, start, len);
            settled.extend(parts.into_iter().map(|(start, len)| (start, len, references)));
            self.charge(settled.capacity() * size_of::<Count>())?;
        }
        Ok(settled)
    }

    fn compare_reverse_map(&mut self, ag: u32, agf: &RawAgf) -> Result<()> {
        let mut stored: Vec<Mapping> = Vec::new();
        let len = self.sb.ag_len(ag);
        let mut visit = |checker: &mut Checker, record: &[u8]| {
            let field = |at, len| number(record, at, len).unwrap_or(0);
            let mapping = Mapping {
                start: field(0, 4) as u32,
                len: field(4, 4) as u32,
                owner: Owner { owner: field(8, 8), offset: field(16, 8) },
            };
            let is_inside = mapping.start.checked_add(mapping.len).is_some_and(|end| end <= len);
            if mapping.len == 0 || !is_inside {
                let what = format!("the reverse map has {} blocks at {}", mapping.len, mapping.start);
                checker.bad("reverse-map-invalid", Place::group(ag), what);
                return Ok(());
            }
            stored.push(mapping);
            if stored.len().is_multiple_of(1 << 14) {
                return checker.charge(stored.capacity() * size_of::<Mapping>());
            }
            Ok(())
        };
        let mut walk = Walk::again(TreeKind::ReverseMap, ag, &mut visit);
        walk.walk(self, agf.agf_roots[2].get(), agf.agf_levels[2].get())?;
        let mut owned = std::mem::take(&mut self.groups[ag as usize].owned);
        join(&mut stored);
        join(&mut owned);
        let (stored, owned) = (self.settled_mappings(ag, stored)?, self.settled_mappings(ag, owned)?);
        let (mut left, mut right) = (stored.iter().peekable(), owned.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => (a.owner, a.start, a.len).cmp(&(b.owner, b.start, b.len)),
            };
            if order != Ordering::Greater
                && let Some(mapping) = left.next().filter(|_| order == Ordering::Less)
            {
                self.reverse_map_differs(ag, mapping, "that has another owner, or none");
            }
            if order != Ordering::Less
                && let Some(mapping) = right.next().filter(|_| order == Ordering::Greater)
            {
                self.reverse_map_differs(ag, mapping, "that is not in the reverse map");
            }
        }
        Ok(())
    }

    fn reverse_map_differs(&mut self, ag: u32, mapping: &Mapping, why: &str) {
        let Mapping { start, len, owner } = *mapping;
        let first = u64::from(ag) * u64::from(self.sb.ag_blocks) + u64::from(start);
        let mut place = Place::group(ag).at(first);
        let whose = if owner.is_inode() {
            place.inode = Some(owner.owner);
            let unwritten = if owner.offset & UNWRITTEN != 0 { ", unwritten" } else { "" };
            format!("inode {} at file block {}{unwritten}", owner.owner, owner.offset & FILE_BLOCK)
        } else {
            format!("structure {}", owner.owner as i64)
        };
        let code = if why.contains("not in") { "reverse-map-missing" } else { "reverse-map-wrong" };
        self.bad(code, place, format!("{len} blocks of {whose}: a run {why}"));
    }

    fn compare_refcounts(&mut self, ag: u32, agf: &RawAgf) -> Result<()> {
        let mut stored: Vec<Count> = Vec::new();
        let mut visit = |checker: &mut Checker, record: &[u8]| {
            let field = |at| number(record, at, 4).unwrap_or(0);
            if field(0) & COPY_FLAG == 0 {
                stored.push((field(0) as u32, field(4) as u32, field(8) as u32));
            }
            if stored.len().is_multiple_of(1 << 14) {
                return checker.charge(stored.capacity() * size_of::<Count>());
            }
            Ok(())
        };
        let mut walk = Walk::again(TreeKind::Refcounts, ag, &mut visit);
        walk.walk(self, agf.agf_refcount_root.get(), agf.agf_refcount_level.get())?;
        let extents = std::mem::take(&mut self.groups[ag as usize].shared);
        let counted = self.settled_counts(ag, counts_of(extents))?;
        let mut stored = self.settled_counts(ag, joined(stored))?;
        stored.sort_unstable();
        let mut differing: Vec<(Count, bool)> = Vec::new();
        let (mut left, mut right) = (stored.into_iter().peekable(), counted.into_iter().peekable());
        while left.peek().is_some() || right.peek().is_some() {
            match (left.peek().copied(), right.peek().copied()) {
                (Some(a), Some(b)) if a == b => {
                    left.next();
                    right.next();
                }
                (Some(a), b) if b.is_none_or(|b| a < b) => {
                    differing.push((a, true));
                    left.next();
                }
                (_, Some(b)) => {
                    differing.push((b, false));
                    right.next();
                }
                (_, None) => break,
            }
        }
        for ((start, len, references), is_stored) in differing {
            let first = u64::from(ag) * u64::from(self.sb.ag_blocks) + u64::from(start);
            let what = if is_stored {
                format!("{len} blocks are stored with {references} references, counted differently")
            } else {
                format!("{len} blocks have {references} references, stored differently")
            };
            self.bad("reference-count-wrong", Place::group(ag).at(first), what);
        }
        Ok(())
    }
}

/// Joins runs that continue each other with the same count. They are in order.
fn joined(counts: Vec<Count>) -> Vec<Count> {
    let mut out: Vec<Count> = Vec::new();
    for (start, len, references) in counts {
        match out.last_mut() {
            Some(last)
                if last.2 == references && u64::from(last.0) + u64::from(last.1) == u64::from(start) =>
            {
                last.1 = last.1.saturating_add(len);
            }
            _ => out.push((start, len, references)),
        }
    }
    out
}

/// Returns the runs that at least two of the extents have.
fn counts_of(extents: Vec<(u32, u32)>) -> Vec<Count> {
    let mut starts: Vec<u32> = extents.iter().map(|(start, _)| *start).collect();
    let mut ends: Vec<u32> = extents.iter().map(|(start, len)| start.saturating_add(*len)).collect();
    drop(extents);
    starts.sort_unstable();
    ends.sort_unstable();
    let (mut counts, mut at, mut depth) = (Vec::new(), 0u32, 0u32);
    let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
    while let Some(end) = ends.peek().copied() {
        let next = starts.peek().copied().unwrap_or(u32::MAX).min(end);
        if depth >= 2 && next > at {
            counts.push((at, next - at, depth));
        }
        at = next;
        while starts.next_if_eq(&at).is_some() {
            depth += 1;
        }
        while ends.next_if_eq(&at).is_some() {
            depth = depth.saturating_sub(1);
        }
    }
    joined(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_runs_are_counted() {
        assert_eq!(counts_of(vec![(0, 10), (5, 10), (5, 2), (40, 1)]), [(5, 2, 3), (7, 3, 2)]);
        assert_eq!(counts_of(vec![(0, 10), (10, 10)]), []);
        assert_eq!(counts_of(vec![(0, 10), (10, 10), (0, 20)]), [(0, 20, 2)]);
        assert_eq!(joined(vec![(1, 2, 3), (3, 1, 3), (4, 1, 2)]), [(1, 3, 3), (4, 1, 2)]);
    }
}
