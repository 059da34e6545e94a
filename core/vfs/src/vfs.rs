//! A mounted filesystem: mount and unmount, access to inodes, and the change attribute.

use crate::dcache::NameCache;
use crate::driver::{CacheHandle, EpochOps, FileSystem, FsInfo, JournalOps, LoadedInode};
use crate::error::{Error, NameError, Result, ServerError};
use crate::failure::Failure;
use crate::icache::{Found, InodeCache};
use crate::inode::{Inode, Logged, Touch};
use crate::locks::LockListener;
use crate::lost_data::{LossListener, LostData};
use crate::memory::Memory;
use crate::open_hooks::FileObserver;
use crate::pages::{PAGE, RUN_PAGES};
use crate::path_hints::PathHints;
use crate::pending_deletes::PendingDeletes;
use crate::remembered::Remembered;
use crate::requests::*;
use crate::stats::{Stats, StatsSnapshot};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{RankedMutex, RankedReadGuard, RankedRwLock, RankedWriteGuard, rank};
use crate::types::*;
use crate::update_policy::{ChangeMode, CoarseClock, DeferredUpdates, Policy};
use crate::writeback::DirtyList;
use ivers_block::Budget;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

fn unmounted() -> Error {
    Error::Io("the filesystem is unmounted".into())
}

/// The change counter has 63 bits.
const COUNTER_MASK: u64 = u64::MAX >> 1;
/// Memory of one inode in bytes, including what its driver keeps and its entries in the cache:
/// that of ext4, with what the allocator adds.
pub(crate) const INODE_BYTES: u64 = 600;

const MOUNTED: u8 = 0;
const UNMOUNTING: u8 = 1;
/// Everything is written back. An orphan released from here on is deleted by the next mount.
const CLOSING: u8 = 2;
const UNMOUNTED: u8 = 3;

/// A mounted filesystem. Dropping it without [`Vfs::unmount`] is like a crash: what was not synced may be
/// lost.
pub struct Vfs {
    pub(crate) me: Weak<Vfs>,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) info: FsInfo,
    options: MountOptions,
    pub(crate) policy: Arc<Policy>,
    pub(crate) inodes: InodeCache,
    pub(crate) names: NameCache,
    pub(crate) remembered: Remembered,
    pub(crate) pending_deletes: PendingDeletes,
    pub(crate) failure: Failure,
    pub(crate) memory: Memory,
    pub(crate) dirty: Arc<DirtyList>,
    /// See [`Vfs::writeback_error_seq`].
    pub(crate) writeback_error_seq: AtomicU64,
    /// Held while a directory moves to another parent; see [`crate::namespace`].
    pub(crate) move_lock: RankedMutex<rank::MoveLock, ()>,
    pub(crate) shrink_lock: RankedMutex<rank::ShrinkLock, usize>,
    state: AtomicU8,
    epoch_raised: AtomicBool,
    #[allow(clippy::type_complexity)]
    subscribers: RankedRwLock<rank::Subscribers, Vec<Box<dyn Fn(&ChangeEvent) + Send + Sync>>>,
    has_subscribers: AtomicBool,
    pub(crate) lock_listener: OnceLock<LockListener>,
    pub(crate) lost_data: LostData,
    pub(crate) loss_listener: OnceLock<LossListener>,
}

/// A counted reference to an inode. It keeps the inode in memory. When the last reference to an orphan is
/// dropped, the inode is deleted.
pub struct InodeRef {
    vfs: Arc<Vfs>,
    inode: Arc<Inode>,
}

impl InodeRef {
    pub(crate) fn arc(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        self.inode.users.fetch_add(1, Ordering::Relaxed);
        Self { vfs: self.vfs.clone(), inode: self.inode.clone() }
    }
}

impl Deref for InodeRef {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.vfs.release(&self.inode);
    }
}

impl std::fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {} generation {}", self.inode.ino, self.inode.generation)
    }
}

