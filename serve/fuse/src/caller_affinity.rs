//! Affinity to the caller: one serving thread runs on the processor of the program that it serves.
//!
//! # Why
//!
//! A program that works with many files makes one small request after the other and waits for each answer. If
//! the program and the serving thread run on two processors, each sleeps while the other works. Both are
//! woken from another processor for every request. On a virtual machine such a wake-up takes ten times as
//! long as the request. On one processor the two take turns, without wake-ups across processors.
//!
//! The kernel does not leave them on one processor. An answer wakes the program, and the kernel prefers an
//! idle processor to the one that is writing the answer. So the serving thread is moved to the processor of
//! the program, and answers in `SCHED_IDLE`: a processor that runs nothing else counts as idle, so the
//! program stays.
//!
//! Background threads of the server would make the program wait, so they are kept off that processor
//! meanwhile.
//!
//! If the next request is already there, the thread stays in that class, because changing the class twice
//! costs a quarter of such a request. The thread never sleeps in that class: the kernel would count the
//! program as running for long beside such a sleeper. If another program computes on that processor, the
//! thread is in that class only while it answers.
//!
//! # When, and for how long
//!
//! Affinity begins when one thread has made [`FIRST`] requests in a row without large ones, which are worth
//! two processors. The other serving threads then stop taking requests, or one of them would serve from
//! another processor.
//!
//! It ends with the first request of another thread, and after a whole [`TICK`] without an answer. Then the
//! request takes long and others need service, the program does something else, or another program computes
//! on that processor and keeps the serving thread from running, which `SCHED_IDLE` allows for a second. A
//! watcher in the normal class notices this. Short affinity makes the next one start later.
//!
//! Not every process may leave `SCHED_IDLE`. This is tried in advance, here and by [the affinity
//! helper](crate::affinity_helper); if it fails, affinity never begins.
//!
//! # Locks
//!
//! `gate` before the socket. Neither is taken in `SCHED_IDLE`, so the watcher never waits for a thread in
//! that class. Requests take locks of the [`Vfs`](ivers_vfs::Vfs) in that class: a thread that waits for one
//! waits two ticks at most beside a computing program, then the watcher brings the owner back.

use crate::affinity_helper::{self, NOBODY, THERE, WAKE_UP};
use crate::privileged_helper::{NO, YES, ask, own_number as me};
use ivers_thread_sched::{Class, can_leave_idle, set_own_class};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

/// Requests in a row that start affinity, at first.
const FIRST: u32 = 32;
/// Affinity that served fewer requests was not worth its start: the next one takes twice as many in a row.
const WORTH_IT: u64 = 128;
const MOST: u32 = 1 << 14;
const TICK: Duration = Duration::from_millis(5);

/// A thread in `SCHED_IDLE` that did not run for this long was held up, perhaps by a program that computes on
/// that processor. It then leaves the class after each of its next answers: [`CAREFUL`] at first, twice as
/// many each time. After [`NOT_HELD_UP`] answers without such a delay it starts with [`CAREFUL`] again.
const HELD_UP: Duration = Duration::from_millis(2);
const CAREFUL: u32 = 32;
const NOT_HELD_UP: u32 = 512;

/// The size from which a request is large, in bytes.
pub(crate) const LARGE: usize = 64 << 10;
/// The surplus of large requests over small ones that ends affinity.
const LARGE_ONES: u32 = 8;

/// The surplus of answers after which the next request was not there over those after which it was. Beyond it
/// the program may have moved to another processor.
const ALONE: u32 = 3;
/// Answers before the program is located again; twice as many each time that it did not move.
const PATIENCE: u64 = 8;
const PATIENCE_MOST: u64 = 1 << 12;

/// What to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Affinity goes on: take the next request at once.
    GoOn,
    /// Poll for the next request as usual.
    Usual,
}

pub(crate) struct CallerAffinity {
    affinity_helper: Mutex<OwnedFd>,
    /// The option is on, and threads can leave `SCHED_IDLE`.
    possible: AtomicBool,
    /// The thread that is about to enter `SCHED_IDLE`.
    giving_way: AtomicU32,
    /// The thread that entered `SCHED_IDLE` itself and has not left it itself.
    idle: AtomicU32,
    /// Whether affinity is on. Changes with `gate` held.
    on: AtomicBool,
    /// The serving thread that follows the caller.
    follower: AtomicU32,
    /// The thread that made the last request.
    caller: AtomicU32,
    in_a_row: AtomicU32,
    needed: AtomicU32,
    large: AtomicU32,
    /// Answers since affinity began.
    answers: AtomicU64,
    /// When that thread entered `SCHED_IDLE`, or last ran in it.
    seen_running: AtomicU64,
    epoch: Instant,
    /// Remaining answers after each of which the thread leaves `SCHED_IDLE`.
    careful: AtomicU32,
    /// How many they are the next time.
    more_careful: AtomicU32,
    /// Answers after which it stayed.
    stayed: AtomicU32,
    alone: AtomicU32,
    looked_at: AtomicU64,
    patience: AtomicU64,
    /// The number of affinities so far.
    gate: Mutex<u64>,
    over: Condvar,
}

