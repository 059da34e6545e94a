//! The journal: its state and its interface for drivers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ivers_block::{BlockNo, Buffer, BufferCache, NumberMap, Unit};
use ivers_sync::atomic::{AtomicBool, Ordering};
use ivers_sync::{Condvar, Held, RankedMutex, rank};

use crate::active::Active;
use crate::commit_thread::CommitThread;
use crate::intents::FinishReservation;
use crate::places::Places;
use crate::{Costs, Handle, JournalError, LogFormat, LogObject, Lsn, ObjectId, Patch, Result};

/// The number of a transaction in memory: 1, 2, 3 and so on. It is not stored.
pub type Tid = u64;

/// A function to call when a transaction is durable.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// Options of a journal.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JournalOptions {
    /// Approximate longest time from the start of a transaction to its commit.
    pub commit_interval: Duration,
    /// Memory of the active items, in bytes, above which a checkpoint starts. A transaction commits if its
    /// objects take a quarter of it. With a log of whole blocks it also commits if its buffers take all of
    /// it; with a log of ranges, if they take half, or if it would write more than a quarter to the log. A
    /// commit is requested at three quarters of any of these limits. New handles wait at the limit.
    pub checkpoint_bytes: u64,
    /// Used share of the log, in percent, above which a checkpoint starts.
    pub checkpoint_percent: u64,
    /// Share of the log, in percent, that a checkpoint in the background frees. 100 empties the log, which
    /// costs fewer flushes than several smaller checkpoints.
    pub push_percent: u64,
    /// For tests of recovery: a handle that ends commits, and a restart too. So a crash can come between any
    /// two handles, and between an intent and its done record.
    pub commit_each_handle: bool,
    pub(crate) write_hook: Option<WriteHook>,
}

type Hook = dyn Fn(&[BlockNo], Lsn, &mut [u8]) + Send + Sync;

/// See [`JournalOptions::with_write_hook`].
#[derive(Clone)]
pub(crate) struct WriteHook(pub Arc<Hook>);

impl std::fmt::Debug for WriteHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WriteHook")
    }
}

impl Default for JournalOptions {
    /// Five seconds, 32 MiB, half the log; checkpoints that empty the log; no hook.
    fn default() -> Self {
        Self {
            commit_interval: Duration::from_secs(5),
            checkpoint_bytes: 32 << 20,
            checkpoint_percent: 50,
            push_percent: 100,
            commit_each_handle: false,
            write_hook: None,
        }
    }
}

impl JournalOptions {
    /// Sets the commit interval.
    pub fn with_commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Sets [`checkpoint_bytes`](Self::checkpoint_bytes).
    pub fn with_checkpoint_bytes(mut self, bytes: u64) -> Self {
        self.checkpoint_bytes = bytes;
        self
    }

    /// Sets the share of the log, in percent, that a checkpoint in the background frees.
    pub fn with_push_percent(mut self, percent: u64) -> Self {
        self.push_percent = percent.min(100);
        self
    }

    /// Sets [`commit_each_handle`](Self::commit_each_handle).
    pub fn with_commit_each_handle(mut self, commits: bool) -> Self {
        self.commit_each_handle = commits;
        self
    }

    /// Sets a function that sees every buffer, with its blocks, before it is written in place, to stamp it
    /// with the LSN of its newest change and with a checksum. What it changes is not logged, and not in the
    /// cached buffer. In no-journal mode the LSN is 0.
    ///
    /// It runs with the log locked. It must not use the journal.
    pub fn with_write_hook(
        mut self,
        hook: impl Fn(&[BlockNo], Lsn, &mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        self.write_hook = Some(WriteHook(Arc::new(hook)));
        self
    }
}

/// Statistics since the journal was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Handles begun.
    pub handles: u64,
    /// Transactions written to the log.
    pub commits: u64,
    /// Commits that found nothing to log and only flushed.
    pub empty_commits: u64,
    /// Blocks written to the log, its own descriptors and commit records included.
    pub journal_blocks: u64,
    /// The same in bytes.
    pub journal_bytes: u64,
    /// Buffers that transactions changed.
    pub items: u64,
    /// Revoked units written.
    pub revokes: u64,
    /// Checkpoints that emptied the log.
    pub checkpoints: u64,
    /// Blocks written in place by checkpoints.
    pub checkpoint_blocks: u64,
}

