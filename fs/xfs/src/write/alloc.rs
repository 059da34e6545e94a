//! Allocating and freeing runs of blocks.

use super::extent::FreeExtent;
use super::find::{GroupRequest, window_owner};
use super::space::Space;
use super::tx::Tx;
use super::windows::{GroupWindow, Growth};
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::raw::RawAgf;
use crate::layout::superblock::FsBlock;
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_vfs::{NameError, Result};

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

impl Tx<'_> {
    /// Replaces the window of the file that owns data. Other owners have none.
    pub(super) fn keep_window(&self, ag: u32, owner: Owner, extent: FreeExtent) {
        let (Some(ino), windows) = (window_owner(owner), &self.space().windows) else { return };
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
    /// 3. Many blocks, in the same way.
    /// 4. After all windows and pools were dropped: 2 and 3 again, then any blocks.
    pub(crate) fn allocate_growing(&mut self, request: AllocRequest, growth: Growth) -> Result<Option<Run>> {
        let AllocRequest { goal, min, max, alignment, owner } = request;
        let sb = &self.space().sb;
        let (goal_ag, goal) = sb.ag_of(goal);
        let (goal_ag, in_range) = if goal_ag < sb.ag_count { (goal_ag, true) } else { (0, false) };
        let (min, ahead) = (min.max(1), growth.ahead);
        let max = max.max(min);
        let in_group = |ag, min, at_goal| {
            let goal = if ag == goal_ag { goal } else { 0 };
            let request = GroupRequest::new(owner, goal, (min, max), sb.ag_len(ag));
            GroupRequest { ahead, alignment, at_goal, ..request }
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
        let agf = self.agf(ag)?;
        let reserve = if request.reserve { 0 } else { self.reserved(ag, &agf) };
        let usable = agf.agf_freeblks.get().saturating_sub(reserve);
        if usable < request.min || agf.agf_longest.get() < request.min {
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

    /// Returns how many free blocks of a group are neither kept for B-trees nor claimed. `None`: it has too
    /// few for these.
    pub(super) fn unreserved(&mut self, ag: u32) -> Result<Option<u32>> {
        let agf = self.agf(ag)?;
        Ok(agf.agf_freeblks.get().checked_sub(self.reserved(ag, &agf)))
    }

    /// Free blocks that are kept for B-trees, and claimed ones.
    fn reserved(&self, ag: u32, agf: &RawAgf) -> u32 {
        let [mappings, counts] = self.space().tree_shares(ag);
        RESERVE_BLOCKS
            + self.space().claims.claimed_blocks(ag)
            + mappings.saturating_sub(agf.agf_rmap_blocks.get())
            + counts.saturating_sub(agf.agf_refcount_blocks.get())
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
        let request = GroupRequest::new(owner, goal, (1, 1), len);
        let found = self.allocate_in(ag, GroupRequest { reserve: true, ..request })?;
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
