//! Reservation windows of growing files: free blocks that only their file gets while there are others.
//!
//! Nothing of a window is on the device, and its blocks count as free. It is a hint: a file that allocates
//! the blocks of another file's window does no harm.

use super::alloc::GroupRequest;
use super::free_space::FreeExtent;
use super::tx::Tx;
use crate::layout::owner::Owner;
use ivers_vfs::{Ino, Result, Window};

/// How a file grows by an allocation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    /// The goal is the block after the last one of the file.
    pub(crate) continues: bool,
    /// Free blocks after the run that other files should leave.
    pub(crate) ahead: u32,
}

/// The window of a file, in one group.
#[derive(Debug)]
pub(crate) struct GroupWindow {
    ag: u32,
    extent: FreeExtent,
}

impl Window for GroupWindow {
    fn blocks(&self) -> u64 {
        self.extent.len.into()
    }
}

/// The file whose window an allocation uses.
fn file(owner: Owner) -> Option<Ino> {
    owner.is_data().then_some(Ino(owner.owner))
}

impl Tx<'_> {
    /// Blocks of a free extent that a request does not get, by their start: busy ones, and windows of others.
    pub(super) fn obstacles(&self, ag: u32, extent: FreeExtent, request: GroupRequest) -> Vec<FreeExtent> {
        let overlaps = |other: &FreeExtent| other.start < extent.end() && other.end() > extent.start;
        let mut found = Vec::new();
        // The contents of files are written before the transaction is durable that freed their blocks.
        if request.owner.counts_blocks() || request.owner == Owner::COPY {
            found = self.space().busy.in_range(ag, extent.start, extent.end());
            let own = self.freed.iter().filter(|freed| freed.ag == ag).map(|freed| freed.extent);
            found.extend(own.filter(overlaps));
        }
        if request.avoids_windows {
            let in_extent = |window: &GroupWindow| {
                Some(window.extent).filter(|extent| window.ag == ag && overlaps(extent))
            };
            found.extend(self.space().windows.of_others(file(request.owner), in_extent));
        }
        found.sort_unstable_by_key(|run| run.start);
        found
    }

    /// The blocks from the goal on, if the first one is free. A part of a free extent, as by `find_free`.
    pub(super) fn find_at_goal(
        &mut self,
        ag: u32,
        request: GroupRequest,
    ) -> Result<Option<(FreeExtent, FreeExtent)>> {
        let goal = request.goal;
        let extent = self.free_at_or_before(ag, goal)?.filter(|extent| extent.end() > goal);
        let Some(extent) = extent else { return Ok(None) };
        let rest = FreeExtent { start: goal, len: extent.end() - goal };
        let next = self.obstacles(ag, rest, request).first().map_or(rest.end(), |run| run.start.max(goal));
        let len = request.max.min(next - goal);
        Ok((len >= request.min).then_some((extent, FreeExtent { start: goal, len })))
    }

    /// Replaces the window of the file that owns data. Other owners have none.
    pub(super) fn keep_window(&self, ag: u32, owner: Owner, extent: FreeExtent) {
        let (Some(ino), windows) = (file(owner), &self.space().windows) else { return };
        if extent.len == 0 {
            windows.remove(ino);
        } else {
            windows.keep(ino, GroupWindow { ag, extent });
        }
    }
}
