//! The inode in memory and the update path: when a change bumps the counter and when it dirties the inode.

use crate::access::AclCache;
use crate::driver::{InitialCounter, LoadedInode};
use crate::error::{NameError, Result};
use crate::pages::Pages;
use crate::server::ServerState;
use crate::stats::Stats;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{RankedMutex, RankedRwLock, rank};
use crate::types::*;
use crate::update_policy::{ChangeMode, Policy};
use crate::writeback_error::WritebackErrors;
use iversion::Counter;
use std::any::Any;
use std::sync::Arc;

/// Whether a change logs the inode in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logged {
    /// The same transaction logs the inode in any case: bump by force, at no extra cost.
    Anyway,
    /// Log only if a time moved or the counter was queried.
    IfNeeded,
}

/// Which times a change moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// mtime and ctime: data, or the names of a directory.
    Data,
    /// ctime alone: attributes, links.
    Metadata,
    /// None: the caller has set the times.
    Nothing,
}

/// Times that `lazytime` defers, and access times.
pub(crate) const DEFERRED_TIMES: u8 = 1;

/// A bump that only a query asked for, deferred by `lazyversion`. It reaches the log before the filesystem is
/// closed; after a crash [the epoch](crate::epoch) changes every value instead.
pub(crate) const DEFERRED_COUNTER: u8 = 2;

/// What the caller must do after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dirtied {
    /// Nothing: no time moved, and the counter was not queried.
    No,
    /// Nothing now: the update is deferred.
    Later,
    /// The inode must be logged.
    Log,
}

impl Dirtied {
    /// Whether the inode must be logged now.
    pub fn must_log(self) -> bool {
        self == Dirtied::Log
    }
}

/// An inode in memory. A mount has at most one for each inode number.
pub struct Inode {
    /// Its inode number.
    pub ino: Ino,
    /// Distinguishes successive inodes with this number.
    pub generation: u32,
    /// Its type.
    pub kind: FileType,
    /// The change counter, without the epoch base. Query it only through [`crate::Vfs`]: a query and a change
    /// meet under the lock of the attributes.
    pub counter: Counter,
    /// Of an inode of a server: the counter is all 64 bits of its change attribute, never bumped here.
    pub(crate) server: Option<Box<ServerState>>,
    /// The format stores no counter.
    pub(crate) counter_not_stored: bool,
    /// The lock of data and names.
    pub lock: RankedRwLock<rank::InodeLock, ()>,
    pub(crate) attr: RankedMutex<rank::Leaf, Attr>,
    pub(crate) pages: Pages,
    /// Deferred updates: [`DEFERRED_TIMES`], [`DEFERRED_COUNTER`]. They are newer in memory than in the log
    /// until the inode is logged for another reason or written back.
    pub(crate) deferred: AtomicU8,
    /// References outside the cache: lookups, open files, front ends.
    pub(crate) users: AtomicU64,
    /// The settings of the mount. An inode outside its cache has none.
    policy: Option<Arc<Policy>>,
    /// Held while pages are written to the device.
    pub(crate) writeback_lock: RankedMutex<rank::WritebackLock, ()>,
    /// Set while the inode is in the mount's list of inodes with dirty pages.
    pub(crate) dirty_listed: AtomicBool,
    /// Logging failed, or a bump was forced outside a transaction: log it later.
    pub(crate) needs_log: AtomicBool,
    pub(crate) writeback_errors: WritebackErrors,
    /// Data of it was lost. It stays in memory, because it could read differently after a reload.
    pub(crate) data_lost: AtomicBool,
    /// The caller sets the times that the running change moves. Set and cleared under the exclusive lock.
    pub(crate) times_set_by_caller: AtomicBool,
    /// Found since eviction last looked at it.
    pub(crate) recent: AtomicBool,
    /// Distinguishes entries of the eviction queue.
    pub(crate) cache_id: AtomicU64,
    pub(crate) acl: AclCache,
    /// Known to have no `security.capability` that a write would have to remove.
    pub(crate) no_capability: AtomicBool,
    /// Created without a name, and may get one. An inode that lost its last name may not.
    pub(crate) awaits_name: AtomicBool,
    private: Box<dyn Any + Send + Sync>,
}

impl Inode {
    /// Builds the inode that a driver decoded, for the cache of a mount.
    pub(crate) fn new(loaded: LoadedInode, policy: Arc<Policy>) -> Self {
        Self::build(loaded, Some(policy))
    }

