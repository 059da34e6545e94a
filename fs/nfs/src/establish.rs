//! Making a session: EXCHANGE_ID, CREATE_SESSION, RECLAIM_COMPLETE (RFC 8881, 18.35, 18.36, 18.51).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::v40::ClientOwner;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;
use ivers_nfs4::xdr::List;
use ivers_vfs::{Cred, Error};

use crate::callbacks::{BACK_BYTES, BACK_OPERATIONS, BACK_SLOTS, BackSlots};
use crate::connection::{Broken, Connection};
use crate::exchange::{Exchange, Failure, SendOnce, Tried};
use crate::reply::Compound;
use crate::session::{Acquired, Session};

/// Longest reply that is asked for: a MiB of data, and what stands before it.
pub const REPLY_BYTES_MAX: usize = (1 << 20) + 4096;
/// Allowance for the header of an RPC reply.
pub const RPC_REPLY_BYTES: usize = 1024;
/// Longest request: a MiB of data, and what stands before it.
pub const REQUEST_BYTES_MAX: u32 = (1 << 20) + 4096;
/// Longest reply to a change, which the server keeps for a retry.
const KEPT_REPLY_BYTES: u32 = 8192;
/// Requests in flight.
pub const SLOTS: u32 = 32;
/// The operations in a request that this client asks for: enough for SEQUENCE, and PUTFH and GETATTR for 255
/// files.
const OPERATIONS: u32 = 512;
/// The least that this client works with: replies, requests and kept replies in bytes, and operations.
const LEAST: (u32, u32, u32, u32) = (8192, 8192, 1536, 12);
/// The minor versions, the best first.
const MINORS: [u32; 2] = [2, 1];

/// Sends one operation outside of a session.
type Outside<'a> = dyn Fn(Op) -> Tried<Compound> + 'a;

/// What the caller does while a session is made.
pub struct Making<'a> {
    /// Notes that the server no longer has the state of this client. Returns how often that happened.
    pub state_lost: &'a dyn Fn() -> u64,
    /// How often that happened before.
    pub run: u64,
    /// Notes that the session exists. Called before requests use it, because callbacks may already arrive.
    pub created: &'a dyn Fn(&Arc<Session>),
    /// Reclaims the state.
    pub reclaim: &'a dyn Fn(&SendOnce<'_>) -> Tried<()>,
}

/// Makes a session on a connection. If the server no longer has the state of the client ID `known`, reclaims
/// it.
pub fn session(
    exchange: &Exchange,
    owner: &ClientOwner,
    connection: &Connection,
    limit: Option<Instant>,
    known: Option<ClientId>,
    making: &Making<'_>,
) -> Tried<(Arc<Session>, ClientId)> {
    let outside = |op: Op| exchange.outside(connection, &[op], limit);
    let Announced { client, sequence, confirmed } = announce(exchange, owner, &outside)?;
    let is_lost = known.is_some() && !(confirmed && known == Some(client));
    let run = if is_lost { (making.state_lost)() } else { making.run };
    let mut session = create_session(exchange, client, sequence, &outside)?;
    session.run = run;
    let session = Arc::new(session);
    (making.created)(&session);
    let send = |caller: &Cred, ops: &[Op]| send_first(exchange, connection, &session, caller, ops, limit);
    if is_lost {
        (making.reclaim)(&send)?;
    }
    match send(&Cred::system(), &[Op::ReclaimComplete(false)])?.status {
        NfsStat::Ok | NfsStat::CompleteAlready => Ok((session, client)),
        status => Err(refused(exchange, "RECLAIM_COMPLETE", status)),
    }
}

/// The result of EXCHANGE_ID.
struct Announced {
    client: ClientId,
    sequence: u32,
    /// The server knows the client ID from before.
    confirmed: bool,
}

fn refused(exchange: &Exchange, operation: &str, status: NfsStat) -> Failure {
    let why = format!("{operation}: {}", status.name());
    match status {
        NfsStat::Delay | NfsStat::StaleClientid | NfsStat::Badsession | NfsStat::SeqMisordered => {
            Failure::Broken(Broken(why))
        }
        _ => Failure::Final(exchange.error(&why)),
    }
}

/// Sends EXCHANGE_ID in the best minor version that the server has.
fn announce(exchange: &Exchange, owner: &ClientOwner, outside: &Outside<'_>) -> Tried<Announced> {
    let args = ExchangeIdArgs {
        owner: owner.clone(),
        flags: 0,
        protect: StateProtect::None,
        implementation: List(Vec::new()),
    };
    let known = exchange.minor.load(Relaxed);
    let minors: &[u32] = match exchange.wanted {
        _ if known != 0 => &[known],
        Some(wanted) => &[wanted],
        None => &MINORS,
    };
    for minor in minors {
        exchange.minor.store(*minor, Relaxed);
        let mut compound = outside(Op::ExchangeId(args.clone()))?;
        match (compound.status, compound.results.pop()) {
            (NfsStat::Ok, Some(OpResult::ExchangeId(Ok(ok)))) => {
                let confirmed = ok.flags & exchgid::CONFIRMED_R != 0;
                return Ok(Announced { client: ok.clientid, sequence: ok.sequenceid, confirmed });
            }
            (NfsStat::MinorVersMismatch, _) => exchange.minor.store(0, Relaxed),
            (status, _) => return Err(refused(exchange, "EXCHANGE_ID", status)),
        }
    }
    let why = match exchange.wanted {
        Some(wanted) => format!("the server does not have NFSv4.{wanted}"),
        None => "the server has neither NFSv4.2 nor NFSv4.1; for NFSv4.0 use vers=4.0".to_owned(),
    };
    Err(Error::Incompatible(format!("{}: {why}", exchange.name)).into())
}

