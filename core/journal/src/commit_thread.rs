//! The thread that commits and checkpoints in the background.

use std::ops::ControlFlow;
use std::sync::Weak;
use std::time::Duration;

use crate::Result;
use crate::engine::Inner;

/// Requests a commit as soon as possible.
const COMMIT: u32 = 1;
/// Requests a checkpoint as soon as possible.
const CHECKPOINT: u32 = 2;

/// The commit thread. It holds a weak reference to the journal and ends when the journal is dropped.
#[derive(Default)]
pub(crate) struct CommitThread(ivers_block::Timer);

impl CommitThread {
    /// Starts the thread.
    pub fn start(&self, journal: Weak<Inner>, interval: Duration) -> Result<()> {
        let work = move |journal: &Inner, bits| work(journal, bits, interval);
        Ok(self.0.start("ivers-commit", journal, interval, work)?)
    }

    /// Requests a commit as soon as possible.
    pub fn request_commit(&self) {
        self.0.request(COMMIT);
    }

    /// Requests a checkpoint as soon as possible.
    pub fn request_checkpoint(&self) {
        self.0.request(CHECKPOINT);
    }

    /// Ends the thread and waits for it, unless the caller is that thread.
    pub fn stop(&self) {
        self.0.stop();
    }
}

fn work(journal: &Inner, bits: u32, interval: Duration) -> ControlFlow<()> {
    let is_due = {
        let state = journal.state.lock();
        if state.aborted.is_some() {
            return ControlFlow::Break(());
        }
        let since = state.unwritten_since.or(state.running.as_ref().map(|running| running.started));
        since.is_some_and(|since| since.elapsed() >= interval / 2)
    };
    // An error aborts the journal, and later calls report it.
    if bits & COMMIT != 0 || is_due {
        let _ = journal.commit_background();
    }
    if bits & CHECKPOINT != 0 {
        let _ = journal.checkpoint(journal.options.push_percent);
    }
    ControlFlow::Continue(())
}
