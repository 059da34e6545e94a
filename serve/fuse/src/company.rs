//! One serving thread that keeps a program company on its processor.
//!
//! # Why
//!
//! A program that works with many files makes one small request after the other and waits for each answer. If it and the thread that serves
//! it run on two processors, each of the two sleeps while the other works, and is woken from another processor
//! twice a request. On a virtual machine that takes ten times as long as the request itself; on one processor the two take turns, and nobody is woken from afar.
//!
//! The kernel does not leave them there: an answer wakes the program, and a processor that is idle is preferred to the one on which
//! the answer is just being written. So the thread that keeps company is moved to where the program is, and is in `SCHED_IDLE` while it
//! answers: a processor that runs nothing else counts as idle, and the program stays. If the next request is there when it goes on, it stays in
//! that class: to come and go takes a quarter of such a request's time. It never sleeps in it, for the program counts as running for long beside such a
//! sleeper; and where somebody computes on that processor, it stays there no longer than it answers.
//!
//! # When, and for how long
//!
//! Company begins when one thread has made [`FIRST`] requests in a row, without large ones: those are worth two processors. The other serving threads
//! stand aside meanwhile, or one of them would take a request elsewhere.
//!
//! It ends with the first request of somebody else, and when a whole [`TICK`] was without an answer: because the request takes
//! long and others should be served, because the program does something else, or because somebody who computes on that processor keeps the thread
//! from running, which `SCHED_IDLE` would bear for a second. A watcher, in the usual class, sees to that. What did not last takes longer to begin again.
//!
//! Not everybody may come back from `SCHED_IDLE`: that is tried beforehand, here and by [the attendant](crate::attendant), and where it fails there is no company.
//!
//! # Locks
//!
//! `gate` before the socket; neither is taken in `SCHED_IDLE`, so the watcher waits for nobody in it. Requests take locks of the [`Vfs`](ivers_vfs::Vfs) there: who waits for one
//! waits two ticks at most beside somebody who computes, then the watcher has that thread come back.

use crate::attendant::{self, NOBODY, THERE, WAKE_UP};
use crate::outside::{NO, YES, ask, own_number as me};
use ivers_sched::{Class, may_come_back, set_own_class};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

/// So many requests in a row, at first.
const FIRST: u32 = 32;
/// Company that served fewer was not worth its beginning: it takes twice as many requests the next time.
const WORTH_IT: u64 = 128;
const MOST: u32 = 1 << 14;
const TICK: Duration = Duration::from_millis(5);

/// A thread that did not run in `SCHED_IDLE` for so long was held up, maybe by somebody who computes on that processor: it comes back after each
/// of its next answers, so many at first, and twice as many each time. Once nothing has held up so many it begins anew.
const HELD_UP: Duration = Duration::from_millis(2);
const CAREFUL: u32 = 32;
const NOT_HELD_UP: u32 = 512;

/// From this size on a request is large, in bytes.
pub(crate) const LARGE: usize = 64 << 10;
/// So many more large ones than small ones end it.
const LARGE_ONES: u32 = 8;

/// So many more answers after which the next request was not there than such after which it was: the program may have moved on.
const ALONE: u32 = 3;
/// It is not looked for again before so many more, and twice as many each time that it was still there.
const PATIENCE: u64 = 8;
const PATIENCE_MOST: u64 = 1 << 12;

/// What came of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Company is kept: there is nothing to wait for.
    GoOn,
    /// Look out for the next request as usual.
    Usual,
}

pub(crate) struct Company {
    attendant: Mutex<OwnedFd>,
    /// It is wanted, and threads come back from `SCHED_IDLE`.
    possible: AtomicBool,
    /// The thread that is about to go to `SCHED_IDLE`.
    giving_way: AtomicU32,
    /// The thread that went there by itself, and has not come back by itself.
    idle: AtomicU32,
    /// Changes with `gate` held.
    on: AtomicBool,
    /// The serving thread that keeps company.
    companion: AtomicU32,
    /// Who made the last request.
    caller: AtomicU32,
    in_a_row: AtomicU32,
    needed: AtomicU32,
    large: AtomicU32,
    /// Answers since it began.
    answers: AtomicU64,
    /// When the companion went to `SCHED_IDLE`, or was found running in it last.
    seen_running: AtomicU64,
    epoch: Instant,
    /// So many answers more, after which it comes back from `SCHED_IDLE`,
    careful: AtomicU32,
    /// so many the next time,
    more_careful: AtomicU32,
    /// and so many after which it did not.
    stayed: AtomicU32,
    alone: AtomicU32,
    looked_at: AtomicU64,
    patience: AtomicU64,
    /// How many there have been.
    gate: Mutex<u64>,
    over: Condvar,
}

