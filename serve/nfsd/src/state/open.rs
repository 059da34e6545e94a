//! Opens (RFC 8881 sections 9.7 to 9.11, 18.2, 18.16, 18.18).
//!
//! An OPEN is planned, claims its file, and is committed or aborted. In between, the VFS does its part. A
//! request that must be refused is refused before anything is created.

use std::collections::BTreeSet;

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::delegation::DelegationGrant;
use super::effects::Effect;
use super::fault_injection::{self, Fault};
use super::ids::{Caller, FileId, Principal, Step, Stop, Time, fail};
use super::manager::StateManager;
use super::tables::entry::EntryKind;
use super::tables::in_flight::{Access, InFlight, InFlightKind};
use super::tables::open::{Claim, Open, PlannedOpen};
use super::tables::owner::OwnerKind;
use super::tables::slot::SessionRequest;

/// Maximum number of principals to remember per open. Others are checked for each request.
const OPENERS: usize = 8;

/// The arguments of OPEN.
#[derive(Debug)]
pub struct OpenRequest<'a> {
    /// The client.
    pub client: ClientId,
    /// Its open-owner.
    pub owner: &'a [u8],
    /// Bits of [`share`], without the delegation that it wants.
    pub access: u32,
    /// Bits of [`share`].
    pub deny: u32,
    /// The delegation that it wants: [`share::WANT_MASK`] of the access.
    pub wants: u32,
    /// The claim.
    pub claim: Claim,
    /// The session request that contains it.
    pub running: Option<&'a SessionRequest>,
}

/// An OPEN in progress. It must be [committed](StateManager::open_commit) or
/// [aborted](StateManager::open_abort).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it counts as under way until it is committed or aborted"]
pub struct OpenPlan(pub(super) u64);

/// A committed OPEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The open's stateid.
    pub stateid: StateId,
    /// NFSv4.0: OPEN_CONFIRM must follow.
    pub confirm: bool,
    /// The delegation, or the reason for none.
    pub delegation: DelegationGrant,
}

impl StateManager {
    /// Checks everything that does not depend on the file.
    pub fn open_plan(&mut self, now: Time, request: &OpenRequest<'_>) -> Step<OpenPlan> {
        let id = request.client;
        if request.access & !share::BOTH != 0 || request.access == 0 || request.deny & !share::BOTH != 0 {
            return fail(NfsStat::Inval);
        }
        let caller = self.caller(id)?;
        if caller == Caller::V40 {
            self.renew(now, id);
        }
        match &request.claim {
            Claim::Null => self.check_may_acquire(id)?,
            Claim::Previous(_) => self.check_may_reclaim(id)?,
            Claim::DelegateCur(stateid) => {
                let index = self.find(caller, stateid)?;
                if self.entries[&index].client != id
                    || !matches!(self.entries[&index].kind, EntryKind::Delegation(_))
                {
                    return fail(NfsStat::BadStateid);
                }
            }
        }
        self.check_room_for_entry(now, id)?;
        if caller == Caller::V40 {
            self.ensure_recorded(id)?;
        }
        let planned = PlannedOpen {
            client: id,
            owner: request.owner.to_vec(),
            access: request.access,
            deny: request.deny,
            wants: request.wants,
            claim: request.claim.clone(),
            request_id: request.running.map(Into::into),
            effective_access: request.access,
        };
        Ok(OpenPlan(self.begin_in_flight(InFlight {
            client: Some(id),
            file: None,
            kind: InFlightKind::Open(planned),
            no_renewal: false,
        })))
    }

