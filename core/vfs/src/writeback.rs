//! Write-back: dirty pages and deferred inode updates reach the device by age, under memory pressure, by
//! `fsync` and `sync`, and at unmount.
//!
//! Write-back is no change: except when data is lost, nothing here bumps a counter. Inodes with dirty pages
//! are in one list. An inode leaves the list before its pages are written; a writer that dirties it meanwhile
//! puts it back. Pages are written under the inode's write-back lock and never under its data lock, so that
//! writers continue while the device works. Pages that a server may still lose (unstable) are committed
//! later, so their inode stays on the list.

use crate::driver::Next;
use crate::error::{Error, Result, ServerError};
use crate::inode::{DEFERRED_COUNTER, DEFERRED_TIMES, Inode, Logged, Touch};
use crate::run_guard::RunGuard;
use crate::sending::Syncing;
use crate::stats::Stats;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, RankedMutex, rank};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use crate::writeback_error::ErrorCursor;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files whose data may be lost before the device counts as broken. Their inodes stay in memory.
const LOST_FILES_MAX: u64 = 1000;

/// How often lost unstable writes are sent again for one request. A server that loses more is broken.
const SENDS_MAX: u32 = 16;

/// Deferred inode updates are written after this time.
const DEFERRED_MAX: Duration = Duration::from_secs(24 * 3600);

/// The inodes with dirty pages, and the thread that writes them.
pub(crate) struct DirtyList {
    since: RankedMutex<rank::Leaf, BTreeMap<Ino, Instant>>,
    stop: RankedMutex<rank::Leaf, bool>,
    wake: Condvar,
    urgent: AtomicBool,
    thread: RankedMutex<rank::Leaf, Option<JoinHandle<()>>>,
}

impl DirtyList {
    pub(crate) fn new() -> Self {
        Self {
            since: RankedMutex::default(),
            stop: RankedMutex::default(),
            wake: Condvar::new(),
            urgent: AtomicBool::new(false),
            thread: RankedMutex::default(),
        }
    }

    pub(crate) fn start(vfs: &Arc<Vfs>, interval: Duration) -> Result<()> {
        let list = vfs.dirty.clone();
        // Weak: the thread must not keep a filesystem alive that nobody else uses.
        let weak = vfs.me.clone();
        let thread = thread::Builder::new()
            .name("ivers-writeback".into())
            .spawn(move || {
                let mut lazy_flushed = Instant::now();
                loop {
                    {
                        let mut stop = list.stop.lock();
                        if !*stop && !list.urgent.load(Ordering::Acquire) {
                            stop.wait_for(&list.wake, interval);
                        }
                        if *stop {
                            return;
                        }
                    }
                    let Some(vfs) = weak.upgrade() else { return };
                    let urgent = list.urgent.swap(false, Ordering::AcqRel);
                    vfs.write_back_aged(urgent);
                    if lazy_flushed.elapsed() > DEFERRED_MAX {
                        lazy_flushed = Instant::now();
                        if let Err(error) = vfs.flush_inodes() {
                            log::warn!("cannot log deferred inode updates: {error}");
                        }
                    }
                }
            })
            .map_err(|error| Error::Io(format!("cannot start the write-back thread: {error}").into()))?;
        *vfs.dirty.thread.lock() = Some(thread);
        Ok(())
    }

    /// Stops the thread and waits for it, unless this is the thread itself.
    pub(crate) fn stop(&self) {
        *self.stop.lock() = true;
        self.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }

    fn hurry(&self) {
        if !self.urgent.swap(true, Ordering::AcqRel) {
            let _stop = self.stop.lock();
            self.wake.notify_all();
        }
    }

    fn oldest(&self) -> Vec<(Ino, Instant)> {
        let mut all: Vec<_> = self.since.lock().iter().map(|(ino, since)| (*ino, *since)).collect();
        all.sort_by_key(|(_, since)| *since);
        all
    }
}

impl Vfs {
    /// Puts an inode on the list. Call it after pages were marked dirty.
    pub(crate) fn list_dirty(&self, inode: &Inode) {
        if !inode.dirty_listed.swap(true, Ordering::AcqRel) {
            self.dirty.since.lock().entry(inode.ino).or_insert_with(Instant::now);
        }
    }

    pub(crate) fn unlist_dirty(&self, inode: &Inode) {
        let mut since = self.dirty.since.lock();
        since.remove(&inode.ino);
        inode.dirty_listed.store(false, Ordering::Release);
    }

