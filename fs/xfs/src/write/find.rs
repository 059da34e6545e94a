//! The search for free space in a group.

use super::extent::FreeExtent;
use super::free_space::{by_block, by_size};
use super::tree::Tree;
use super::tx::Tx;
use super::windows::GroupWindow;
use crate::layout::owner::Owner;
use ivers_vfs::{Ino, Result};

/// Extents on each side of the goal that are looked at before a search by size.
const NEAR: usize = 16;

/// A request within a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupRequest {
    pub goal: u32,
    pub min: u32,
    pub max: u32,
    /// Blocks after the run that its file should get later.
    pub ahead: u32,
    pub alignment: u32,
    /// Where the run may start and must end.
    pub range: (u32, u32),
    pub owner: Owner,
    /// The reserve of the group may be used.
    pub reserve: bool,
    /// The run starts at the goal.
    pub at_goal: bool,
    /// Windows of other files are left alone.
    pub avoids_windows: bool,
}

impl GroupRequest {
    /// A request for `len.0` to `len.1` blocks, anywhere in a group of `group_len` blocks. It leaves the
    /// reserve of the group and the windows of others alone.
    pub(super) fn new(owner: Owner, goal: u32, len: (u32, u32), group_len: u32) -> Self {
        Self {
            goal,
            min: len.0,
            max: len.1,
            ahead: 0,
            alignment: 1,
            range: (0, group_len),
            owner,
            reserve: false,
            at_goal: false,
            avoids_windows: true,
        }
    }

    /// A part of a free extent for the request: as long as possible, and near the goal.
    fn fit(&self, free: FreeExtent) -> Option<FreeExtent> {
        let align = u64::from(self.alignment.max(1));
        let (low, high) = (free.start.max(self.range.0), free.end().min(self.range.1));
        let at = |start: u64| {
            let start = u32::try_from(start).ok().filter(|start| *start >= low && *start < high)?;
            Some(FreeExtent { start, len: self.max.min(high - start) }).filter(|part| part.len >= self.min)
        };
        let up = |block: u32| u64::from(block).div_ceil(align) * align;
        let first = at(up(low));
        // From the goal on, or at the end of what is before the goal.
        let near = match self.goal {
            goal if goal <= low => None,
            goal if goal < high => at(up(goal)),
            _ => at(u64::from(high.saturating_sub(self.max)) / align * align),
        };
        near.filter(|near| first.is_none_or(|first| near.len >= first.len)).or(first)
    }
}

/// The better of two parts: the longer, or the nearer to the goal.
fn better(
    goal: u32,
    a: Option<(FreeExtent, FreeExtent)>,
    b: (FreeExtent, FreeExtent),
) -> (FreeExtent, FreeExtent) {
    let Some(a) = a else { return b };
    let rank = |part: FreeExtent| (u32::MAX - part.len, part.start.abs_diff(goal));
    if rank(b.1) < rank(a.1) { b } else { a }
}

/// The file that may use its window for this owner. `None`: the owner is no data of a file.
pub(super) fn window_owner(owner: Owner) -> Option<Ino> {
    owner.is_data().then_some(Ino(owner.owner))
}

