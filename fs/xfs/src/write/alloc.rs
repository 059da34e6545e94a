//! Allocating and freeing runs of blocks.

use super::extent::FreeExtent;
use super::free_space::{by_block, by_size};
use super::space::Space;
use super::tree::Tree;
use super::tx::Tx;
use super::windows::{GroupWindow, Growth};
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_vfs::{Ino, NameError, Result};

/// Extents on each side of the goal that are looked at before a search by size.
const NEAR: usize = 16;
/// Free blocks of a group that only B-trees get: each freeing must find blocks for them.
const RESERVE_BLOCKS: u32 = 16;
/// The part of a group that is kept at least for the reverse map, in percent.
const REVERSE_MAP_PERCENT: u32 = 1;

/// A group that has this part of a request is better than a group that is nearer and has less.
const GOOD_PART: u32 = 8;

/// A run of blocks in one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: FsBlock,
    pub(crate) len: u32,
}

/// What to allocate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocRequest {
    /// As near as possible to this block: in its group if that has space.
    pub(crate) goal: FsBlock,
    /// At least so many blocks, at least 1.
    pub(crate) min: u32,
    /// At most so many blocks.
    pub(crate) max: u32,
    /// The first block is a multiple of this in its group; 1: anywhere.
    pub(crate) alignment: u32,
    /// The owner of the first block, for the reverse map.
    pub(crate) owner: Owner,
}

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

/// The file whose window an allocation uses.
fn file(owner: Owner) -> Option<Ino> {
    owner.is_data().then_some(Ino(owner.owner))
}

