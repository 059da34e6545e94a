//! Connections: records in and out, bounds on both, TLS, and the threads that do all the work. It knows nothing of RPC, let alone of NFS.
//!
//! # Why threads and epoll, and no async runtime
//!
//! What is done with a request is calls of the VFS, which block: under a runtime each would be handed to a thread of a pool, and its reply back. Two
//! wake-ups a request is what a small GETATTR costs in all. Here all threads are alike: each waits at one epoll; the one that an event wakes reads what has come, queues
//! it, and works on what is next itself. So a request of a client who waits for its answer is read, done and answered by one thread, without another's
//! being woken. A request that waits for a callback keeps no thread: its reply handle moves into a continuation. A connection costs a few hundred bytes and no
//! thread, so neither idle ones nor floods of them matter.
//!
//! - One thread of all is never busy with a request: somebody always reads ([`pool`]).
//! - Replies are written by whoever made them. What the socket does not take is queued, and written when the poller says so: nobody waits for a
//!   slow reader, and from a certain amount on nothing is done for him ([`pool::Pool::choke`]).
//! - Every socket is polled in one-shot mode: one thread at a time reads a connection, and while it works on what it read, another may read on.
//!   With a client that sends one request at a time the thread stays, and looks out for the next (`connection::stay`); with one that sends many which are answered out of memory
//!   it stays too, and writes replies together (`brief`).
//! - Bytes are booked as they come ([`budget`]); what there is no room for is passed on with its head alone ([`assemble`]), to be refused politely.
//!
//! Lock order: a connection's `inbound`, `wire`, `arm`; then the tables of connections, jobs and bytes, of which nobody holds two, but for an account and the book.

pub mod assemble;
pub(crate) mod brief;
pub mod budget;
pub mod connection;
pub(crate) mod hub;
pub mod listen;
pub mod pool;
pub mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use assemble::Message;
use budget::Bounds;
use connection::Connection;
use hub::Hub;
use ivers_linger::Linger;
use pool::Job;
use tls::Tls;

/// What is done with messages.
pub trait Handler: Send + Sync + 'static {
    /// One has come. Called by the thread that reads: it must not wait, nor work.
    fn message(&self, connection: &Arc<Connection>, message: Message) -> Action;

    /// A connection has ended.
    fn closed(&self, connection: &Arc<Connection>);

    /// Called a few times a second, for deadlines.
    fn tick(&self);
}

/// What becomes of a message.
pub enum Action {
    /// All is done.
    Nothing,
    /// Work for when it is this client's turn.
    Work(Job),
    /// The same, that says when it may take long (`brief`).
    Brief(Job),
    /// Work that others wait for.
    Urgent(Job),
    /// Send this record in the clear; everything behind it, in both directions, is TLS.
    StartTls(Vec<u8>),
    /// The connection is of no more use.
    Close(&'static str),
}

/// What is too much.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Threads in all, three at least.
    pub threads: usize,
    /// How long a thread looks out for the next request of a client that sends them one by one; zero: not at all.
    pub linger: Duration,
    /// The largest record. More ends a connection, so it must exceed what any session agrees to.
    pub record_bytes: usize,
    /// Requests, and replies that were not read yet.
    pub bounds: Bounds,
    /// With so many unread bytes, a connection's further requests wait.
    pub choke_bytes: usize,
    /// With so many, it ends.
    pub unsent_bytes: usize,
    /// In which a record must be complete.
    pub record_time: Duration,
    /// In which something must be asked over a connection that nobody keeps.
    pub idle_time: Duration,
    /// In which some of the unread bytes must be read.
    pub unread_time: Duration,
    /// In which TLS must be agreed on.
    pub handshake_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            threads: 16,
            linger: Linger::usual(),
            record_bytes: 2 * MIB,
            bounds: Bounds {
                // A session of 64 slots, each with a write of a MiB.
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

/// What has happened since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that came.
    pub connections: AtomicU64,
    /// Those that were turned away.
    pub connections_refused: AtomicU64,
    /// Bytes received, as they came over the wire.
    pub bytes_in: AtomicU64,
    /// Bytes sent.
    pub bytes_out: AtomicU64,
    /// Calls taken.
    pub calls: AtomicU64,
    /// Calls that there was no room for.
    pub calls_refused: AtomicU64,
    /// Calls to clients.
    pub callbacks: AtomicU64,
    /// Those that were not answered in time.
    pub callbacks_late: AtomicU64,
    /// Jobs that ended in a panic: mistakes of ours.
    pub panics: AtomicU64,
}

/// [`Counters`] at a moment, and what there is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the counters' own are at `Counters`")]
pub struct NetStats {
    /// Connections that there are now.
    pub connections: u64,
    /// Bytes that requests and unread replies hold now.
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

/// Threads that serve until this is dropped.
pub struct Net {
    hub: Arc<Hub>,
    threads: Vec<JoinHandle<()>>,
}

impl Net {
    /// Serve.
    pub fn start(
        limits: Limits,
        listeners: Vec<TcpListener>,
        tls: Option<Tls>,
        handler: Arc<dyn Handler>,
    ) -> io::Result<Self> {
        let hub = Hub::new(limits, handler, tls)?;
        for (listener, number) in listeners.into_iter().zip(1..) {
            hub.listen(number, listener)?;
        }
        let mut net = Self { hub, threads: Vec::new() };
        for number in 0..limits.threads.max(3) {
            net.spawn(format!("nfsd-{number}"), Hub::run)?;
        }
        net.spawn("nfsd-time".into(), Hub::keep_time)?;
        Ok(net)
    }

    fn spawn(&mut self, name: String, run: fn(&Arc<Hub>)) -> io::Result<()> {
        let hub = self.hub.clone();
        self.threads.push(std::thread::Builder::new().name(name).spawn(move || run(&hub))?);
        Ok(())
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.hub.listening_on()
    }

    /// What has happened.
    pub fn counters(&self) -> &Counters {
        &self.hub.counters
    }

    /// Connections now, and bytes that are held now.
    pub fn held(&self) -> (usize, usize) {
        (self.hub.budget().connections(), self.hub.budget().bytes())
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Accept nobody any more, take no new calls, finish those under way and send their replies, for at most `time`; then wait at most `linger` for the others to
    /// take leave. Whether everything was answered.
    pub fn drain(&self, time: Duration, linger: Duration) -> bool {
        self.hub.drain(time, linger)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.hub.stop();
        for thread in self.threads.drain(..) {
            // One of the threads may be the one that drops this: it ends by itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