impl Tx<'_> {
    /// Blocks of a free extent that a request does not get, by their start: busy ones, claimed ones, and
    /// windows of others.
    fn obstacles(&self, ag: u32, extent: FreeExtent, request: GroupRequest) -> Vec<FreeExtent> {
        let mut found = Vec::new();
        // Data may be written before the transaction that freed the blocks is durable.
        if request.owner.counts_blocks() || request.owner == Owner::COPY {
            found = self.space().busy.in_range(ag, extent.start, extent.end());
            let own = self.freed.iter().filter(|freed| freed.ag == ag).map(|freed| freed.extent);
            found.extend(own.filter(|freed| freed.overlaps(extent)));
        }
        self.space().claims.add_overlapping(ag, extent, &mut found);
        if request.avoids_windows {
            let in_extent = |window: &GroupWindow| {
                Some(window.extent).filter(|of_window| window.ag == ag && of_window.overlaps(extent))
            };
            found.extend(self.space().windows.of_others(window_owner(request.owner), in_extent));
        }
        found.sort_unstable_by_key(|run| run.start);
        found
    }

    /// The blocks from the goal on, if the first one is free. A part of a free extent, as by `find_free`.
    fn find_at_goal(&mut self, ag: u32, request: GroupRequest) -> Result<Option<(FreeExtent, FreeExtent)>> {
        let goal = request.goal;
        let extent = self.free_at_or_before(ag, goal)?.filter(|extent| extent.end() > goal);
        let Some(extent) = extent else { return Ok(None) };
        let rest = FreeExtent { start: goal, len: extent.end() - goal };
        let next = self.obstacles(ag, rest, request).first().map_or(rest.end(), |run| run.start.max(goal));
        let len = request.max.min(next - goal);
        Ok((len >= request.min).then_some((extent, FreeExtent { start: goal, len })))
    }

    /// A free extent and the part of it that the request gets.
    pub(super) fn find_free(
        &mut self,
        ag: u32,
        request: GroupRequest,
    ) -> Result<Option<(FreeExtent, FreeExtent)>> {
        if request.at_goal {
            return self.find_at_goal(ag, request);
        }
        let mut best = None;
        for forward in [false, true] {
            let tree = by_block(ag);
            let goal = [request.goal.into(), u64::MAX, 0];
            let Some(mut cursor) = self.beside(tree, goal, forward)? else { continue };
            for _ in 0..NEAR {
                let extent = self.free_extent(tree, &cursor)?;
                if let Some(part) = self.fit(ag, extent, request) {
                    best = Some(better(request.goal, best, (extent, part)));
                }
                if !self.step(tree, &mut cursor, forward)? {
                    break;
                }
            }
        }
        if best.is_some_and(|(_, part)| part.len == request.max) {
            return Ok(best);
        }
        self.find_by_size(ag, request, best)
    }

    /// Looks for an extent that has all blocks, the smallest first; then for the largest one.
    pub(super) fn find_by_size(
        &mut self,
        ag: u32,
        request: GroupRequest,
        mut best: Option<(FreeExtent, FreeExtent)>,
    ) -> Result<Option<(FreeExtent, FreeExtent)>> {
        let tree: Tree = by_size(ag);
        let first = self.at_least(tree, [request.max.into(), 0, 0])?;
        let most = self.space().sb.ag_len(ag);
        if let Some(mut cursor) = first {
            for nth in 0.. {
                if nth > most {
                    return Err(self.endless(tree));
                }
                let extent = self.free_extent(tree, &cursor)?;
                if let Some(part) = self.fit(ag, extent, request) {
                    best = Some(better(request.goal, best, (extent, part)));
                    if part.len == request.max {
                        return Ok(best);
                    }
                }
                if !self.next(tree, &mut cursor)? {
                    break;
                }
            }
        }
        let Some(mut cursor) = self.at_most(tree, [request.max.into(), 0, 0])? else { return Ok(best) };
        for _ in 0..most {
            let extent = self.free_extent(tree, &cursor)?;
            let least = best.map_or(request.min, |(_, part)| part.len + 1);
            if extent.len < least {
                return Ok(best);
            }
            if let Some(part) = self.fit(ag, extent, request) {
                best = Some(better(request.goal, best, (extent, part)));
            }
            if !self.previous(tree, &mut cursor)? {
                return Ok(best);
            }
        }
        Err(self.endless(tree))
    }

    /// The best part of an extent that the request gets.
    fn fit(&self, ag: u32, extent: FreeExtent, request: GroupRequest) -> Option<FreeExtent> {
        let mut obstacles = self.obstacles(ag, extent, request);
        let (mut at, mut best): (u32, Option<(FreeExtent, FreeExtent)>) = (extent.start, None);
        obstacles.push(FreeExtent { start: extent.end(), len: 0 });
        for run in obstacles {
            let gap = FreeExtent { start: at, len: run.start.saturating_sub(at) };
            if let Some(part) = request.fit(gap) {
                best = Some(better(request.goal, best, (gap, part)));
            }
            at = at.max(run.end());
        }
        best.map(|(_, part)| part)
    }
}
