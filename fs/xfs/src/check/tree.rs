//! Walks of B-trees: every block and record once, with the checks that all trees share.

use super::state::Checker;
use crate::btree::MAX_LEVELS;
use crate::layout::bytes::number;
use crate::layout::checksum::{LONG_BTREE, SHORT_BTREE};
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::layout::tree::Key;
pub(super) use crate::layout::tree::TreeKind;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeSet;

/// A consumer of records.
pub(super) type Visit<'a> = dyn FnMut(&mut Checker, &[u8]) -> Result<()> + 'a;

/// What is known of the block to the left on one level.
#[derive(Clone, Copy)]
enum Left {
    None,
    Unknown,
    Known { pointer: u64, right: u64 },
}

/// A walk of one tree.
pub(super) struct Walk<'a> {
    kind: TreeKind,
    /// The group or inode that the blocks name.
    number: u64,
    /// Their owner, if they are to be claimed and defects to be reported.
    owner: Option<Owner>,
    place: Place,
    visit: &'a mut Visit<'a>,
    left: [Left; MAX_LEVELS as usize + 1],
    last: Option<Key>,
    seen: BTreeSet<u64>,
    /// Records that were visited.
    pub(super) records: u64,
    /// Whether all blocks could be read.
    pub(super) sound: bool,
}

impl<'a> Walk<'a> {
    /// A walk of a tree of a group.
    pub(super) fn of_group(kind: TreeKind, ag: u32, owner: Owner, visit: &'a mut Visit<'a>) -> Self {
        Self::new(kind, ag.into(), Some(owner), Place::group(ag), visit)
    }

    /// A second walk of a tree of a group, which claims and reports nothing.
    pub(super) fn again(kind: TreeKind, ag: u32, visit: &'a mut Visit<'a>) -> Self {
        Self::new(kind, ag.into(), None, Place::group(ag), visit)
    }

    /// A walk of a fork. Without an owner nothing is claimed and nothing reported.
    pub(super) fn of_fork(ino: u64, owner: Option<Owner>, visit: &'a mut Visit<'a>) -> Self {
        Self::new(TreeKind::Extents, ino, owner, Place::inode(ino), visit)
    }

    fn new(
        kind: TreeKind,
        number: u64,
        owner: Option<Owner>,
        place: Place,
        visit: &'a mut Visit<'a>,
    ) -> Self {
        let left = [Left::None; MAX_LEVELS as usize + 1];
        Self {
            kind,
            number,
            owner,
            place,
            visit,
            left,
            last: None,
            seen: BTreeSet::new(),
            records: 0,
            sound: true,
        }
    }

    /// Blocks of the tree.
    pub(super) fn blocks(&self) -> u64 {
        self.seen.len() as u64
    }

    fn bad(&mut self, checker: &mut Checker, code: &'static str, block: Option<u64>, what: String) {
        if self.owner.is_some() {
            checker.bad(code, Place { block, ..self.place.clone() }, what);
        }
    }

    /// Walks a tree of a group from its root.
    pub(super) fn walk(&mut self, checker: &mut Checker, root: u32, levels: u32) -> Result<()> {
        let name = self.kind.name();
        if !(1..=MAX_LEVELS).contains(&levels) {
            self.bad(checker, "btree-levels-wrong", None, format!("{name} has {levels} levels"));
            self.sound = false;
            return Ok(());
        }
        self.node(checker, root.into(), levels - 1, 0)?;
        self.end(checker);
        Ok(())
    }

    /// Walks the children of a root in an inode: pairs of key and pointer.
    pub(super) fn walk_children(
        &mut self,
        checker: &mut Checker,
        children: &[(u64, u64)],
        level: u32,
    ) -> Result<()> {
        let least = if children.len() > 1 { usize::MAX } else { 0 };
        for (key, pointer) in children {
            if let Some((low, _)) = self.node(checker, *pointer, level - 1, least)?
                && low[0] != *key
            {
                let what =
                    format!("the root of {} has the key {key} instead of {}", self.kind.name(), low[0]);
                self.bad(checker, "btree-key-wrong", None, what);
            }
        }
        self.end(checker);
        Ok(())
    }

