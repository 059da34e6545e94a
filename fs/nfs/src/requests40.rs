//! NFSv4.0: one request, until it is answered or in doubt.

use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::StateId;
use ivers_vfs::Cred;

use crate::client::{Client, Limit, PAUSES};
use crate::clock::now_ms;
use crate::connection::Broken;
use crate::counters::Counters;
use crate::exchange::Failure;
use crate::owner_seqids::{BUSY_MAX, Numbered, confirmed};
use crate::reply::Compound;
use crate::requests::Answered;
use crate::session::{Session, Slot};

impl Client {
    /// Returns a stateid that means its newest version: 0 in 4.1, the exact number in 4.0.
    pub fn versioned(&self, stateid: StateId) -> StateId {
        if !self.is_version_40() {
            return StateId { seqid: 0, ..stateid };
        }
        let seqids = self.client_id.lock().clone();
        seqids.map_or(stateid, |seqids| seqids.exact(stateid))
    }

    /// Notes that the server no longer has a stateid.
    pub fn forget_stateid(&self, stateid: StateId) {
        let seqids = self.client_id.lock().clone();
        seqids.inspect(|seqids| seqids.forget(stateid));
    }

    /// Releases a lock-owner without locks if the server knows too many of them. Call it after an owner may
    /// have become one.
    pub fn release_idle_owner(&self) {
        let seqids = self.client_id.lock().clone();
        let Some(owner) = seqids.and_then(|seqids| seqids.surplus_owner()) else { return };
        if let Err(error) = self.call(&Cred::system(), &[Op::ReleaseLockOwner(owner)]) {
            log::info!("{}: RELEASE_LOCKOWNER: {error}", self.name());
        }
    }

    /// Returns whether the server is used with NFSv4.0.
    pub fn is_version_40(&self) -> bool {
        self.exchange.wanted == Some(0)
    }

    /// Sends a request of NFSv4.0, which has its turn, until it is answered, or in doubt.
    pub(crate) fn on_slot_40(
        &self,
        slot: Slot<'_>,
        (session, mut request): (&Session, Numbered<'_>),
        auth: &AuthSys,
        ops: &[Op],
        limit: &Limit,
    ) -> ivers_vfs::Result<Answered> {
        let seqids = request.seqids();
        if seqids.is_lost() {
            session.kill();
            slot.finish(false);
            return Ok(Answered::Not);
        }
        let (mut was_sent, mut busy) = (false, 0);
        let mut opened: Option<Compound> = None;
        let mut xid = self.exchange.next_xid();
        let sent_at_ms = now_ms();
        loop {
            let (first, now) = self.linked(limit)?;
            if !now.seqids.as_ref().is_some_and(|now| std::ptr::eq(&**now, seqids)) {
                // The client ID is a new one: the server has lost the state that this request uses.
                request.sent = false;
                slot.finish(false);
                return Ok(if was_sent { Answered::InDoubt } else { Answered::Not });
            }
            let connection = self.carrier(first, &now, slot.number());
            request.sent = true;
            let sent = self.exchange.unsequenced(&connection, xid, auth, request.ops(ops), limit.0);
            let mut answer = match sent {
                Ok(answer) => answer,
                Err(Failure::Final(error)) => {
                    request.sent = was_sent;
                    slot.finish(false);
                    return Err(error);
                }
                Err(Failure::Broken(Broken(why))) => {
                    log::info!("{}: {why}", self.name());
                    was_sent = true;
                    self.check(limit)?;
                    Counters::count(&self.counters().retries);
                    if request.is_numbered() {
                        // The server recognizes it by its sequence ID and its xid.
                        continue;
                    }
                    request.sent = false;
                    slot.finish(false);
                    return Ok(Answered::InDoubt);
                }
            };
            // A server that still executes the first request answers this, and does not count the ID.
            let is_busy = was_sent && answer.status == NfsStat::Delay && request.has_failed(&answer.results);
            if is_busy && busy < BUSY_MAX {
                busy += 1;
                self.rest(PAUSES.0, limit)?;
                continue;
            }
            request.executed(&answer.results);
            let renews = request.ops(ops).first().is_some_and(|op| op.number() == number::RENEW);
            if renews {
                self.renewed(sent_at_ms);
            }
            self.answered(renews);
            if let Some(mut open) = opened.take() {
                confirmed(&mut open.results, &answer.results);
                slot.finish(true);
                return Ok(Answered::Done(open));
            }
            match answer.status {
                NfsStat::StaleClientid | NfsStat::BadSeqid => {
                    if answer.status == NfsStat::BadSeqid {
                        seqids.lose();
                    }
                    log::info!("{}: the client ID is lost: {}", self.name(), answer.status.name());
                    session.kill();
                    slot.finish(false);
                    self.rest(PAUSES.0, limit)?;
                    return Ok(if was_sent { Answered::InDoubt } else { Answered::Not });
                }
                NfsStat::StaleStateid | NfsStat::Expired => {
                    log::info!("{}: a stateid is lost: {}", self.name(), answer.status.name());
                    session.kill();
                    drop(request);
                    slot.finish(true);
                    self.rest(PAUSES.0, limit)?;
                    // State is reclaimed before the caller handles the error.
                    self.linked(limit)?;
                    // OPEN and LOCKT have the client ID, and no stateid: they were not executed.
                    if matches!(answer.results.last(), Some(OpResult::Open(Err(_)) | OpResult::LockT(_))) {
                        return Ok(if was_sent { Answered::InDoubt } else { Answered::Not });
                    }
                    return Ok(Answered::Done(without_renew(answer)));
                }
                // The server lacks memory at the moment.
                NfsStat::Resource => answer.status = NfsStat::Delay,
                _ => {}
            }
            if let Some((handle, stateid)) = request.to_confirm(&answer.results) {
                request.confirm(handle, stateid);
                opened = Some(answer);
                // OPEN was executed, whether or not the confirmation succeeds.
                was_sent = true;
                xid = self.exchange.next_xid();
                continue;
            }
            slot.finish(true);
            return Ok(Answered::Done(without_renew(answer)));
        }
    }
}

/// Removes the result of a RENEW that was sent for an empty request.
fn without_renew(mut answer: Compound) -> Compound {
    answer.results.retain(|result| result.number() != number::RENEW);
    answer
}
