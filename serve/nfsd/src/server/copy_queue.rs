//! The queue of copies that continue after their reply.

use std::collections::VecDeque;
use std::time::Duration;

use ivers_nfs4::types::{ClientId, StateId};
use parking_lot::{Condvar, Mutex};

use crate::compound::CopyJob;
use crate::state::Time;

/// Interval between checks of the thread whether the server still exists.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A copy with its progress.
pub(super) struct CopyProgress {
    pub client: ClientId,
    pub stateid: StateId,
    pub job: CopyJob,
    /// Bytes copied so far.
    pub done: u64,
    /// The time since when it has waited for another client.
    pub stalled: Option<Time>,
}

/// The queue of copies.
#[derive(Default)]
pub(super) struct Queue {
    /// The copies of each client, in the order of the clients' turns.
    pub turns: VecDeque<(ClientId, VecDeque<CopyProgress>)>,
    /// Copies that wait for another client, until the next tick.
    pub stalled: Vec<CopyProgress>,
    /// Whether the thread runs.
    pub thread: bool,
    /// Whether the thread copies a slice.
    running: bool,
    /// Whether the server stops.
    pub closed: bool,
}

impl Queue {
    pub fn push(&mut self, copy: CopyProgress) {
        match self.turns.iter_mut().find(|(client, _)| *client == copy.client) {
            Some((_, copies)) => copies.push_back(copy),
            None => self.turns.push_back((copy.client, VecDeque::from([copy]))),
        }
    }

    pub fn pop(&mut self) -> Option<CopyProgress> {
        let (client, mut copies) = self.turns.pop_front()?;
        let copy = copies.pop_front();
        if !copies.is_empty() {
            self.turns.push_back((client, copies));
        }
        copy
    }
}

/// The copies in progress.
#[derive(Default)]
pub(super) struct Copies {
    pub queue: Mutex<Queue>,
    pub changed: Condvar,
}

impl Copies {
    /// The next copy. `Ok(None)`: check whether the server still exists. `Err`: the server stops.
    pub fn next(&self) -> Result<Option<CopyProgress>, ()> {
        let mut queue = self.queue.lock();
        if queue.turns.is_empty() && !queue.closed {
            self.changed.wait_for(&mut queue, SERVER_CHECK_INTERVAL);
        }
        if queue.closed {
            return Err(());
        }
        let next = queue.pop();
        queue.running = next.is_some();
        Ok(next)
    }

    pub fn slice_done(&self) {
        self.queue.lock().running = false;
        self.changed.notify_all();
    }

    /// Stops all copies. Returns after the current slice.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        // Drop the files without a lock.
        let left = (std::mem::take(&mut queue.turns), std::mem::take(&mut queue.stalled));
        self.changed.notify_all();
        while queue.running {
            self.changed.wait(&mut queue);
        }
        drop(queue);
        drop(left);
    }
}
