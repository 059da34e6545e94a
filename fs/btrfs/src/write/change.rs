//! A writable mount: beginning a change, space for it, failures.
//!
//! Space for trees is checked before a change begins, so that a change does not fail half-way.
//!
//! | change | free blocks that it must leave |
//! |---|---|
//! | adds items | the kept blocks, those for the items of reserved data, `BLOCKS_A_CHANGE` |
//! | write-back | half of the kept blocks, `BLOCKS_A_CHANGE` |
//! | removal | a quarter of the kept blocks |
//! | commit | none |

use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::live::groups::Use;
use ivers_vfs::{Error, NameError, Result};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// The free blocks that are kept for removals and commits: at least this many, or a part of the metadata in
/// use, most of which a commit may have to copy. They are at most one in `KEPT_PART` of all metadata blocks.
const KEPT_BLOCKS: u64 = 256;
const KEPT_PART_OF_USED: u64 = 4;
const KEPT_PART: u64 = 8;
/// Storing delayed references may copy each block of [`REF_TREES`](crate::live::REF_TREES). So as many free
/// blocks as these trees have are kept, but at most one in `REFS_PART` of all metadata blocks.
const REFS_PART: u64 = 4;
/// The most bytes that are kept.
const KEPT_MAX: u64 = 256 << 20;
/// Blocks that one change makes at most, with its references.
const BLOCKS_A_CHANGE: u64 = 24;
/// The bytes of reserved data for whose items one byte of tree blocks is kept.
const ITEMS_PART: u64 = 16;
/// The most delayed references that are left when a change ends.
const REFS_MAX: usize = 192;
/// The blocks that storing one delayed reference may copy: of the extent tree and of the checksum tree.
const BLOCKS_A_REF: u64 = 3;
/// A transaction commits when it has more bytes of blocks than this in memory. A small budget lowers this.
const DIRTY_MAX: u64 = 32 << 20;

/// The blocks that storing so many delayed references may copy.
pub(super) fn refs_need(refs: usize) -> u64 {
    refs as u64 * BLOCKS_A_REF
}

/// What a change needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Space for new items.
    Items,
    /// Items for data whose space is reserved.
    WriteBack,
    /// It removes more than it adds.
    Removal,
}

impl Btrfs {
    /// Why the session has ended, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.session.failed.get().cloned()
    }

    /// Ends the session: drops the running transaction, and refuses all further writes.
    pub(crate) fn fail(&self, why: &Error) {
        if self.session.failed.set(why.to_string()).is_ok() {
            self.forest.volume.stop_mending();
            log::error!("{}: nothing is written from now on: {why}", self.forest.volume.place);
        }
    }

    /// Commits from time to time.
    pub(crate) fn start_timer(self: &Arc<Self>, interval: Duration) -> Result<()> {
        let work = |fs: &Self, _| {
            if let Err(error) = fs.commit() {
                log::warn!("{}: a commit failed: {error}", fs.forest.volume.place);
            }
            match fs.failure() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        Ok(self.session.timer.start("btrfs-commit", Arc::downgrade(self), interval, work)?)
    }

    /// Ends the thread that commits.
    pub(crate) fn stop_timer(&self) {
        self.session.timer.stop();
    }

    /// Runs something with the running transaction. An error other than of a name ends the session.
    pub(crate) fn with_tx<T>(&self, run: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut live = self.live.write();
        let Some(live) = live.as_mut().filter(|_| self.failure().is_none()) else {
            return Err(NameError::ReadOnly.into());
        };
        let result = run(&mut Tx { fs: self, live });
        if let Err(error) = &result
            && !matches!(error, Error::Name(_) | Error::FileData(_))
        {
            self.fail(error);
        }
        result
    }

    /// Makes a change. It returns an error of a name only if nothing is changed yet.
    pub(crate) fn change<T>(&self, need: Need, run: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        self.with_tx(|tx| {
            tx.make_room(need, 0)?;
            let done = run(tx)?;
            tx.end_change()?;
            Ok(done)
        })
    }

    /// Makes durable what was changed.
    pub(crate) fn commit(&self) -> Result<()> {
        if self.live.read().is_none() {
            return Ok(());
        }
        self.with_tx(|tx| tx.commit())
    }

    /// Commits, which frees pinned space. Returns whether that may have freed space: some was pinned, or
    /// delayed references waited.
    pub(crate) fn reclaim(&self) -> Result<bool> {
        self.with_tx(|tx| {
            let pinned = tx.live.groups.pinned_bytes(Use::Data) + tx.live.groups.pinned_bytes(Use::Metadata);
            let waits = pinned > 0 || tx.live.refs.len() > 0;
            tx.commit()?;
            Ok(waits)
        })
    }
}

