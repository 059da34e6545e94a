//! What can go wrong when changes go home.

use ivers_block::BlockError;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, OrderedError>;

/// An error of the order of writes.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OrderedError {
    /// The device failed.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// An earlier error stopped all writing until the filesystem is opened anew.
    #[error("nothing more is written: {cause}")]
    Stopped {
        /// The error.
        cause: String,
    },
    /// It was closed in good order.
    #[error("the filesystem is closed")]
    Closed,
}
