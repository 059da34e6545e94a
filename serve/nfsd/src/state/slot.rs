//! Slots: each request of a session is executed once (RFC 8881 sections 2.10.6, 18.46).

use std::sync::Arc;

use ivers_nfs4::ops::v41::{SequenceArgs, SequenceOk, seq4_status};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::fault_injection::{self, Fault};
use super::ids::{ConnId, Digest, Principal, Step, Time, fail};
use super::manager::StateManager;
use super::tables::client::Client;
use super::tables::session::{SMALLEST_KEPT, SMALLEST_MESSAGE, Session};
use super::tables::slot::{Completed, SessionRequest, Slot, SlotContent};

/// A request before its operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// The sender.
    pub principal: Principal,
    /// Distinguishes it from another request.
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u32,
    /// The number of operations, including SEQUENCE.
    pub operations: u32,
}

/// The outcome of SEQUENCE.
#[derive(Debug)]
pub enum SequenceOutcome {
    /// A new request: execute it, then call [`StateManager::finish`].
    New(SessionRequest, SequenceOk),
    /// A retry, with the cached COMPOUND.
    Replay(Arc<[u8]>),
    /// A retry without a cached reply: the second operation returns NFS4ERR_RETRY_UNCACHED_REP.
    Uncached(SequenceOk),
}

impl StateManager {
    /// SEQUENCE (RFC 8881 section 18.46). After any error the slot is as it was.
    pub fn sequence(
        &mut self,
        now: Time,
        conn: ConnId,
        request: &RequestHeader,
        args: &SequenceArgs,
    ) -> Step<SequenceOutcome> {
        let Some(session) = self.sessions.get(&args.sessionid) else { return fail(NfsStat::Badsession) };
        let id = session.client;
        if self.clients.get(&id).is_none_or(|client| client.evicting.is_some()) {
            return fail(NfsStat::Delay);
        }
        if !session.connections.contains_key(&conn) && self.check_principal(&request.principal, id).is_err() {
            return fail(NfsStat::ConnNotBoundToSession);
        }
        // [RFC8881 18.46.3]
        if request.bytes > session.fore.max_request {
            return fail(NfsStat::ReqTooBig);
        }
        if request.operations > session.fore.max_operations {
            return fail(NfsStat::TooManyOps);
        }
        let Some(slot) = session.slots.get(args.slotid as usize) else { return fail(NfsStat::Badslot) };
        if args.highest_slotid > session.highest() {
            return fail(NfsStat::BadHighSlot);
        }
        // [RFC8881 2.10.6.1]
        let forgetful = fault_injection::is_injected(Fault::ReexecuteRequests) && !slot.is_busy();
        let anew = matches!(slot.content, SlotContent::Restored) && args.sequenceid == 1;
        if args.sequenceid == slot.sequence && !anew && !forgetful {
            return match &slot.content {
                SlotContent::Unused | SlotContent::Restored => fail(NfsStat::SeqMisordered),
                // [RFC8881 2.10.6.2]
                SlotContent::Busy { .. } => fail(NfsStat::Delay),
                // [RFC8881 2.10.6.1.3.1]
                SlotContent::Completed(done)
                    if done.principal != request.principal || done.digest != request.digest =>
                {
                    fail(NfsStat::SeqFalseRetry)
                }
                SlotContent::Completed(Completed { reply: Some(reply), .. }) => {
                    Ok(SequenceOutcome::Replay(reply.clone()))
                }
                SlotContent::Completed(_) => {
                    Ok(SequenceOutcome::Uncached(session.reply(args, self.status_flags(id, session))))
                }
            };
        }
        let next = anew || args.sequenceid == slot.sequence.wrapping_add(1);
        if slot.is_busy() || !next && !forgetful {
            return fail(NfsStat::SeqMisordered);
        }
        // [RFC8881 2.10.6.4] Not even the error would fit. The slot stays unchanged.
        if args.cache_this && session.fore.max_response_cached < SMALLEST_MESSAGE {
            return fail(NfsStat::RepTooBigToCache);
        }
        self.bind_fore_channel(conn, &args.sessionid)?;

        self.resize_session(&args.sessionid);
        self.shrink(args);
        self.renew(now, id);
        let session = &self.sessions[&args.sessionid];
        let ok = session.reply(args, self.status_flags(id, session));
        let keep = args.cache_this || request.operations <= 1;
        let reply_bytes = if keep && request.operations > 1 {
            session.fore.max_response_cached
        } else {
            session.fore.max_response
        };
        let advertised_version = session.target_version;
        if let Some(slot) = self
            .sessions
            .get_mut(&args.sessionid)
            .and_then(|session| session.slots.get_mut(args.slotid as usize))
        {
            slot.sequence = args.sequenceid;
            slot.content = SlotContent::Busy { principal: request.principal.clone(), digest: request.digest };
            slot.advertised_version = advertised_version;
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.busy += 1;
        }
        let running = SessionRequest {
            client: id,
            session: args.sessionid,
            slot: args.slotid,
            sequence: args.sequenceid,
            keep,
            reply_bytes,
        };
        Ok(SequenceOutcome::New(running, ok))
    }

