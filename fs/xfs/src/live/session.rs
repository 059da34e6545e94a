//! The state of a filesystem that is open for writing.

use crate::delayed::Reserved;
use crate::volume::Xfs;
use crate::write::space::Space;
use ivers_journal::Commits;
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{NameError, Result};
use std::sync::atomic::AtomicBool;

/// Free blocks that only removals may use, and in each group those that count as free and belong to free
/// lists and to the B-trees of free space.
const KEPT_BLOCKS: u64 = 64;
const KEPT_BLOCKS_A_GROUP: u64 = 64;

/// What a writable mount keeps.
pub(crate) struct Session {
    pub space: Space,
    pub commits: Commits,
    /// One change at a time.
    pub turn: RankedMutex<rank::BeforeHandle, ()>,
    pub reserved: Reserved,
    /// What each transaction may log.
    pub credits: u32,
    /// Free blocks that are kept for B-trees.
    most_reserved: u64,
    pub closed: AtomicBool,
}

impl Session {
    pub(crate) fn new(space: Space, commits: Commits) -> Self {
        let credits = commits.journal().max_credits() / 4;
        Self {
            most_reserved: space.most_reserved(),
            space,
            commits,
            turn: RankedMutex::default(),
            reserved: Reserved::default(),
            credits,
            closed: AtomicBool::new(false),
        }
    }

    /// Free blocks for users, including the reserved ones.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let kept = KEPT_BLOCKS + KEPT_BLOCKS_A_GROUP * u64::from(self.space.sb.ag_count);
        self.space.counts().free_blocks.saturating_sub(kept + self.most_reserved)
    }

    /// Checks that a change may use up to `blocks`.
    pub(crate) fn check_space(&self, blocks: u64) -> Result<()> {
        if self.reserved.blocks() + blocks > self.usable_blocks() {
            return Err(NameError::NoSpace.into());
        }
        Ok(())
    }
}

impl Xfs {
    /// The state for writing.
    pub(crate) fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(|| NameError::ReadOnly.into())
    }
}
