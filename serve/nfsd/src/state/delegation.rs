//! Delegations: given, asked about, recalled, returned, revoked (RFC 8881 sections 10.2, 10.4, 20.1, 20.2).

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, SessionId, StateId};

use super::client::Mark;
use super::held::Kind;
use super::mistake::{self, Mistake};
use super::open::{Claim, Planned};
use super::permit::{At, Does, Permit, UnderWay};
use super::{
    Call, Caller, Effect, File, Limits, Note, Pending, Running, State, Step, Stop, Ticket, Time, fail,
};

/// So many lease times a delegation may be out behind its recall, however busily its holder writes back.
const RECALL_LEASES: u64 = 4;

/// In which request it was given: until the client is known to have seen the reply, a callback about it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Born {
    pub session: SessionId,
    pub slot: u32,
    pub sequence: u32,
}

impl From<&Running> for Born {
    fn from(running: &Running) -> Self {
        Self { session: running.session, slot: running.slot, sequence: running.sequence }
    }
}

#[derive(Debug)]
pub(super) struct Recall {
    pub since: Time,
    /// When it is looked at again.
    pub check: Time,
    /// The client has said that he got it.
    pub delivered: bool,
}

#[derive(Debug)]
pub(super) struct Delegation {
    pub write: bool,
    /// Change attribute and size that the holder was given.
    base: Option<(u64, u64)>,
    /// It is from before a restart: what the holder was given then says nothing any more.
    reclaimed: bool,
    /// Somebody was told that the holder has written.
    shown: bool,
    pub born: Option<Born>,
    pub recall: Option<Recall>,
    /// When the holder last wrote back or opened under it.
    pub used: Time,
    asked: Option<Ticket>,
    /// What he has said is on its way.
    answering: Option<Ticket>,
    pub revoked: bool,
}

/// A delegation, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granted {
    /// None.
    None(Why),
    /// For reading.
    Read(StateId),
    /// For writing. [`State::delegation_base`] has to be told what the holder is told, before he is.
    Write(StateId),
}

/// `why_no_delegation4`, as far as it happens here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nobody asked for one.
    NotWanted,
    /// Somebody else uses the file, or just has.
    Contention,
    /// There are too many, or the client cannot be called back.
    Resource,
}

/// What the holder of a write delegation says of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Its change attribute.
    pub change: u64,
    /// Its size.
    pub size: u64,
}

/// What those are told who asked about a file under a write delegation.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// The holder has written nothing: the VFS's attributes are right. When all who have asked have read them the permit is ended.
    Untouched(Permit),
    /// He has. In one step of the VFS the change attribute is raised and the times are set; what that gives goes out, with his size. Once
    /// for all who have asked. Then the permit is ended.
    Written {
        /// His size.
        size: u64,
        /// The delegation stays until then, and nobody else looks.
        permit: Permit,
    },
}

impl State {
    /// Make the delegations of others stand aside: all, or only those for writing. What is in the way is recalled.
    pub(super) fn stand_aside(
        &mut self,
        now: Time,
        file: File,
        by: Option<ClientId>,
        readers_too: bool,
        truncate: bool,
    ) -> Step<()> {
        if mistake::is(Mistake::ForgetDelegations) {
            return Ok(());
        }
        let Some(state) = self.files.get(&file) else { return Ok(()) };
        let in_the_way = |index: &u32| {
            let held = &self.held[index];
            let matters = matches!(&held.kind, Kind::Delegation(it) if it.write || readers_too);
            matters && Some(held.client) != by
        };
        let others: Vec<u32> = state.delegations.iter().copied().filter(in_the_way).collect();
        let mut left = false;
        for index in others {
            let Some(held) = self.held.get(&index) else { continue };
            let holder = held.client;
            if self.lease_is_over(now, holder) {
                self.evict(holder)?;
            } else if !self.revoke_if_overdue(now, index)? {
                self.recall(now, index, truncate);
                left = true;
            }
        }
        // [RFC8881 10.4.5]
        if left { fail(NfsStat::Delay) } else { self.bumped(file) }
    }

    fn delegation(&mut self, index: u32) -> Option<&mut Delegation> {
        match &mut self.held.get_mut(&index)?.kind {
            Kind::Delegation(delegation) => Some(delegation),
            _ => None,
        }
    }

