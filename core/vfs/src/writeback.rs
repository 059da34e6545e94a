//! Write-back: what is dirty reaches the device by age, by pressure, by `fsync`, by `sync` and at unmount.
//!
//! Background work is no change: nothing here bumps a counter. Inodes with dirty pages stand in one list; an inode is
//! taken off before its pages travel, and whoever dirties it meanwhile puts it back. Each travel is made under the
//! inode's write-back lock and never under its data lock, so that writers go on while the device works.

use crate::error::{Error, Result};
use crate::inode::{Inode, PUT_OFF_TIMES, PUT_OFF_VERSION};
use crate::pages::Memory;
use crate::stats::Stats;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times and counters that are held back are written after this long.
const HELD_BACK_MAX: Duration = Duration::from_secs(24 * 3600);

/// The inodes with dirty pages, and the thread that looks after them.
pub(crate) struct DirtyList {
    since: Mutex<BTreeMap<Ino, Instant>>,
    stop: Mutex<bool>,
    wake: Condvar,
    urgent: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DirtyList {
    pub(crate) fn new() -> Self {
        Self {
            since: Mutex::new(BTreeMap::new()),
            stop: Mutex::new(false),
            wake: Condvar::new(),
            urgent: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    pub(crate) fn start(vfs: &Arc<Vfs>, interval: Duration) -> Result<()> {
        let list = vfs.dirty.clone();
        // Weak: the thread must not keep a filesystem alive that everybody else has dropped.
        let weak = vfs.me.clone();
        let thread = thread::Builder::new()
            .name("ivers-writeback".into())
            .spawn(move || {
                let mut lazy_flushed = Instant::now();
                loop {
                    {
                        let mut stop = list.stop.lock();
                        if !*stop && !list.urgent.load(Ordering::Acquire) {
                            list.wake.wait_for(&mut stop, interval);
                        }
                        if *stop {
                            return;
                        }
                    }
                    let Some(vfs) = weak.upgrade() else { return };
                    let urgent = list.urgent.swap(false, Ordering::AcqRel);
                    vfs.write_back_aged(urgent);
                    if lazy_flushed.elapsed() > HELD_BACK_MAX {
                        lazy_flushed = Instant::now();
                        if let Err(error) = vfs.flush_inodes() {
                            log::warn!("cannot write what was held back: {error}");
                        }
                    }
                }
            })
            .map_err(|error| Error::Io(format!("cannot start the write-back thread: {error}")))?;
        *vfs.dirty.thread.lock() = Some(thread);
        Ok(())
    }

    /// Stop the thread and wait for it (unless it is the one that asks).
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
    /// Put an inode with new dirty pages on the list. Called after the pages were marked.
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

    /// What was written to a file may be lost. Under the write-back lock: whoever flushes the file later finds both.
    pub(crate) fn note_loss(&self, inode: &Inode, error: &Error) {
        *inode.writeback_error.lock() = Some(error.clone());
        self.lost();
    }

    fn lost(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// How often data that was written, and not made durable yet, may have been lost, whoever is told of it. Who reads this before a write and once more
    /// after a flush, and reads the same, has lost nothing.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Write the dirty pages of a byte range to the device. The caller holds the write-back lock.
    pub(crate) fn write_pages(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        let mut from = from;
        while let Some(run) = inode.pages.begin_run(from, to, || inode.size()) {
            let mut pending = RunGuard { inode, memory: &self.memory, run: &run, arrived: false };
            let result = self.fs.write_back(inode, run.offset, &run.data);
            pending.arrived = result.is_ok();
            drop(pending);
            if let Err(error) = result {
                self.note_loss(inode, &error);
                self.list_dirty(inode);
                return Err(error);
            }
            self.policy.stats.mine().written_back_bytes.fetch_add(run.data.len() as u64, Ordering::Relaxed);
            from = run.offset + run.data.len() as u64;
        }
        Ok(())
    }

    /// Write an inode back: its pages, then what of it is not logged.
    pub(crate) fn write_back_inode(&self, inode: &Inode) -> Result<()> {
        let _writeback = inode.writeback_lock.lock();
        if inode.dirty_listed.load(Ordering::Acquire) {
            self.unlist_dirty(inode);
        }
        self.write_pages(inode, 0, u64::MAX)?;
        self.flush_inode(inode)
    }

    /// Log what was put off: times under lazytime, counters under lazyversion, access times, and what failed before. Under the write-back lock.
    pub(crate) fn flush_inode(&self, inode: &Inode) -> Result<()> {
        let put_off = inode.put_off.swap(0, Ordering::AcqRel);
        let again = inode.needs_log.swap(false, Ordering::AcqRel);
        if put_off != 0 || again {
            if let Err(error) = self.log(inode) {
                inode.put_off.fetch_or(put_off, Ordering::AcqRel);
                return Err(error);
            }
            let stats = self.policy.stats.mine();
            if put_off & PUT_OFF_TIMES != 0 {
                Stats::count(&stats.inode_updates_times);
            } else if put_off & PUT_OFF_VERSION != 0 {
                Stats::count(&stats.inode_updates_version);
            }
        }
        Ok(())
    }

    fn pinned(&self, ino: Ino) -> Option<InodeRef> {
        self.inodes.peek(ino).map(|inode| self.counted(inode))
    }

    /// One round of the thread.
    pub(crate) fn write_back_aged(&self, urgent: bool) {
        let expire = self.options().dirty_expire;
        for (ino, since) in self.dirty.oldest() {
            let pressed = urgent || self.memory.dirty_bytes() > self.memory.dirty_limit / 2;
            if !pressed && since.elapsed() < expire {
                break;
            }
            // Not there: it is on its way out, and leaves the list with that.
            if let Some(inode) = self.pinned(ino)
                && let Err(error) = self.write_back_inode(&inode)
            {
                log::warn!("write-back of inode {ino} failed: {error}");
            }
        }
    }

    /// Called by writers: who dirties faster than the device takes helps to write, and so waits.
    pub(crate) fn throttle(&self, coming: u64) -> Result<()> {
        let over = |bytes: u64| bytes.saturating_add(coming) > self.memory.dirty_limit;
        if self.memory.dirty_bytes() > self.memory.dirty_limit / 2 && self.options().background {
            self.dirty.hurry();
        }
        if !over(self.memory.dirty_bytes()) {
            return Ok(());
        }
        // Some way below the limit, so that not every call pays for the search of the list.
        let enough =
            |bytes: u64| bytes == 0 || bytes.saturating_add(coming) <= self.memory.dirty_limit / 4 * 3;
        while over(self.memory.dirty_bytes()) && self.memory.dirty_bytes() > 0 {
            let before = self.memory.dirty_bytes();
            let mut failed = None;
            for (ino, _) in self.dirty.oldest() {
                if let Some(inode) = self.pinned(ino)
                    && let Err(error) = self.write_back_inode(&inode)
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

    /// Log whatever of any cached inode was put off.
    pub(crate) fn flush_inodes(&self) -> Result<()> {
        let mut first_error = None;
        for ino in self.inodes.all() {
            let Some(inode) = self.pinned(ino) else { continue };
            if inode.put_off.load(Ordering::Acquire) != 0 || inode.needs_log.load(Ordering::Acquire) {
                let _writeback = inode.writeback_lock.lock();
                if let Err(error) = self.flush_inode(&inode) {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    pub(crate) fn sync_inner(&self) -> Result<()> {
        let mut first_error = None;
        for (ino, _) in self.dirty.oldest() {
            let Some(inode) = self.pinned(ino) else { continue };
            if let Err(error) = self.write_back_inode(&inode) {
                first_error.get_or_insert(error);
            }
        }
        // Inodes that another thread has just taken off the list: wait for them, and try again what failed there. Marks are cleared
        // before the log, so clean is only what is clean and in nobody's hands.
        for ino in self.inodes.all() {
            let Some(inode) = self.pinned(ino) else { continue };
            let clean = !inode.pages.has_pages() && !inode.is_dirty();
            if (!clean || inode.writeback_lock.try_lock().is_none())
                && let Err(error) = self.write_back_inode(&inode)
            {
                first_error.get_or_insert(error);
            }
        }
        if let Err(error) = self.fs.sync() {
            self.lost();
            first_error.get_or_insert(error);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Make everything durable that was changed before the call.
    pub fn sync(&self) -> Result<()> {
        self.alive()?;
        if self.policy.read_only {
            return Ok(());
        }
        self.sync_inner()
    }

    /// Make one file durable. `data_only` as fdatasync: times alone need not go. Reports a write-back error that was not
    /// reported before.
    pub fn fsync(&self, inode: &InodeRef, data_only: bool) -> Result<()> {
        self.alive()?;
        if self.policy.read_only {
            return Ok(());
        }
        let written = if data_only {
            let _writeback = inode.writeback_lock.lock();
            if inode.dirty_listed.load(Ordering::Acquire) {
                self.unlist_dirty(inode);
            }
            self.write_pages(inode, 0, u64::MAX).and_then(|()| {
                if inode.needs_log.load(Ordering::Acquire) { self.flush_inode(inode) } else { Ok(()) }
            })
        } else {
            self.write_back_inode(inode)
        };
        let earlier = inode.writeback_error.lock().take();
        written?;
        if let Some(error) = earlier {
            return Err(error);
        }
        // What travelled before may be there without its map.
        self.fs.fsync(inode, data_only).inspect_err(|_| self.lost())
    }

    /// Make names and attributes durable as they are, without the files' data. Directories first: with their names everything is committed that
    /// goes with them. Callers at the same time share a commit, where the driver can.
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
            self.fs.commit(inode).inspect_err(|_| self.lost())?;
        }
        Ok(())
    }

    /// What just happened to an inode is durable before the call returns, if the inode or the whole mount is marked with one of `by`.
    /// Under no lock.
    pub(crate) fn settle(&self, inode: &InodeRef, by: InodeFlags) -> Result<()> {
        let marks = self.options().at_once | inode.with_attr(|attr| attr.flags);
        if marks.intersects(by) { self.fsync(inode, false) } else { Ok(()) }
    }

    /// Give memory back while over the budget. Takes no inode lock, so it may be called under one.
    pub(crate) fn balance(&self) {
        if self.memory.budget.over() {
            self.shrink();
        }
    }

    #[cold]
    fn shrink(&self) {
        let limit = self.memory.budget.limit();
        // One shrinks for all, and the others go on; far above the limit they wait for it.
        let mut hand = if self.memory.budget.used() > limit.saturating_add(limit / 8) {
            self.shrink_lock.lock()
        } else {
            let Some(hand) = self.shrink_lock.try_lock() else { return };
            hand
        };
        let target = limit - limit / 16;
        let shards = self.inodes.shards();
        let mut idle_rounds = 0;
        // Two rounds without progress: the first may only have cleared marks. What is left is in use or another's.
        while self.memory.budget.used() > target && idle_rounds < 3 {
            let before = self.memory.budget.used();
            for _ in 0..shards {
                *hand = (*hand + 1) % shards;
                for inode in self.inodes.rotate(*hand, 64) {
                    inode.pages.shrink(1024, &self.memory);
                    self.try_evict(&inode);
                }
                if self.memory.budget.used() <= target {
                    return;
                }
            }
            self.names.shrink(64);
            idle_rounds = if self.memory.budget.used() < before { 0 } else { idle_rounds + 1 };
        }
    }

    fn try_evict(&self, inode: &Arc<Inode>) {
        if inode.users.load(Ordering::Acquire) != 0 || inode.recent.swap(false, Ordering::Relaxed) {
            return;
        }
        if inode.is_dirty() {
            let Some(pin) = self.pinned(inode.ino) else { return };
            if !Arc::ptr_eq(pin.arc(), inode) {
                return;
            }
            if let Err(error) = self.write_back_inode(&pin) {
                log::warn!("inode {} stays in memory: {error}", inode.ino);
                return;
            }
        }
        if let Some(claim) = self.inodes.claim_unused(inode, |inode| {
            !inode.is_dirty() && (self.policy.read_only || inode.with_attr(|attr| attr.nlink) != 0)
        }) {
            self.leave(inode);
            drop(claim);
        }
    }

    /// Read access: move the access time as the mount says. No change: lazily kept, written with the next log.
    pub(crate) fn accessed(&self, inode: &Inode) {
        use crate::policy::AtimeMode;
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
            inode.put_off.fetch_or(PUT_OFF_TIMES, Ordering::Release);
        }
    }
}

/// Gives a run's pages back as dirty if the driver unwinds.
struct RunGuard<'a> {
    inode: &'a Inode,
    memory: &'a Memory,
    run: &'a crate::pages::Run,
    arrived: bool,
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        self.inode.pages.end_run(self.run, self.arrived, self.memory);
    }
}
