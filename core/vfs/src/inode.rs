//! The inode in memory and the update path: when a change bumps the counter and when it dirties the inode.

use crate::access::AclCache;
use crate::driver::{InitialVersion, LoadedInode};
use crate::error::Error;
use crate::pages::Pages;
use crate::policy::{ChangeMode, Policy};
use crate::stats::Stats;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::types::*;
use iversion::Counter;
use std::any::Any;
use std::sync::Arc;

/// Whether the inode goes to the log whatever the counter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logged {
    /// The same transaction logs the inode anyway: bump by force, it costs nothing more.
    Anyway,
    /// Log only if a time moved or somebody looked.
    IfNeeded,
}

/// Which times a change moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// mtime and ctime: data, or the names of a directory.
    Data,
    /// ctime alone: attributes, links.
    Metadata,
    /// None: the caller has set the times itself.
    Nothing,
}

/// Times that `lazytime` holds back, and those of access.
pub(crate) const PUT_OFF_TIMES: u8 = 1;

/// A counter that was raised because somebody had looked, which `lazyversion` holds back. It reaches the log before the filesystem is closed in good
/// order; where that does not happen [the epoch](crate::epoch) makes every number another one.
pub(crate) const PUT_OFF_VERSION: u8 = 2;

/// What a change asks of the one who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dirtied {
    /// Nothing: no time moved and nobody had looked.
    No,
    /// Only what may wait: times that `lazytime` holds back, the counter that `lazyversion` does. Nothing to log now.
    Later,
    /// The inode must be logged.
    Log,
}

impl Dirtied {
    /// True if the inode must be logged now.
    pub fn must_log(self) -> bool {
        self == Dirtied::Log
    }
}

/// An inode in memory. At most one a number exists in a mount at any time.
pub struct Inode {
    /// Its number.
    pub ino: Ino,
    /// Tells lives of one number apart.
    pub generation: u32,
    /// What it is.
    pub kind: FileType,
    /// The change counter, without the epoch. Query it through [`crate::Vfs`] alone: the look and the change meet
    /// under the attributes' lock.
    pub version: Counter,
    /// The data and names lock (rank: see [`crate::driver`]).
    pub lock: RwLock<()>,
    pub(crate) attr: Mutex<Attr>,
    pub(crate) pages: Pages,
    /// What is newer in memory than in the log and may stay so until the inode is logged for another reason or written back: [`PUT_OFF_TIMES`],
    /// [`PUT_OFF_VERSION`].
    pub(crate) put_off: AtomicU8,
    /// Users outside the cache: lookups, open files, front-end references.
    pub(crate) users: AtomicU64,
    pub(crate) policy: Arc<Policy>,
    /// Held while pages travel to the device (rank: below `lock`, above the page map).
    pub(crate) writeback_lock: Mutex<()>,
    /// Set while the inode is in the mount's list of inodes with dirty pages.
    pub(crate) dirty_listed: AtomicBool,
    /// Logging failed or was put off: to be done again.
    pub(crate) needs_log: AtomicBool,
    /// A write-back error that no fsync has reported yet.
    pub(crate) writeback_error: Mutex<Option<Error>>,
    /// Found since eviction last looked.
    pub(crate) recent: AtomicBool,
    /// Tells entries of the eviction queue apart.
    pub(crate) cache_id: AtomicU64,
    pub(crate) acl: AclCache,
    /// Known to have no `security.capability` that a write would have to remove.
    pub(crate) no_capability: AtomicBool,
    /// Made without a name, and may get one. What has lost its last name may not.
    pub(crate) awaits_name: AtomicBool,
    private: Box<dyn Any + Send + Sync>,
}

impl Inode {
    /// Build the inode that a driver decoded.
    pub fn new(loaded: LoadedInode, policy: Arc<Policy>) -> Self {
        let version = match loaded.version {
            InitialVersion::Stored(value) => Counter::new_queried(value),
            InitialVersion::Fresh(value) => Counter::new(value),
            InitialVersion::NotStored => Counter::new(policy.next_unstored_version()),
        };
        Self {
            ino: loaded.ino,
            generation: loaded.generation,
            kind: loaded.attr.kind,
            version,
            lock: RwLock::new(()),
            attr: Mutex::new(loaded.attr),
            pages: Pages::default(),
            put_off: AtomicU8::new(0),
            users: AtomicU64::new(0),
            policy,
            writeback_lock: Mutex::new(()),
            dirty_listed: AtomicBool::new(false),
            needs_log: AtomicBool::new(false),
            writeback_error: Mutex::new(None),
            recent: AtomicBool::new(false),
            cache_id: AtomicU64::new(0),
            acl: AclCache::default(),
            no_capability: AtomicBool::new(false),
            awaits_name: AtomicBool::new(false),
            private: loaded.private,
        }
    }

