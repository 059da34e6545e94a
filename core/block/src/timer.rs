//! A thread that does at intervals, or when it is asked to, what nobody waits for.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::{BlockError, ByteOffset, Result};

#[derive(Default)]
struct Wanted {
    stop: bool,
    wishes: u32,
}

/// The thread and the requests to it. It holds what it works on weakly, so that it ends with that.
#[derive(Default)]
pub struct Timer {
    wanted: Arc<(Mutex<Wanted>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Timer {
    /// Starts the thread: `work` is called at least once an interval with the wishes since the last call, until it breaks.
    pub fn start<T: Send + Sync + 'static>(
        &self,
        name: &str,
        of: Weak<T>,
        interval: Duration,
        work: impl Fn(&T, u32) -> ControlFlow<()> + Send + 'static,
    ) -> Result<()> {
        let wanted = self.wanted.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                loop {
                    let wishes = {
                        let mut wanted_now = wanted.0.lock();
                        if !wanted_now.stop && wanted_now.wishes == 0 {
                            wanted.1.wait_for(&mut wanted_now, interval);
                        }
                        if wanted_now.stop {
                            return;
                        }
                        std::mem::take(&mut wanted_now.wishes)
                    };
                    let Some(of) = of.upgrade() else { return };
                    if work(&of, wishes).is_break() {
                        return;
                    }
                }
            })
            .map_err(|e| BlockError::io("start a thread for", name, ByteOffset(0), 0, e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Wakes the thread up to do these, bits that its work knows.
    pub fn wish(&self, wishes: u32) {
        self.wanted.0.lock().wishes |= wishes;
        self.wanted.1.notify_one();
    }

    /// Ends the thread and waits for it, unless this is it.
    pub fn stop(&self) {
        self.wanted.0.lock().stop = true;
        self.wanted.1.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there has been reported already, and nobody has been told of anything that did not happen.
            let _ = thread.join();
        }
    }
}
