//! What changes do to the data of files: the layers below, with the names of this one.

use super::Change;
use crate::fork::Which;
use crate::inode::Dinode;
use crate::write::fork::MapRequest;
use ivers_block::FileBlock;
use ivers_vfs::Result;
use std::ops::Range;

impl Change<'_> {
    /// Gives unwritten blocks to the start of a hole: at most `most`. Returns how many.
    pub(super) fn allocate(&mut self, core: &mut Dinode, at: FileBlock, most: u32) -> Result<Option<u64>> {
        let request = MapRequest { at, min: 1, max: most, goal: None, unwritten: true };
        Ok(self.tx.map_extent(core, Which::Data, request)?.map(|extent| extent.len))
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
}
