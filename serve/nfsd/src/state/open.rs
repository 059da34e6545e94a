//! Opens (RFC 8881 sections 9.7 to 9.11, 18.2, 18.16, 18.18).
//!
//! An OPEN is planned, claims its file, and is committed or aborted; between these the VFS does its part. What is refused is refused before
//! anything was made.

use std::collections::BTreeSet;

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::delegation::Granted;
use super::held::{Kind, OwnerKind};
use super::mistake::{self, Mistake};
use super::permit::{At, UnderWay};
use super::{Caller, Effect, File, Principal, Running, State, Step, Time, Turn, fail};

/// So many users of one owner are remembered; the others are looked at each time.
const OPENERS: usize = 8;

#[derive(Debug)]
pub(super) struct Open {
    pub owner: u64,
    pub access: u32,
    pub deny: u32,
    /// Which (access, deny) it was opened with: a downgrade can only go back to some of them. Bit `access * 4 + deny`.
    combinations: u16,
    /// Lock-owners' stateids under it.
    pub locks: BTreeSet<u32>,
    /// Who has opened it so.
    openers: BTreeSet<Principal>,
}

impl Open {
    fn add(&mut self, access: u32, deny: u32) {
        self.access |= access;
        self.deny |= deny;
        self.combinations |= 1 << (access * 4 + deny);
    }

    /// What is left if everything beyond (access, deny) goes; nothing if that is not what is left.
    fn reduced(&self, access: u32, deny: u32) -> Option<u16> {
        let within = |bit: &u32| (bit / 4) & !access == 0 && (bit % 4) & !deny == 0;
        let left = (4..16).filter(|bit| self.combinations & 1 << bit != 0).filter(within);
        let (mut sum, mut union) = (0, (0, 0));
        for bit in left {
            sum |= 1 << bit;
            union = (union.0 | (bit / 4), union.1 | (bit % 4));
        }
        (union == (access, deny)).then_some(sum)
    }
}

/// By what right a file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// CLAIM_NULL, CLAIM_FH.
    Fresh,
    /// CLAIM_PREVIOUS, and for which delegation it asks (`open_delegation_type4`).
    Previous(u32),
    /// CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH.
    Delegated(StateId),
}

/// What OPEN asks for.
#[derive(Debug)]
pub struct OpenRequest<'a> {
    /// Who.
    pub client: ClientId,
    /// Which open-owner of his.
    pub owner: &'a [u8],
    /// Bits of [`share`], without what is wanted.
    pub access: u32,
    /// Bits of [`share`].
    pub deny: u32,
    /// What is wanted: [`share::WANT_MASK`] of the access.
    pub wants: u32,
    /// By what right.
    pub claim: Claim,
    /// The request of a session that it is in.
    pub running: Option<&'a Running>,
    /// The owner's turn (NFSv4.0).
    pub turn: Option<&'a Turn>,
}

/// An OPEN that is under way. It has to be [committed](State::open_commit) or [aborted](State::open_abort).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it counts as under way until it is committed or aborted"]
pub struct Plan(pub(super) u64);

/// What a plan is for.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub client: ClientId,
    pub owner: Vec<u8>,
    pub access: u32,
    pub deny: u32,
    pub wants: u32,
    pub claim: Claim,
    pub born: Option<super::delegation::Born>,
    /// What it does to the file: a truncation is a write, whatever it is opened for.
    pub touches: u32,
}

/// An OPEN that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The open.
    pub stateid: StateId,
    /// NFSv4.0: OPEN_CONFIRM has to follow.
    pub confirm: bool,
    /// The delegation, or why there is none.
    pub delegation: Granted,
}

impl State {
    /// Everything that can refuse an OPEN before its file is known.
    pub fn open_plan(&mut self, now: Time, request: &OpenRequest<'_>) -> Step<Plan> {
        let id = request.client;
        if request.access & !share::BOTH != 0 || request.access == 0 || request.deny & !share::BOTH != 0 {
            return fail(NfsStat::Inval);
        }
        let caller = self.caller(id)?;
        if caller == Caller::V40 {
            self.renew(now, id);
        }
        match &request.claim {
            Claim::Fresh => self.fresh_for(id)?,
            Claim::Previous(_) => self.may_reclaim(id)?,
            Claim::Delegated(stateid) => {
                let index = self.find(caller, stateid)?;
                if self.held[&index].client != id || !matches!(self.held[&index].kind, Kind::Delegation(_)) {
                    return fail(NfsStat::BadStateid);
                }
            }
        }
        self.room_for_state(now, id)?;
        if caller == Caller::V40 {
            self.be_recorded(id)?;
        }
        let planned = Planned {
            client: id,
            owner: request.owner.to_vec(),
            access: request.access,
            deny: request.deny,
            wants: request.wants,
            claim: request.claim.clone(),
            born: request.running.map(Into::into),
            touches: request.access,
        };
        Ok(Plan(self.set_out(UnderWay { client: Some(id), file: None, at: At::Plan(planned), quiet: false })))
    }

