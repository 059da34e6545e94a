//! Which changes are durable, so that an fsync without new changes costs nothing.
//!
//! A change gets its number when it is complete: data after the write returned, a transaction when its last
//! handle ends. A commit that begins later makes it durable, because the commit waits for open handles and
//! flushes. So every change up to the number read *before* a commit is durable after it. All orderings are
//! SeqCst: this is not a hot path, and SeqCst needs no further argument.

use std::sync::Arc;

use ivers_sync::atomic::{AtomicU64, Ordering};
use ivers_sync::{RankedMutex, rank};

use crate::{Journal, Result, Tid};

/// Numbers the changes of a filesystem.
#[derive(Debug, Default)]
pub struct Changes {
    newest: AtomicU64,
    durable: AtomicU64,
}

impl Changes {
    fn next(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records that the calling thread's part of a transaction, which is about to end or has ended, changed
    /// these inodes.
    pub fn transaction_ends<'a>(&self, tid: Tid, inodes: impl IntoIterator<Item = &'a LastChange>) {
        let number = self.next();
        for inode in inodes {
            inode.note(number);
            inode.tid.fetch_max(tid, Ordering::SeqCst);
        }
    }

    /// Records that data of an inode was written to the device, in part or whole.
    pub fn data_written(&self, inode: &LastChange) {
        inode.note(self.next());
    }
}

/// The newest change of one inode.
#[derive(Debug, Default)]
pub struct LastChange {
    /// The number of its newest change.
    number: AtomicU64,
    /// The newest transaction that changed it, or the names in it.
    tid: AtomicU64,
}

impl LastChange {
    fn note(&self, number: u64) {
        self.number.fetch_max(number, Ordering::SeqCst);
    }
}

/// The commits of a journal, and the changes that they made durable.
pub struct Commits {
    journal: Journal,
    changes: Arc<Changes>,
    /// Held by the fsync that commits. The others wait for it and find their changes durable.
    turn: RankedMutex<rank::BeforeHandle, ()>,
}

impl Commits {
    /// Nothing has changed yet.
    pub fn new(journal: Journal) -> Self {
        Self { journal, changes: Arc::default(), turn: RankedMutex::default() }
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The numbers of the changes, for what outlives a borrow.
    pub fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// Starts the record of an inode that was just loaded: any change so far may have been to that inode.
    pub fn loaded(&self) -> LastChange {
        let newest = self.changes.newest.load(Ordering::SeqCst);
        LastChange { number: AtomicU64::new(newest), tid: AtomicU64::new(self.journal.newest_tid()) }
    }

    /// Makes every change durable. This thread must hold no handle.
    pub fn commit(&self) -> Result<()> {
        let number = self.changes.newest.load(Ordering::SeqCst);
        self.journal.commit_all()?;
        self.changes.durable.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Makes the changes of an inode durable, or all changes if `inode` is `None`. Writes and flushes nothing
    /// if they are durable already.
    pub fn commit_changes(&self, inode: Option<&LastChange>) -> Result<()> {
        let newest = inode.map_or(&self.changes.newest, |inode| &inode.number).load(Ordering::SeqCst);
        let is_durable =
            || newest <= self.changes.durable.load(Ordering::SeqCst) && !self.journal.is_aborted();
        if is_durable() {
            return Ok(());
        }
        let _turn = self.turn.lock();
        if is_durable() { Ok(()) } else { self.commit() }
    }

    /// Makes the logged changes of an inode durable, and of the names in it, but not its data. Costs no flush
    /// beside the commit's, and nothing if another commit has covered the change.
    pub fn commit_logged(&self, inode: &LastChange) -> Result<()> {
        if self.journal.is_none() {
            return self.commit_changes(Some(inode));
        }
        self.journal.commit(inode.tid.load(Ordering::SeqCst))
    }
}