impl Vfs {
    /// Mounts an opened filesystem.
    pub fn mount(fs: Arc<dyn FileSystem>, mut options: MountOptions) -> Result<Arc<Vfs>> {
        let info = fs.info();
        let read_only = options.read_only || fs.health().read_only.is_some();
        let clock = options.clock.take().unwrap_or_else(|| Box::new(CoarseClock));
        let keeps_epoch = fs.epochs().is_some() && fs.health().no_change_attribute.is_none();
        let defers_bumps = options.mode == ChangeMode::Lazy && options.lazyversion.unwrap_or(keeps_epoch);
        let policy = Arc::new(Policy::new(
            options.mode,
            DeferredUpdates { times: options.lazytime, counter: defers_bumps },
            options.atime,
            read_only,
            clock,
            info.time_granularity_ns,
        ));
        let budget = options.budget.clone().unwrap_or_else(|| Arc::new(Budget::new(options.cache_bytes)));
        let dirty_limit = match options.dirty_bytes {
            0 => budget.limit() / 2,
            bytes => bytes.min(budget.limit() / 2),
        };
        let unit = u64::from(info.io_unit);
        if !unit.is_power_of_two() || !(PAGE as u64..=(RUN_PAGES * PAGE) as u64).contains(&unit) {
            let supported = format!("a power of two from {PAGE} to {}", RUN_PAGES * PAGE);
            return Err(Error::Incompatible(format!("blocks of {unit} bytes; this must be {supported}")));
        }
        let memory = Memory::new(budget.clone(), dirty_limit.max(64 << 10), unit);
        let dirty = Arc::new(DirtyList::new());
        let background = options.background && !read_only;
        let interval = options.writeback_interval;
        // A server changes names outside the cache: they are valid while the directory's change attribute is
        // the same.
        let validated = info.names_alias || fs.server().is_some();
        let remembered = Remembered::new(budget.clone());
        let names = NameCache::new(budget, validated, PathHints::new(options.observer.is_some()));
        let vfs = Arc::new_cyclic(|me| Vfs {
            me: me.clone(),
            fs,
            info,
            options,
            policy,
            inodes: InodeCache::new(),
            names,
            remembered,
            pending_deletes: PendingDeletes::default(),
            failure: Failure::default(),
            memory,
            dirty: dirty.clone(),
            writeback_error_seq: AtomicU64::new(0),
            move_lock: RankedMutex::default(),
            shrink_lock: RankedMutex::default(),
            state: AtomicU8::new(MOUNTED),
            epoch_raised: AtomicBool::new(false),
            subscribers: RankedRwLock::new(Vec::new()),
            has_subscribers: AtomicBool::new(false),
            lock_listener: OnceLock::new(),
            lost_data: LostData::default(),
            loss_listener: OnceLock::new(),
        });
        vfs.fs.mounted(CacheHandle(vfs.me.clone()));
        let root = vfs.root()?;
        if root.kind != FileType::Directory {
            return Err(Error::corrupt("the root is not a directory", format!("inode {}", root.ino)));
        }
        drop(root);
        if background {
            DirtyList::start(&vfs, interval)?;
        }
        Ok(vfs)
    }

    /// The driver.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// What never changes while it is mounted.
    pub fn info(&self) -> &FsInfo {
        &self.info
    }

    /// The mount options. The clock has moved into the policy.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Who is told of opens and closes.
    pub(crate) fn observer(&self) -> Option<&dyn FileObserver> {
        self.options.observer.as_deref()
    }

    /// The settings that every inode uses.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether it was mounted read-only. [`Vfs::health`] also knows of failures since.
    pub fn is_read_only(&self) -> bool {
        self.policy.read_only
    }

    /// The root directory.
    pub fn root(&self) -> Result<InodeRef> {
        self.get(self.info.root)
    }

    /// The inode with this number.
    pub fn get(&self, ino: Ino) -> Result<InodeRef> {
        self.alive()?;
        match self.inodes.find(ino) {
            Found::Ready(inode) => Ok(self.counted(inode)),
            Found::Vacant(claim) => {
                let loaded = self.fs.load_inode(ino)?;
                if loaded.ino != ino {
                    return Err(Error::corrupt(
                        format!("the driver returned inode {}", loaded.ino),
                        format!("inode {ino}"),
                    ));
                }
                // An unnamed file that its creator has not inserted yet. If this caller took and released it,
                // it would be deleted.
                if loaded.attr.nlink == 0 {
                    return Err(NameError::Stale.into());
                }
                let inode = Arc::new(Inode::new(loaded, self.policy.clone()));
                self.restore_counter(&inode);
                self.memory.budget.charge(INODE_BYTES);
                Ok(self.counted(claim.fill(inode)))
            }
        }
    }

