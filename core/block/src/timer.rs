//! A thread for periodic and requested background work.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ivers_sync::thread::{Builder, JoinHandle, current};
use ivers_sync::{Condvar, Mutex};

use crate::{BlockError, ByteOffset, Result};

#[derive(Default)]
struct Requests {
    stop: bool,
    bits: u32,
}

/// A background thread. It holds a weak reference to the object that it works on, and ends when that is gone.
#[derive(Default)]
pub struct Timer {
    requests: Arc<(Mutex<Requests>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Timer {
    /// Starts the thread. It calls `work` at least once per interval, with the bits requested since the
    /// last call, until `work` breaks.
    pub fn start<T: Send + Sync + 'static>(
        &self,
        name: &str,
        object: Weak<T>,
        interval: Duration,
        work: impl Fn(&T, u32) -> ControlFlow<()> + Send + 'static,
    ) -> Result<()> {
        let requests = self.requests.clone();
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                loop {
                    let bits = {
                        let mut current = requests.0.lock();
                        if !current.stop && current.bits == 0 {
                            requests.1.wait_for(&mut current, interval);
                        }
                        if current.stop {
                            return;
                        }
                        std::mem::take(&mut current.bits)
                    };
                    let Some(object) = object.upgrade() else { return };
                    if work(&object, bits).is_break() {
                        return;
                    }
                }
            })
            .map_err(|e| BlockError::io("start a thread for", name, ByteOffset(0), 0, e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Requests work and wakes the thread. The caller defines the bits.
    pub fn request(&self, bits: u32) {
        self.requests.0.lock().bits |= bits;
        self.requests.1.notify_all();
    }

    /// Ends the thread and waits for it, unless the caller is that thread.
    pub fn stop(&self) {
        self.requests.0.lock().stop = true;
        self.requests.1.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != current().id()
        {
            // The thread reported its own panic, and no caller waits for its work.
            let _ = thread.join();
        }
    }
}
