//! What all connections, threads and listeners share: the epoll instance, queued jobs, timers and limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::budget::{Budget, ClientKey};
use super::counters::{Counters, NetStats};
use super::fair_queue::{FairQueue, Job};
use super::limits::Limits;
use super::tls::Tls;

/// Epoll data of the eventfd that wakes a thread.
pub(super) const WAKE: u64 = 0;

#[derive(Default)]
pub(super) struct Timers {
    pub(super) due: BTreeMap<(Instant, u64), Job>,
    pub(super) count: u64,
    pub(super) stopping: bool,
}

/// What all connections, threads and listeners share.
pub(crate) struct Shared {
    pub(super) epoll: OwnedFd,
    wake: OwnedFd,
    pub(super) limits: Limits,
    pub(super) tls: Option<Tls>,
    pub(crate) counters: Counters,
    pub(super) queue: FairQueue,
    pub(super) budget: Arc<Budget>,
    started: Instant,
    pub(super) timers: Mutex<Timers>,
    pub(super) timers_changed: Condvar,
    pub(super) draining: AtomicBool,
    /// Calls that are received and not answered.
    pub(super) calls_in_progress: AtomicUsize,
}

impl Shared {
    pub(super) fn new(limits: Limits, tls: Option<Tls>) -> std::io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered and never read: each write wakes one thread.
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        Ok(Arc::new(Self {
            epoll,
            wake,
            tls,
            counters: Counters::default(),
            queue: FairQueue::new(limits.threads),
            budget: Budget::new(limits.bounds),
            started: Instant::now(),
            timers: Mutex::default(),
            timers_changed: Condvar::new(),
            draining: AtomicBool::new(false),
            calls_in_progress: AtomicUsize::new(0),
            limits,
        }))
    }

    /// Returns milliseconds since the start plus one, so never 0.
    pub(super) fn now_ms(&self) -> u64 {
        self.ms(Instant::now())
    }

    pub(super) fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_millis() as u64 + 1
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns whether TLS is configured.
    pub(crate) fn offers_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the server stops, and new calls are dropped.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        // This fails only if the counter is full. In that case a thread is being woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Queues a job that was just read. The reading thread executes it, or an earlier one, and wakes others
    /// for the rest.
    pub(super) fn push(&self, client: ClientKey, connection: u64, job: Job, non_blocking: bool) {
        self.queue.push(client, connection, job, non_blocking);
    }

    /// Wakes a thread if jobs wait: the current job is about to block.
    pub(super) fn wake_for_waiting_jobs(&self) {
        if self.queue.must_wake_another() {
            self.wake();
        }
    }

    /// Queues an urgent job that was just read, without waking a thread.
    pub(super) fn push_urgent_read(&self, job: Job) {
        let _ = self.queue.push_urgent(job);
    }

    pub(crate) fn push_urgent(&self, job: Job) {
        if self.queue.push_urgent(job) {
            self.wake();
        }
    }

    /// Runs a job after `time`.
    pub(crate) fn after(&self, time: Duration, job: Job) {
        let mut timers = self.timers.lock();
        if timers.stopping {
            return;
        }
        timers.count += 1;
        let key = (Instant::now() + time, timers.count);
        timers.due.insert(key, job);
        self.timers_changed.notify_one();
    }

    pub(crate) fn stats(&self) -> NetStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        NetStats {
            connections: self.budget.connections() as u64,
            held_bytes: self.budget.bytes() as u64,
            connections_total: read(&counters.connections),
            connections_refused: read(&counters.connections_refused),
            bytes_in: read(&counters.bytes_in),
            bytes_out: read(&counters.bytes_out),
            calls: read(&counters.calls),
            calls_refused: read(&counters.calls_refused),
            callbacks: read(&counters.callbacks),
            callbacks_late: read(&counters.callbacks_late),
            panics: read(&counters.panics),
        }
    }
}
