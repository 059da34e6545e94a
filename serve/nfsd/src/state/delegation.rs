//! Delegations: granted, queried, recalled, returned, revoked (RFC 8881 sections 10.2, 10.4, 20.1, 20.2).

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::effects::{Callback, Effect};
use super::fault_injection::{self, Fault};
use super::ids::{Caller, FileId, Millis, Step, Stop, Ticket, Time, fail};
use super::limits::Limits;
use super::manager::StateManager;
use super::tables::client::RevocationMark;
use super::tables::delegation::{Delegation, Recall};
use super::tables::entry::EntryKind;
use super::tables::events::LogEvent;
use super::tables::in_flight::{Access, InFlight, InFlightKind, Permit};
use super::tables::open::{Claim, PlannedOpen};
use super::tables::pending::Pending;

/// Maximum lease times between recall and revocation, even if the holder keeps writing back.
const RECALL_LEASES: u64 = 4;

/// The result of a request for a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelegationGrant {
    /// No delegation.
    None(WhyNoDelegation),
    /// A read delegation.
    Read(StateId),
    /// A write delegation. Call [`StateManager::set_granted_attrs`] before the reply.
    Write(StateId),
}

/// The reasons of `why_no_delegation4` that this server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNoDelegation {
    /// The client did not ask for one.
    NotWanted,
    /// Another client uses the file, or did recently.
    Contention,
    /// Too many delegations, or the client cannot receive callbacks.
    Resource,
}

/// What the holder of a write delegation says about the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderAttrs {
    /// The change attribute.
    pub change: u64,
    /// The size.
    pub size: u64,
}

/// The result of asking the holder of a write delegation, for all requests that waited.
#[derive(Debug, PartialEq, Eq)]
pub enum GetattrOutcome {
    /// The holder has not changed the file: the attributes of the VFS are correct. End the permit when all
    /// waiting requests have read them.
    Unmodified(Permit),
    /// The holder has changed the file. Bump the change attribute and set the times in one step of the VFS,
    /// reply with the result and the holder's size to all waiting requests, and end the permit.
    Modified {
        /// The size that the holder reported.
        size: u64,
        /// Keeps the delegation and excludes other queries until the replies are complete.
        permit: Permit,
    },
}

impl StateManager {
    /// Recalls conflicting delegations of other clients: all, or only those for writing.
    pub(super) fn recall_conflicting(
        &mut self,
        now: Time,
        file: FileId,
        by: Option<ClientId>,
        readers_too: bool,
        truncate: bool,
    ) -> Step<()> {
        if fault_injection::is_injected(Fault::IgnoreDelegations) {
            return Ok(());
        }
        let Some(state) = self.files.get(&file) else { return Ok(()) };
        let in_the_way = |index: &u32| {
            let entry = &self.entries[index];
            let matters = matches!(&entry.kind, EntryKind::Delegation(it) if it.write || readers_too);
            matters && Some(entry.client) != by
        };
        let others: Vec<u32> = state.delegations.iter().copied().filter(in_the_way).collect();
        let mut left = false;
        for index in others {
            let Some(entry) = self.entries.get(&index) else { continue };
            let holder = entry.client;
            if self.lease_expired(now, holder) {
                self.evict(holder)?;
            } else if !self.revoke_if_overdue(now, index)? {
                self.recall(now, index, truncate);
                left = true;
            }
        }
        // [RFC8881 10.4.5]
        if left { fail(NfsStat::Delay) } else { self.check_no_pending_bump(file) }
    }

    fn delegation(&mut self, index: u32) -> Option<&mut Delegation> {
        match &mut self.entries.get_mut(&index)?.kind {
            EntryKind::Delegation(delegation) => Some(delegation),
            _ => None,
        }
    }

