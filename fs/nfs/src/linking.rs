//! The connection and the session that requests use: making them, and replacing what is lost.

use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ivers_nfs4::attr;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, SessionId};
use ivers_vfs::sync::RankedMutexGuard;
use ivers_vfs::{Cred, Result, ServerError};

use crate::attributes;
use crate::client::{Client, Limit, Link, NO_RECONNECTION, PAUSES, SLICE, STOPPED};
use crate::client_id;
use crate::connection::{Broken, Connection};
use crate::counters::Counters;
use crate::establish::{self, Making, REPLY_BYTES_MAX, RPC_REPLY_BYTES};
use crate::exchange::{Failure, SendOnce, Tried};
use crate::reply::Compound;
use crate::session::Session;
use crate::spares::Choice;

/// The longest time that an attempt to connect takes.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that binding a spare connection takes.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a server is asked for its lease time again if it asks for a pause.
const LEASE_ATTEMPTS: usize = 10;
/// The most sessions whose callbacks are answered.
const SESSIONS: usize = 2;

/// A connection and a session on it.
type Linked = (Arc<Connection>, Arc<Session>);

impl Client {
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
                    if self.is_stopped() {
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
        let reclaim = |send: &SendOnce<'_>| {
            let lease = self.ask_for_lease(send)?;
            if let Some(seconds) = lease {
                self.renewal.set_lease(seconds);
            }
            reclaim.as_ref().map_or(Ok(()), |state| state.reclaim(send))?;
            self.set_lease(lease);
            Ok(())
        };
        if self.is_version_40() {
            let before = self.client_id.lock().clone();
            let mut unfinished = self.unfinished.lock().take();
            let making = client_id::Making {
                before: before.as_ref(),
                unfinished: &mut unfinished,
                state_lost: &|| {
                    self.state_is_lost();
                },
                reclaim: &reclaim,
            };
            let made = client_id::session(&self.exchange, &self.owner, connection, limit.0, making);
            *self.unfinished.lock() = unfinished;
            let session = made?;
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

    /// Asks a server that restarted for its lease time, which may be another one than before (D3).
    fn ask_for_lease(&self, send: &SendOnce<'_>) -> Tried<Option<u32>> {
        let ops = [Op::PutRootFh(()), Op::GetAttr(Bitmap::of([attr::LEASE_TIME]))];
        let mut compound = send(&Cred::system(), &ops)?;
        for _ in 0..LEASE_ATTEMPTS {
            if compound.status != NfsStat::Delay || self.is_stopped() {
                break;
            }
            std::thread::sleep(PAUSES.0);
            compound = send(&Cred::system(), &ops)?;
        }
        let seconds = match compound.results.pop() {
            Some(OpResult::GetAttr(Ok(fattr))) => {
                attributes::decode(&fattr, self.name()).ok().and_then(|attributes| attributes.lease_time)
            }
            _ => None,
        };
        if seconds.is_none() {
            log::info!("{}: the server does not say its lease time", self.name());
        }
        Ok(seconds)
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
        // A concurrent `stop` either finds this connection, or makes this check fail.
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
        let reply_bytes_max = REPLY_BYTES_MAX + RPC_REPLY_BYTES;
        Ok(Arc::new(Connection::new(wire, reply_bytes_max, self.patience.busy_poll)))
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