impl CallerAffinity {
    pub(crate) fn new(affinity_helper: OwnedFd, wanted: bool) -> Arc<Self> {
        Arc::new(Self {
            affinity_helper: Mutex::new(affinity_helper),
            possible: AtomicBool::new(wanted && can_leave_idle()),
            giving_way: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            on: AtomicBool::new(false),
            follower: AtomicU32::new(0),
            caller: AtomicU32::new(0),
            in_a_row: AtomicU32::new(0),
            needed: AtomicU32::new(FIRST),
            large: AtomicU32::new(0),
            answers: AtomicU64::new(0),
            seen_running: AtomicU64::new(0),
            epoch: Instant::now(),
            careful: AtomicU32::new(0),
            more_careful: AtomicU32::new(CAREFUL),
            stayed: AtomicU32::new(0),
            alone: AtomicU32::new(0),
            looked_at: AtomicU64::new(0),
            patience: AtomicU64::new(PATIENCE),
            gate: Mutex::new(0),
            over: Condvar::new(),
        })
    }

    /// Records a request of [`LARGE`] bytes or more.
    pub(crate) fn large(&self) {
        let large = self.large.load(Relaxed);
        self.large.store((large + 2).min(2 * LARGE_ONES), Relaxed);
    }

    /// Answers `caller` with `send`; caller 0 is the kernel itself. Returns when the thread may take another
    /// request.
    pub(crate) fn answer(
        self: &Arc<Self>,
        caller: u32,
        device: Option<&OwnedFd>,
        send: impl FnOnce(),
    ) -> Then {
        if !self.possible.load(Relaxed) {
            self.come_back();
            send();
            return Then::Usual;
        }
        if self.on.load(Relaxed) && self.follower.load(Relaxed) == me() {
            self.give_way();
        } else {
            self.come_back();
        }
        send();
        self.answered(caller, device)
    }

    /// Enters `SCHED_IDLE`. The thread that ends affinity brings this one back. A thread that enters the
    /// class at the same moment shows in `giving_way`, or sees that affinity is over.
    fn give_way(&self) {
        if self.idle.load(Relaxed) == me() {
            return;
        }
        self.giving_way.store(me(), SeqCst);
        if self.on.load(SeqCst) && set_own_class(Class::Idle).is_ok() {
            self.idle.store(me(), Relaxed);
            self.seen_running.store(self.now(), Relaxed);
            if !self.on.load(SeqCst) {
                self.come_back();
            }
        }
        let _ = self.giving_way.compare_exchange(me(), 0, SeqCst, Relaxed);
    }

    fn come_back(&self) {
        if self.idle.load(Relaxed) != me() || self.idle.compare_exchange(me(), 0, Relaxed, Relaxed).is_err() {
            return;
        }
        if let Err(error) = set_own_class(Class::Normal) {
            log::warn!("a serving thread cannot leave SCHED_IDLE, caller affinity is off: {error}");
            self.possible.store(false, Relaxed);
        }
    }

    fn answered(self: &Arc<Self>, caller: u32, device: Option<&OwnedFd>) -> Then {
        // Races between threads cost at most one start or end too many.
        let large = self.large.load(Relaxed);
        if large > 0 {
            self.large.store(large - 1, Relaxed);
        }
        let same = caller == 0 || self.caller.swap(caller, Relaxed) == caller;
        let fits = same && large < LARGE_ONES;
        // Read once, since affinity may end concurrently.
        let (on, is_mine) = (self.on.load(Relaxed), self.follower.load(Relaxed) == me());
        if !(fits && on && is_mine) {
            // The code below takes the gate, or starts a thread.
            self.come_back();
        }
        if on {
            if !fits {
                self.end(&mut self.gate.lock());
                return Then::Usual;
            }
            // Requests of the kernel itself, or of a program in another PID namespace, do not count.
            if caller != 0 {
                self.answers.fetch_add(1, Relaxed);
            }
            if is_mine {
                self.keep_up(caller, device);
            } else {
                self.stand_aside();
            }
            return Then::GoOn;
        }
        if !fits || large > 0 {
            self.in_a_row.store(0, Relaxed);
        } else if caller != 0 && self.in_a_row.fetch_add(1, Relaxed) >= self.needed.load(Relaxed) {
            return self.begin(caller);
        }
        Then::Usual
    }

    fn begin(self: &Arc<Self>, caller: u32) -> Then {
        let mut gate = self.gate.lock();
        self.in_a_row.store(0, Relaxed);
        if self.on.load(Relaxed) {
            return Then::Usual;
        }
        *gate += 1;
        let (watched, this) = (self.clone(), *gate);
        // Started before this thread is moved: a new thread inherits affinity and class.
        let watcher =
            std::thread::Builder::new().name("ivers-affinity".into()).spawn(move || watched.watch(this));
        if watcher.is_err() || self.ask(me(), caller).is_none_or(|answer| answer == NO) {
            self.discourage(16);
            return Then::Usual;
        }
        log::debug!("caller affinity: follows thread {caller}");
        self.follower.store(me(), Relaxed);
        for count in [&self.answers, &self.looked_at] {
            count.store(0, Relaxed);
        }
        self.alone.store(0, Relaxed);
        self.patience.store(PATIENCE, Relaxed);
        self.on.store(true, Relaxed);
        drop(gate);
        Then::GoOn
    }

