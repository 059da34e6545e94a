//! What an administrator is told: how many there are of everything, what has happened, and what is worth a line.

use ivers_nfs4::types::ClientId;

use super::stateids::EntryKind;
use super::{FileId, StateManager};

/// So many notes wait to be taken; beyond that they are counted only.
const NOTES_MAX: usize = 256;

/// How many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Clients that are confirmed.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Opens.
    pub opens: usize,
    /// Lock-owners that have locked something, each counted for each of its files.
    pub lock_owners: usize,
    /// Ranges that are locked.
    pub locks: usize,
    /// Delegations for reading.
    pub delegations_read: usize,
    /// Delegations for writing.
    pub delegations_write: usize,
    /// Copies that go on, or of whose end the client may not know.
    pub copies: usize,
    /// Delegations that were asked back and are still out.
    pub recalls_pending: usize,
    /// What was held before the restart may still be claimed.
    pub in_grace: bool,
}

/// What has happened since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Clients were confirmed.
    pub clients_confirmed: u64,
    /// Clients went: they were silent for too long, or somebody else has their name.
    pub clients_evicted: u64,
    /// Delegations were asked back.
    pub recalls: u64,
    /// Delegations were not given back in time, and taken away.
    pub revocations: u64,
}

/// What is worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// A client went: he was silent for too long, or somebody else has his name.
    Evicted(ClientId),
    /// A delegation is asked back.
    Recalled(ClientId, FileId),
    /// It was not given back in time.
    Revoked(ClientId, FileId),
    /// Nothing can be claimed any more.
    GraceOver,
}

impl StateManager {
    /// How many there are of everything. Looks at all that is held.
    pub fn counts(&self) -> StateCounts {
        let mut counts = StateCounts {
            clients: self.clients.values().filter(|client| client.confirmed).count(),
            sessions: self.sessions.len(),
            locks: self.ranges,
            recalls_pending: self.recalls.len(),
            in_grace: self.in_grace(),
            ..StateCounts::default()
        };
        for held in self.entries.values() {
            match &held.kind {
                EntryKind::Open(_) => counts.opens += 1,
                EntryKind::Lock(_) => counts.lock_owners += 1,
                EntryKind::Delegation(delegation) if delegation.revoked => {}
                EntryKind::Delegation(delegation) if delegation.write => counts.delegations_write += 1,
                EntryKind::Delegation(_) => counts.delegations_read += 1,
                EntryKind::Copy(_) => counts.copies += 1,
            }
        }
        counts
    }

    /// What has happened.
    pub fn events(&self) -> EventCounts {
        self.events
    }

    /// What a client calls himself.
    pub fn name_of(&self, client: ClientId) -> Option<&[u8]> {
        self.clients.get(&client).map(|client| &*client.owner)
    }

    /// What is worth a line since this was last asked.
    pub fn take_log_events(&mut self) -> Vec<LogEvent> {
        std::mem::take(&mut self.notes)
    }

    pub(super) fn note(&mut self, note: LogEvent) {
        match &note {
            LogEvent::Evicted(_) => self.events.clients_evicted += 1,
            LogEvent::Recalled(..) => self.events.recalls += 1,
            LogEvent::Revoked(..) => self.events.revocations += 1,
            LogEvent::GraceOver => {}
        }
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }
}
