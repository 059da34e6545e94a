//! Commits: close the transaction, take snapshots, write the log, flush, write the commit record.

use std::collections::BTreeMap;
use std::sync::Arc;

use ivers_block::{Buffer, Unit};
use ivers_sync::{Held, RankedMutexGuard, rank};

use crate::active::{ActiveBuffer, ActiveObject};
use crate::engine::{Callback, Inner, LogLock, LoggedObject, Running, State, add_range, count};
use crate::{
    JournalError, LogFormat, LogItem, LogTransaction, Lsn, ObjectId, ObjectRecord, RecordKind, Result, Tid,
};

/// Items that a commit or a push processes before waiting handles may take the lock. Waking a handle takes as
/// long as a hundred items, so the number is large. Under shuttle it is 2: races run between the parts.
const AT_ONCE: usize = if cfg!(shuttle) { 2 } else { 1024 };

/// Calls `each` for all items. Waiting handles may take the lock after every [`AT_ONCE`] of them.
pub(crate) fn in_parts<T>(
    state: &mut RankedMutexGuard<'_, State>,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut State, T),
) {
    for (n, item) in items.into_iter().enumerate() {
        each(state, item);
        if n % AT_ONCE == AT_ONCE - 1 {
            state.give_way();
        }
    }
}

/// A transaction that is closed to handles, with snapshots of its blocks.
struct Closed {
    tid: Tid,
    charge: u64,
    buffers: Vec<Arc<Buffer>>,
    objects: Arc<BTreeMap<ObjectId, LoggedObject>>,
    /// Objects of earlier transactions that this one finishes, with their done records.
    finished: BTreeMap<ObjectId, Option<Arc<[u8]>>>,
    log: LogTransaction,
    forgotten: Vec<Unit>,
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
        let Some(mut closed) = self.close_running()? else {
            return self.or_abort(self.cache.device().flush().map_err(Into::into));
        };
        let written = self.write(log, &mut closed);
        let lsn = self.or_abort(written)?;
        self.finish(log, closed, lsn);
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
        let mut closed = close(&mut state, running);
        state.committing_space = closed.charge + self.overhead;
        drop(state);
        self.state_changed.notify_all();
        self.add_objects(&mut closed);
        Ok(Some(closed))
    }

    /// Adds the records of the objects to what is logged. Puts the newest version of each object into the
    /// snapshot of its unit: in the buffer it is only after a push, but a record of the buffer or a write in
    /// place may include the object's bytes.
    fn add_objects(&self, closed: &mut Closed) {
        let Closed { objects, finished, log, .. } = closed;
        let stays = |id: &ObjectId| !objects.contains_key(id) && !finished.contains_key(id);
        for part in log.items.chunks_mut(AT_ONCE) {
            // The active objects change only under the log's lock, which the caller holds.
            let state = self.state.lock();
            if state.active.has_no_places() {
                break;
            }
            for item in part {
                for (_, active) in state.active.objects_in(&item.unit).filter(|(id, _)| stays(id)) {
                    active.patch.iter().for_each(|patch| patch.apply(item.data.make_mut()));
                }
            }
        }
        log.objects.reserve_exact(objects.len() + finished.len());
        for (&id, LoggedObject { record, patch, .. }) in &**objects {
            let kind = match patch {
                None => RecordKind::Intent,
                Some(patch) => {
                    if let Ok(at) = log.items.binary_search_by(|item| item.unit.cmp(&patch.unit)) {
                        patch.apply(log.items[at].data.make_mut());
                    }
                    RecordKind::Placed(patch.unit.clone())
                }
            };
            log.objects.push(ObjectRecord { id, kind, bytes: record.clone() });
        }
        for (&id, record) in finished.iter() {
            if let Some(bytes) = record {
                log.objects.push(ObjectRecord { id, kind: RecordKind::Done, bytes: bytes.clone() });
            }
        }
    }

    /// Makes a closed transaction durable. Returns its LSN.
    fn write(&self, log: &mut dyn LogFormat, closed: &mut Closed) -> Result<Lsn> {
        if closed.log.is_empty() {
            count(&self.counters.empty_commits, 1);
            if !closed.forgotten.is_empty() {
                // No record of the freed units is active. But one may lie after a tail that is not durable.
                log.settle_tail()?;
            }
            self.cache.device().flush()?;
            return Ok(0);
        }
        let mut wanted = log.space_for(&closed.log);
        if self.costs.has_ranges() {
            wanted += self.space_for_repeats(log, &closed.log);
        }
        if log.free() < wanted {
            self.push(log, 0)?;
        }
        if self.costs.has_ranges() {
            self.repeat_ranges(&mut closed.log);
        }
        let needed = log.space_for(&closed.log);
        if log.free() < needed {
            log.settle_tail()?;
        }
        if log.free() < needed {
            return Err(JournalError::TooLarge { charge: needed, limit: log.free() });
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
        count(&c.items, closed.log.items.len() as u64);
        count(&c.revokes, closed.log.revokes.len() as u64);
        count(&c.journal_blocks, body.blocks + record.blocks);
        count(&c.journal_bytes, body.bytes + record.bytes);
        Ok(body.lsn)
    }

    /// The space that must be free in addition so that [`repeat_ranges`](Self::repeat_ranges) may add ranges.
    /// Handles did not reserve it. So it must not come from what they and the intents reserved.
    fn space_for_repeats(&self, log: &dyn LogFormat, transaction: &LogTransaction) -> u64 {
        let state = self.state.lock();
        let active = |item: &LogItem| {
            let active = state.active.buffer(&item.unit)?;
            Some(self.costs.of_buffer(item.unit.len(), &active.ranges))
        };
        let charge: u64 = transaction.items.iter().filter_map(active).sum();
        if charge == 0 {
            return 0;
        }
        let reserved = if state.intents.is_empty() { 0 } else { self.limit + self.overhead };
        log.space_for_charge(charge) + state.reserved_for_intents() + reserved
    }

    /// Adds the bytes of each buffer that are in the log and not in place: after this commit the tail may
    /// pass their older records.
    fn repeat_ranges(&self, log: &mut LogTransaction) {
        let state = self.state.lock();
        for item in &mut log.items {
            let Some(active) = state.active.buffer(&item.unit) else { continue };
            active.ranges.iter().for_each(|range| add_range(&mut item.ranges, range.clone()));
        }
    }

    /// Ends a durable transaction: its blocks and objects become active items, its freed blocks may be
    /// reused.
    ///
    /// A large transaction has thousands of blocks and objects, so handles may take the lock in between.
    /// Until all are active, handles find them among the committing ones.
    fn finish(&self, log: &dyn LogFormat, closed: Closed, lsn: Lsn) {
        let Closed { tid, buffers, objects, finished, log: written, forgotten, callbacks, .. } = closed;
        let mut clean = Vec::new();
        let mut state = self.state.lock();
        for id in finished.into_keys() {
            clean.extend(state.active.finish_object(id));
            if state.intents.get(&id).is_some_and(|reservation| reservation.tid <= tid) {
                state.intents.remove(&id);
            }
        }
        for unit in &written.revokes {
            state.active.revoke(unit);
        }
        let mut older = Vec::new();
        in_parts(&mut state, &*objects, |state, (&id, LoggedObject { object, patch, .. })| {
            let active = ActiveObject { object: object.clone(), patch: patch.clone(), lsn, tid };
            older.extend(state.active.insert_object(id, active));
        });
        in_parts(&mut state, written.items.into_iter().zip(buffers), |state, (item, buffer)| {
            let active = ActiveBuffer { _buffer: buffer, data: item.data, ranges: item.ranges, lsn };
            state.active.insert_buffer(item.unit, active);
        });
        let committing = (
            std::mem::take(&mut state.committing),
            std::mem::take(&mut state.committing_objects),
            std::mem::take(&mut state.committing_places),
        );
        state.committing_finished.clear();
        state.committing_space = 0;
        state.pinned = state.active.oldest_intent().map_or(0, |(lsn, _)| log.used_from(lsn));
        state.committed = tid;
        drop(state);
        drop(committing);
        clean.into_iter().for_each(|active| active.object.clean(active.tid));
        // A block that is in use again is referenced by its user or by the running transaction.
        forgotten.iter().for_each(|unit| self.cache.forget_unused(unit));
        callbacks.into_iter().for_each(|f| f());
        self.state_changed.notify_all();
        self.commit_done.notify_all();
    }

    fn needs_checkpoint(&self, log: &dyn LogFormat) -> bool {
        let kept = self.state.lock().active.kept_bytes();
        let used = log.capacity().saturating_sub(log.free());
        kept > self.options.checkpoint_bytes || used * 100 > log.capacity() * self.options.checkpoint_percent
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
            let pushed = self.push(log.as_mut(), 0).and_then(|_| self.check_finished());
            let clean = pushed.and_then(|()| log.mark_clean());
            self.or_abort(clean)?;
        }
        self.state.lock().closed = true;
        self.abort("the filesystem is unmounted");
        Ok(())
    }
}

/// Takes snapshots of what `running` changed.
fn close(state: &mut State, running: Running) -> Closed {
    let mut items: Vec<_> = running.items.into_iter().collect();
    items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let mut buffers = Vec::with_capacity(items.len());
    let mut log = LogTransaction { items: Vec::with_capacity(items.len()), ..LogTransaction::default() };
    log.revokes = running.revokes;
    for (unit, item) in items {
        log.items.push(LogItem { unit, ranges: item.ranges, data: item.buffer.snapshot() });
        buffers.push(item.buffer);
    }
    state.committing = log.items.iter().map(|i| i.unit.clone()).collect();
    let objects = Arc::new(running.objects);
    state.committing_objects = objects.clone();
    state.committing_places = running.places;
    state.committing_finished = running.finished.keys().copied().collect();
    Closed {
        tid: running.tid,
        charge: running.charge,
        buffers,
        objects,
        finished: running.finished,
        log,
        forgotten: running.forgotten.into_iter().collect(),
        callbacks: running.callbacks,
    }
}
