//! Connections: records in and out, limits on both, TLS, and the threads that do all the work. This module
//! knows neither RPC nor NFS.
//!
//! # Why threads and epoll instead of an async runtime
//!
//! A request calls the VFS, which blocks. An async runtime would hand each request to a thread pool, and its
//! reply back: two wake-ups per request, as much as a small GETATTR costs in total.
//! Here all threads are equal. Each waits in the same epoll instance. The thread that an event wakes reads
//! the bytes, queues the requests, and then executes the next request itself.
//! If a client waits for each reply, one thread reads, executes and answers, and no other thread wakes. A
//! request that waits for a callback occupies no thread: its reply handle moves into a continuation.
//! A connection costs a few hundred bytes and no thread, so idle connections and floods of connections are
//! cheap.
//!
//! - One thread never executes requests, so at least one thread always reads ([`fair_queue`]).
//! - The thread that produced a reply writes it. Bytes that the socket does not accept are queued until epoll
//!   reports the socket writable. No thread waits for a slow reader. If too many bytes are unsent, further
//!   requests of the connection wait ([`fair_queue::FairQueue::set_choked`]).
//! - Sockets are polled in one-shot mode: one thread at a time reads a connection. While that thread executes
//!   a request, another may read.
//! - If a client sends one request at a time, the thread polls the connection for the next one
//!   (`connection::busy_poll`). If a client sends many requests that need no I/O, the thread also stays with
//!   it, and writes replies together (`reply_batch`).
//! - Bytes are charged as they arrive ([`budget`]). If a message exceeds the limits, only its head is kept,
//!   to refuse it properly ([`record_reader`]).
//!
//! Lock order: a connection's `inbound`, `wire`, `poll_state`; then at most one of the tables of connections,
//! jobs and bytes. An account may be locked together with the budget's table.

pub mod budget;
pub mod connection;
pub mod fair_queue;
pub mod listen;
pub(crate) mod reactor;
pub mod record_reader;
pub(crate) mod reply_batch;
pub mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use budget::Bounds;
use connection::Connection;
use fair_queue::Job;
use ivers_busy_poll::BusyPoller;
use reactor::Reactor;
use record_reader::Message;
use tls::Tls;

/// Handles the messages of all connections.
pub trait Handler: Send + Sync + 'static {
    /// Handles one message. The reading thread calls this: it must not wait, nor do long work.
    fn message(&self, connection: &Arc<Connection>, message: Message) -> Action;

    /// Tells that a connection is closed.
    fn closed(&self, connection: &Arc<Connection>);

    /// Runs periodically, several times per second, to check deadlines.
    fn tick(&self);
}

/// What to do with a message.
pub enum Action {
    /// Nothing is left to do.
    Done,
    /// Queue this job for the client.
    Work(Job),
    /// Queue this job, which announces when it is about to block (`reply_batch`).
    NonBlocking(Job),
    /// Queue this job before all others.
    Urgent(Job),
    /// Send this record unencrypted. Everything after it, in both directions, is TLS.
    StartTls(Vec<u8>),
    /// Close the connection, for this reason.
    Close(&'static str),
}

/// Limits of the network layer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of threads, at least three.
    pub threads: usize,
    /// Maximum time to busy-poll for a client's next request; zero disables it.
    pub linger: Duration,
    /// Maximum size of a record in bytes. A larger one closes the connection, so this must exceed the maximum
    /// request size of sessions.
    pub record_bytes: usize,
    /// Limits for requests and unread replies.
    pub bounds: Bounds,
    /// If a connection has more unsent bytes, its further requests wait.
    pub choke_bytes: usize,
    /// If a connection has more unsent bytes, it is closed.
    pub unsent_bytes: usize,
    /// Time for a record to arrive completely.
    pub record_time: Duration,
    /// Time after which an idle connection without a session is closed.
    pub idle_time: Duration,
    /// Time in which the peer must accept some of the unsent bytes.
    pub unread_time: Duration,
    /// Time for the TLS handshake.
    pub handshake_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            threads: 16,
            linger: BusyPoller::default_duration(),
            record_bytes: 2 * MIB,
            bounds: Bounds {
                // A session of 64 slots, each with a write of 1 MiB.
                connection_bytes: 80 * MIB,
                client_bytes: 128 * MIB,
                total_bytes: 384 * MIB,
                client_connections: 256,
                total_connections: 1024,
            },
            choke_bytes: 4 * MIB,
            unsent_bytes: 48 * MIB,
            record_time: Duration::from_secs(120),
            idle_time: Duration::from_secs(60),
            unread_time: Duration::from_secs(60),
            handshake_time: Duration::from_secs(30),
        }
    }
}

/// Event counts since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections refused.
    pub connections_refused: AtomicU64,
    /// Bytes received, including TLS.
    pub bytes_in: AtomicU64,
    /// Bytes sent, including TLS.
    pub bytes_out: AtomicU64,
    /// Calls received.
    pub calls: AtomicU64,
    /// Calls refused because a limit was reached.
    pub calls_refused: AtomicU64,
    /// Calls sent to clients.
    pub callbacks: AtomicU64,
    /// Calls to clients without a reply in time.
    pub callbacks_late: AtomicU64,
    /// Jobs that panicked, which is a bug in the server.
    pub panics: AtomicU64,
}

/// A snapshot of [`Counters`] and of current totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the counters' own are at `Counters`")]
pub struct NetStats {
    /// Open connections.
    pub connections: u64,
    /// Bytes held by requests and unread replies.
    pub held_bytes: u64,
    pub connections_total: u64,
    pub connections_refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub calls: u64,
    pub calls_refused: u64,
    pub callbacks: u64,
    pub callbacks_late: u64,
    pub panics: u64,
}

/// The network threads. They run until this is dropped.
pub struct Net {
    reactor: Arc<Reactor>,
    threads: Vec<JoinHandle<()>>,
}

impl Net {
    /// Starts the threads and listens.
    pub fn start(
        limits: Limits,
        listeners: Vec<TcpListener>,
        tls: Option<Tls>,
        handler: Arc<dyn Handler>,
    ) -> io::Result<Self> {
        let reactor = Reactor::new(limits, handler, tls)?;
        for (listener, number) in listeners.into_iter().zip(1..) {
            reactor.listen(number, listener)?;
        }
        let mut net = Self { reactor, threads: Vec::new() };
        for number in 0..limits.threads.max(3) {
            net.spawn(format!("nfsd-{number}"), Reactor::run)?;
        }
        net.spawn("nfsd-time".into(), Reactor::run_timers)?;
        Ok(net)
    }

    fn spawn(&mut self, name: String, run: fn(&Arc<Reactor>)) -> io::Result<()> {
        let reactor = self.reactor.clone();
        self.threads.push(std::thread::Builder::new().name(name).spawn(move || run(&reactor))?);
        Ok(())
    }

    /// Returns the addresses that it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.reactor.addresses()
    }

    /// Returns the event counts.
    pub fn counters(&self) -> &Counters {
        &self.reactor.counters
    }

    /// Returns the number of open connections and of bytes held.
    pub fn held(&self) -> (usize, usize) {
        (self.reactor.budget().connections(), self.reactor.budget().bytes())
    }

    pub(crate) fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    /// Stops accepting connections and calls, finishes the calls in progress, and sends their replies.
    /// Waits at most `time` for that, then at most `close_time` for clients to close their connections.
    /// Returns whether all calls were answered.
    pub fn drain(&self, time: Duration, close_time: Duration) -> bool {
        self.reactor.drain(time, close_time)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.reactor.stop();
        for thread in self.threads.drain(..) {
            // A thread of the pool may drop this: it ends by itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
