//! A driver's part in a transaction.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ivers_block::{BlockNo, Buffer};
use parking_lot::Mutex;

use crate::engine::{Callback, running_of};
use crate::{Journal, Result, Tid};

/// An open part of the running transaction; dropping it ends it. Nothing that it changed can become durable without the rest.
///
/// Keep handles short: a commit waits for them, and new handles wait for the commit.
pub struct Handle {
    journal: Journal,
    tid: Tid,
    /// What this handle reserved and has not used; callbacks of no-journal mode.
    own: Mutex<Own>,
}

struct Own {
    credits: u64,
    ended: bool,
    callbacks: Vec<Callback>,
}

impl Handle {
    pub(crate) fn new(journal: Journal, tid: Tid, credits: u64) -> Self {
        Self { journal, tid, own: Mutex::new(Own { credits, ended: false, callbacks: Vec::new() }) }
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The transaction's number, for [`Journal::commit`].
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Changes a buffer as part of the transaction.
    ///
    /// The caller makes sure that nobody else changes the same bytes at the same time; readers see the buffer as it was
    /// or as it became.
    pub fn modify<R>(&self, buffer: &Arc<Buffer>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        self.add(buffer, 0..self.journal.cache().block_size());
        let result = buffer.modify(f);
        self.done(buffer);
        result
    }

    /// Changes a range of a buffer as part of the transaction; `f` sees that range alone, and an encoding that can logs that range alone.
    ///
    /// # Panics
    /// If the range does not lie inside the block.
    pub fn modify_range<R>(
        &self,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        assert!(range.start <= range.end && range.end <= self.journal.cache().block_size() as usize);
        self.add(buffer, range.start as u32..range.end as u32);
        let result = buffer.modify(|bytes| f(&mut bytes[range]));
        self.done(buffer);
        result
    }

    fn add(&self, buffer: &Arc<Buffer>, range: Range<u32>) {
        if !self.journal.is_none() {
            self.journal.inner.add_item(self.tid, buffer, range);
        }
    }

    fn done(&self, buffer: &Arc<Buffer>) {
        if self.journal.is_none() {
            buffer.mark_dirty();
        }
    }

    /// Says that `block`, which was metadata, is free: its changes need not be logged or written home, and earlier ones must
    /// not be replayed over whatever it becomes. It must not be used again before [`on_commit`](Self::on_commit) says so, unless
    /// as metadata through this journal (which takes the revoke back).
    pub fn forget(&self, block: BlockNo) {
        if self.journal.is_none() {
            self.journal.cache().forget(block);
        } else {
            self.journal.inner.forget(self.tid, block);
        }
    }

    /// Takes back what [`forget`](Self::forget) noted for `block`, which is used again. [`modify`](Self::modify) does so by itself.
    pub fn cancel_revoke(&self, block: BlockNo) {
        if !self.journal.is_none() {
            let mut state = self.journal.inner.state.lock();
            let running = running_of(&mut state, self.tid);
            running.revokes.remove(&block);
            running.forgotten.remove(&block);
        }
    }

    /// Calls `f` once the transaction is durable (in no-journal mode: when the handle ends); never, if the journal stops before.
    /// It runs in whatever thread commits, with the log locked, and must not use the journal.
    pub fn on_commit(&self, f: Callback) {
        if self.journal.is_none() {
            self.own.lock().callbacks.push(f);
        } else {
            running_of(&mut self.journal.inner.state.lock(), self.tid).callbacks.push(f);
        }
    }

    /// Reserves `credits` more in the same transaction. `false` if it has no room for them: then [`restart`](Self::restart).
    pub fn extend(&self, credits: u32) -> Result<bool> {
        let credits = u64::from(credits);
        let mut state = self.journal.inner.state.lock();
        state.check()?;
        let running = running_of(&mut state, self.tid);
        if !self.journal.inner.fits(running, credits) {
            return Ok(false);
        }
        running.reserved += credits;
        self.own.lock().credits += credits;
        Ok(true)
    }

    /// Ends this part of the transaction and begins another, with `credits`. What was changed so far may commit without
    /// what follows, so the filesystem must be consistent here.
    ///
    /// On error the handle has ended, and must be dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.end();
        let mut next = self.journal.begin(credits)?;
        std::mem::swap(&mut self.tid, &mut next.tid);
        std::mem::swap(&mut self.own, &mut next.own);
        Ok(())
    }

    /// An error if the journal has stopped: what this handle changes will not become durable.
    pub fn check(&self) -> Result<()> {
        self.journal.inner.state.lock().check()
    }

    fn end(&mut self) {
        let own = self.own.get_mut();
        if std::mem::replace(&mut own.ended, true) {
            return;
        }
        let inner = &self.journal.inner;
        let mut state = inner.state.lock();
        let running = running_of(&mut state, self.tid);
        running.handles -= 1;
        running.reserved -= own.credits;
        if running.handles == 0 {
            inner.changed.notify_all();
        }
        if inner.log.is_none() && running.handles == 0 {
            // No transaction to wait for: the next handle starts afresh.
            let tid = self.tid;
            state.running = None;
            state.committed = tid;
            state.unwritten.get_or_insert_with(Instant::now);
        }
        drop(state);
        own.callbacks.drain(..).for_each(|f| f());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What it changed may be half of what it was to change, and must not become durable.
            self.journal.abort("a panic in the middle of a change");
        }
        self.end();
    }
}
