//! The state of a file: opens, locks, delegations and operations in progress.

use std::collections::{BTreeMap, BTreeSet};

use super::super::ids::{Ticket, Time};
use super::super::range::Ranges;
use super::lock::Waiter;

/// The state of a file. It exists only while it is not empty.
#[derive(Debug, Default)]
pub(in crate::state) struct FileState {
    pub opens: BTreeSet<u32>,
    pub delegations: BTreeSet<u32>,
    pub locks: BTreeMap<u64, Ranges>,
    pub waiters: Vec<Waiter>,
    /// Permits and plans.
    pub in_flight: BTreeSet<u64>,
    /// Bumps of its change attribute that must be done before anybody queries or changes it.
    pub pending_bumps: BTreeSet<Ticket>,
    /// The last conflict with a delegation.
    pub last_conflict: Option<Time>,
}

impl FileState {
    pub fn is_idle(&self) -> bool {
        self.opens.is_empty()
            && self.delegations.is_empty()
            && self.locks.is_empty()
            && self.waiters.is_empty()
            && self.in_flight.is_empty()
            && self.pending_bumps.is_empty()
    }
}
