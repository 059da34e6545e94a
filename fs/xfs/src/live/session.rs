//! The state of a filesystem that is open for writing.

use super::unfreed::Unfreed;
use crate::delayed::Reserved;
use crate::write::space::Space;
use ivers_block::FileBlock;
use ivers_journal::Commits;
use ivers_vfs::sync::atomic::AtomicBool;
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{NameError, Result, window_blocks};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Free blocks that only removals may use, and in each group those that count as free and belong to free
/// lists and to the B-trees of free space.
const KEPT_BLOCKS: u64 = 64;
const KEPT_BLOCKS_A_GROUP: u64 = 64;

/// Limits of what a growing file reserves ahead of its end: bytes, and a part of the free space. All windows
/// together then have no more than that space.
const MOST_WINDOW_BYTES: u64 = 256 << 20;
const WINDOW_PART: u64 = 64;

/// Extents of a file that one transaction changes, to bound its size.
const MOST_EXTENTS: u64 = 16;
/// Deferred operations for an extent that is freed, or marked as written.
const WORKS_AN_EXTENT: u64 = 2;

/// What a writable mount keeps.
pub(crate) struct Session {
    pub space: Space,
    pub commits: Commits,
    /// The LSN of the next record of the log.
    pub next_record: Arc<AtomicU64>,
    /// One change at a time.
    pub turn: RankedMutex<rank::BeforeHandle, ()>,
    pub reserved: Reserved,
    pub unfreed: Unfreed,
    /// What each transaction may log.
    pub credits: u32,
    /// Extents of a fork that one transaction changes: a small log has space for few intents.
    pub extents_a_change: usize,
    /// Free blocks that are kept for B-trees.
    most_reserved: u64,
    pub closed: AtomicBool,
}

impl Session {
    pub(crate) fn new(space: Space, commits: Commits, next_record: Arc<AtomicU64>) -> Self {
        let credits = (commits.journal().max_credits() / 4).min(space.most_credits());
        // A file that is deleted frees extents of both forks.
        let works = commits.journal().max_intents(space.credits_of_change()) / 2;
        Self {
            extents_a_change: (works / WORKS_AN_EXTENT).clamp(1, MOST_EXTENTS) as usize,
            most_reserved: space.most_reserved(),
            space,
            commits,
            next_record,
            turn: RankedMutex::default(),
            reserved: Reserved::default(),
            unfreed: Unfreed::default(),
            credits,
            closed: AtomicBool::new(false),
        }
    }

    /// Free blocks for users, including the reserved ones.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let kept = KEPT_BLOCKS + KEPT_BLOCKS_A_GROUP * u64::from(self.space.sb.ag_count);
        self.space.counts().free_blocks.saturating_sub(kept + self.most_reserved)
    }

    /// Blocks that a file of so many blocks reserves ahead of its end.
    pub(super) fn window_blocks(&self, file_blocks: FileBlock) -> u32 {
        let most = MOST_WINDOW_BYTES >> self.space.sb.block_bits;
        window_blocks(file_blocks.0, most.min(self.usable_blocks() / WINDOW_PART)) as u32
    }

    /// Checks that a change may use up to `blocks`.
    pub(crate) fn check_space(&self, blocks: u64) -> Result<()> {
        if self.reserved.blocks() + blocks > self.usable_blocks() {
            return Err(NameError::NoSpace.into());
        }
        Ok(())
    }
}
