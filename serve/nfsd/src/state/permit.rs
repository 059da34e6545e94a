//! Permits: what was decided about a file stays so until the VFS has acted on it.

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::client::Client;
use super::held::Kind;
use super::mistake::{self, Mistake};
use super::open::Planned;
use super::{Caller, Effect, File, State, Step, Ticket, Time, fail};

/// What an operation is going to do to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// READ, READ_PLUS, SEEK, the source of COPY and CLONE.
    Read,
    /// WRITE, ALLOCATE, DEALLOCATE, the target of COPY and CLONE.
    Write,
    /// SETATTR of the size.
    Resize,
    /// SETATTR of anything else, SETXATTR, REMOVEXATTR: no stateid is needed.
    Change,
    /// REMOVE, LINK, RENAME: no stateid is needed.
    Name,
}

impl Does {
    fn access(self) -> u32 {
        match self {
            Self::Read => share::READ,
            Self::Write | Self::Resize => share::WRITE,
            Self::Change | Self::Name => 0,
        }
    }
}

/// Leave to do something to a file. It has to be [ended](State::end), also if whoever has it fails.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the file is held up until it is ended"]
pub struct Permit(pub(super) u64);

/// What is under way at a file.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub client: Option<ClientId>,
    pub file: Option<File>,
    pub at: At,
    /// It is no word of the client's: his lease is as it was.
    pub quiet: bool,
}

#[derive(Debug)]
pub(super) enum At {
    /// A permit, and by which open, lock or delegation.
    Permit { does: Does, by: Option<u32> },
    /// An OPEN that is not committed.
    Plan(Planned),
    /// Somebody reads change attribute, size and times.
    Look,
    /// What the holder of this delegation has said is on its way to those who have asked; others wait here.
    Answer(u32, Ticket),
}

impl State {
    /// Look at the stateid, the share modes and the delegations; if nothing is against it, nothing comes in between until
    /// [`State::end`].
    pub fn permit(
        &mut self,
        now: Time,
        caller: Caller,
        file: File,
        stateid: &StateId,
        does: Does,
    ) -> Step<Permit> {
        self.permit_as(now, caller, file, stateid, does, false)
    }

    /// The same for what a client has asked for long ago: it renews nothing.
    pub(super) fn permit_quietly(
        &mut self,
        now: Time,
        caller: Caller,
        file: File,
        stateid: &StateId,
        does: Does,
    ) -> Step<Permit> {
        self.permit_as(now, caller, file, stateid, does, true)
    }

    fn permit_as(
        &mut self,
        now: Time,
        caller: Caller,
        file: File,
        stateid: &StateId,
        does: Does,
        quiet: bool,
    ) -> Step<Permit> {
        let (by, client) = self.right(caller, file, stateid, does)?;
        if let Some(client) = client {
            if self.clients.get(&client).is_none_or(|client| client.condemned.is_some()) {
                return fail(NfsStat::Delay);
            }
            // [RFC7530 9.5]
            if !quiet {
                self.renew(now, client);
            }
        }
        self.bumped(file)?;
        // [RFC8881 8.4.2.1]
        if by.is_none() {
            self.fresh()?;
            self.undenied(now, file, stateid, does)?;
        }
        self.stand_aside(now, file, client, does != Does::Read, does == Does::Resize)?;
        self.room_for_permit(client)?;
        if let Some(index) = by
            && let Some(Kind::Delegation(delegation)) = self.held.get_mut(&index).map(|held| &mut held.kind)
        {
            delegation.used = now;
        }
        let number = self.set_out(UnderWay { client, file: Some(file), at: At::Permit { does, by }, quiet });
        Ok(Permit(number))
    }

    pub(super) fn room_for_permit(&self, client: Option<ClientId>) -> Step<()> {
        let limits = self.config.limits.owners;
        let busy = |client: &Client| client.busy as usize;
        let of_him = client.and_then(|id| self.clients.get(&id)).map_or(0, busy);
        let total = self.under_way.len();
        let room = match client {
            Some(id) => self.shares(id, 1, (total, limits.1), busy),
            None => total < limits.1,
        };
        if of_him >= limits.0 || !room {
            return fail(NfsStat::Delay);
        }
        Ok(())
    }