    /// Ends a request. `reply` is the encoded COMPOUND, which is cached if the client asked for it.
    pub fn finish(&mut self, now: Time, running: SessionRequest, reply: &[u8]) {
        // The request may have destroyed its own session.
        let Some(session) = self.sessions.get_mut(&running.session) else { return };
        let fits = reply.len() as u64 <= u64::from(session.fore.max_response_cached.max(SMALLEST_KEPT));
        let Some(slot) = session.slots.get_mut(running.slot as usize) else { return };
        if slot.sequence != running.sequence || !slot.is_busy() {
            return;
        }
        let SlotContent::Busy { principal, digest } = std::mem::take(&mut slot.content) else { return };
        let reply = (running.keep && fits).then(|| reply.into());
        slot.content = SlotContent::Completed(Completed { principal, digest, reply });
        if let Some(client) = self.clients.get_mut(&running.client) {
            client.busy -= 1;
        }
        // The lease starts at the end: a request may take longer than a lease.
        self.renew(now, running.client);
    }

    /// Retires the slots above the target when the client has acknowledged it (section 2.10.6.1).
    fn shrink(&mut self, args: &SequenceArgs) {
        let Some(session) = self.sessions.get_mut(&args.sessionid) else { return };
        let slots = session.slots.len() as u32;
        let knows = session.slots[args.slotid as usize].advertised_version == session.target_version;
        if session.target == slots || !knows || args.highest_slotid >= session.target {
            return;
        }
        let busy = session.slots.iter().rposition(Slot::is_busy).map_or(0, |at| at + 1);
        let keep = busy.max(session.target as usize).max(args.slotid as usize + 1);
        let before = session.reserved();
        session.retire(keep);
        let freed = before - session.reserved();
        self.reply_cache_bytes -= freed;
        if let Some(client) = self.clients.get_mut(&session.client) {
            client.reply_cache_bytes -= freed;
        }
    }

    fn status_flags(&self, id: ClientId, session: &Session) -> u32 {
        let Some(client) = self.clients.get(&id) else { return 0 };
        let mut flags = self.state_flags(client);
        if session.back_wanted && session.back_connection().is_none() {
            flags |= seq4_status::CB_PATH_DOWN_SESSION;
        }
        if session.back_wanted && session.back_is_stuck() {
            flags |= seq4_status::BACKCHANNEL_FAULT;
        }
        let wanted = client.sessions.iter().any(|at| self.sessions[at].back_wanted);
        let path = client.sessions.iter().any(|at| self.sessions[at].back_connection().is_some());
        // [RFC8881 18.46.3]
        if wanted && !path {
            flags |= seq4_status::CB_PATH_DOWN;
        }
        flags
    }

    fn state_flags(&self, client: &Client) -> u32 {
        let mut flags = 0;
        if client.revoked > 0 {
            flags |= seq4_status::RECALLABLE_STATE_REVOKED;
        }
        if self.check_may_reclaim(client.id).is_ok() {
            flags |= seq4_status::RESTART_RECLAIM_NEEDED;
        }
        flags
    }
}
