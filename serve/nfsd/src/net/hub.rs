//! The threads, what they wait for, and everything that connections share.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ivers_linger::Linger;
use parking_lot::{Condvar, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::brief;
use super::budget::{Budget, TooMany};
use super::connection::{Connection, Stay};
use super::pool::{Job, Next, Pool};
use super::tls::Tls;
use super::{Counters, Handler, Limits, NetStats};

/// What the poller calls the eventfd that wakes a thread.
const WAKE: u64 = 0;
/// Listeners have the numbers below.
const FIRST_CONNECTION: u64 = 1 << 16;
const SCRATCH_BYTES: usize = 64 << 10;
/// At most so many connections are accepted before the others get their turn.
const ACCEPT_ROUND: usize = 64;
/// How often deadlines are looked at.
pub(crate) const TICK: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Timers {
    due: BTreeMap<(Instant, u64), Job>,
    count: u64,
    stopping: bool,
}

/// What connections, threads and listeners share.
pub(crate) struct Hub {
    pub(super) epoll: OwnedFd,
    wake: OwnedFd,
    pub(super) limits: Limits,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) tls: Option<Tls>,
    pub(crate) counters: Counters,
    pool: Pool,
    linger: Linger,
    budget: Arc<Budget>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    listeners: Mutex<HashMap<u64, Arc<TcpListener>>>,
    next: AtomicU64,
    started: Instant,
    timers: Mutex<Timers>,
    timers_changed: Condvar,
    draining: AtomicBool,
    /// Calls that were taken and not answered.
    pub(super) under_way: AtomicUsize,
}

