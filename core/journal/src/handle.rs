//! Handles: how a driver takes part in a transaction.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ivers_block::{BlockNo, Buffer, BufferRead, Contents, Unit};
use ivers_sync::{Held, rank};

use crate::engine::{Callback, running_of};
use crate::{Journal, LogObject, ObjectId, Result, Tid};

/// One participant in the running transaction. Its changes become durable together. Dropping it ends it.
///
/// Keep handles short: a commit waits for them, and new handles wait for the commit. A handle stays in its
/// thread: debug builds count it as a lock of rank [`Handle`](ivers_sync::rank::Handle) there.
pub struct Handle {
    journal: Journal,
    tid: Tid,
    own_state: RefCell<HandleState>,
    /// `None` between two handles.
    held: Option<Held>,
}

struct HandleState {
    /// Credits reserved in the transaction.
    credits: u64,
    ended: bool,
    /// Intents that the handle logged or finishes.
    intents: Vec<ObjectId>,
    /// No-journal mode only: called when the handle ends.
    callbacks: Vec<Callback>,
}

impl HandleState {
    fn new(credits: u64, intents: Vec<ObjectId>) -> Self {
        Self { credits, ended: false, intents, callbacks: Vec::new() }
    }
}

impl Handle {
    pub(crate) fn new(journal: Journal, tid: Tid, credits: u64, intents: Vec<ObjectId>, held: Held) -> Self {
        Self { journal, tid, own_state: RefCell::new(HandleState::new(credits, intents)), held: Some(held) }
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The number of the transaction, for [`Journal::commit`].
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Changes a buffer as part of the transaction.
    ///
    /// The caller excludes other changes of the same bytes. Readers see the buffer as it was before or after
    /// the change. `f` must not use the journal.
    pub fn modify<R>(&self, buffer: &Arc<Buffer>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        self.add(buffer, std::iter::once(0..self.journal.cache().len_of(buffer.unit())));
        let result = buffer.modify(f);
        self.done(buffer);
        result
    }

    /// Changes a range of a buffer as part of the transaction. `f` gets only that range. An encoding may log
    /// only that range: a buffer with a new use must be changed in whole once. More than 32 ranges of a
    /// buffer are logged, and charged, from the first changed byte to the last.
    ///
    /// # Panics
    /// If the range does not lie inside the buffer.
    pub fn modify_range<R>(
        &self,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        assert!(range.start <= range.end && range.end <= self.journal.cache().len_of(buffer.unit()) as usize);
        self.add(buffer, std::iter::once(range.start as u32..range.end as u32));
        let result = buffer.modify(|bytes| f(&mut bytes[range]));
        self.done(buffer);
        result
    }

    /// Replaces the contents of a buffer as part of the transaction: `new` differs from `before` in `ranges`
    /// only. If the buffer has changed since `before` was read, it stays as it is, and the new contents come
    /// back: change the ranges one by one.
    ///
    /// # Panics
    /// If the length of `new` is not that of the buffer, or a range does not lie inside it.
    pub fn replace(
        &self,
        buffer: &Arc<Buffer>,
        before: &BufferRead,
        new: Contents,
        ranges: &[Range<u32>],
    ) -> std::result::Result<(), Contents> {
        let len = self.journal.cache().len_of(buffer.unit());
        assert_eq!(new.len(), len as usize);
        assert!(ranges.iter().all(|range| range.start <= range.end && range.end <= len));
        self.add(buffer, ranges.iter().cloned());
        let replaced = buffer.replace_if_unchanged(before, new);
        self.done(buffer);
        replaced
    }

    fn add(&self, buffer: &Arc<Buffer>, ranges: impl Iterator<Item = Range<u32>>) {
        if !self.journal.is_none() {
            self.journal.inner.add_item(self.tid, buffer, ranges);
        }
    }

    fn done(&self, buffer: &Arc<Buffer>) {
        if self.journal.is_none() {
            buffer.mark_dirty();
        }
    }

    /// Logs an object as it is at this moment: the caller holds the lock that protects it. The journal writes
    /// it in place after the commit, if it has a place.
    ///
    /// Finish an intent after [`restart`](Self::restart) or in a handle of
    /// [`begin_finishing`](Journal::begin_finishing). [`begin`](Journal::begin) may wait for the intent.
    ///
    /// In no-journal mode the object is put into its buffer at once; an intent is not logged.
    ///
    /// Fails if the encoding does not carry objects.
    ///
    /// # Panics
    /// If the object's place does not lie inside its unit.
    pub fn log_object(&self, object: &Arc<dyn LogObject>) -> Result<()> {
        if self.journal.is_none() {
            let Some(patch) = object.patch() else { return Ok(()) };
            let buffer = self.journal.cache().get_unit(&patch.unit)?;
            buffer.modify(|bytes| patch.apply(bytes));
            buffer.mark_dirty();
            return Ok(());
        }
        let is_intent = self.journal.inner.log_object(self.tid, object)?;
        if is_intent {
            self.own_state.borrow_mut().intents.push(object.id());
        }
        Ok(())
    }

    /// Ends an object once the transaction is durable: it is not written in place, and recovery does not
    /// report it. `record` is the done record of an intent.
    ///
    /// An intent that only the running transaction holds is not logged at all, nor is its done record.
    ///
    /// # Panics
    /// If an intent that is in the log has no done record.
    pub fn finish_object(&self, id: ObjectId, record: Option<Vec<u8>>) {
        if !self.journal.is_none() {
            self.journal.inner.finish_object(self.tid, id, record);
            self.own_state.borrow_mut().intents.retain(|own| *own != id);
        }
    }

    /// Records that a metadata block is free. Its changes are not logged or written in place any further, and
    /// replay does not restore its earlier contents. Objects in the block are finished.
    ///
    /// Do not reuse the block before [`on_commit`](Self::on_commit) reports the commit. The exception is
    /// reuse as metadata of this journal, which cancels the revoke.
    pub fn forget(&self, block: BlockNo) {
        self.forget_unit(&block.into());
    }

    /// As [`forget`](Self::forget), for a unit as it was logged.
    pub fn forget_unit(&self, unit: &Unit) {
        if self.journal.is_none() {
            self.journal.cache().forget_unit(unit);
        } else {
            self.journal.inner.forget(self.tid, unit);
        }
    }

    /// Cancels [`forget`](Self::forget) for a block that is in use again. [`modify`](Self::modify) does this
    /// itself.
    pub fn cancel_revoke(&self, block: BlockNo) {
        if !self.journal.is_none() {
            let mut state = self.journal.inner.state.lock();
            let running = running_of(&mut state, self.tid);
            let unit = Unit::from(block);
            if running.revokes.remove(&unit) {
                running.charge -= self.journal.inner.costs.of_revoke(&unit);
            }
            running.forgotten.remove(&unit);
        }
    }

    /// Calls `f` once the transaction is durable, or when the handle ends in no-journal mode. Does not call
    /// it if the journal is aborted first.
    ///
    /// `f` runs in the thread that commits, with the log locked. It must not use the journal.
    pub fn on_commit(&self, f: Callback) {
        if self.journal.is_none() {
            self.own_state.borrow_mut().callbacks.push(f);
        } else {
            running_of(&mut self.journal.inner.state.lock(), self.tid).callbacks.push(f);
        }
    }

    /// Reserves `credits` more in the same transaction. Returns `false` if they do not fit: then call
    /// [`restart`](Self::restart).
    pub fn extend(&self, credits: u32) -> Result<bool> {
        let credits = u64::from(credits);
        let mut state = self.journal.inner.state.lock();
        state.check()?;
        let running = running_of(&mut state, self.tid);
        if !self.journal.inner.fits(running, credits) {
            return Ok(false);
        }
        running.reserved += credits;
        self.own_state.borrow_mut().credits += credits;
        Ok(true)
    }

    /// Ends this handle and begins another one with `credits`. The changes so far may commit without the
    /// changes that follow, so the filesystem must be consistent at this point.
    ///
    /// A handle that has logged or finishes an intent does not wait for newer intents. Hold no lock across
    /// the call that finishing another intent needs.
    ///
    /// On error the handle has ended and must be dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.end();
        self.held = Some(Held::before_waiting::<rank::Handle>());
        let intents = std::mem::take(&mut self.own_state.get_mut().intents);
        self.tid = self.journal.join(credits, &intents)?;
        *self.own_state.get_mut() = HandleState::new(credits.into(), intents);
        Ok(())
    }

    /// Returns an error if the journal was aborted: the changes of this handle will not become durable.
    pub fn check(&self) -> Result<()> {
        self.journal.inner.state.lock().check()
    }

    fn end(&mut self) {
        let own = self.own_state.get_mut();
        if std::mem::replace(&mut own.ended, true) {
            return;
        }
        let inner = &self.journal.inner;
        let mut state = inner.state.lock();
        let running = running_of(&mut state, self.tid);
        running.handles -= 1;
        running.reserved -= own.credits;
        if running.handles == 0 {
            inner.state_changed.notify_all();
        }
        if inner.log.is_none() && running.handles == 0 {
            // Nothing is logged, so the transaction ends with its last handle.
            let tid = self.tid;
            state.running = None;
            state.committed = tid;
            state.unwritten_since.get_or_insert_with(Instant::now);
        }
        drop(state);
        own.callbacks.drain(..).for_each(|f| f());
        self.held = None;
        if inner.options.commit_each_handle {
            // An error aborts the journal: the next call reports it.
            let _ = self.journal.commit(self.tid);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The change may be incomplete and must not become durable.
            self.journal.abort("a thread panicked with an open handle");
        }
        self.end();
    }
}
