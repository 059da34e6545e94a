//! Transactions for the driver's modules: the journal's handles with the driver's errors.

use crate::fs::{Ext4Inode, private_of};
use ivers_block::{BlockNo, Buffer};
use ivers_journal::{Journal, JournalError};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, Inode, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn journal_error(error: JournalError) -> Error {
    match error {
        JournalError::Block(error) => error.into(),
        error @ (JournalError::Incompatible { .. }
        | JournalError::External { .. }
        | JournalError::FastCommitPending { .. }) => Error::Incompatible(error.to_string()),
        JournalError::Corrupt { what, log_block } => {
            Error::corrupt(what, format!("journal block {log_block}"))
        }
        error => Error::io(error),
    }
}

/// Numbers the changes, so that an fsync without new changes costs nothing.
///
/// A change gets its number when it is complete: data after the write returned, a transaction when its handle
/// ends. A commit that begins later makes it durable, because the commit waits for open handles and flushes.
/// So every change up to the number read *before* a commit is durable after it. All orderings are SeqCst:
/// this is not a hot path, and SeqCst needs no further argument.
#[derive(Debug, Default)]
struct Changes {
    newest: AtomicU64,
    durable: AtomicU64,
}

impl Changes {
    fn next(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::SeqCst) + 1
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

    fn note_tid(&self, tid: u64) {
        self.tid.fetch_max(tid, Ordering::SeqCst);
    }
}

/// The journal, or the lack of one.
pub(crate) struct Transactions {
    journal: Journal,
    changes: Arc<Changes>,
    /// Held by the fsync that commits. The others wait for it and find their changes durable.
    turn: RankedMutex<rank::BeforeHandle, ()>,
}

/// One handle. Dropping it ends it; its changes commit with the journal's next commit.
pub struct Handle {
    inner: ivers_journal::Handle,
    changes: Arc<Changes>,
    changed: bool,
    inodes: Vec<Arc<Ext4Inode>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.changed {
            let number = self.changes.next();
            for inode in &self.inodes {
                inode.last_change.note(number);
                inode.last_change.note_tid(self.inner.tid());
            }
        }
    }
}

impl Transactions {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { journal, changes: Arc::default(), turn: RankedMutex::default() }
    }

    pub(crate) fn begin(&self, credits: u32) -> Result<Handle> {
        let inner = self.journal.begin(credits.min(self.journal.max_credits())).map_err(journal_error)?;
        Ok(Handle { inner, changes: self.changes.clone(), changed: false, inodes: Vec::new() })
    }

    /// Whether a transaction takes effect as a whole: there is a journal.
    pub(crate) fn is_atomic(&self) -> bool {
        !self.journal.is_none()
    }

    /// The most blocks that one transaction may change.
    pub(crate) fn max_credits(&self) -> u32 {
        self.journal.max_credits()
    }

    /// Makes every change durable. This thread must hold no handle.
    pub(crate) fn commit(&self) -> Result<()> {
        let number = self.changes.newest.load(Ordering::SeqCst);
        self.journal.commit_all().map_err(journal_error)?;
        self.changes.durable.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Makes every change durable and writes it in place.
    pub(crate) fn commit_in_place(&self) -> Result<()> {
        self.commit()?;
        self.journal.checkpoint_all().map_err(journal_error)
    }

    /// Makes the changes of an inode durable, or all changes if `inode` is `None`. Writes and flushes nothing
    /// if they are durable already.
    pub(crate) fn commit_changes(&self, inode: Option<&LastChange>) -> Result<()> {
        let newest = inode.map_or(&self.changes.newest, |inode| &inode.number).load(Ordering::SeqCst);
        let is_durable = || newest <= self.changes.durable.load(Ordering::SeqCst) && !self.is_aborted();
        if is_durable() {
            return Ok(());
        }
        let _turn = self.turn.lock();
        if is_durable() { Ok(()) } else { self.commit() }
    }

    /// Makes the logged changes of an inode durable, and of the names in it, but not its data. Costs no flush
    /// beside the commit's, and nothing if another commit has covered the change.
    pub(crate) fn commit_logged(&self, inode: &LastChange) -> Result<()> {
        if self.journal.is_none() {
            return self.commit_changes(Some(inode));
        }
        self.journal.commit(inode.tid.load(Ordering::SeqCst)).map_err(journal_error)
    }

    /// Starts the record of an inode that was just loaded: any change so far may have been to that inode.
    pub(crate) fn loaded(&self) -> LastChange {
        let last = LastChange::default();
        last.note(self.changes.newest.load(Ordering::SeqCst));
        last.note_tid(self.journal.newest_tid());
        last
    }

    /// Records that data of an inode was written to the device, in part or whole.
    pub(crate) fn data_written(&self, inode: &LastChange) {
        inode.note(self.changes.next());
    }

    /// Commits, writes everything in place and empties the log.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if self.journal.is_none() { self.commit() } else { self.journal.shutdown().map_err(journal_error) }
    }

    /// Aborts the journal: nothing more becomes durable.
    pub(crate) fn abort(&self, cause: &Error) {
        // Immediately: a commit may be waiting only for the handle that has just ended.
        self.journal.abort(cause);
        log::error!("the journal is aborted: {cause}; repair the cause and mount again");
    }

    /// Whether the journal was aborted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.journal.is_aborted()
    }

    /// Why the journal was aborted, if it was.
    pub(crate) fn aborted(&self) -> Option<String> {
        self.journal.aborted().map(|cause| format!("the journal was aborted: {cause}"))
    }

    /// Blocks and bytes written to the log.
    pub(crate) fn log_written(&self) -> (u64, u64) {
        let stats = self.journal.stats();
        (stats.journal_blocks, stats.journal_bytes)
    }
}

impl Handle {
    /// Changes a block within this transaction.
    pub fn modify<R>(&mut self, buffer: &Arc<Buffer>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.changed = true;
        Ok(self.inner.modify(buffer, f))
    }

    /// Drops a freed metadata block: it is no longer written, and replay does not restore it.
    pub fn forget(&mut self, block: BlockNo) -> Result<()> {
        self.changed = true;
        self.inner.forget(block);
        Ok(())
    }

    /// Makes an fsync of an inode wait for this transaction.
    pub(crate) fn belongs_to(&mut self, inode: &Inode) {
        let private = private_of(inode);
        if !self.inodes.iter().any(|known| Arc::ptr_eq(known, private)) {
            self.inodes.push(private.clone());
        }
    }

    /// Runs `f` once the transaction is durable. It must not use the journal.
    pub fn on_commit(&mut self, f: impl FnOnce() + Send + 'static) {
        self.inner.on_commit(Box::new(f));
    }

    /// Gets `credits` more blocks, if necessary in a new transaction: call it only where the filesystem is
    /// consistent.
    pub fn ensure(&mut self, credits: u32) -> Result<()> {
        if self.inner.extend(credits).map_err(journal_error)? {
            return Ok(());
        }
        self.inner.restart(credits).map_err(journal_error)
    }
}