    /// Recalls a delegation, if that has not happened yet.
    fn recall(&mut self, now: Time, index: u32, truncate: bool) {
        let check = now + self.config.lease;
        let Some(entry) = self.entries.get(&index) else { return };
        let (client, file) = (entry.client, entry.file);
        if let Some(state) = self.files.get_mut(&file) {
            state.last_conflict = Some(now);
        }
        let Some(delegation) = self.delegation(index) else { return };
        if delegation.recall.is_some() {
            return;
        }
        delegation.recall = Some(Recall { since: now, check, delivered: false });
        self.recalls.insert((check, index));
        let stateid = self.stateid(index);
        self.note(LogEvent::Recalled(client, file));
        self.effects.push(Effect::Callback { client, call: Callback::Recall { stateid, file, truncate } });
    }

    /// Revokes a delegation if its recall is overdue. Returns whether it is gone.
    pub(super) fn revoke_if_overdue(&mut self, now: Time, index: u32) -> Step<bool> {
        let lease = self.config.lease;
        let Some(entry) = self.entries.get(&index) else { return Ok(true) };
        let (holder, file) = (entry.client, entry.file);
        let EntryKind::Delegation(delegation) = &entry.kind else { return Ok(true) };
        let Some(recall) = &delegation.recall else { return Ok(false) };
        let deadline = (recall.since + lease).max(delegation.last_used + lease);
        let deadline = deadline.min(recall.since + lease.times(RECALL_LEASES));
        let used = self.files.get(&file).is_some_and(|state| {
            state.in_flight.iter().any(|number| self.in_flight[number].client == Some(holder))
        });
        if now <= deadline || used {
            return Ok(false);
        }
        // [RFC8881 8.4.3]
        self.ensure_revocation_marked(holder)?;
        self.revoke(index);
        Ok(true)
    }

    /// Revokes a delegation. A client with sessions keeps its stateid as a revoked one until FREE_STATEID.
    fn revoke(&mut self, index: u32) {
        let Some(entry) = self.entries.get(&index) else { return };
        let with_sessions = self.clients.get(&entry.client).is_some_and(|client| client.with_sessions);
        let (client, file) = (entry.client, entry.file);
        let bump = self.unlink_delegation(index);
        self.note(LogEvent::Revoked(client, file));
        if with_sessions {
            // [RFC8881 10.4.6]
            if let Some(delegation) = self.delegation(index) {
                delegation.revoked = true;
            }
            if let Some(client) = self.clients.get_mut(&client) {
                client.revoked += 1;
            }
        } else {
            self.remove_entry(index);
        }
        if bump {
            self.request_bump(file);
        }
        self.forget_file_if_idle(file);
    }

    /// Removes a delegation from its file. Returns whether a bump must follow, because reported changes may
    /// never arrive.
    fn unlink_delegation(&mut self, index: u32) -> bool {
        let Some(entry) = self.entries.get(&index) else { return false };
        let (client, file) = (entry.client, entry.file);
        let EntryKind::Delegation(delegation) = &entry.kind else { return false };
        let bump = delegation.write && (delegation.reported_modified || delegation.reclaimed);
        if let Some(recall) = &delegation.recall {
            self.recalls.remove(&(recall.check, index));
        }
        if let Some(state) = self.files.get_mut(&file)
            && state.delegations.remove(&index)
            && !state.keeps_file()
        {
            self.effects.push(Effect::Unpin { file });
        }
        self.delegations -= 1;
        if let Some(client) = self.clients.get_mut(&client) {
            client.delegations -= 1;
        }
        bump && !fault_injection::is_injected(Fault::SkipFinalBump)
    }

    /// Ends a delegation.
    pub(super) fn end_delegation(&mut self, index: u32) {
        let Some(entry) = self.entries.get(&index) else { return };
        let file = entry.file;
        if matches!(&entry.kind, EntryKind::Delegation(delegation) if !delegation.revoked)
            && self.unlink_delegation(index)
        {
            self.request_bump(file);
        }
        self.remove_entry(index);
        self.forget_file_if_idle(file);
    }

