//! NFSv4.0: requests of an owner have sequence numbers, and the last reply is cached (RFC 7530 sections 9.1.3
//! to 9.1.9).

use std::sync::Arc;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::fault_injection::{self, Fault};
use super::ids::{CachedReply, Caller, FileId, Step, Stop, Time, fail};
use super::manager::StateManager;
use super::tables::entry::EntryKind;
use super::tables::owner::{OwnerKind, OwnerSeqid};

/// The owner of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeqidOwner<'a> {
    /// An open-owner, possibly new.
    Open(ClientId, &'a [u8]),
    /// A lock-owner, possibly new.
    Lock(ClientId, &'a [u8]),
    /// The owner of the state that this stateid identifies.
    Stateid(&'a StateId),
}

/// A running request of an owner. It must be [ended](StateManager::end_owner_request).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its owner waits until it is ended"]
pub struct OwnerRequest {
    owner: u64,
    seqid: u32,
}

/// Returns whether a status does not consume the sequence number.
fn keeps_seqid(status: NfsStat) -> bool {
    use NfsStat::*;
    // [RFC7530 9.1.7]
    matches!(
        status,
        StaleClientid | StaleStateid | BadStateid | BadSeqid | Badxdr | Resource | Nofilehandle | Moved
    )
}

impl StateManager {
    /// Begins an owner's next request. Returns [`Stop::Replay`] for a retry of the last one.
    pub fn begin_owner_request(&mut self, now: Time, of: &SeqidOwner<'_>, seqid: u32) -> Step<OwnerRequest> {
        let number = match *of {
            SeqidOwner::Open(client, name) => {
                self.owner_with_seqid(now, client, OwnerKind::Open, name, seqid)?
            }
            SeqidOwner::Lock(client, name) => {
                self.owner_with_seqid(now, client, OwnerKind::Lock, name, seqid)?
            }
            SeqidOwner::Stateid(stateid) => self.owner_of(stateid)?,
        };
        let Some(owner) = self.owners.get(&number) else { return fail(NfsStat::BadStateid) };
        let (client, kind) = (owner.client, owner.kind);
        let Some(sequence) = &owner.sequence else { return fail(NfsStat::BadStateid) };
        self.caller(client)?;
        if sequence.busy {
            return fail(NfsStat::Delay);
        }
        // [RFC7530 9.1.7]
        if seqid == sequence.last && !fault_injection::is_injected(Fault::ReexecuteRequests) {
            return match &sequence.reply {
                Some(reply) => Err(Stop::Replay(reply.clone())),
                None => fail(NfsStat::BadSeqid),
            };
        }
        if seqid != sequence.last.wrapping_add(1) {
            // [RFC7530 16.18.5]
            if sequence.confirmed || kind != OwnerKind::Open || !matches!(of, SeqidOwner::Open(..)) {
                return fail(NfsStat::BadSeqid);
            }
            let opens: Vec<u32> = owner.entries.iter().copied().collect();
            for open in opens {
                self.drop_open(open);
            }
        }
        self.renew(now, client);
        let Some(sequence) = self.owners.get_mut(&number).and_then(|owner| owner.sequence.as_mut()) else {
            return fail(NfsStat::BadSeqid);
        };
        sequence.busy = true;
        sequence.last_used = now;
        if let Some(client) = self.clients.get_mut(&client) {
            client.busy += 1;
        }
        Ok(OwnerRequest { owner: number, seqid })
    }

    /// Ends a request and caches its reply, unless its status does not consume the sequence number.
    pub fn end_owner_request(
        &mut self,
        now: Time,
        request: OwnerRequest,
        status: NfsStat,
        reply: CachedReply,
    ) {
        let Some(owner) = self.owners.get_mut(&request.owner) else { return };
        let client = owner.client;
        let Some(sequence) = &mut owner.sequence else { return };
        sequence.busy = false;
        sequence.last_used = now;
        let new = sequence.reply.is_none();
        let closed = sequence.closed;
        if !keeps_seqid(status) {
            sequence.last = request.seqid;
            // The stateid stays known while this request's own CLOSE can be retried.
            let own_close =
                closed.filter(|other| self.closed.get(other) == Some(&(request.owner, request.seqid)));
            if own_close.is_none() {
                sequence.closed = None;
                if let Some(other) = closed {
                    self.closed.remove(&other);
                }
            }
            sequence.reply = Some(Arc::new(reply));
        } else if new && owner.entries.is_empty() {
            self.forget_owner(request.owner);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.busy -= 1;
        }
        self.renew(now, client);
    }

    /// CLOSE of NFSv4.0. Remembers the stateid for retries.
    pub fn close_v40(
        &mut self,
        now: Time,
        request: &OwnerRequest,
        file: FileId,
        stateid: &StateId,
    ) -> Step<StateId> {
        let closed = self.close(now, Caller::V40, file, stateid)?;
        if let Some(sequence) = self.owners.get_mut(&request.owner).and_then(|owner| owner.sequence.as_mut())
        {
            if let Some(earlier) = sequence.closed.replace(stateid.other) {
                self.closed.remove(&earlier);
            }
            self.closed.insert(stateid.other, (request.owner, request.seqid));
        }
        Ok(closed)
    }

    /// OPEN_CONFIRM (RFC 7530 section 16.18).
    pub fn open_confirm(&mut self, file: FileId, stateid: &StateId) -> Step<StateId> {
        let index = self.find_for_file(Caller::V40, file, stateid)?;
        let Some(open) = self.open_at(index) else { return fail(NfsStat::BadStateid) };
        let owner = open.owner;
        let Some(sequence) = self.owners.get_mut(&owner).and_then(|owner| owner.sequence.as_mut()) else {
            return fail(NfsStat::BadStateid);
        };
        // [RFC7530 16.18.4]
        if sequence.confirmed {
            return fail(NfsStat::BadStateid);
        }
        sequence.confirmed = true;
        if let Some(entry) = self.entries.get_mut(&index) {
            entry.changed();
        }
        Ok(self.stateid(index))
    }

    /// Returns whether an open may be used, because its owner is confirmed.
    pub(super) fn is_confirmed(&self, index: u32) -> bool {
        let owner = self.open_at(index).and_then(|open| self.owners.get(&open.owner));
        owner.and_then(|owner| owner.sequence.as_ref()).is_none_or(|sequence| sequence.confirmed)
    }

    /// Returns the owner with this name. A new one expects this sequence number.
    fn owner_with_seqid(
        &mut self,
        now: Time,
        id: ClientId,
        kind: OwnerKind,
        name: &[u8],
        seqid: u32,
    ) -> Step<u64> {
        if self.caller(id)? != Caller::V40 {
            return fail(NfsStat::StaleClientid);
        }
        let key = (kind, name.to_vec());
        if let Some(number) = self.clients[&id].owners.get(&key) {
            return Ok(*number);
        }
        let limits = self.config.limits.owners;
        let room = self.within_share(id, 1, (self.owners.len(), limits.1), |client| client.owners.len());
        if self.clients[&id].owners.len() >= limits.0 || !room {
            return fail(NfsStat::Resource);
        }
        let number = self.owner(id, kind, name);
        if let Some(owner) = self.owners.get_mut(&number) {
            owner.sequence = Some(OwnerSeqid {
                last: seqid.wrapping_sub(1),
                reply: None,
                busy: false,
                confirmed: kind == OwnerKind::Lock,
                last_used: now,
                closed: None,
            });
        }
        Ok(number)
    }

    /// Returns the owner of a stateid, or of the one that its last request closed. The seqid does not matter,
    /// because a retry has an old one.
    fn owner_of(&self, stateid: &StateId) -> Step<u64> {
        if let Some((owner, _)) = self.closed.get(&stateid.other) {
            return Ok(*owner);
        }
        let index = match self.find(Caller::V40, stateid) {
            Ok(index) => index,
            Err(Stop::Fail(NfsStat::OldStateid)) => Self::index_of(stateid),
            Err(stop) => return Err(stop),
        };
        match &self.entries[&index].kind {
            EntryKind::Open(open) => Ok(open.owner),
            EntryKind::Lock(lock) => Ok(lock.owner),
            EntryKind::Delegation(_) | EntryKind::Copy(_) => fail(NfsStat::BadStateid),
        }
    }

    pub(super) fn forget_owner(&mut self, number: u64) {
        let closed = self.owners.get(&number).and_then(|owner| owner.sequence.as_ref()?.closed);
        if let Some(other) = closed {
            self.closed.remove(&other);
        }
        self.remove_owner(number);
    }

    /// Forgets up to `slice` owners that had no state for a lease time. Returns whether there are more.
    pub(super) fn forget_owners(&mut self, now: Time, slice: usize) -> bool {
        let numbers: Vec<u64> =
            self.owners.range(self.owners_at..).map(|(number, _)| *number).take(slice).collect();
        for number in &numbers {
            let owner = &self.owners[number];
            let old = |it: &OwnerSeqid| !it.busy && now.since(it.last_used) > self.config.lease;
            if owner.entries.is_empty() && owner.sequence.as_ref().is_none_or(old) {
                self.forget_owner(*number);
            }
        }
        let more = numbers.len() == slice;
        self.owners_at = if more { numbers[slice - 1] + 1 } else { 0 };
        more
    }
}
