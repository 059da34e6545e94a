//! RPC calls and replies (RFC 5531): the called program, the caller, and the reply. This module knows no
//! files.
//!
//! A [`Program`] gets calls of its versions, of procedures other than 0, with a valid `AUTH_NONE` or
//! `AUTH_SYS` credential. The reading thread answers all other calls here.
//! A call comes with a [`ReplyHandle`], which any thread may use later: no thread waits.
//!
//! `AUTH_TLS` starts TLS (RFC 9289) if TLS is configured. `RPCSEC_GSS` and other flavors are refused (RFC
//! 5531 section 8.2).

mod call;
mod callback;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ivers_nfs4::PROC_NULL;
use ivers_nfs4::rpc::{
    AUTH_NONE, AUTH_SYS, AUTH_TLS, AuthStat, AuthSys, BadCall, CallHeader, Kind, OpaqueAuth, RPC_VERSION,
    Reply, STARTTLS, Versions,
};
use ivers_nfs4::xdr::{Decoder, Xdr};

pub use call::{Call, Caller, Credential, ReplyHandle};
pub use callback::{Answer, CallbackError, Callbacks, Outcome, Procedure};

use crate::net::connection::Connection;
use crate::net::reactor::Reactor;
use crate::net::record_reader::Message;
use crate::net::reply_batch::NonBlocking;
pub(crate) use crate::net::reply_batch::about_to_block;
use crate::net::tls::Tls;
use crate::net::{Action, Counters, Handler, Limits, Net, NetStats};
use call::without_results;

/// An RPC program.
pub trait Program: Send + Sync + 'static {
    /// Returns its program number.
    fn number(&self) -> u32;

    /// Returns its versions.
    fn versions(&self) -> RangeInclusive<u32>;

    /// Executes a call on a thread of the server. May block on file I/O, but not on another client's reply.
    fn call(&self, call: Call, reply: ReplyHandle);

    /// Returns the results that tell the client to try again later, for a call that exceeds the limits.
    /// Returning `None` closes the connection.
    /// The call may have lost all but its head. Runs on the reading thread: it must be quick.
    fn busy(&self, call: &Call) -> Option<Vec<u8>>;

    /// Returns whether [`Self::call`] calls `about_to_block` before it does anything that may block.
    fn announces_blocking(&self) -> bool {
        false
    }

    /// Tells that a connection is closed. Runs on any thread, which holds no lock of this module; it must be
    /// quick.
    fn closed(&self, _connection: &Arc<Connection>) {}
}

/// Runs jobs on the threads of the server.
#[derive(Clone)]
pub struct Workers {
    reactor: Weak<Reactor>,
}

