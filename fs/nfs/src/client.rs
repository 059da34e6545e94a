//! A client of a server: what its threads share, and how long they wait.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ivers_busy_poll::BusyPoller;
use ivers_nfs4::ops::v40::ClientOwner;
use ivers_nfs4::types::{ClientId, Opaque};
use ivers_vfs::sync::{Condvar, RankedMutex, rank};
use ivers_vfs::{Result, ServerError};

use crate::callbacks::BackState;
use crate::clock::Renewal;
use crate::connection::Connection;
use crate::counters::Counters;
use crate::exchange::{Exchange, SendOnce, Tried};
use crate::identity::Identity;
use crate::owner_seqids::OwnerSeqids;
use crate::session::Session;
use crate::spares::Spares;
use crate::tls::Tls;
use crate::unfinished::Unfinished;

/// Returns a socket of [`connect`](crate::connect), within a time limit. Called by one thread at a time.
/// [`NO_RECONNECTION`] as the kind of an error: it is no use to try again.
pub type Dial = Box<dyn Fn(Duration) -> std::io::Result<TcpStream> + Send + Sync>;

/// The kind of the error of a [`Dial`] that connects only once.
pub const NO_RECONNECTION: std::io::ErrorKind = std::io::ErrorKind::Unsupported;

/// How long requests wait for a server that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// After this time without a reply, the connection is replaced and the request sent again.
    pub reply: Duration,
    /// After this time in all, a request fails. `None`: never (a "hard" mount).
    pub request: Option<Duration>,
    /// How long a thread polls for a reply before it sleeps.
    pub busy_poll: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { reply: Duration::from_secs(60), request: None, busy_poll: BusyPoller::default_duration() }
    }
}

/// The shortest and the longest pause before something is tried again.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Why the connections of a client that was stopped end.
pub(crate) const STOPPED: &str = "the client was stopped";
/// How long a thread waits before it looks at its time limit.
pub(crate) const SLICE: Duration = Duration::from_millis(500);

/// What the server keeps for this client, and loses with the client ID.
pub trait Reclaim: Send + Sync {
    /// The server has lost it: reclaims what a restarted server returns. Called by the thread that makes a
    /// session, before another request uses it: `send` sends a request in it. Must not wait for threads that
    /// call the client.
    fn reclaim(&self, send: &SendOnce<'_>) -> Tried<()>;
}

/// The connection and the session that requests use.
pub(crate) struct Link {
    pub(crate) connection: Option<Arc<Connection>>,
    pub(crate) session: Option<Arc<Session>>,
    /// The newest sessions. Their callbacks are answered, also before and after requests use them.
    pub(crate) with_callbacks: Vec<Arc<Session>>,
    /// A connection on which a session is being made.
    pub(crate) new: Option<Arc<Connection>>,
    /// A thread is replacing one of them.
    pub(crate) busy: bool,
    /// The reply to CREATE_SESSION has arrived, or no session is being made.
    pub(crate) created: bool,
    /// There was a connection before.
    pub(crate) connected_before: bool,
    /// Not before this time. It moves with each connection, and back with the first reply on it.
    pub(crate) next_dial: Instant,
    pub(crate) pause: Duration,
}

/// When waiting ends; `None`: never.
pub(crate) struct Limit(pub(crate) Option<Instant>);

/// A server, and the state that this client has on it.
pub struct Client {
    pub(crate) exchange: Exchange,
    /// This client's name for itself.
    pub(crate) owner: ClientOwner,
    /// The client ID that the server assigned.
    pub(crate) id: RankedMutex<rank::Leaf, Option<ClientId>>,
    /// NFSv4.0: the client ID, with its owners and stateids.
    pub(crate) client_id: RankedMutex<rank::Leaf, Option<Arc<OwnerSeqids>>>,
    /// NFSv4.0: a reclaim that was cut.
    pub(crate) unfinished: RankedMutex<rank::Leaf, Option<Unfinished>>,
    pub(crate) patience: Patience,
    pub(crate) dial: Dial,
    pub(crate) tls: Option<Tls>,
    /// Held while [`Dial`] is called.
    pub(crate) dialling: RankedMutex<rank::Leaf, ()>,
    /// Further connections, besides that of the link.
    pub(crate) spares: Spares,
    pub(crate) link: RankedMutex<rank::Driver<1>, Link>,
    pub(crate) changed: Condvar,
    stopped: AtomicBool,
    pub(crate) sent: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) me: Weak<Self>,
    pub(crate) back: BackState,
    pub(crate) renewal: Arc<Renewal>,
    pub(crate) reclaim: OnceLock<Weak<dyn Reclaim>>,
    /// When the last request was answered, in milliseconds since `started`.
    pub(crate) last_answer_ms: AtomicU64,
    pub(crate) started: Instant,
}