    /// Builds an inode outside the cache of a mount, for work inside a driver: reserved inodes, orphans at
    /// mount. [`Inode::changed`] bumps its counter, moves no time, and always answers [`Dirtied::Log`].
    pub fn detached(loaded: LoadedInode) -> Self {
        Self::build(loaded, None)
    }

    fn build(loaded: LoadedInode, policy: Option<Arc<Policy>>) -> Self {
        let server = match loaded.counter {
            InitialCounter::Server(change) => Some(Box::new(ServerState::new(change))),
            _ => None,
        };
        let counter_not_stored = loaded.counter == InitialCounter::NotStored;
        let counter = match loaded.counter {
            InitialCounter::Stored(value) => Counter::new_queried(value),
            InitialCounter::Fresh(value) => Counter::new(value),
            InitialCounter::Server(raw) => {
                let counter = Counter::new(0);
                counter.set_raw(raw);
                counter
            }
            InitialCounter::NotStored => {
                Counter::new(policy.as_ref().map_or(1, |policy| policy.next_unstored_counter()))
            }
        };
        Self {
            ino: loaded.ino,
            generation: loaded.generation,
            kind: loaded.attr.kind,
            counter,
            server,
            counter_not_stored,
            lock: RankedRwLock::with_key((), loaded.ino.0),
            attr: RankedMutex::new(loaded.attr),
            pages: Pages::default(),
            deferred: AtomicU8::new(0),
            users: AtomicU64::new(0),
            policy,
            writeback_lock: RankedMutex::new(()),
            dirty_listed: AtomicBool::new(false),
            needs_log: AtomicBool::new(false),
            writeback_errors: WritebackErrors::default(),
            data_lost: AtomicBool::new(false),
            times_set_by_caller: AtomicBool::new(false),
            recent: AtomicBool::new(false),
            cache_id: AtomicU64::new(0),
            acl: AclCache::default(),
            no_capability: AtomicBool::new(false),
            awaits_name: AtomicBool::new(false),
            private: loaded.private,
        }
    }

