//! One connection: its socket, its limits, its epoll registration, and its end. `receiving` contains what
//! arrives on it, `sending` what is sent on it.
//!
//! Lock order: `inbound` (held by the one thread that reads), `wire`, `poll_state`. No lock is held while a
//! connection is closed.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ivers_busy_poll::PollHistory;
use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustls::ServerConnection;

use super::budget::{Account, Charge, ClientKey};
use super::fair_queue::Job;
use super::limits::Limits;
use super::record_reader::{Message, RecordReader};
use super::shared::Shared;
use super::tls::TlsPeer;

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

/// The open connections, and what handles their messages.
pub(super) struct Connections {
    pub(super) handler: Arc<dyn Handler>,
    pub(super) open: Mutex<HashMap<u64, Arc<Connection>>>,
}

impl Connections {
    pub(super) fn new(handler: Arc<dyn Handler>) -> Self {
        Self { handler, open: Mutex::default() }
    }
}

pub(super) struct Inbound {
    pub(super) reader: RecordReader,
    pub(super) tls: bool,
    /// Jobs that the current round of reading produced, and whether all of them are non-blocking.
    pub(super) jobs: usize,
    pub(super) all_non_blocking: bool,
}

pub(super) struct Wire {
    pub(super) queue: VecDeque<Vec<u8>>,
    /// Bytes sent of the first record in the queue.
    pub(super) sent: usize,
    pub(super) unsent: usize,
    pub(super) charge: Charge,
    pub(super) tls: Option<Box<ServerConnection>>,
    /// Since when the socket accepts no bytes.
    pub(super) stuck: Option<Instant>,
    pub(super) choked: bool,
    /// The connection is not established yet.
    pub(super) connecting: bool,
}

/// State of a busy-polling thread.
pub(super) struct PollId {
    /// Identifies this busy poll: another one may have started when the thread returns.
    pub(super) number: u64,
    /// Number of periodic checks since the thread last polled.
    pub(super) ticks: u8,
}

/// Which events epoll reports. It reports once, then it must be re-armed.
pub(super) struct PollState {
    /// A thread is reading.
    pub(super) reading: bool,
    /// The reading thread keeps polling after it executed what it read.
    pub(super) busy_poll: Option<PollId>,
    /// Number of busy polls so far; identifies each of them.
    pub(super) busy_polls: u64,
    /// Bytes wait to be written.
    pub(super) out: bool,
}

/// The result of one round of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// No complete message.
    Nothing,
    /// Only non-blocking jobs.
    NonBlocking,
    /// Jobs that may block.
    Other,
}

/// A connection.
pub struct Connection {
    pub(super) id: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) others: Arc<Connections>,
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// The server opened the connection.
    pub(super) dialled: bool,
    pub(super) account: Arc<Account>,
    pub(super) inbound: Mutex<Inbound>,
    pub(super) wire: Mutex<Wire>,
    pub(super) poll_state: Mutex<PollState>,
    /// Number of consecutive messages that arrived while no call was in progress; at most
    /// [`MIN_TURNS`](super::busy_poll::MIN_TURNS).
    pub(super) turns: AtomicU8,
    pub(super) poll_history: PollHistory,
    pub(super) closed: AtomicBool,
    pub(super) is_kept: AtomicBool,
    pub(super) calls_in_progress: AtomicUsize,
    /// When a message was last complete, in milliseconds of the server's clock.
    pub(super) last_message_ms: AtomicU64,
    /// When the current, incomplete message started to arrive; 0 if there is none.
    pub(super) message_start_ms: AtomicU64,
    pub(super) tls_start: OnceLock<Instant>,
    pub(super) tls_peer: OnceLock<TlsPeer>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection {} of {}", self.id, self.peer)
    }
}

