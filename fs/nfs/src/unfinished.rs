//! NFSv4.0: a reclaim that continues if its connection breaks.
//!
//! It continues on the next connection, with the same client ID and sequence IDs. The request whose reply was
//! lost is sent again first, unchanged, so that the server recognizes it. Then the caller begins again. It
//! gets the known replies to requests that were answered: they are not sent a second time, because a server
//! refuses a request that introduces a known lock-owner as new (RFC 7530, 16.10.5).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::Op;
use ivers_nfs4::status::NfsStat;
use ivers_vfs::Cred;

use crate::connection::{Broken, Connection};
use crate::exchange::{Exchange, Failure, Tried};
use crate::owner_seqids::{BUSY_MAX, OwnerSeqids, Unanswered, confirmed};
use crate::reply::Compound;

/// The pause before a request is sent again that the server still executes.
const PAUSE: Duration = Duration::from_millis(100);

/// A request that the server may have executed.
struct Pending {
    caller: Cred,
    ops: Vec<Op>,
    xid: u32,
    request: Unanswered,
    /// The reply to OPEN, if the request is the OPEN_CONFIRM after it.
    opened: Option<Compound>,
    /// Whether it was sent before.
    repeated: bool,
}

/// A reclaim that has not ended.
pub struct Unfinished {
    /// The client ID in which state is reclaimed.
    pub seqids: Arc<OwnerSeqids>,
    /// The requests that were answered, and the replies.
    answered: Vec<(Vec<Op>, Compound)>,
    /// How many of them were answered before the reclaim began again.
    earlier: usize,
    pending: Option<Pending>,
}

impl Unfinished {
    /// Begins a reclaim in a new client ID.
    pub fn new(seqids: Arc<OwnerSeqids>) -> Self {
        Self { seqids, answered: Vec::new(), earlier: 0, pending: None }
    }

    /// Notes that the caller begins again.
    pub fn begin_again(&mut self) {
        self.earlier = self.answered.len();
    }

    /// Sends a request of the reclaim, unless the same one was answered before.
    pub fn send(
        &mut self,
        exchange: &Exchange,
        connection: &Connection,
        caller: &Cred,
        ops: &[Op],
        limit: Option<Instant>,
    ) -> Tried<Compound> {
        let earlier = self.answered.iter().take(self.earlier).find(|(answered, _)| answered == ops);
        if let Some((_, answer)) = earlier {
            return Ok(answer.clone());
        }
        if let Some(pending) = self.pending.take() {
            let is_it = pending.ops == ops;
            let answer = self.complete(exchange, connection, pending, limit)?;
            if is_it {
                return Ok(answer);
            }
        }
        let Some(request) = self.seqids.begin(ops, Duration::ZERO) else {
            return Err(Failure::Broken(Broken("a client ID in use".into())));
        };
        let (caller, ops, xid) = (caller.clone(), ops.to_vec(), exchange.next_xid());
        let request = request.suspend();
        let pending = Pending { caller, ops, xid, request, opened: None, repeated: false };
        self.complete(exchange, connection, pending, limit)
    }

    /// Sends the request without a reply again, unless the caller already did: the server may have counted
    /// its sequence IDs.
    pub fn finish(
        &mut self,
        exchange: &Exchange,
        connection: &Connection,
        limit: Option<Instant>,
    ) -> Tried<()> {
        match self.pending.take() {
            Some(pending) => self.complete(exchange, connection, pending, limit).map(drop),
            None => Ok(()),
        }
    }

    /// Sends a request, and keeps it if it is not answered.
    fn complete(
        &mut self,
        exchange: &Exchange,
        connection: &Connection,
        pending: Pending,
        limit: Option<Instant>,
    ) -> Tried<Compound> {
        let Pending { caller, ops, mut xid, request, mut opened, mut repeated } = pending;
        let seqids = self.seqids.clone();
        let Some(mut request) = seqids.resume(request) else {
            return Err(Failure::Broken(Broken("a client ID in use".into())));
        };
        let auth = exchange.identity.auth(&caller);
        let mut busy = 0;
        let answer = loop {
            request.sent = true;
            let answer = match exchange.unsequenced(connection, xid, &auth, request.ops(&ops), limit) {
                Ok(answer) => answer,
                Err(failure) => {
                    let request = request.suspend();
                    self.pending = Some(Pending { caller, ops, xid, request, opened, repeated: true });
                    return Err(failure);
                }
            };
            // A server that still executes the first one answers this, and does not count the ID.
            let is_busy = repeated && answer.status == NfsStat::Delay && request.has_failed(&answer.results);
            if is_busy && busy < BUSY_MAX {
                busy += 1;
                std::thread::sleep(PAUSE);
                continue;
            }
            request.executed(&answer.results);
            if let Some(mut open) = opened.take() {
                confirmed(&mut open.results, &answer.results);
                break open;
            }
            let Some((handle, stateid)) = request.to_confirm(&answer.results) else { break answer };
            request.confirm(handle, stateid);
            (opened, xid, repeated) = (Some(answer), exchange.next_xid(), false);
        };
        drop(request);
        match answer.status {
            NfsStat::StaleClientid | NfsStat::BadSeqid => {
                if answer.status == NfsStat::BadSeqid {
                    seqids.lose();
                }
                return Err(Failure::Broken(connection.fail(format!("reclaim: {}", answer.status.name()))));
            }
            // The caller sends it again.
            NfsStat::Delay => {}
            _ => self.answered.push((ops, answer.clone())),
        }
        Ok(answer)
    }
}