    /// Ends delegations with reported changes when the server stops, so that the reported changes do not look
    /// as if they had arrived.
    pub fn shut_down(&mut self) {
        let needs_bump = |index: &&u32| {
            matches!(&self.entries[index].kind, EntryKind::Delegation(it)
                if !it.revoked && (it.reported_modified || it.reclaimed))
        };
        let indices: Vec<u32> = self.entries.keys().filter(needs_bump).copied().collect();
        for index in indices {
            self.end_delegation(index);
        }
    }

    /// DELEGRETURN (RFC 8881 section 18.6).
    pub fn deleg_return(&mut self, now: Time, caller: Caller, file: FileId, stateid: &StateId) -> Step<()> {
        let index = self.find_for_file(caller, file, stateid)?;
        if !matches!(self.entries[&index].kind, EntryKind::Delegation(_)) {
            return fail(NfsStat::BadStateid);
        }
        // The last bump must follow the one for the reply in progress, which reports the holder's size.
        if let Some(ticket) = self.delegation(index).and_then(|delegation| delegation.reply_in_flight) {
            return Err(Stop::Wait(ticket));
        }
        let client = self.entries[&index].client;
        self.end_delegation(index);
        self.renew(now, client);
        Ok(())
    }

    /// Revokes up to `slice` overdue delegations. Returns when the next one is due.
    pub(super) fn sweep_recalls(&mut self, now: Time, slice: usize) -> Option<Time> {
        for _ in 0..slice {
            let (check, index) = *self.recalls.first()?;
            if check > now {
                return Some(check);
            }
            if self.revoke_if_overdue(now, index) != Ok(true) {
                let again = now + Millis::seconds(1);
                self.recalls.remove(&(check, index));
                self.recalls.insert((again, index));
                if let Some(Recall { check, .. }) = self.delegation(index).and_then(|it| it.recall.as_mut()) {
                    *check = again;
                }
            }
        }
        Some(now)
    }

    /// Grants a delegation for an OPEN, if possible.
    pub(super) fn grant(
        &mut self,
        now: Time,
        planned: &PlannedOpen,
        file: FileId,
        allowed: bool,
    ) -> DelegationGrant {
        let client = &self.clients[&planned.client];
        let (write, reclaimed) = match planned.claim {
            Claim::DelegateCur(_) => return DelegationGrant::None(WhyNoDelegation::NotWanted),
            Claim::Previous(1) => (false, true),
            Claim::Previous(2) if client.with_sessions => (true, true),
            Claim::Previous(_) => return DelegationGrant::None(WhyNoDelegation::NotWanted),
            Claim::Null => {
                let writes = planned.access & share::WRITE != 0;
                match planned.wants & share::WANT_MASK {
                    0 | share::WANT_ANY_DELEG => (writes, false),
                    share::WANT_READ_DELEG if !writes => (false, false),
                    share::WANT_WRITE_DELEG if writes => (true, false),
                    _ => return DelegationGrant::None(WhyNoDelegation::NotWanted),
                }
            }
        };
        let Limits { delegations, stateids, .. } = self.config.limits;
        if !self.can_call(planned.client) && !reclaimed
            || client.delegations >= delegations.0
            || !self
                .within_share(client.id, 1, (self.delegations, delegations.1), |client| client.delegations)
            || write && !client.with_sessions
            || client.entries.len() >= stateids.0
            || !self
                .within_share(client.id, 1, (self.entries.len(), stateids.1), |client| client.entries.len())
        {
            return DelegationGrant::None(WhyNoDelegation::Resource);
        }
        if reclaimed && client.revocation_mark != RevocationMark::None {
            return DelegationGrant::None(WhyNoDelegation::Contention);
        }
        let recent = |at: Time| now.since(at) <= self.config.lease;
        let contended = self.files.get(&file).is_none_or(|state| {
            !state.pending_bumps.is_empty()
                || state.last_conflict.is_some_and(recent)
                || self.is_contended(file, planned.client, write)
        });
        if !allowed && !reclaimed || contended {
            return DelegationGrant::None(WhyNoDelegation::Contention);
        }
        let delegation = Delegation {
            write,
            granted_attrs: None,
            reclaimed,
            reported_modified: false,
            request_id: planned.request_id,
            recall: None,
            last_used: now,
            getattr: None,
            reply_in_flight: None,
            revoked: false,
        };
        let index = self.insert_entry(planned.client, file, EntryKind::Delegation(Box::new(delegation)));
        self.files.entry(file).or_default().delegations.insert(index);
        self.delegations += 1;
        if let Some(client) = self.clients.get_mut(&planned.client) {
            client.delegations += 1;
        }
        let stateid = self.stateid(index);
        if write { DelegationGrant::Write(stateid) } else { DelegationGrant::Read(stateid) }
    }

