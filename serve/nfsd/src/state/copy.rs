//! Asynchronous copies (RFC 7862 sections 4.8, 15.8, 15.9, 16.1).
//!
//! A copy is done in slices. Each slice gets its own permits for reading and writing, with the stateids of
//! the request. In between, other requests run, and a copy ends if its files were closed or its client is
//! gone. Slices do not renew the lease.

use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::ops::v42::{OffloadStatusOk, WriteResponse};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StableHow, StateId, Verifier};
use ivers_nfs4::xdr::List;

use super::effects::{Callback, Effect};
use super::ids::{Caller, FileId, Step, Stop, Ticket, Time, fail};
use super::manager::StateManager;
use super::tables::copy::Copy;
use super::tables::entry::EntryKind;
use super::tables::in_flight::{Access, Permit};
use super::tables::pending::Pending;
use super::tables::slot::{RequestId, SessionRequest};

/// Lease times for which the result of a copy is kept if the client does not acknowledge it.
const REMEMBERED_LEASES: u64 = 2;

/// The files of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest {
    /// The source and its stateid.
    pub source: (FileId, StateId),
    /// The target and its stateid.
    pub target: (FileId, StateId),
    /// The write verifier from before the first byte.
    pub verifier: Verifier,
}

impl StateManager {
    /// Begins a copy and returns its stateid. `None` means that the copy must be synchronous, because
    /// callbacks are impossible or too many copies are running.
    pub fn copy_begin(
        &mut self,
        now: Time,
        id: ClientId,
        running: Option<&SessionRequest>,
        wanted: &CopyRequest,
    ) -> Step<Option<StateId>> {
        let limits = self.config.limits.copies;
        let of = |id: ClientId| self.copies.iter().filter(|index| self.entries[*index].client == id).count();
        let special = |stateid: StateId| matches!(stateid, StateId::ANONYMOUS | StateId::READ_BYPASS);
        if !self.can_call(id)
            || special(wanted.source.1)
            || special(wanted.target.1)
            || of(id) >= limits.0
            || !self.within_share(id, 1, (self.copies.len(), limits.1), |client| of(client.id))
        {
            return Ok(None);
        }
        if self.clients.get(&id).is_none_or(|client| client.evicting.is_some()) {
            return fail(NfsStat::Delay);
        }
        self.check_room_for_entry(now, id)?;
        // The stateids must stay valid when their seqids change.
        let newest = |(file, stateid): (FileId, StateId)| (file, StateId { seqid: 0, ..stateid });
        let copy = Copy {
            source: newest(wanted.source),
            target: newest(wanted.target),
            verifier: wanted.verifier,
            request_id: running.map(RequestId::from),
            count: 0,
            busy: false,
            cancelled: None,
            ended: None,
        };
        let index = self.insert_entry(id, wanted.target.0, EntryKind::Copy(Box::new(copy)));
        self.copies.insert(index);
        Ok(Some(self.stateid(index)))
    }

    /// Finds a copy by its stateid.
    fn copy_at(&mut self, stateid: &StateId) -> Step<(u32, ClientId)> {
        let index = Self::index_of(stateid);
        match self.entries.get(&index) {
            Some(entry) if matches!(entry.kind, EntryKind::Copy(_)) && self.stateid(index) == *stateid => {
                Ok((index, entry.client))
            }
            _ => fail(NfsStat::BadStateid),
        }
    }

    fn copy(&mut self, index: u32) -> Option<&mut Copy> {
        match &mut self.entries.get_mut(&index)?.kind {
            EntryKind::Copy(copy) => Some(copy),
            _ => None,
        }
    }

    /// Returns the permits for the next slice, for reading and for writing. Fails with NFS4ERR_BAD_STATEID if
    /// the copy is over.
    pub fn copy_slice(&mut self, now: Time, stateid: &StateId) -> Step<(Permit, Permit)> {
        let (index, client) = self.copy_at(stateid)?;
        if self.lease_expired(now, client) {
            // The client has expired, so the copy is not continued.
            self.drop_copy(index);
            return fail(NfsStat::BadStateid);
        }
        let Some(copy) = self.copy(index).filter(|copy| copy.ended.is_none()) else {
            return fail(NfsStat::BadStateid);
        };
        let (source, target) = (copy.source, copy.target);
        let caller = Caller::Client(client);
        let read = self.permit_without_renewal(now, caller, source.0, &source.1, Access::Read)?;
        let write = match self.permit_without_renewal(now, caller, target.0, &target.1, Access::Write) {
            Ok(write) => write,
            Err(stop) => {
                self.end_permit(now, read);
                return Err(stop);
            }
        };
        if let Some(copy) = self.copy(index) {
            copy.busy = true;
        }
        Ok((read, write))
    }

