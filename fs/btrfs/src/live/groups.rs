//! Block groups: which addresses are free, and allocating from them.
//!
//! | set | contents |
//! |---|---|
//! | free | may be allocated now |
//! | pinned | freed since the last commit, which still uses it: free after the next one |
//!
//! What neither has is in use, or has a copy of the superblock on a device.

use crate::layout::chunk::{DATA, METADATA, SYSTEM};
use crate::ranges::Ranges;
use std::collections::BTreeMap;

/// A range of addresses from which extents of a kind are allocated.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub start: u64,
    pub len: u64,
    /// What it contains, and its profile.
    pub flags: u64,
    /// Bytes of extents that have an item, or get one when delayed references are stored.
    pub used: u64,
    /// Its item is older than `used`.
    pub changed: bool,
    /// Its free space is stored as bitmaps.
    pub has_bitmaps: bool,
    pub free: Ranges,
    pub pinned: Ranges,
    /// Where the next search starts.
    cursor: u64,
}

impl Group {
    pub(crate) fn new(start: u64, len: u64, flags: u64) -> Self {
        let (free, pinned) = (Ranges::default(), Ranges::default());
        Self { start, len, flags, used: 0, changed: false, has_bitmaps: false, free, pinned, cursor: start }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// All block groups, and what changed of their free space.
#[derive(Default)]
pub(crate) struct Groups {
    pub by_start: BTreeMap<u64, Group>,
    /// Free ranges that must be added to the free-space tree, and ranges that must be removed from it.
    pub added: Ranges,
    pub removed: Ranges,
}

/// What an extent is for, as a bit of a group's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Data,
    Metadata,
    System,
}

impl Use {
    pub(crate) fn bit(self) -> u64 {
        match self {
            Self::Data => DATA,
            Self::Metadata => METADATA,
            Self::System => SYSTEM,
        }
    }
}

impl Groups {
    /// The groups for a use.
    pub(crate) fn of(&self, purpose: Use) -> impl Iterator<Item = &Group> {
        self.by_start.values().filter(move |group| group.flags & purpose.bit() != 0)
    }

    /// The group that has an address.
    pub(crate) fn at(&mut self, address: u64) -> Option<&mut Group> {
        let before = self.by_start.range_mut(..=address).next_back().map(|(_, group)| group);
        before.filter(|group| address < group.end())
    }

    /// Bytes that may be allocated now.
    pub(crate) fn free_bytes(&self, purpose: Use) -> u64 {
        self.of(purpose).map(|group| group.free.total()).sum()
    }

    /// Bytes that the next commit frees.
    pub(crate) fn pinned_bytes(&self, purpose: Use) -> u64 {
        self.of(purpose).map(|group| group.pinned.total()).sum()
    }

    /// Bytes in use, each counted once.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.by_start.values().map(|group| group.used).sum()
    }

    /// Takes `len` bytes that begin at a multiple of `len`: a block of a tree.
    pub(crate) fn take_block(&mut self, purpose: Use, len: u64) -> Option<u64> {
        for group in self.by_start.values_mut().filter(|group| group.flags & purpose.bit() != 0) {
            if group.free.total() < len {
                continue;
            }
            if let Some(start) = group.free.find(len, len, group.cursor) {
                group.free.remove(start, start + len);
                group.cursor = start + len;
                return Some(start);
            }
        }
        None
    }

    /// Takes up to `most` bytes for data: as many in a row as there are. Returns their start and length.
    pub(crate) fn take_data(&mut self, most: u64, sector: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        for group in self.by_start.values().filter(|group| group.flags & DATA != 0) {
            if group.free.total() == 0 {
                continue;
            }
            if let Some(start) = group.free.find(most, sector, group.cursor) {
                best = Some((start, most));
                break;
            }
            let found = group.free.longest(most).filter(|(_, len)| *len >= sector);
            if found.is_some_and(|(_, len)| best.is_none_or(|(_, other)| len > other)) {
                best = found;
            }
        }
        let (start, len) = best?;
        let len = len - len % sector;
        let group = self.at(start)?;
        group.free.remove(start, start + len);
        group.cursor = start + len;
        Some((start, len))
    }

    /// Releases what was taken and never used.
    pub(crate) fn give_back(&mut self, start: u64, len: u64) {
        if let Some(group) = self.at(start) {
            group.free.add(start, start + len);
        }
    }

    /// An extent that was taken gets an item. Returns false if no group has it.
    pub(crate) fn count_used(&mut self, start: u64, len: u64) -> bool {
        let Some(group) = self.at(start) else { return false };
        group.used += len;
        group.changed = true;
        flip(&mut self.added, &mut self.removed, start, start + len);
        true
    }

    /// The item of an extent is gone. Returns false if the group did not use so much.
    pub(crate) fn count_unused(&mut self, start: u64, len: u64) -> bool {
        let Some(group) = self.at(start) else { return false };
        let Some(used) = group.used.checked_sub(len) else { return false };
        group.used = used;
        group.changed = true;
        flip(&mut self.removed, &mut self.added, start, start + len);
        true
    }

    /// An extent that the last commit may use is free after the next one.
    pub(crate) fn pin(&mut self, start: u64, len: u64) {
        if let Some(group) = self.at(start) {
            group.pinned.add(start, start + len);
        }
    }

    /// A commit is over: what was pinned is free.
    pub(crate) fn unpin(&mut self) {
        for group in self.by_start.values_mut() {
            for (start, end) in group.pinned.take().iter() {
                group.free.add(start, end);
            }
        }
    }
}

/// Moves a range into `to`, except for what is in `from`: both together then cancel out.
fn flip(from: &mut Ranges, to: &mut Ranges, start: u64, end: u64) {
    let cancelled = from.pieces_in(start, end);
    from.remove(start, end);
    to.add(start, end);
    for (start, end) in cancelled {
        to.remove(start, end);
    }
}
