//! Changes that are made and that the kernel may not show yet.
//!
//! The thread that requested a change updates the kernel's caches when it runs after our answer, which may be
//! much later. Until then a query returns the new change attribute, while a reader may still see the old
//! state.
//!
//! So a change is noted before it is made, with its thread and with the inode whose lock the kernel holds
//! from before the request until its caches are right. A noted change is over in one of three cases: its
//! thread has made another system call, its thread has ended, or the lock has been free since.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that are distinguished. When two threads share a slot, it is not known whether the first one
/// continued, so its lock is waited for.
const SLOTS: usize = 4096;

/// A request of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// 0 if unknown. Such a thread is never seen to continue.
    pub(crate) thread: u32,
    request: u32,
}

/// The last requests of threads. Each slot has a thread and the number of requests that came to the slot.
pub(crate) struct Callers(Box<[AtomicU64]>);

impl Callers {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    fn slot(&self, thread: u32) -> &AtomicU64 {
        &self.0[thread as usize % SLOTS]
    }

    /// Records that a thread has begun a system call, so its previous one is over. Not for requests that a
    /// system call may make after a change that it requested.
    pub(crate) fn heard(&self, thread: u32) -> Caller {
        let next = |slot: u64| u64::from(thread) << 32 | u64::from((slot as u32).wrapping_add(1));
        let before =
            self.slot(thread).fetch_update(Ordering::AcqRel, Ordering::Acquire, |slot| Some(next(slot)));
        let (Ok(before) | Err(before)) = before;
        Caller { thread, request: next(before) as u32 }
    }

    /// As [`Callers::heard`], for a request that a system call may make several times, concurrently, and
    /// after a change that it requested.
    pub(crate) fn in_one_call(&self, thread: u32) -> Caller {
        let slot = self.slot(thread).load(Ordering::Acquire);
        if slot >> 32 == u64::from(thread) {
            Caller { thread, request: slot as u32 }
        } else {
            self.heard(thread)
        }
    }

    fn has_gone_on(&self, since: Caller) -> bool {
        let slot = self.slot(since.thread).load(Ordering::Acquire);
        since.thread != 0 && slot >> 32 == u64::from(since.thread) && slot as u32 != since.request
    }
}

/// A change that the kernel may not show yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InflightChange {
    pub(crate) caller: Caller,
    /// The inode whose lock is held; `None`: no lock is held.
    pub(crate) lock: Option<u64>,
    /// A name of this inode may be removed: the kernel decrements its link count itself, starting from the
    /// last value that it was told.
    pub(crate) takes_link: bool,
}

/// A noted change, with its sequence number within its inode. The next change may have the same thread,
/// request and lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) change: InflightChange,
    nth: u64,
}

#[derive(Default)]
struct List {
    noted: Vec<Noted>,
    /// The number of changes noted so far.
    ever: u64,
}

/// The changes of one inode: at most one for each lock, and of those without a lock one for each thread.
#[derive(Default)]
pub(crate) struct InflightChanges {
    list: Mutex<List>,
    /// Held while a change attribute exists that counts a change that may not show, so that no other query
    /// returns it.
    alone: Mutex<()>,
}

impl InflightChanges {
    /// Notes a change. Call it before the change is made, so that no query can count the change earlier. The
    /// previous holder of this lock has finished, because it released the lock.
    pub(crate) fn note(&self, callers: &Callers, change: InflightChange) {
        let InflightChange { caller, lock, .. } = change;
        let ends = |before: &InflightChange| match lock {
            Some(_) => before.lock == lock,
            None => before.lock.is_none() && caller.thread != 0 && before.caller.thread == caller.thread,
        };
        let List { noted, ever } = &mut *self.list.lock();
        noted.retain(|before| !ends(&before.change) && !callers.has_gone_on(before.change.caller));
        *ever += 1;
        noted.push(Noted { change, nth: *ever });
    }

    /// Returns the value of `now`. The caller then checks whether every change that it counts shows.
    pub(crate) fn number<T>(&self, now: impl FnOnce() -> T) -> T {
        let _alone = self.alone.lock();
        now()
    }