    /// Ask for a delegation back, once.
    fn recall(&mut self, now: Time, index: u32, truncate: bool) {
        let check = now + self.config.lease;
        let Some(held) = self.held.get(&index) else { return };
        let (client, file) = (held.client, held.file);
        if let Some(state) = self.files.get_mut(&file) {
            state.conflict = Some(now);
        }
        let Some(delegation) = self.delegation(index) else { return };
        if delegation.recall.is_some() {
            return;
        }
        delegation.recall = Some(Recall { since: now, check, delivered: false });
        self.recalls.insert((check, index));
        let stateid = self.stateid(index);
        self.note(Note::Recalled(client, file));
        self.effects.push(Effect::Call { client, call: Call::Recall { stateid, file, truncate } });
    }

    /// Whether a delegation has been waited for long enough; then it is revoked.
    pub(super) fn revoke_if_overdue(&mut self, now: Time, index: u32) -> Step<bool> {
        let lease = self.config.lease;
        let Some(held) = self.held.get(&index) else { return Ok(true) };
        let (holder, file) = (held.client, held.file);
        let Kind::Delegation(delegation) = &held.kind else { return Ok(true) };
        let Some(recall) = &delegation.recall else { return Ok(false) };
        let deadline = (recall.since + lease).max(delegation.used + lease);
        let deadline = deadline.min(recall.since + lease.times(RECALL_LEASES));
        let used = self.files.get(&file).is_some_and(|state| {
            state.under_way.iter().any(|number| self.under_way[number].client == Some(holder))
        });
        if now <= deadline || used {
            return Ok(false);
        }
        // [RFC8881 8.4.3]
        self.be_marked(holder)?;
        self.revoke(index);
        Ok(true)
    }

    /// What was not returned is taken away. The stateid stays, as a revoked one, until the client says that he knows.
    fn revoke(&mut self, index: u32) {
        let Some(held) = self.held.get(&index) else { return };
        let with_sessions = self.clients.get(&held.client).is_some_and(|client| client.with_sessions);
        let (client, file) = (held.client, held.file);
        let bump = self.unlink_delegation(index);
        self.note(Note::Revoked(client, file));
        if with_sessions {
            // [RFC8881 10.4.6]
            if let Some(delegation) = self.delegation(index) {
                delegation.revoked = true;
            }
            if let Some(client) = self.clients.get_mut(&client) {
                client.revoked += 1;
            }
        } else {
            self.release(index);
        }
        if bump {
            self.bump(file);
        }
        self.tidy(file);
    }

    /// Take a delegation off its file. Whether that has to end with a bump: somebody was shown what may never arrive.
    fn unlink_delegation(&mut self, index: u32) -> bool {
        let Some(held) = self.held.get(&index) else { return false };
        let (client, file) = (held.client, held.file);
        let Kind::Delegation(delegation) = &held.kind else { return false };
        let bump = delegation.write && (delegation.shown || delegation.reclaimed);
        if let Some(recall) = &delegation.recall {
            self.recalls.remove(&(recall.check, index));
        }
        if let Some(state) = self.files.get_mut(&file) {
            state.delegations.remove(&index);
        }
        self.delegations -= 1;
        if let Some(client) = self.clients.get_mut(&client) {
            client.delegations -= 1;
        }
        bump && !mistake::is(Mistake::ForgetLastBump)
    }

    /// A delegation ends.
    pub(super) fn end_delegation(&mut self, index: u32) {
        let Some(held) = self.held.get(&index) else { return };
        let file = held.file;
        if matches!(&held.kind, Kind::Delegation(delegation) if !delegation.revoked)
            && self.unlink_delegation(index)
        {
            self.bump(file);
        }
        self.release(index);
        self.tidy(file);
    }

    /// The server stops: what was shown and has not arrived must not look as if it had.
    pub fn shut_down(&mut self) {
        let shown = |index: &&u32| matches!(&self.held[index].kind, Kind::Delegation(it) if !it.revoked && (it.shown || it.reclaimed));
        let indices: Vec<u32> = self.held.keys().filter(shown).copied().collect();
        for index in indices {
            self.end_delegation(index);
        }
    }

    /// DELEGRETURN (RFC 8881 section 18.6).
    pub fn deleg_return(&mut self, now: Time, caller: Caller, file: File, stateid: &StateId) -> Step<()> {
        let index = self.find_of(caller, file, stateid)?;
        if !matches!(self.held[&index].kind, Kind::Delegation(_)) {
            return fail(NfsStat::BadStateid);
        }
        // The last bump has to come behind the one for an answer that is on its way, which says his size.
        if let Some(ticket) = self.delegation(index).and_then(|delegation| delegation.answering) {
            return Err(Stop::Gate(ticket));
        }
        let client = self.held[&index].client;
        self.end_delegation(index);
        self.renew(now, client);
        Ok(())
    }