/// The counters of [`JournalStats`]. No other memory depends on them, so all accesses are relaxed.
#[derive(Default)]
pub(crate) struct Counters {
    pub handles: AtomicU64,
    pub commits: AtomicU64,
    pub empty_commits: AtomicU64,
    pub journal_blocks: AtomicU64,
    pub journal_bytes: AtomicU64,
    pub items: AtomicU64,
    pub revokes: AtomicU64,
    pub checkpoints: AtomicU64,
    pub checkpoint_blocks: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// The objects of a transaction may take one in `MEMORY_PART` of [`JournalOptions::checkpoint_bytes`]. In a
/// log of ranges, so may its bytes in the log.
const MEMORY_PART: u64 = 4;
/// The part of it that the buffers of a transaction may take. The transaction before may be in its commit.
const BUFFERS_PART: u64 = 2;

/// A buffer with more changed ranges than this is logged from its first changed byte to its last.
const MAX_RANGES: usize = 32;

/// One buffer in the running transaction.
pub(crate) struct Item {
    pub buffer: Arc<Buffer>,
    pub ranges: Vec<Range<u32>>,
    pub charge: u64,
}

/// Adds a changed range and keeps the list sorted and merged.
pub(crate) fn add_range(ranges: &mut Vec<Range<u32>>, range: Range<u32>) {
    if range.is_empty() || ranges.iter().any(|r| r.start <= range.start && range.end <= r.end) {
        return;
    }
    let (mut start, mut end) = (range.start, range.end);
    ranges.retain(|r| {
        let apart = r.end < start || end < r.start;
        if !apart {
            start = start.min(r.start);
            end = end.max(r.end);
        }
        apart
    });
    let at = ranges.partition_point(|r| r.start < start);
    ranges.insert(at, start..end);
    if ranges.len() > MAX_RANGES {
        let all = ranges[0].start..ranges[MAX_RANGES].end;
        ranges.clear();
        ranges.push(all);
    }
}

/// One object in the running transaction.
pub(crate) struct LoggedObject {
    pub object: Arc<dyn LogObject>,
    pub record: Arc<[u8]>,
    /// `None` for an intent.
    pub patch: Option<Arc<Patch>>,
}

/// The memory of an object, about. Beside its bytes that is the driver's part, entries of maps, and its bytes
/// in the log record and in the blocks that a push writes.
pub(crate) fn object_memory(bytes: &[u8]) -> u64 {
    768 + bytes.len() as u64
}

impl LoggedObject {
    /// See [`object_memory`]. The patch usually has the bytes of the record.
    pub fn memory_bytes(&self) -> u64 {
        object_memory(&self.record)
    }
}

/// The transaction that handles join.
pub(crate) struct Running {
    pub tid: Tid,
    /// Open handles.
    pub handles: u32,
    /// Credits of the open handles.
    pub reserved: u64,
    /// Charge of what is below.
    pub charge: u64,
    /// A commit waits for the open handles. No new handle may join.
    pub locked: bool,
    /// A commit was requested because it was nearly full.
    pub is_requested: bool,
    pub started: Instant,
    pub items: NumberMap<Unit, Item>,
    /// The number of blocks in `items`.
    pub item_blocks: u64,
    pub revokes: BTreeSet<Unit>,
    /// Units freed by this transaction. The cache drops them after the commit.
    pub forgotten: HashSet<Unit>,
    pub objects: BTreeMap<ObjectId, LoggedObject>,
    pub places: Places,
    /// The memory of `objects`.
    pub object_bytes: u64,
    /// Objects of earlier transactions that this one finishes, with their done records.
    pub finished: BTreeMap<ObjectId, Option<Arc<[u8]>>>,
    pub callbacks: Vec<Callback>,
}

impl Running {
    fn new(tid: Tid) -> Self {
        Self {
            tid,
            handles: 0,
            reserved: 0,
            charge: 0,
            locked: false,
            is_requested: false,
            started: Instant::now(),
            items: NumberMap::default(),
            item_blocks: 0,
            revokes: BTreeSet::new(),
            forgotten: HashSet::new(),
            objects: BTreeMap::new(),
            places: Places::default(),
            object_bytes: 0,
            finished: BTreeMap::new(),
            callbacks: Vec::new(),
        }
    }

