//! The counter's memory order, checked by running every execution that the memory model allows (for a few
//! threads and operations).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p iversion --test loom --release`
//!
//! The models check the crate's own code with loom's atomics. The twins are copies that lack one fence each.
//! The same models must reject them; otherwise the models would prove nothing about the fences.
#![cfg(loom)]

use iversion::{Counter, INCREMENT, QUERIED};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The calls of a counter that the models use.
trait Version: Send + Sync + 'static {
    fn maybe_inc(&self, force: bool) -> bool;
    fn query(&self) -> u64;
}

impl Version for Counter {
    fn maybe_inc(&self, force: bool) -> bool {
        self.maybe_inc(force)
    }
    fn query(&self) -> u64 {
        self.query()
    }
}

/// The counter with fences that can be left out: W in `maybe_inc`, Q1 after the exchange, Q2 after a load
/// that found the bit set.
struct Twin<const W: bool, const Q1: bool, const Q2: bool>(AtomicU64);

impl<const W: bool, const Q1: bool, const Q2: bool> Twin<W, Q1, Q2> {
    fn new_at_0() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl<const W: bool, const Q1: bool, const Q2: bool> Version for Twin<W, Q1, Q2> {
    fn maybe_inc(&self, force: bool) -> bool {
        if W {
            fence(SeqCst);
        }
        let mut raw = self.0.load(Relaxed);
        loop {
            if !force && raw & QUERIED == 0 {
                return false;
            }
            match self.0.compare_exchange(raw, (raw & !QUERIED) + INCREMENT, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => raw = now,
            }
        }
    }

    fn query(&self) -> u64 {
        let mut raw = self.0.load(Acquire);
        while raw & QUERIED == 0 {
            match self.0.compare_exchange(raw, raw | QUERIED, AcqRel, Acquire) {
                Ok(_) => {
                    if Q1 {
                        fence(SeqCst);
                    }
                    return raw / INCREMENT;
                }
                Err(now) => raw = now,
            }
        }
        if Q2 {
            fence(SeqCst);
        }
        raw / INCREMENT
    }
}

/// The counter under an inode's lock, as the VFS uses it: every change checks QUERIED under the lock, and
/// every observer sets it there. `LOCKED` is false to leave the lock out on the observer's side.
struct UnderLock<const LOCKED: bool> {
    version: Counter,
    lock: Mutex<()>,
}

impl<const LOCKED: bool> UnderLock<LOCKED> {
    fn new_at_0() -> Self {
        Self { version: Counter::new(0), lock: Mutex::new(()) }
    }
}

impl<const LOCKED: bool> Version for UnderLock<LOCKED> {
    fn maybe_inc(&self, force: bool) -> bool {
        let _held = self.lock.lock().unwrap();
        self.version.maybe_inc_under_lock(force)
    }

    fn query(&self) -> u64 {
        self.version.query_seen().unwrap_or_else(|| {
            let _held = LOCKED.then(|| self.lock.lock().unwrap());
            self.version.query_under_lock()
        })
    }
}

/// `UnderLock` with forced bumps outside the lock.
struct ForcedOutside(UnderLock<true>);

impl Version for ForcedOutside {
    fn maybe_inc(&self, force: bool) -> bool {
        if force { self.0.version.maybe_inc(true) } else { self.0.maybe_inc(false) }
    }

    fn query(&self) -> u64 {
        self.0.query()
    }
}

/// An inode: two pages of data, its counter, and for each writer whether its change has completed.
struct Inode<V> {
    version: V,
    pages: [AtomicU64; 2],
    completed: [AtomicBool; 2],
}

/// The value and the data that an observer read.
struct Observation {
    version: u64,
    pages: [u64; 2],
}

impl<V: Version> Inode<V> {
    fn new(version: V) -> Arc<Self> {
        Arc::new(Self {
            version,
            pages: [AtomicU64::new(0), AtomicU64::new(0)],
            completed: [AtomicBool::new(false), AtomicBool::new(false)],
        })
    }

    /// Changes the given pages as `writer`.
    fn change(&self, writer: usize, pages: &[usize], force: bool) -> bool {
        for &page in pages {
            self.pages[page].store(1, Relaxed);
        }
        let bumped = self.version.maybe_inc(force);
        self.completed[writer].store(true, Release);
        bumped
    }

    fn read(&self) -> [u64; 2] {
        [self.pages[0].load(Relaxed), self.pages[1].load(Relaxed)]
    }

    fn observe(&self) -> Observation {
        let version = self.version.query();
        Observation { version, pages: self.read() }
    }

    /// Observes, and checks promise "orders" against the changes in `written`: the pages of each writer.
    fn observe_and_check(&self, written: &[&[usize]]) -> Observation {
        let seen = self.observe();
        let completed: Vec<bool> =
            (0..written.len()).map(|writer| self.completed[writer].load(Acquire)).collect();
        let again = self.version.query();
        assert!(again >= seen.version, "the counter went back");
        if again == seen.version {
            for (pages, _) in written.iter().zip(completed).filter(|(_, completed)| *completed) {
                for &page in *pages {
                    assert_eq!(seen.pages[page], 1, "equal counters, but old data (orders)");
                }
            }
        }
        seen
    }

