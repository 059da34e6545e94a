//! Calls and replies (RFC 5531): which program is called, by whom, and who answers. It knows no files.
//!
//! A [`Program`] gets calls of its own versions, of procedures other than 0, whose caller has an `AUTH_NONE` or `AUTH_SYS` credential that makes sense. Everything
//! else is answered here, by the thread that reads. A call comes with a [`ReplyHandle`] that may be answered later, by anybody: no thread
//! waits.
//!
//! `AUTH_TLS` starts TLS (RFC 9289) if it is configured. `RPCSEC_GSS` and other flavours are refused as RFC 5531 section 8.2 has it.

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

use crate::net::assemble::Message;
use crate::net::brief::Brief;
pub(crate) use crate::net::brief::may_take_long;
use crate::net::connection::Connection;
use crate::net::hub::Hub;
use crate::net::tls::Tls;
use crate::net::{Action, Counters, Handler, Limits, Net, NetStats};
use call::without_results;

/// What can be called.
pub trait Program: Send + Sync + 'static {
    /// Its number.
    fn number(&self) -> u32;

    /// Its versions.
    fn versions(&self) -> RangeInclusive<u32>;

    /// Answer a call. Runs on a thread of the server and may block for the sake of files, but for nobody's answer.
    fn call(&self, call: Call, reply: ReplyHandle);

    /// The results for a call that there is no room for: *come again later*. It may have lost all but its head. Runs on the thread that reads: it must be quick.
    /// Nothing, and the connection ends.
    fn busy(&self, call: &Call) -> Option<Vec<u8>>;

    /// Whether [`Self::call`] says `may_take_long` before it does anything that may.
    fn is_brief(&self) -> bool {
        false
    }

    /// A connection has ended. Runs on any thread, which may hold nothing of this floor; it must be quick.
    fn closed(&self, _connection: &Arc<Connection>) {}
}

/// Sends jobs to the threads of the server.
#[derive(Clone)]
pub struct Workers {
    hub: Weak<Hub>,
}