    /// Takes an inode off the list, under its write-back lock and before its pages are written. One with
    /// unstable pages stays: they count as dirty until they are committed, and only the list leads to them.
    fn unlist_to_write(&self, inode: &Inode) {
        if inode.dirty_listed.load(Ordering::Acquire) && !inode.pages.has_unstable() {
            self.unlist_dirty(inode);
        }
    }

    /// Notes that written data may be lost. Under the write-back lock, so that a later flush of the file
    /// finds the error.
    pub(crate) fn note_writeback_error(&self, inode: &Inode, error: &Error) {
        inode.writeback_errors.add(error);
        self.lost();
    }

    /// The device or the server refused data of a file. The file shows what the driver has, and that is a
    /// change. Called under the write-back lock. `ranges` are bytes (offset, length) that were dirty.
    pub(crate) fn note_data_loss(&self, inode: &Inode, ranges: Vec<(u64, u64)>, error: &Error) {
        self.note_writeback_error(inode, error);
        self.note_lost_ranges(inode, &ranges, error);
        inode.writeback_errors.add_lost_ranges(ranges);
        self.failure.note_loss(error);
        if !inode.data_lost.swap(true, Ordering::AcqRel) {
            // The next mount must not serve a value that stood for the lost data.
            if let Some(epochs) = self.fs.epochs() {
                epochs.keep_open();
            }
            // A device that loses this much is broken. A server, or a quota, may refuse files for ever.
            let by_device = matches!(error, Error::FileData(_)) && !inode.is_server_managed();
            if by_device && self.failure.lost_files.fetch_add(1, Ordering::Relaxed) >= LOST_FILES_MAX {
                let why = format!("the device lost data of more than {LOST_FILES_MAX} files");
                self.stop(&Error::Io(why.into()));
            }
        }
        if let Err(error) = self.changed(inode, Touch::Nothing, Logged::IfNeeded) {
            log::warn!("inode {}: cannot log it after data was lost: {error}", inode.ino);
        }
    }

    /// Releases the reservations of lost data. Under the exclusive lock, so that no page is being dirtied.
    #[inline]
    pub(crate) fn release_lost_reservations(&self, inode: &Inode) {
        if inode.data_lost.load(Ordering::Acquire) {
            self.release_ranges_of_lost_data(inode);
        }
    }

    #[cold]
    fn release_ranges_of_lost_data(&self, inode: &Inode) {
        let lost = inode.writeback_errors.take_lost_ranges();
        for (offset, len) in lost {
            if inode.pages.next_dirty(offset, offset + len).is_none() {
                self.fs.unreserve(inode, offset, len);
            }
        }
    }

    pub(crate) fn lost(&self) {
        self.writeback_error_seq.fetch_add(1, Ordering::SeqCst);
    }

    /// How often written data that was not durable yet may have been lost, in any file. If it is the same
    /// before a write and after a flush, nothing was lost.
    pub fn writeback_error_seq(&self) -> u64 {
        self.writeback_error_seq.load(Ordering::SeqCst)
    }

    /// Writes the dirty pages of a byte range to the device. The caller holds the write-back lock.
    pub(crate) fn write_pages(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        self.write_pages_before(inode, from, to, Next::Nothing)
    }

