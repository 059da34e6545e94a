//! What can go wrong with a journal.

use ivers_block::BlockError;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, JournalError>;

/// An error of the journal.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The journal stopped after an earlier error; nothing more is written until the filesystem is opened anew.
    #[error("the journal stopped: {cause}")]
    Aborted {
        /// The error that stopped it.
        cause: String,
    },
    /// A structure of the log makes no sense.
    #[error("journal block {log_block}: {what}")]
    Corrupt {
        /// What is wrong.
        what: String,
        /// Which block of the log.
        log_block: u64,
    },
    /// The log uses a feature that this implementation does not know.
    #[error("the journal needs features that are not supported: {features}")]
    Incompatible {
        /// Their names, or bits where they have none.
        features: String,
    },
    /// The log holds fast commits that were not replayed.
    #[error(
        "the journal holds fast commits of transaction {sequence}, which are not supported: let the kernel mount it or run e2fsck -p first"
    )]
    FastCommitPending {
        /// The transaction that they follow.
        sequence: u32,
    },
    /// The log lives on, or is shared with, another device or filesystem.
    #[error("an external or shared journal is not supported ({what})")]
    External {
        /// How that shows.
        what: String,
    },
    /// The log must be replayed before it can be written.
    #[error("the journal needs recovery first")]
    NeedsRecovery,
    /// More was asked of one transaction than fits the log.
    #[error("a transaction of {blocks} blocks does not fit the journal, which allows {limit}")]
    TooLarge {
        /// Blocks asked for.
        blocks: u64,
        /// Blocks allowed.
        limit: u64,
    },
}
