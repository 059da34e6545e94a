//! Requests to a server: connects, recovers and repeats until there is an answer.
//!
//! A request keeps its slot while connections come and go, so the server executes it once. If the session is
//! lost while nobody knows whether a request was executed, it is in doubt: [`Client::call`] repeats it in the
//! next session, [`Client::call_once`] does not (N10).

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ivers_nfs4::ops::v40::ClientOwner;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, Opaque, OpenHow, SessionId};
use ivers_vfs::sync::{Condvar, RankedMutex, RankedMutexGuard, rank};
use ivers_vfs::{Cred, Error, Result, ServerError};

use crate::callbacks::BackState;
use crate::client_id;
use crate::clock::now_ms;
use crate::connection::{Broken, Connection};
use crate::counters::Counters;
use crate::establish::{self, Making, REPLY_BYTES_MAX, RPC_REPLY_BYTES};
use crate::exchange::{Exchange, Failure, SendOnce, Tried};
use crate::identity::Identity;
use crate::owner_seqids::OwnerSeqids;
use crate::reply::{Compound, Results};
use crate::session::{Acquired, Session, Slot};
use crate::spares::{Choice, Spares};
use crate::tls::Tls;

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
}

impl Default for Patience {
    fn default() -> Self {
        Self { reply: Duration::from_secs(60), request: None }
    }
}

/// The shortest and the longest pause before something is tried again.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest time that an attempt to connect takes.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that binding a spare connection takes.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);
/// Why the connections of a client that was stopped end.
const STOPPED: &str = "the client was stopped";
/// The most sessions whose callbacks are answered.
const SESSIONS: usize = 2;
/// How long a thread waits before it looks at its time limit.
const SLICE: Duration = Duration::from_millis(500);
/// What the server keeps for this client, and loses with the client ID.
pub trait Reclaim: Send + Sync {
    /// The server has lost it: reclaims what a restarted server returns. Called by the thread that makes a
    /// session, before another request uses it: `send` sends a request in it. Must not wait for threads that
    /// call the client.
    fn reclaim(&self, send: &SendOnce<'_>) -> Tried<()>;
}

/// What became of a request on a slot.
pub(crate) enum Answered {
    /// It was executed.
    Done(Compound),
    /// It was not executed.
    Not,
    /// Nobody knows, or its reply is gone.
    InDoubt,
}

/// A connection and a session on it.
type Linked = (Arc<Connection>, Arc<Session>);

/// The connection and the session that requests use.
pub(crate) struct Link {
    connection: Option<Arc<Connection>>,
    pub(crate) session: Option<Arc<Session>>,
    /// The newest sessions. Their callbacks are answered, also before and after requests use them.
    pub(crate) with_callbacks: Vec<Arc<Session>>,
    /// A connection on which a session is being made.
    new: Option<Arc<Connection>>,
    /// A thread is replacing one of them.
    pub(crate) busy: bool,
    /// The reply to CREATE_SESSION has arrived, or no session is being made.
    pub(crate) created: bool,
    /// There was a connection before.
    connected_before: bool,
    /// Not before this time. It moves with each connection, and back with the first reply on it.
    next_dial: Instant,
    pause: Duration,
}

/// When waiting ends; `None`: never.
pub(crate) struct Limit(pub(crate) Option<Instant>);

/// The results of a request.
pub struct Outcome {
    /// The status of the last operation that was executed.
    pub status: NfsStat,
    /// Its results, and those of the operations before it.
    pub results: Vec<OpResult>,
    /// The number of the request. Requests that begin later have larger numbers.
    pub sent: u64,
    /// How often the server had lost the state of this client before the request was executed.
    pub run: u64,
}

impl Outcome {
    /// Returns the results and when the request was sent, or the error of the operation that failed.
    pub fn ok(self, place: &str) -> Result<(Results, u64)> {
        let Self { status, results, sent, .. } = self;
        Ok((Compound { status, results }.ok(place)?, sent))
    }

