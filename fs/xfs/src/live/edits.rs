//! What changes do to the data of files: the layers below, with the names of this one.

use super::change::Change;
use crate::fork::Which;
use crate::inode::Dinode;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::write::alloc::{AllocRequest, Run};
use crate::write::claims::Claim;
use crate::write::fork::MapRequest;
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::Result;
use std::ops::Range;

impl Change<'_> {
    /// Gives unwritten blocks to the start of a hole: at most `most`. Returns how many. If the file ends
    /// there, it should get `ahead` blocks more later.
    pub(super) fn allocate(
        &mut self,
        core: &mut Dinode,
        at: FileBlock,
        most: u32,
        ahead: u32,
    ) -> Result<Option<u64>> {
        let request = MapRequest { at, min: 1, max: most, goal: None, unwritten: true, ahead };
        Ok(self.tx.map_extent(core, Which::Data, request)?.map(|extent| extent.len))
    }

    /// Gives one extent to a whole hole. The caller writes its data before the change becomes visible.
    /// Returns the first block; `None` if there is no such extent.
    pub(super) fn allocate_written(
        &mut self,
        core: &mut Dinode,
        at: FileBlock,
        len: u32,
        ahead: u32,
    ) -> Result<Option<BlockNo>> {
        let request = MapRequest { at, min: len, max: len, goal: None, unwritten: false, ahead };
        let is_new = !core.data.has_blocks();
        let Some(extent) = self.tx.map_extent(core, Which::Data, request)? else { return Ok(None) };
        let space = self.tx.space();
        let is_near = space.sb.agino(core.ino).is_some_and(|(ag, _)| ag == space.sb.ag_of(extent.start).0);
        if is_new && is_near {
            // The new files of this group that are written next are put there.
            self.tx.fill_pool(FsBlock(extent.start.0 + extent.len))?;
        }
        Ok(space.sb.run(extent.start, extent.len))
    }

    /// Maps claimed blocks, which have the data already, into a hole. Returns false if the file cannot have
    /// them.
    pub(super) fn map_claim(&mut self, core: &mut Dinode, at: FileBlock, claim: &Claim<'_>) -> Result<bool> {
        self.tx.map_claim(core, at, claim)
    }

    /// Marks blocks as written.
    pub(super) fn mark_written(&mut self, core: &mut Dinode, range: Range<FileBlock>) -> Result<()> {
        self.tx.convert_range(core, range.start, range.end, false)
    }

    /// Frees blocks of a file. Returns whether nothing is left there.
    pub(super) fn remove(&mut self, core: &mut Dinode, range: Range<FileBlock>) -> Result<bool> {
        let most = self.session().extents_a_change;
        self.tx.unmap_range(core, Which::Data, range.start, range.end, most)
    }

    /// Allocates blocks that will replace shared ones from a file block on: at most `most`.
    pub(super) fn allocate_copy(&mut self, core: &Dinode, at: FileBlock, most: u32) -> Result<Option<Run>> {
        let goal = self.tx.goal_of_copy(core, at)?;
        let request = AllocRequest { goal, min: 1, max: most, alignment: 1, owner: Owner::COPY };
        self.tx.allocate_copy(request)
    }

    /// Replaces what the file has from a block on by such blocks.
    pub(super) fn map_copy(&mut self, core: &mut Dinode, at: FileBlock, copy: Run) -> Result<()> {
        self.tx.map_copy(core, at, copy)
    }

    /// Frees such blocks, which no file got.
    pub(super) fn free_copy(&mut self, copy: Run) -> Result<()> {
        self.tx.free_copy(copy)
    }

    /// Gives a file some blocks of `source`, or of itself. Returns how many file blocks are done.
    pub(super) fn share(
        &mut self,
        source: Option<&Dinode>,
        core: &mut Dinode,
        places: (FileBlock, FileBlock),
        most: u64,
    ) -> Result<u64> {
        self.tx.share_extent(source, core, places, most)
    }
}
