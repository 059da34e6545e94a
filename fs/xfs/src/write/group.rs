//! The heads of groups, as transactions change them.

use super::space::Space;
use super::tx::Tx;
use crate::btree::MAX_LEVELS;
use crate::heads::check_heads;
use crate::layout::bytes::{MAGIC_AGF, MAGIC_AGFL, MAGIC_AGI, read};
use crate::layout::checksum::{AGF, AGFL, AGI, Expected, SelfDescription};
use crate::layout::features::RoCompat;
use crate::layout::raw::{RawAgf, RawAgfl, RawAgi};
use crate::layout::superblock::{Counts, Superblock};
use crate::layout::tree::TreeKind;
use crate::unit::{Unit, Whose};
use ivers_block::BlockNo;
use ivers_vfs::Result;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The sectors of a group's heads.
const AGF_SECTOR: u32 = 1;
const AGI_SECTOR: u32 = 2;
const AGFL_SECTOR: u32 = 3;

impl Superblock {
    /// The block that has a sector of a group's heads, and the offset in it.
    pub(crate) fn head_place(&self, ag: u32, sector: u32) -> Option<(BlockNo, usize)> {
        let byte = sector * self.sector_size;
        let block = self.ag_block(ag, byte >> self.block_bits)?;
        Some((block, (byte & (self.block_size - 1)) as usize))
    }

    /// What the AGF and AGI in a block say, if they are in it.
    pub(super) fn counts_in_heads(&self, block: BlockNo, bytes: &[u8]) -> Counts {
        let (ag, index) = (block.0 / u64::from(self.ag_blocks), block.0 % u64::from(self.ag_blocks));
        if index > u64::from(AGI_SECTOR * self.sector_size) >> self.block_bits {
            return Counts::default();
        }
        let ag = ag as u32;
        let at = |sector| self.head_place(ag, sector).filter(|(place, _)| *place == block);
        let agf: Option<RawAgf> = at(AGF_SECTOR).and_then(|(_, at)| read(bytes, at));
        let agi: Option<RawAgi> = at(AGI_SECTOR).and_then(|(_, at)| read(bytes, at));
        Counts {
            inodes: agi.as_ref().map_or(0, |agi| agi.agi_count.get().into()),
            free_inodes: agi.map_or(0, |agi| agi.agi_freecount.get().into()),
            free_blocks: agf.map_or(0, |agf| agf.all_free()),
        }
    }

    /// Places of a group's free list.
    pub(crate) fn free_list_places(&self) -> u32 {
        (self.sector_size - size_of::<RawAgfl>() as u32) / 4
    }
}

/// A block with a head of a group, and where in it the head is.
struct Head {
    bytes: Unit,
    block: BlockNo,
    at: usize,
}

impl Head {
    fn raw<T: FromBytes + KnownLayout + Immutable>(&self, space: &Space, ag: u32) -> Result<&T> {
        let bytes = self.bytes.get(self.at..).unwrap_or_default();
        let raw = T::ref_from_prefix(bytes).ok().map(|(raw, _)| raw);
        raw.ok_or_else(|| space.corrupt_block("a group header is too short", Whose::Group(ag), self.block))
    }
}

