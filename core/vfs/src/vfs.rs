//! The mounted filesystem: how it begins and ends, how inodes are had, and the change attribute.

use crate::access::AclCache;
use crate::api::*;
use crate::dcache::NameCache;
use crate::deletions::Deletions;
use crate::driver::{FileSystem, FsInfo, LoadedInode};
use crate::error::{Error, NameError, Result};
use crate::icache::{Found, InodeCache};
use crate::inode::{Inode, Logged, Touch};
use crate::opens::Watch;
use crate::pages::Memory;
use crate::places::Places;
use crate::policy::{ChangeMode, CoarseClock, HeldBack, Policy};
use crate::stats::{Stats, StatsSnapshot};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::types::*;
use crate::writeback::DirtyList;
use ivers_block::Budget;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// The change counter has 63 bits.
const VERSION_MASK: u64 = u64::MAX >> 1;
/// What an inode costs in memory, its driver's part included, roughly.
pub(crate) const INODE_BYTES: u64 = 1024;

const MOUNTED: u8 = 0;
const UNMOUNTING: u8 = 1;
/// All is written back: what is deleted from here on is left to the next mount.
const CLOSING: u8 = 2;
const UNMOUNTED: u8 = 3;

/// A mounted filesystem. Dropping it without [`Vfs::unmount`] is like a crash: what was not synced may be lost.
pub struct Vfs {
    pub(crate) me: Weak<Vfs>,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) info: FsInfo,
    options: MountOptions,
    pub(crate) policy: Arc<Policy>,
    pub(crate) inodes: InodeCache,
    pub(crate) names: NameCache,
    pub(crate) deletions: Deletions,
    pub(crate) memory: Memory,
    pub(crate) dirty: Arc<DirtyList>,
    /// See [`Vfs::losses`].
    pub(crate) losses: AtomicU64,
    /// Held while a directory moves to another parent; see [`crate::names`].
    pub(crate) move_lock: Mutex<()>,
    pub(crate) shrink_lock: Mutex<usize>,
    state: AtomicU8,
    epoch_raised: AtomicBool,
    #[allow(clippy::type_complexity)]
    subscribers: RwLock<Vec<Box<dyn Fn(&ChangeEvent) + Send + Sync>>>,
    has_subscribers: AtomicBool,
}

