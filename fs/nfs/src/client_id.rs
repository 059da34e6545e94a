//! NFSv4.0: getting a client ID, which takes the place of a session (RFC 7530, 9.1 and 16.33).
//!
//! A [`Session`] of 4.0 only bounds how many requests are in flight. The server remembers no replies, except
//! for requests with sequence IDs of owners. Other requests are in doubt if their connection breaks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::v40::{CallbackClient, ClientOwner, SetClientIdArgs};
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, NetAddr};
use ivers_vfs::{Cred, Error};

use crate::connection::{Broken, Connection};
use crate::establish::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX, SLOTS};
use crate::exchange::{Exchange, Failure, SendOnce, Tried};
use crate::owner_seqids::{Numbered, OwnerSeqids};
use crate::reply::Compound;
use crate::session::Session;

/// The most operations in a request. A server of 4.0 does not say how many it accepts.
const OPERATIONS: usize = 16;

fn failed(exchange: &Exchange, operation: &str, status: NfsStat) -> Failure {
    let why = format!("{operation}: {}", status.name());
    match status {
        NfsStat::Delay | NfsStat::StaleClientid | NfsStat::Resource => Failure::Broken(Broken(why)),
        NfsStat::MinorVersMismatch => {
            Error::Incompatible(format!("{}: the server does not have NFSv4.0", exchange.name)).into()
        }
        _ => Failure::Final(exchange.error(&why)),
    }
}

/// Gets a client ID. Keeps the one of `before` if the server still has it, and otherwise calls `reclaim`.
pub fn session(
    exchange: &Exchange,
    owner: &ClientOwner,
    connection: &Connection,
    limit: Option<Instant>,
    before: Option<&Arc<OwnerSeqids>>,
    reclaim: &dyn Fn(&SendOnce<'_>) -> Tried<()>,
) -> Tried<Session> {
    let outside = |op: Op| exchange.outside(connection, &[op], limit);
    if let Some(seqids) = before.filter(|seqids| !seqids.is_lost()) {
        let status = outside(Op::Renew(seqids.client))?.status;
        match status {
            NfsStat::Ok | NfsStat::CbPathDown => return Ok(unnumbered(seqids.clone())),
            NfsStat::StaleClientid | NfsStat::Expired => {}
            status => return Err(failed(exchange, "RENEW", status)),
        }
    }
    // Another verifier makes the server forget the state of this client.
    let verifier = match before {
        Some(seqids) if seqids.is_lost() => rand::random(),
        Some(seqids) => seqids.verifier,
        None => owner.verifier,
    };
    let client = announce(exchange, &ClientOwner { verifier, ..owner.clone() }, &outside)?;
    let session = unnumbered(Arc::new(OwnerSeqids::new(client, verifier)));
    if before.is_some() {
        let send = |caller: &Cred, ops: &[Op]| send_first(exchange, connection, &session, caller, ops, limit);
        reclaim(&send)?;
    }
    Ok(session)
}

/// Sends SETCLIENTID and SETCLIENTID_CONFIRM.
fn announce(
    exchange: &Exchange,
    owner: &ClientOwner,
    outside: &dyn Fn(Op) -> Tried<Compound>,
) -> Tried<ClientId> {
    let mut answer = outside(Op::SetClientId(SetClientIdArgs {
        client: owner.clone(),
        // No address: the server sends no callbacks, and grants no delegations.
        callback: CallbackClient {
            program: ivers_nfs4::callback::CALLBACK_PROGRAM,
            location: NetAddr { netid: b"tcp".to_vec(), addr: b"0.0.0.0.0.0".to_vec() },
        },
        callback_ident: 0,
    }))?;
    let confirm = match answer.results.pop() {
        Some(OpResult::SetClientId(SetClientIdRes::Ok(confirm))) => confirm,
        _ => return Err(failed(exchange, "SETCLIENTID", answer.status)),
    };
    let client = confirm.clientid;
    match outside(Op::SetClientIdConfirm(confirm))?.status {
        NfsStat::Ok => Ok(client),
        status => Err(failed(exchange, "SETCLIENTID_CONFIRM", status)),
    }
}

/// Returns a session without sequence IDs of slots.
fn unnumbered(seqids: Arc<OwnerSeqids>) -> Session {
    let mut session =
        Session::new(rand::random(), SLOTS as usize, REQUEST_BYTES_MAX as usize, REPLY_BYTES_MAX, OPERATIONS);
    session.seqids = Some(seqids);
    session
}

/// Sends a request on a session that no other thread has yet.
fn send_first(
    exchange: &Exchange,
    connection: &Connection,
    session: &Session,
    caller: &Cred,
    ops: &[Op],
    limit: Option<Instant>,
) -> Tried<Compound> {
    let Some(mut request) = session.seqids.as_ref().and_then(|seqids| seqids.begin(ops, Duration::ZERO))
    else {
        return Err(Failure::Broken(Broken("a client ID in use".into())));
    };
    let auth = exchange.identity.auth(caller);
    let send = |request: &mut Numbered<'_>| {
        request.sent = true;
        let xid = exchange.next_xid();
        let answer = exchange.unsequenced(connection, xid, &auth, request.ops(ops), limit)?;
        request.executed(&answer.results);
        Ok::<_, Failure>(answer)
    };
    let mut answer = send(&mut request)?;
    if let Some((handle, stateid)) = request.to_confirm(&answer.results) {
        request.confirm(handle, stateid);
        confirmed(&mut answer, &send(&mut request)?);
    }
    Ok(answer)
}

/// Puts the stateid of OPEN_CONFIRM into the result of OPEN.
pub fn confirmed(opened: &mut Compound, confirmation: &Compound) {
    let Some(OpResult::OpenConfirm(Ok(stateid))) = confirmation.results.last() else { return };
    for result in &mut opened.results {
        if let OpResult::Open(Ok(open)) = result {
            open.stateid = *stateid;
        }
    }
}
