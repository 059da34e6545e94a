//! Errors of writing changes in order.

use ivers_block::BlockError;

/// Result of every operation of this crate.
pub type Result<T> = std::result::Result<T, OrderedError>;

/// An error of write ordering.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OrderedError {
    /// The device failed.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// An earlier error stopped all writing until the filesystem is opened again.
    #[error("writing stopped after an error, open the filesystem again: {cause}")]
    Stopped {
        /// The earlier error.
        cause: String,
    },
    /// The filesystem was closed cleanly.
    #[error("the filesystem is closed")]
    Closed,
}
