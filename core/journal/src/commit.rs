//! Commits: close the transaction, take snapshots, write the log, flush, write the commit record.

use std::sync::Arc;

use ivers_block::{BlockNo, Buffer};
use ivers_sync::{Held, rank};

use crate::engine::{ActiveItem, Callback, Inner, LogLock, count};
use crate::{JournalError, LogFormat, LogItem, LogTransaction, Result, Tid};

/// A transaction that is closed to handles, with snapshots of its blocks.
struct Closed {
    tid: Tid,
    buffers: Vec<Arc<Buffer>>,
    log: LogTransaction,
    forgotten: Vec<BlockNo>,
    callbacks: Vec<Callback>,
}

/// The role of the thread that commits for all waiting threads. Dropping it gives the role up.
struct Leader<'a>(&'a Inner);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.state.lock().has_leader = false;
        self.0.commit_done.notify_all();
    }
}

impl Inner {
    /// Commits through `tid`, or everything so far if it is `None`. `None` always flushes.
    pub fn commit(&self, tid: Option<Tid>) -> Result<()> {
        let Some(log) = &self.log else {
            let _as_with_a_log = Held::before_waiting::<rank::JournalLog>();
            let mut state = self.state.lock();
            state.check()?;
            // Cleared before the write: a change during the write belongs to the next commit.
            state.unwritten_since = None;
            drop(state);
            return self.or_abort(self.cache.sync().map_err(JournalError::from));
        };
        match tid {
            Some(tid) => self.commit_through(log, tid),
            None => self.commit_all(log),
        }
    }

    /// Commits through `target`. One caller is the leader and commits; the others wait for `commit_done`
    /// instead of the log's lock. They continue together, so their next changes share a commit.
    fn commit_through(&self, log: &LogLock, target: Tid) -> Result<()> {
        {
            let _waits_for_the_leader = Held::before_waiting::<rank::JournalLog>();
            let mut state = self.state.lock();
            loop {
                if state.committed >= target {
                    return Ok(());
                }
                state.check()?;
                if !state.has_leader {
                    break;
                }
                state.wait(&self.commit_done);
            }
            state.has_leader = true;
        }
        let _leader = Leader(self);
        let mut log = log.lock();
        {
            let state = self.state.lock();
            // The commit thread or `commit_all` has committed it meanwhile.
            if state.committed >= target {
                return Ok(());
            }
            state.check()?;
        }
        self.commit_running(log.as_mut())
    }

    /// Commits everything so far, and always flushes.
    fn commit_all(&self, log: &LogLock) -> Result<()> {
        let target = {
            let state = self.state.lock();
            state.check()?;
            state.newest()
        };
        // While this waits for the lock, another commit may cover `target`.
        let mut log = log.lock();
        {
            let state = self.state.lock();
            state.check()?;
            if state.committed >= target {
                drop(state);
                // The caller may have written data after the flush of that commit.
                return self.or_abort(self.cache.device().flush().map_err(Into::into));
            }
        }
        self.commit_running(log.as_mut())
    }

    /// Commits the running transaction if there is one. For the commit thread.
    pub fn commit_background(&self) -> Result<()> {
        let Some(log) = &self.log else {
            let some = self.state.lock().unwritten_since.is_some();
            return if some { self.commit(None) } else { Ok(()) };
        };
        let mut log = log.lock();
        if self.state.lock().running.is_none() {
            return Ok(());
        }
        self.commit_running(log.as_mut())
    }

    /// Commits the running transaction. The caller holds the lock of the log.
    pub fn commit_running(&self, log: &mut dyn LogFormat) -> Result<()> {
        // The commit waits for handles, so this thread has none, and no callback begins one.
        let _handles = Held::before_waiting::<rank::Handle>();
        let Some(closed) = self.close_running()? else {
            return self.or_abort(self.cache.device().flush().map_err(Into::into));
        };
        let written = self.write(log, &closed);
        self.or_abort(written)?;
        self.finish(closed);
        if self.needs_checkpoint(log) {
            self.commit_thread.request_checkpoint();
        }
        Ok(())
    }