/// A counted reference to an inode. While there is one, the inode stays in memory; when the last one to an inode without
/// names goes, the inode is deleted.
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
    /// Mount an opened filesystem.
    pub fn mount(fs: Arc<dyn FileSystem>, mut options: MountOptions) -> Result<Arc<Vfs>> {
        let info = fs.info();
        let read_only = options.read_only || info.read_only.is_some();
        let clock = options.clock.take().unwrap_or_else(|| Box::new(CoarseClock));
        let policy = Arc::new(Policy::new(
            options.mode,
            HeldBack { times: options.lazytime, version: options.lazyversion },
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
        let memory = Memory::new(budget.clone(), dirty_limit.max(64 << 10));
        let dirty = Arc::new(DirtyList::new());
        let background = options.background && !read_only;
        let interval = options.writeback_interval;
        let names = NameCache::new(budget, fs.names_alias(), Places::new(options.watch.is_some()));
        let vfs = Arc::new_cyclic(|me| Vfs {
            me: me.clone(),
            fs,
            info,
            options,
            policy,
            inodes: InodeCache::new(),
            names,
            deletions: Deletions::default(),
            memory,
            dirty: dirty.clone(),
            losses: AtomicU64::new(0),
            move_lock: Mutex::new(()),
            shrink_lock: Mutex::new(0),
            state: AtomicU8::new(MOUNTED),
            epoch_raised: AtomicBool::new(false),
            subscribers: RwLock::new(Vec::new()),
            has_subscribers: AtomicBool::new(false),
        });
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

    /// What the driver said at mount.
    pub fn info(&self) -> &FsInfo {
        &self.info
    }

    /// The options; the clock has moved into the policy.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Who hears of opens and closes.
    pub(crate) fn watch(&self) -> Option<&dyn Watch> {
        self.options.watch.as_deref()
    }

    /// What every inode looks at.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether nothing may change.
    pub fn is_read_only(&self) -> bool {
        self.policy.read_only
    }

    /// The root directory.
    pub fn root(&self) -> Result<InodeRef> {
        self.get(self.info.root)
    }

    /// An inode by its number.
    pub fn get(&self, ino: Ino) -> Result<InodeRef> {
        self.alive()?;
        match self.inodes.find(ino) {
            Found::Ready(inode) => Ok(self.counted(inode)),
            Found::Vacant(claim) => {
                let loaded = self.fs.load_inode(ino)?;
                if loaded.ino != ino {
                    return Err(Error::corrupt(
                        format!("asked for it, got {}", loaded.ino),
                        format!("inode {ino}"),
                    ));
                }
                // Its maker has yet to adopt it (`create_unnamed`): who came by number and let it go again would delete it.
                if loaded.attr.nlink == 0 {
                    return Err(NameError::Stale.into());
                }
                let inode = Arc::new(Inode::new(loaded, self.policy.clone()));
                self.memory.budget.charge(INODE_BYTES);
                Ok(self.counted(claim.fill(inode)))
            }
        }
    }

    /// An inode by number and generation: `Stale` if the number names another life.
    pub fn get_generation(&self, ino: Ino, generation: u32) -> Result<InodeRef> {
        let inode = match self.get(ino) {
            Err(Error::Name(NameError::NotFound)) => return Err(NameError::Stale.into()),
            other => other?,
        };
        if inode.generation != generation { Err(NameError::Stale.into()) } else { Ok(inode) }
    }

    /// Take what `create` made into the cache.
    pub(crate) fn adopt(&self, loaded: LoadedInode) -> Result<InodeRef> {
        match self.inodes.find(loaded.ino) {
            // Somebody loaded it by number between the driver's commit and now.
            Found::Ready(inode) if inode.generation == loaded.generation => Ok(self.counted(inode)),
            Found::Ready(inode) => {
                let place = format!("inode {}", inode.ino);
                drop(self.counted(inode));
                Err(Error::corrupt("a new inode has the number of one in use", place))
            }
            Found::Vacant(claim) => {
                let inode = Arc::new(Inode::new(loaded, self.policy.clone()));
                // Nothing that is inherited is one.
                inode.no_capability.store(true, Ordering::Release);
                if let Some(watch) = self.watch().filter(|_| inode.kind == FileType::Regular) {
                    watch.made(&inode);
                }
                self.memory.budget.charge(INODE_BYTES);
                Ok(self.counted(claim.fill(inode)))
            }
        }
    }

    /// Wrap an inode whose user was counted already.
    pub(crate) fn counted(&self, inode: Arc<Inode>) -> InodeRef {
        let vfs = self.me.upgrade().expect("a Vfs is only reached through its Arc");
        InodeRef { vfs, inode }
    }

    fn release(&self, inode: &Arc<Inode>) {
        if inode.users.fetch_sub(1, Ordering::AcqRel) != 1 || inode.with_attr(|attr| attr.nlink) != 0 {
            return;
        }
        if self.policy.read_only {
            return;
        }
        // It begins before the slot is claimed: who finds a slot busy, and waits for all deletions, waits for this one.
        let deletion = self.deletions.begin();
        // Looked at behind the beginning: closing says so and then waits, so that this is either waited for or sees it. The inode stays an orphan.
        if self.state.load(Ordering::Acquire) >= CLOSING {
            return;
        }
        // Looked at again where nobody can come in any more: somebody may have come by number, given it a name and gone.
        let nameless = |inode: &Inode| inode.with_attr(|attr| attr.nlink) == 0;
        let Some(claim) = self.inodes.claim_unused(inode, nameless) else { return };
        {
            let _writeback = inode.writeback_lock.lock();
            for (offset, len) in inode.pages.drop_pages(0, u64::MAX, &self.memory) {
                self.fs.unreserve(inode, offset, len);
            }
            if let Err(error) = self.fs.delete_inode(inode) {
                log::error!("cannot delete inode {}: {error}", inode.ino);
                // It stays an orphan, with the counter that it has shown.
                if let Err(error) = self.flush_inode(inode) {
                    log::error!("nor log what was put off of it: {error}");
                }
            }
        }
        drop(deletion);
        if let Some(watch) = self.watch() {
            watch.gone(inode.ino);
        }
        self.leave(inode);
        drop(claim);
        self.notify(inode, ChangeKind::Deleted);
    }

    /// What is to be done with every inode that leaves the cache, while its slot is busy.
    pub(crate) fn leave(&self, inode: &Inode) {
        self.fs.forget_inode(inode);
        inode.pages.drop_pages(0, u64::MAX, &self.memory);
        if inode.dirty_listed.load(Ordering::Acquire) {
            self.unlist_dirty(inode);
        }
        self.policy.retire_unstored_version(inode.version.peek());
        if inode.kind == FileType::Directory {
            self.names.forget(inode.ino);
        }
        self.memory.budget.uncharge(INODE_BYTES);
        if !self.info.numbers_last || inode.with_attr(|attr| attr.nlink) == 0 {
            self.names.places.forget(inode.ino);
        }
    }

    // ---- the change attribute -------------------------------------------------------------------------------------

    /// The change attribute, seen from now on: the next change will move it. None: there is no cookie.
    pub fn change(&self, inode: &Inode) -> Option<u64> {
        self.serves().then(|| self.shown(inode.query()))
    }

    /// The change attribute, and the attributes that go with it: none of them is older than the value, and the times are those that it stands for. What a
    /// change under way has made visible already (a size) comes with the value of before: the next question shows another one.
    pub fn observe(&self, inode: &Inode) -> (Option<u64>, Attr) {
        if !self.serves() {
            return (None, self.stat(inode));
        }
        let (value, attr) = inode.observe();
        (Some(self.shown(value)), self.with_promises(inode, attr))
    }

    fn serves(&self) -> bool {
        self.policy.mode != ChangeMode::Off && self.info.no_cookie.is_none() && self.fs.serves_cookie()
    }

    fn shown(&self, queried: u64) -> u64 {
        Stats::count(&self.policy.stats.mine().queries);
        queried.wrapping_add(self.fs.version_base()) & VERSION_MASK
    }

    /// Why there is no cookie now, if there is none. Counts as no look at anything.
    pub fn no_cookie(&self) -> Option<String> {
        if self.policy.mode == ChangeMode::Off {
            return Some("iversion=off".to_owned());
        }
        if let Some(why) = &self.info.no_cookie {
            return Some(why.clone());
        }
        // It may have ceased since the mount.
        (!self.fs.serves_cookie())
            .then(|| self.fs.info().no_cookie.unwrap_or_else(|| "the filesystem serves none now".to_owned()))
    }

    /// What the format stores once the inode is written back, without a look.
    pub fn stored_version(&self, inode: &Inode) -> u64 {
        inode.version.peek()
    }

    /// Bump by force, with the times that `touch` names, and query: for what changed where a front end cannot flush it.
    pub fn force_change(&self, inode: &Inode, touch: Touch) -> Option<u64> {
        self.change(inode)?;
        if inode.changed(touch, Logged::Anyway).must_log() && !self.policy.read_only {
            inode.needs_log.store(true, Ordering::Release);
        }
        self.change(inode)
    }

    // ---- changes ---------------------------------------------------------------------------------------------------

    pub(crate) fn alive(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == UNMOUNTED {
            return Err(Error::Io("the filesystem is unmounted".into()));
        }
        Ok(())
    }

    /// Before any change: whether changes are allowed at all.
    pub(crate) fn begin_change(&self) -> Result<()> {
        if self.policy.read_only {
            return Err(NameError::ReadOnly.into());
        }
        if self.state.load(Ordering::Acquire) != MOUNTED {
            return Err(Error::Io("the filesystem is unmounted".into()));
        }
        if self.policy.mode == ChangeMode::Off && !self.epoch_raised.load(Ordering::Acquire) {
            // Before the change is visible or durable: no value of an earlier mount may vouch for it.
            self.fs.raise_epoch()?;
            self.epoch_raised.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The exclusive lock of an inode that is about to change.
    pub(crate) fn exclusive<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, ()>> {
        let guard = inode.lock.write();
        // Unmounting takes each lock once after it said so: whoever comes later must see it.
        if self.state.load(Ordering::Acquire) != MOUNTED {
            return Err(Error::Io("the filesystem is unmounted".into()));
        }
        Ok(guard)
    }

    pub(crate) fn shared<'a>(&self, inode: &'a Inode) -> Result<RwLockReadGuard<'a, ()>> {
        let guard = inode.lock.read();
        self.alive()?;
        Ok(guard)
    }

    /// The update path for changes that the VFS makes itself: count, bump, log.
    pub(crate) fn changed(&self, inode: &Inode, touch: Touch, logged: Logged) -> Result<()> {
        if inode.changed(touch, logged).must_log() {
            self.log(inode)?;
        }
        Ok(())
    }

    /// Log an inode; if that fails it stays marked and is tried again.
    pub(crate) fn log(&self, inode: &Inode) -> Result<()> {
        let logged = self.fs.log_inode(inode);
        if logged.is_err() {
            inode.needs_log.store(true, Ordering::Release);
        }
        logged
    }

    /// Hear of every change after it completed. Subscribers are called without VFS locks and should be quick.
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

    // ---- figures ---------------------------------------------------------------------------------------------------

    /// The attributes of an inode.
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

    /// Bytes that pages, inodes, names (and buffers that share the budget) take.
    pub fn memory_used(&self) -> u64 {
        self.memory.budget.used()
    }

    /// Inodes in memory.
    pub fn cached_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// Names in memory, those known to be absent included.
    pub fn cached_names(&self) -> usize {
        self.names.len()
    }

    /// Bytes that wait for write-back.
    pub fn dirty_bytes(&self) -> u64 {
        self.memory.dirty_bytes()
    }

    // ---- the end ---------------------------------------------------------------------------------------------------

    /// Write everything back and close the filesystem. Later calls fail; references may live on and do nothing.
    pub fn unmount(&self) -> Result<()> {
        if self.state.compare_exchange(MOUNTED, UNMOUNTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Io("the filesystem is unmounted".into()));
        }
        self.dirty.stop();
        let mut first_error = None;
        if !self.policy.read_only {
            for ino in self.inodes.all() {
                if let Some(inode) = self.inodes.peek(ino) {
                    let inode = self.counted(inode);
                    // Whoever was inside when the state changed finishes before this.
                    drop(inode.lock.write());
                    if let Err(error) = self.write_back_inode(&inode) {
                        first_error.get_or_insert(error);
                    }
                }
            }
            if let Err(error) = self.sync_inner() {
                first_error.get_or_insert(error);
            }
        }
        self.state.store(CLOSING, Ordering::Release);
        // A busy slot was passed over: what was put off of an inode that is being deleted is logged with that, or its number could be given again.
        self.deletions.wait_for_all();
        // Inodes leave before the driver closes: it may keep preallocated blocks beside them.
        for ino in self.inodes.all() {
            if let Some(inode) = self.inodes.peek(ino) {
                inode.users.fetch_sub(1, Ordering::AcqRel);
                if let Some(claim) = self.inodes.claim_unused(&inode, |inode| !inode.is_dirty()) {
                    self.leave(&inode);
                    drop(claim);
                } else {
                    self.fs.forget_inode(&inode);
                }
            }
        }
        self.state.store(UNMOUNTED, Ordering::Release);
        match first_error {
            // Not closed cleanly: the next mount must not believe that nothing was lost.
            Some(error) => {
                log::error!("unmount: {error}");
                Err(error)
            }
            None => self.fs.unmount(),
        }
    }

    pub(crate) fn acl_cache<'a>(&self, inode: &'a Inode) -> &'a AclCache {
        &inode.acl
    }
}

impl Drop for Vfs {
    fn drop(&mut self) {
        self.dirty.stop();
        // A budget that others share must not keep what is gone.
        for ino in self.inodes.all() {
            if let Found::Ready(inode) = self.inodes.find(ino) {
                inode.pages.drop_pages(0, u64::MAX, &self.memory);
                self.memory.budget.uncharge(INODE_BYTES);
            }
        }
        self.names.clear();
    }
}
