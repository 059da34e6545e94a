//! Changes that are made, and that the kernel may not show yet.
//!
//! The thread that asked for a change brings the kernel's caches up to date when it runs behind our answer, and that can be any time later.
//! Until then who asks for the number gets the new one, and may be shown what was before. So a change is noted before it is made, with its
//! thread and with the inode whose lock the kernel holds from before it asks us until its caches are right. What was noted is over when that thread
//! has come with another system call or has ended, or when the lock has been free since.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that are told apart. Of one that another has taken the place of it is not known that it has gone on, so its lock is waited for.
const SLOTS: usize = 4096;

/// Which request of which thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// 0: not known to us. Such a one is never seen to go on.
    pub(crate) thread: u32,
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

    /// A request that a system call may make several times, at once too, and behind a change that it has asked for.
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
pub(crate) struct Unfinished {
    pub(crate) caller: Caller,
    /// The number of the inode whose lock is held; `None`: no lock is.
    pub(crate) lock: Option<u64>,
    /// A name of this inode may go: the kernel counts its links down itself, from whatever it has been told by then.
    pub(crate) takes_link: bool,
}

/// One that is noted, and its number among those of its inode: the next one may be of the same thread in the same request, under the same lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) change: Unfinished,
    nth: u64,
}

#[derive(Default)]
struct List {
    noted: Vec<Noted>,
    /// How many there have been.
    ever: u64,
}

/// Those of one inode: at most one of each lock, and without a lock one of each thread.
#[derive(Default)]
pub(crate) struct Changes {
    list: Mutex<List>,
    /// Held while a number is there that counts what may not show, so that nobody else takes it for a good one.
    alone: Mutex<()>,
}

impl Changes {
    /// Before the change is made, and so before anybody can learn its number. Whoever had this lock before is done: he has let go of it.
    pub(crate) fn note(&self, callers: &Callers, change: Unfinished) {
        let Unfinished { caller, lock, .. } = change;
        let ends = |before: &Unfinished| match lock {
            Some(_) => before.lock == lock,
            None => before.lock.is_none() && caller.thread != 0 && before.caller.thread == caller.thread,
        };
        let List { noted, ever } = &mut *self.list.lock();
        noted.retain(|before| !ends(&before.change) && !callers.has_gone_on(before.change.caller));
        *ever += 1;
        noted.push(Noted { change, nth: *ever });
    }

    /// The number as it is. Whoever gives it looks afterwards whether all that it counts shows.
    pub(crate) fn number<T>(&self, now: impl FnOnce() -> T) -> T {
        let _alone = self.alone.lock();
        now()
    }

    /// A number for somebody who may not be shown all that it counts. It is left behind before he has it: nobody else ever gets it, nor he again.
    pub(crate) fn number_ahead<T>(&self, mut new: impl FnMut() -> T) -> T {
        let _alone = self.alone.lock();
        let number = new();
        new();
        number
    }

    /// Those that are not known to be over.
    pub(crate) fn unfinished(&self, callers: &Callers) -> Vec<Noted> {
        let noted = &mut self.list.lock().noted;
        noted.retain(|noted| !callers.has_gone_on(noted.change.caller));
        noted.clone()
    }

    /// Their locks have been free since.
    pub(crate) fn are_over(&self, over: &[Noted]) {
        self.list.lock().noted.retain(|noted| !over.contains(noted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn change(caller: Caller, lock: Option<u64>) -> Unfinished {
        Unfinished { caller, lock, takes_link: false }
    }

    fn locks(callers: &Callers, changes: &Changes) -> Vec<u64> {
        changes.unfinished(callers).iter().map(|noted| noted.change.lock.unwrap_or(0)).collect()
    }

    #[test]
    fn a_change_is_over_when_its_thread_comes_again_or_its_lock_was_free() {
        let (callers, changes) = (Callers::new(), Changes::default());
        let note = |thread: u32, lock: u64| changes.note(&callers, change(callers.heard(thread), Some(lock)));
        let locks = || locks(&callers, &changes);
        note(7, 70);
        note(8, 80);
        assert_eq!(locks(), [70, 80]);
        callers.heard(9);
        assert_eq!(locks(), [70, 80], "somebody else");
        note(9, 70);
        assert_eq!(locks(), [80, 70], "the next who has the lock");
        note(8, 81);
        assert_eq!(locks(), [70, 81], "has gone on");
        let over = changes.unfinished(&callers);
        note(9, 82);
        changes.are_over(&over);
        assert_eq!(locks(), [82]);
    }

    #[test]
    fn the_requests_of_one_call_do_not_end_one_another() {
        let (callers, changes) = (Callers::new(), Changes::default());
        let calls = [callers.in_one_call(3), callers.in_one_call(3)];
        assert_eq!(calls[0], calls[1]);
        changes.note(&callers, change(calls[1], Some(30)));
        let before = changes.unfinished(&callers);
        changes.note(&callers, change(calls[0], Some(30)));
        changes.are_over(&before);
        assert_eq!(locks(&callers, &changes), [30], "the second one is another one");
        callers.heard(3);
        assert!(locks(&callers, &changes).is_empty());
    }

    #[test]
    fn a_thread_that_is_not_known_has_not_gone_on() {
        let (callers, changes) = (Callers::new(), Changes::default());
        for _ in 0..2 {
            changes.note(&callers, change(callers.heard(0), None));
        }
        assert_eq!(changes.unfinished(&callers).len(), 2, "they may be two");
        let same_slot = 5 + SLOTS as u32;
        changes.note(&callers, change(callers.heard(5), None));
        callers.heard(same_slot);
        assert_eq!(changes.unfinished(&callers).len(), 3, "forgotten, not gone on");
        callers.heard(5);
        assert_eq!(changes.unfinished(&callers).len(), 2);
    }

    #[test]
    fn a_number_that_is_given_too_early_is_not_the_number_any_more() {
        let (changes, counter) = (Changes::default(), Cell::new(7));
        let new = || {
            counter.set(counter.get() + 2);
            counter.get()
        };
        let early = changes.number_ahead(new);
        assert!(early > 7);
        assert!(changes.number(|| counter.get()) > early);
    }
}