    /// It is done, or will not be.
    pub fn end(&mut self, now: Time, permit: Permit) {
        if let Some(UnderWay { at: At::Answer(index, ticket), .. }) = self.come_back(now, permit.0) {
            self.answered(index);
            self.pending.remove(&ticket);
            self.effects.push(Effect::Open { ticket });
        }
    }

    pub(super) fn set_out(&mut self, under_way: UnderWay) -> u64 {
        self.last_under_way += 1;
        let number = self.last_under_way;
        if let Some(client) = under_way.client.and_then(|id| self.clients.get_mut(&id)) {
            client.busy += 1;
        }
        if let Some(file) = under_way.file {
            self.files.entry(file).or_default().under_way.insert(number);
        }
        self.under_way.insert(number, under_way);
        number
    }

    pub(super) fn come_back(&mut self, now: Time, number: u64) -> Option<UnderWay> {
        let under_way = self.under_way.remove(&number)?;
        if let Some(id) = under_way.client {
            if let Some(client) = self.clients.get_mut(&id) {
                client.busy -= 1;
            }
            if !under_way.quiet {
                self.renew(now, id);
            }
        }
        if let Some(file) = under_way.file {
            if let Some(state) = self.files.get_mut(&file) {
                state.under_way.remove(&number);
            }
            self.tidy(file);
        }
        Some(under_way)
    }

    /// By which right, and who it is.
    fn right(
        &self,
        caller: Caller,
        file: File,
        stateid: &StateId,
        does: Does,
    ) -> Step<(Option<u32>, Option<ClientId>)> {
        let special = *stateid == StateId::ANONYMOUS || *stateid == StateId::READ_BYPASS;
        if special || matches!(does, Does::Change | Does::Name) {
            return Ok((None, caller.client()));
        }
        let index = self.find_of(caller, file, stateid)?;
        // [RFC7530 16.18.5]
        if !self.is_confirmed(index) {
            return fail(NfsStat::BadStateid);
        }
        let held = &self.held[&index];
        let access = match &held.kind {
            Kind::Open(open) => open.access,
            Kind::Lock(lock) => self.open_at(lock.open).map_or(0, |open| open.access),
            Kind::Delegation(delegation) if delegation.write => share::BOTH,
            Kind::Delegation(_) => share::READ,
            Kind::Copy(_) => return fail(NfsStat::BadStateid),
        };
        // [RFC8881 18.32.3]
        if does.access() & share::WRITE != 0 && access & share::WRITE == 0 {
            return fail(NfsStat::Openmode);
        }
        // Reading under an open for writing is allowed, for the sake of those who write pages (section 18.22.3), unless somebody denies it.
        if does == Does::Read && access & share::READ == 0 {
            let own = match &held.kind {
                Kind::Lock(lock) => lock.open,
                _ => index,
            };
            let denied = self.files.get(&file).is_some_and(|state| {
                let mut others = state.opens.iter().filter(|&&other| other != own);
                others.any(|&other| self.open_at(other).is_some_and(|open| open.deny & share::READ != 0))
            });
            if denied {
                return fail(NfsStat::Locked);
            }
        }
        Ok((Some(index), Some(held.client)))
    }

    /// Whether share modes are against access by a special stateid (RFC 8881 section 8.2.3).
    fn undenied(&mut self, now: Time, file: File, stateid: &StateId, does: Does) -> Step<()> {
        let access = match does.access() {
            // It goes past the locks for reading.
            share::READ if *stateid == StateId::READ_BYPASS => 0,
            access => access,
        };
        if access == 0 || mistake::is(Mistake::ForgetDenials) {
            return Ok(());
        }
        let Some(state) = self.files.get(&file) else { return Ok(()) };
        let denying = state.opens.iter().find_map(|index| {
            let open = self.open_at(*index).filter(|open| open.deny & access != 0)?;
            Some(self.owners[&open.owner].client)
        });
        if let Some(client) = denying {
            return match self.lease_is_over(now, client) {
                true => {
                    self.evict(client)?;
                    self.undenied(now, file, stateid, does)
                }
                false => fail(NfsStat::Locked),
            };
        }
        let planned = state
            .under_way
            .iter()
            .any(|number| matches!(&self.under_way[number].at, At::Plan(plan) if plan.deny & access != 0));
        if planned { fail(NfsStat::Delay) } else { Ok(()) }
    }
}
