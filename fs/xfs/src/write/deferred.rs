//! The works that a transaction still has to do, and those that it has done.

use super::intents::done_record;
use super::works::{Logged, Work};
use ivers_journal::ObjectId;
use std::collections::VecDeque;

/// A work that is not done.
#[derive(Debug)]
pub(super) struct Pending {
    pub work: Work,
    /// The intent that this work completes. The other work of that intent is already done, or gets a new
    /// intent at the next roll.
    pub finishes: Option<Logged>,
}

/// The works of a transaction.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    pub queue: VecDeque<Pending>,
    /// Done records for the next publication.
    pub done: Vec<(ObjectId, Vec<u8>)>,
    /// Something was published already.
    pub rolled: bool,
}

impl Deferred {
    pub(super) fn push(&mut self, work: Work) {
        self.queue.push_back(Pending { work, finishes: None });
    }

    /// Works that an intent of the log promises.
    pub(super) fn push_from_intent(&mut self, works: Vec<Work>, intent: Logged) {
        let mut finishes = Some(intent);
        for work in works {
            self.queue.push_back(Pending { work, finishes: finishes.take() });
        }
        if let Some(intent) = finishes {
            self.done.push((intent.id, done_record(&intent)));
        }
    }

    pub(super) fn take_done(&mut self) -> Vec<(ObjectId, Vec<u8>)> {
        std::mem::take(&mut self.done)
    }
}