    /// Returns whether the operation that failed may have changed a part of a file.
    fn may_have_changed_a_part(&self) -> bool {
        self.results.last().is_some_and(|last| {
            last.status() != NfsStat::Ok
                && matches!(
                    last.number(),
                    number::SETATTR
                        | number::WRITE
                        | number::ALLOCATE
                        | number::DEALLOCATE
                        | number::CLONE
                        | number::COPY
                )
        })
    }

    /// As [`Outcome::ok`], if the first `needed` operations succeeded, whatever became of those after them.
    pub fn up_to(self, needed: usize, place: &str) -> Result<(Results, u64)> {
        let succeeded = self.results.iter().filter(|result| result.status() == NfsStat::Ok).count();
        let status = if succeeded >= needed { NfsStat::Ok } else { self.status };
        Ok((Compound { status, results: self.results }.ok(place)?, self.sent))
    }
}

/// Returns whether an operation changes something on the server.
fn changes(op: u32) -> bool {
    matches!(
        op,
        number::OPEN
            | number::CLOSE
            | number::LOCK
            | number::LOCKU
            | number::CREATE
            | number::REMOVE
            | number::RENAME
            | number::LINK
            | number::SETATTR
            | number::WRITE
            | number::COMMIT
            | number::ALLOCATE
            | number::DEALLOCATE
            | number::CLONE
            | number::COPY
            | number::SETXATTR
            | number::REMOVEXATTR
            | number::FREE_STATEID
            | number::DELEGRETURN
    )
}

/// Returns whether an operation changes a file or its attributes.
fn alters(op: &Op) -> bool {
    let is_state = matches!(
        op.number(),
        number::CLOSE
            | number::LOCK
            | number::LOCKU
            | number::COMMIT
            | number::FREE_STATEID
            | number::DELEGRETURN
    );
    let only_opens = matches!(op, Op::Open(args) if args.how == OpenHow::NoCreate);
    changes(op.number()) && !is_state && !only_opens
}

/// A server, and the state that this client has on it.
pub struct Client {
    pub(crate) exchange: Exchange,
    /// This client's name for itself.
    owner: ClientOwner,
    /// The client ID that the server assigned.
    id: RankedMutex<rank::Leaf, Option<ClientId>>,
    /// NFSv4.0: the client ID, with its owners and stateids.
    pub(crate) client_id: RankedMutex<rank::Leaf, Option<Arc<OwnerSeqids>>>,
    pub(crate) patience: Patience,
    dial: Dial,
    tls: Option<Tls>,
    /// Held while [`Dial`] is called.
    dialling: RankedMutex<rank::Leaf, ()>,
    /// Further connections, besides that of the link.
    spares: Spares,
    pub(crate) link: RankedMutex<rank::Driver<1>, Link>,
    changed: Condvar,
    stopped: AtomicBool,
    sent: AtomicU64,
    counters: Counters,
    pub(crate) me: Weak<Self>,
    pub(crate) back: BackState,
    reclaim: OnceLock<Weak<dyn Reclaim>>,
    /// When the last request was answered, in milliseconds since `started`.
    last_answer_ms: AtomicU64,
    started: Instant,
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
            exchange: Exchange::new(name, identity, patience.reply, minor_version),
            owner: ClientOwner {
                verifier: rand::random(),
                id: Opaque(format!("ivers {unique:032x}").into_bytes()),
            },
            id: RankedMutex::default(),
            client_id: RankedMutex::default(),
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

    /// Returns the current session.
    pub fn session(&self) -> Result<Arc<Session>> {
        Ok(self.linked(&self.limit_of(self.patience.request))?.1)
    }