impl Client {
    /// Connects and makes a session. The first connection is not tried twice. `connections` is the most
    /// connections that carry requests. `minor_version` as in [`NfsOptions`](crate::NfsOptions).
    pub fn connect(
        name: String,
        dial: Dial,
        identity: Identity,
        patience: Patience,
        connections: usize,
        tls: Option<Tls>,
        minor_version: Option<u32>,
    ) -> Result<Arc<Self>> {
        let unique: u128 = rand::random();
        let now = Instant::now();
        let client = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            back: BackState::default(),
            renewal: Arc::default(),
            exchange: Exchange::new(name, identity, patience.reply, minor_version),
            owner: ClientOwner {
                verifier: rand::random(),
                id: Opaque(format!("ivers {unique:032x}").into_bytes()),
            },
            id: RankedMutex::default(),
            client_id: RankedMutex::default(),
            unfinished: RankedMutex::default(),
            patience,
            dial,
            tls,
            dialling: RankedMutex::default(),
            spares: Spares::new(connections.saturating_sub(1)),
            link: RankedMutex::new(Link {
                connection: None,
                session: None,
                with_callbacks: Vec::new(),
                new: None,
                busy: false,
                created: false,
                connected_before: false,
                next_dial: now,
                pause: PAUSES.0,
            }),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            counters: Counters::default(),
            reclaim: OnceLock::new(),
            last_answer_ms: AtomicU64::new(0),
            started: now,
        });
        // A mount that cannot start must say so, however patient its requests are later.
        client.linked(&client.limit_of(Some(patience.reply)))?;
        Ok(client)
    }

    /// Sets who reclaims state. Before anything is opened.
    pub fn set_reclaim(&self, reclaim: Weak<dyn Reclaim>) {
        let _ = self.reclaim.set(reclaim);
    }

    /// Returns the server in messages.
    pub fn name(&self) -> &str {
        &self.exchange.name
    }

    /// Returns which credentials requests carry.
    pub fn identity(&self) -> &Identity {
        &self.exchange.identity
    }

    pub(crate) fn limit_of(&self, time: Option<Duration>) -> Limit {
        Limit(time.and_then(|time| Instant::now().checked_add(time)))
    }

    /// Returns the error for a wait that must end.
    pub(crate) fn check(&self, limit: &Limit) -> Result<()> {
        let over = limit.0.is_some_and(|end| Instant::now() >= end);
        if over || self.stopped.load(Relaxed) { Err(ServerError::Timeout.into()) } else { Ok(()) }
    }

    /// Waits, unless the client is stopped.
    pub(crate) fn rest(&self, time: Duration, limit: &Limit) -> Result<()> {
        let end = Instant::now() + time;
        let mut link = self.link.lock();
        loop {
            self.check(limit)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            link.wait_for(&self.changed, left.min(SLICE));
        }
    }

    /// From now on every wait fails, and no new one starts.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
        let connections = {
            let mut link = self.link.lock();
            [link.connection.take(), link.new.take()]
        };
        connections.iter().flatten().for_each(|it| drop(it.fail(STOPPED)));
        self.spares.fail(STOPPED);
        self.changed.notify_all();
    }

    /// Returns whether [`Client::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Returns the time since the server last answered.
    pub fn idle(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.last_answer_ms.load(Relaxed)))
    }

    /// Returns for how many files a request can have two operations. Waits for no session.
    pub(crate) fn pairs_max(&self) -> usize {
        let link = self.link.lock();
        let operations = link.session.as_ref().map_or(0, |session| session.operations_max);
        (operations.saturating_sub(1) / 2).max(1)
    }

    /// Returns the minor version of NFSv4 in use.
    pub fn minor_version(&self) -> u32 {
        self.exchange.minor.load(Relaxed)
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of sessions so far.
    pub fn sessions(&self) -> u64 {
        self.counters.sessions.load(Relaxed)
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}
