//! Grace: after a restart nobody gets what somebody may claim again (RFC 8881 section 8.4.2; RFC 7530 section 9.6.2).

use std::collections::BTreeMap;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::client::{Client, Mark};
use super::mistake::{self, Mistake};
use super::record::Record;
use super::{ClientRecord, Note, Pending, Principal, RecordChange, Span, State, Step, Ticket, Time, fail};

/// What the last boot has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// The clients on record.
    pub clients: Vec<ClientRecord>,
    /// Their lease time.
    pub lease: Span,
}

/// How far one of them is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
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
enum Phase {
    Open,
    /// Who did not reclaim is being struck out.
    Ending(Ticket),
    Over,
}

#[derive(Debug)]
pub(super) struct Grace {
    phase: Phase,
    until: Time,
    clients: BTreeMap<(bool, Vec<u8>), (ClientRecord, Progress)>,
}

impl Grace {
    pub fn new(now: Time, past: Past) -> Self {
        let clients: BTreeMap<_, _> = past
            .clients
            .into_iter()
            .map(|record| ((record.sessions, record.owner.clone()), (record, Progress::Waiting)))
            .collect();
        let phase = if clients.is_empty() { Phase::Over } else { Phase::Open };
        // Theirs, not ours: it was the old lease that they were told.
        Self { phase, until: now + Span(past.lease.0.saturating_add(past.lease.0 / 2)), clients }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether this boot of a client was on record when the server started.
    pub fn knew(&self, record: &ClientRecord) -> bool {
        self.clients.get(&record.key()).is_some_and(|(known, _)| known.is_of(record))
    }

    pub fn next(&self) -> Option<Time> {
        matches!(self.phase, Phase::Open).then_some(self.until)
    }
}

impl State {
    /// Whether only what was held before the restart is given out.
    pub fn in_grace(&self) -> bool {
        !self.grace.is_over()
    }

    /// Go on only if nobody may claim anything any more.
    pub(super) fn fresh(&self) -> Step<()> {
        // [RFC8881 8.4.2.1]
        if self.in_grace() && !mistake::is(Mistake::ForgetGrace) { fail(NfsStat::Grace) } else { Ok(()) }
    }

    /// The same, for something that this client wants to hold.
    pub(super) fn fresh_for(&self, id: ClientId) -> Step<()> {
        self.fresh()?;
        // [RFC8881 18.51.3]
        if self.clients.get(&id).is_some_and(|client| client.with_sessions && !client.complete) {
            return fail(NfsStat::Grace);
        }
        Ok(())
    }

    /// Go on only if this client may claim what he held.
    pub(super) fn may_reclaim(&self, id: ClientId) -> Step<()> {
        let open = matches!(self.grace.phase, Phase::Open);
        // [RFC8881 8.4.3]
        let may = self.clients.get(&id).is_some_and(|client| client.may_reclaim && !client.complete);
        if open && may { Ok(()) } else { fail(NfsStat::NoGrace) }
    }

    /// Go on only if this name is not somebody else's who may claim what he held: as long as he may, it counts as held.
    pub(super) fn unclaimed(&self, key: &(bool, Vec<u8>), principal: &Principal) -> Step<()> {
        let claimed = self.grace.clients.get(key).is_some_and(|(record, progress)| {
            record.principal != *principal
                && matches!(progress, Progress::Waiting | Progress::Some)
                && self.records.of(record) != Record::None
        });
        // [RFC8881 18.35.4] [RFC7530 16.33.5]
        if claimed { fail(NfsStat::ClidInuse) } else { Ok(()) }
    }

    /// A client is confirmed: is he one of those?
    pub(super) fn recognize(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let now = client.as_record();
        let Some((record, progress)) = self.grace.clients.get_mut(&now.key()) else { return };
        if now.is_of(record) {
            // He was there when the server started. Since then he may have been struck out, or somebody else of his name written down: what he claims now could
            // be given away after another crash.
            let kept = self.records.of(&now) == Record::Kept;
            client.mark = if kept && record.revoked { Mark::Kept } else { Mark::None };
            client.may_reclaim = kept && matches!(progress, Progress::Waiting | Progress::Some);
        } else if client.principal == record.principal && *progress != Progress::All {
            *progress = Progress::Restarted;
        }
    }

    pub(super) fn reclaimed(&mut self, id: ClientId) {
        // What was under way while he said that it was all takes nothing back.
        if self.clients.get(&id).is_some_and(|client| !client.complete) {
            self.progress(id, Progress::Some);
        }
    }

    /// He is on record, and stays there.
    pub(super) fn reclaimed_all(&mut self, id: ClientId) {
        self.progress(id, Progress::All);
    }

    fn progress(&mut self, id: ClientId, new: Progress) {
        let Some(client) = self.clients.get(&id).map(Client::as_record) else { return };
        if self.grace.knew(&client)
            && let Some((_, progress)) = self.grace.clients.get_mut(&client.key())
        {
            *progress = new;
        }
    }

    /// End grace when everybody has what he held, or its time is over: who has not reclaimed is struck out first.
    pub(super) fn end_grace_if_due(&mut self, now: Time) {
        if !matches!(self.grace.phase, Phase::Open) {
            return;
        }
        let waiting =
            |(_, progress): &(ClientRecord, Progress)| matches!(progress, Progress::Waiting | Progress::Some);
        if now < self.grace.until && self.grace.clients.values().any(waiting) {
            return;
        }
        let keeps = |record: &ClientRecord, progress: Progress| {
            progress == Progress::All || progress == Progress::Some && !record.sessions
        };
        let struck: Vec<ClientRecord> = self
            .grace
            .clients
            .values()
            .filter(|(record, progress)| !keeps(record, *progress))
            .map(|(record, _)| record.clone())
            .filter(|record| self.records.of(record) != Record::None)
            .collect();
        if struck.is_empty() {
            self.grace_is_over();
        } else {
            let ticket = self.persist(Pending::GraceEnds, RecordChange::Strike(struck));
            self.grace.phase = Phase::Ending(ticket);
        }
    }

    pub(super) fn grace_is_over(&mut self) {
        self.grace.phase = Phase::Over;
        self.grace.clients.clear();
        self.note(Note::GraceOver);
    }

    /// They could not be struck out: the next [`State::tick`] tries again.
    pub(super) fn grace_goes_on(&mut self, ticket: Ticket) {
        if matches!(self.grace.phase, Phase::Ending(of) if of == ticket) {
            self.grace.phase = Phase::Open;
            self.grace.until = Time(0);
            for client in self.clients.values_mut() {
                client.may_reclaim = false;
            }
        }
    }
}