    /// Returns a change attribute for a caller that may not see every change that it counts. A second bump
    /// makes sure that no other query ever returns it.
    pub(crate) fn number_ahead<T>(&self, mut new: impl FnMut() -> T) -> T {
        let _alone = self.alone.lock();
        let number = new();
        new();
        number
    }

    /// Returns the changes that are not known to be over.
    pub(crate) fn inflight(&self, callers: &Callers) -> Vec<Noted> {
        let noted = &mut self.list.lock().noted;
        noted.retain(|noted| !callers.has_gone_on(noted.change.caller));
        noted.clone()
    }

    /// Whether every change is known to be over.
    pub(crate) fn is_over(&self, callers: &Callers) -> bool {
        let noted = &mut self.list.lock().noted;
        noted.retain(|noted| !callers.has_gone_on(noted.change.caller));
        noted.is_empty()
    }

    /// Removes changes whose locks have been free since.
    pub(crate) fn are_over(&self, over: &[Noted]) {
        self.list.lock().noted.retain(|noted| !over.contains(noted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn change(caller: Caller, lock: Option<u64>) -> InflightChange {
        InflightChange { caller, lock, takes_link: false }
    }

    fn locks(callers: &Callers, changes: &InflightChanges) -> Vec<u64> {
        changes.inflight(callers).iter().map(|noted| noted.change.lock.unwrap_or(0)).collect()
    }

    #[test]
    fn a_change_ends_with_the_next_request_of_its_thread_or_a_free_lock() {
        let (callers, changes) = (Callers::new(), InflightChanges::default());
        let note = |thread: u32, lock: u64| changes.note(&callers, change(callers.heard(thread), Some(lock)));
        let locks = || locks(&callers, &changes);
        note(7, 70);
        note(8, 80);
        assert_eq!(locks(), [70, 80]);
        callers.heard(9);
        assert_eq!(locks(), [70, 80], "the request is another thread's");
        note(9, 70);
        assert_eq!(locks(), [80, 70], "the next who has the lock");
        note(8, 81);
        assert_eq!(locks(), [70, 81], "has gone on");
        let over = changes.inflight(&callers);
        note(9, 82);
        changes.are_over(&over);
        assert_eq!(locks(), [82]);
    }

    #[test]
    fn requests_of_one_system_call_do_not_end_each_other() {
        let (callers, changes) = (Callers::new(), InflightChanges::default());
        let calls = [callers.in_one_call(3), callers.in_one_call(3)];
        assert_eq!(calls[0], calls[1]);
        changes.note(&callers, change(calls[1], Some(30)));
        let before = changes.inflight(&callers);
        changes.note(&callers, change(calls[0], Some(30)));
        changes.are_over(&before);
        assert_eq!(locks(&callers, &changes), [30], "the second one is another one");
        callers.heard(3);
        assert!(locks(&callers, &changes).is_empty());
    }

    #[test]
    fn an_unknown_thread_is_never_seen_to_continue() {
        let (callers, changes) = (Callers::new(), InflightChanges::default());
        for _ in 0..2 {
            changes.note(&callers, change(callers.heard(0), None));
        }
        assert_eq!(changes.inflight(&callers).len(), 2, "they may be two");
        let same_slot = 5 + SLOTS as u32;
        changes.note(&callers, change(callers.heard(5), None));
        callers.heard(same_slot);
        assert_eq!(changes.inflight(&callers).len(), 3, "forgotten, not gone on");
        callers.heard(5);
        assert_eq!(changes.inflight(&callers).len(), 2);
    }

    #[test]
    fn a_change_attribute_given_too_early_is_never_returned_again() {
        let (changes, counter) = (InflightChanges::default(), Cell::new(7));
        let new = || {
            counter.set(counter.get() + 2);
            counter.get()
        };
        let early = changes.number_ahead(new);
        assert!(early > 7);
        assert!(changes.number(|| counter.get()) > early);
    }
}