    /// Returns whether a delegation would conflict with the use of a file.
    fn is_contended(&self, file: FileId, by: ClientId, write: bool) -> bool {
        let Some(state) = self.files.get(&file) else { return false };
        let open = if write {
            state.opens.iter().any(|index| self.entries[index].client != by)
        } else {
            state.writing_opens > 0
        };
        // One delegation per client and file: otherwise a recall would be ambiguous.
        let delegated = state.delegations.iter().any(|index| {
            let entry = &self.entries[index];
            let writes = matches!(&entry.kind, EntryKind::Delegation(it) if it.write);
            entry.client == by || write || writes
        });
        let in_flight = !fault_injection::is_injected(Fault::IgnoreInFlight)
            && state.in_flight.iter().any(|number| {
                let it = &self.in_flight[number];
                let harmless = match &it.kind {
                    InFlightKind::Permit { access, .. } => *access == Access::Read,
                    InFlightKind::Open(plan) => {
                        plan.effective_access & share::WRITE == 0 && plan.deny & share::READ == 0
                    }
                    InFlightKind::Getattr => true,
                    InFlightKind::HolderReply(..) => false,
                };
                if write { it.client != Some(by) } else { !harmless }
            });
        open || delegated || in_flight
    }

    /// Sets what the holder of a new write delegation is told about the file, for comparison with its later
    /// replies. Query these attributes last, so that no change falls in between.
    pub fn set_granted_attrs(&mut self, stateid: &StateId, base: HolderAttrs) {
        let index = self
            .entries
            .iter()
            .next_back()
            .map(|(index, _)| *index)
            .filter(|at| self.stateid(*at) == *stateid);
        let index = index.or_else(|| self.find(Caller::Client(self.holder(stateid)?), stateid).ok());
        if let Some(delegation) = index.and_then(|index| self.delegation(index)) {
            delegation.granted_attrs = Some((base.change, base.size));
        }
    }

    fn holder(&self, stateid: &StateId) -> Option<ClientId> {
        self.entries.get(&Self::index_of(stateid)).map(|entry| entry.client)
    }

    /// Permits reading change attribute, size and times from the VFS. If another client holds a write
    /// delegation, asks that client.
    ///
    /// The permit keeps the server from granting a delegation meanwhile. Otherwise, the client could see old
    /// contents with a change attribute that the new holder reported.
    pub fn begin_getattr(&mut self, now: Time, caller: Caller, file: FileId) -> Step<Permit> {
        self.query_holder(now, caller, file)?;
        self.check_room_for_permit(caller.client())?;
        let client = caller.client();
        if client.is_some_and(|id| self.clients.get(&id).is_none_or(|client| client.evicting.is_some())) {
            return fail(NfsStat::Delay);
        }
        Ok(Permit(self.begin_in_flight(InFlight {
            client,
            file: Some(file),
            kind: InFlightKind::Getattr,
            no_renewal: false,
        })))
    }