    /// Checks "differs", "grows" and "rests" for earlier observations. All changes must have completed.
    fn check_at_rest(&self, seen: &[Observation]) {
        let last = self.observe();
        assert_eq!(last.pages, [1, 1], "a completed change is not visible");
        for seen in seen {
            assert!(last.version >= seen.version, "the counter went back");
            if last.version == seen.version {
                assert_eq!(seen.pages, last.pages, "equal counters, but old data (differs)");
            }
        }
        assert_eq!(self.version.query(), last.version, "a query changed the counter");
    }
}

/// One change of both pages, with two observers.
fn one_writer_two_observers<V: Version>(new: fn() -> V) {
    loom::model(move || {
        let inode = Inode::new(new());
        let observer = {
            let inode = inode.clone();
            thread::spawn(move || inode.observe())
        };
        let writer = {
            let inode = inode.clone();
            thread::spawn(move || inode.change(0, &[0, 1], false))
        };
        let mine = inode.observe();
        let its = observer.join().unwrap();
        let _ = writer.join().unwrap();
        inode.check_at_rest(&[mine, its]);
    });
}

/// One change of both pages, while an observer queries twice.
fn one_writer_one_observer_twice<V: Version>(new: fn() -> V) {
    loom::model(move || {
        let inode = Inode::new(new());
        let writer = {
            let inode = inode.clone();
            thread::spawn(move || inode.change(0, &[0, 1], false))
        };
        let seen = inode.observe_and_check(&[&[0, 1]]);
        let _ = writer.join().unwrap();
        inode.check_at_rest(&[seen]);
    });
}

/// One change, two observers that each query twice. `preemptions` bounds how often an execution may switch
/// away from a runnable thread: all executions would take too long.
fn one_writer_two_observers_twice<V: Version>(new: fn() -> V, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let inode = Inode::new(new());
        let observer = {
            let inode = inode.clone();
            thread::spawn(move || inode.observe_and_check(&[&[0, 1]]))
        };
        let writer = {
            let inode = inode.clone();
            thread::spawn(move || inode.change(0, &[0, 1], false))
        };
        let mine = inode.observe_and_check(&[&[0, 1]]);
        let its = observer.join().unwrap();
        let _ = writer.join().unwrap();
        inode.check_at_rest(&[mine, its]);
    });
}

/// Two changes of a page each, forced or not, while an observer queries (twice, if `twice`).
fn two_writers<V: Version>(new: fn() -> V, force: [bool; 2], twice: bool, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let inode = Inode::new(new());
        let writers = [0, 1].map(|writer| {
            let inode = inode.clone();
            thread::spawn(move || inode.change(writer, &[writer], force[writer]))
        });
        let seen = if twice { inode.observe_and_check(&[&[0], &[1]]) } else { inode.observe() };
        for (writer, force) in writers.into_iter().zip(force) {
            let bumped = writer.join().unwrap();
            assert!(bumped || !force, "a forced bump did not happen");
        }
        inode.check_at_rest(&[seen]);
    });
}

#[test]
fn one_writer_two_observers_fresh() {
    one_writer_two_observers(|| Counter::new(0));
}

#[test]
fn one_writer_two_observers_queried() {
    one_writer_two_observers(|| Counter::new_queried(0));
}

#[test]
fn one_writer_one_observer_orders() {
    one_writer_one_observer_twice(|| Counter::new(0));
    one_writer_one_observer_twice(|| Counter::new_queried(0));
}

#[test]
fn one_writer_two_observers_order() {
    one_writer_two_observers_twice(|| Counter::new(0), Some(3));
}

#[test]
fn two_writers_unforced() {
    two_writers(|| Counter::new(0), [false, false], false, None);
}

#[test]
fn two_writers_one_forced() {
    two_writers(|| Counter::new(0), [true, false], false, None);
}

#[test]
fn two_writers_forced() {
    two_writers(|| Counter::new(0), [true, true], false, None);
}

#[test]
fn two_writers_unforced_order() {
    two_writers(|| Counter::new(0), [false, false], true, Some(3));
}

#[test]
fn two_writers_one_forced_order() {
    two_writers(|| Counter::new(0), [true, false], true, Some(3));
}

#[test]
fn under_a_lock_orders() {
    one_writer_one_observer_twice(UnderLock::<true>::new_at_0);
    one_writer_two_observers_twice(UnderLock::<true>::new_at_0, Some(3));
    let seen = || UnderLock::<true> { version: Counter::new_queried(0), lock: Mutex::new(()) };
    one_writer_two_observers_twice(seen, Some(3));
}

#[test]
fn under_a_lock_two_writers() {
    two_writers(UnderLock::<true>::new_at_0, [false, false], true, Some(3));
    two_writers(UnderLock::<true>::new_at_0, [true, false], true, Some(3));
    two_writers(|| ForcedOutside(UnderLock::new_at_0()), [true, false], true, Some(3));
}

#[test]
#[should_panic(expected = "equal counters, but old data")]
fn twin_that_queries_outside_the_lock_is_rejected() {
    one_writer_one_observer_twice(UnderLock::<false>::new_at_0);
}

/// Two forced bumps raise the value by two.
#[test]
fn forced_bumps_are_not_lost() {
    loom::model(|| {
        let counter = Arc::new(Counter::new(0));
        let other = {
            let counter = counter.clone();
            thread::spawn(move || counter.inc())
        };
        counter.inc();
        other.join().unwrap();
        assert_eq!(counter.peek(), 2);
    });
}

/// The twin with all fences passes, so the others are rejected for their missing fence.
#[test]
fn twin_with_all_fences_passes() {
    one_writer_two_observers(Twin::<true, true, true>::new_at_0);
}

#[test]
#[should_panic(expected = "equal counters, but old data")]
fn twin_without_fence_in_maybe_inc_is_rejected() {
    one_writer_one_observer_twice(Twin::<false, true, true>::new_at_0);
}

#[test]
#[should_panic(expected = "equal counters, but old data")]
fn twin_without_fence_after_the_exchange_is_rejected() {
    one_writer_one_observer_twice(Twin::<true, false, true>::new_at_0);
}

#[test]
#[should_panic(expected = "equal counters, but old data")]
fn twin_without_fence_when_already_queried_is_rejected() {
    one_writer_two_observers(Twin::<true, true, false>::new_at_0);
}