    /// Ends a slice whose permits are ended. `end` is the status of the copy if it was the last slice.
    pub fn copy_progress(&mut self, now: Time, stateid: &StateId, bytes: u64, end: Option<NfsStat>) {
        let Ok((index, _)) = self.copy_at(stateid) else { return };
        let Some(copy) = self.copy(index) else { return };
        copy.busy = false;
        copy.count += bytes;
        if let Some(ticket) = copy.cancelled {
            copy.ended = Some((now, end.unwrap_or(NfsStat::Ok)));
            self.wake_copy_canceller(ticket);
        } else if let Some(status) = end {
            self.finish_copy(now, stateid, status);
        }
    }

    /// Ends a copy and sends its result to the client.
    pub fn finish_copy(&mut self, now: Time, stateid: &StateId, status: NfsStat) {
        let Ok((index, client)) = self.copy_at(stateid) else { return };
        let Some(copy) = self.copy(index).filter(|copy| copy.ended.is_none()) else { return };
        copy.ended = Some((now, status));
        self.send_copy_result(index, client);
    }

    fn send_copy_result(&mut self, index: u32, client: ClientId) {
        let stateid = self.stateid(index);
        let file = self.entries[&index].file;
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
        self.effects.push(Effect::Callback { client, call: Callback::Offload { stateid, file, info } });
    }

    /// The client has acknowledged the result of a copy.
    pub fn copy_acknowledged(&mut self, stateid: &StateId) {
        if let Ok((index, _)) = self.copy_at(stateid) {
            self.drop_copy(index);
        }
    }

    /// Sends results again when callbacks are possible.
    pub(super) fn resend_copy_results(&mut self, id: ClientId) {
        let ended = |index: &&u32| {
            let entry = &self.entries[*index];
            let EntryKind::Copy(copy) = &entry.kind else { return false };
            entry.client == id && copy.ended.is_some() && copy.cancelled.is_none()
        };
        let indices: Vec<u32> = self.copies.iter().filter(ended).copied().collect();
        indices.into_iter().for_each(|index| self.send_copy_result(index, id));
    }

    /// OFFLOAD_STATUS (RFC 7862 section 15.9).
    pub fn copy_status(&self, id: ClientId, file: FileId, stateid: &StateId) -> Step<OffloadStatusOk> {
        let index = self.find_copy(id, file, stateid)?;
        let EntryKind::Copy(copy) = &self.entries[&index].kind else { return fail(NfsStat::BadStateid) };
        // [RFC7862 15.9.3] The status is present only when the copy has ended.
        let complete = copy.ended.iter().map(|(_, status)| *status).collect();
        Ok(OffloadStatusOk { count: copy.count, complete: List(complete) })
    }

    /// OFFLOAD_CANCEL (RFC 7862 section 15.8). After its reply, nothing more is written.
    pub fn copy_cancel(&mut self, id: ClientId, file: FileId, stateid: &StateId) -> Step<()> {
        let index = self.find_copy(id, file, stateid)?;
        // [RFC7862 15.8.3] Cancelling a copy that has ended drops its result.
        match self.copy(index) {
            Some(Copy { busy: true, cancelled: Some(ticket), .. }) => Err(Stop::Wait(*ticket)),
            Some(Copy { busy: true, cancelled: None, .. }) => {
                let ticket = self.ticket(Pending::Nothing);
                if let Some(copy) = self.copy(index) {
                    copy.cancelled = Some(ticket);
                }
                Err(Stop::Wait(ticket))
            }
            _ => {
                self.drop_copy(index);
                Ok(())
            }
        }
    }

    fn find_copy(&self, id: ClientId, file: FileId, stateid: &StateId) -> Step<u32> {
        // [RFC7862 4.8] The seqid of a copy must not be 0.
        if stateid.seqid == 0 {
            return fail(NfsStat::BadStateid);
        }
        let index = self.find_for_file(Caller::Client(id), file, stateid)?;
        match self.entries[&index].kind {
            EntryKind::Copy(_) => Ok(index),
            _ => fail(NfsStat::BadStateid),
        }
    }

    /// Forgets a copy. If it is running, no further slice begins.
    pub(super) fn drop_copy(&mut self, index: u32) {
        let ticket = self.copy(index).and_then(|copy| copy.cancelled);
        self.copies.remove(&index);
        self.remove_entry(index);
        if let Some(ticket) = ticket {
            self.wake_copy_canceller(ticket);
        }
    }

    /// Wakes the OFFLOAD_CANCEL that waits for a copy.
    fn wake_copy_canceller(&mut self, ticket: Ticket) {
        if self.pending.remove(&ticket).is_some() {
            self.effects.push(Effect::Wake { ticket });
        }
    }

    /// Forgets results that the client has not acknowledged in time.
    pub(super) fn forget_copies(&mut self, now: Time) {
        let patience = self.config.lease.times(REMEMBERED_LEASES);
        let old = |index: &&u32| {
            matches!(&self.entries[*index].kind, EntryKind::Copy(copy)
                if copy.ended.is_some_and(|(at, _)| now.since(at) > patience))
        };
        let old: Vec<u32> = self.copies.iter().filter(old).copied().collect();
        old.into_iter().for_each(|index| self.drop_copy(index));
    }
}