impl Company {
    pub(crate) fn new(attendant: OwnedFd, wanted: bool) -> Arc<Self> {
        Arc::new(Self {
            attendant: Mutex::new(attendant),
            possible: AtomicBool::new(wanted && may_come_back()),
            giving_way: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            on: AtomicBool::new(false),
            companion: AtomicU32::new(0),
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

    /// A request moves [`LARGE`] bytes or more.
    pub(crate) fn large(&self) {
        let large = self.large.load(Relaxed);
        self.large.store((large + 2).min(2 * LARGE_ONES), Relaxed);
    }

    /// Answer `caller` by `send`; zero is the kernel on its own behalf. Returns when the thread may take another request.
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
        if self.on.load(Relaxed) && self.companion.load(Relaxed) == me() {
            self.give_way();
        } else {
            self.come_back();
        }
        send();
        self.answered(caller, device)
    }

    /// Whoever ends company brings its companion back from `SCHED_IDLE`. One that goes there meanwhile is seen in `giving_way`, or sees that company is over.
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
            log::warn!("a serving thread cannot come back from SCHED_IDLE, no other will go there: {error}");
            self.possible.store(false, Relaxed);
        }
    }

    fn answered(self: &Arc<Self>, caller: u32, device: Option<&OwnedFd>) -> Then {
        // Races between threads cost a beginning or an end too many.
        let large = self.large.load(Relaxed);
        if large > 0 {
            self.large.store(large - 1, Relaxed);
        }
        let same = caller == 0 || self.caller.swap(caller, Relaxed) == caller;
        let fits = same && large < LARGE_ONES;
        // Looked at once: it may end meanwhile.
        let (on, is_mine) = (self.on.load(Relaxed), self.companion.load(Relaxed) == me());
        if !(fits && on && is_mine) {
            // What follows takes the gate, or starts a thread.
            self.come_back();
        }
        if on {
            if !fits {
                self.end(&mut self.gate.lock());
                return Then::Usual;
            }
            // What the kernel asks on its own behalf, or for a program of another namespace, keeps nobody company.
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
        // Started before this thread is moved: threads inherit where they run and how readily.
        let watcher =
            std::thread::Builder::new().name("ivers-company".into()).spawn(move || watched.watch(this));
        if watcher.is_err() || self.ask(me(), caller).is_none_or(|answer| answer == NO) {
            self.discourage(16);
            return Then::Usual;
        }
        log::debug!("thread {caller} has company");
        self.companion.store(me(), Relaxed);
        for count in [&self.answers, &self.looked_at] {
            count.store(0, Relaxed);
        }
        self.alone.store(0, Relaxed);
        self.patience.store(PATIENCE, Relaxed);
        self.on.store(true, Relaxed);
        drop(gate);
        Then::GoOn
    }

    /// End this company when it does not go on. Waits behind whoever begins it.
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
        // It may have seen that company was kept, and go to `SCHED_IDLE` only now.
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
        log::debug!("company is over after {answers} requests");
        self.ask(self.companion.load(Relaxed), NOBODY);
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

    /// The program may have been moved to another processor: then its next request is not there when this thread goes on.
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
        if !self.on.load(Relaxed) || self.companion.load(Relaxed) != me() {
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

    /// Whether the thread may take the next request in `SCHED_IDLE`.
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

    /// In nanoseconds since the mount.
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
        let answer = ask(&self.attendant.lock(), &attendant::question(thread, caller), 1);
        if answer.is_none() {
            // Gone, or too slow: later answers would not be to later questions.
            self.possible.store(false, Relaxed);
        }
        answer?.first().copied()
    }
}