impl Workers {
    /// Runs a job before all queued requests.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(reactor) = self.reactor.upgrade() {
            reactor.shared().push_urgent(Box::new(job));
        }
    }

    /// Runs a job after `time`.
    pub fn after(&self, time: Duration, job: impl FnOnce() + Send + 'static) {
        if let Some(reactor) = self.reactor.upgrade() {
            reactor.shared().after(time, Box::new(job));
        }
    }

    /// Returns network statistics; `None` after the server ended.
    pub fn net(&self) -> Option<NetStats> {
        Some(self.reactor.upgrade()?.shared().stats())
    }

    /// Adds an outgoing connection for callbacks ([`Callbacks::call`]). Calls made before it is established
    /// are queued. They fail if it is not established within `time`.
    pub fn add_dialled(
        &self,
        stream: TcpStream,
        to: SocketAddr,
        time: Duration,
    ) -> io::Result<Arc<Connection>> {
        match self.reactor.upgrade() {
            Some(reactor) => reactor.add_dialled(stream, to, time),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Connects to a client for callbacks, as [`Self::add_dialled`] does with an existing socket.
    pub fn dial(&self, to: SocketAddr, time: Duration) -> io::Result<Arc<Connection>> {
        match self.reactor.upgrade() {
            Some(reactor) => reactor.dial(to, time),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

struct Dispatcher {
    programs: Vec<Arc<dyn Program>>,
    callbacks: Arc<Callbacks>,
    /// Set after the threads started.
    reactor: OnceLock<Weak<Reactor>>,
}

/// An RPC server, which runs until this is dropped.
pub struct Server {
    net: Net,
}

impl Server {
    /// Starts the threads and listens.
    pub fn start(
        limits: Limits,
        listeners: Vec<TcpListener>,
        tls: Option<Tls>,
        programs: Vec<Arc<dyn Program>>,
        callbacks: Arc<Callbacks>,
    ) -> io::Result<Self> {
        let dispatcher = Arc::new(Dispatcher { programs, callbacks, reactor: OnceLock::new() });
        let net = Net::start(limits, listeners, tls, dispatcher.clone())?;
        let _ = dispatcher.reactor.set(Arc::downgrade(net.reactor()));
        Ok(Self { net })
    }

    /// Returns the addresses that it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.net.addresses()
    }

    /// Returns a handle for running jobs on its threads.
    pub fn workers(&self) -> Workers {
        Workers { reactor: Arc::downgrade(self.net.reactor()) }
    }

    /// Returns the event counts.
    pub fn counters(&self) -> &Counters {
        self.net.counters()
    }

    /// Returns the number of open connections and of bytes held.
    pub fn held(&self) -> (usize, usize) {
        self.net.held()
    }

    /// Stops gracefully ([`Net::drain`]).
    pub fn drain(&self, time: Duration, close_time: Duration) -> bool {
        self.net.drain(time, close_time)
    }
}

impl Handler for Dispatcher {
    fn message(&self, connection: &Arc<Connection>, message: Message) -> Action {
        match Kind::of(&message.bytes) {
            Ok(Kind::Call) if connection.dialled() => {
                Action::Close("call received on a connection for callbacks")
            }
            Ok(Kind::Call) => self.handle_call(connection, message),
            Ok(Kind::Reply(xid)) => {
                let Message { bytes, is_complete, .. } = message;
                // An unexpected reply is late or forged: ignore it.
                self.callbacks
                    .handle_reply(connection, xid, bytes, is_complete)
                    .map_or(Action::Done, Action::Urgent)
            }
            Err(_) => Action::Close("record is neither a call nor a reply"),
        }
    }

    fn closed(&self, connection: &Arc<Connection>) {
        self.callbacks.closed(connection);
        self.programs.iter().for_each(|program| program.closed(connection));
    }

    fn tick(&self) {
        let Some(reactor) = self.reactor.get().and_then(Weak::upgrade) else { return };
        let late = self.callbacks.tick(|job| reactor.shared().push_urgent(job));
        reactor.shared().counters.callbacks_late.fetch_add(late, Ordering::Relaxed);
    }
}

impl Dispatcher {
    fn handle_call(&self, connection: &Arc<Connection>, message: Message) -> Action {
        let shared = connection.shared();
        // The client notices that the connection is closed, reconnects and sends the call again.
        if shared.is_draining() {
            return Action::Done;
        }
        shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        let answer = |xid: u32, reply: &Reply| {
            connection.send(without_results(xid, reply).into_bytes());
            Action::Done
        };
        let mut from = Decoder::new(&message.bytes);
        let header = match CallHeader::take(&mut from) {
            Ok(header) => header,
            // [RFC5531 9]
            Err(BadCall::RpcVersion { xid }) => {
                let versions = Versions { low: RPC_VERSION, high: RPC_VERSION };
                return answer(xid, &Reply::RpcMismatch(versions));
            }
            Err(BadCall::Auth { xid, why }) => return answer(xid, &Reply::AuthError(why)),
            Err(BadCall::Unanswerable(_)) => return Action::Close("call with an invalid header"),
        };
        let arguments_at = message.bytes.len() - from.remaining();
        let CallHeader { xid, version, procedure, .. } = header;
        let credential = match header.cred.flavor {
            AUTH_NONE => Credential::None,
            AUTH_SYS => match AuthSys::from_bytes(&header.cred.body) {
                Ok(sys) => Credential::Sys(sys),
                Err(_) => return answer(xid, &Reply::AuthError(AuthStat::BadCred)),
            },
            AUTH_TLS if shared.offers_tls() => return start_tls(connection, &header),
            _ => return answer(xid, &Reply::AuthError(AuthStat::BadCred)),
        };
        let Some(program) = self.programs.iter().find(|program| program.number() == header.program) else {
            return answer(xid, &Reply::ProgramUnavailable);
        };
        // [RFC5531 9]
        let versions = program.versions();
        if !versions.contains(&version) {
            let versions = Versions { low: *versions.start(), high: *versions.end() };
            return answer(xid, &Reply::ProgramMismatch(versions));
        }
        if procedure == PROC_NULL {
            return answer(xid, &Reply::SUCCESS);
        }
        let Message { bytes, charge, is_complete } = message;
        let caller = Caller { connection: connection.clone(), credential };
        let call = Call { caller, xid, version, procedure, message: bytes, arguments_at };
        let reply = ReplyHandle::new(connection.clone(), xid, charge);
        if is_complete {
            let program = program.clone();
            if program.announces_blocking() {
                return Action::NonBlocking(Box::new(move || {
                    let _guard = NonBlocking::begin(&call.caller.connection);
                    program.call(call, reply);
                }));
            }
            return Action::Work(Box::new(move || program.call(call, reply)));
        }
        shared.counters.calls_refused.fetch_add(1, Ordering::Relaxed);
        // A client that exceeds the limits and reads no replies would not read this one either.
        match program.busy(&call).filter(|_| !connection.is_choked()) {
            Some(results) => reply.send_encoded(&results),
            None => reply.hang_up("too many calls"),
        }
        Action::Done
    }
}

/// [RFC9289 4.1] Answers a NULL call outside TLS with a token, and starts the handshake.
/// No other call may be in progress: its reply would be sent inside TLS to a caller that asked outside.
fn start_tls(connection: &Arc<Connection>, header: &CallHeader) -> Action {
    // [RFC9289 4.1]
    if header.procedure != PROC_NULL || connection.tls().is_some() {
        let refused = without_results(header.xid, &Reply::AuthError(AuthStat::BadCred));
        connection.send(refused.into_bytes());
        return Action::Done;
    }
    if !connection.is_quiet() {
        return Action::Close("TLS requested while other calls are in progress");
    }
    let token = Reply::Success { verf: OpaqueAuth { flavor: AUTH_NONE, body: STARTTLS.to_vec() } };
    Action::StartTls(without_results(header.xid, &token).into_bytes())
}
