//! Deferred work: what a transaction does to the groups when all else is done.
//!
//! The works of a transaction are done in their order. Those that do not fit into the transaction are done in
//! further ones. Between two transactions each remaining work has an intent in the log, so that after a crash
//! the rest is done too.

use super::busy::Freed;
use super::deferred::Pending;
use super::extent::FreeExtent;
use super::intents::{Intent, done_record};
use super::space::journal_error;
use super::tx::{Publish, Tx};
use super::works::{Change, FreedOwner, Work};
use crate::layout::features::RoCompat;
use ivers_journal::JournalError;
use ivers_vfs::Result;
use std::sync::Arc;

/// Nobody reads what a transaction changes.
struct Alone;

impl Publish for Alone {}

impl Tx<'_> {
    /// Does all deferred work, and publishes all changes.
    ///
    /// Work that does not fit is done in further transactions: the transaction rolls. What is published then
    /// stays, and intents in the log promise the rest. An error after a roll aborts the journal, since only
    /// recovery can keep that promise. On any other error nothing was published.
    pub(crate) fn finish(self) -> Result<()> {
        self.finish_with(&mut Alone)
    }

    /// As [`Tx::finish`], beside readers: `publisher` keeps them away while the changes are published.
    pub(crate) fn finish_with(mut self, publisher: &mut dyn Publish) -> Result<()> {
        let result = self.work(publisher).and_then(|()| self.publish(publisher));
        if result.is_err() && self.deferred.rolled {
            self.space().journal.abort("work that the log promises failed");
        }
        result
    }

    fn work(&mut self, publisher: &mut dyn Publish) -> Result<()> {
        let mut works = 0;
        while let Some(pending) = self.deferred.queue.pop_front() {
            if works > 0 && self.must_roll(works)? {
                self.deferred.queue.push_front(pending);
                self.roll(publisher)?;
                works = 0;
                continue;
            }
            works += 1;
            if let Some(intent) = &pending.finishes {
                self.deferred.done.push((intent.id, done_record(intent)));
            }
            if let Some(rest) = self.perform(pending.work)? {
                self.deferred.queue.push_front(Pending { work: rest, finishes: None });
            }
        }
        Ok(())
    }

    /// Whether another work may not fit.
    fn must_roll(&mut self, works: u32) -> Result<bool> {
        let space = self.space();
        if works >= space.works_a_roll() {
            return Ok(true);
        }
        let wanted = self.charge() + u64::from(space.credits_of_change());
        match u32::try_from(wanted.saturating_sub(self.credits.into())) {
            Ok(0) => Ok(false),
            Ok(missing) => Ok(!self.extend(missing)?),
            Err(_) => Ok(true),
        }
    }

    /// Logs an intent for each work that is left, publishes the changes, and begins the next transaction.
    fn roll(&mut self, publisher: &mut dyn Publish) -> Result<()> {
        let space = self.space();
        let finish_credits = space.credits_of_change();
        let (count, most) = (self.deferred.queue.len() as u64, space.journal.max_intents(finish_credits));
        if count > most && !self.deferred.rolled {
            let of = |count: u64| count.saturating_mul(finish_credits.into());
            return Err(journal_error(JournalError::TooLarge { charge: of(count), limit: of(most) }));
        }
        let mut intents = Vec::new();
        for pending in self.deferred.queue.iter_mut().filter(|pending| pending.finishes.is_none()) {
            let intent = Intent::new(&space.sb, &pending.work, space.next_intent(), finish_credits);
            pending.finishes = Some(intent.logged());
            intents.push(intent);
        }
        intents.into_iter().for_each(|intent| self.log_intent(Arc::new(intent)));
        self.deferred.rolled = true;
        self.publish(publisher)?;
        #[cfg(test)]
        space.between_rolls.get().into_iter().for_each(|f| f());
        self.restart(finish_credits)
    }

    /// Does a work, or its first part. Returns the rest.
    fn perform(&mut self, work: Work) -> Result<Option<Work>> {
        let Work { ag, blocks, change } = work;
        match change {
            Change::Map(owner) | Change::Unmap(owner) => {
                self.fix_free_list(ag)?;
                match change {
                    Change::Map(_) => self.map_in_group(ag, blocks, owner)?,
                    _ => self.unmap_in_group(ag, blocks, Some(owner))?,
                }
            }
            Change::Count(change) => {
                let done = self.change_counts(ag, blocks, change)?;
                let rest = FreeExtent { start: blocks.start + done, len: blocks.len - done };
                return Ok((rest.len > 0).then_some(Work { blocks: rest, ..work }));
            }
            // The reverse map changes with works of its own.
            Change::AddCopy => self.add_copy(ag, blocks)?,
            Change::RemoveCopy => self.remove_copy(ag, blocks)?,
            Change::Free(FreedOwner::Gone) => self.free_in_group(ag, blocks, None)?,
            Change::Free(FreedOwner::Known(owner)) => self.free_in_group(ag, blocks, Some(owner))?,
            Change::Free(FreedOwner::Unknown) => {
                self.fix_free_list(ag)?;
                self.unmap_in_group(ag, blocks, None)?;
                self.free_in_group(ag, blocks, None)?;
            }
        }
        Ok(None)
    }

    /// Frees blocks without an owner at the end of the transaction.
    pub(super) fn defer_free_in_group(&mut self, ag: u32, blocks: FreeExtent) {
        self.deferred.push(Work { ag, blocks, change: Change::Free(FreedOwner::Gone) });
    }

    /// Records that blocks of a group are free when this transaction is durable.
    pub(super) fn mark_busy(&mut self, ag: u32, extent: FreeExtent) {
        self.freed.push(Freed { ag, extent });
    }

    pub(super) fn has_shared_blocks(&self) -> bool {
        self.space().sb.ro_compat.contains(RoCompat::REFLINK)
    }
}
