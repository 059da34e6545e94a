//! The work of the thread that returns delegations.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::types::StateId;
use ivers_vfs::sync::{Condvar, RankedMutex, rank};

use crate::file_open::FileOpen;

#[derive(Default)]
pub(crate) struct Queue {
    /// Files whose delegation must be returned.
    pub(crate) files: VecDeque<Arc<FileOpen>>,
    /// Stateids of recalls that came before their delegation (D4).
    pub(crate) early: Vec<StateId>,
    /// The number of OPENs in flight that may grant a delegation.
    pub(crate) asking: usize,
    /// The number of delegations that this client has.
    pub(crate) held: usize,
    /// How many delegations may be kept, if others must be returned.
    pub(crate) keep: Option<usize>,
    /// The server revoked state: the delegations must be tested.
    pub(crate) test: bool,
    /// The server cannot send callbacks: the connection must be bound again.
    pub(crate) bind: bool,
    pub(crate) bound_at: Option<Instant>,
    /// The number of uses of delegations so far.
    pub(crate) uses: u64,
    pub(crate) stop: bool,
    pub(crate) ended: bool,
}

impl Queue {
    fn has_work(&self) -> bool {
        self.stop || self.test || self.bind || self.keep.is_some() || !self.files.is_empty()
    }
}

/// The work of the return thread.
#[derive(Default)]
pub struct Returns {
    pub(crate) queue: RankedMutex<rank::Leaf, Queue>,
    pub(crate) changed: Condvar,
}

/// Held while an OPEN is in flight that may grant a delegation.
pub(crate) struct Asking<'a>(&'a Returns);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.asking -= 1;
        if queue.asking == 0 {
            queue.early.clear();
        }
    }
}

impl Returns {
    pub(crate) fn change(&self, f: impl FnOnce(&mut Queue)) {
        f(&mut self.queue.lock());
        self.changed.notify_all();
    }

    pub(crate) fn ask(&self) -> Asking<'_> {
        self.queue.lock().asking += 1;
        Asking(self)
    }

    /// Queues a file whose delegation must be returned and is marked.
    pub(crate) fn push(&self, file: &Arc<FileOpen>) {
        self.change(|queue| queue.files.push_back(file.clone()));
    }

    pub(crate) fn lost_one(&self) {
        let mut queue = self.queue.lock();
        queue.held = queue.held.saturating_sub(1);
    }

    /// Counts a use of a delegation. Returns its number: a later use has a larger one.
    pub(crate) fn use_now(&self) -> u64 {
        let mut queue = self.queue.lock();
        queue.uses += 1;
        queue.uses
    }

    /// Makes the thread end after its current work.
    pub(crate) fn stop(&self) {
        self.change(|queue| queue.stop = true);
    }

    /// Waits until `is_over`, or until a time.
    fn wait_until(&self, until: Instant, is_over: impl Fn(&Queue) -> bool) {
        let mut queue = self.queue.lock();
        while !is_over(&queue) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue.wait_for(&self.changed, left);
        }
    }

    pub(crate) fn wait_for_end(&self, until: Instant) {
        self.wait_until(until, |queue| queue.ended);
    }

    /// Waits, unless the thread must end.
    pub(crate) fn rest(&self, time: Duration) {
        self.wait_until(Instant::now() + time, |queue| queue.stop);
    }

    /// Waits for work. `None`: the thread must end.
    pub(crate) fn next(&self) -> Option<Queue> {
        let mut queue = self.queue.lock();
        while !queue.has_work() {
            queue.wait(&self.changed);
        }
        if queue.stop {
            return None;
        }
        Some(Queue {
            files: std::mem::take(&mut queue.files),
            keep: queue.keep.take(),
            test: std::mem::take(&mut queue.test),
            bind: std::mem::take(&mut queue.bind),
            ..Queue::default()
        })
    }
}