fn create_session(
    exchange: &Exchange,
    client: ClientId,
    sequence: u32,
    outside: &Outside<'_>,
) -> Tried<Session> {
    let asked = ChannelAttrs {
        header_pad_size: 0,
        max_request: REQUEST_BYTES_MAX,
        max_response: REPLY_BYTES_MAX as u32,
        max_response_cached: KEPT_REPLY_BYTES,
        max_operations: OPERATIONS,
        max_requests: SLOTS,
        rdma_ird: List(Vec::new()),
    };
    let args = CreateSessionArgs {
        clientid: client,
        sequence,
        flags: session_flags::CONN_BACK_CHAN,
        fore: asked.clone(),
        back: ChannelAttrs {
            max_requests: BACK_SLOTS,
            max_request: BACK_BYTES,
            max_response: BACK_BYTES,
            max_operations: BACK_OPERATIONS,
            ..asked
        },
        callback_program: ivers_nfs4::callback::CALLBACK_PROGRAM,
        security: List(vec![CallbackSecurity::None]),
    };
    let mut compound = outside(Op::CreateSession(args))?;
    let granted = match (compound.status, compound.results.pop()) {
        (NfsStat::Ok, Some(OpResult::CreateSession(Ok(granted)))) => granted,
        (status, _) => return Err(refused(exchange, "CREATE_SESSION", status)),
    };
    let fore = granted.fore;
    let (replies, requests, kept, operations) = LEAST;
    if fore.max_response < replies
        || fore.max_response_cached < kept
        || fore.max_request < requests
        || fore.max_operations < operations
        || fore.max_requests == 0
    {
        let why = format!(
            "the session that the server grants is too small: {} requests of {} operations and {} bytes, \
             with replies of {} bytes, of which it keeps {}",
            fore.max_requests,
            fore.max_operations,
            fore.max_request,
            fore.max_response,
            fore.max_response_cached
        );
        return Err(Error::Incompatible(format!("{}: {why}", exchange.name)).into());
    }
    let mut session = Session::new(
        granted.sessionid,
        // The server may say more than was asked for; this client counts on no more.
        fore.max_requests.min(SLOTS) as usize,
        fore.max_request.min(REQUEST_BYTES_MAX) as usize,
        (fore.max_response as usize).min(REPLY_BYTES_MAX),
        fore.max_operations.min(OPERATIONS) as usize,
    );
    session.kept_bytes_max = fore.max_response_cached.min(KEPT_REPLY_BYTES) as usize;
    let has_back_channel = granted.flags & session_flags::CONN_BACK_CHAN != 0;
    session.back = has_back_channel.then(|| Arc::new(BackSlots::default()));
    Ok(session)
}

/// Sends a request in a session that no other thread has yet.
fn send_first(
    exchange: &Exchange,
    connection: &Connection,
    session: &Session,
    caller: &Cred,
    ops: &[Op],
    limit: Option<Instant>,
) -> Tried<Compound> {
    let Acquired::Slot(slot) = session.acquire(Duration::ZERO, true) else {
        return Err(Failure::Broken(Broken("a session without slots".into())));
    };
    let auth = exchange.identity.auth(caller);
    let answer = exchange.in_slot(connection, (session, &slot), &auth, ops, false, limit)?;
    let mut results = answer.results.into_iter();
    match results.next() {
        Some(OpResult::Sequence(Ok(ok))) if slot.accepts(&ok) => slot.finish(true),
        Some(OpResult::Sequence(Ok(_))) => {
            return Err(Failure::Broken(connection.fail("a reply for another slot")));
        }
        _ => return Err(Failure::Broken(Broken(format!("a new session: {}", answer.status.name())))),
    }
    Ok(Compound { status: answer.status, results: results.collect() })
}

/// Binds a connection to a session for requests. With `callbacks` it is bound for callbacks, too, if the
/// session has a back channel. Set `callbacks` only for a connection that gets a callback thread. Returns
/// whether the server knows the session.
pub fn bind(
    exchange: &Exchange,
    connection: &Connection,
    session: &Session,
    callbacks: bool,
    limit: Option<Instant>,
) -> ivers_vfs::Result<bool> {
    if session.seqids.is_some() {
        return Ok(true);
    }
    const FORE: u32 = 1;
    const FORE_OR_BOTH: u32 = 3;
    let direction = if callbacks && session.back.is_some() { FORE_OR_BOTH } else { FORE };
    let bind = BindConn { sessionid: session.id, direction, rdma: false };
    match exchange.outside(connection, &[Op::BindConnToSession(bind)], limit) {
        Ok(compound) if compound.status == NfsStat::Ok => {}
        // The next SEQUENCE gets the same error, and handles it.
        Ok(compound) if matches!(compound.status, NfsStat::Badsession | NfsStat::Deadsession) => {
            return Ok(false);
        }
        Ok(compound) => {
            connection.fail(format!("BIND_CONN_TO_SESSION: {}", compound.status.name()));
        }
        // The request is sent again on another connection.
        Err(Failure::Broken(_)) => {}
        Err(Failure::Final(error)) => return Err(error),
    }
    Ok(true)
}