impl Workers {
    /// Do something soon: it goes before all requests.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(hub) = self.hub.upgrade() {
            hub.push_urgent(Box::new(job));
        }
    }

    /// Do something later.
    pub fn after(&self, time: Duration, job: impl FnOnce() + Send + 'static) {
        if let Some(hub) = self.hub.upgrade() {
            hub.after(time, Box::new(job));
        }
    }

    /// What has happened to connections; nothing if the server is no more.
    pub fn net(&self) -> Option<NetStats> {
        Some(self.hub.upgrade()?.stats())
    }

    /// Take a connection to somebody over, for calls to him ([`Callbacks::call`]). What is called before he answers waits; if he does not answer in time, the calls end so.
    pub fn dialled(&self, stream: TcpStream, to: SocketAddr, time: Duration) -> io::Result<Arc<Connection>> {
        match self.hub.upgrade() {
            Some(hub) => hub.dialled(stream, to, time),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The same, by a connection that this makes.
    pub fn dial(&self, to: SocketAddr, time: Duration) -> io::Result<Arc<Connection>> {
        match self.hub.upgrade() {
            Some(hub) => hub.dial(to, time),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

struct Dispatcher {
    programs: Vec<Arc<dyn Program>>,
    callbacks: Arc<Callbacks>,
    /// Known once the threads are there.
    hub: OnceLock<Weak<Hub>>,
}

/// Serves programs until it is dropped.
pub struct Server {
    net: Net,
}

impl Server {
    /// Serve.
    pub fn start(
        limits: Limits,
        listeners: Vec<TcpListener>,
        tls: Option<Tls>,
        programs: Vec<Arc<dyn Program>>,
        callbacks: Arc<Callbacks>,
    ) -> io::Result<Self> {
        let dispatcher = Arc::new(Dispatcher { programs, callbacks, hub: OnceLock::new() });
        let net = Net::start(limits, listeners, tls, dispatcher.clone())?;
        let _ = dispatcher.hub.set(Arc::downgrade(net.hub()));
        Ok(Self { net })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.net.addresses()
    }

    /// Its threads.
    pub fn workers(&self) -> Workers {
        Workers { hub: Arc::downgrade(self.net.hub()) }
    }

    /// What has happened.
    pub fn counters(&self) -> &Counters {
        self.net.counters()
    }

    /// Connections now, and bytes that are held now.
    pub fn held(&self) -> (usize, usize) {
        self.net.held()
    }

    /// End in good order ([`Net::drain`]).
    pub fn drain(&self, time: Duration, linger: Duration) -> bool {
        self.net.drain(time, linger)
    }
}

impl Handler for Dispatcher {
    fn message(&self, connection: &Arc<Connection>, message: Message) -> Action {
        match Kind::of(&message.bytes) {
            Ok(Kind::Call) if connection.dialled() => Action::Close("a call over a connection for callbacks"),
            Ok(Kind::Call) => self.called(connection, message),
            Ok(Kind::Reply(xid)) => {
                let Message { bytes, whole, .. } = message;
                // One that nobody waits for is late, or made up.
                self.callbacks.answered(connection, xid, bytes, whole).map_or(Action::Nothing, Action::Urgent)
            }
            Err(_) => Action::Close("a record that is neither a call nor a reply"),
        }
    }

    fn closed(&self, connection: &Arc<Connection>) {
        self.callbacks.closed(connection);
        self.programs.iter().for_each(|program| program.closed(connection));
    }

    fn tick(&self) {
        let Some(hub) = self.hub.get().and_then(Weak::upgrade) else { return };
        let late = self.callbacks.tick(|job| hub.push_urgent(job));
        hub.counters.callbacks_late.fetch_add(late, Ordering::Relaxed);
    }
}

impl Dispatcher {
    fn called(&self, connection: &Arc<Connection>, message: Message) -> Action {
        let hub = connection.hub();
        // The caller finds the connection ended, makes another one to whoever serves then, and asks again.
        if hub.is_draining() {
            return Action::Nothing;
        }
        hub.counters.calls.fetch_add(1, Ordering::Relaxed);
        let answer = |xid: u32, reply: &Reply| {
            connection.send(without_results(xid, reply).into_bytes());
            Action::Nothing
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
            Err(BadCall::Unanswerable(_)) => return Action::Close("a call without a head"),
        };
        let arguments_at = message.bytes.len() - from.remaining();
        let CallHeader { xid, version, procedure, .. } = header;
        let credential = match header.cred.flavor {
            AUTH_NONE => Credential::None,
            AUTH_SYS => match AuthSys::from_bytes(&header.cred.body) {
                Ok(sys) => Credential::Sys(sys),
                Err(_) => return answer(xid, &Reply::AuthError(AuthStat::BadCred)),
            },
            AUTH_TLS if hub.offers_tls() => return starts_tls(connection, &header),
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
        let Message { bytes, charge, whole } = message;
        let caller = Caller { connection: connection.clone(), credential };
        let call = Call { caller, xid, version, procedure, message: bytes, arguments_at };
        let reply = ReplyHandle::new(connection.clone(), xid, charge);
        if whole {
            let program = program.clone();
            if program.is_brief() {
                return Action::Brief(Box::new(move || {
                    let _brief = Brief::begin(&call.caller.connection);
                    program.call(call, reply);
                }));
            }
            return Action::Work(Box::new(move || program.call(call, reply)));
        }
        hub.counters.calls_refused.fetch_add(1, Ordering::Relaxed);
        // Whoever asks for more than there is room for and reads no answers would not read this one either.
        match program.busy(&call).filter(|_| !connection.is_choked()) {
            Some(results) => reply.send_encoded(&results),
            None => reply.hang_up("more calls than there is room for"),
        }
        Action::Nothing
    }
}

/// [RFC9289 4.1] A NULL call, outside of TLS, is answered by a token and the handshake. It must be alone: what is under way would be answered inside of TLS, to
/// somebody who asked outside.
fn starts_tls(connection: &Arc<Connection>, header: &CallHeader) -> Action {
    // [RFC9289 4.1]
    if header.procedure != PROC_NULL || connection.tls().is_some() {
        let refused = without_results(header.xid, &Reply::AuthError(AuthStat::BadCred));
        connection.send(refused.into_bytes());
        return Action::Nothing;
    }
    if !connection.is_quiet() {
        return Action::Close("TLS was asked for with other calls under way");
    }
    let token = Reply::Success { verf: OpaqueAuth { flavor: AUTH_NONE, body: STARTTLS.to_vec() } };
    Action::StartTls(without_results(header.xid, &token).into_bytes())
}
