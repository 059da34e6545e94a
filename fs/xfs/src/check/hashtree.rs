//! Hash trees of names, which directories and attributes share.

use super::fork::{Mapped, place_in};
use super::state::Checker;
use crate::layout::bytes::number;
use crate::layout::checksum::DA_BLOCK;
use crate::layout::directory::{MAX_DEPTH, NODE_MAGICS, da_header_bytes, hash_entries_start};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeSet;

/// Is to the left of the first block of a level.
const NO_BLOCK: u64 = u64::MAX;

/// A leaf: its bytes, its file block, its device block.
pub(super) struct Leaf<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) block: u64,
}

/// Checks a leaf and returns its largest hash, if it has one.
type VisitLeaf<'a> = dyn FnMut(&mut Checker, &Leaf<'_>) -> Result<Option<u32>> + 'a;

/// A walk of one hash tree.
pub(super) struct HashWalk<'a> {
    pub(super) mapped: &'a Mapped,
    /// Filesystem blocks of a block of the tree.
    pub(super) unit: u64,
    /// Magics of a leaf, in version 5 and 4.
    pub(super) leaf_magics: [u16; 2],
    /// What the tree belongs to, for findings.
    pub(super) name: &'static str,
    /// File blocks that were visited.
    pub(super) seen: BTreeSet<u64>,
    /// The block to the left on each level, and its right neighbour; `None` if that is not known.
    left: [Option<(u64, u64)>; MAX_DEPTH + 1],
    pub(super) sound: bool,
}

impl<'a> HashWalk<'a> {
    pub(super) fn new(mapped: &'a Mapped, unit: u64, leaf_magics: [u16; 2], name: &'static str) -> Self {
        let left = [Some((NO_BLOCK, 0)); MAX_DEPTH + 1];
        Self { mapped, unit, leaf_magics, name, seen: BTreeSet::new(), left, sound: true }
    }

    /// Walks the tree.
    pub(super) fn walk(&mut self, checker: &mut Checker, root: u64, visit: &mut VisitLeaf<'_>) -> Result<()> {
        self.node(checker, root, None, visit)?;
        let last = self.left.iter().flatten().any(|(at, next)| *at != NO_BLOCK && *next != 0);
        if last {
            let what = format!("the last block of {} has one after it", self.name);
            checker.bad("hash-sibling-wrong", Place::inode(self.mapped.ino), what);
        }
        Ok(())
    }

    /// Visits a block and everything below; returns the largest hash.
    fn node(
        &mut self,
        checker: &mut Checker,
        at: u64,
        level: Option<u64>,
        visit: &mut VisitLeaf<'_>,
    ) -> Result<Option<u32>> {
        let ino = self.mapped.ino;
        let blocks = self.mapped.blocks(checker, at, self.unit);
        let Some(blocks) = blocks.filter(|_| self.seen.insert(at)) else {
            self.lost(level);
            if self.mapped.sound {
                let what =
                    format!("{} refers to file block {at}, a hole or a block that it has twice", self.name);
                checker.bad("hash-block-invalid", Place::inode(ino), what);
            }
            return Ok(None);
        };
        let bytes = checker.blocks(&blocks)?;
        let block = blocks.first().copied().unwrap_or_default();
        let (place, v5) = (place_in(ino, block), checker.sb.is_v5());
        let version = usize::from(!v5);
        let header = da_header_bytes(&checker.sb);
        let field = |at, len| number(&bytes, at, len).unwrap_or(0);
        let magic = field(8, 2) as u16;
        let (count, own_level) = (field(header, 2) as usize, field(header + 2, 2));
        let is_leaf = magic == self.leaf_magics[version];
        let entries = hash_entries_start(&checker.sb);
        let what = if is_leaf && level.is_none_or(|level| level == 0) {
            None
        } else if is_leaf {
            Some(format!("a leaf of {} is where a node should be", self.name))
        } else if magic != NODE_MAGICS[version] {
            Some(format!("a block of {} has the magic {magic:#06x}", self.name))
        } else if !(1..=MAX_DEPTH as u64).contains(&own_level)
            || level.is_some_and(|level| level != own_level)
        {
            Some(format!("a node of {} has level {own_level}", self.name))
        } else if count == 0 || entries + count * 8 > bytes.len() {
            Some(format!("a node of {} has {count} entries", self.name))
        } else {
            None
        };
        if let Some(what) = what {
            self.lost(level);
            checker.bad("hash-block-invalid", place, what);
            return Ok(None);
        }
        checker.check_identity(&bytes, &DA_BLOCK, &format!("a block of {}", self.name), &place, ino);
        let own_level = if is_leaf { 0 } else { own_level };
        self.check_siblings(checker, at, own_level, (field(4, 4), field(0, 4)), block);
        if is_leaf {
            return visit(checker, &Leaf { bytes: &bytes, block });
        }
        let mut last = None;
        for index in 0..count {
            let (hash, child) = (field(entries + index * 8, 4) as u32, field(entries + index * 8 + 4, 4));
            if last.is_some_and(|last| last > hash) {
                let what = format!("hashes in a node of {} are out of order", self.name);
                checker.bad("hash-order-wrong", place.clone(), what);
            }
            last = Some(hash);
            let found = self.node(checker, child, Some(own_level - 1), visit)?;
            if found.is_some_and(|found| found != hash) {
                let what = format!("a node of {} has a wrong hash of its child {index}", self.name);
                checker.bad("hash-key-wrong", place.clone(), what);
            }
        }
        Ok(last)
    }

    fn lost(&mut self, level: Option<u64>) {
        self.sound = false;
        let levels = level.map_or(MAX_DEPTH, |level| level as usize);
        self.left[..=levels].fill(None);
    }

    fn check_siblings(
        &mut self,
        checker: &mut Checker,
        at: u64,
        level: u64,
        (back, next): (u64, u64),
        block: u64,
    ) {
        let left = &mut self.left[level as usize];
        let is_right = match *left {
            None => true,
            Some((NO_BLOCK, _)) => back == 0,
            Some((before, after)) => back == before && after == at,
        };
        *left = Some((at, next));
        if !is_right {
            let what = format!("blocks of {} do not refer to each other", self.name);
            checker.bad("hash-sibling-wrong", place_in(self.mapped.ino, block), what);
        }
    }
}