    /// Delegations that nobody returns are revoked, a slice at a time. When the next one is due.
    pub(super) fn sweep_recalls(&mut self, now: Time, slice: usize) -> Option<Time> {
        for _ in 0..slice {
            let (check, index) = *self.recalls.first()?;
            if check > now {
                return Some(check);
            }
            if self.revoke_if_overdue(now, index) != Ok(true) {
                let again = now + super::Span::seconds(1);
                self.recalls.remove(&(check, index));
                self.recalls.insert((again, index));
                if let Some(Recall { check, .. }) = self.delegation(index).and_then(|it| it.recall.as_mut()) {
                    *check = again;
                }
            }
        }
        Some(now)
    }

    /// Give a delegation with an open, if nothing speaks against it.
    pub(super) fn grant(&mut self, now: Time, planned: &Planned, file: File, allowed: bool) -> Granted {
        let client = &self.clients[&planned.client];
        let (write, reclaimed) = match planned.claim {
            Claim::Delegated(_) => return Granted::None(Why::NotWanted),
            Claim::Previous(1) => (false, true),
            Claim::Previous(2) if client.with_sessions => (true, true),
            Claim::Previous(_) => return Granted::None(Why::NotWanted),
            Claim::Fresh => {
                let writes = planned.access & share::WRITE != 0;
                match planned.wants & share::WANT_MASK {
                    0 | share::WANT_ANY_DELEG => (writes, false),
                    share::WANT_READ_DELEG if !writes => (false, false),
                    share::WANT_WRITE_DELEG if writes => (true, false),
                    _ => return Granted::None(Why::NotWanted),
                }
            }
        };
        let Limits { delegations, stateids, .. } = self.config.limits;
        if !self.can_call(planned.client) && !reclaimed
            || client.delegations >= delegations.0
            || !self.shares(client.id, 1, (self.delegations, delegations.1), |client| client.delegations)
            || write && !client.with_sessions
            || client.held.len() >= stateids.0
            || !self.shares(client.id, 1, (self.held.len(), stateids.1), |client| client.held.len())
        {
            return Granted::None(Why::Resource);
        }
        if reclaimed && client.mark != Mark::None {
            return Granted::None(Why::Contention);
        }
        let recent = |at: Time| now.since(at) <= self.config.lease;
        let contended = self.files.get(&file).is_none_or(|state| {
            !state.bumps.is_empty()
                || state.conflict.is_some_and(recent)
                || self.is_used(file, planned.client, write)
        });
        if !allowed && !reclaimed || contended {
            return Granted::None(Why::Contention);
        }
        let delegation = Delegation {
            write,
            base: None,
            reclaimed,
            shown: false,
            born: planned.born,
            recall: None,
            used: now,
            asked: None,
            answering: None,
            revoked: false,
        };
        let index = self.hold(planned.client, file, Kind::Delegation(delegation));
        self.files.entry(file).or_default().delegations.insert(index);
        self.delegations += 1;
        if let Some(client) = self.clients.get_mut(&planned.client) {
            client.delegations += 1;
        }
        let stateid = self.stateid(index);
        if write { Granted::Write(stateid) } else { Granted::Read(stateid) }
    }

    /// Whether somebody uses a file in a way that a delegation would have to stop.
    fn is_used(&self, file: File, by: ClientId, write: bool) -> bool {
        let Some(state) = self.files.get(&file) else { return false };
        let open = state.opens.iter().any(|index| {
            let writes = self.open_at(*index).is_some_and(|open| open.access & share::WRITE != 0);
            if write { self.held[index].client != by } else { writes }
        });
        // One a client and file: he would not know which one a recall means.
        let delegated = state.delegations.iter().any(|index| {
            let held = &self.held[index];
            let writes = matches!(&held.kind, Kind::Delegation(it) if it.write);
            held.client == by || write || writes
        });
        let under_way = !mistake::is(Mistake::ForgetPermits)
            && state.under_way.iter().any(|number| {
                let it = &self.under_way[number];
                let harmless = match &it.at {
                    At::Permit { does, .. } => *does == Does::Read,
                    At::Plan(plan) => plan.touches & share::WRITE == 0 && plan.deny & share::READ == 0,
                    At::Look => true,
                    At::Answer(..) => false,
                };
                if write { it.client != Some(by) } else { !harmless }
            });
        open || delegated || under_way
    }

    /// What the holder of a new write delegation is told about the file: what he says later is compared with it. Queried last of all,
    /// so that nothing is between.
    pub fn delegation_base(&mut self, stateid: &StateId, base: Answer) {
        let index =
            self.held.iter().next_back().map(|(index, _)| *index).filter(|at| self.stateid(*at) == *stateid);
        let index = index.or_else(|| self.find(Caller::Client(self.holder(stateid)?), stateid).ok());
        if let Some(delegation) = index.and_then(|index| self.delegation(index)) {
            delegation.base = Some((base.change, base.size));
        }
    }