    /// The file is known, and nobody else can reach it, or the VFS will say that it was another one by then. If it is going to be
    /// truncated that counts as writing.
    pub fn open_claim(&mut self, now: Time, plan: &Plan, file: File, truncates: bool) -> Step<()> {
        let Some(UnderWay { at: At::Plan(planned), file: claimed, .. }) = self.under_way.get(&plan.0) else {
            return fail(NfsStat::Serverfault);
        };
        if *claimed == Some(file) {
            return Ok(());
        }
        let planned = planned.clone();
        self.bumped(file)?;
        let writes = if truncates { share::WRITE } else { 0 };
        let (access, deny) = (planned.access | writes, planned.deny);
        let own =
            self.clients[&planned.client].owners.get(&(OwnerKind::Open, planned.owner.clone())).copied();
        match &planned.claim {
            Claim::Delegated(stateid) => {
                let index = self.find_of(self.caller(planned.client)?, file, stateid)?;
                if let Some(Kind::Delegation(delegation)) =
                    self.held.get_mut(&index).map(|held| &mut held.kind)
                {
                    // [RFC8881 10.4.4]
                    if access & share::WRITE != 0 && !delegation.write {
                        return fail(NfsStat::BadStateid);
                    }
                    delegation.used = now;
                }
            }
            Claim::Fresh | Claim::Previous(_) => {}
        }
        let conflict = match planned.claim {
            Claim::Previous(_) => NfsStat::ReclaimConflict,
            _ => NfsStat::ShareDenied,
        };
        while let Some(state) = self.files.get(&file) {
            let against = state.opens.iter().find_map(|index| {
                let open = self.open_at(*index)?;
                let conflicts = open.deny & access != 0 || open.access & deny != 0;
                conflicts.then(|| self.owners[&open.owner].client)
            });
            // [RFC7530 9.9] [RFC8881 9.7] His own opens are no exception.
            let Some(holder) = against.filter(|_| !mistake::is(Mistake::ForgetDenials)) else { break };
            if !self.lease_is_over(now, holder) {
                return fail(conflict);
            }
            self.evict(holder)?;
        }
        if let Some(state) = self.files.get(&file)
            && state.under_way.iter().any(|number| self.hinders(&self.under_way[number], access, deny, own))
        {
            return fail(NfsStat::Delay);
        }
        let against_readers = access & share::WRITE != 0 || deny & share::READ != 0;
        self.stand_aside(now, file, Some(planned.client), against_readers, truncates)?;
        let before = self.under_way.get_mut(&plan.0).and_then(|under_way| {
            if let At::Plan(planned) = &mut under_way.at {
                planned.touches = access;
            }
            under_way.file.replace(file)
        });
        if let Some(before) = before {
            // The name led elsewhere meanwhile, and the operation started over.
            if let Some(state) = self.files.get_mut(&before) {
                state.under_way.remove(&plan.0);
            }
            self.tidy(before);
        }
        self.files.entry(file).or_default().under_way.insert(plan.0);
        Ok(())
    }

    fn hinders(&self, other: &UnderWay, access: u32, deny: u32, own: Option<u64>) -> bool {
        match &other.at {
            At::Plan(plan) => plan.deny & access != 0 || plan.touches & deny != 0,
            At::Permit { does, by } => {
                let bits = match does {
                    super::Does::Read => share::READ,
                    super::Does::Write | super::Does::Resize => share::WRITE,
                    super::Does::Change | super::Does::Name => 0,
                };
                let owner = by.and_then(|index| match &self.held.get(&index)?.kind {
                    Kind::Open(open) => Some(open.owner),
                    Kind::Lock(lock) => self.open_at(lock.open).map(|open| open.owner),
                    Kind::Delegation(_) | Kind::Copy(_) => None,
                });
                let same = owner.is_some() && owner == own;
                !same && bits & deny != 0
            }
            At::Look | At::Answer(..) => false,
        }
    }

