//! The loop of the threads that wait on the epoll instance, and the tables of connections and listeners.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ivers_busy_poll::BusyPoller;
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::budget::TooMany;
use super::busy_poll::BusyPoll;
use super::connection::{Connection, Connections, Handler};
use super::fair_queue::Next;
use super::limits::Limits;
use super::reply_batch;
use super::shared::{Shared, WAKE};
use super::tls::Tls;

/// Epoll data of the first connection. Listeners use the numbers below.
const FIRST_CONNECTION: u64 = 1 << 16;
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of connections to accept at once, before other events are served.
const MAX_ACCEPTS: usize = 64;
/// Interval between checks of deadlines.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// The epoll loop, its connections and its listeners.
pub(crate) struct Reactor {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    poller: BusyPoller,
    listeners: Mutex<HashMap<u64, Arc<TcpListener>>>,
    next: AtomicU64,
}

impl Reactor {
    pub(super) fn new(
        limits: Limits,
        handler: Arc<dyn Handler>,
        tls: Option<Tls>,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            shared: Shared::new(limits, tls)?,
            connections: Arc::new(Connections::new(handler)),
            poller: BusyPoller::new(limits.busy_poll),
            listeners: Mutex::default(),
            next: AtomicU64::new(FIRST_CONNECTION),
        }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    // ---- listening and connecting ----

    pub(super) fn listen(&self, number: u64, listener: TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = Arc::new(listener);
        self.listeners.lock().insert(number, listener.clone());
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::add(&self.shared.epoll, &*listener, EventData::new_u64(number), flags)?)
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.lock().values().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    fn rearm_listener(&self, number: u64) {
        if let Some(listener) = self.listeners.lock().get(&number) {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            let _ = epoll::modify(&self.shared.epoll, &**listener, EventData::new_u64(number), flags);
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
                    self.shared
                        .after(Duration::from_secs(1), Box::new(move || reactor.rearm_listener(number)));
                    return;
                }
            }
        }
        self.rearm_listener(number);
    }

    fn add_accepted(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let client = peer.ip().into();
        let account = self.shared.budget.open(client).or_else(|why| {
            // Connections with a session are kept. Of the others, the one that was idle longest makes room.
            if why == TooMany::Total
                && let Some(idle) = self.longest_idle()
            {
                idle.close("idle, and the connection limit is reached");
                drop(idle);
            }
            self.shared.budget.open(client)
        });
        self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        match account {
            Ok(account) => {
                if let Err(error) = self.add_connection(stream, peer, account, false) {
                    log::debug!("cannot set up a connection from {peer}: {error}");
                }
            }
            Err(why) => {
                self.shared.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                log::warn!(peer:%, why:%; "connection refused: too many connections");
            }
        }
    }

    fn longest_idle(&self) -> Option<Arc<Connection>> {
        let connections = self.connections.open.lock();
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
        let connection =
            Connection::new(id, &self.shared, &self.connections, stream, peer, account, dialled)?;
        self.connections.open.lock().insert(id, connection.clone());
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
            .shared
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
        self.shared.after(time, Box::new(job));
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
            match self.shared.queue.next(finished.take()) {
                Next::Run { job, client, connection, non_blocking, wake } => {
                    reply_batch::switch_to(connection.filter(|_| non_blocking));
                    if wake {
                        self.shared.wake();
                    }
                    polling = polling.filter(|polling| connection == Some(polling.connection().id()));
                    // Dropping its handles answers the request. The thread itself goes on.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        self.shared.counters.panics.fetch_add(1, Ordering::Relaxed);
                    }
                    finished = Some(client);
                    continue;
                }
                Next::Wait => reply_batch::switch_to(None),
                Next::Stop => {
                    reply_batch::switch_to(None);
                    return self.shared.wake();
                }
            }
            if let Some(before) = polling.take().filter(|_| !self.shared.is_draining()) {
                let connection = before.connection().clone();
                polling = self.catch_panics(&connection, || before.poll_next(&self.poller, &mut buffer));
                // It may have read a request even if it does not continue to poll.
                self.shared.queue.awake();
                continue;
            }
            events.clear();
            let waited = epoll::wait(&self.shared.epoll, spare_capacity(&mut events), None);
            self.shared.queue.awake();
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
        let connection = self.connections.open.lock().get(&number).cloned()?;
        self.catch_panics(&connection, || connection.ready(flags, buffer))
    }

    /// Reads, and closes the connection if reading panics.
    fn catch_panics(
        &self,
        connection: &Arc<Connection>,
        read: impl FnOnce() -> Option<BusyPoll>,
    ) -> Option<BusyPoll> {
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
            self.shared.counters.panics.fetch_add(1, Ordering::Relaxed);
            connection.close("internal error of the server");
            None
        })
    }

    /// The loop of the timer thread.
    pub(super) fn run_timers(self: &Arc<Self>) {
        let mut next_tick = Instant::now() + TICK;
        let mut timers = self.shared.timers.lock();
        while !timers.stopping {
            let now = Instant::now();
            let mut due = Vec::new();
            while let Some(entry) = timers.due.first_entry().filter(|entry| entry.key().0 <= now) {
                due.push(entry.remove());
            }
            if !due.is_empty() || next_tick <= now {
                drop(timers);
                due.into_iter().for_each(|job| self.shared.push_urgent(job));
                if next_tick <= now {
                    self.check_deadlines();
                    next_tick = now + TICK;
                }
                timers = self.shared.timers.lock();
                continue;
            }
            let first = timers.due.keys().next().map_or(next_tick, |(at, _)| (*at).min(next_tick));
            self.shared.timers_changed.wait_until(&mut timers, first);
        }
    }

    fn all_connections(&self) -> Vec<Arc<Connection>> {
        self.connections.open.lock().values().cloned().collect()
    }

    fn check_deadlines(&self) {
        let now_ms = self.shared.now_ms();
        for connection in self.all_connections() {
            connection.stop_polling_if_busy();
            if let Some(why) = connection.overdue(now_ms) {
                connection.close(why);
            }
        }
        self.shared.wake_for_waiting_jobs();
        self.connections.handler.tick();
    }

    // ---- shutdown ----

    pub(super) fn drain(&self, time: Duration, close_time: Duration) -> bool {
        self.shared.draining.store(true, Ordering::Release);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners.values() {
            let _ = epoll::delete(&self.shared.epoll, &**listener);
        }
        drop(listeners);
        let answered = wait_for(time, || {
            self.shared.calls_in_progress.load(Ordering::Acquire) == 0
                && self.all_connections().iter().all(|connection| connection.unsent() == 0)
        });
        // Closing a socket with unread input would discard replies that the peer has not read.
        self.all_connections().iter().for_each(|connection| connection.shut_down_writes());
        wait_for(close_time, || self.connections.open.lock().is_empty());
        answered
    }

    pub(super) fn stop(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.listeners.lock().clear();
        for connection in self.all_connections() {
            connection.close("the server stops");
        }
        drop(self.shared.queue.stop());
        self.shared.wake();
        let due = {
            let mut timers = self.shared.timers.lock();
            timers.stopping = true;
            std::mem::take(&mut timers.due)
        };
        drop(due);
        self.shared.timers_changed.notify_all();
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
