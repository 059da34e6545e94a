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
    /// Recalls that came before their delegation (D4).
    early: Vec<Early>,
    /// The numbers of the OPENs in flight that may grant a delegation, in ascending order.
    asking: VecDeque<u64>,
    /// The number of the last OPEN that may grant a delegation.
    asked: u64,
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

/// A recall that came before its delegation.
struct Early {
    stateid: StateId,
    /// The number of the last OPEN that may grant the delegation.
    asked: u64,
}

/// The outcome of a recall of an unknown delegation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It is remembered: an OPEN in flight may grant the delegation.
    Remembered,
    /// No OPEN in flight can grant the delegation.
    Invalid,
    /// Too many are remembered. The server must send it again.
    TooMany,
}

/// The most remembered recalls of delegations that no reply has granted yet.
const EARLY_MAX: usize = 64;

impl Queue {
    /// Remembers a recall whose delegation may not have been granted yet.
    pub(crate) fn remember(&mut self, stateid: StateId) -> Unknown {
        if self.asking.is_empty() {
            Unknown::Invalid
        } else if self.early.iter().any(|early| early.stateid.other == stateid.other) {
            Unknown::Remembered
        } else if self.early.len() == EARLY_MAX {
            Unknown::TooMany
        } else {
            self.early.push(Early { stateid, asked: self.asked });
            Unknown::Remembered
        }
    }

    /// Forgets a remembered recall. Returns whether there was one.
    pub(crate) fn take_early(&mut self, stateid: StateId) -> bool {
        let before = self.early.len();
        self.early.retain(|early| early.stateid.other != stateid.other);
        self.early.len() < before
    }

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
pub(crate) struct Asking<'a>(&'a Returns, u64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.asking.retain(|asked| *asked != self.1);
        // All other remembered recalls: their delegations were granted, or never will be.
        match queue.asking.front().copied() {
            Some(oldest) => queue.early.retain(|early| early.asked >= oldest),
            None => queue.early.clear(),
        }
    }
}

impl Returns {
    pub(crate) fn change(&self, f: impl FnOnce(&mut Queue)) {
        f(&mut self.queue.lock());
        self.changed.notify_all();
    }

    pub(crate) fn ask(&self) -> Asking<'_> {
        let mut queue = self.queue.lock();
        queue.asked += 1;
        let asked = queue.asked;
        queue.asking.push_back(asked);
        Asking(self, asked)
    }

    /// Queues a file whose delegation must be returned and is marked.
    pub(crate) fn push(&self, file: &Arc<FileOpen>) {
        self.change(|queue| queue.files.push_back(file.clone()));
    }

    pub(crate) fn lost_one(&self) {
        let mut queue = self.queue.lock();
        queue.held = queue.held.saturating_sub(1);
    }

    /// Call it after a delegation was stored. Returns whether a recall came before the delegation.
    pub(crate) fn was_recalled(&self, stateid: StateId) -> bool {
        self.queue.lock().take_early(stateid)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stateid(nth: u8) -> StateId {
        StateId { seqid: 1, other: [nth; 12] }
    }

    /// [`D4`], [`D6`]
    #[test]
    fn a_recall_is_remembered_while_an_open_may_grant_its_delegation() {
        let returns = Returns::default();
        let remember = |nth| returns.queue.lock().remember(stateid(nth));
        assert_eq!(remember(1), Unknown::Invalid);
        let first = returns.ask();
        assert_eq!((remember(1), remember(1)), (Unknown::Remembered, Unknown::Remembered));
        assert!(returns.was_recalled(stateid(1)) && !returns.was_recalled(stateid(1)));
        assert_eq!(remember(2), Unknown::Remembered);
        let second = returns.ask();
        assert_eq!(remember(3), Unknown::Remembered);
        drop(first);
        assert!(!returns.was_recalled(stateid(2)), "the OPEN that could grant it has ended");
        (0..EARLY_MAX as u8 - 1).for_each(|nth| assert_eq!(remember(100 + nth), Unknown::Remembered));
        assert_eq!(remember(99), Unknown::TooMany);
        assert!(returns.was_recalled(stateid(3)));
        drop(second);
        assert_eq!(remember(99), Unknown::Invalid);
    }
}
