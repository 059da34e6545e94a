//! Running deletions: a call that lacks space waits for the blocks that they release.
//!
//! A program that removes a large file and writes another expects the space of the first. But deleting takes
//! time, and happens in the thread that drops the last reference: behind FUSE that is another one than the
//! writer's. Unmount waits for deletions too.
//!
//! A deletion takes no lock of an inode that has a name, and waits for no thread that lacks space. So one may
//! wait for it with locks of inodes held, but not with a journal handle open, since it may wait for that
//! handle to end.

use crate::error::{Error, NameError, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, RankedMutex, rank};
use std::collections::BTreeSet;

#[derive(Default)]
pub(crate) struct PendingDeletes {
    finished: AtomicU64,
    /// By the sequence numbers that they got at the start.
    running: RankedMutex<rank::Leaf, Running>,
    one_less: Condvar,
}

#[derive(Default)]
struct Running {
    next: u64,
    numbers: BTreeSet<u64>,
}

/// A running deletion; it ends when this is dropped.
pub(crate) struct Deletion<'a> {
    all: &'a PendingDeletes,
    number: u64,
}

impl PendingDeletes {
    pub(crate) fn begin(&self) -> Deletion<'_> {
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        running.numbers.insert(number);
        Deletion { all: self, number }
    }

    /// Calls `f`, and calls it once more after `NoSpace` when the deletions that were running have ended.
    /// When `f` lacks space it leaves nothing half done and no handle open.
    pub(crate) fn retry<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        let finished = self.finished.load(Ordering::Acquire);
        match f() {
            Err(Error::Name(NameError::NoSpace)) if self.wait(finished) => f(),
            other => other,
        }
    }

    /// Waits for the deletions that are running now.
    pub(crate) fn wait_for_all(&self) {
        self.wait(0);
    }

    /// The same. False: none was running, and none has ended since the count was `finished`.
    fn wait(&self, finished: u64) -> bool {
        let mut running = self.running.lock();
        if running.numbers.is_empty() {
            return self.finished.load(Ordering::Acquire) != finished;
        }
        let behind = running.next;
        while running.numbers.first().is_some_and(|first| *first < behind) {
            running.wait(&self.one_less);
        }
        true
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        let mut running = self.all.running.lock();
        running.numbers.remove(&self.number);
        self.all.finished.fetch_add(1, Ordering::Release);
        drop(running);
        self.all.one_less.notify_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const FULL: Error = Error::Name(NameError::NoSpace);

    #[test]
    fn without_pending_deletions_there_is_no_retry() {
        let deletions = PendingDeletes::default();
        drop(deletions.begin());
        let mut tries = 0;
        let done = deletions.retry(|| {
            tries += 1;
            Err::<(), _>(FULL)
        });
        assert!(matches!(done, Err(Error::Name(NameError::NoSpace))));
        assert_eq!(tries, 1);
    }

    #[test]
    fn the_retry_waits_only_for_deletions_already_running() {
        let deletions = PendingDeletes::default();
        let (first, second) = (deletions.begin(), deletions.begin());
        let (tried, was_tried) = mpsc::channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut room = false;
                deletions.retry(|| {
                    tried.send(()).unwrap();
                    if std::mem::replace(&mut room, true) { Ok(()) } else { Err(FULL) }
                })
            });
            was_tried.recv().unwrap();
            drop(second);
            assert!(was_tried.recv_timeout(Duration::from_millis(50)).is_err(), "one is still under way");
            let later = deletions.begin();
            drop(first);
            was_tried.recv().unwrap();
            assert!(waiting.join().unwrap().is_ok());
            drop(later);
        });
    }

    #[test]
    fn a_deletion_that_ends_during_the_first_try_causes_a_retry() {
        let deletions = PendingDeletes::default();
        let mut running = Some(deletions.begin());
        let done = deletions.retry(|| if running.take().is_some() { Err(FULL) } else { Ok(()) });
        assert!(done.is_ok());
    }
}