    /// Visits a block and everything below. `least` bounds the records of a small block. Returns the lowest
    /// and the highest key; `None` if it cannot be read or has no records.
    fn node(
        &mut self,
        checker: &mut Checker,
        pointer: u64,
        level: u32,
        least: usize,
    ) -> Result<Option<(Key, Key)>> {
        let Some((bytes, block)) = self.read(checker, pointer, level, least)? else {
            self.sound = false;
            self.left[..=level as usize].fill(Left::Unknown);
            return Ok(None);
        };
        self.check_siblings(checker, pointer, level, &bytes, block);
        let (kind, v5) = (self.kind, checker.sb.is_v5());
        let (header, count) = (kind.header_bytes(v5), number(&bytes, 6, 2).unwrap_or(0) as usize);
        let mut range: Option<(Key, Key)> = None;
        let mut widen = |(low, high): (Key, Key)| {
            let (first, last) = range.unwrap_or((low, high));
            range = Some((first.min(low), last.max(high)));
        };
        if level == 0 {
            for record in bytes[header..].chunks_exact(kind.record_bytes()).take(count) {
                let keys = kind.keys(record);
                if self.last.is_some_and(|last| last >= keys.0) {
                    let what = format!("a record of {} is out of order", kind.name());
                    self.bad(checker, "btree-order-wrong", Some(block), what);
                }
                self.last = Some(keys.0);
                widen(keys);
                self.records += 1;
                (self.visit)(checker, record)?;
            }
            return Ok(range);
        }
        let (each, pointer_bytes) = (kind.key_bytes(), kind.pointer_bytes());
        let most = (bytes.len() - header) / (each + pointer_bytes);
        for index in 0..count {
            let stored = kind.node_keys(&bytes[header + index * each..]);
            let at = header + most * each + index * pointer_bytes;
            let child = number(&bytes, at, pointer_bytes).unwrap_or(0);
            let Some(keys) = self.node(checker, child, level - 1, usize::MAX)? else { continue };
            widen(keys);
            if stored.0 != keys.0 || (kind == TreeKind::ReverseMap && stored.1 != keys.1) {
                let what = format!("a node of {} has wrong keys of its child {index}", kind.name());
                self.bad(checker, "btree-key-wrong", Some(block), what);
            }
        }
        Ok(range)
    }

    fn read(
        &mut self,
        checker: &mut Checker,
        pointer: u64,
        level: u32,
        least: usize,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        let (kind, name) = (self.kind, self.kind.name());
        let block = match kind.is_long() {
            true => checker.sb.run(FsBlock(pointer), 1),
            false => {
                u32::try_from(pointer).ok().and_then(|block| checker.sb.ag_block(self.number as u32, block))
            }
        };
        let Some(block) = block.map(|block| block.0) else {
            let what = format!("{name} refers to block {pointer}");
            self.bad(checker, "block-out-of-range", None, what);
            return Ok(None);
        };
        let place = self.place.clone().at(block);
        if !self.seen.insert(block) {
            let what = format!("{name} has this block twice");
            self.bad(checker, "block-claimed-twice", Some(block), what);
            return Ok(None);
        }
        if let Some(owner) = self.owner
            && !checker.claim(block, 1, owner, &place, &format!("a block of {name}"))
        {
            return Ok(None);
        }
        let bytes = checker.blocks(&[block])?;
        let v5 = checker.sb.is_v5();
        let header = kind.header_bytes(v5);
        let found_level = number(&bytes, 4, 2).unwrap_or(0);
        let count = number(&bytes, 6, 2).unwrap_or(0) as usize;
        let each = if level == 0 { kind.record_bytes() } else { kind.key_bytes() + kind.pointer_bytes() };
        let most = (bytes.len() - header) / each;
        let what = if !bytes.starts_with(kind.magic(v5)) {
            format!("a block of {name} has the magic {:#010x}", number(&bytes, 0, 4).unwrap_or(0))
        } else if found_level != u64::from(level) {
            format!("a block of {name} has level {found_level} instead of {level}")
        } else if count > most || (count == 0 && level > 0) {
            format!("a block of {name} has {count} records")
        } else {
            if count < least.min(most / 2) {
                let what = format!("a block of {name} has {count} records, the least is {}", most / 2);
                self.bad(checker, "btree-block-underfull", Some(block), what);
            }
            if self.owner.is_some() {
                let description = if kind.is_long() { &LONG_BTREE } else { &SHORT_BTREE };
                checker.check_identity(
                    &bytes,
                    description,
                    &format!("a block of {name}"),
                    &place,
                    self.number,
                );
            }
            return Ok(Some((bytes, block)));
        };
        self.bad(checker, "btree-block-invalid", Some(block), what);
        Ok(None)
    }

    fn check_siblings(&mut self, checker: &mut Checker, pointer: u64, level: u32, bytes: &[u8], block: u64) {
        let (each, none) = match self.kind.is_long() {
            true => (8, u64::MAX),
            false => (4, u32::MAX.into()),
        };
        let left = number(bytes, 8, each).unwrap_or(0);
        let right = number(bytes, 8 + each, each).unwrap_or(0);
        let before = self.left[level as usize];
        self.left[level as usize] = Left::Known { pointer, right };
        let is_right = match before {
            Left::Unknown => true,
            Left::None => left == none,
            Left::Known { pointer: before, right: after } => left == before && after == pointer,
        };
        if !is_right {
            let what = format!("blocks of {} do not refer to each other", self.kind.name());
            self.bad(checker, "btree-sibling-wrong", Some(block), what);
        }
    }

    fn end(&mut self, checker: &mut Checker) {
        let none = if self.kind.is_long() { u64::MAX } else { u32::MAX.into() };
        for left in self.left {
            if let Left::Known { right, .. } = left
                && right != none
            {
                let what = format!("the last block of {} has one after it", self.kind.name());
                self.bad(checker, "btree-sibling-wrong", None, what);
            }
        }
    }
}