    /// The VFS has done its part. If the file was not claimed before, it is now, and that can fail: then the plan goes on and has to be
    /// aborted.
    pub fn open_commit(
        &mut self,
        now: Time,
        plan: Plan,
        file: File,
        delegate: bool,
    ) -> Result<Opened, (Plan, super::Stop)> {
        if let Err(stop) = self.open_claim(now, &plan, file, false) {
            return Err((plan, stop));
        }
        let Some(UnderWay { at: At::Plan(planned), .. }) = self.come_back(now, plan.0) else {
            unreachable!("it was there when it was claimed")
        };
        let owner = self.owner(planned.client, OwnerKind::Open, &planned.owner);
        let opens = self.files.get(&file).into_iter().flat_map(|state| &state.opens);
        let before =
            opens.copied().find(|index| self.open_at(*index).is_some_and(|open| open.owner == owner));
        let index = before.unwrap_or_else(|| {
            let (locks, openers) = (BTreeSet::new(), BTreeSet::new());
            let open = Open { owner, access: 0, deny: 0, combinations: 0, locks, openers };
            self.hold(planned.client, file, Kind::Open(open))
        });
        if let Some(held) = self.held.get_mut(&index) {
            if before.is_some() {
                held.changed();
            }
            if let Kind::Open(open) = &mut held.kind {
                open.add(planned.access, planned.deny);
            }
        }
        let opens = &mut self.files.entry(file).or_default().opens;
        if opens.is_empty() {
            self.effects.push(Effect::Keep { file });
        }
        opens.insert(index);
        let reclaims = matches!(planned.claim, Claim::Previous(_));
        let mut confirm = false;
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.held.insert(index);
            if let Some(sequence) = &mut owner.sequence {
                // [RFC7530 9.1.11]
                sequence.confirmed |= reclaims;
                confirm = !sequence.confirmed;
            }
        }
        if reclaims {
            self.reclaimed(planned.client);
        }
        let delegation = self.grant(now, &planned, file, delegate && !confirm);
        Ok(Opened { stateid: self.stateid(index), confirm, delegation })
    }

    /// Who has opened it: he was looked at then, and is not each time he reads or writes.
    pub fn opened_as(&mut self, stateid: &StateId, principal: &Principal) {
        let index = Self::index_of(stateid);
        if let Some(Kind::Open(open)) = self.held.get_mut(&index).map(|held| &mut held.kind)
            && open.openers.len() < OPENERS
        {
            open.openers.insert(principal.clone());
        }
    }

    /// Whether somebody has opened what he uses a stateid of, or locks it, himself.
    pub fn is_opener(&self, caller: Caller, stateid: &StateId, principal: &Principal) -> bool {
        let Ok(index) = self.find(caller, stateid) else { return false };
        let open = match &self.held[&index].kind {
            Kind::Open(open) => Some(open),
            Kind::Lock(lock) => self.open_at(lock.open),
            Kind::Delegation(_) | Kind::Copy(_) => None,
        };
        open.is_some_and(|open| open.openers.contains(principal))
    }

    /// It came to nothing.
    pub fn open_abort(&mut self, now: Time, plan: Plan) {
        self.come_back(now, plan.0);
    }

    /// OPEN_DOWNGRADE (RFC 8881 section 18.18).
    pub fn open_downgrade(
        &mut self,
        now: Time,
        caller: Caller,
        file: File,
        stateid: &StateId,
        access: u32,
        deny: u32,
    ) -> Step<StateId> {
        let index = self.find_of(caller, file, stateid)?;
        if access & !share::BOTH != 0 || access == 0 || deny & !share::BOTH != 0 {
            return fail(NfsStat::Inval);
        }
        let Some(held) = self.held.get_mut(&index) else { return fail(NfsStat::BadStateid) };
        let Kind::Open(open) = &mut held.kind else { return fail(NfsStat::BadStateid) };
        // [RFC8881 18.18.3]
        let Some(combinations) = open.reduced(access, deny) else { return fail(NfsStat::Inval) };
        (open.access, open.deny, open.combinations) = (access, deny, combinations);
        held.changed();
        let client = held.client;
        self.renew(now, client);
        Ok(self.stateid(index))
    }

    /// CLOSE (RFC 8881 section 18.2): locks under it go with it.
    pub fn close(&mut self, now: Time, caller: Caller, file: File, stateid: &StateId) -> Step<StateId> {
        let index = self.find_of(caller, file, stateid)?;
        if self.open_at(index).is_none() {
            return fail(NfsStat::BadStateid);
        }
        let mut last = self.stateid(index);
        let client = self.held[&index].client;
        self.drop_open(index);
        self.renew(now, client);
        // [RFC8881 18.2.4]
        if caller != Caller::V40 {
            return Ok(StateId::INVALID);
        }
        last.seqid = last.seqid.checked_add(1).unwrap_or(1);
        Ok(last)
    }

    /// An open goes, with the lock-owners under it.
    pub(super) fn drop_open(&mut self, index: u32) {
        let locks = self.open_at(index).map(|open| open.locks.clone()).unwrap_or_default();
        for lock in locks {
            self.drop_lock_state(lock);
        }
        let Some(held) = self.release(index) else { return };
        if let Some(state) = self.files.get_mut(&held.file) {
            state.opens.remove(&index);
            if state.opens.is_empty() {
                self.effects.push(Effect::Release { file: held.file });
            }
        }
        if let Kind::Open(open) = held.kind {
            if let Some(owner) = self.owners.get_mut(&open.owner) {
                owner.held.remove(&index);
            }
            self.let_owner_go(open.owner);
        }
        self.tidy(held.file);
    }
}
