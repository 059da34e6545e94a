//! The progress of the grace period.

use std::collections::BTreeMap;

use super::super::client_record::ClientRecord;
use super::super::ids::{Millis, Ticket, Time};

/// What the last boot left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreviousBoot {
    /// The clients on record.
    pub clients: Vec<ClientRecord>,
    /// The lease time that they know.
    pub lease: Millis,
}

/// The progress of a client on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::state) enum ReclaimProgress {
    /// It has not returned, or has not reclaimed anything yet.
    Waiting,
    /// NFSv4.0: it has reclaimed something. Only NFSv4.1 tells when that is all.
    Some,
    /// It has sent RECLAIM_COMPLETE.
    All,
    /// It has restarted, too, and does not reclaim.
    Restarted,
}

#[derive(Debug)]
pub(in crate::state) enum GracePhase {
    Open,
    /// Removing the records of clients that did not reclaim.
    Ending(Ticket),
    Over,
}

#[derive(Debug)]
pub(in crate::state) struct Grace {
    pub phase: GracePhase,
    pub until: Time,
    pub clients: BTreeMap<(bool, Vec<u8>), (ClientRecord, ReclaimProgress)>,
}

impl Grace {
    pub fn new(now: Time, past: PreviousBoot) -> Self {
        let clients: BTreeMap<_, _> = past
            .clients
            .into_iter()
            .map(|record| ((record.sessions, record.owner.clone()), (record, ReclaimProgress::Waiting)))
            .collect();
        let phase = if clients.is_empty() { GracePhase::Over } else { GracePhase::Open };
        // Clients know the lease time of the last boot.
        Self { phase, until: now + Millis(past.lease.0.saturating_add(past.lease.0 / 2)), clients }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, GracePhase::Over)
    }

    /// Returns whether this boot of a client was on record when the server started.
    pub fn was_on_record(&self, record: &ClientRecord) -> bool {
        self.clients.get(&record.key()).is_some_and(|(known, _)| known.is_same_boot(record))
    }

    pub fn next(&self) -> Option<Time> {
        matches!(self.phase, GracePhase::Open).then_some(self.until)
    }
}