    fn holder(&self, stateid: &StateId) -> Option<ClientId> {
        self.held.get(&Self::index_of(stateid)).map(|held| held.client)
    }

    /// Look at change attribute, size and times of a file, as the VFS has them. If somebody else holds a write delegation he is asked.
    ///
    /// A permit, too: otherwise a delegation could be given, written under and asked about meanwhile, and the old contents be seen under
    /// the value of that answer.
    pub fn look(&mut self, now: Time, caller: Caller, file: File) -> Step<Permit> {
        self.known(now, caller, file)?;
        self.room_for_permit(caller.client())?;
        let client = caller.client();
        if client.is_some_and(|id| self.clients.get(&id).is_none_or(|client| client.condemned.is_some())) {
            return fail(NfsStat::Delay);
        }
        Ok(Permit(self.set_out(UnderWay { client, file: Some(file), at: At::Look, quiet: false })))
    }

    fn known(&mut self, now: Time, caller: Caller, file: File) -> Step<()> {
        self.bumped(file)?;
        let Some(state) = self.files.get(&file) else { return Ok(()) };
        let of_another = |index: &&u32| {
            let held = &self.held[*index];
            let writes = matches!(&held.kind, Kind::Delegation(it) if it.write);
            writes && Some(held.client) != caller.client()
        };
        let Some(index) = state.delegations.iter().find(of_another).copied() else { return Ok(()) };
        let holder = self.held[&index].client;
        if self.lease_is_over(now, holder) {
            self.evict(holder)?;
            return self.bumped(file);
        }
        let can_call = self.can_call(holder);
        let Some(delegation) = self.delegation(index) else { return Ok(()) };
        if let Some(ticket) = delegation.answering {
            return Err(Stop::Gate(ticket));
        }
        if let Some(ticket) = delegation.asked {
            return Err(Stop::Ask(ticket));
        }
        if delegation.recall.is_some() || !can_call {
            return self.stand_aside(now, file, caller.client(), false, false);
        }
        if delegation.base.is_none() && !delegation.reclaimed {
            // He is just being told.
            return fail(NfsStat::Delay);
        }
        let stateid = self.stateid(index);
        let ticket = self.ticket(Pending::Asked(index));
        if let Some(delegation) = self.delegation(index) {
            delegation.asked = Some(ticket);
        }
        self.effects.push(Effect::Call { client: holder, call: Call::GetAttr { ticket, file, stateid } });
        Err(Stop::Ask(ticket))
    }

    /// What the holder of a write delegation has said; nothing if he did not say it in time. All requests that wait for the ticket are
    /// told what comes of it.
    pub fn told(&mut self, now: Time, ticket: Ticket, answer: Option<Answer>) -> Step<Told> {
        let Some(Pending::Asked(index)) = self.pending.remove(&ticket) else { return fail(NfsStat::Delay) };
        let Some(held) = self.held.get(&index) else { return fail(NfsStat::Delay) };
        let (file, holder) = (held.file, held.client);
        let Some(delegation) = self.delegation(index).filter(|it| it.asked == Some(ticket) && !it.revoked)
        else {
            // It ended meanwhile: what he said may be old by now.
            return fail(NfsStat::Delay);
        };
        delegation.asked = None;
        if self.clients.get(&holder).is_none_or(|client| client.condemned.is_some()) {
            return fail(NfsStat::Delay);
        }
        let Some(delegation) = self.delegation(index) else { return fail(NfsStat::Delay) };
        let Some(answer) = answer else {
            self.recall(now, index, false);
            return fail(NfsStat::Delay);
        };
        // [RFC8881 10.4.3]
        let untouched = delegation.base == Some((answer.change, answer.size)) && !delegation.reclaimed;
        delegation.shown |= !untouched;
        let out = self.ticket(Pending::Forgotten);
        if let Some(delegation) = self.delegation(index) {
            delegation.answering = Some(out);
        }
        let at = At::Answer(index, out);
        // An answer about somebody is no word of his.
        let permit =
            Permit(self.set_out(UnderWay { client: Some(holder), file: Some(file), at, quiet: true }));
        Ok(if untouched { Told::Untouched(permit) } else { Told::Written { size: answer.size, permit } })
    }

    /// What the holder has said is out.
    pub(super) fn answered(&mut self, index: u32) {
        if let Some(delegation) = self.delegation(index) {
            delegation.answering = None;
        }
    }
}
