//! NFSv4.0: getting a client ID, which takes the place of a session (RFC 7530, 9.1 and 16.33).
//!
//! A [`Session`] of 4.0 only bounds how many requests are in flight. The server remembers no replies, except
//! for requests with sequence IDs of owners. Other requests are in doubt if their connection breaks.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use ivers_nfs4::ops::v40::{CallbackClient, ClientOwner, SetClientIdArgs};
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, NetAddr};
use ivers_vfs::{Cred, Error};

use crate::connection::{Broken, Connection};
use crate::establish::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX, SLOTS};
use crate::exchange::{Exchange, Failure, SendOnce, Tried};
use crate::owner_seqids::OwnerSeqids;
use crate::reply::Compound;
use crate::session::Session;
use crate::unfinished::Unfinished;

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

/// What the caller knows and does while a client ID is made.
pub struct Making<'a> {
    /// The client ID that requests have used.
    pub before: Option<&'a Arc<OwnerSeqids>>,
    /// A reclaim that was cut. If this reclaim is cut, too, it is left here.
    pub unfinished: &'a mut Option<Unfinished>,
    /// Notes that the server no longer has the state of this client.
    pub state_lost: &'a dyn Fn(),
    /// Reclaims the state.
    pub reclaim: &'a dyn Fn(&SendOnce<'_>) -> Tried<()>,
}

/// Gets a client ID. Keeps the one of `before` if the server still has it, and otherwise reclaims its state.
pub fn session(
    exchange: &Exchange,
    owner: &ClientOwner,
    connection: &Connection,
    limit: Option<Instant>,
    making: Making<'_>,
) -> Tried<Session> {
    let Making { before, unfinished, state_lost, reclaim } = making;
    let outside = |op: Op| exchange.outside(connection, &[op], limit);
    let is_kept = |seqids: &OwnerSeqids| -> Tried<bool> {
        match outside(Op::Renew(seqids.client))?.status {
            NfsStat::Ok | NfsStat::CbPathDown => Ok(true),
            NfsStat::StaleClientid | NfsStat::Expired => Ok(false),
            status => Err(failed(exchange, "RENEW", status)),
        }
    };
    // Another verifier makes the server forget the state of this client.
    let cut = unfinished.as_ref().map(|cut| &cut.seqids);
    let verifier = match cut.or(before) {
        Some(seqids) if seqids.is_lost() => rand::random(),
        Some(seqids) => seqids.verifier,
        None => owner.verifier,
    };
    let continues = match cut.filter(|seqids| !seqids.is_lost()) {
        Some(seqids) => is_kept(seqids)?,
        None => false,
    };
    let mut reclaiming = match unfinished.take().filter(|_| continues) {
        Some(cut) => cut,
        None => {
            if let Some(seqids) = before.filter(|seqids| !seqids.is_lost())
                && is_kept(seqids)?
            {
                return Ok(unnumbered(seqids.clone()));
            }
            let client = announce(exchange, &ClientOwner { verifier, ..owner.clone() }, &outside)?;
            let seqids = Arc::new(OwnerSeqids::new(client, verifier));
            if before.is_none() {
                return Ok(unnumbered(seqids));
            }
            state_lost();
            Unfinished::new(seqids)
        }
    };
    let session = unnumbered(reclaiming.seqids.clone());
    reclaiming.begin_again();
    let progress = RefCell::new(reclaiming);
    let send =
        |caller: &Cred, ops: &[Op]| progress.borrow_mut().send(exchange, connection, caller, ops, limit);
    let ended = reclaim(&send);
    let mut reclaiming = progress.into_inner();
    if let Err(failure) = ended.and_then(|()| reclaiming.finish(exchange, connection, limit)) {
        *unfinished = Some(reclaiming);
        return Err(failure);
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
