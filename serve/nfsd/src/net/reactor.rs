//! The epoll instance, the threads that wait on it, and everything that connections share.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ivers_busy_poll::BusyPoller;
use parking_lot::{Condvar, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::budget::{Budget, TooMany};
use super::connection::{BusyPoll, Connection};
use super::fair_queue::{FairQueue, Job, Next};
use super::reply_batch;
use super::tls::Tls;
use super::{Counters, Handler, Limits, NetStats};

/// Epoll data of the eventfd that wakes a thread.
const WAKE: u64 = 0;
/// Epoll data of the first connection. Listeners use the numbers below.
const FIRST_CONNECTION: u64 = 1 << 16;
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of connections to accept at once, before other events are served.
const MAX_ACCEPTS: usize = 64;
/// Interval between checks of deadlines.
pub(crate) const TICK: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Timers {
    due: BTreeMap<(Instant, u64), Job>,
    count: u64,
    stopping: bool,
}

/// State shared by connections, threads and listeners.
pub(crate) struct Reactor {
    pub(super) epoll: OwnedFd,
    wake: OwnedFd,
    pub(super) limits: Limits,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) tls: Option<Tls>,
    pub(crate) counters: Counters,
    queue: FairQueue,
    poller: BusyPoller,
    budget: Arc<Budget>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    listeners: Mutex<HashMap<u64, Arc<TcpListener>>>,
    next: AtomicU64,
    started: Instant,
    timers: Mutex<Timers>,
    timers_changed: Condvar,
    draining: AtomicBool,
    /// Calls that are received and not answered.
    pub(super) calls_in_progress: AtomicUsize,
}

impl Reactor {
    pub(super) fn new(
        limits: Limits,
        handler: Arc<dyn Handler>,
        tls: Option<Tls>,
    ) -> std::io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered and never read: each write wakes one thread.
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        Ok(Arc::new(Self {
            epoll,
            wake,
            handler,
            tls,
            counters: Counters::default(),
            queue: FairQueue::new(limits.threads),
            poller: BusyPoller::new(limits.linger),
            budget: Budget::new(limits.bounds),
            connections: Mutex::default(),
            listeners: Mutex::default(),
            next: AtomicU64::new(FIRST_CONNECTION),
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

    fn wake(&self) {
        // This fails only if the counter is full. In that case a thread is being woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Queues a job that was just read. The reading thread executes it, or an earlier one, and wakes others
    /// for the rest.
    pub(super) fn push(&self, connection: &Connection, job: Job, non_blocking: bool) {
        self.queue.push(connection.client(), connection.id(), job, non_blocking);
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

    pub(super) fn set_choked(&self, connection: &Connection, choked: bool) {
        if self.queue.set_choked(connection.client(), connection.id(), choked) {
            self.wake();
        }
        if connection.is_closed() {
            drop(self.queue.remove(connection.client(), connection.id()));
        }
    }

    pub(super) fn forget(&self, connection: &Connection) {
        self.connections.lock().remove(&connection.id());
        drop(self.queue.remove(connection.client(), connection.id()));
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

    // ---- listening and connecting ----

    pub(super) fn listen(&self, number: u64, listener: TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = Arc::new(listener);
        self.listeners.lock().insert(number, listener.clone());
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::add(&self.epoll, &*listener, EventData::new_u64(number), flags)?)
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.lock().values().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    fn rearm_listener(&self, number: u64) {
        if let Some(listener) = self.listeners.lock().get(&number) {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            let _ = epoll::modify(&self.epoll, &**listener, EventData::new_u64(number), flags);
        }
    }

    fn accept(self: &Arc<Self>, number: u64) {
        let Some(listener) = self.listeners.lock().get(&number).cloned() else { return };
        for _ in 0..MAX_ACCEPTS {
            match listener.accept() {
                Ok((stream, peer)) => self.add_accepted(stream, peer),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Descriptors or memory are exhausted: an immediate retry would fail the same way.
                    log::warn!("cannot accept connections, trying again in 1 s: {error}");
                    let reactor = self.clone();
                    self.after(Duration::from_secs(1), Box::new(move || reactor.rearm_listener(number)));
                    return;
                }
            }
        }
        self.rearm_listener(number);
    }

    fn add_accepted(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let client = peer.ip().into();
        let account = self.budget.open(client).or_else(|why| {
            // Connections with a session are kept. Of the others, the one that was idle longest makes room.
            if why == TooMany::Total
                && let Some(idle) = self.longest_idle()
            {
                idle.close("idle, and the connection limit is reached");
                drop(idle);
            }
            self.budget.open(client)
        });
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        match account {
            Ok(account) => {
                if let Err(error) = self.add_connection(stream, peer, account, false) {
                    log::debug!("cannot set up a connection from {peer}: {error}");
                }
            }
            Err(why) => {
                self.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                log::warn!(peer:%, why:?; "connection refused: too many connections");
            }
        }
    }

    fn longest_idle(&self) -> Option<Arc<Connection>> {
        let connections = self.connections.lock();
        connections
            .values()
            .filter(|connection| connection.is_dispensable())
            .min_by_key(|connection| (connection.last_message_ms(), connection.id()))
            .cloned()
    }

    fn add_connection(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        account: Arc<super::budget::Account>,
        dialled: bool,
    ) -> std::io::Result<Arc<Connection>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(id, self, stream, peer, account, dialled)?;
        self.connections.lock().insert(id, connection.clone());
        if let Err(error) = connection.register() {
            connection.close("cannot add it to epoll");
            return Err(error);
        }
        Ok(connection)
    }

    /// Connects to a peer. Records sent before the connection is established are queued.
    pub(crate) fn dial(
        self: &Arc<Self>,
        peer: SocketAddr,
        time: Duration,
    ) -> std::io::Result<Arc<Connection>> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket =
            socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        match connect(&socket, &peer) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        self.add_dialled(TcpStream::from(socket), peer, time)
    }

    /// Adds an outgoing connection, established or in progress. Closes it if it is not established within
    /// `time`.
    pub(crate) fn add_dialled(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        time: Duration,
    ) -> std::io::Result<Arc<Connection>> {
        let account = self
            .budget
            .open(peer.ip().into())
            .map_err(|why| std::io::Error::other(format!("too many connections ({why:?})")))?;
        let connection = self.add_connection(stream, peer, account, true)?;
        let waiting = Arc::downgrade(&connection);
        let job = move || {
            if let Some(connection) = waiting.upgrade()
                && connection.is_connecting()
            {
                connection.close("connecting timed out");
            }
        };
        self.after(time, Box::new(job));
        Ok(connection)
    }

    // ---- threads ----

    /// The loop of each thread: reads what arrived, and executes the next job.
    pub(super) fn run(self: &Arc<Self>) {
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
        let mut finished = None;
        let mut polling: Option<BusyPoll> = None;
        loop {
            match self.queue.next(finished.take()) {
                Next::Run { job, client, connection, non_blocking, wake } => {
                    reply_batch::switch_to(connection.filter(|_| non_blocking));
                    if wake {
                        self.wake();
                    }
                    polling = polling.filter(|polling| connection == Some(polling.connection().id()));
                    // Dropping its handles answers the request. The thread itself goes on.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        self.counters.panics.fetch_add(1, Ordering::Relaxed);
                    }
                    finished = Some(client);
                    continue;
                }
                Next::Wait => reply_batch::switch_to(None),
                Next::Stop => {
                    reply_batch::switch_to(None);
                    return self.wake();
                }
            }
            if let Some(before) = polling.take().filter(|_| !self.is_draining()) {
                let connection = before.connection().clone();
                polling = self.catch_panics(&connection, || before.poll_next(&self.poller, &mut buffer));
                // It may have read a request even if it does not continue to poll.
                self.queue.awake();
                continue;
            }
            events.clear();
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
            self.queue.awake();
            if waited.is_err() {
                continue;
            }
            for event in &events {
                let (number, flags) = (event.data.u64(), event.flags);
                polling = self.dispatch(number, flags, &mut buffer);
            }
        }
    }

    fn dispatch(self: &Arc<Self>, number: u64, flags: EventFlags, buffer: &mut [u8]) -> Option<BusyPoll> {
        if number == WAKE {
            return None;
        }
        if number < FIRST_CONNECTION {
            self.accept(number);
            return None;
        }
        let connection = self.connections.lock().get(&number).cloned()?;
        self.catch_panics(&connection, || connection.ready(flags, buffer))
    }

    /// Reads, and closes the connection if reading panics.
    fn catch_panics(
        &self,
        connection: &Arc<Connection>,
        read: impl FnOnce() -> Option<BusyPoll>,
    ) -> Option<BusyPoll> {
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
            self.counters.panics.fetch_add(1, Ordering::Relaxed);
            connection.close("internal error of the server");
            None
        })
    }

