//! Grace: after a restart nobody gets what somebody may claim again (RFC 8881 section 8.4.2; RFC 7530 section 9.6.2).

use std::collections::BTreeMap;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::client::{Client, RevocationMark};
use super::fault_injection::{self, Fault};
use super::stable_clients::RecordStatus;
use super::{
    ClientRecord, LogEvent, Millis, Pending, Principal, RecordChange, StateManager, Step, Ticket, Time, fail,
};

/// What the last boot has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreviousBoot {
    /// The clients on record.
    pub clients: Vec<ClientRecord>,
    /// Their lease time.
    pub lease: Millis,
}

/// How far one of them is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReclaimProgress {
    /// Not back yet, or still at it.
    Waiting,
    /// NFSv4.0: he has reclaimed something; whether that was all he does not say.
    Some,
    /// He has said that it was all.
    All,
    /// He has restarted, too: what he held he does not want.
    Restarted,
}

#[derive(Debug)]
enum GracePhase {
    Open,
    /// Who did not reclaim is being struck out.
    Ending(Ticket),
    Over,
}

#[derive(Debug)]
pub(super) struct Grace {
    phase: GracePhase,
    until: Time,
    clients: BTreeMap<(bool, Vec<u8>), (ClientRecord, ReclaimProgress)>,
}

impl Grace {
    pub fn new(now: Time, past: PreviousBoot) -> Self {
        let clients: BTreeMap<_, _> = past
            .clients
            .into_iter()
            .map(|record| ((record.sessions, record.owner.clone()), (record, ReclaimProgress::Waiting)))
            .collect();
        let phase = if clients.is_empty() { GracePhase::Over } else { GracePhase::Open };
        // Theirs, not ours: it was the old lease that they were told.
        Self { phase, until: now + Millis(past.lease.0.saturating_add(past.lease.0 / 2)), clients }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, GracePhase::Over)
    }

    /// Whether this boot of a client was on record when the server started.
    pub fn was_on_record(&self, record: &ClientRecord) -> bool {
        self.clients.get(&record.key()).is_some_and(|(known, _)| known.is_same_boot(record))
    }

    pub fn next(&self) -> Option<Time> {
        matches!(self.phase, GracePhase::Open).then_some(self.until)
    }
}

impl StateManager {
    /// Whether only what was held before the restart is given out.
    pub fn in_grace(&self) -> bool {
        !self.grace.is_over()
    }

    /// Go on only if nobody may claim anything any more.
    pub(super) fn check_grace_over(&self) -> Step<()> {
        // [RFC8881 8.4.2.1]
        if self.in_grace() && !fault_injection::is_planted(Fault::IgnoreGrace) {
            fail(NfsStat::Grace)
        } else {
            Ok(())
        }
    }

    /// The same, for something that this client wants to hold.
    pub(super) fn check_may_acquire(&self, id: ClientId) -> Step<()> {
        self.check_grace_over()?;
        // [RFC8881 18.51.3]
        if self.clients.get(&id).is_some_and(|client| client.with_sessions && !client.reclaim_completed) {
            return fail(NfsStat::Grace);
        }
        Ok(())
    }

    /// Go on only if this client may claim what he held.
    pub(super) fn check_may_reclaim(&self, id: ClientId) -> Step<()> {
        let open = matches!(self.grace.phase, GracePhase::Open);
        // [RFC8881 8.4.3]
        let may = self.clients.get(&id).is_some_and(|client| client.may_reclaim && !client.reclaim_completed);
        if open && may { Ok(()) } else { fail(NfsStat::NoGrace) }
    }

    /// Go on only if this name is not somebody else's who may claim what he held: as long as he may, it counts as held.
    pub(super) fn check_name_unclaimed(&self, key: &(bool, Vec<u8>), principal: &Principal) -> Step<()> {
        let claimed = self.grace.clients.get(key).is_some_and(|(record, progress)| {
            record.principal != *principal
                && matches!(progress, ReclaimProgress::Waiting | ReclaimProgress::Some)
                && self.stable_clients.of(record) != RecordStatus::Absent
        });
        // [RFC8881 18.35.4] [RFC7530 16.33.5]
        if claimed { fail(NfsStat::ClidInuse) } else { Ok(()) }
    }

    /// A client is confirmed: is he one of those?
    pub(super) fn match_previous_boot(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let now = client.as_record();
        let Some((record, progress)) = self.grace.clients.get_mut(&now.key()) else { return };
        if now.is_same_boot(record) {
            // He was there when the server started. Since then he may have been struck out, or somebody else of his name written down: what he claims now could
            // be given away after another crash.
            let kept = self.stable_clients.of(&now) == RecordStatus::Durable;
            client.revocation_mark =
                if kept && record.revoked { RevocationMark::Durable } else { RevocationMark::None };
            client.may_reclaim = kept && matches!(progress, ReclaimProgress::Waiting | ReclaimProgress::Some);
        } else if client.principal == record.principal && *progress != ReclaimProgress::All {
            *progress = ReclaimProgress::Restarted;
        }
    }

    pub(super) fn note_reclaim(&mut self, id: ClientId) {
        // What was under way while he said that it was all takes nothing back.
        if self.clients.get(&id).is_some_and(|client| !client.reclaim_completed) {
            self.progress(id, ReclaimProgress::Some);
        }
    }

    /// He is on record, and stays there.
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

    /// End grace when everybody has what he held, or its time is over: who has not reclaimed is struck out first.
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

    /// They could not be struck out: the next [`StateManager::tick`] tries again.
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