impl Tx<'_> {
    /// Blocks of a free extent that a request does not get, by their start: busy and claimed ones, and windows
    /// of others.
    pub(super) fn obstacles(&self, ag: u32, extent: FreeExtent, request: GroupRequest) -> Vec<FreeExtent> {
        let overlaps = |other: &FreeExtent| other.start < extent.end() && other.end() > extent.start;
        let mut found = Vec::new();
        // The contents of files are written before the transaction is durable that freed their blocks.
        if request.owner.counts_blocks() || request.owner == Owner::COPY {
            found = self.space().busy.in_range(ag, extent.start, extent.end());
            let own = self.freed.iter().filter(|freed| freed.ag == ag).map(|freed| freed.extent);
            found.extend(own.filter(overlaps));
        }
        self.space().claims.add_overlapping(ag, extent, &mut found);
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

    /// Allocates a run. `None` if there is no space: then nothing has changed.
    ///
    /// Blocks that were freed since the last commit are not given to files. If there is no space but
    /// [`Space::busy_blocks`](super::space::Space::busy_blocks), drop the transaction, commit, and try again.
    pub(crate) fn allocate(&mut self, request: AllocRequest) -> Result<Option<Run>> {
        self.allocate_growing(request, Growth::default())
    }

    /// Allocates a run for a file that grows; see [`Tx::allocate`].
    ///
    /// 1. What continues the file: no allocation makes fewer extents.
    /// 2. All blocks, in the nearest group that has them, and after them the window of the file.
    /// 3. Many blocks; then, without the windows of any file and without pools, the same again; then any.
    pub(crate) fn allocate_growing(&mut self, request: AllocRequest, growth: Growth) -> Result<Option<Run>> {
        let AllocRequest { goal, min, max, alignment, owner } = request;
        let sb = &self.space().sb;
        let (goal_ag, goal) = sb.ag_of(goal);
        let (goal_ag, in_range) = if goal_ag < sb.ag_count { (goal_ag, true) } else { (0, false) };
        let (min, ahead) = (min.max(1), growth.ahead);
        let max = max.max(min);
        let in_group = |ag, min, at_goal| {
            let goal = if ag == goal_ag { goal } else { 0 };
            let range = (0, sb.ag_len(ag));
            GroupRequest {
                goal,
                min,
                max,
                ahead,
                alignment,
                range,
                owner,
                reserve: false,
                at_goal,
                avoids_windows: true,
            }
        };
        let run = |ag, found: FreeExtent| Run { start: sb.fs_block(ag, found.start), len: found.len };
        if growth.continues
            && in_range
            && let Some(found) = self.try_in(goal_ag, in_group(goal_ag, min, true))?
        {
            return Ok(Some(run(goal_ag, found)));
        }
        loop {
            let mut least = vec![max, (max / GOOD_PART).max(min)];
            if self.space().windows.blocks() == 0 {
                least.push(min);
            }
            least.dedup();
            for min in least {
                for ag in (goal_ag..sb.ag_count).chain(0..goal_ag) {
                    if let Some(found) = self.try_in(ag, in_group(ag, min, false))? {
                        return Ok(Some(run(ag, found)));
                    }
                }
            }
            let space = self.space();
            if !(space.windows.clear() | space.claims.empty_pools()) {
                return Ok(None);
            }
        }
    }

    /// Allocates in a group: from windows of files and from pools if there is no other space.
    pub(super) fn allocate_in(&mut self, ag: u32, request: GroupRequest) -> Result<Option<FreeExtent>> {
        match self.try_in(ag, GroupRequest { avoids_windows: true, ..request })? {
            None => {
                self.space().claims.empty_pools();
                self.try_in(ag, GroupRequest { avoids_windows: false, ..request })
            }
            found => Ok(found),
        }
    }

    fn try_in(&mut self, ag: u32, request: GroupRequest) -> Result<Option<FreeExtent>> {
        let usable = self.usable(ag, request.reserve)?;
        if usable < request.min || self.agf(ag)?.agf_longest.get() < request.min {
            return Ok(None);
        }
        let most = request.max.min(usable);
        let request = GroupRequest { max: most.saturating_add(request.ahead), ..request };
        // Whether there is space is known before anything changes; the list takes some of it.
        if self.find_free(ag, request)?.is_none() {
            return Ok(None);
        }
        self.fix_free_list(ag)?;
        let Some((extent, found)) = self.find_free(ag, request)? else { return Ok(None) };
        let part = FreeExtent { len: found.len.min(most), ..found };
        self.cut_free(ag, extent, part)?;
        self.map_in_group(ag, part, request.owner)?;
        self.keep_window(ag, request.owner, FreeExtent { start: part.end(), len: found.len - part.len });
        Ok(Some(part))
    }

    /// Free blocks for a request, which may use the reserve of the group or not.
    pub(super) fn usable(&mut self, ag: u32, with_reserve: bool) -> Result<u32> {
        let reserve = if with_reserve { 0 } else { self.reserved(ag)? };
        Ok(self.agf(ag)?.agf_freeblks.get().saturating_sub(reserve))
    }

    /// Free blocks that are kept for B-trees, and claimed ones.
    pub(super) fn reserved(&mut self, ag: u32) -> Result<u32> {
        let agf = self.agf(ag)?;
        let [mappings, counts] = self.space().tree_shares(ag);
        Ok(RESERVE_BLOCKS
            + self.space().claims.claimed_blocks(ag)
            + mappings.saturating_sub(agf.agf_rmap_blocks.get())
            + counts.saturating_sub(agf.agf_refcount_blocks.get()))
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

    /// Frees blocks of a group now. `owner` is that of the first block if the reverse map has one.
    pub(super) fn free_in_group(&mut self, ag: u32, extent: FreeExtent, owner: Option<Owner>) -> Result<()> {
        self.fix_free_list(ag)?;
        if let Some(owner) = owner {
            self.unmap_in_group(ag, extent, Some(owner))?;
        }
        self.add_free(ag, extent)?;
        self.mark_busy(ag, extent);
        Ok(())
    }

    /// A block for a B-tree of a group.
    pub(super) fn allocate_tree_block(&mut self, kind: TreeKind, ag: u32) -> Result<u32> {
        let Some(owner) = tree_owner(kind) else { return self.take_listed(ag) };
        let len = self.space().sb.ag_len(ag);
        let (goal, _) = self.root(kind, ag)?;
        let request = GroupRequest {
            goal,
            min: 1,
            max: 1,
            ahead: 0,
            alignment: 1,
            range: (0, len),
            owner,
            reserve: true,
            at_goal: false,
            avoids_windows: true,
        };
        let found = self.allocate_in(ag, request)?;
        found.map(|found| found.start).ok_or_else(|| NameError::NoSpace.into())
    }

    /// Takes a block back that a B-tree of a group no longer needs.
    pub(super) fn release_tree_block(&mut self, kind: TreeKind, ag: u32, block: u32) -> Result<()> {
        match tree_owner(kind) {
            None => self.put_listed(ag, block),
            owner => self.free_in_group(ag, FreeExtent { start: block, len: 1 }, owner),
        }
    }

    /// The group and the blocks in it of a run.
    pub(super) fn in_group(&self, run: Run) -> Result<(u32, FreeExtent)> {
        let space = self.space();
        let (ag, start) = space.sb.ag_of(run.start);
        if run.len == 0 || space.sb.run(run.start, run.len.into()).is_none() {
            let what = format!("{} blocks at {} are outside of the filesystem", run.len, run.start.0);
            return Err(space.corrupt(what, Whose::Group(ag)));
        }
        Ok((ag, FreeExtent { start, len: run.len }))
    }
}

impl Space {
    /// Blocks of a group that are kept for the reverse map and for the reference counts. The trees of a
    /// filesystem that shares blocks may grow whenever a file is written.
    fn tree_shares(&self, ag: u32) -> [u32; 2] {
        let len = self.sb.ag_len(ag);
        let shares_blocks = self.sb.ro_compat.contains(RoCompat::REFLINK);
        let worst = |kind| if shares_blocks { self.most_tree_blocks(kind, len) } else { 0 };
        let mappings = match self.sb.ro_compat.contains(RoCompat::RMAPBT) {
            true => worst(TreeKind::ReverseMap).max(len / 100 * REVERSE_MAP_PERCENT),
            false => 0,
        };
        [mappings, worst(TreeKind::Refcounts)]
    }

    /// Free blocks that files cannot get, at most.
    pub(crate) fn most_reserved(&self) -> u64 {
        let of = |ag| u64::from(RESERVE_BLOCKS + self.tree_shares(ag).iter().sum::<u32>());
        (0..self.sb.ag_count).map(of).sum()
    }
}

/// The owner of the blocks of a tree; `None` if they come from the free list.
fn tree_owner(kind: TreeKind) -> Option<Owner> {
    match kind {
        TreeKind::Inodes | TreeKind::FreeInodes => Some(Owner::INODE_TREE),
        TreeKind::Refcounts => Some(Owner::REFCOUNT),
        TreeKind::FreeByBlock | TreeKind::FreeBySize | TreeKind::ReverseMap | TreeKind::Extents => None,
    }
}