    /// Returns the connection and the session in use. Replaces what is missing.
    pub(crate) fn linked(&self, limit: &Limit) -> Result<Linked> {
        loop {
            let (connection, session, not_before, is_first) = {
                let mut link = self.link.lock();
                self.check(limit)?;
                if link.busy {
                    link.wait_for(&self.changed, SLICE);
                    continue;
                }
                let connection = link.connection.take().filter(|it| it.is_usable());
                let session = link.session.take().filter(|it| it.is_usable());
                if let (Some(connection), Some(session)) = (&connection, &session) {
                    (link.connection, link.session) = (Some(connection.clone()), Some(session.clone()));
                    return Ok((connection.clone(), session.clone()));
                }
                (link.busy, link.created) = (true, session.is_some());
                (connection, session, link.next_dial, !link.connected_before)
            };
            let made = self.make_link(connection, session, not_before, limit);
            let mut link = self.link.lock();
            (link.busy, link.new) = (false, None);
            self.changed.notify_all();
            let why = match made {
                Ok((connection, session)) => {
                    (link.connection, link.session) = (Some(connection.clone()), Some(session.clone()));
                    link.connected_before = true;
                    drop(link);
                    self.serve_callbacks(&connection, &session);
                    if self.stopped.load(Relaxed) {
                        connection.fail(STOPPED);
                    }
                    return Ok((connection, session));
                }
                Err((session, failure)) => {
                    link.session = session;
                    match failure {
                        Failure::Final(error) => return Err(error),
                        Failure::Broken(Broken(why)) => why,
                    }
                }
            };
            drop(link);
            if is_first {
                return Err(self.exchange.error(&format!("cannot connect: {why}")));
            }
            log::warn!("{}: {why}; trying again", self.name());
        }
    }

    /// Makes what is missing. On error returns the session that can still be used.
    fn make_link(
        &self,
        connection: Option<Arc<Connection>>,
        session: Option<Arc<Session>>,
        not_before: Instant,
        limit: &Limit,
    ) -> std::result::Result<Linked, (Option<Arc<Session>>, Failure)> {
        let is_new = connection.is_none();
        let connection = match connection {
            Some(connection) => connection,
            None => match self.dialled(not_before, limit) {
                Ok(connection) => connection,
                Err(failure) => return Err((session, failure)),
            },
        };
        match session {
            Some(session) => {
                if is_new
                    && session.back.is_some()
                    && let Err(error) = establish::bind(&self.exchange, &connection, &session, true, limit.0)
                {
                    return Err((Some(session), error.into()));
                }
                Ok((connection, session))
            }
            None => match self.make_session(&connection, limit) {
                Ok(session) => Ok((connection, session)),
                Err(failure) => Err((None, failure)),
            },
        }
    }

    fn make_session(&self, connection: &Connection, limit: &Limit) -> Tried<Arc<Session>> {
        let reclaim = self.reclaim.get().and_then(Weak::upgrade);
        let reclaim = |send: &SendOnce<'_>| reclaim.as_ref().map_or(Ok(()), |state| state.reclaim(send));
        if self.is_version_40() {
            let before = self.client_id.lock().clone();
            let reclaim = |send: &SendOnce<'_>| {
                self.state_is_lost();
                reclaim(send)
            };
            let before = before.as_ref();
            let session =
                client_id::session(&self.exchange, &self.owner, connection, limit.0, before, &reclaim)?;
            self.client_id.lock().clone_from(&session.seqids);
            Counters::count(&self.counters.sessions);
            return Ok(Arc::new(session));
        }
        let known = *self.id.lock();
        let making = Making {
            state_lost: &|| self.state_is_lost(),
            run: self.runs(),
            created: &|session| self.created(session),
            reclaim: &reclaim,
        };
        let (session, id) =
            establish::session(&self.exchange, &self.owner, connection, limit.0, known, &making)?;
        *self.id.lock() = Some(id);
        Counters::count(&self.counters.sessions);
        Ok(session)
    }

    /// Notes that a session exists. From then on its callbacks are answered.
    fn created(&self, session: &Arc<Session>) {
        let mut link = self.link.lock();
        link.created = true;
        link.with_callbacks.truncate(SESSIONS - 1);
        link.with_callbacks.insert(0, session.clone());
        drop(link);
        self.changed.notify_all();
    }

    /// Waits until the link may have changed.
    pub(crate) fn wait_for_link(&self, link: &mut RankedMutexGuard<'_, Link>) {
        link.wait_for(&self.changed, SLICE);
    }