    /// The loop of the timer thread.
    pub(super) fn run_timers(self: &Arc<Self>) {
        let mut next_tick = Instant::now() + TICK;
        let mut timers = self.timers.lock();
        while !timers.stopping {
            let now = Instant::now();
            let mut due = Vec::new();
            while let Some(entry) = timers.due.first_entry().filter(|entry| entry.key().0 <= now) {
                due.push(entry.remove());
            }
            if !due.is_empty() || next_tick <= now {
                drop(timers);
                due.into_iter().for_each(|job| self.push_urgent(job));
                if next_tick <= now {
                    self.check_deadlines();
                    next_tick = now + TICK;
                }
                timers = self.timers.lock();
                continue;
            }
            let first = timers.due.keys().next().map_or(next_tick, |(at, _)| (*at).min(next_tick));
            self.timers_changed.wait_until(&mut timers, first);
        }
    }

    fn all_connections(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().values().cloned().collect()
    }

    fn check_deadlines(&self) {
        let now_ms = self.now_ms();
        for connection in self.all_connections() {
            connection.stop_polling_if_busy();
            if let Some(why) = connection.overdue(now_ms) {
                connection.close(why);
            }
        }
        self.wake_for_waiting_jobs();
        self.handler.tick();
    }

    // ---- shutdown ----

    pub(super) fn drain(&self, time: Duration, close_time: Duration) -> bool {
        self.draining.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners.values() {
            let _ = epoll::delete(&self.epoll, &**listener);
        }
        drop(listeners);
        let answered = wait_for(time, || {
            self.calls_in_progress.load(Ordering::Acquire) == 0
                && self.all_connections().iter().all(|connection| connection.unsent() == 0)
        });
        // Closing a socket with unread input would discard replies that the peer has not read.
        self.all_connections().iter().for_each(|connection| connection.shut_down_writes());
        wait_for(close_time, || self.connections.lock().is_empty());
        answered
    }

    pub(super) fn stop(&self) {
        self.draining.store(true, Ordering::Release);
        self.listeners.lock().clear();
        for connection in self.all_connections() {
            connection.close("the server stops");
        }
        drop(self.queue.stop());
        self.wake();
        let due = {
            let mut timers = self.timers.lock();
            timers.stopping = true;
            std::mem::take(&mut timers.due)
        };
        drop(due);
        self.timers_changed.notify_all();
    }
}

fn wait_for(time: Duration, done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while !done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