impl Hub {
    pub(super) fn new(
        limits: Limits,
        handler: Arc<dyn Handler>,
        tls: Option<Tls>,
    ) -> std::io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered, and never read: each write wakes one thread.
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        Ok(Arc::new(Self {
            epoll,
            wake,
            handler,
            tls,
            counters: Counters::default(),
            pool: Pool::new(limits.threads),
            linger: Linger::new(limits.linger),
            budget: Budget::new(limits.bounds),
            connections: Mutex::default(),
            listeners: Mutex::default(),
            next: AtomicU64::new(FIRST_CONNECTION),
            started: Instant::now(),
            timers: Mutex::default(),
            timers_changed: Condvar::new(),
            draining: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            limits,
        }))
    }

    /// Milliseconds since the start, never 0.
    pub(super) fn now_ms(&self) -> u64 {
        self.ms(Instant::now())
    }

    pub(super) fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_millis() as u64 + 1
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether TLS can be offered.
    pub(crate) fn offers_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether no new calls are taken.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // It fails only when the count is full, and then a thread has been woken.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// A job out of what was just read: whoever read it takes it, or what comes before it, and wakes others for the rest.
    pub(super) fn push(&self, connection: &Connection, job: Job, brief: bool) {
        self.pool.push(connection.client(), connection.id(), job, brief);
    }

    /// Who was at something brief is not any more: whatever waits is not to wait for that.
    pub(super) fn let_others_work(&self) {
        if self.pool.has_work_for_others() {
            self.wake();
        }
    }

    /// The same, for one that goes before all others.
    pub(super) fn push_urgent_read(&self, job: Job) {
        let _ = self.pool.push_urgent(job);
    }

    pub(crate) fn push_urgent(&self, job: Job) {
        if self.pool.push_urgent(job) {
            self.wake();
        }
    }

    pub(super) fn choke(&self, connection: &Connection, choked: bool) {
        if self.pool.choke(connection.client(), connection.id(), choked) {
            self.wake();
        }
        if connection.is_closed() {
            drop(self.pool.remove(connection.client(), connection.id()));
        }
    }

    pub(super) fn forget(&self, connection: &Connection) {
        self.connections.lock().remove(&connection.id());
        drop(self.pool.remove(connection.client(), connection.id()));
    }

    /// Do something later.
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

    // Listening and connecting.

    pub(super) fn listen(&self, number: u64, listener: TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = Arc::new(listener);
        self.listeners.lock().insert(number, listener.clone());
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::add(&self.epoll, &*listener, EventData::new_u64(number), flags)?)
    }

    pub(super) fn listening_on(&self) -> Vec<SocketAddr> {
        self.listeners.lock().values().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    fn listen_again(&self, number: u64) {
        if let Some(listener) = self.listeners.lock().get(&number) {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            let _ = epoll::modify(&self.epoll, &**listener, EventData::new_u64(number), flags);
        }
    }

    fn accept(self: &Arc<Self>, number: u64) {
        let Some(listener) = self.listeners.lock().get(&number).cloned() else { return };
        for _ in 0..ACCEPT_ROUND {
            match listener.accept() {
                Ok((stream, peer)) => self.accepted(stream, peer),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // No descriptors or no memory: asked again at once, it would say the same.
                    log::warn!("cannot accept connections for a moment: {error}");
                    let hub = self.clone();
                    self.after(Duration::from_secs(1), Box::new(move || hub.listen_again(number)));
                    return;
                }
            }
        }
        self.listen_again(number);
    }

    fn accepted(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let client = peer.ip().into();
        let account = self.budget.open(client).or_else(|why| {
            // Whoever made a session stays; of the others, who was silent longest makes room.
            if why == TooMany::InAll
                && let Some(spare) = self.most_spare()
            {
                spare.close("others need the room");
                drop(spare);
            }
            self.budget.open(client)
        });
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        match account {
            Ok(account) => {
                if let Err(error) = self.adopt(stream, peer, account, false) {
                    log::debug!("lost a connection of {peer} at once: {error}");
                }
            }
            Err(why) => {
                self.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                log::warn!(peer:%, why:?; "a connection is turned away: there are too many");
            }
        }
    }

    fn most_spare(&self) -> Option<Arc<Connection>> {
        let connections = self.connections.lock();
        connections
            .values()
            .filter(|connection| connection.is_spare())
            .min_by_key(|connection| (connection.heard_ms(), connection.id()))
            .cloned()
    }

    fn adopt(
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
            connection.close("cannot be polled");
            return Err(error);
        }
        Ok(connection)
    }

    /// Connect to somebody. What is sent before he answers waits.
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
        self.dialled(TcpStream::from(socket), peer, time)
    }

    /// Take over a connection to somebody that is there, or on its way.
    pub(crate) fn dialled(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        time: Duration,
    ) -> std::io::Result<Arc<Connection>> {
        let account = self
            .budget
            .open(peer.ip().into())
            .map_err(|why| std::io::Error::other(format!("too many connections ({why:?})")))?;
        let connection = self.adopt(stream, peer, account, true)?;
        let waiting = Arc::downgrade(&connection);
        let job = move || {
            if let Some(connection) = waiting.upgrade()
                && connection.is_connecting()
            {
                connection.close("nobody answers");
            }
        };
        self.after(time, Box::new(job));
        Ok(connection)
    }

    // The threads.

    /// What each thread does until the end: read what came, and work on what is next.
    pub(super) fn run(self: &Arc<Self>) {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
        let mut finished = None;
        let mut stay: Option<Stay> = None;
        loop {
            match self.pool.next(finished.take()) {
                Next::Run { job, whose, connection, brief, wake } => {
                    brief::keep_for(connection.filter(|_| brief));
                    if wake {
                        self.wake();
                    }
                    stay = stay.filter(|stay| connection == Some(stay.connection().id()));
                    // What it held ends by its handles' being dropped; the thread is of further use.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        self.counters.panics.fetch_add(1, Ordering::Relaxed);
                    }
                    finished = Some(whose);
                    continue;
                }
                Next::Wait => brief::keep_for(None),
                Next::Stop => {
                    brief::keep_for(None);
                    return self.wake();
                }
            }
            if let Some(before) = stay.take().filter(|_| !self.is_draining()) {
                let connection = before.connection().clone();
                stay = self.guard(&connection, || before.go_on(&self.linger, &mut scratch));
                // It may have read a request even where there is nothing more to stay for.
                self.pool.awake();
                continue;
            }
            events.clear();
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
            self.pool.awake();
            if waited.is_err() {
                continue;
            }
            for event in &events {
                let (number, flags) = (event.data.u64(), event.flags);
                stay = self.told(number, flags, &mut scratch);
            }
        }
    }

    fn told(self: &Arc<Self>, number: u64, flags: EventFlags, scratch: &mut [u8]) -> Option<Stay> {
        if number == WAKE {
            return None;
        }
        if number < FIRST_CONNECTION {
            self.accept(number);
            return None;
        }
        let connection = self.connections.lock().get(&number).cloned()?;
        self.guard(&connection, || connection.ready(flags, scratch))
    }

    /// Read, and end the connection if that is more than we can do.
    fn guard(&self, connection: &Arc<Connection>, read: impl FnOnce() -> Option<Stay>) -> Option<Stay> {
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
            self.counters.panics.fetch_add(1, Ordering::Relaxed);
            connection.close("a mistake of the server");
            None
        })
    }

    /// What the timekeeper does until the end.
    pub(super) fn keep_time(self: &Arc<Self>) {
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
                    self.sweep();
                    next_tick = now + TICK;
                }
                timers = self.timers.lock();
                continue;
            }
            let first = timers.due.keys().next().map_or(next_tick, |(at, _)| (*at).min(next_tick));
            self.timers_changed.wait_until(&mut timers, first);
        }
    }

    fn everybody(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().values().cloned().collect()
    }

    fn sweep(&self) {
        let now_ms = self.now_ms();
        for connection in self.everybody() {
            connection.release_if_stuck();
            if let Some(why) = connection.overdue(now_ms) {
                connection.close(why);
            }
        }
        self.let_others_work();
        self.handler.tick();
    }

    // The end.

    pub(super) fn drain(&self, time: Duration, linger: Duration) -> bool {
        self.draining.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners.values() {
            let _ = epoll::delete(&self.epoll, &**listener);
        }
        drop(listeners);
        let answered = wait_for(time, || {
            self.under_way.load(Ordering::Acquire) == 0
                && self.everybody().iter().all(|connection| connection.unsent() == 0)
        });
        // Closed at once, with bytes unread, a socket takes the replies back that its peer has not read.
        self.everybody().iter().for_each(|connection| connection.finish());
        wait_for(linger, || self.connections.lock().is_empty());
        answered
    }

    pub(super) fn stop(&self) {
        self.draining.store(true, Ordering::Release);
        self.listeners.lock().clear();
        for connection in self.everybody() {
            connection.close("the server ends");
        }
        drop(self.pool.stop());
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
