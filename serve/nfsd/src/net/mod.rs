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
//!   (`busy_poll`). If a client sends many requests that need no I/O, the thread also stays with
//!   it, and writes replies together (`reply_batch`).
//! - Bytes are charged as they arrive ([`budget`]). If a message exceeds the limits, only its head is kept,
//!   to refuse it properly ([`record_reader`]).
//!
//! Lock order: a connection's `inbound`, `wire`, `poll_state`; then at most one of the tables of connections,
//! jobs and bytes. An account may be locked together with the budget's table.

pub mod budget;
mod busy_poll;
pub mod connection;
mod counters;
pub mod fair_queue;
mod limits;
pub mod listen;
pub(crate) mod reactor;
mod receiving;
pub mod record_reader;
pub(crate) mod reply_batch;
mod sending;
pub(crate) mod shared;
pub mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use connection::{Action, Handler};
pub use counters::{Counters, NetStats};
pub use limits::Limits;

use reactor::Reactor;
use tls::Tls;

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
        &self.reactor.shared().counters
    }

    /// Returns the number of open connections and of bytes held.
    pub fn held(&self) -> (usize, usize) {
        (self.reactor.shared().budget().connections(), self.reactor.shared().budget().bytes())
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
