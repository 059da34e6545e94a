//! Copies that go on behind their reply (RFC 7862 sections 4.8, 15.8, 15.9, 16.1).
//!
//! A copy is done in slices. Each takes its own leave to read and to write, by the stateids of the request: in between, others come to their right, and a copy whose
//! files were closed or whose client is gone ends. Slices renew no lease: only the client does.

use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::ops::v42::{OffloadStatusOk, WriteResponse};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StableHow, StateId, Verifier};
use ivers_nfs4::xdr::List;

use super::delegation::Born;
use super::held::Kind;
use super::{
    Call, Caller, Does, Effect, File, Pending, Permit, Running, State, Step, Stop, Ticket, Time, fail,
};

/// So many lease times the outcome of a copy is remembered for a client who has not said that he knows it.
const REMEMBERED_LEASES: u64 = 2;

/// A copy that is going on, or has ended and its client may not know it.
#[derive(Debug)]
pub(super) struct Copy {
    source: (File, StateId),
    target: (File, StateId),
    verifier: Verifier,
    pub born: Option<Born>,
    count: u64,
    /// A slice is under way.
    busy: bool,
    /// Somebody waits for that slice to end: he has cancelled it.
    cancelled: Option<Ticket>,
    ended: Option<(Time, NfsStat)>,
}

/// What is to be copied, by which right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyWanted {
    /// From which file, and the stateid for that.
    pub source: (File, StateId),
    /// Into which file, and the stateid for that.
    pub target: (File, StateId),
    /// The write verifier from before the first byte.
    pub verifier: Verifier,
}

impl State {
    /// Begin a copy, and give its stateid. None: it is to be done before it is answered, since nobody could be told of its end, or too many are going on.
    pub fn copy_begin(
        &mut self,
        now: Time,
        id: ClientId,
        running: Option<&Running>,
        wanted: &CopyWanted,
    ) -> Step<Option<StateId>> {
        let limits = self.config.limits.copies;
        let of = |id: ClientId| self.copies.iter().filter(|index| self.held[*index].client == id).count();
        let special = |stateid: StateId| matches!(stateid, StateId::ANONYMOUS | StateId::READ_BYPASS);
        if !self.can_call(id)
            || special(wanted.source.1)
            || special(wanted.target.1)
            || of(id) >= limits.0
            || !self.shares(id, 1, (self.copies.len(), limits.1), |client| of(client.id))
        {
            return Ok(None);
        }
        if self.clients.get(&id).is_none_or(|client| client.condemned.is_some()) {
            return fail(NfsStat::Delay);
        }
        self.room_for_state(now, id)?;
        // What was looked at has to hold for later editions of the same open, too.
        let newest = |(file, stateid): (File, StateId)| (file, StateId { seqid: 0, ..stateid });
        let copy = Copy {
            source: newest(wanted.source),
            target: newest(wanted.target),
            verifier: wanted.verifier,
            born: running.map(Born::from),
            count: 0,
            busy: false,
            cancelled: None,
            ended: None,
        };
        let index = self.hold(id, wanted.target.0, Kind::Copy(copy));
        self.copies.insert(index);
        Ok(Some(self.stateid(index)))
    }

    /// The copy that a stateid of ours is of, if it is still known.
    fn copy_at(&mut self, stateid: &StateId) -> Step<(u32, ClientId)> {
        let index = Self::index_of(stateid);
        match self.held.get(&index) {
            Some(held) if matches!(held.kind, Kind::Copy(_)) && self.stateid(index) == *stateid => {
                Ok((index, held.client))
            }
            _ => fail(NfsStat::BadStateid),
        }
    }

    fn copy(&mut self, index: u32) -> Option<&mut Copy> {
        match &mut self.held.get_mut(&index)?.kind {
            Kind::Copy(copy) => Some(copy),
            _ => None,
        }
    }

    /// Leave for the next slice: to read and to write. NFS4ERR_BAD_STATEID: there is nothing to do any more.
    pub fn copy_slice(&mut self, now: Time, stateid: &StateId) -> Step<(Permit, Permit)> {
        let (index, client) = self.copy_at(stateid)?;
        if self.lease_is_over(now, client) {
            // Nobody waits for it: what he has asked for while he lived is not done for him now.
            self.drop_copy(index);
            return fail(NfsStat::BadStateid);
        }
        let Some(copy) = self.copy(index).filter(|copy| copy.ended.is_none()) else {
            return fail(NfsStat::BadStateid);
        };
        let (source, target) = (copy.source, copy.target);
        let caller = Caller::Client(client);
        let read = self.permit_quietly(now, caller, source.0, &source.1, Does::Read)?;
        let write = match self.permit_quietly(now, caller, target.0, &target.1, Does::Write) {
            Ok(write) => write,
            Err(stop) => {
                self.end(now, read);
                return Err(stop);
            }
        };
        if let Some(copy) = self.copy(index) {
            copy.busy = true;
        }
        Ok((read, write))
    }

