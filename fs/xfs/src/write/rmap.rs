//! The reverse map: which owner has which blocks.

use super::extent::FreeExtent;
use super::tree::{Tree, field};
use super::tx::Tx;
use crate::layout::features::RoCompat;
use crate::layout::owner::{FILE_BLOCK, Owner};
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_vfs::Result;
use std::ops::ControlFlow;

/// A record: blocks of a group, and the owner of the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    blocks: FreeExtent,
    owner: Owner,
}

impl Mapping {
    fn decode(record: &[u8]) -> Self {
        let blocks = FreeExtent { start: field(record, 0, 4) as u32, len: field(record, 4, 4) as u32 };
        Self { blocks, owner: Owner { owner: field(record, 8, 8), offset: field(record, 16, 8) } }
    }

    fn encode(self) -> Vec<u8> {
        let Self { blocks, owner } = self;
        let words = [blocks.start.to_be_bytes(), blocks.len.to_be_bytes()].concat();
        [&words[..], &owner.owner.to_be_bytes(), &owner.offset.to_be_bytes()].concat()
    }

    /// The part from `start` on, with `len` blocks. It lies inside.
    fn part(self, start: u32, len: u32) -> Self {
        let skipped = (start - self.blocks.start).into();
        Self { blocks: FreeExtent { start, len }, owner: self.owner.after(skipped) }
    }

    /// Whether `next` continues it.
    fn continues(self, next: &Self) -> bool {
        self.blocks.end() == next.blocks.start && self.owner.after(self.blocks.len.into()) == next.owner
    }
}

const fn tree(ag: u32) -> Tree {
    Tree::new(TreeKind::ReverseMap, ag)
}

impl Tx<'_> {
    pub(super) fn has_reverse_map(&self) -> bool {
        self.space().sb.ro_compat.contains(RoCompat::RMAPBT)
    }

    /// The first record that covers a block of a range and suits, of all owners that share it.
    fn find_mapping(
        &mut self,
        ag: u32,
        (start, last): (u32, u32),
        suits: impl Fn(&Mapping) -> bool,
    ) -> Result<Option<Mapping>> {
        let mut found = None;
        let range = ([start.into(), 0, 0], [last.into(), u64::MAX, u64::MAX]);
        self.overlapping(tree(ag), range, &mut |record| {
            let mapping = Mapping::decode(record);
            if mapping.blocks.start.checked_add(mapping.blocks.len).is_none() || mapping.blocks.len == 0 {
                return ControlFlow::Continue(());
            }
            if mapping.blocks.end() > start && suits(&mapping) {
                found = Some(mapping);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn delete_mapping(&mut self, ag: u32, mapping: Mapping) -> Result<()> {
        let lost = || "the reverse map is out of order".to_owned();
        let cursor = self.exact(tree(ag), &mapping.encode(), lost)?;
        self.delete(tree(ag), cursor)
    }

    /// Records the owner of blocks of a group, if the filesystem has a reverse map.
    pub(super) fn map_in_group(&mut self, ag: u32, blocks: FreeExtent, owner: Owner) -> Result<()> {
        if !self.has_reverse_map() {
            return Ok(());
        }
        let mut new = Mapping { blocks, owner };
        if let Some(before) = blocks.start.checked_sub(1) {
            let left = self.find_mapping(ag, (before, before), |left| left.continues(&new))?;
            if let Some(left) = left {
                self.delete_mapping(ag, left)?;
                new = Mapping {
                    blocks: FreeExtent { start: left.blocks.start, len: left.blocks.len + new.blocks.len },
                    ..left
                };
            }
        }
        let end = blocks.end();
        if let Some(right) = self.find_mapping(ag, (end, end), |right| new.continues(right))? {
            self.delete_mapping(ag, right)?;
            new.blocks.len += right.blocks.len;
        }
        self.insert(tree(ag), &new.encode())
    }

    /// Removes the owner of blocks of a group. Without an owner, removes what there is, as after a crash.
    pub(super) fn unmap_in_group(&mut self, ag: u32, blocks: FreeExtent, owner: Option<Owner>) -> Result<()> {
        if !self.has_reverse_map() {
            return Ok(());
        }
        let last = blocks.end() - 1;
        let Some(owner) = owner else {
            while let Some(found) = self.find_mapping(ag, (blocks.start, last), |_| true)? {
                let start = found.blocks.start.max(blocks.start);
                let end = found.blocks.end().min(blocks.end());
                self.cut_mapping(ag, found, FreeExtent { start, len: end - start })?;
            }
            return Ok(());
        };
        let suits = |found: &Mapping| {
            let inside = found.blocks.start <= blocks.start && found.blocks.end() >= blocks.end();
            inside && found.owner.after(u64::from(blocks.start - found.blocks.start)) == owner
        };
        match self.find_mapping(ag, (blocks.start, blocks.start), suits)? {
            Some(found) => self.cut_mapping(ag, found, blocks),
            None => {
                let whose = if owner.is_inode() {
                    format!("inode {} at {}", owner.owner, owner.offset & FILE_BLOCK)
                } else {
                    format!("structure {}", owner.owner as i64)
                };
                let what = format!(
                    "the reverse map lacks {} blocks at {} of the group, of {whose}",
                    blocks.len, blocks.start
                );
                Err(self.space().corrupt(what, Whose::Group(ag)))
            }
        }
    }

    /// Removes a part of a mapping.
    fn cut_mapping(&mut self, ag: u32, mapping: Mapping, part: FreeExtent) -> Result<()> {
        self.delete_mapping(ag, mapping)?;
        let (start, end) = (mapping.blocks.start, mapping.blocks.end());
        if part.start > start {
            self.insert(tree(ag), &mapping.part(start, part.start - start).encode())?;
        }
        if part.end() < end {
            self.insert(tree(ag), &mapping.part(part.end(), end - part.end()).encode())?;
        }
        Ok(())
    }
}