    /// What the driver keeps beside the inode. Panics if asked for another driver's type, which no caller can reach
    /// with bytes from outside.
    pub fn private<T: 'static>(&self) -> &T {
        self.private.downcast_ref().expect("an inode holds the private part of the driver that loaded it")
    }

    /// A copy of the attributes.
    pub fn attr(&self) -> Attr {
        self.attr.lock().clone()
    }

    /// Read or change attributes under their leaf lock. Changing them is no change in the contract's sense until
    /// [`Inode::changed`] is called.
    pub fn with_attr<R>(&self, f: impl FnOnce(&mut Attr) -> R) -> R {
        f(&mut self.attr.lock())
    }

    /// The size as a reader sees it.
    pub fn size(&self) -> u64 {
        self.attr.lock().size
    }

    /// The update path of design section 5, to be called once the change is visible. The caller logs the inode if the
    /// answer is [`Dirtied::Log`] (or if it logs it anyway).
    pub fn changed(&self, touch: Touch, logged: Logged) -> Dirtied {
        let policy = &*self.policy;
        let stats = policy.stats.mine();
        Stats::count(&stats.changes);
        if policy.mode == ChangeMode::Off {
            policy.first_change_without_cookie();
        }
        let eager = policy.mode == ChangeMode::Eager;
        let anyway = logged == Logged::Anyway;
        // Directories keep a counter in every mode: readdir's own revalidation rests on it.
        let keeps_version = policy.mode != ChangeMode::Off || self.kind == FileType::Directory;
        let now = (touch != Touch::Nothing).then(|| policy.now());
        let (times_moved, logs, bumped) = {
            let mut attr = self.attr.lock();
            let mut times_moved = false;
            if let Some(now) = now {
                // A kernel that keeps times has a finer clock than the coarse one: what it gave is no future.
                let now = if attr.ctime.is_just_after(now) { attr.ctime } else { now };
                if touch == Touch::Data && attr.mtime != now {
                    attr.mtime = now;
                    times_moved = true;
                }
                if attr.ctime != now {
                    attr.ctime = now;
                    times_moved = true;
                }
            }
            // A time that moves logs the inode unless lazytime holds it back: then the bump is free.
            let logs = anyway || eager || (times_moved && !policy.held_back.times);
            // Under the lock that `query` takes too, so that the look at QUERIED needs no fence of its own.
            (times_moved, logs, keeps_version && self.version.maybe_inc_under_lock(logs))
        };
        if bumped {
            Stats::count(&stats.bumps);
        }
        if logs || (bumped && !policy.held_back.version) {
            // Before the log: who puts something off behind this line has it in the log, or logs once more than he must.
            self.put_off.store(0, Ordering::Relaxed);
            Stats::count(&stats.changes_logged);
            Stats::count(if anyway {
                &stats.inode_updates_metadata
            } else if logs {
                &stats.inode_updates_times
            } else {
                &stats.inode_updates_version
            });
            return Dirtied::Log;
        }
        let mut later = 0;
        if times_moved {
            later |= PUT_OFF_TIMES;
        }
        if bumped {
            Stats::count(&stats.bumps_put_off);
            later |= PUT_OFF_VERSION;
        }
        if later == 0 {
            return Dirtied::No;
        }
        self.put_off.fetch_or(later, Ordering::Relaxed);
        Dirtied::Later
    }

    /// The counter's value, seen from now on. Never waits for a write: the lock it takes, if nobody has looked since the
    /// last bump, is the attributes'.
    pub(crate) fn query(&self) -> u64 {
        self.version.query_seen().unwrap_or_else(|| {
            let _attr = self.attr.lock();
            self.version.query_under_lock()
        })
    }

    /// The value, seen from now on, and a copy of the attributes, under one hold of their lock.
    pub(crate) fn observe(&self) -> (u64, Attr) {
        let attr = self.attr.lock();
        let value = self.version.query_seen().unwrap_or_else(|| self.version.query_under_lock());
        (value, attr.clone())
    }

    /// Whether anything of it is newer in memory than in the log or on the device.
    pub(crate) fn is_dirty(&self) -> bool {
        self.put_off.load(Ordering::Acquire) != 0
            || self.needs_log.load(Ordering::Acquire)
            || self.pages.is_dirty()
    }

    /// Write-back allocated blocks or moved the disk size, and logs the inode for it: counted, and no change.
    pub fn logged_in_background(&self) {
        Stats::count(&self.policy.stats.mine().inode_updates_allocation);
    }
}
