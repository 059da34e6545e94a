//! The free list of a group: blocks for the B-trees of free space and of reverse mappings.
//!
//! A change of free space may split blocks of these trees, and they cannot allocate from themselves. So the
//! list is filled before each change with what the change can take at most. Blocks of the list have the same
//! owner in the reverse map as the blocks of these trees: nothing is mapped when a tree takes one.

use super::extent::FreeExtent;
use super::find::GroupRequest;
use super::tx::Tx;
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::raw::RawAgf;
use crate::layout::superblock::Superblock;
use crate::unit::Whose;
use ivers_vfs::{NameError, Result};

/// Insertions into one tree that the list must suffice for. A change inserts at most two records into a tree:
/// the rests of an extent that is cut in its middle.
const INSERTIONS: u32 = 2;

/// The blocks that the list of a group should have: an insertion splits at most one block a level, and makes
/// a root.
fn wanted(sb: &Superblock, agf: &RawAgf) -> u32 {
    let trees = if sb.ro_compat.contains(RoCompat::RMAPBT) { 3 } else { 2 };
    let levels: u32 = agf.agf_levels[..trees].iter().map(|levels| levels.get().min(16) + 1).sum();
    (INSERTIONS * levels).min(sb.free_list_places() / 2)
}

impl Tx<'_> {
    /// Fills the list, or shortens it if it is much too long.
    pub(super) fn fix_free_list(&mut self, ag: u32) -> Result<()> {
        let sb = &self.space().sb;
        loop {
            let agf = self.agf(ag)?;
            let (wanted, count) = (wanted(sb, &agf), agf.agf_flcount.get());
            if count > 2 * wanted {
                let block = self.take_listed(ag)?;
                self.unmap_in_group(ag, FreeExtent { start: block, len: 1 }, Some(Owner::SPACE))?;
                self.add_free(ag, FreeExtent { start: block, len: 1 })?;
                self.mark_busy(ag, FreeExtent { start: block, len: 1 });
                continue;
            }
            if count >= wanted {
                return Ok(());
            }
            let Some((extent, part)) = self.extent_for_list(ag, wanted - count)? else { return Ok(()) };
            self.cut_free(ag, extent, part)?;
            for block in part.start..part.end() {
                self.put_listed(ag, block)?;
            }
            self.map_in_group(ag, part, Owner::SPACE)?;
        }
    }

    /// A free extent and the part of it for the list, at most `most` blocks: of the smallest extent that
    /// suffices, so that the large ones stay whole, or else of the largest one.
    fn extent_for_list(&mut self, ag: u32, most: u32) -> Result<Option<(FreeExtent, FreeExtent)>> {
        let request = GroupRequest::new(Owner::SPACE, 0, (1, most), self.space().sb.ag_len(ag));
        let request = GroupRequest { reserve: true, avoids_windows: false, ..request };
        match self.find_by_size(ag, request, None)? {
            None if self.space().claims.empty_pools() => self.find_by_size(ag, request, None),
            found => Ok(found),
        }
    }

    /// Takes a block of the list.
    pub(super) fn take_listed(&mut self, ag: u32) -> Result<u32> {
        let places = self.space().sb.free_list_places();
        let agf = self.agf(ag)?;
        if agf.agf_flcount.get() == 0 {
            return Err(NameError::NoSpace.into());
        }
        let first = agf.agf_flfirst.get();
        let block = self.free_list_block(ag, first)?;
        self.modify_agf(ag, |agf| {
            agf.agf_flfirst = ((first + 1) % places).into();
            agf.agf_flcount = (agf.agf_flcount.get() - 1).into();
        })?;
        Ok(block)
    }

    /// Adds a block to the list.
    pub(super) fn put_listed(&mut self, ag: u32, block: u32) -> Result<()> {
        let places = self.space().sb.free_list_places();
        let agf = self.agf(ag)?;
        if agf.agf_flcount.get() >= places {
            return Err(self.space().corrupt("the free list is full", Whose::Group(ag)));
        }
        let last = (agf.agf_fllast.get() + 1) % places;
        self.set_free_list_block(ag, last, block)?;
        self.modify_agf(ag, |agf| {
            agf.agf_fllast = last.into();
            agf.agf_flcount = (agf.agf_flcount.get() + 1).into();
        })
    }
}