    fn dialled(&self, not_before: Instant, limit: &Limit) -> Tried<Arc<Connection>> {
        self.rest(not_before.saturating_duration_since(Instant::now()), limit)?;
        let left = limit.0.map_or(DIAL_TIMEOUT, |end| end.saturating_duration_since(Instant::now()));
        let connected = {
            let _dialling = self.dialling.lock();
            (self.dial)(left.clamp(Duration::from_millis(1), DIAL_TIMEOUT))
        };
        let mut link = self.link.lock();
        link.pause = (link.pause * 2).min(PAUSES.1);
        link.next_dial = Instant::now() + link.pause;
        let stream = connected.map_err(|error| {
            if error.kind() == NO_RECONNECTION {
                return Failure::Final(self.exchange.error(&format!("the connection is lost: {error}")));
            }
            Failure::Broken(Broken(error.to_string()))
        })?;
        drop(link);
        let connection = self.connection(stream)?;
        self.link.lock().new = Some(connection.clone());
        // Before or after `stop` looked for it.
        self.check(limit)?;
        Ok(connection)
    }

    /// Makes a connection of a new socket, with TLS if the mount uses it.
    fn connection(&self, stream: TcpStream) -> std::result::Result<Arc<Connection>, Broken> {
        let wire = match &self.tls {
            None => stream.into(),
            Some(tls) => tls.start(stream, Instant::now() + DIAL_TIMEOUT, &|| self.is_stopped())?,
        };
        Counters::count(&self.counters.connections);
        Ok(Arc::new(Connection::new(wire, REPLY_BYTES_MAX + RPC_REPLY_BYTES)))
    }

    /// Returns the connection for a request in a slot: `first`, or a spare.
    pub(crate) fn carrier(&self, first: Arc<Connection>, session: &Session, slot: usize) -> Arc<Connection> {
        match self.spares.choose(slot, session.id) {
            Choice::First => first,
            Choice::Spare(spare) => spare,
            Choice::Make(nth, unbound) => {
                let made = self.make_spare(unbound, session);
                self.spares.made(nth, session.id, &made);
                if self.is_stopped() {
                    self.spares.fail(STOPPED);
                }
                made.unwrap_or_else(|Broken(why)| {
                    log::info!("{}: cannot make a further connection: {why}", self.name());
                    first
                })
            }
        }
    }

    /// Makes a connection, or takes `unbound`, and binds it to the session. If another server answers at the
    /// same address, it does not know the session, and the connection fails.
    fn make_spare(
        &self,
        unbound: Option<Arc<Connection>>,
        session: &Session,
    ) -> std::result::Result<Arc<Connection>, Broken> {
        let connection = match unbound {
            Some(connection) => connection,
            None => {
                let dialling =
                    self.dialling.try_lock().ok_or_else(|| Broken("another thread is connecting".into()))?;
                let stream = (self.dial)(BIND_TIMEOUT).map_err(|error| Broken(error.to_string()))?;
                drop(dialling);
                self.connection(stream)?
            }
        };
        let limit = Instant::now() + BIND_TIMEOUT;
        match establish::bind(&self.exchange, &connection, session, false, Some(limit)) {
            Err(error) => Err(connection.fail(error.to_string())),
            Ok(true) if connection.is_usable() => Ok(connection),
            Ok(_) => Err(connection.fail("the connection cannot be bound to the session")),
        }
    }

    /// Sends operations in the session and waits for their results. Repeats the request until the server
    /// executed it, perhaps twice if the session is lost.
    pub fn call(&self, caller: &Cred, ops: &[Op]) -> Result<Outcome> {
        self.call_within(caller, ops, self.patience.request)
    }

    /// As [`Client::call`], with a time limit of its own.
    pub fn call_within(&self, caller: &Cred, ops: &[Op], time: Option<Duration>) -> Result<Outcome> {
        self.repeat(caller, ops, time, false)
    }

