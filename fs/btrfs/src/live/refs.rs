//! Delayed references: changes of references to extents that are not stored yet.
//!
//! References are stored in the extent tree. A change of that tree allocates and frees blocks, which changes
//! more references. So a change of a tree only records delayed references. They are stored between changes,
//! until none is left.

use crate::layout::extent_item::Ref;
use std::collections::BTreeMap;

/// What an extent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data { bytes: u64 },
    Block { level: u8 },
}

/// The delayed references of an extent.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub kind: Kind,
    /// It has no item yet.
    pub is_new: bool,
    /// References to the blocks below name this block, not its tree.
    pub full_backref: bool,
    pub deltas: BTreeMap<Ref, i64>,
}

impl Pending {
    /// By how much the number of references changes.
    pub(crate) fn total(&self) -> i64 {
        self.deltas.values().sum()
    }
}

/// All delayed references, by the address of their extent.
#[derive(Default)]
pub(crate) struct Refs {
    waiting: BTreeMap<u64, Pending>,
}

impl Refs {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn get(&self, bytenr: u64) -> Option<&Pending> {
        self.waiting.get(&bytenr)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Pending)> {
        self.waiting.pop_first()
    }

    /// Removes the entry of a new extent to which nothing refers. Returns whether it did.
    pub(crate) fn take_unused(&mut self, bytenr: u64) -> bool {
        let unused = self.waiting.get(&bytenr).is_some_and(|pending| pending.is_new && pending.total() == 0);
        if unused {
            self.waiting.remove(&bytenr);
        }
        unused
    }

    fn entry(&mut self, bytenr: u64, kind: Kind) -> &mut Pending {
        let none = Pending { kind, is_new: false, full_backref: false, deltas: BTreeMap::new() };
        self.waiting.entry(bytenr).or_insert(none)
    }

    /// Notes an extent that has no item yet, with its first reference.
    pub(crate) fn create(&mut self, bytenr: u64, kind: Kind, by: Ref) {
        let pending = self.entry(bytenr, kind);
        pending.is_new = true;
        *pending.deltas.entry(by).or_default() += 1;
    }

    /// Notes more or fewer references.
    pub(crate) fn change(&mut self, bytenr: u64, kind: Kind, by: Ref, delta: i64) {
        let pending = self.entry(bytenr, kind);
        let sum = pending.deltas.entry(by).or_default();
        *sum += delta;
        if *sum == 0 {
            pending.deltas.remove(&by);
        }
        if pending.deltas.is_empty() && !pending.is_new && !pending.full_backref {
            self.waiting.remove(&bytenr);
        }
    }

    /// Notes that references to the blocks below name this block from now on.
    pub(crate) fn set_full_backref(&mut self, bytenr: u64, level: u8) {
        self.entry(bytenr, Kind::Block { level }).full_backref = true;
    }
}
