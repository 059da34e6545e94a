//! Changes that are made, and that the kernel may not show yet.
//!
//! The thread that asked for a change brings the kernel's caches up to date when it runs behind our answer, and that can be any time later.
//! Until then who asks for the number gets the new one, and may be shown what was before. So a change is noted before it is made, with its
//! thread and with the inode whose lock the kernel holds from before it asks us until its caches are right. What was noted is over when that thread
//! has come with another system call, and when the lock has been free since.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that are told apart. Of one that another has taken the place of it is not known that it has gone on, so its lock is waited for.
const SLOTS: usize = 1024;

/// Which request of which thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// 0: not known to us. Such a one is never seen to go on.
    thread: u32,
    request: u32,
}

/// What the threads of programs were last heard of with: each slot a thread, and how many requests have come to the slot.
pub(crate) struct Callers(Box<[AtomicU64]>);

impl Callers {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    fn slot(&self, thread: u32) -> &AtomicU64 {
        &self.0[thread as usize % SLOTS]
    }

    /// A thread has begun a system call, so its last one is over. Not for requests that a system call may make behind a change that it
    /// has asked for.
    pub(crate) fn heard(&self, thread: u32) -> Caller {
        let next = |slot: u64| u64::from(thread) << 32 | u64::from((slot as u32).wrapping_add(1));
        let before =
            self.slot(thread).fetch_update(Ordering::AcqRel, Ordering::Acquire, |slot| Some(next(slot)));
        let (Ok(before) | Err(before)) = before;
        Caller { thread, request: next(before) as u32 }
    }

    fn has_gone_on(&self, since: Caller) -> bool {
        let slot = self.slot(since.thread).load(Ordering::Acquire);
        since.thread != 0 && slot >> 32 == u64::from(since.thread) && slot as u32 != since.request
    }
}

/// A change that the kernel may not show yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unfinished {
    caller: Caller,
    /// The number of the inode whose lock is held; `None`: no lock is.
    pub(crate) lock: Option<u64>,
}

/// Those of one inode: at most one of each thread.
#[derive(Default)]
pub(crate) struct Changes(Mutex<Vec<Unfinished>>);

impl Changes {
    /// Before the change is made, and so before anybody can learn its number.
    pub(crate) fn note(&self, callers: &Callers, caller: Caller, lock: Option<u64>) {
        let mut changes = self.0.lock();
        changes.retain(|change| change.caller.thread != caller.thread && !callers.has_gone_on(change.caller));
        changes.push(Unfinished { caller, lock });
    }

    /// Those that are not known to be over.
    pub(crate) fn unfinished(&self, callers: &Callers) -> Vec<Unfinished> {
        let mut changes = self.0.lock();
        changes.retain(|change| !callers.has_gone_on(change.caller));
        changes.clone()
    }

    /// Their locks have been free since.
    pub(crate) fn are_over(&self, over: &[Unfinished]) {
        self.0.lock().retain(|change| !over.contains(change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_over_when_its_thread_comes_again_or_its_lock_was_free() {
        let (callers, changes) = (Callers::new(), Changes::default());
        let note = |thread: u32, lock: u64| changes.note(&callers, callers.heard(thread), Some(lock));
        let locks =
            || changes.unfinished(&callers).iter().map(|change| change.lock.unwrap()).collect::<Vec<_>>();
        note(7, 70);
        note(8, 80);
        assert_eq!(locks(), [70, 80]);
        callers.heard(9);
        assert_eq!(locks(), [70, 80], "somebody else");
        note(7, 71);
        assert_eq!(locks(), [80, 71], "the later of one thread");
        callers.heard(8);
        assert_eq!(locks(), [71]);
        let over = changes.unfinished(&callers);
        note(8, 81);
        changes.are_over(&over);
        assert_eq!(locks(), [81]);
    }

    #[test]
    fn a_thread_that_is_not_known_has_not_gone_on() {
        let (callers, changes) = (Callers::new(), Changes::default());
        changes.note(&callers, callers.heard(0), None);
        callers.heard(0);
        assert_eq!(changes.unfinished(&callers).len(), 1);
        let same_slot = 5 + SLOTS as u32;
        changes.note(&callers, callers.heard(5), None);
        callers.heard(same_slot);
        assert_eq!(changes.unfinished(&callers).len(), 2, "forgotten, not gone on");
        callers.heard(5);
        assert_eq!(changes.unfinished(&callers).len(), 1);
    }
}
