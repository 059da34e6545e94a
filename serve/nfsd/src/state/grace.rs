//! The grace period: after a restart, clients reclaim their state before others get it (RFC 8881 section
//! 8.4.2; RFC 7530 section 9.6.2).

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::client_record::{ClientRecord, RecordChange};
use super::fault_injection::{self, Fault};
use super::ids::{Principal, Step, Ticket, Time, fail};
use super::manager::StateManager;
use super::stable_clients::RecordStatus;
use super::tables::client::{Client, RevocationMark};
use super::tables::events::LogEvent;
use super::tables::grace::{GracePhase, ReclaimProgress};
use super::tables::pending::Pending;

impl StateManager {
    /// Returns whether the grace period lasts.
    pub fn in_grace(&self) -> bool {
        !self.grace.is_over()
    }

    /// Succeeds after the grace period.
    pub(super) fn check_grace_over(&self) -> Step<()> {
        // [RFC8881 8.4.2.1]
        if self.in_grace() && !fault_injection::is_injected(Fault::IgnoreGrace) {
            fail(NfsStat::Grace)
        } else {
            Ok(())
        }
    }

    /// Succeeds if this client may get new state.
    pub(super) fn check_may_acquire(&self, id: ClientId) -> Step<()> {
        self.check_grace_over()?;
        // [RFC8881 18.51.3]
        if self.clients.get(&id).is_some_and(|client| client.with_sessions && !client.reclaim_completed) {
            return fail(NfsStat::Grace);
        }
        Ok(())
    }

    /// Succeeds if this client may reclaim.
    pub(super) fn check_may_reclaim(&self, id: ClientId) -> Step<()> {
        let open = matches!(self.grace.phase, GracePhase::Open);
        // [RFC8881 8.4.3]
        let may = self.clients.get(&id).is_some_and(|client| client.may_reclaim && !client.reclaim_completed);
        if open && may { Ok(()) } else { fail(NfsStat::NoGrace) }
    }

    /// Succeeds unless a client of another principal on record may still reclaim under this name.
    pub(super) fn check_name_unclaimed(&self, key: &(bool, Vec<u8>), principal: &Principal) -> Step<()> {
        let claimed = self.grace.clients.get(key).is_some_and(|(record, progress)| {
            record.principal != *principal
                && matches!(progress, ReclaimProgress::Waiting | ReclaimProgress::Some)
                && self.stable_clients.of(record) != RecordStatus::Absent
        });
        // [RFC8881 18.35.4] [RFC7530 16.33.5]
        if claimed { fail(NfsStat::ClidInuse) } else { Ok(()) }
    }

    /// Determines whether a newly confirmed client may reclaim.
    pub(super) fn match_previous_boot(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let now = client.as_record();
        let Some((record, progress)) = self.grace.clients.get_mut(&now.key()) else { return };
        if now.is_same_boot(record) {
            // The client was on record at the start. Since then its record may have been removed or replaced.
            // Without a durable record it must not reclaim: after another crash, its state could go to
            // others.
            let kept = self.stable_clients.of(&now) == RecordStatus::Durable;
            client.revocation_mark =
                if kept && record.revoked { RevocationMark::Durable } else { RevocationMark::None };
            client.may_reclaim = kept && matches!(progress, ReclaimProgress::Waiting | ReclaimProgress::Some);
        } else if client.principal == record.principal && *progress != ReclaimProgress::All {
            *progress = ReclaimProgress::Restarted;
        }
    }

    pub(super) fn note_reclaim(&mut self, id: ClientId) {
        // A reclaim that ran during RECLAIM_COMPLETE does not reset the progress.
        if self.clients.get(&id).is_some_and(|client| !client.reclaim_completed) {
            self.progress(id, ReclaimProgress::Some);
        }
    }

    /// A client with a durable record has reclaimed everything.
    pub(super) fn note_all_reclaimed(&mut self, id: ClientId) {
        self.progress(id, ReclaimProgress::All);
    }

    fn progress(&mut self, id: ClientId, new: ReclaimProgress) {
        let Some(client) = self.clients.get(&id).map(Client::as_record) else { return };
        if self.grace.was_on_record(&client)
            && let Some((_, progress)) = self.grace.clients.get_mut(&client.key())
        {
            *progress = new;
        }
    }

    /// Ends the grace period when all clients have reclaimed or its time is over. First, removes the records
    /// of those that did not reclaim.
    pub(super) fn end_grace_if_due(&mut self, now: Time) {
        if !matches!(self.grace.phase, GracePhase::Open) {
            return;
        }
        let waiting = |(_, progress): &(ClientRecord, ReclaimProgress)| {
            matches!(progress, ReclaimProgress::Waiting | ReclaimProgress::Some)
        };
        if now < self.grace.until && self.grace.clients.values().any(waiting) {
            return;
        }
        let keeps = |record: &ClientRecord, progress: ReclaimProgress| {
            progress == ReclaimProgress::All || progress == ReclaimProgress::Some && !record.sessions
        };
        let struck: Vec<ClientRecord> = self
            .grace
            .clients
            .values()
            .filter(|(record, progress)| !keeps(record, *progress))
            .map(|(record, _)| record.clone())
            .filter(|record| self.stable_clients.of(record) != RecordStatus::Absent)
            .collect();
        if struck.is_empty() {
            self.end_grace();
        } else {
            let ticket = self.persist(Pending::GraceEnd, RecordChange::Remove(struck));
            self.grace.phase = GracePhase::Ending(ticket);
        }
    }

    pub(super) fn end_grace(&mut self) {
        self.grace.phase = GracePhase::Over;
        self.grace.clients.clear();
        self.note(LogEvent::GraceOver);
    }

    /// The records could not be removed. The next [`StateManager::tick`] tries again.
    pub(super) fn retry_grace_end(&mut self, ticket: Ticket) {
        if matches!(self.grace.phase, GracePhase::Ending(of) if of == ticket) {
            self.grace.phase = GracePhase::Open;
            self.grace.until = Time(0);
            for client in self.clients.values_mut() {
                client.may_reclaim = false;
            }
        }
    }
}
