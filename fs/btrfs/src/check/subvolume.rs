//! The memory of a walk of one subvolume.

use super::ledger::Ledger;
use super::state::Checker;
use crate::layout::key::object;
use std::collections::BTreeSet;

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 255;
/// The bytes of memory that an orphan takes, with its share of a node of the set.
const ORPHAN_BYTES: usize = 24;

/// Which two sides of a name are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// The inode and the index of the directory.
    Inode,
    /// The hash and the index of the directory.
    Hash,
}

/// A name, for a message.
pub(super) struct Name {
    pub by: Said,
    pub dir: u64,
    pub child: u64,
    pub name: Box<[u8]>,
}

/// A subvolume.
pub(super) struct Subvolume {
    pub tree: u64,
    pub names: Ledger<Name>,
    /// Directories and their parents, in the order of their numbers.
    pub dirs: Vec<(u64, u64)>,
    /// Inodes without names. An inode is removed when its orphan item is found.
    pub orphans: BTreeSet<u64>,
}

impl Subvolume {
    pub(super) fn new(tree: u64) -> Self {
        Self { tree, names: Ledger::new(), dirs: Vec::new(), orphans: BTreeSet::new() }
    }

    /// Returns the bytes of memory that it takes.
    pub(super) fn bytes_kept(&self) -> usize {
        let dirs = self.dirs.capacity() * size_of::<(u64, u64)>();
        let names = self.names.bytes_kept() + self.names.entries_kept() * NAME_BYTES_MAX;
        names + dirs + self.orphans.len() * ORPHAN_BYTES
    }

    /// Reports a defect of an inode.
    pub(super) fn bad(
        &self,
        checker: &mut Checker,
        code: &'static str,
        objectid: u64,
        what: impl AsRef<str>,
    ) {
        let place = checker.inode_place(self.tree, objectid);
        let of = match (self.tree, &place.inode) {
            (object::FS_TREE, Some(_)) => String::new(),
            (tree, Some(_)) => format!(" (inode {objectid} of subvolume {tree})"),
            (tree, None) => format!(" (inode {objectid} of tree {tree})"),
        };
        checker.bad(code, place, format!("{}{of}", what.as_ref()));
    }
}
