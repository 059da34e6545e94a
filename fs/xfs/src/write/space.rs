//! What all transactions share.

use super::busy::Busy;
use super::claims::Claims;
use super::spare::Spare;
use super::windows::GroupWindow;
use crate::layout::superblock::{Counts, Superblock};
use crate::unit::Whose;
use ivers_block::{BlockNo, BufferCache};
use ivers_journal::{Costs, Journal, JournalError};
use ivers_sync::{RankedMutex, RankedMutexGuard, rank};
use ivers_vfs::{Error, ReservationWindows};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The rank of the lock of the groups: below it no transaction begins and nothing commits.
type GroupsRank = rank::Driver<5>;

/// Groups, and what is known of them in memory. A transaction holds the lock from its first use of a group
/// until its changes are published.
#[derive(Debug)]
pub(super) struct Groups {
    /// The sums over all groups, as published.
    pub counts: Counts,
    /// The group of the next new directory.
    pub next_directory: u32,
}

pub(super) type GroupsGuard<'s> = RankedMutexGuard<'s, Groups>;

/// The space of a filesystem that is open for writing.
pub(crate) struct Space {
    pub(crate) sb: Superblock,
    place: String,
    pub(crate) cache: Arc<BufferCache>,
    pub(crate) journal: Journal,
    /// Charges of what the journal logs.
    pub(super) costs: Costs,
    pub(super) spare: Spare,
    /// Blocks that were freed.
    pub(super) busy: Busy,
    pub(crate) windows: ReservationWindows<GroupWindow>,
    pub(crate) claims: Claims,
    /// Blocks that two files shared, and one has now.
    pub(super) unshared: Busy,
    groups: RankedMutex<GroupsRank, Groups>,
    /// The number of the next intent. Nothing but its uniqueness matters: all accesses are relaxed.
    next_intent: AtomicU64,
    /// Deferred works of one transaction; relaxed, since it is set before the space is used.
    works_a_roll: AtomicU32,
    /// Differs in each session.
    seed: u64,
    /// Called between two transactions of a roll, so that a test can let a commit come between them.
    #[cfg(test)]
    pub(super) between_rolls: std::sync::OnceLock<fn()>,
}

/// Deferred works of one transaction. More would hold the lock of the groups for long.
const WORKS_A_ROLL: u32 = 32;

/// Maps an error of the journal.
pub(crate) fn journal_error(error: JournalError) -> Error {
    match error {
        JournalError::Block(error) => error.into(),
        error => Error::io(error),
    }
}

impl Space {
    /// Opens the space of a filesystem of version 5 whose log is replayed. `counts` are those of the
    /// superblock after a clean unmount, or were added up. `costs` are those of the journal's encoding.
    pub(crate) fn new(sb: Superblock, place: String, journal: Journal, costs: Costs, counts: Counts) -> Self {
        Self {
            spare: Spare::new(sb.block_size as usize, journal.cache().budget().clone()),
            sb,
            place,
            cache: journal.cache().clone(),
            journal,
            costs,
            busy: Busy::default(),
            windows: ReservationWindows::default(),
            claims: Claims::default(),
            unshared: Busy::default(),
            groups: RankedMutex::new(Groups { counts, next_directory: 0 }),
            next_intent: AtomicU64::new(1),
            works_a_roll: AtomicU32::new(WORKS_A_ROLL),
            seed: 0,
            #[cfg(test)]
            between_rolls: std::sync::OnceLock::new(),
        }
    }

    /// Sets where the generations of new inodes start. It must differ from that of all earlier sessions.
    pub(crate) fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The first generation of an inode in a new chunk.
    pub(super) fn first_generation(&self, ino: u64) -> u32 {
        let parts = [self.seed.to_be_bytes(), ino.to_be_bytes()];
        parts.iter().fold(crc32c::crc32c(&self.sb.uuid), |sum, part| crc32c::crc32c_append(sum, part))
    }

    /// Makes transactions roll after so many works.
    pub(crate) fn set_works_a_roll(&self, works: u32) {
        self.works_a_roll.store(works, Ordering::Relaxed);
    }

    pub(super) fn works_a_roll(&self) -> u32 {
        self.works_a_roll.load(Ordering::Relaxed)
    }

    pub(super) fn next_intent(&self) -> u64 {
        self.next_intent.fetch_add(1, Ordering::Relaxed)
    }

    /// Blocks that were freed and are not free durably: a commit makes them available to files.
    pub(crate) fn busy_blocks(&self) -> u64 {
        self.busy.blocks()
    }

    /// Whether a crash could give some of these blocks of one group, which one file has, to another file too.
    pub(crate) fn may_be_shared_again(&self, start: BlockNo, len: u64) -> bool {
        let (ag, first) = self.sb.ag_of_device(start);
        let end = first.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        !self.unshared.in_range(ag, first, end).is_empty()
    }

    /// The sums over all groups.
    pub(crate) fn counts(&self) -> Counts {
        self.groups.lock().counts
    }

    /// Calls `f` while nobody publishes changes of groups. The caller has no transaction.
    pub(crate) fn while_still<R>(&self, f: impl FnOnce() -> R) -> R {
        let _groups = self.lock_groups();
        f()
    }

    pub(super) fn lock_groups(&self) -> GroupsGuard<'_> {
        self.groups.lock()
    }

    /// Damage of the log.
    pub(super) fn corrupt_log(&self, what: String) -> Error {
        Error::corrupt(what, format!("{}, log", self.place))
    }

    /// Damage of an inode or of a group.
    pub(crate) fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error {
        whose.corrupt(&self.place, what)
    }

    /// Damage of a block.
    pub(crate) fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error {
        whose.corrupt_block(&self.place, what, block)
    }
}