    /// A slice is done, whose permits are ended; `end`: it was the last one.
    pub fn copy_progress(&mut self, now: Time, stateid: &StateId, bytes: u64, end: Option<NfsStat>) {
        let Ok((index, _)) = self.copy_at(stateid) else { return };
        let Some(copy) = self.copy(index) else { return };
        copy.busy = false;
        copy.count += bytes;
        if let Some(ticket) = copy.cancelled {
            copy.ended = Some((now, end.unwrap_or(NfsStat::Ok)));
            self.copy_stands_still(ticket);
        } else if let Some(status) = end {
            self.copy_ends(now, stateid, status);
        }
    }

    /// A copy has come to its end, or cannot go on: its client is told.
    pub fn copy_ends(&mut self, now: Time, stateid: &StateId, status: NfsStat) {
        let Ok((index, client)) = self.copy_at(stateid) else { return };
        let Some(copy) = self.copy(index).filter(|copy| copy.ended.is_none()) else { return };
        copy.ended = Some((now, status));
        self.copy_calls(index, client);
    }

    fn copy_calls(&mut self, index: u32, client: ClientId) {
        let stateid = self.stateid(index);
        let file = self.held[&index].file;
        let Some(copy) = self.copy(index) else { return };
        let Some((_, status)) = copy.ended else { return };
        let info = match status {
            // [RFC7862 16.1.3]
            NfsStat::Ok => OffloadInfo::Ok(WriteResponse {
                callback: List(Vec::new()),
                count: copy.count,
                committed: StableHow::Unstable,
                verifier: copy.verifier,
            }),
            status => OffloadInfo::Failed(status, copy.count),
        };
        self.effects.push(Effect::Call { client, call: Call::Offload { stateid, file, info } });
    }

    /// He has said that he knows how a copy has ended.
    pub fn copy_told(&mut self, stateid: &StateId) {
        if let Ok((index, _)) = self.copy_at(stateid) {
            self.drop_copy(index);
        }
    }

    /// Clients who could not be told of an end are told when they can be called.
    pub(super) fn copies_to_tell(&mut self, id: ClientId) {
        let ended = |index: &&u32| {
            let held = &self.held[*index];
            let Kind::Copy(copy) = &held.kind else { return false };
            held.client == id && copy.ended.is_some() && copy.cancelled.is_none()
        };
        let indices: Vec<u32> = self.copies.iter().filter(ended).copied().collect();
        indices.into_iter().for_each(|index| self.copy_calls(index, id));
    }

    /// OFFLOAD_STATUS (RFC 7862 section 15.9).
    pub fn copy_status(&self, id: ClientId, file: File, stateid: &StateId) -> Step<OffloadStatusOk> {
        let index = self.find_copy(id, file, stateid)?;
        let Kind::Copy(copy) = &self.held[&index].kind else { return fail(NfsStat::BadStateid) };
        // [RFC7862 15.9.3] How it ended is said once it has.
        let complete = copy.ended.iter().map(|(_, status)| *status).collect();
        Ok(OffloadStatusOk { count: copy.count, complete: List(complete) })
    }

    /// OFFLOAD_CANCEL (RFC 7862 section 15.8): when it is answered nothing more is written.
    pub fn copy_cancel(&mut self, id: ClientId, file: File, stateid: &StateId) -> Step<()> {
        let index = self.find_copy(id, file, stateid)?;
        // [RFC7862 15.8.3] A copy that has ended can be cancelled, too: then nobody has to be told of it any more.
        match self.copy(index) {
            Some(Copy { busy: true, cancelled: Some(ticket), .. }) => Err(Stop::Gate(*ticket)),
            Some(Copy { busy: true, cancelled: None, .. }) => {
                let ticket = self.ticket(Pending::Forgotten);
                if let Some(copy) = self.copy(index) {
                    copy.cancelled = Some(ticket);
                }
                Err(Stop::Gate(ticket))
            }
            _ => {
                self.drop_copy(index);
                Ok(())
            }
        }
    }

    fn find_copy(&self, id: ClientId, file: File, stateid: &StateId) -> Step<u32> {
        // [RFC7862 4.8] There is no newest edition of a copy.
        if stateid.seqid == 0 {
            return fail(NfsStat::BadStateid);
        }
        let index = self.find_of(Caller::Client(id), file, stateid)?;
        match self.held[&index].kind {
            Kind::Copy(_) => Ok(index),
            _ => fail(NfsStat::BadStateid),
        }
    }

    /// Nothing is known of a copy any more; if it goes on, its next slice is not begun.
    pub(super) fn drop_copy(&mut self, index: u32) {
        let ticket = self.copy(index).and_then(|copy| copy.cancelled);
        self.copies.remove(&index);
        self.release(index);
        if let Some(ticket) = ticket {
            self.copy_stands_still(ticket);
        }
    }

    /// Whoever has cancelled a copy and waits goes on.
    fn copy_stands_still(&mut self, ticket: Ticket) {
        if self.pending.remove(&ticket).is_some() {
            self.effects.push(Effect::Open { ticket });
        }
    }

    /// Outcomes that nobody asks for are forgotten.
    pub(super) fn forget_copies(&mut self, now: Time) {
        let patience = self.config.lease.times(REMEMBERED_LEASES);
        let old = |index: &&u32| matches!(&self.held[*index].kind, Kind::Copy(Copy { ended: Some((at, _)), .. }) if now.since(*at) > patience);
        let old: Vec<u32> = self.copies.iter().filter(old).copied().collect();
        old.into_iter().for_each(|index| self.drop_copy(index));
    }
}