    /// As [`Client::call_within`], for requests that other requests may wait for: it may use the last slot.
    pub fn call_urgently(&self, caller: &Cred, ops: &[Op], time: Option<Duration>) -> Result<Outcome> {
        self.repeat(caller, ops, time, true)
    }

    fn repeat(&self, caller: &Cred, ops: &[Op], time: Option<Duration>, urgent: bool) -> Result<Outcome> {
        let limit = self.limit_of(time);
        loop {
            if let Some(outcome) = self.attempt(caller, ops, &limit, urgent)? {
                return Ok(outcome);
            }
        }
    }

    /// As [`Client::call`], but never executed twice. `None`: it is in doubt whether it was executed.
    pub fn call_once(&self, caller: &Cred, ops: &[Op]) -> Result<Option<Outcome>> {
        self.attempt(caller, ops, &self.limit_of(self.patience.request), false)
    }

    /// Repeats a request until it is executed or in doubt (`None`).
    fn attempt(&self, caller: &Cred, ops: &[Op], limit: &Limit, urgent: bool) -> Result<Option<Outcome>> {
        let attempted = self.attempt_uncounted(caller, ops, limit, urgent);
        let is_unknown = match &attempted {
            Err(_) => ops.iter().any(|op| changes(op.number())),
            Ok(outcome) => outcome.as_ref().is_some_and(Outcome::may_have_changed_a_part),
        };
        if is_unknown {
            self.void_all();
        }
        if matches!(attempted, Err(Error::Server(ServerError::Timeout))) && ops.iter().any(alters) {
            self.back.pending_change.store(true, Release);
        }
        attempted
    }