    /// The inode with this number and generation. `Stale` if the number belongs to another inode now. Called
    /// without locks.
    pub fn get_generation(&self, ino: Ino, generation: u32) -> Result<InodeRef> {
        // A client that goes through the files by number makes no other call that frees memory.
        self.reclaim();
        let inode = match self.get(ino) {
            Err(Error::Name(NameError::NotFound)) => return Err(NameError::Stale.into()),
            other => other?,
        };
        if inode.generation != generation { Err(NameError::Stale.into()) } else { Ok(inode) }
    }

    /// Puts an inode that a server's lookup returned into the cache, unless it is there. `Stale` if the inode
    /// that is there has another generation.
    pub(crate) fn insert_loaded(&self, loaded: LoadedInode) -> Result<InodeRef> {
        match self.inodes.find(loaded.ino) {
            Found::Ready(inode) => {
                let inode = self.counted(inode);
                if inode.generation == loaded.generation { Ok(inode) } else { Err(NameError::Stale.into()) }
            }
            Found::Vacant(claim) => {
                let inode = Arc::new(Inode::new(loaded, self.policy.clone()));
                self.memory.budget.charge(INODE_BYTES);
                Ok(self.counted(claim.fill(inode)))
            }
        }
    }

    /// Puts an inode that the driver has just created into the cache.
    pub(crate) fn insert_new(&self, loaded: LoadedInode) -> Result<InodeRef> {
        match self.inodes.find(loaded.ino) {
            // Another thread loaded it by number after the driver's commit.
            Found::Ready(inode) if inode.generation == loaded.generation => Ok(self.counted(inode)),
            Found::Ready(inode) => {
                let place = format!("inode {}", inode.ino);
                drop(self.counted(inode));
                Err(Error::corrupt("a new inode has the number of one in use", place))
            }
            Found::Vacant(claim) => {
                let inode = Arc::new(Inode::new(loaded, self.policy.clone()));
                // A new inode inherits no file capability.
                inode.no_capability.store(true, Ordering::Relaxed);
                if let Some(observer) = self.observer().filter(|_| inode.kind == FileType::Regular) {
                    observer.on_create(&inode);
                }
                self.memory.budget.charge(INODE_BYTES);
                Ok(self.counted(claim.fill(inode)))
            }
        }
    }

    /// A reference to an inode whose user is already counted.
    pub(crate) fn counted(&self, inode: Arc<Inode>) -> InodeRef {
        let vfs = self.me.upgrade().expect("a Vfs is only reached through its Arc");
        InodeRef { vfs, inode }
    }

    fn release(&self, inode: &Arc<Inode>) {
        if inode.users.fetch_sub(1, Ordering::AcqRel) != 1 || inode.with_attr(|attr| attr.nlink) != 0 {
            return;
        }
        // A front end that remembers it may still use it. Its last reference deletes it.
        if self.policy.read_only || self.remembered.contains(inode.ino) {
            return;
        }
        // Begin before the slot is claimed: a thread that finds the slot busy and waits for all deletions
        // must wait for this one.
        let deletion = self.pending_deletes.begin();
        // Look after the beginning: unmount first sets the state and then waits, so it either waits for this
        // deletion or this deletion sees the state. The inode stays an orphan.
        if self.state.load(Ordering::Acquire) >= CLOSING {
            return;
        }
        // Look again now that nobody can take a reference: another thread may have found it by number, linked
        // it and left.
        let nameless = |inode: &Inode| inode.with_attr(|attr| attr.nlink) == 0;
        let Some(claim) = self.inodes.claim_unused(inode, nameless) else { return };
        {
            let _writeback = inode.writeback_lock.lock();
            for (offset, len) in inode.pages.drop_pages(0, u64::MAX, &self.memory) {
                self.fs.unreserve(inode, offset, len);
            }
            self.release_lost_reservations(inode);
            if let Err(error) = self.guarded(|| self.fs.delete_inode(inode)) {
                log::error!("cannot delete inode {}: {error}", inode.ino);
                // It stays an orphan, with the counter value that it has shown.
                if let Err(error) = self.flush_inode(inode) {
                    log::error!("inode {}: cannot log deferred inode updates: {error}", inode.ino);
                }
            }
        }
        drop(deletion);
        if let Some(observer) = self.observer() {
            observer.on_delete(inode.ino);
        }
        self.evict(inode);
        drop(claim);
        self.notify(inode, ChangeKind::Deleted);
    }

