//! Transactions as the driver's modules see them: the journal's handles with the driver's errors.

use ivers_block::Buffer;
use ivers_journal::{Journal, JournalError};
use ivers_vfs::{Error, Result};
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
        error => Error::Io(error.to_string()),
    }
}

/// The journal, or its absence.
pub(crate) struct Tx(pub(crate) Journal);

/// One transaction. Dropping it ends it; what was changed commits with the journal's next commit.
pub struct Handle(ivers_journal::Handle);

impl Tx {
    pub(crate) fn begin(&self, credits: u32) -> Result<Handle> {
        Ok(Handle(self.0.begin(credits.min(self.0.max_credits())).map_err(journal_error)?))
    }

    /// Make everything durable that was changed. No handle may be open in this thread.
    pub(crate) fn commit(&self) -> Result<()> {
        self.0.commit_all().map_err(journal_error)
    }

    /// Commit, write everything home and leave an empty log.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if self.0.is_none() { self.commit() } else { self.0.shutdown().map_err(journal_error) }
    }

    /// Stop: nothing more becomes durable.
    pub(crate) fn abort(&self, cause: &Error) {
        log::error!("the filesystem stops: {cause}");
        self.0.abort(cause);
    }

    /// Whether the journal stopped.
    pub(crate) fn is_aborted(&self) -> bool {
        self.0.is_aborted()
    }

    /// Why the journal stopped, if it did.
    pub(crate) fn aborted(&self) -> Option<String> {
        self.0.aborted().map(|cause| format!("the journal stopped: {cause}"))
    }

    /// Blocks and bytes written to the log.
    pub(crate) fn figures(&self) -> (u64, u64) {
        let stats = self.0.stats();
        (stats.journal_blocks, stats.journal_bytes)
    }
}

impl Handle {
    /// Change a block within this transaction.
    pub fn modify<R>(&mut self, buffer: &Arc<Buffer>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Ok(self.0.modify(buffer, f))
    }

    /// A metadata block is given up: it is no longer written, and replay does not bring it back.
    pub fn forget(&mut self, block: u64) -> Result<()> {
        self.0.forget(block);
        Ok(())
    }

    /// Run something once the transaction is durable. It must not use the journal.
    pub fn on_commit(&mut self, f: impl FnOnce() + Send + 'static) {
        self.0.on_commit(Box::new(f));
    }

    /// Make room for `credits` more blocks, in a new transaction if need be: call it only where the filesystem is consistent.
    pub fn ensure(&mut self, credits: u32) -> Result<()> {
        if self.0.extend(credits).map_err(journal_error)? {
            return Ok(());
        }
        self.0.restart(credits).map_err(journal_error)
    }
}