    /// As [`Vfs::write_pages`], and the caller does what is `next` once it has released the write-back lock.
    fn write_pages_before(&self, inode: &Inode, from: u64, to: u64, next: Next) -> Result<()> {
        if inode.is_server_managed() {
            return self.send_pages(inode, from, to, next);
        }
        let mut position = Some(from);
        let mut first_error = None;
        while let Some(from) = position
            && let Some(run) = RunGuard::begin(inode, from, to, &self.memory)
        {
            position = run.next();
            let result = self.retry_without_space(|| self.fs.write_back(inode, run.offset(), run.data()));
            if let Err(error) = self.end_write_back(run, result)? {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Writes an inode back: its pages, then its deferred updates.
    pub(crate) fn write_back_inode(&self, inode: &Inode) -> Result<()> {
        self.write_back_inode_before(inode, Next::Nothing)
    }

    /// As [`Vfs::write_back_inode`], and the caller then does what is `next`.
    fn write_back_inode_before(&self, inode: &Inode, next: Next) -> Result<()> {
        let writeback = inode.writeback_lock.lock();
        self.unlist_to_write(inode);
        self.write_pages_before(inode, 0, u64::MAX, next)?;
        self.flush_inode(inode)?;
        drop(writeback);
        self.catch_up_with_server(inode)
    }

    /// [`Vfs::write_back_inode`], and what the driver may still lose is committed.
    pub(crate) fn write_back_durably(&self, inode: &Inode) -> Result<()> {
        let _syncing = Syncing::begin(inode);
        for _ in 0..SENDS_MAX {
            let redirtied = inode.pages.redirtied();
            self.write_back_inode_before(inode, Next::SyncData)?;
            // Also if nothing is unstable: the driver then closes a file that nobody has open.
            if !inode.is_server_managed() || self.committed(inode, true, redirtied)? {
                return Ok(());
            }
        }
        Err(ServerError::StateLost.into())
    }

    /// Commits what is written back. False: since there were `redirtied` of them, more unstable writes were
    /// lost, and these pages are dirty again.
    fn committed(&self, inode: &Inode, data_only: bool, redirtied: u64) -> Result<bool> {
        let runs = inode.pages.unstable_runs();
        // Data written before may be on the device without a map entry.
        self.fs.fsync(inode, data_only).inspect_err(|_| self.lost())?;
        inode.pages.committed(runs, &self.memory);
        Ok(inode.pages.redirtied() == redirtied)
    }

    /// Logs deferred updates, and what could not be logged before. The caller holds the write-back lock.
    pub(crate) fn flush_inode(&self, inode: &Inode) -> Result<()> {
        let deferred = inode.deferred.swap(0, Ordering::AcqRel);
        let again = inode.needs_log.swap(false, Ordering::AcqRel);
        if deferred != 0 || again {
            if let Err(error) = self.log(inode) {
                inode.deferred.fetch_or(deferred, Ordering::AcqRel);
                return Err(error);
            }
            let stats = self.policy.stats.mine();
            if deferred & DEFERRED_TIMES != 0 {
                Stats::count(&stats.inode_updates_times);
            } else if deferred & DEFERRED_COUNTER != 0 {
                Stats::count(&stats.inode_updates_version);
            }
        }
        Ok(())
    }

    fn pinned(&self, ino: Ino) -> Option<InodeRef> {
        self.inodes.peek(ino).map(|inode| self.counted(inode))
    }

    /// One round of the write-back thread.
    pub(crate) fn write_back_aged(&self, urgent: bool) {
        let expire = self.options().dirty_expire;
        for (ino, since) in self.dirty.oldest() {
            let pressed = urgent || self.memory.dirty_bytes() > self.memory.dirty_limit / 2;
            if !pressed && since.elapsed() < expire {
                break;
            }
            // An inode that is missing here is being evicted and leaves the list with that.
            if let Some(inode) = self.pinned(ino)
                && let Err(error) = self.write_back_durably(&inode)
            {
                log::warn!("write-back of inode {ino} failed: {error}");
            }
        }
    }

    /// Writes all dirty data back, because its reservations may leave no space to others. Returns whether
    /// there was any. Under the locks of other inodes, but not under a write-back lock.
    pub(crate) fn write_back_for_space(&self) -> bool {
        let dirty = self.dirty.oldest();
        for (ino, _) in &dirty {
            if let Some(inode) = self.pinned(*ino)
                && let Err(error) = self.write_back_inode(&inode)
            {
                log::debug!("write-back of inode {ino} for space failed: {error}");
            }
        }
        !dirty.is_empty()
    }

    /// Slows writers down: a writer over the limit of dirty memory writes back itself.
    pub(crate) fn throttle(&self, coming: u64) -> Result<()> {
        let over = |bytes: u64| bytes.saturating_add(coming) > self.memory.dirty_limit;
        if self.memory.dirty_bytes() > self.memory.dirty_limit / 2 && self.options().background {
            self.dirty.hurry();
        }
        if !over(self.memory.dirty_bytes()) {
            return Ok(());
        }
        // Stop some way below the limit, so that not every call searches the list.
        let enough =
            |bytes: u64| bytes == 0 || bytes.saturating_add(coming) <= self.memory.dirty_limit / 4 * 3;
        while over(self.memory.dirty_bytes()) && self.memory.dirty_bytes() > 0 {
            let before = self.memory.dirty_bytes();
            let mut failed = None;
            for (ino, _) in self.dirty.oldest() {
                if let Some(inode) = self.pinned(ino)
                    && let Err(error) = self.write_back_durably(&inode)
                {
                    failed = Some(error);
                }
                if enough(self.memory.dirty_bytes()) {
                    return Ok(());
                }
            }
            if self.memory.dirty_bytes() >= before {
                if let Some(error) = failed {
                    return Err(error);
                }
                // Another thread has taken the inodes off the list and is writing them.
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Logs the deferred updates of all cached inodes.
    pub(crate) fn flush_inodes(&self) -> Result<()> {
        let mut first_error = None;
        for ino in self.inodes.all() {
            let Some(inode) = self.pinned(ino) else { continue };
            if inode.deferred.load(Ordering::Acquire) != 0 || inode.needs_log.load(Ordering::Acquire) {
                let _writeback = inode.writeback_lock.lock();
                if let Err(error) = self.flush_inode(&inode) {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    pub(crate) fn sync_inner(&self) -> Result<()> {
        self.send_deferred_closes();
        let written = self.write_back_all();
        let synced = self.fs.sync().inspect_err(|_| self.lost());
        written.and(synced)
    }

    /// Gives everything that is newer in memory to the driver. Returns the first error.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        let mut first_error = None;
        for (ino, _) in self.dirty.oldest() {
            let Some(inode) = self.pinned(ino) else { continue };
            if let Err(error) = self.write_back_inode(&inode) {
                first_error.get_or_insert(error);
            }
        }
        // Wait for inodes that another thread has just taken off the list, and retry what failed there. Marks
        // are cleared before the log is written, so an inode is clean only if it is unmarked and nobody holds
        // its lock.
        for ino in self.inodes.all() {
            let Some(inode) = self.pinned(ino) else { continue };
            let clean = !inode.pages.has_pages() && !inode.is_dirty();
            if (!clean || inode.writeback_lock.try_lock().is_none())
                && let Err(error) = self.write_back_durably(&inode)
            {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Makes everything durable that changed before the call.
    pub fn sync(&self) -> Result<()> {
        self.alive()?;
        if self.policy.read_only {
            return Ok(());
        }
        self.sync_inner()
    }

    /// Makes one file durable. `data_only` is fdatasync: changed times alone need not be written. Reports a
    /// write-back error once.
    pub fn fsync(&self, inode: &InodeRef, data_only: bool) -> Result<()> {
        self.fsync_for(inode, data_only, None)
    }

    /// A descriptor is closed. Where a server has the file, cached writes are sent, so that the caller learns
    /// of bytes that it refuses; they need not be durable. Local formats keep them, and so does a driver with
    /// a write delegation.
    pub fn flush_descriptor(&self, inode: &InodeRef, cursor: &ErrorCursor) -> Result<()> {
        if self.policy.read_only || !inode.is_server_managed() {
            return Ok(());
        }
        let written =
            if self.is_close_deferred(inode) { Ok(()) } else { self.write_data_back(inode, Next::Nothing) };
        let earlier = inode.writeback_errors.take(Some(cursor));
        written?;
        earlier.map_or(Ok(()), Err)
    }

    /// [`Vfs::fsync`] for a descriptor: reports the write-back errors that this descriptor was not told of.
    pub fn fsync_descriptor(&self, inode: &InodeRef, data_only: bool, cursor: &ErrorCursor) -> Result<()> {
        self.fsync_for(inode, data_only, Some(cursor))
    }

    fn fsync_for(&self, inode: &InodeRef, data_only: bool, cursor: Option<&ErrorCursor>) -> Result<()> {
        self.alive()?;
        if self.policy.read_only {
            return Ok(());
        }
        let _syncing = Syncing::begin(inode);
        for _ in 0..SENDS_MAX {
            let redirtied = inode.pages.redirtied();
            let written = if data_only {
                self.write_data_back(inode, Next::SyncData)
            } else {
                self.write_back_inode_before(inode, Next::Sync)
            };
            let earlier = inode.writeback_errors.take(cursor);
            written?;
            if let Some(error) = earlier {
                return Err(error);
            }
            if self.committed(inode, data_only, redirtied)? {
                return Ok(());
            }
        }
        Err(ServerError::StateLost.into())
    }

    /// Writes the pages of an inode back, and logs it only if that has failed before.
    fn write_data_back(&self, inode: &Inode, next: Next) -> Result<()> {
        let _writeback = inode.writeback_lock.lock();
        self.unlist_to_write(inode);
        self.write_pages_before(inode, 0, u64::MAX, next)?;
        if inode.needs_log.load(Ordering::Acquire) { self.flush_inode(inode) } else { Ok(()) }
    }

    /// Makes names and attributes durable, without the data of files. Pass directories first: with their
    /// names, everything in their transaction is committed. Concurrent callers share a commit where the
    /// driver can.
    pub fn commit(&self, inodes: &[&InodeRef]) -> Result<()> {
        self.alive()?;
        if self.policy.read_only {
            return Ok(());
        }
        for inode in inodes {
            if inode.needs_log.load(Ordering::Acquire) {
                let _writeback = inode.writeback_lock.lock();
                self.flush_inode(inode)?;
            }
            self.fs.commit_inode(inode).inspect_err(|_| self.lost())?;
        }
        Ok(())
    }

    /// Makes the last change of an inode durable if the inode or the mount is marked with one of `by`. Called
    /// without locks.
    pub(crate) fn sync_if_required(&self, inode: &InodeRef, by: InodeFlags) -> Result<()> {
        let marks = self.options().sync_flags | inode.with_attr(|attr| attr.flags);
        if marks.intersects(by) { self.fsync(inode, false) } else { Ok(()) }
    }

    /// Frees memory while over the budget. Takes no inode lock, so it may be called under one.
    pub(crate) fn reclaim(&self) {
        let used = self.memory.budget.used();
        if used > self.memory.budget.allowed() && used > self.memory.no_shrink_up_to.load(Ordering::Relaxed) {
            self.shrink();
        }
    }

    #[cold]
    fn shrink(&self) {
        let limit = self.memory.budget.allowed();
        // One thread shrinks for all while the others continue; far above the limit they wait for it.
        let mut hand = if self.memory.budget.used() > limit.saturating_add(limit / 8) {
            self.shrink_lock.lock()
        } else {
            let Some(hand) = self.shrink_lock.try_lock() else { return };
            hand
        };
        let target = if self.memory.budget.take_emptying() { 0 } else { limit - limit / 16 };
        let shards = self.inodes.shards();
        // Another thread may have done it.
        self.memory.no_shrink_up_to.store(0, Ordering::Relaxed);
        let mut idle_rounds = 0;
        // Stop after rounds without progress: the first may only have cleared marks, and the rest is in use.
        while self.memory.budget.used() > target && idle_rounds < 3 {
            let before = self.memory.budget.used();
            // Blocks first, or they would fill all memory while inodes and names go.
            self.fs.evict_blocks((before - target).div_ceil(2));
            for _ in 0..shards {
                *hand = (*hand + 1) % shards;
                let mut inodes = self.inodes.take_oldest(*hand, 64);
                inodes.retain(|inode| {
                    inode.pages.shrink(1024, &self.memory);
                    !self.try_evict(inode)
                });
                self.inodes.put_back(*hand, &inodes);
                if self.memory.budget.used() <= target {
                    return;
                }
            }
            self.names.shrink(64);
            idle_rounds = if self.memory.budget.used() < before { 0 } else { idle_rounds + 1 };
        }
        let used = self.memory.budget.used();
        if used > limit {
            // The rest is in use. Search again when there is clearly more.
            self.memory.no_shrink_up_to.store(used + limit / 64, Ordering::Relaxed);
        }
    }

    /// Returns whether the inode has left memory.
    fn try_evict(&self, inode: &Arc<Inode>) -> bool {
        // A server's inode reads the same after a reload.
        let lost = inode.data_lost.load(Ordering::Acquire) && !inode.is_server_managed();
        let stays = lost || inode.users.load(Ordering::Acquire) != 0;
        if stays || inode.recent.swap(false, Ordering::Relaxed) {
            return false;
        }
        if inode.is_dirty() {
            let Some(pin) = self.pinned(inode.ino) else { return false };
            if !Arc::ptr_eq(pin.arc(), inode) {
                return false;
            }
            if let Err(error) = self.write_back_durably(&pin) {
                log::warn!("inode {} stays in memory: {error}", inode.ino);
                return false;
            }
        }
        let Some(claim) = self.inodes.claim_unused(inode, |inode| {
            !inode.is_dirty() && (self.policy.read_only || inode.with_attr(|attr| attr.nlink) != 0)
        }) else {
            return false;
        };
        self.evict(inode);
        drop(claim);
        true
    }

    /// Moves the access time after a read, as the mount options say. No change: the update is deferred.
    pub(crate) fn accessed(&self, inode: &Inode) {
        use crate::update_policy::AtimeMode;
        if self.policy.read_only || self.policy.atime == AtimeMode::Never {
            return;
        }
        let now = self.fs.stored_atime(self.policy.now());
        let moved = inode.with_attr(|attr| {
            if attr.flags.contains(InodeFlags::NOATIME) || attr.atime == now {
                return false;
            }
            let old =
                attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= 24 * 3600;
            if self.policy.atime == AtimeMode::Relative && !old {
                return false;
            }
            attr.atime = now;
            true
        });
        if moved {
            inode.deferred.fetch_or(DEFERRED_TIMES, Ordering::Release);
        }
    }
}