impl Tx<'_> {
    /// Free blocks that are kept.
    fn kept_blocks(&self) -> u64 {
        let size = u64::from(self.sb().node_size);
        let (mut all, mut used) = (0, 0);
        for group in self.live.groups.of(Use::Metadata) {
            all += group.len;
            // Of a group with data as well, it is not known how much of it is metadata.
            used += if group.flags & Use::Data.bit() == 0 { group.used } else { 0 };
        }
        let grown = (used / KEPT_PART_OF_USED).min(KEPT_MAX) / size;
        let for_refs = self.live.ref_tree_blocks.min(KEPT_MAX / size).min(all / size / REFS_PART);
        KEPT_BLOCKS.max(grown).min(all / size / KEPT_PART).max(for_refs)
    }

    /// Blocks for the items of reserved data.
    fn blocks_of_reserved(&self) -> u64 {
        self.live.reserved / ITEMS_PART / u64::from(self.sb().node_size)
    }

    /// Whether there is space for the blocks of a change, and for `more` blocks.
    pub(super) fn has_room(&self, need: Need, more: u64) -> bool {
        let kept = self.kept_blocks();
        let least = match need {
            Need::Items => kept + self.blocks_of_reserved() + BLOCKS_A_CHANGE,
            Need::WriteBack => kept / 2 + BLOCKS_A_CHANGE,
            Need::Removal => kept / 4,
        };
        self.free_blocks() >= least + more + refs_need(self.live.refs.len())
    }

    /// Returns whether a removal must continue in another change, because storing the delayed references may
    /// take half of the free blocks. Copies of blocks that snapshots share add many references.
    pub(super) fn has_many_refs(&self) -> bool {
        refs_need(self.live.refs.len()) * 2 > self.free_blocks()
    }

    /// Returns whether few blocks are free. Then changes commit sooner, and [`Tx::unshare_paths`] copies
    /// shared blocks in changes of their own.
    pub(super) fn is_short(&self) -> bool {
        self.free_blocks() < 2 * self.kept_blocks()
    }

    /// Finds space for the blocks of a change, and for `more` blocks: in new chunks, and in what waits for a
    /// commit.
    pub(super) fn make_room(&mut self, need: Need, more: u64) -> Result<()> {
        if !self.has_room(need, more) {
            self.run_refs()?;
        }
        while !self.has_room(need, more) {
            if !self.add_chunk(Use::Metadata)? {
                break;
            }
        }
        if self.has_room(need, more) {
            return Ok(());
        }
        if self.live.groups.pinned_bytes(Use::Metadata) > 0 {
            self.commit()?;
        }
        if self.has_room(need, more) { Ok(()) } else { Err(NameError::NoSpace.into()) }
    }

    /// Bounds the delayed references and the blocks in memory: stores the references, and commits if needed.
    pub(super) fn end_change(&mut self) -> Result<()> {
        if self.live.refs.len() > REFS_MAX {
            self.run_refs()?;
        }
        // Copies of old blocks pin as much as they take: a commit makes it free again.
        let is_tight = self.is_short()
            && self.live.groups.pinned_bytes(Use::Metadata)
                > u64::from(self.sb().node_size) * BLOCKS_A_CHANGE.max(self.kept_blocks() / 4);
        if self.dirty_bytes() > self.fs.forest.dirty.most_bytes(DIRTY_MAX) || is_tight {
            self.commit()?;
        }
        Ok(())
    }

    /// Bytes of data that are neither used nor reserved.
    pub(crate) fn free_data(&self) -> u64 {
        let free = self.live.groups.free_bytes(Use::Data);
        let is_mixed = self.live.groups.of(Use::Data).any(|group| group.flags & Use::Metadata.bit() != 0);
        let blocks =
            if is_mixed { self.kept_blocks() + self.blocks_of_reserved() + BLOCKS_A_CHANGE } else { 0 };
        let kept = blocks * u64::from(self.sb().node_size);
        free.saturating_sub(self.live.reserved + kept)
    }
}