impl Connection {
    pub(super) fn new(
        id: u64,
        shared: &Arc<Shared>,
        others: &Arc<Connections>,
        stream: TcpStream,
        peer: SocketAddr,
        account: Arc<Account>,
        dialled: bool,
    ) -> std::io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
        let local = stream.local_addr()?;
        let reader = RecordReader::new(account.clone(), shared.limits.record_bytes);
        let inbound = Inbound { reader, tls: false, jobs: 0, all_non_blocking: true };
        let wire = Wire {
            queue: VecDeque::new(),
            sent: 0,
            unsent: 0,
            charge: account.empty_charge(),
            tls: None,
            stuck: None,
            choked: false,
            connecting: dialled,
        };
        Ok(Arc::new(Self {
            id,
            shared: shared.clone(),
            others: others.clone(),
            stream,
            peer,
            local,
            dialled,
            account,
            inbound: Mutex::new(inbound),
            wire: Mutex::new(wire),
            poll_state: Mutex::new(PollState {
                reading: false,
                busy_poll: None,
                busy_polls: 0,
                out: dialled,
            }),
            turns: AtomicU8::new(0),
            poll_history: PollHistory::default(),
            closed: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            calls_in_progress: AtomicUsize::new(0),
            last_message_ms: AtomicU64::new(shared.now_ms()),
            message_start_ms: AtomicU64::new(0),
            tls_start: OnceLock::new(),
            tls_peer: OnceLock::new(),
        }))
    }

    /// Returns a number that is unique in this server.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the local address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the client that the limits apply to.
    pub fn client(&self) -> ClientKey {
        self.account.client()
    }

    /// Returns whether the server opened the connection.
    pub fn dialled(&self) -> bool {
        self.dialled
    }

    /// Returns whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the TLS peer after the handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&TlsPeer> {
        self.tls_peer.get()
    }

    /// Returns the socket, for passing it to another process.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Marks the connection as in use, because a session or a client belongs to it. It is not closed for
    /// idleness, nor to make room for new connections.
    pub fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Returns what it shares with the other connections.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Counts a call in progress.
    pub(crate) fn call_started(&self) {
        self.calls_in_progress.fetch_add(1, Ordering::Relaxed);
        self.shared.calls_in_progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a call.
    pub(crate) fn call_ended(&self) {
        self.calls_in_progress.fetch_sub(1, Ordering::Relaxed);
        self.shared.calls_in_progress.fetch_sub(1, Ordering::Release);
    }

    /// Returns whether TLS may start: no call is in progress, everything is sent, and TLS has not started.
    pub(crate) fn is_quiet(&self) -> bool {
        let wire = self.wire.lock();
        self.calls_in_progress.load(Ordering::Acquire) == 0 && wire.unsent == 0 && wire.tls.is_none()
    }

    /// Returns whether the peer does not read its replies.
    pub(crate) fn is_choked(&self) -> bool {
        self.wire.lock().choked
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.wire.lock().connecting
    }

    pub(super) fn unsent(&self) -> usize {
        self.wire.lock().unsent
    }

    fn interest(state: &PollState) -> EventFlags {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN | EventFlags::RDHUP, !state.reading);
        flags.set(EventFlags::OUT, state.out);
        flags
    }

    pub(super) fn rearm(&self, state: &PollState) {
        // This fails if the connection was closed concurrently; then no events are needed.
        let _ = epoll::modify(
            &self.shared.epoll,
            &self.stream,
            EventData::new_u64(self.id),
            Self::interest(state),
        );
    }

    pub(super) fn register(&self) -> std::io::Result<()> {
        let state = self.poll_state.lock();
        epoll::add(&self.shared.epoll, &self.stream, EventData::new_u64(self.id), Self::interest(&state))?;
        Ok(())
    }

    /// Returns the reason to close the connection if a deadline has passed.
    pub(super) fn overdue(&self, now_ms: u64) -> Option<&'static str> {
        let Limits { record_time, idle_time, unread_time, handshake_time, .. } = self.shared.limits;
        let past = |since_ms: u64, time: Duration| now_ms.saturating_sub(since_ms) > time.as_millis() as u64;
        let begun = self.message_start_ms.load(Ordering::Relaxed);
        if begun != 0 && past(begun, record_time) {
            return Some("timeout: incomplete record");
        }
        if self.tls_start.get().is_some_and(|at| at.elapsed() > handshake_time) && self.tls().is_none() {
            return Some("timeout: TLS handshake");
        }
        if self.wire.lock().stuck.is_some_and(|at| at.elapsed() > unread_time) {
            return Some("timeout: replies are not read");
        }
        if self.is_dispensable() && past(self.last_message_ms.load(Ordering::Relaxed), idle_time) {
            return Some("timeout: idle");
        }
        None
    }

    /// Returns whether the connection has no session and no call in progress.
    pub(super) fn is_dispensable(&self) -> bool {
        !self.is_kept.load(Ordering::Relaxed) && self.calls_in_progress.load(Ordering::Relaxed) == 0
    }

    pub(super) fn last_message_ms(&self) -> u64 {
        self.last_message_ms.load(Ordering::Relaxed)
    }

    /// Shuts down the sending direction. Reading goes on.
    pub(super) fn shut_down_writes(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection. Calls in progress continue, but their replies are lost.
    pub fn close(self: &Arc<Self>, why: &str) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        log::debug!("{self:?} closed: {why}");
        let _ = epoll::delete(&self.shared.epoll, &self.stream);
        let _ = self.stream.shutdown(Shutdown::Both);
        self.others.open.lock().remove(&self.id);
        drop(self.shared.queue.remove(self.client(), self.id));
        self.account.close();
        {
            let mut wire = self.wire.lock();
            wire.queue.clear();
            wire.unsent = 0;
            wire.stuck = None;
            wire.charge.shrink(usize::MAX);
        }
        if let Some(mut inbound) = self.inbound.try_lock() {
            inbound.reader = RecordReader::new(self.account.clone(), 0);
        }
        self.others.handler.closed(self);
    }
}
