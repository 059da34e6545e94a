//! The state of a file: opens, locks, delegations and operations in progress.

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::ops::v40::share;

use super::super::ids::{Ticket, Time};
use super::super::range::Ranges;
use super::lock::Waiter;

/// The state of a file. It exists only while it is not empty.
#[derive(Debug, Default)]
pub(in crate::state) struct FileState {
    pub opens: BTreeSet<u32>,
    /// How many of the opens may write. Without them, and without those that deny something, nobody has to go
    /// through the opens: a file can have very many.
    pub writing_opens: usize,
    /// How many of the opens deny something to others.
    pub denying_opens: usize,
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
    /// Counts an open whose access and deny bits changed. A new open had none, and a closed one gets none.
    pub fn count_shares(&mut self, before: (u32, u32), now: (u32, u32)) {
        let recount = |count: usize, was: u32, is: u32| count + usize::from(is != 0) - usize::from(was != 0);
        self.writing_opens = recount(self.writing_opens, before.0 & share::WRITE, now.0 & share::WRITE);
        self.denying_opens = recount(self.denying_opens, before.1, now.1);
    }

    /// Whether the file must stay, even without a name: CLOSE and DELEGRETURN need its filehandle.
    pub fn keeps_file(&self) -> bool {
        !self.opens.is_empty() || !self.delegations.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        !self.keeps_file()
            && self.locks.is_empty()
            && self.waiters.is_empty()
            && self.in_flight.is_empty()
            && self.pending_bumps.is_empty()
    }
}