    /// Reserves the file for a planned OPEN, with its share modes. A truncation counts as writing. Call it
    /// before other clients can reach the file; otherwise the VFS must check that the name still leads to
    /// this file.
    pub fn open_claim(&mut self, now: Time, plan: &OpenPlan, file: FileId, truncates: bool) -> Step<()> {
        let Some(InFlight { kind: InFlightKind::Open(planned), file: claimed, .. }) =
            self.in_flight.get(&plan.0)
        else {
            return fail(NfsStat::Serverfault);
        };
        if *claimed == Some(file) {
            return Ok(());
        }
        let planned = planned.clone();
        self.check_no_pending_bump(file)?;
        let writes = if truncates { share::WRITE } else { 0 };
        let (access, deny) = (planned.access | writes, planned.deny);
        let own =
            self.clients[&planned.client].owners.get(&(OwnerKind::Open, planned.owner.clone())).copied();
        match &planned.claim {
            Claim::DelegateCur(stateid) => {
                let index = self.find_for_file(self.caller(planned.client)?, file, stateid)?;
                if let Some(EntryKind::Delegation(delegation)) =
                    self.entries.get_mut(&index).map(|entry| &mut entry.kind)
                {
                    // [RFC8881 10.4.4]
                    if access & share::WRITE != 0 && !delegation.write {
                        return fail(NfsStat::BadStateid);
                    }
                    delegation.last_used = now;
                }
            }
            Claim::Null | Claim::Previous(_) => {}
        }
        let conflict = match planned.claim {
            Claim::Previous(_) => NfsStat::ReclaimConflict,
            _ => NfsStat::ShareDenied,
        };
        while let Some(state) = self.files.get(&file).filter(|state| deny != 0 || state.denying_opens > 0) {
            let against = state.opens.iter().find_map(|index| {
                let open = self.open_at(*index)?;
                let conflicts = open.deny & access != 0 || open.access & deny != 0;
                conflicts.then(|| self.owners[&open.owner].client)
            });
            // [RFC7530 9.9] [RFC8881 9.7] This includes the owner's own opens.
            let Some(holder) = against.filter(|_| !fault_injection::is_injected(Fault::IgnoreDeny)) else {
                break;
            };
            if !self.lease_expired(now, holder) {
                return fail(conflict);
            }
            self.evict(holder)?;
        }
        if let Some(state) = self.files.get(&file)
            && state
                .in_flight
                .iter()
                .any(|number| self.conflicts_with(&self.in_flight[number], access, deny, own))
        {
            return fail(NfsStat::Delay);
        }
        let against_readers = access & share::WRITE != 0 || deny & share::READ != 0;
        self.recall_conflicting(now, file, Some(planned.client), against_readers, truncates)?;
        let before = self.in_flight.get_mut(&plan.0).and_then(|in_flight| {
            if let InFlightKind::Open(planned) = &mut in_flight.kind {
                planned.effective_access = access;
            }
            in_flight.file.replace(file)
        });
        if let Some(before) = before {
            // The name changed concurrently, and the operation started again.
            if let Some(state) = self.files.get_mut(&before) {
                state.in_flight.remove(&plan.0);
            }
            self.forget_file_if_idle(before);
        }
        self.files.entry(file).or_default().in_flight.insert(plan.0);
        Ok(())
    }

    fn conflicts_with(&self, other: &InFlight, access: u32, deny: u32, own: Option<u64>) -> bool {
        match &other.kind {
            InFlightKind::Open(plan) => plan.deny & access != 0 || plan.effective_access & deny != 0,
            InFlightKind::Permit { access, by } => {
                let bits = match access {
                    Access::Read => share::READ,
                    Access::Write | Access::Resize => share::WRITE,
                    Access::Metadata | Access::Namespace => 0,
                };
                let owner = by.and_then(|index| match &self.entries.get(&index)?.kind {
                    EntryKind::Open(open) => Some(open.owner),
                    EntryKind::Lock(lock) => self.open_at(lock.open).map(|open| open.owner),
                    EntryKind::Delegation(_) | EntryKind::Copy(_) => None,
                });
                let same = owner.is_some() && owner == own;
                !same && bits & deny != 0
            }
            InFlightKind::Getattr | InFlightKind::HolderReply(..) => false,
        }
    }

