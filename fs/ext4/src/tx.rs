//! Transactions as the driver's modules see them: the journal's handles with the driver's errors.

use ivers_block::Buffer;
use ivers_journal::{Journal, JournalError};
use ivers_vfs::{Error, Result};
use parking_lot::Mutex;
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
        error => Error::Io(error.to_string()),
    }
}

/// Numbers changes, so that an fsync after which nothing changed costs nothing.
///
/// A change takes its number when it is complete: data once the write returned, a transaction when its handle ends. A commit that
/// begins afterwards makes it durable, since it waits for open handles and flushes; so every change up to the number read
/// *before* a commit is durable after it. SeqCst throughout: none of this is hot, and the orders need no argument.
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

/// What changed one inode last.
#[derive(Debug, Clone, Default)]
pub struct LastChange(Arc<Last>);

#[derive(Debug, Default)]
struct Last {
    /// The number of its newest change.
    number: AtomicU64,
    /// The newest transaction that changed it, or the names in it.
    tid: AtomicU64,
}

impl LastChange {
    fn note(&self, number: u64) {
        self.0.number.fetch_max(number, Ordering::SeqCst);
    }

    fn note_tid(&self, tid: u64) {
        self.0.tid.fetch_max(tid, Ordering::SeqCst);
    }
}

/// The journal, or its absence.
pub(crate) struct Tx {
    journal: Journal,
    changes: Arc<Changes>,
    /// Held by the one of those who fsync that commits. The others come after it, and find that it was done for them. Before the journal's locks.
    turn: Mutex<()>,
}

/// One transaction. Dropping it ends it; what was changed commits with the journal's next commit.
pub struct Handle {
    inner: ivers_journal::Handle,
    changes: Arc<Changes>,
    changed: bool,
    inodes: Vec<LastChange>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.changed {
            let number = self.changes.next();
            for inode in &self.inodes {
                inode.note(number);
                inode.note_tid(self.inner.tid());
            }
        }
    }
}

impl Tx {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { journal, changes: Arc::default(), turn: Mutex::new(()) }
    }

    pub(crate) fn begin(&self, credits: u32) -> Result<Handle> {
        let inner = self.journal.begin(credits.min(self.journal.max_credits())).map_err(journal_error)?;
        Ok(Handle { inner, changes: self.changes.clone(), changed: false, inodes: Vec::new() })
    }

    /// Make everything durable that was changed. No handle may be open in this thread.
    pub(crate) fn commit(&self) -> Result<()> {
        let number = self.changes.newest.load(Ordering::SeqCst);
        self.journal.commit_all().map_err(journal_error)?;
        self.changes.durable.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Make the changes of an inode durable, or all if `inode` is none: nothing is written or flushed if they are.
    pub(crate) fn commit_changes(&self, inode: Option<&LastChange>) -> Result<()> {
        let newest = inode.map_or(&self.changes.newest, |inode| &inode.0.number).load(Ordering::SeqCst);
        let is_durable = || newest <= self.changes.durable.load(Ordering::SeqCst) && !self.is_aborted();
        if is_durable() {
            return Ok(());
        }
        let _turn = self.turn.lock();
        if is_durable() { Ok(()) } else { self.commit() }
    }

    /// Make durable what transactions changed of an inode, or of the names in it, but not its data: that costs no flush beside those of the commit, and nothing if
    /// somebody else's commit has come behind the change.
    pub(crate) fn commit_logged(&self, inode: &LastChange) -> Result<()> {
        if self.journal.is_none() {
            return self.commit_changes(Some(inode));
        }
        self.journal.commit(inode.0.tid.load(Ordering::SeqCst)).map_err(journal_error)
    }

    /// An inode comes into memory: all that changed so far may have been its own.
    pub(crate) fn loaded(&self) -> LastChange {
        let last = LastChange::default();
        last.note(self.changes.newest.load(Ordering::SeqCst));
        last.note_tid(self.journal.newest_tid());
        last
    }

    /// Data of an inode was written to the device, or part of it was.
    pub(crate) fn data_written(&self, inode: &LastChange) {
        inode.note(self.changes.next());
    }

    /// Commit, write everything home and leave an empty log.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if self.journal.is_none() { self.commit() } else { self.journal.shutdown().map_err(journal_error) }
    }

    /// Stop: nothing more becomes durable.
    pub(crate) fn abort(&self, cause: &Error) {
        // At once: a commit may be waiting for nothing but the handle that has just ended.
        self.journal.abort(cause);
        log::error!("the filesystem stops: {cause}");
    }

    /// Whether the journal stopped.
    pub(crate) fn is_aborted(&self) -> bool {
        self.journal.is_aborted()
    }

    /// Why the journal stopped, if it did.
    pub(crate) fn aborted(&self) -> Option<String> {
        self.journal.aborted().map(|cause| format!("the journal stopped: {cause}"))
    }

    /// Blocks and bytes written to the log.
    pub(crate) fn figures(&self) -> (u64, u64) {
        let stats = self.journal.stats();
        (stats.journal_blocks, stats.journal_bytes)
    }
}

impl Handle {
    /// Change a block within this transaction.
    pub fn modify<R>(&mut self, buffer: &Arc<Buffer>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.changed = true;
        Ok(self.inner.modify(buffer, f))
    }

    /// A metadata block is given up: it is no longer written, and replay does not bring it back.
    pub fn forget(&mut self, block: u64) -> Result<()> {
        self.changed = true;
        self.inner.forget(block);
        Ok(())
    }

    /// What this transaction changes belongs to an inode too: an fsync of it waits for the transaction.
    pub(crate) fn belongs_to(&mut self, inode: &LastChange) {
        if !self.inodes.iter().any(|known| Arc::ptr_eq(&known.0, &inode.0)) {
            self.inodes.push(inode.clone());
        }
    }

    /// Run something once the transaction is durable. It must not use the journal.
    pub fn on_commit(&mut self, f: impl FnOnce() + Send + 'static) {
        self.inner.on_commit(Box::new(f));
    }

    /// Make room for `credits` more blocks, in a new transaction if need be: call it only where the filesystem is consistent.
    pub fn ensure(&mut self, credits: u32) -> Result<()> {
        if self.inner.extend(credits).map_err(journal_error)? {
            return Ok(());
        }
        self.inner.restart(credits).map_err(journal_error)
    }
}
