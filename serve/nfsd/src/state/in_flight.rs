//! Permits: a decision about a file stays valid until the VFS has acted on it.

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::effects::Effect;
use super::fault_injection::{self, Fault};
use super::ids::{Caller, FileId, Step, Time, fail};
use super::manager::StateManager;
use super::tables::client::Client;
use super::tables::entry::EntryKind;
use super::tables::in_flight::{Access, InFlight, InFlightKind, Permit};

impl StateManager {
    /// Checks stateid, share modes and delegations. If it succeeds, nothing conflicting happens until
    /// [`StateManager::end_permit`].
    pub fn permit(
        &mut self,
        now: Time,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        access: Access,
    ) -> Step<Permit> {
        self.permit_as(now, caller, file, stateid, access, false)
    }

    /// Like [`StateManager::permit`], but does not renew the lease, because the client requested the
    /// operation earlier.
    pub(super) fn permit_without_renewal(
        &mut self,
        now: Time,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        access: Access,
    ) -> Step<Permit> {
        self.permit_as(now, caller, file, stateid, access, true)
    }

    fn permit_as(
        &mut self,
        now: Time,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        access: Access,
        no_renewal: bool,
    ) -> Step<Permit> {
        let (by, client) = self.resolve_stateid(caller, file, stateid, access)?;
        if let Some(client) = client {
            if self.clients.get(&client).is_none_or(|client| client.evicting.is_some()) {
                return fail(NfsStat::Delay);
            }
            // [RFC7530 9.5]
            if !no_renewal {
                self.renew(now, client);
            }
        }
        self.check_no_pending_bump(file)?;
        // [RFC8881 8.4.2.1]
        if by.is_none() {
            self.check_grace_over()?;
            self.check_not_denied(now, file, stateid, access)?;
        }
        self.recall_conflicting(now, file, client, access != Access::Read, access == Access::Resize)?;
        self.check_room_for_permit(client)?;
        if let Some(index) = by
            && let Some(EntryKind::Delegation(delegation)) =
                self.entries.get_mut(&index).map(|entry| &mut entry.kind)
        {
            delegation.last_used = now;
        }
        let number = self.begin_in_flight(InFlight {
            client,
            file: Some(file),
            kind: InFlightKind::Permit { access, by },
            no_renewal,
        });
        Ok(Permit(number))
    }

    pub(super) fn check_room_for_permit(&self, client: Option<ClientId>) -> Step<()> {
        let limits = self.config.limits.owners;
        let busy = |client: &Client| client.busy as usize;
        let of_him = client.and_then(|id| self.clients.get(&id)).map_or(0, busy);
        let total = self.in_flight.len();
        let room = match client {
            Some(id) => self.within_share(id, 1, (total, limits.1), busy),
            None => total < limits.1,
        };
        if of_him >= limits.0 || !room {
            return fail(NfsStat::Delay);
        }
        Ok(())
    }

    /// Ends a permit.
    pub fn end_permit(&mut self, now: Time, permit: Permit) {
        if let Some(InFlight { kind: InFlightKind::HolderReply(index, ticket), .. }) =
            self.end_in_flight(now, permit.0)
        {
            self.holder_reply_sent(index);
            self.pending.remove(&ticket);
            self.effects.push(Effect::Wake { ticket });
        }
    }

    pub(super) fn begin_in_flight(&mut self, in_flight: InFlight) -> u64 {
        self.last_in_flight += 1;
        let number = self.last_in_flight;
        if let Some(client) = in_flight.client.and_then(|id| self.clients.get_mut(&id)) {
            client.busy += 1;
        }
        if let Some(file) = in_flight.file {
            self.files.entry(file).or_default().in_flight.insert(number);
        }
        self.in_flight.insert(number, in_flight);
        number
    }

    pub(super) fn end_in_flight(&mut self, now: Time, number: u64) -> Option<InFlight> {
        let in_flight = self.in_flight.remove(&number)?;
        if let Some(id) = in_flight.client {
            if let Some(client) = self.clients.get_mut(&id) {
                client.busy -= 1;
            }
            if !in_flight.no_renewal {
                self.renew(now, id);
            }
        }
        if let Some(file) = in_flight.file {
            if let Some(state) = self.files.get_mut(&file) {
                state.in_flight.remove(&number);
            }
            self.forget_file_if_idle(file);
        }
        Some(in_flight)
    }

    /// Returns the state that a stateid identifies and the client, and checks the access mode.
    fn resolve_stateid(
        &self,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        access: Access,
    ) -> Step<(Option<u32>, Option<ClientId>)> {
        let special = *stateid == StateId::ANONYMOUS || *stateid == StateId::READ_BYPASS;
        if special || matches!(access, Access::Metadata | Access::Namespace) {
            return Ok((None, caller.client()));
        }
        let index = self.find_for_file(caller, file, stateid)?;
        // [RFC7530 16.18.5]
        if !self.is_confirmed(index) {
            return fail(NfsStat::BadStateid);
        }
        let entry = &self.entries[&index];
        let granted = match &entry.kind {
            EntryKind::Open(open) => open.access,
            EntryKind::Lock(lock) => self.open_at(lock.open).map_or(0, |open| open.access),
            EntryKind::Delegation(delegation) if delegation.write => share::BOTH,
            EntryKind::Delegation(_) => share::READ,
            EntryKind::Copy(_) => return fail(NfsStat::BadStateid),
        };
        // [RFC8881 18.32.3]
        if access.share_bits() & share::WRITE != 0 && granted & share::WRITE == 0 {
            return fail(NfsStat::Openmode);
        }
        // Reading with an open for writing is allowed, because clients read whole pages to write parts of
        // them (section 18.22.3), unless another open denies reading.
        if access == Access::Read && granted & share::READ == 0 {
            let own = match &entry.kind {
                EntryKind::Lock(lock) => lock.open,
                _ => index,
            };
            let denied = self.files.get(&file).filter(|state| state.denying_opens > 0).is_some_and(|state| {
                let mut others = state.opens.iter().filter(|&&other| other != own);
                others.any(|&other| self.open_at(other).is_some_and(|open| open.deny & share::READ != 0))
            });
            if denied {
                return fail(NfsStat::Locked);
            }
        }
        Ok((Some(index), Some(entry.client)))
    }

    /// Checks share modes for an operation with a special stateid (RFC 8881 section 8.2.3).
    fn check_not_denied(&mut self, now: Time, file: FileId, stateid: &StateId, access: Access) -> Step<()> {
        let bits = match access.share_bits() {
            // READ bypass ignores share modes.
            share::READ if *stateid == StateId::READ_BYPASS => 0,
            bits => bits,
        };
        if bits == 0 || fault_injection::is_injected(Fault::IgnoreDeny) {
            return Ok(());
        }
        let Some(state) = self.files.get(&file) else { return Ok(()) };
        let opens = (state.denying_opens > 0).then_some(&state.opens);
        let denying = opens.into_iter().flatten().find_map(|index| {
            let open = self.open_at(*index).filter(|open| open.deny & bits != 0)?;
            Some(self.owners[&open.owner].client)
        });
        if let Some(client) = denying {
            return match self.lease_expired(now, client) {
                true => {
                    self.evict(client)?;
                    self.check_not_denied(now, file, stateid, access)
                }
                false => fail(NfsStat::Locked),
            };
        }
        let denies = |kind: &InFlightKind| matches!(kind, InFlightKind::Open(plan) if plan.deny & bits != 0);
        if state.in_flight.iter().any(|number| denies(&self.in_flight[number].kind)) {
            fail(NfsStat::Delay)
        } else {
            Ok(())
        }
    }
}