    fn attempt_uncounted(
        &self,
        caller: &Cred,
        ops: &[Op],
        limit: &Limit,
        urgent: bool,
    ) -> Result<Option<Outcome>> {
        let auth = self.identity().auth(caller);
        Counters::count(&self.counters.requests);
        self.counters.operations(ops);
        let mut pause = PAUSES.0;
        loop {
            // Before the request, so that whatever happened on the server until here is in its results.
            let sent = self.sent.fetch_add(1, Relaxed) + 1;
            let (_, session) = self.linked(limit)?;
            let slot = match session.acquire(SLICE, urgent) {
                Acquired::Slot(slot) => slot,
                Acquired::Busy => {
                    self.check(limit)?;
                    continue;
                }
                Acquired::Dead => continue,
            };
            let Compound { status, results } =
                match self.on_slot(slot, (&session, sent), &auth, ops, limit)? {
                    Answered::Done(compound) => compound,
                    Answered::Not => continue,
                    Answered::InDoubt => return Ok(None),
                };
            // What was changed is not changed again because an operation after it asks for a pause.
            let changed = |result: &OpResult| result.status() == NfsStat::Ok && changes(result.number());
            if !matches!(status, NfsStat::Delay | NfsStat::Grace) || results.iter().any(changed) {
                return Ok(Some(Outcome { status, results, sent, run: session.run }));
            }
            Counters::count(&self.counters.retries);
            self.rest(pause, limit)?;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends the request `number`, and repeats it until it is answered.
    fn on_slot(
        &self,
        slot: Slot<'_>,
        (session, number): (&Session, u64),
        auth: &AuthSys,
        ops: &[Op],
        limit: &Limit,
    ) -> Result<Answered> {
        if let Some(seqids) = &session.seqids {
            return self.on_slot_40(slot, (session, seqids), auth, ops, limit);
        }
        let keeps_reply = ops.iter().any(|op| changes(op.number()));
        let mut pause = PAUSES.0;
        // The server may have executed it.
        let mut lost = Answered::Not;
        // Only the first request surely renews the lease: a server may answer a repeated one from its cache.
        let sent_at_ms = now_ms();
        loop {
            let (first, _) = self.linked(limit)?;
            let connection = self.carrier(first.clone(), session, slot.number());
            let has_callbacks = Arc::ptr_eq(&first, &connection);
            let sent = self.exchange.in_slot(&connection, (session, &slot), auth, ops, keeps_reply, limit.0);
            let answer = match sent {
                Ok(answer) => answer,
                Err(Failure::Final(error)) => {
                    slot.finish(false);
                    return Err(error);
                }
                Err(Failure::Broken(Broken(why))) => {
                    log::info!("{}: {why}", self.name());
                    lost = Answered::InDoubt;
                    self.check(limit)?;
                    Counters::count(&self.counters.retries);
                    continue;
                }
            };
            let mut results = answer.results.into_iter();
            let refused = match results.next() {
                Some(OpResult::Sequence(Ok(ok))) if slot.accepts(&ok) => {
                    self.heed(ok.status_flags, number);
                    if has_callbacks {
                        self.renewed(sent_at_ms);
                    }
                    self.answered(true);
                    slot.finish(true);
                    if answer.status == NfsStat::RetryUncachedRep {
                        return Ok(Answered::InDoubt);
                    }
                    let results = results.collect();
                    return Ok(Answered::Done(Compound { status: answer.status, results }));
                }
                Some(OpResult::Sequence(Ok(_))) => {
                    connection.fail("a reply for another slot");
                    lost = Answered::InDoubt;
                    continue;
                }
                _ => answer.status,
            };
            match refused {
                NfsStat::Delay => {
                    self.rest(pause, limit)?;
                    pause = (pause * 2).min(PAUSES.1);
                }
                NfsStat::ConnNotBoundToSession => {
                    self.rest(PAUSES.0, limit)?;
                    establish::bind(&self.exchange, &connection, session, has_callbacks, limit.0)?;
                }
                NfsStat::ReqTooBig | NfsStat::RepTooBig | NfsStat::RepTooBigToCache | NfsStat::TooManyOps => {
                    slot.finish(false);
                    return Err(crate::status::error(refused, self.name()));
                }
                other => {
                    log::info!("{}: the session is lost: {}", self.name(), other.name());
                    session.kill();
                    slot.finish(false);
                    // A server that refuses every session must not be asked without a pause.
                    self.rest(PAUSES.0, limit)?;
                    return Ok(lost);
                }
            }
        }
    }

    /// Notes that the server answers: a connection that breaks later is replaced at once. `renewed` says
    /// whether the request renewed the lease.
    pub(crate) fn answered(&self, renewed: bool) {
        if renewed {
            self.last_answer_ms.store(self.started.elapsed().as_millis() as u64, Relaxed);
        }
        if let Some(mut link) = self.link.try_lock()
            && link.pause > PAUSES.0
        {
            (link.pause, link.next_dial) = (PAUSES.0, Instant::now());
        }
    }

    /// Leaves the server, within a time limit. What it does not hear of, it forgets when the lease ends.
    pub fn leave(&self, time: Duration) {
        let limit = self.limit_of(Some(time));
        let left = self.linked(&limit).and_then(|(connection, session)| {
            session.kill();
            if session.seqids.is_some() {
                // All files are closed, and 4.0 has no operation that ends a client ID.
                return Ok(());
            }
            self.goodbye(&connection, session.id, &limit)
        });
        if let Err(error) = left {
            log::info!("{}: left without notice: {error}", self.name());
        }
        self.stop();
    }

    fn goodbye(&self, connection: &Connection, session: SessionId, limit: &Limit) -> Result<()> {
        let mut ops = vec![Op::DestroySession(session)];
        ops.extend(self.id.lock().map(Op::DestroyClientId));
        for op in &ops {
            match self.exchange.outside(connection, std::slice::from_ref(op), limit.0) {
                Ok(Compound { status: NfsStat::Ok, .. }) => {}
                Ok(Compound { status, .. }) => {
                    let name = number::name(op.number()).unwrap_or_default();
                    log::info!("{}: {name}: {}", self.name(), status.name());
                }
                Err(Failure::Broken(_)) => return Err(ServerError::Timeout.into()),
                Err(Failure::Final(error)) => return Err(error),
            }
        }
        Ok(())
    }
}
