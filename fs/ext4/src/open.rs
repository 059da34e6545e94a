//! Mounting.

use ivers_block::Budget;
use std::sync::Arc;
use std::time::Duration;

/// How to open an image.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Write nothing.
    pub read_only: bool,
    /// Believe the epoch record even if somebody else mounted the filesystem in between.
    pub trust_foreign: bool,
    /// Do not even replay the journal in memory; only with `read_only`.
    pub no_replay: bool,
    /// The memory bound of metadata blocks.
    pub budget: Arc<Budget>,
    /// Longest time that a transaction stays open.
    pub commit_interval: Duration,
    /// The image's name in errors.
    pub place: String,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            trust_foreign: false,
            no_replay: false,
            budget: Arc::new(Budget::new(256 << 20)),
            commit_interval: Duration::from_secs(5),
            place: "image".to_owned(),
        }
    }
}