    /// Releases everything that belongs to an inode which leaves the cache. Its slot is busy.
    pub(crate) fn evict(&self, inode: &Inode) {
        self.fs.evict_inode(inode);
        inode.pages.drop_pages(0, u64::MAX, &self.memory);
        if inode.dirty_listed.load(Ordering::Acquire) {
            self.unlist_dirty(inode);
        }
        self.policy.retire_unstored_counter(inode.counter.peek());
        if inode.counter_not_stored {
            self.remembered.keep_counter(inode.ino, inode.counter.peek());
        }
        if inode.kind == FileType::Directory {
            self.names.forget(inode.ino);
        }
        self.memory.budget.uncharge(INODE_BYTES);
        let is_removed = inode.with_attr(|attr| attr.nlink) == 0;
        if !self.info.persistent_inos || is_removed {
            self.names.path_hints.forget(inode.ino);
        }
        if is_removed {
            self.lost_data.forget(inode.ino, 0..u64::MAX);
        }
        self.release_ino(inode.ino);
    }

    // ---- the change attribute ----------------------------------------------------------------------------

    /// Queries the change attribute: the next change will raise it. `None`: there is no change attribute. A
    /// server's inode is queried without its lock: written data and the question go to the server.
    pub fn change(&self, inode: &Inode) -> Option<u64> {
        if !self.serves() || self.settle_with_server(inode).is_err() {
            return None;
        }
        Some(self.attribute_of(inode, inode.query()))
    }

    /// As [`Vfs::change`] for several inodes. Returns one value for each. One request to a server may ask for
    /// many.
    pub fn changes(&self, inodes: &[InodeRef]) -> Vec<Option<u64>> {
        if !self.serves() {
            return vec![None; inodes.len()];
        }
        let settled = self.settle_many_with_server(inodes);
        let one = |(inode, settled): (&InodeRef, Result<()>)| {
            settled.is_ok().then(|| self.attribute_of(inode, inode.query()))
        };
        inodes.iter().zip(settled).map(one).collect()
    }

    /// Queries the change attribute together with the attributes. No attribute is older than the value, and
    /// the times belong to it. A change that is still running may already show (a size): then the next query
    /// returns another value.
    pub fn observe(&self, inode: &Inode) -> (Option<u64>, Attr) {
        let is_settled = self.serves() && self.settle_with_server(inode).is_ok();
        self.observe_settled(inode, is_settled)
    }