    /// Commits a planned OPEN when the VFS has done its part. Claims the file first if necessary; if that
    /// fails, the caller must abort the returned plan.
    pub fn open_commit(
        &mut self,
        now: Time,
        plan: OpenPlan,
        file: FileId,
        delegate: bool,
    ) -> Result<Opened, (OpenPlan, Stop)> {
        if let Err(stop) = self.open_claim(now, &plan, file, false) {
            return Err((plan, stop));
        }
        let Some(InFlight { kind: InFlightKind::Open(planned), .. }) = self.end_in_flight(now, plan.0) else {
            unreachable!("it was there when it was claimed")
        };
        let owner = self.owner(planned.client, OwnerKind::Open, &planned.owner);
        let before = self.own_open(owner, file);
        let index = before.unwrap_or_else(|| {
            let (locks, openers) = (BTreeSet::new(), Vec::new());
            let open = Open { owner, access: 0, deny: 0, combinations: 0, locks, openers };
            self.insert_entry(planned.client, file, EntryKind::Open(open))
        });
        if let Some(entry) = self.entries.get_mut(&index) {
            if before.is_some() {
                entry.changed();
            }
            if let EntryKind::Open(open) = &mut entry.kind {
                let shares = open.shares();
                open.add(planned.access, planned.deny);
                self.files.entry(file).or_default().count_shares(shares, open.shares());
            }
        }
        let state = self.files.entry(file).or_default();
        if !state.keeps_file() {
            self.effects.push(Effect::Pin { file });
        }
        state.opens.insert(index);
        let reclaims = matches!(planned.claim, Claim::Previous(_));
        let mut confirm = false;
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.entries.insert(index);
            if let Some(sequence) = &mut owner.sequence {
                // [RFC7530 9.1.11]
                sequence.confirmed |= reclaims;
                confirm = !sequence.confirmed;
            }
        }
        if reclaims {
            self.note_reclaim(planned.client);
        }
        let delegation = self.grant(now, &planned, file, delegate && !confirm);
        Ok(Opened { stateid: self.stateid(index), confirm, delegation })
    }

    /// Returns the open that an owner has of a file.
    fn own_open(&self, owner: u64, file: FileId) -> Option<u32> {
        let (opens, entries) = (&self.files.get(&file)?.opens, &self.owners.get(&owner)?.entries);
        // An owner can have many files, and a file many owners: this searches the smaller set.
        let is_open = |index: &u32| self.open_at(*index).is_some_and(|open| open.owner == owner);
        opens.intersection(entries).copied().find(is_open)
    }

    /// Remembers the principal of an OPEN, so that its access is not checked for each READ and WRITE.
    pub fn opened_as(&mut self, stateid: &StateId, principal: &Principal) {
        let index = Self::index_of(stateid);
        if let Some(EntryKind::Open(open)) = self.entries.get_mut(&index).map(|entry| &mut entry.kind)
            && open.openers.len() < OPENERS
            && !open.openers.contains(principal)
        {
            // Without the spare capacity that a growing list has: there can be very many opens.
            open.openers.reserve_exact(1);
            open.openers.push(principal.clone());
        }
    }

    /// Returns whether a principal is one of those that opened the file of this stateid.
    pub fn is_opener(&self, caller: Caller, stateid: &StateId, principal: &Principal) -> bool {
        let Ok(index) = self.find(caller, stateid) else { return false };
        let open = match &self.entries[&index].kind {
            EntryKind::Open(open) => Some(open),
            EntryKind::Lock(lock) => self.open_at(lock.open),
            EntryKind::Delegation(_) | EntryKind::Copy(_) => None,
        };
        open.is_some_and(|open| open.openers.contains(principal))
    }

    /// Aborts a planned OPEN.
    pub fn open_abort(&mut self, now: Time, plan: OpenPlan) {
        self.end_in_flight(now, plan.0);
    }

    /// OPEN_DOWNGRADE (RFC 8881 section 18.18).
    pub fn open_downgrade(
        &mut self,
        now: Time,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        access: u32,
        deny: u32,
    ) -> Step<StateId> {
        let index = self.find_for_file(caller, file, stateid)?;
        if access & !share::BOTH != 0 || access == 0 || deny & !share::BOTH != 0 {
            return fail(NfsStat::Inval);
        }
        let Some(entry) = self.entries.get_mut(&index) else { return fail(NfsStat::BadStateid) };
        let EntryKind::Open(open) = &mut entry.kind else { return fail(NfsStat::BadStateid) };
        // [RFC8881 18.18.3]
        let Some(combinations) = open.reduced(access, deny) else { return fail(NfsStat::Inval) };
        let shares = open.shares();
        (open.access, open.deny, open.combinations) = (access, deny, combinations);
        self.files.entry(file).or_default().count_shares(shares, open.shares());
        entry.changed();
        let client = entry.client;
        self.renew(now, client);
        Ok(self.stateid(index))
    }

    /// CLOSE (RFC 8881 section 18.2). It releases locks under the open.
    pub fn close(&mut self, now: Time, caller: Caller, file: FileId, stateid: &StateId) -> Step<StateId> {
        let index = self.find_for_file(caller, file, stateid)?;
        if self.open_at(index).is_none() {
            return fail(NfsStat::BadStateid);
        }
        let mut last = self.stateid(index);
        let client = self.entries[&index].client;
        self.drop_open(index);
        self.renew(now, client);
        // [RFC8881 18.2.4]
        if caller != Caller::V40 {
            return Ok(StateId::INVALID);
        }
        last.seqid = last.seqid.checked_add(1).unwrap_or(1);
        Ok(last)
    }

    /// Drops an open and its lock state.
    pub(super) fn drop_open(&mut self, index: u32) {
        let locks = self.open_at(index).map(|open| open.locks.clone()).unwrap_or_default();
        for lock in locks {
            self.drop_lock_state(lock);
        }
        let Some(entry) = self.remove_entry(index) else { return };
        if let (Some(state), EntryKind::Open(open)) = (self.files.get_mut(&entry.file), &entry.kind) {
            state.opens.remove(&index);
            state.count_shares(open.shares(), (0, 0));
            if !state.keeps_file() {
                self.effects.push(Effect::Unpin { file: entry.file });
            }
        }
        if let EntryKind::Open(open) = entry.kind {
            if let Some(owner) = self.owners.get_mut(&open.owner) {
                owner.entries.remove(&index);
            }
            self.remove_owner_if_idle(open.owner);
        }
        self.forget_file_if_idle(entry.file);
    }
}