    /// Ends affinity number `this` when it makes no progress. Waits until `begin` releases the gate.
    fn watch(&self, this: u64) {
        let mut gate = self.gate.lock();
        let mut seen = 0;
        while self.on.load(Relaxed) && *gate == this {
            if !self.over.wait_for(&mut gate, TICK).timed_out() {
                continue;
            }
            let answers = self.answers.load(Relaxed);
            if answers == seen && *gate == this {
                self.end(&mut gate);
            }
            seen = answers;
        }
        drop(gate);
        // The serving thread may have seen that affinity was on, and enter `SCHED_IDLE` only now.
        loop {
            let late = self.giving_way.load(SeqCst);
            if late == 0 || self.on.load(SeqCst) || !self.possible.load(Relaxed) {
                return;
            }
            self.ask(late, WAKE_UP);
            std::thread::sleep(TICK);
        }
    }

    fn end(&self, _gate: &mut MutexGuard<'_, u64>) {
        if !self.on.swap(false, SeqCst) {
            return;
        }
        if self.idle.load(Relaxed) != 0 {
            self.held_up();
        }
        let answers = self.answers.load(Relaxed);
        log::debug!("caller affinity: over after {answers} requests");
        self.ask(self.follower.load(Relaxed), NOBODY);
        self.in_a_row.store(0, Relaxed);
        if answers < WORTH_IT {
            self.discourage(2);
        } else {
            self.needed.store(FIRST, Relaxed);
        }
        self.over.notify_all();
    }

    fn discourage(&self, factor: u32) {
        let needed = self.needed.load(Relaxed);
        self.needed.store(needed.saturating_mul(factor).min(MOST), Relaxed);
    }

    /// The program may have moved to another processor: then its next request is not there yet.
    fn keep_up(&self, caller: u32, device: Option<&OwnedFd>) {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_next_there = device.is_none_or(|device| {
            !matches!(poll(&mut [PollFd::new(device, PollFlags::IN)], Some(&NOW)), Ok(0))
        });
        let alone = self.alone.load(Relaxed);
        if !is_next_there || !self.may_stay() {
            self.come_back();
        }
        if is_next_there {
            return self.alone.store(alone.saturating_sub(1), Relaxed);
        }
        self.alone.store(alone + 1, Relaxed);
        let answers = self.answers.load(Relaxed);
        if alone < ALONE
            || answers < self.looked_at.load(Relaxed).saturating_add(self.patience.load(Relaxed))
            || caller == 0
        {
            return;
        }
        self.looked_at.store(answers, Relaxed);
        self.alone.store(0, Relaxed);
        let mut gate = self.gate.lock();
        if !self.on.load(Relaxed) || self.follower.load(Relaxed) != me() {
            return;
        }
        match self.ask(me(), caller) {
            Some(YES) => self.patience.store(PATIENCE, Relaxed),
            Some(THERE) => {
                let more = (self.patience.load(Relaxed) * 2).min(PATIENCE_MOST);
                self.patience.store(more, Relaxed);
            }
            _ => self.end(&mut gate),
        }
    }

    /// Returns whether the thread may take the next request in `SCHED_IDLE`.
    fn may_stay(&self) -> bool {
        let now = self.now();
        let since = Duration::from_nanos(now.saturating_sub(self.seen_running.swap(now, Relaxed)));
        if since > HELD_UP {
            self.held_up();
        }
        let careful = self.careful.load(Relaxed);
        if careful > 0 {
            self.careful.store(careful - 1, Relaxed);
            return false;
        }
        if self.stayed.fetch_add(1, Relaxed) >= NOT_HELD_UP {
            self.more_careful.store(CAREFUL, Relaxed);
        }
        true
    }

    /// Nanoseconds since the mount.
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn held_up(&self) {
        let careful = self.more_careful.load(Relaxed);
        self.careful.store(careful, Relaxed);
        self.more_careful.store((careful * 2).min(MOST), Relaxed);
        self.stayed.store(0, Relaxed);
    }

    fn stand_aside(&self) {
        let mut gate = self.gate.lock();
        while self.on.load(Relaxed) {
            self.over.wait(&mut gate);
        }
    }

    fn ask(&self, thread: u32, caller: u32) -> Option<u8> {
        if !self.possible.load(Relaxed) {
            return None;
        }
        let answer = ask(&self.affinity_helper.lock(), &affinity_helper::question(thread, caller), 1);
        if answer.is_none() {
            // The helper is gone or too slow: a late answer would match a later question.
            self.possible.store(false, Relaxed);
        }
        answer?.first().copied()
    }
}