    /// Notes that an object moved from the unit of `from` to that of `to`.
    pub fn move_place(&mut self, id: ObjectId, from: Option<&Patch>, to: Option<&Patch>) {
        let (from, to) = (from.map(|patch| &patch.unit), to.map(|patch| &patch.unit));
        if from == to {
            return;
        }
        if let Some(unit) = from {
            self.places.remove(unit, id);
        }
        if let Some(unit) = to {
            self.places.insert(unit, id);
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub running: Option<Running>,
    /// Buffers of the transaction that a commit writes to the log.
    pub committing: HashSet<Unit>,
    /// Objects of that transaction.
    pub committing_objects: Arc<BTreeMap<ObjectId, LoggedObject>>,
    pub committing_places: Places,
    /// Objects of earlier transactions that it finishes.
    pub committing_finished: Vec<ObjectId>,
    /// Log space of that transaction.
    pub committing_space: u64,
    /// The newest durable transaction.
    pub committed: Tid,
    /// The number of the next transaction.
    pub next: Tid,
    /// A thread in `commit_through` is the leader. Others wait for `commit_done`.
    pub has_leader: bool,
    /// Changes only under the lock of the log.
    pub active: Active,
    /// Log space from the oldest active intent to the head: no push can free it.
    pub pinned: u64,
    /// The intents that are not durably done, those of the running transaction included.
    pub intents: BTreeMap<ObjectId, FinishReservation>,
    pub aborted: Option<String>,
    /// No-journal mode: the time of the first change since the last commit.
    pub unwritten_since: Option<Instant>,
    /// The journal was shut down cleanly.
    pub closed: bool,
}

impl State {
    pub fn check(&self) -> Result<()> {
        match &self.aborted {
            Some(cause) => Err(JournalError::Aborted { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// The newest transaction that was begun.
    pub fn newest(&self) -> Tid {
        self.running.as_ref().map_or(self.next.saturating_sub(1), |running| running.tid)
    }
}

/// The lock of the log.
pub(crate) type LogLock = RankedMutex<rank::JournalLog, Box<dyn LogFormat>>;

pub(crate) struct Inner {
    pub cache: Arc<BufferCache>,
    /// `None` in no-journal mode. Held during a commit and a checkpoint. Taken before `state`.
    pub log: Option<LogLock>,
    pub state: RankedMutex<rank::JournalState, State>,
    /// True if `State::aborted` is set. Written under the lock of `state`.
    pub is_aborted: AtomicBool,
    /// `state` changed: a handle ended, a transaction closed or finished, or the journal was aborted.
    pub state_changed: Condvar,
    /// A transaction became durable, or a leader gave its role up.
    pub commit_done: Condvar,
    pub options: JournalOptions,
    pub costs: Costs,
    /// Space of the empty log.
    pub capacity: u64,
    /// The largest charge of one transaction.
    pub limit: u64,
    /// The most log space that a transaction takes in addition to its charge.
    pub overhead: u64,
    pub counters: Counters,
    pub commit_thread: CommitThread,
}

/// A write-ahead journal over a [`BufferCache`]; see the crate documentation. Clones share one journal.
///
/// In no-journal mode it has the same interface and no log.
#[derive(Clone)]
pub struct Journal {
    pub(crate) inner: Arc<Inner>,
}

impl Journal {
    /// Returns a journal in no-journal mode. Changes mark buffers dirty, and a commit writes them in place
    /// and flushes. A crash may leave any mix of old and new blocks.
    pub fn none(cache: Arc<BufferCache>) -> Self {
        Self::none_with(cache, JournalOptions::default())
    }

    /// As [`none`](Self::none), with the write hook of `options`: the cache calls it.
    pub fn none_with(cache: Arc<BufferCache>, options: JournalOptions) -> Self {
        if let Some(WriteHook(hook)) = options.write_hook.clone() {
            cache.set_place_hook(Box::new(move |unit, bytes| hook(unit, 0, bytes)));
        }
        Self { inner: Arc::new(Self::inner(cache, None, options, u64::MAX)) }
    }

    /// As [`none`](Self::none), with a thread that commits changes about `interval` after they were made.
    pub fn none_with_interval(cache: Arc<BufferCache>, interval: Duration) -> Result<Self> {
        let journal = Self::none(cache);
        journal.inner.commit_thread.start(Arc::downgrade(&journal.inner), interval)?;
        Ok(journal)
    }

    /// Opens a journal that writes to `log`. Fails if the log needs recovery.
    pub fn open(log: Box<dyn LogFormat>, cache: Arc<BufferCache>, options: JournalOptions) -> Result<Self> {
        if log.needs_recovery() {
            return Err(JournalError::NeedsRecovery);
        }
        // A quarter of the log, so that commits and checkpoints overlap with new handles. At most a part of
        // what may stay in memory, but at least 64 blocks that changed in whole, if they fit that quarter.
        let costs = log.costs();
        let whole = costs.of_buffer(1, std::slice::from_ref(&(0..cache.block_size())));
        let in_memory = match costs.has_ranges() {
            true => options.checkpoint_bytes / MEMORY_PART,
            false => (options.checkpoint_bytes / u64::from(cache.block_size())).saturating_mul(costs.buffer),
        };
        let quarter = log.capacity() / 4;
        let mut limit = quarter.min(in_memory.max(64 * whole));
        while limit > 0 && log.space_for_charge(limit) > log.capacity() / 2 {
            limit -= limit.div_ceil(8);
        }
        // Eight blocks that changed in whole.
        let least = 8 * whole;
        if limit < least {
            return Err(JournalError::TooLarge { charge: least, limit });
        }
        let inner = Arc::new(Self::inner(cache, Some(log), options, limit));
        inner.commit_thread.start(Arc::downgrade(&inner), inner.options.commit_interval)?;
        Ok(Self { inner })
    }

    fn inner(
        cache: Arc<BufferCache>,
        log: Option<Box<dyn LogFormat>>,
        options: JournalOptions,
        limit: u64,
    ) -> Inner {
        let mut state = State { next: 1, ..State::default() };
        let (mut costs, mut capacity, mut overhead) = (Costs::WHOLE_BLOCKS, u64::MAX, 0);
        if let Some(log) = &log {
            (costs, capacity, overhead) = (log.costs(), log.capacity(), log.space_for_charge(limit) - limit);
            let live = log.live();
            state.active = Active::after_recovery(live.intents, live.units);
            state.pinned = state.active.oldest_intent().map_or(0, |(lsn, _)| log.used_from(lsn));
        }
        Inner {
            cache,
            log: log.map(LogLock::new),
            state: RankedMutex::new(state),
            is_aborted: AtomicBool::new(false),
            state_changed: Condvar::new(),
            commit_done: Condvar::new(),
            options,
            costs,
            capacity,
            limit,
            overhead,
            counters: Counters::default(),
            commit_thread: CommitThread::default(),
        }
    }

    /// True in no-journal mode.
    pub fn is_none(&self) -> bool {
        self.inner.log.is_none()
    }

    /// The cache whose buffers this journal logs.
    pub fn cache(&self) -> &Arc<BufferCache> {
        &self.inner.cache
    }

    /// The most credits that one handle may reserve.
    pub fn max_credits(&self) -> u32 {
        u32::try_from(self.inner.limit).unwrap_or(u32::MAX)
    }

    /// Joins the running transaction. The handle may change or free at most `credits` different blocks. If
    /// the encoding counts bytes, `credits` is the charge of what the handle logs.
    ///
    /// Waits while a commit waits for open handles, while the credits do not fit the transaction, and while
    /// unfinished intents need the log. The calling thread must have no open handle.
    pub fn begin(&self, credits: u32) -> Result<Handle> {
        let held = Held::before_waiting::<rank::Handle>();
        let tid = self.join(credits, &[])?;
        Ok(Handle::new(self.clone(), tid, credits.into(), Vec::new(), held))
    }

    /// Counts a new handle in the running transaction. Waits as [`begin`](Self::begin) does, but not for
    /// intents that are newer than `intents`, which the handle continues.
    pub(crate) fn join(&self, credits: u32, intents: &[ObjectId]) -> Result<Tid> {
        let inner = &self.inner;
        let credits = u64::from(credits);
        if credits > inner.limit {
            return Err(JournalError::TooLarge { charge: credits, limit: inner.limit });
        }
        let mut state = inner.state.lock();
        let tid = loop {
            state.check()?;
            if intents.is_empty() && !state.active.unadopted.is_empty() {
                return Err(JournalError::UnfinishedIntents { count: state.active.unadopted.len() });
            }
            let state_ref = &mut *state;
            let has_log_space = inner.has_log_space(state_ref, credits, intents);
            if !has_log_space && inner.waits_in_vain(state_ref, intents) {
                return Err(JournalError::TooLarge { charge: credits, limit: inner.capacity });
            }
            let running = state_ref.running.get_or_insert_with(|| {
                let tid = state_ref.next;
                state_ref.next += 1;
                Running::new(tid)
            });
            if !running.locked {
                if has_log_space && inner.fits(running, credits) {
                    running.handles += 1;
                    running.reserved += credits;
                    break running.tid;
                }
                if running.charge + running.reserved > 0 {
                    inner.commit_thread.request_commit();
                }
            }
            state.wait(&inner.state_changed);
        };
        if state.running.as_mut().is_some_and(|running| inner.is_nearly_full(running)) {
            inner.commit_thread.request_commit();
        }
        drop(state);
        count(&inner.counters.handles, 1);
        Ok(tid)
    }

    /// Makes transaction `tid` durable: returns when its commit record is durable. Concurrent callers share
    /// one commit.
    ///
    /// In no-journal mode it writes every dirty buffer in place and flushes.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        self.inner.commit(Some(tid))
    }

    /// Makes durable all changes and all file data written before this call.
    pub fn commit_all(&self) -> Result<()> {
        self.inner.commit(None)
    }

    /// Requests a commit in the background as soon as possible.
    pub fn commit_soon(&self) {
        self.inner.commit_thread.request_commit();
    }

    /// True if transaction `tid` is durable.
    pub fn is_committed(&self, tid: Tid) -> bool {
        self.inner.state.lock().committed >= tid
    }

    /// The number of the running transaction, or of the one that the next handle starts. Once it is
    /// committed, all changes so far are durable.
    pub fn current_tid(&self) -> Tid {
        let state = self.inner.state.lock();
        state.running.as_ref().map_or(state.next, |r| r.tid)
    }

    /// The number of the newest transaction that was begun. Once it is committed, all changes so far are
    /// durable.
    pub fn newest_tid(&self) -> Tid {
        self.inner.state.lock().newest()
    }

    /// Commits, writes every active item in place and empties the log, as far as no intent holds the tail.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.commit_all()?;
        self.inner.checkpoint(100).map(|_| ())
    }

    /// Commits, and writes every active item in place. What the log has of them stays until the next record:
    /// a recovery before that repeats them.
    pub fn write_in_place(&self) -> Result<()> {
        self.commit_all()?;
        self.inner.write_in_place()
    }

    /// Writes active items in place so that `percent` of the log are free. Returns the intent that holds the
    /// tail, if the tail cannot move that far.
    pub fn push(&self, percent: u64) -> Result<Option<ObjectId>> {
        self.inner.checkpoint(percent)
    }

    /// Commits, checkpoints and marks the log clean. The journal refuses further handles.
    ///
    /// Fails while an intent is not finished: the log stays as it is, for recovery.
    pub fn shutdown(&self) -> Result<()> {
        self.inner.commit_thread.stop();
        self.inner.shutdown()
    }

    /// Aborts the journal: later handles and commits fail, and nothing more is written.
    pub fn abort(&self, cause: impl std::fmt::Display) {
        self.inner.abort(&cause.to_string());
    }

    /// Returns why the journal was aborted, if it was.
    pub fn aborted(&self) -> Option<String> {
        self.inner.state.lock().aborted.clone()
    }

    /// True if the journal was aborted. Takes no lock, for frequent callers.
    pub fn is_aborted(&self) -> bool {
        self.inner.is_aborted.load(Ordering::Acquire)
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> JournalStats {
        let c = &self.inner.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JournalStats {
            handles: get(&c.handles),
            commits: get(&c.commits),
            empty_commits: get(&c.empty_commits),
            journal_blocks: get(&c.journal_blocks),
            journal_bytes: get(&c.journal_bytes),
            items: get(&c.items),
            revokes: get(&c.revokes),
            checkpoints: get(&c.checkpoints),
            checkpoint_blocks: get(&c.checkpoint_blocks),
        }
    }
}

impl Inner {
    /// True if `credits` more fit the transaction, in the log and in memory. An empty transaction fits every
    /// handle.
    pub fn fits(&self, running: &Running, credits: u64) -> bool {
        let used = running.charge + running.reserved;
        used == 0 || (self.fits_memory(running, 4) && used.saturating_add(credits) <= self.limit)
    }

    /// True if the transaction uses at most `quarters` quarters of each of its memory limits.
    fn fits_memory(&self, running: &Running, quarters: u64) -> bool {
        let buffer_bytes = running.item_blocks * u64::from(self.cache.block_size());
        let most = self.options.checkpoint_bytes / 4 * quarters;
        // The limit of a log of whole blocks bounds the buffers, too.
        let few_buffers = !self.costs.has_ranges() || buffer_bytes <= most / BUFFERS_PART;
        few_buffers && running.object_bytes <= most / MEMORY_PART
    }

    /// True at the first call after the transaction became three quarters full. The commit thread then closes
    /// it before a handle has to wait.
    fn is_nearly_full(&self, running: &mut Running) -> bool {
        let is_full = running.charge > self.limit / 4 * 3 || !self.fits_memory(running, 3);
        is_full && !std::mem::replace(&mut running.is_requested, true)
    }

    pub fn abort(&self, cause: &str) {
        let mut state = self.state.lock();
        state.aborted.get_or_insert_with(|| cause.to_string());
        self.is_aborted.store(true, Ordering::Release);
        self.state_changed.notify_all();
    }

    /// Returns `result`; an error aborts the journal.
    pub fn or_abort<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.abort(&e.to_string());
        }
        result
    }

    /// Adds bytes of a buffer to the running transaction `tid`, in which the caller has a handle.
    pub fn add_item(&self, tid: Tid, buffer: &Arc<Buffer>, ranges: impl Iterator<Item = Range<u32>>) {
        let mut state = self.state.lock();
        let running = running_of(&mut state, tid);
        let unit = buffer.unit();
        // The unit is in use again. A revoke in the same transaction would keep it from being replayed.
        let is_reused = running.forgotten.remove(unit);
        if running.revokes.remove(unit) {
            running.charge -= self.costs.of_revoke(unit);
        }
        let item = running.items.entry(unit.clone()).or_insert_with(|| {
            let charge = self.costs.of_buffer(unit.len(), &[]);
            running.charge += charge;
            running.item_blocks += unit.len() as u64;
            Item { buffer: buffer.clone(), ranges: Vec::new(), charge }
        });
        if !Arc::ptr_eq(&item.buffer, buffer) {
            item.buffer = buffer.clone();
        }
        // Older records of a reused unit may be replayed: the new record must cover them.
        if is_reused {
            add_range(&mut item.ranges, 0..self.cache.len_of(unit));
        } else {
            ranges.for_each(|range| add_range(&mut item.ranges, range));
        }
        if self.costs.has_ranges() {
            let charge = self.costs.of_buffer(unit.len(), &item.ranges);
            running.charge = running.charge - item.charge + charge;
            item.charge = charge;
        }
    }

    /// Records that `unit` was freed in the running transaction `tid`.
    pub fn forget(&self, tid: Tid, unit: &Unit) {
        let mut state = self.state.lock();
        let in_log = state.committing.contains(unit)
            || !state.committing_places.objects_in(unit).is_empty()
            || state.active.log_holds(unit);
        let objects = state.objects_in(unit);
        let running = running_of(&mut state, tid);
        if let Some(item) = running.items.remove(unit) {
            running.charge -= item.charge;
            running.item_blocks -= unit.len() as u64;
        }
        running.forgotten.insert(unit.clone());
        if in_log && running.revokes.insert(unit.clone()) {
            running.charge += self.costs.of_revoke(unit);
        }
        objects.into_iter().for_each(|id| self.finish_in(&mut state, tid, id, None));
    }
}

/// The running transaction `tid`, in which the caller has a handle.
pub(crate) fn running_of(state: &mut State, tid: Tid) -> &mut Running {
    let running = state.running.as_mut().expect("a handle keeps its transaction running");
    assert_eq!(running.tid, tid, "a handle keeps its transaction running");
    running
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.commit_thread.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_and_adjacent_ranges_are_merged() {
        let mut ranges = vec![];
        for r in [10..20, 40..50, 20..25, 5..6, 24..41, 12..13, 7..7] {
            add_range(&mut ranges, r);
        }
        assert_eq!(ranges, [5..6, 10..50]);
        (50..100).for_each(|n| add_range(&mut ranges, n * 4 + 1..n * 4 + 3));
        assert!(ranges.len() <= MAX_RANGES && ranges[0].start == 5);
        assert_eq!(ranges.last().unwrap().end, 399);
    }
}
