//! What is known of a file: who has it open, who locks it, who caches it, who is at it just now.

use std::collections::{BTreeMap, BTreeSet};

use super::range::Ranges;
use super::{File, State, Step, Stop, Ticket, Time};

/// Files that nobody holds are remembered only as long as there is something to remember.
#[derive(Debug, Default)]
pub(super) struct FileState {
    pub opens: BTreeSet<u32>,
    pub delegations: BTreeSet<u32>,
    pub locks: BTreeMap<u64, Ranges>,
    pub waiters: Vec<super::lock::Waiter>,
    /// Permits and plans.
    pub under_way: BTreeSet<u64>,
    /// Its change attribute has to be raised before anybody looks at it or changes it.
    pub bumps: BTreeSet<Ticket>,
    /// When a delegation was last in somebody's way.
    pub conflict: Option<Time>,
}

impl FileState {
    fn is_idle(&self) -> bool {
        self.opens.is_empty()
            && self.delegations.is_empty()
            && self.locks.is_empty()
            && self.waiters.is_empty()
            && self.under_way.is_empty()
            && self.bumps.is_empty()
    }
}

impl State {
    /// Forget a file that there is nothing to say about. A conflict is something for a while: [`State::tick`] forgets it.
    pub(super) fn tidy(&mut self, file: File) {
        if self.files.get(&file).is_some_and(|state| state.is_idle() && state.conflict.is_none()) {
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
        let files: Vec<File> = range.map(|(file, _)| *file).take(slice).collect();
        for file in &files {
            if let Some(state) = self.files.get_mut(file)
                && state.conflict.is_some_and(|at| now.since(at) > self.config.lease)
            {
                state.conflict = None;
            }
            self.forget_waiters(now, *file);
            self.tidy(*file);
        }
        let more = files.len() == slice;
        self.files_at = if more { files.last().copied() } else { None };
        more
    }

    /// Nobody gets at a file between the end of a delegation that was shown as written and the bump for it.
    pub(super) fn bumped(&self, file: File) -> Step<()> {
        match self.files.get(&file).and_then(|state| state.bumps.first()) {
            Some(ticket) => Err(Stop::Gate(*ticket)),
            None => Ok(()),
        }
    }

    pub(super) fn bump(&mut self, file: File) {
        let ticket = self.ticket(super::Pending::Bumped(file));
        self.files.entry(file).or_default().bumps.insert(ticket);
        self.effects.push(super::Effect::Bump { ticket, file });
    }
}