    fn query_holder(&mut self, now: Time, caller: Caller, file: FileId) -> Step<()> {
        self.check_no_pending_bump(file)?;
        let Some(state) = self.files.get(&file) else { return Ok(()) };
        let of_another = |index: &&u32| {
            let entry = &self.entries[*index];
            let writes = matches!(&entry.kind, EntryKind::Delegation(it) if it.write);
            writes && Some(entry.client) != caller.client()
        };
        let Some(index) = state.delegations.iter().find(of_another).copied() else { return Ok(()) };
        let holder = self.entries[&index].client;
        if self.lease_expired(now, holder) {
            self.evict(holder)?;
            return self.check_no_pending_bump(file);
        }
        let can_call = self.can_call(holder);
        let Some(delegation) = self.delegation(index) else { return Ok(()) };
        if let Some(ticket) = delegation.reply_in_flight {
            return Err(Stop::Wait(ticket));
        }
        if let Some(ticket) = delegation.getattr {
            return Err(Stop::AskHolder(ticket));
        }
        if delegation.recall.is_some() || !can_call {
            return self.recall_conflicting(now, file, caller.client(), false, false);
        }
        if delegation.granted_attrs.is_none() && !delegation.reclaimed {
            // The reply with the grant is not complete yet.
            return fail(NfsStat::Delay);
        }
        let stateid = self.stateid(index);
        let ticket = self.ticket(Pending::Getattr(index));
        if let Some(delegation) = self.delegation(index) {
            delegation.getattr = Some(ticket);
        }
        self.effects
            .push(Effect::Callback { client: holder, call: Callback::GetAttr { ticket, file, stateid } });
        Err(Stop::AskHolder(ticket))
    }

    /// Handles the holder's reply to CB_GETATTR, or its timeout (`None`). All requests that wait for the
    /// ticket get the result.
    pub fn getattr_reply(
        &mut self,
        now: Time,
        ticket: Ticket,
        answer: Option<HolderAttrs>,
    ) -> Step<GetattrOutcome> {
        let Some(Pending::Getattr(index)) = self.pending.remove(&ticket) else { return fail(NfsStat::Delay) };
        let Some(entry) = self.entries.get(&index) else { return fail(NfsStat::Delay) };
        let (file, holder) = (entry.file, entry.client);
        let Some(delegation) = self.delegation(index).filter(|it| it.getattr == Some(ticket) && !it.revoked)
        else {
            // The delegation has ended, so the reply may be outdated.
            return fail(NfsStat::Delay);
        };
        delegation.getattr = None;
        if self.clients.get(&holder).is_none_or(|client| client.evicting.is_some()) {
            return fail(NfsStat::Delay);
        }
        let Some(delegation) = self.delegation(index) else { return fail(NfsStat::Delay) };
        let Some(answer) = answer else {
            self.recall(now, index, false);
            return fail(NfsStat::Delay);
        };
        // [RFC8881 10.4.3]
        let untouched =
            delegation.granted_attrs == Some((answer.change, answer.size)) && !delegation.reclaimed;
        delegation.reported_modified |= !untouched;
        let out = self.ticket(Pending::Nothing);
        if let Some(delegation) = self.delegation(index) {
            delegation.reply_in_flight = Some(out);
        }
        let kind = InFlightKind::HolderReply(index, out);
        // A reply to a callback does not renew the lease.
        let permit = Permit(self.begin_in_flight(InFlight {
            client: Some(holder),
            file: Some(file),
            kind,
            no_renewal: true,
        }));
        Ok(if untouched {
            GetattrOutcome::Unmodified(permit)
        } else {
            GetattrOutcome::Modified { size: answer.size, permit }
        })
    }

    /// The holder's reply has been passed on.
    pub(super) fn holder_reply_sent(&mut self, index: u32) {
        if let Some(delegation) = self.delegation(index) {
            delegation.reply_in_flight = None;
        }
    }
}