impl Tx<'_> {
    /// Reads the sector of a head of a group, and checks what it says of itself.
    fn head(&mut self, ag: u32, sector: u32, kind: &SelfDescription) -> Result<Head> {
        self.groups();
        let (space, whose) = (self.space(), Whose::Group(ag));
        let place = space.sb.head_place(ag, sector);
        let (block, at) = place.ok_or_else(|| space.corrupt("the group has no header", whose))?;
        // What was read or changed here was checked then.
        if !self.has_changed(block) && !self.is_recent(block) {
            let (buffer, _) = self.load_new(&[block], None, whose)?;
            check_heads(&space.sb, &buffer).map_err(|what| space.corrupt_block(what, whose, block))?;
        }
        let head = Head { bytes: self.read_unit(&[block], None, whose)?, block, at };
        let expected = Expected { uuid: space.sb.meta_uuid, blkno: 0, owner: 0 };
        let sector = head.bytes.get(at..at + space.sb.sector_size as usize).unwrap_or_default();
        kind.check_place(sector, &expected).map_err(|what| space.corrupt_block(what, whose, block))?;
        Ok(head)
    }

    fn modify_head(&mut self, ag: u32, (block, at): (BlockNo, usize), head: &[u8]) -> Result<()> {
        self.modify_within(&[block], None, Whose::Group(ag), at..at + head.len(), |bytes| {
            bytes[at..at + head.len()].copy_from_slice(head);
        })
    }

    /// Changes a head that was read and checked.
    fn modify_raw<T: FromBytes + IntoBytes + KnownLayout>(
        &mut self,
        ag: u32,
        head: Head,
        f: impl FnOnce(&mut T),
    ) -> Result<()> {
        let Head { bytes, block, at } = head;
        // The change would copy what someone holds.
        drop(bytes);
        let range = at..at + size_of::<T>();
        let changed = self.modify_within(&[block], None, Whose::Group(ag), range, |bytes| {
            let raw = bytes.get_mut(at..).and_then(|bytes| T::mut_from_prefix(bytes).ok());
            raw.map(|(raw, _)| f(raw)).is_some()
        })?;
        let short = || self.space().corrupt_block("a group header is too short", Whose::Group(ag), block);
        if changed { Ok(()) } else { Err(short()) }
    }

    /// Reads and checks an AGF.
    fn agf_head(&mut self, ag: u32) -> Result<Head> {
        let head = self.head(ag, AGF_SECTOR, &AGF)?;
        let space = self.space();
        let (sb, places) = (&space.sb, space.sb.free_list_places());
        let raw: &RawAgf = head.raw(space, ag)?;
        let (first, last, count) = (raw.agf_flfirst.get(), raw.agf_fllast.get(), raw.agf_flcount.get());
        let listed = if count == 0 { 0 } else { last.wrapping_add(places + 1).wrapping_sub(first) % places };
        let length = sb.ag_len(ag);
        let what = if raw.agf_magicnum.get() != MAGIC_AGF || raw.agf_versionnum.get() != 1 {
            "the AGF has a wrong magic or version"
        } else if raw.agf_seqno.get() != ag || raw.agf_length.get() != length {
            "the AGF has a wrong number or length"
        } else if first >= places || last >= places || count > places || listed != count % places {
            "the AGF has a wrong free list"
        } else if raw.agf_freeblks.get() > length || raw.agf_longest.get() > raw.agf_freeblks.get() {
            "the AGF has a wrong count of free blocks"
        } else {
            return Ok(head);
        };
        Err(space.corrupt_block(what, Whose::Group(ag), head.block))
    }

    pub(super) fn agf(&mut self, ag: u32) -> Result<RawAgf> {
        self.with_agf(ag, RawAgf::clone)
    }

    /// Returns what `f` finds in an AGF.
    fn with_agf<R>(&mut self, ag: u32, f: impl FnOnce(&RawAgf) -> R) -> Result<R> {
        let head = self.agf_head(ag)?;
        Ok(f(head.raw(self.space(), ag)?))
    }

    pub(super) fn modify_agf(&mut self, ag: u32, f: impl FnOnce(&mut RawAgf)) -> Result<()> {
        let head = self.agf_head(ag)?;
        self.modify_raw(ag, head, f)
    }

    /// Reads and checks an AGI.
    fn agi_head(&mut self, ag: u32) -> Result<Head> {
        let head = self.head(ag, AGI_SECTOR, &AGI)?;
        let space = self.space();
        let raw: &RawAgi = head.raw(space, ag)?;
        let most = u64::from(space.sb.ag_len(ag)) << space.sb.inopb_bits;
        let what = if raw.agi_magicnum.get() != MAGIC_AGI || raw.agi_versionnum.get() != 1 {
            "the AGI has a wrong magic or version"
        } else if raw.agi_seqno.get() != ag || raw.agi_length.get() != space.sb.ag_len(ag) {
            "the AGI has a wrong number or length"
        } else if u64::from(raw.agi_count.get()) > most || raw.agi_freecount.get() > raw.agi_count.get() {
            "the AGI has a wrong count of inodes"
        } else {
            return Ok(head);
        };
        Err(space.corrupt_block(what, Whose::Group(ag), head.block))
    }

    #[cfg(test)]
    pub(super) fn agi(&mut self, ag: u32) -> Result<RawAgi> {
        self.with_agi(ag, RawAgi::clone)
    }

    /// Returns what `f` finds in an AGI.
    pub(super) fn with_agi<R>(&mut self, ag: u32, f: impl FnOnce(&RawAgi) -> R) -> Result<R> {
        let head = self.agi_head(ag)?;
        Ok(f(head.raw(self.space(), ag)?))
    }

    pub(super) fn modify_agi(&mut self, ag: u32, f: impl FnOnce(&mut RawAgi)) -> Result<()> {
        let head = self.agi_head(ag)?;
        self.modify_raw(ag, head, f)
    }

    /// The block of a place of the free list.
    pub(super) fn free_list_block(&mut self, ag: u32, place: u32) -> Result<u32> {
        let (block, at) = self.free_list(ag)?;
        let at = at + size_of::<RawAgfl>() + place as usize * 4;
        let bytes = self.read_unit(&[block], None, Whose::Group(ag))?;
        let found = crate::layout::bytes::number(&bytes, at, 4).unwrap_or(u64::MAX) as u32;
        let space = self.space();
        match space.sb.ag_block(ag, found) {
            Some(_) => Ok(found),
            None => {
                let what = format!("the free list refers to block {found}");
                Err(space.corrupt_block(what, Whose::Group(ag), block))
            }
        }
    }

    pub(super) fn set_free_list_block(&mut self, ag: u32, place: u32, value: u32) -> Result<()> {
        let (block, at) = self.free_list(ag)?;
        let at = at + size_of::<RawAgfl>() + place as usize * 4;
        self.modify_head(ag, (block, at), &value.to_be_bytes())
    }

    fn free_list(&mut self, ag: u32) -> Result<(BlockNo, usize)> {
        let head = self.head(ag, AGFL_SECTOR, &AGFL)?;
        let (raw, block, at): (&RawAgfl, _, _) = (head.raw(self.space(), ag)?, head.block, head.at);
        if raw.agfl_magicnum.get() != MAGIC_AGFL || raw.agfl_seqno.get() != ag {
            let what = "the free list has a wrong magic or number";
            return Err(self.space().corrupt_block(what, Whose::Group(ag), block));
        }
        Ok((block, at))
    }

    /// The root of a B-tree and its levels.
    pub(super) fn root(&mut self, kind: TreeKind, ag: u32) -> Result<(u32, u32)> {
        let (root, levels) = match kind {
            TreeKind::Inodes => self.with_agi(ag, |agi| (agi.agi_root.get(), agi.agi_level.get())),
            TreeKind::FreeInodes => {
                self.with_agi(ag, |agi| (agi.agi_free_root.get(), agi.agi_free_level.get()))
            }
            TreeKind::Refcounts => {
                self.with_agf(ag, |agf| (agf.agf_refcount_root.get(), agf.agf_refcount_level.get()))
            }
            kind => {
                let at = agf_index(kind);
                self.with_agf(ag, |agf| (agf.agf_roots[at].get(), agf.agf_levels[at].get()))
            }
        }?;
        if !(1..=MAX_LEVELS).contains(&levels) {
            let what = format!("{} has {levels} levels", kind.name());
            return Err(self.space().corrupt(what, Whose::Group(ag)));
        }
        Ok((root, levels))
    }

    pub(super) fn set_root(&mut self, kind: TreeKind, ag: u32, root: u32, levels: u32) -> Result<()> {
        match kind {
            TreeKind::Inodes => self.modify_agi(ag, |agi| {
                (agi.agi_root, agi.agi_level) = (root.into(), levels.into());
            }),
            TreeKind::FreeInodes => self.modify_agi(ag, |agi| {
                (agi.agi_free_root, agi.agi_free_level) = (root.into(), levels.into());
            }),
            TreeKind::Refcounts => self.modify_agf(ag, |agf| {
                (agf.agf_refcount_root, agf.agf_refcount_level) = (root.into(), levels.into());
            }),
            kind => self.modify_agf(ag, |agf| {
                let at = agf_index(kind);
                (agf.agf_roots[at], agf.agf_levels[at]) = (root.into(), levels.into());
            }),
        }
    }

    /// Counts a block that a B-tree of the group got or gave back.
    pub(super) fn count_tree_block(&mut self, kind: TreeKind, ag: u32, delta: i32) -> Result<()> {
        let counted = self.space().sb.ro_compat.contains(RoCompat::INOBTCNT);
        let add =
            |field: &mut zerocopy::big_endian::U32| *field = field.get().wrapping_add_signed(delta).into();
        match kind {
            TreeKind::FreeByBlock | TreeKind::FreeBySize => {
                self.modify_agf(ag, |agf| add(&mut agf.agf_btreeblks))
            }
            TreeKind::ReverseMap => self.modify_agf(ag, |agf| {
                add(&mut agf.agf_btreeblks);
                add(&mut agf.agf_rmap_blocks);
            }),
            TreeKind::Refcounts => self.modify_agf(ag, |agf| add(&mut agf.agf_refcount_blocks)),
            TreeKind::Inodes if counted => self.modify_agi(ag, |agi| add(&mut agi.agi_iblocks)),
            TreeKind::FreeInodes if counted => self.modify_agi(ag, |agi| add(&mut agi.agi_fblocks)),
            TreeKind::Inodes | TreeKind::FreeInodes | TreeKind::Extents => Ok(()),
        }
    }
}

/// The index of a B-tree in the arrays of the AGF.
fn agf_index(kind: TreeKind) -> usize {
    match kind {
        TreeKind::FreeByBlock => 0,
        TreeKind::FreeBySize => 1,
        _ => 2,
    }
}
