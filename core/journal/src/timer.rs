//! What the thread does that commits in the background.

use std::ops::ControlFlow;
use std::sync::Weak;
use std::time::Duration;

use crate::Result;
use crate::engine::Inner;

/// Commit as soon as possible.
const COMMIT: u32 = 1;
/// Checkpoint as soon as possible.
const CHECKPOINT: u32 = 2;

/// The commit thread. It holds the journal weakly, so a journal that is dropped ends it.
#[derive(Default)]
pub(crate) struct Timer(ivers_block::Timer);

impl Timer {
    /// Starts the thread.
    pub fn start(&self, journal: Weak<Inner>, interval: Duration) -> Result<()> {
        let work = move |journal: &Inner, bits| work(journal, bits, interval);
        Ok(self.0.start("ivers-commit", journal, interval, work)?)
    }

    /// Commits as soon as possible.
    pub fn want_commit(&self) {
        self.0.request(COMMIT);
    }

    /// Checkpoints as soon as possible.
    pub fn want_checkpoint(&self) {
        self.0.request(CHECKPOINT);
    }

    /// Ends the thread and waits for it, unless this is it.
    pub fn stop(&self) {
        self.0.stop();
    }
}

fn work(journal: &Inner, bits: u32, interval: Duration) -> ControlFlow<()> {
    let old = {
        let state = journal.state.lock();
        if state.aborted.is_some() {
            return ControlFlow::Break(());
        }
        let since = state.unwritten.or(state.running.as_ref().map(|running| running.started));
        since.is_some_and(|since| since.elapsed() >= interval / 2)
    };
    // An error stops the journal, which is how everybody learns of it.
    if bits & COMMIT != 0 || old {
        let _ = journal.commit_background();
    }
    if bits & CHECKPOINT != 0 {
        let _ = journal.checkpoint();
    }
    ControlFlow::Continue(())
}
