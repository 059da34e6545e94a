//! What is known of a file: who has it open, who locks it, who caches it, who is at it just now.

use std::collections::{BTreeMap, BTreeSet};

use super::range::Ranges;
use super::{FileId, StateManager, Step, Stop, Ticket, Time};

/// Files that nobody holds are remembered only as long as there is something to remember.
#[derive(Debug, Default)]
pub(super) struct FileState {
    pub opens: BTreeSet<u32>,
    pub delegations: BTreeSet<u32>,
    pub locks: BTreeMap<u64, Ranges>,
    pub waiters: Vec<super::lock::Waiter>,
    /// Permits and plans.
    pub in_flight: BTreeSet<u64>,
    /// Its change attribute has to be raised before anybody looks at it or changes it.
    pub pending_bumps: BTreeSet<Ticket>,
    /// When a delegation was last in somebody's way.
    pub last_conflict: Option<Time>,
}

impl FileState {
    fn is_idle(&self) -> bool {
        self.opens.is_empty()
            && self.delegations.is_empty()
            && self.locks.is_empty()
            && self.waiters.is_empty()
            && self.in_flight.is_empty()
            && self.pending_bumps.is_empty()
    }
}

impl StateManager {
    /// Forget a file that there is nothing to say about. A conflict is something for a while: [`StateManager::tick`] forgets it.
    pub(super) fn forget_file_if_idle(&mut self, file: FileId) {
        if self.files.get(&file).is_some_and(|state| state.is_idle() && state.last_conflict.is_none()) {
            self.files.remove(&file);
        }
    }

    /// Old conflicts are forgotten, a slice at a time. Whether there is more to do.
    pub(super) fn forget_conflicts(&mut self, now: Time, slice: usize) -> bool {
        let from = self.files_at;
        let range = match from {
            Some(from) => self.files.range((std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded)),
            None => self.files.range(..),
        };
        let files: Vec<FileId> = range.map(|(file, _)| *file).take(slice).collect();
        for file in &files {
            if let Some(state) = self.files.get_mut(file)
                && state.last_conflict.is_some_and(|at| now.since(at) > self.config.lease)
            {
                state.last_conflict = None;
            }
            self.forget_waiters(now, *file);
            self.forget_file_if_idle(*file);
        }
        let more = files.len() == slice;
        self.files_at = if more { files.last().copied() } else { None };
        more
    }

    /// Nobody gets at a file between the end of a delegation that was shown as written and the bump for it.
    pub(super) fn check_no_pending_bump(&self, file: FileId) -> Step<()> {
        match self.files.get(&file).and_then(|state| state.pending_bumps.first()) {
            Some(ticket) => Err(Stop::Wait(*ticket)),
            None => Ok(()),
        }
    }

    pub(super) fn request_bump(&mut self, file: FileId) {
        let ticket = self.ticket(super::Pending::Bump(file));
        self.files.entry(file).or_default().pending_bumps.insert(ticket);
        self.effects.push(super::Effect::Bump { ticket, file });
    }
}