    /// As [`Vfs::observe`] for several inodes. One request to a server may ask for many. An inode is observed
    /// when its item is taken.
    pub fn observe_many<'a>(
        &'a self,
        inodes: &'a [InodeRef],
    ) -> impl Iterator<Item = (Option<u64>, Attr)> + use<'a> {
        let settled = if self.serves() { self.settle_many_with_server(inodes) } else { Vec::new() };
        let mut settled = settled.into_iter();
        let is_next_settled = move || settled.next().is_some_and(|settled| settled.is_ok());
        let is_settled = std::iter::repeat_with(is_next_settled);
        inodes.iter().zip(is_settled).map(|(inode, is_settled)| self.observe_settled(inode, is_settled))
    }

    fn observe_settled(&self, inode: &Inode, is_settled: bool) -> (Option<u64>, Attr) {
        if !is_settled {
            return (None, self.stat(inode));
        }
        let (value, attr) = inode.observe();
        (Some(self.attribute_of(inode, value)), self.with_promises(inode, attr))
    }

    fn serves(&self) -> bool {
        self.policy.mode != ChangeMode::Off
            && !self.failure.has_stopped()
            && self.fs.serves_change_attribute()
    }

    /// The change attribute for a queried counter.
    fn attribute_of(&self, inode: &Inode, queried: u64) -> u64 {
        Stats::count(&self.policy.stats.mine().queries);
        if inode.is_server_managed() {
            return queried;
        }
        let base = self.fs.epochs().map_or(0, EpochOps::base);
        queried.wrapping_add(base) & COUNTER_MASK
    }

    /// Why no change attribute is served now, if so.
    pub fn no_change_attribute(&self) -> Option<String> {
        if self.serves() { None } else { self.health().no_change_attribute }
    }

    /// The counter that the format stores once the inode is written back. Not a query.
    pub fn stored_counter(&self, inode: &Inode) -> u64 {
        inode.counter.peek()
    }

    /// Bumps by force, moves the times that `touch` names, and queries. For changes that a front end cannot
    /// flush.
    pub fn force_change(&self, inode: &Inode, touch: Touch) -> Option<u64> {
        self.change(inode)?;
        Stats::count(&self.policy.stats.mine().bumps_forced);
        if inode.changed(touch, Logged::Anyway).must_log() && !self.policy.read_only {
            inode.needs_log.store(true, Ordering::Release);
        }
        self.change(inode)
    }

    // ---- changes -----------------------------------------------------------------------------------------

    pub(crate) fn alive(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == UNMOUNTED {
            return Err(unmounted());
        }
        Ok(())
    }

    /// Checks that changes are allowed at all. Called before every change.
    #[inline]
    pub(crate) fn begin_change(&self) -> Result<()> {
        if self.policy.read_only || self.failure.has_stopped() {
            return Err(NameError::ReadOnly.into());
        }
        if self.state.load(Ordering::Acquire) != MOUNTED {
            return Err(unmounted());
        }
        if self.policy.mode == ChangeMode::Off && !self.epoch_raised.load(Ordering::Acquire) {
            // Before the change is visible or durable, so that no value of an earlier mount vouches for it.
            if let Some(epochs) = self.fs.epochs() {
                self.guarded(|| epochs.raise())?;
            }
            self.epoch_raised.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The exclusive lock of an inode that is about to change.
    pub(crate) fn exclusive<'a>(&self, inode: &'a Inode) -> Result<RankedWriteGuard<'a, ()>> {
        let guard = inode.lock.write();
        // Unmount sets the state and then takes each lock once: a thread that gets the lock later must see
        // the state.
        if self.state.load(Ordering::Acquire) != MOUNTED {
            return Err(unmounted());
        }
        Ok(guard)
    }

    pub(crate) fn shared<'a>(&self, inode: &'a Inode) -> Result<RankedReadGuard<'a, ()>> {
        let guard = inode.lock.read();
        self.alive()?;
        Ok(guard)
    }

    /// The update path for changes that the VFS makes itself: bumps and logs.
    #[inline]
    pub(crate) fn changed(&self, inode: &Inode, touch: Touch, logged: Logged) -> Result<()> {
        if inode.changed(touch, logged).must_log() {
            self.log(inode)?;
        } else if inode.is_server_managed() {
            self.changed_in_cache(inode, touch);
        }
        Ok(())
    }

    /// Logs an inode. If that fails, the inode stays marked and is logged later.
    pub(crate) fn log(&self, inode: &Inode) -> Result<()> {
        let logged = self.guarded(|| self.fs.log_inode(inode));
        if logged.is_err() {
            inode.needs_log.store(true, Ordering::Release);
        }
        logged
    }

    /// Calls `subscriber` after every change. It runs without VFS locks and must be quick.
    pub fn subscribe(&self, subscriber: Box<dyn Fn(&ChangeEvent) + Send + Sync>) {
        self.subscribers.write().push(subscriber);
        self.has_subscribers.store(true, Ordering::Release);
    }

    pub(crate) fn notify(&self, inode: &Inode, kind: ChangeKind) {
        if self.has_subscribers.load(Ordering::Acquire) {
            let event = ChangeEvent { ino: inode.ino, generation: inode.generation, kind };
            for subscriber in self.subscribers.read().iter() {
                subscriber(&event);
            }
        }
    }

    // ---- figures -----------------------------------------------------------------------------------------

    /// The attributes of an inode, current also where a server owns it.
    pub fn get_attr(&self, cred: &Cred, inode: &Inode) -> Result<Attr> {
        self.settle_times_with_server(inode);
        self.revalidate(cred, inode)?;
        Ok(self.stat(inode))
    }

    /// The attributes of an inode as they are cached.
    pub fn stat(&self, inode: &Inode) -> Attr {
        self.with_promises(inode, inode.attr())
    }

    fn with_promises(&self, inode: &Inode, attr: Attr) -> Attr {
        Attr { blocks_512: self.fs.blocks_512(inode), ..attr }
    }

    /// Free space.
    pub fn stat_fs(&self) -> Result<StatFs> {
        self.alive()?;
        self.fs.stat_fs()
    }

    /// The counters of this mount.
    pub fn stats(&self) -> StatsSnapshot {
        self.policy.stats.snapshot()
    }

    /// Memory of pages, inodes, names, and of buffers that share the budget, in bytes.
    pub fn memory_used(&self) -> u64 {
        self.memory.budget.used()
    }

    /// (blocks, bytes) that the journal has written; zeros without a journal.
    pub fn journal_written(&self) -> (u64, u64) {
        self.fs.journal().map_or((0, 0), JournalOps::written)
    }

    /// Name and value of every counter of the mount: those of [`Vfs::stats`], what the journal has written
    /// (zeros without a journal), what the device was asked for (absent without
    /// [`MountOptions::io_counts`]), and those of the driver. The names are stable: users see them.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.stats().fields();
        let (blocks, bytes) = self.journal_written();
        counters.extend([("journal_blocks", blocks), ("journal_bytes", bytes)]);
        counters.extend(self.options.io_counts.iter().flat_map(|counts| counts.fields()));
        counters.extend(self.fs.counters());
        counters
    }

    /// Inodes in memory.
    pub fn cached_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// Cached names, including those known to be absent.
    pub fn cached_names(&self) -> usize {
        self.names.len()
    }

    /// Bytes that wait for write-back.
    pub fn dirty_bytes(&self) -> u64 {
        self.memory.dirty_bytes()
    }

    // ---- the end -----------------------------------------------------------------------------------------

    /// Writes everything back and closes the filesystem. Later calls fail; references may be kept and do
    /// nothing.
    pub fn unmount(&self) -> Result<()> {
        if self.state.compare_exchange(MOUNTED, UNMOUNTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(unmounted());
        }
        self.dirty.stop();
        let mut first_error = None;
        let mut note = |error: Error| {
            if matches!(error, Error::Server(ServerError::Timeout)) {
                // A server that has let one request time out is not waited for again: each of many files
                // would take as long.
                self.fs.stop_waiting();
            }
            first_error.get_or_insert(error);
        };
        if !self.policy.read_only {
            self.send_deferred_closes();
            for ino in self.inodes.all() {
                if let Some(inode) = self.inodes.peek(ino) {
                    let inode = self.counted(inode);
                    // Calls that were running when the state changed end before this.
                    drop(inode.lock.write());
                    if let Err(error) = self.write_back_inode(&inode) {
                        note(error);
                    }
                    self.reclaim();
                }
            }
            // Closing the filesystem makes it durable: below. A server keeps it, whatever happens then.
            let written = if self.fs.server().is_some() { self.sync_inner() } else { self.write_back_all() };
            if let Err(error) = written {
                note(error);
            }
            self.report_lost_data();
        }
        self.state.store(CLOSING, Ordering::Release);
        // Busy slots were skipped. The deferred update of an inode that is being deleted is logged by its
        // deletion; otherwise a value could be served twice.
        self.pending_deletes.wait_for_all();
        // Evict before the driver closes: it may keep preallocated blocks with inodes.
        for ino in self.inodes.all() {
            if let Some(inode) = self.inodes.peek(ino) {
                inode.users.fetch_sub(1, Ordering::AcqRel);
                if let Some(claim) = self.inodes.claim_unused(&inode, |inode| !inode.is_dirty()) {
                    self.evict(&inode);
                    drop(claim);
                } else {
                    self.fs.evict_inode(&inode);
                }
            }
        }
        self.state.store(UNMOUNTED, Ordering::Release);
        // The last commit and checkpoint need memory, and nothing reclaims any while they run.
        self.names.clear();
        self.fs.evict_blocks(u64::MAX);
        // After damage, or if something could not be written, the next mount must not find the filesystem
        // clean. A server is left in any case: it has state of this client.
        let intact = !self.failure.has_stopped()
            && matches!(first_error, None | Some(Error::FileData(_) | Error::DataRefused(_)));
        let closed = if intact || self.fs.server().is_some() {
            self.fs.unmount()
        } else if self.policy.read_only {
            Ok(())
        } else {
            self.fs.sync().inspect_err(|_| self.lost())
        };
        let result = first_error.map_or(closed, Err);
        result.inspect_err(|error| log::error!("unmount: {error}"))
    }
}

impl Drop for Vfs {
    fn drop(&mut self) {
        self.dirty.stop();
        // A shared budget must not stay charged for this filesystem.
        for ino in self.inodes.all() {
            if let Found::Ready(inode) = self.inodes.find(ino) {
                inode.pages.drop_pages(0, u64::MAX, &self.memory);
                self.memory.budget.uncharge(INODE_BYTES);
            }
        }
        self.names.clear();
        self.remembered.clear();
    }
}
