//! Errors of the journal.

use ivers_block::BlockError;

/// Result of every operation of this crate.
pub type Result<T> = std::result::Result<T, JournalError>;

/// An error of the journal.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// An earlier error or a shutdown aborted the journal. It writes nothing until the filesystem is opened
    /// again.
    #[error("the journal was aborted, open the filesystem again: {cause}")]
    Aborted {
        /// The first error.
        cause: String,
    },
    /// A structure of the log is invalid.
    #[error("journal block {log_block}: {what}")]
    Corrupt {
        /// What is wrong.
        what: String,
        /// The block of the log.
        log_block: u64,
    },
    /// The log uses features that are not supported.
    #[error("the journal uses features that are not supported: {features}")]
    Incompatible {
        /// The features by name, or by bit if they have no name.
        features: String,
    },
    /// The log holds fast commits that were not replayed.
    #[error(
        "the journal holds fast commits of transaction {sequence}, which are not supported; \
         mount it with the kernel or run e2fsck -p first"
    )]
    FastCommitPending {
        /// The sequence number of that transaction, which has no full commit.
        sequence: u32,
    },
    /// The log belongs to another filesystem, to several, or lies on another device.
    #[error("an external or shared journal is not supported ({what})")]
    External {
        /// The field that shows it.
        what: String,
    },
    /// The log must be replayed before it can be written.
    #[error("the journal cannot be written: it needs recovery first")]
    NeedsRecovery,
    /// A handle or transaction needs more than the log allows.
    #[error("a transaction of {charge} credits does not fit the journal, which allows {limit}")]
    TooLarge {
        /// Credits needed: blocks or bytes, as the encoding counts.
        charge: u64,
        /// Credits allowed.
        limit: u64,
    },
    /// The log, or the lack of one, does not carry objects.
    #[error("the journal logs blocks only, no objects")]
    ObjectsUnsupported,
    /// The log holds intents that are not finished.
    #[error("{count} intents in the journal are not finished; the log keeps them for recovery")]
    UnfinishedIntents {
        /// How many.
        count: usize,
    },
}
