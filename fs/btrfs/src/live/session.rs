//! The state of a mount that is not in the trees.

use ivers_block::Timer;
use ivers_vfs::sync::{RankedMutex, rank};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The state of a mount outside the trees: its failure, the commit timer, the last counter from the clock.
#[derive(Default)]
pub(crate) struct Session {
    /// Why nothing is written from now on.
    pub failed: OnceLock<String>,
    pub timer: Timer,
    /// Held by the thread that drops trees of deleted subvolumes: it does so in several changes.
    pub dropping: RankedMutex<rank::BeforeHandle, ()>,
    /// The last result of [`Session::new_value`].
    value: AtomicU64,
}

impl Session {
    /// A counter that no inode had in this mount, nor in earlier ones unless the clock was set back.
    pub(crate) fn new_value(&self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = now.as_micros() as u64;
        let next = |last: u64| now.max(last + 1);
        let last = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_else(|last| last))
    }
}
