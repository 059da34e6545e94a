//! Transactions for the driver's modules: the journal's handles with the driver's errors.

use crate::fs::{Ext4Inode, private_of};
use ivers_block::{BlockNo, Buffer};
use ivers_journal::{Changes, Commits, Journal, JournalError, LastChange};
use ivers_vfs::{Error, Inode, Result};
use std::sync::Arc;

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

/// The journal, or the lack of one.
pub(crate) struct Transactions(Commits);

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
            let inodes = self.inodes.iter().map(|inode| &inode.last_change);
            self.changes.transaction_ends(self.inner.tid(), inodes);
        }
    }
}

impl Transactions {
    pub(crate) fn new(journal: Journal) -> Self {
        Self(Commits::new(journal))
    }

    fn journal(&self) -> &Journal {
        self.0.journal()
    }

    pub(crate) fn begin(&self, credits: u32) -> Result<Handle> {
        let inner = self.journal().begin(credits.min(self.max_credits())).map_err(journal_error)?;
        Ok(Handle { inner, changes: self.0.changes().clone(), changed: false, inodes: Vec::new() })
    }

    /// Whether a transaction takes effect as a whole: there is a journal.
    pub(crate) fn is_atomic(&self) -> bool {
        !self.journal().is_none()
    }

    /// The most blocks that one transaction may change.
    pub(crate) fn max_credits(&self) -> u32 {
        self.journal().max_credits()
    }

    /// Makes every change durable. This thread must hold no handle.
    pub(crate) fn commit(&self) -> Result<()> {
        self.0.commit().map_err(journal_error)
    }

    /// Makes every change durable and writes it in place.
    pub(crate) fn commit_in_place(&self) -> Result<()> {
        self.commit()?;
        self.journal().checkpoint_all().map_err(journal_error)
    }

    /// Makes the changes of an inode durable, or all changes if `inode` is `None`. Writes and flushes nothing
    /// if they are durable already.
    pub(crate) fn commit_changes(&self, inode: Option<&LastChange>) -> Result<()> {
        self.0.commit_changes(inode).map_err(journal_error)
    }

    /// Makes the logged changes of an inode durable, and of the names in it, but not its data.
    pub(crate) fn commit_logged(&self, inode: &LastChange) -> Result<()> {
        self.0.commit_logged(inode).map_err(journal_error)
    }

    /// Starts the record of an inode that was just loaded.
    pub(crate) fn loaded(&self) -> LastChange {
        self.0.loaded()
    }

    /// Records that data of an inode was written to the device, in part or whole.
    pub(crate) fn data_written(&self, inode: &LastChange) {
        self.0.changes().data_written(inode);
    }

    /// Commits, writes everything in place and empties the log.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if self.is_atomic() { self.journal().shutdown().map_err(journal_error) } else { self.commit() }
    }

    /// Aborts the journal: nothing more becomes durable.
    pub(crate) fn abort(&self, cause: &Error) {
        // Immediately: a commit may be waiting only for the handle that has just ended.
        self.journal().abort(cause);
        log::error!("the journal is aborted: {cause}; repair the cause and mount again");
    }

    /// Whether the journal was aborted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.journal().is_aborted()
    }

    /// Why the journal was aborted, if it was.
    pub(crate) fn aborted(&self) -> Option<String> {
        self.journal().aborted().map(|cause| format!("the journal was aborted: {cause}"))
    }

    /// Blocks and bytes written to the log.
    pub(crate) fn log_written(&self) -> (u64, u64) {
        let stats = self.journal().stats();
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
