//! Statistics for administrators: current counts, events since the start, and log events.

use ivers_nfs4::types::ClientId;

use super::manager::StateManager;
use super::tables::entry::EntryKind;
use super::tables::events::{EventCounts, LogEvent};

/// Maximum number of log events to keep. Further ones are only counted.
const NOTES_MAX: usize = 256;

/// Current counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Confirmed clients.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Opens.
    pub opens: usize,
    /// Lock stateids: lock-owners, counted once per file.
    pub lock_owners: usize,
    /// Locked ranges.
    pub locks: usize,
    /// Read delegations.
    pub delegations_read: usize,
    /// Write delegations.
    pub delegations_write: usize,
    /// Copies that are running, or whose result the client may not know.
    pub copies: usize,
    /// Recalled delegations that are not returned.
    pub recalls_pending: usize,
    /// Whether the grace period lasts.
    pub in_grace: bool,
}

impl StateManager {
    /// Counts the state. Takes time proportional to its size.
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

    /// Returns the events since the start.
    pub fn events(&self) -> EventCounts {
        self.events
    }

    /// Returns a client's own name.
    pub fn name_of(&self, client: ClientId) -> Option<&[u8]> {
        self.clients.get(&client).map(|client| &*client.owner)
    }

    /// Returns the log events since the last call.
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