    /// Waits for the open handles, takes snapshots, and lets new handles start the next transaction.
    fn close_running(&self) -> Result<Option<Closed>> {
        let mut state = self.state.lock();
        state.check()?;
        match state.running.as_mut() {
            None => return Ok(None),
            Some(running) => running.locked = true,
        }
        while state.running.as_ref().is_some_and(|r| r.handles > 0) {
            state.wait(&self.state_changed);
            if let Err(e) = state.check() {
                if let Some(running) = state.running.as_mut() {
                    running.locked = false;
                }
                self.state_changed.notify_all();
                return Err(e);
            }
        }
        let Some(running) = state.running.take() else { return Ok(None) };
        let mut items: Vec<_> = running.items.into_iter().collect();
        items.sort_unstable_by_key(|(block, _)| *block);
        let mut buffers = Vec::with_capacity(items.len());
        let mut log = LogTransaction { items: Vec::with_capacity(items.len()), revokes: running.revokes };
        for (block, item) in items {
            log.items.push(LogItem { block, ranges: item.ranges, data: item.buffer.snapshot() });
            buffers.push(item.buffer);
        }
        state.committing = log.items.iter().map(|i| i.block).collect();
        self.state_changed.notify_all();
        let forgotten = running.forgotten.into_iter().collect();
        Ok(Some(Closed { tid: running.tid, buffers, log, forgotten, callbacks: running.callbacks }))
    }

    /// Makes a closed transaction durable.
    fn write(&self, log: &mut dyn LogFormat, closed: &Closed) -> Result<()> {
        let (items, revokes) = (closed.log.items.len() as u64, closed.log.revokes.len() as u64);
        if items == 0 && revokes == 0 {
            count(&self.counters.empty_commits, 1);
            return Ok(self.cache.device().flush()?);
        }
        let needed = log.blocks_for(items, revokes);
        if log.free_blocks() < needed {
            self.checkpoint_locked(log)?;
            if log.free_blocks() < needed {
                return Err(JournalError::TooLarge { blocks: needed, limit: log.free_blocks() });
            }
        }
        self.state.lock().check()?;
        let body = log.write_items(&closed.log)?;
        // Makes the log blocks durable before their commit record, and all file data that was written before
        // the handles ended.
        self.cache.device().flush()?;
        // A driver aborts the journal if it ends a handle with an incomplete change: such a transaction must
        // not get a commit record.
        self.state.lock().check()?;
        let record = log.write_commit()?;
        let c = &self.counters;
        count(&c.commits, 1);
        count(&c.items, items);
        count(&c.revokes, revokes);
        count(&c.journal_blocks, body.blocks + record.blocks);
        count(&c.journal_bytes, body.bytes + record.bytes);
        Ok(())
    }

    /// Ends a durable transaction: its blocks become active items, its freed blocks may be reused.
    fn finish(&self, closed: Closed) {
        let Closed { tid, buffers, log, forgotten, callbacks } = closed;
        let mut state = self.state.lock();
        for block in &log.revokes {
            state.active.remove(block);
        }
        for (item, buffer) in log.items.into_iter().zip(buffers) {
            state.active.insert(item.block, ActiveItem { _buffer: buffer, data: item.data });
        }
        state.committing.clear();
        state.committed = tid;
        drop(state);
        // A block that is in use again is referenced by its user or by the running transaction.
        forgotten.into_iter().for_each(|block| self.cache.forget_unused(block));
        callbacks.into_iter().for_each(|f| f());
        self.state_changed.notify_all();
        self.commit_done.notify_all();
    }

    fn needs_checkpoint(&self, log: &dyn LogFormat) -> bool {
        let kept = self.state.lock().active.len() as u64 * u64::from(self.cache.block_size());
        let used = log.capacity_blocks().saturating_sub(log.free_blocks());
        kept > self.options.checkpoint_bytes
            || used * 100 > log.capacity_blocks() * self.options.checkpoint_percent
    }

    /// Commits, checkpoints, marks the log clean, and refuses further handles.
    pub fn shutdown(&self) -> Result<()> {
        if self.state.lock().closed {
            return Ok(());
        }
        self.commit(None)?;
        if let Some(log) = &self.log {
            let mut log = log.lock();
            if self.state.lock().running.is_some() {
                self.commit_running(log.as_mut())?;
            }
            let clean = self.checkpoint_locked(log.as_mut()).and_then(|()| log.mark_clean());
            self.or_abort(clean)?;
        }
        self.state.lock().closed = true;
        self.abort("the filesystem is unmounted");
        Ok(())
    }
}
