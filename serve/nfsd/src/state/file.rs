//! The state of a file: opens, locks, delegations and operations in progress.

use super::effects::Effect;
use super::ids::{FileId, Step, Stop, Time};
use super::manager::StateManager;
use super::tables::pending::Pending;

impl StateManager {
    /// Forgets the state of a file if it is empty. [`StateManager::tick`] forgets a conflict after a while.
    pub(super) fn forget_file_if_idle(&mut self, file: FileId) {
        if self.files.get(&file).is_some_and(|state| state.is_idle() && state.last_conflict.is_none()) {
            self.files.remove(&file);
        }
    }

    /// Forgets old conflicts and waiters of up to `slice` files. Returns whether there are more.
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

    /// Succeeds if no bump is pending after the end of a delegation whose changes were reported.
    pub(super) fn check_no_pending_bump(&self, file: FileId) -> Step<()> {
        match self.files.get(&file).and_then(|state| state.pending_bumps.first()) {
            Some(ticket) => Err(Stop::Wait(*ticket)),
            None => Ok(()),
        }
    }

    pub(super) fn request_bump(&mut self, file: FileId) {
        let ticket = self.ticket(Pending::Bump(file));
        self.files.entry(file).or_default().pending_bumps.insert(ticket);
        self.effects.push(Effect::Bump { ticket, file });
    }
}
