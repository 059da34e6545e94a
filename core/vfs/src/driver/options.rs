//! The options that drivers share.

use ivers_block::Budget;
use std::sync::Arc;
use std::time::Duration;

/// Options that every driver of a device takes when it opens a filesystem. Each format embeds them in its own
/// options, so that all have the same defaults.
#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// Write nothing.
    pub read_only: bool,
    /// The memory bound that the driver's buffers are charged to.
    pub budget: Arc<Budget>,
    /// The longest time until a change is durable without an fsync.
    pub commit_interval: Duration,
    /// The image's name in errors.
    pub place: String,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            budget: Arc::new(Budget::new(256 << 20)),
            commit_interval: Duration::from_secs(5),
            place: "image".to_owned(),
        }
    }
}
