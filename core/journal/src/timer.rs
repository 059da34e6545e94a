//! The thread that commits in the background.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ivers_block::BlockError;
use parking_lot::{Condvar, Mutex};

use crate::Result;
use crate::engine::Inner;

#[derive(Default)]
struct Wanted {
    stop: bool,
    commit: bool,
    checkpoint: bool,
}

/// The commit thread and the requests to it. The thread holds the journal weakly, so a journal that is dropped ends it.
#[derive(Default)]
pub(crate) struct Timer {
    wanted: Arc<(Mutex<Wanted>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Timer {
    /// Starts the thread.
    pub fn start(&self, journal: Weak<Inner>, interval: Duration) -> Result<()> {
        let wanted = self.wanted.clone();
        let thread = std::thread::Builder::new()
            .name("ivers-commit".into())
            .spawn(move || run(&wanted, &journal, interval))
            .map_err(|e| BlockError::io("start the commit thread for", "journal", 0, 0, e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    fn want(&self, f: impl FnOnce(&mut Wanted)) {
        f(&mut self.wanted.0.lock());
        self.wanted.1.notify_one();
    }

    /// Commits as soon as possible.
    pub fn want_commit(&self) {
        self.want(|w| w.commit = true);
    }

    /// Checkpoints as soon as possible.
    pub fn want_checkpoint(&self) {
        self.want(|w| w.checkpoint = true);
    }

    /// Ends the thread and waits for it, unless this is it.
    pub fn stop(&self) {
        self.want(|w| w.stop = true);
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there has been reported already, and the journal has not been told of a commit that did not happen.
            let _ = thread.join();
        }
    }
}

fn run(wanted: &(Mutex<Wanted>, Condvar), journal: &Weak<Inner>, interval: Duration) {
    loop {
        let (commit, checkpoint) = {
            let mut w = wanted.0.lock();
            if !w.stop && !w.commit && !w.checkpoint {
                wanted.1.wait_for(&mut w, interval);
            }
            if w.stop {
                return;
            }
            (std::mem::take(&mut w.commit), std::mem::take(&mut w.checkpoint))
        };
        let Some(journal) = journal.upgrade() else { return };
        let old = {
            let state = journal.state.lock();
            if state.aborted.is_some() {
                return;
            }
            state.running.as_ref().is_some_and(|r| r.started.elapsed() >= interval / 2)
        };
        // An error stops the journal, which is how everybody learns of it.
        if commit || old {
            let _ = journal.commit_background();
        }
        if checkpoint {
            let _ = journal.checkpoint();
        }
    }
}
