//! NFSv4.0: an owner's requests are numbered, and the last reply is kept (RFC 7530 sections 9.1.3 to 9.1.9).

use std::sync::Arc;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::fault_injection::{self, Fault};
use super::stateids::{EntryKind, OwnerKind};
use super::{CachedReply, Caller, FileId, StateManager, Step, Stop, Time, fail};

#[derive(Debug)]
pub(super) struct OwnerSeqid {
    last: u32,
    reply: Option<Arc<CachedReply>>,
    busy: bool,
    /// OPEN_CONFIRM was there: its first OPEN was no old repetition.
    pub confirmed: bool,
    last_used: Time,
    /// The stateid that CLOSE took away: a repeated CLOSE comes with it.
    closed: Option<[u8; 12]>,
}

impl super::stateids::Owner {
    pub fn is_busy(&self) -> bool {
        self.sequence.as_ref().is_some_and(|sequence| sequence.busy)
    }
}

/// Whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeqidOwner<'a> {
    /// An open-owner, perhaps a new one.
    Open(ClientId, &'a [u8]),
    /// A lock-owner, perhaps a new one.
    Lock(ClientId, &'a [u8]),
    /// The owner of what this stateid names.
    Stateid(&'a StateId),
}

/// An owner's request that is under way. It has to be [ended](StateManager::end_owner_request).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its owner waits until it is ended"]
pub struct OwnerRequest {
    owner: u64,
    seqid: u32,
}

/// Errors behind which an owner's next request has the same number.
fn keeps_seqid(status: NfsStat) -> bool {
    use NfsStat::*;
    // [RFC7530 9.1.7]
    matches!(
        status,
        StaleClientid | StaleStateid | BadStateid | BadSeqid | Badxdr | Resource | Nofilehandle | Moved
    )
}

impl StateManager {
    /// Whether this is the owner's next request. [`Stop::Replay`]: it is his last one again.
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
        if seqid == sequence.last && !fault_injection::is_planted(Fault::ReexecuteRequests) {
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

    /// The request is over; its reply is kept, unless it ended in a way that leaves the number as it was.
    pub fn end_owner_request(&mut self, now: Time, turn: OwnerRequest, status: NfsStat, reply: CachedReply) {
        let Some(owner) = self.owners.get_mut(&turn.owner) else { return };
        let client = owner.client;
        let Some(sequence) = &mut owner.sequence else { return };
        sequence.busy = false;
        sequence.last_used = now;
        let new = sequence.reply.is_none();
        let closed = sequence.closed;
        if !keeps_seqid(status) {
            sequence.last = turn.seqid;
            // Its own CLOSE may have to be repeated; an earlier one no more.
            let bytes_closed =
                closed.filter(|other| self.closed.get(other) == Some(&(turn.owner, turn.seqid)));
            if bytes_closed.is_none() {
                sequence.closed = None;
                if let Some(other) = closed {
                    self.closed.remove(&other);
                }
            }
            sequence.reply = Some(Arc::new(reply));
        } else if new && owner.entries.is_empty() {
            self.forget_owner(turn.owner);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.busy -= 1;
        }
        self.renew(now, client);
    }

    /// CLOSE of NFSv4.0, in its turn: a repetition comes with a stateid that is gone.
    pub fn close_v40(
        &mut self,
        now: Time,
        turn: &OwnerRequest,
        file: FileId,
        stateid: &StateId,
    ) -> Step<StateId> {
        let closed = self.close(now, Caller::V40, file, stateid)?;
        if let Some(sequence) = self.owners.get_mut(&turn.owner).and_then(|owner| owner.sequence.as_mut()) {
            if let Some(earlier) = sequence.closed.replace(stateid.other) {
                self.closed.remove(&earlier);
            }
            self.closed.insert(stateid.other, (turn.owner, turn.seqid));
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

    /// Whether an open may be used: its owner is confirmed.
    pub(super) fn is_confirmed(&self, index: u32) -> bool {
        let owner = self.open_at(index).and_then(|open| self.owners.get(&open.owner));
        owner.and_then(|owner| owner.sequence.as_ref()).is_none_or(|sequence| sequence.confirmed)
    }

    /// The owner of this name, made with the number before this one if there is none.
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

    /// Whose stateid this is, or was before his last request. Its edition does not matter: a repetition has an old one.
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

    /// Owners who have owned nothing for a lease time are forgotten, a slice at a time. Whether there is more to do.
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