    /// What the driver keeps with the inode. Panics if `T` is the type of another driver; bytes from outside
    /// cannot cause that.
    pub fn private<T: 'static>(&self) -> &T {
        self.private.downcast_ref().expect("an inode holds the private part of the driver that loaded it")
    }

    /// A copy of the attributes.
    pub fn attr(&self) -> Attr {
        self.attr.lock().clone()
    }

    /// Reads or changes attributes under their leaf lock. A change takes effect for the contract when
    /// [`Inode::changed`] is called.
    pub fn with_attr<R>(&self, f: impl FnOnce(&mut Attr) -> R) -> R {
        f(&mut self.attr.lock())
    }

    /// The size in bytes as a reader sees it.
    pub fn size(&self) -> u64 {
        self.attr.lock().size
    }

    /// The update path: decides whether a change moves times, bumps the counter and logs the inode. Call it
    /// once the change is visible. The caller logs the inode if the answer is [`Dirtied::Log`].
    pub fn changed(&self, touch: Touch, logged: Logged) -> Dirtied {
        let Some(policy) = self.policy.as_deref() else {
            self.counter.inc();
            return Dirtied::Log;
        };
        let stats = policy.stats.mine();
        Stats::count(&stats.changes);
        if policy.mode == ChangeMode::Off {
            policy.note_unserved_change();
        }
        if self.is_server_managed() {
            // Times and counter are the server's; its reply brings them.
            return Dirtied::No;
        }
        let eager = policy.mode == ChangeMode::Eager;
        let anyway = logged == Logged::Anyway;
        // Directories keep a counter in every mode: readdir relies on it to revalidate cursors.
        let keeps_version = policy.mode != ChangeMode::Off || self.kind == FileType::Directory;
        let moves_times = touch != Touch::Nothing && !self.times_set_by_caller.load(Ordering::Relaxed);
        let now = moves_times.then(|| policy.now());
        let (times_moved, logs, bumped) = {
            let mut attr = self.attr.lock();
            let mut times_moved = false;
            if let Some(now) = now {
                // A kernel that keeps times has a finer clock than this coarse one: do not move its time
                // back.
                let now = if attr.ctime.is_ahead_by_clock_skew(now) { attr.ctime } else { now };
                if touch == Touch::Data && attr.mtime != now {
                    attr.mtime = now;
                    times_moved = true;
                }
                if attr.ctime != now {
                    attr.ctime = now;
                    times_moved = true;
                }
            }
            // A time that moves logs the inode unless lazytime defers it: then the bump is free.
            let logs = anyway || eager || (times_moved && !policy.deferred.times);
            // Under the lock that `query` takes too, so that reading QUERIED needs no fence.
            (times_moved, logs, keeps_version && self.counter.maybe_inc_under_lock(logs))
        };
        if bumped {
            Stats::count(&stats.bumps);
        }
        if logs || (bumped && !policy.deferred.counter) {
            // Before the log: an update that is deferred after this line is in the log already, or is logged
            // once more.
            self.deferred.store(0, Ordering::Relaxed);
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
            later |= DEFERRED_TIMES;
        }
        if bumped {
            Stats::count(&stats.bumps_deferred);
            later |= DEFERRED_COUNTER;
        }
        if later == 0 {
            return Dirtied::No;
        }
        self.deferred.fetch_or(later, Ordering::Relaxed);
        Dirtied::Later
    }

    /// Queries the counter. Never waits for a write: at most it takes the leaf lock of the attributes.
    pub(crate) fn query(&self) -> u64 {
        if let Some(server) = &self.server {
            let _attr = self.attr.lock();
            return self.query_server_locked(server);
        }
        self.counter.query_seen().unwrap_or_else(|| {
            let _attr = self.attr.lock();
            self.counter.query_under_lock()
        })
    }

    /// Queries the counter and copies the attributes, under one hold of their lock.
    pub(crate) fn observe(&self) -> (u64, Attr) {
        let attr = self.attr.lock();
        if let Some(server) = &self.server {
            return (self.query_server_locked(server), attr.clone());
        }
        let value = self.counter.query_seen().unwrap_or_else(|| self.counter.query_under_lock());
        (value, attr.clone())
    }

    /// What vouches for names cached in this directory, to compare with [`Inode::query_names`]. Not a query.
    pub(crate) fn names_now(&self) -> u64 {
        self.server.as_ref().map_or_else(|| self.counter.peek(), |server| server.names())
    }

    /// What vouches for names that are cached from now on: another value after the names change.
    pub(crate) fn query_names(&self) -> u64 {
        self.server.as_ref().map_or_else(|| self.query(), |server| server.names())
    }

    /// Only a regular file has data that can be read, written or cut.
    pub(crate) fn require_regular(&self) -> Result<()> {
        match self.kind {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(NameError::IsDirectory.into()),
            _ => Err(NameError::Invalid.into()),
        }
    }

    /// Whether a server owns it: its attributes are current only after
    /// [`Vfs::get_attr`](crate::Vfs::get_attr).
    pub fn is_server_managed(&self) -> bool {
        self.server.is_some()
    }

    /// Whether data of it could not be written and is lost. A cache above the VFS may still show that data.
    pub fn has_lost_data(&self) -> bool {
        self.data_lost.load(Ordering::Acquire)
    }

    /// Whether anything is newer in memory than in the log or on the device.
    pub(crate) fn is_dirty(&self) -> bool {
        self.deferred.load(Ordering::Acquire) != 0
            || self.needs_log.load(Ordering::Acquire)
            || self.server.as_ref().is_some_and(|server| server.owes_server())
            || self.pages.is_dirty()
    }

    /// Counts an inode update by write-back (allocation, size on disk). It is no change.
    pub fn logged_in_background(&self) {
        if let Some(policy) = &self.policy {
            Stats::count(&policy.stats.mine().inode_updates_allocation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::NewInode;

    #[test]
    fn a_change_of_a_detached_inode_is_always_logged_and_moves_no_time() {
        let time = Timestamp { sec: 1, nsec: 2 };
        let attr = NewInode::new(FileType::Regular, time).attr(1);
        let counter = InitialCounter::Fresh(7);
        let inode =
            Inode::detached(LoadedInode { ino: Ino(5), generation: 0, attr, counter, private: Box::new(()) });
        for value in 8..10 {
            assert_eq!(inode.changed(Touch::Data, Logged::IfNeeded), Dirtied::Log);
            assert_eq!(inode.counter.peek(), value);
        }
        inode.logged_in_background();
        let attr = inode.attr();
        assert_eq!((attr.mtime, attr.ctime), (time, time));
    }
}
