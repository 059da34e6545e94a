//! Inodes of a server: what the VFS does for them beside the common paths.
//!
//! Their change attribute is the server's, all 64 bits, and is never bumped here, with one exception. While
//! the driver has a write delegation ([`ServerOps::changed`](crate::ServerOps::changed)), nobody else changes
//! the file, and cached writes need not be sent to learn of a new value:
//!
//! - The first cached write raises the value by one (RFC 8881, section 10.4.3). So does the first one after a
//!   query, because that query's value stood for older bytes.
//! - A raised value is the server's sooner or later, for other bytes. So before the inode counts as written
//!   back, the server's value reaches every raised one ([`ServerOps::catch_up`](crate::ServerOps::catch_up)).
//!   That limits how often a value is raised; after that a query sends the cached writes first.
//! - A change by a request of its own moves the server's value, which may still be below a raised one. The
//!   driver reports it ([`CacheHandle::changed_by_request`](crate::CacheHandle::changed_by_request)), and the
//!   next query sends the cached writes first.
//! - A recall ([`CacheHandle::write_back`](crate::CacheHandle::write_back)) may meet a writer whose driver
//!   said a moment ago that it has the delegation. Recalls are counted, and that writer raises nothing.

use crate::driver::{Cause, ServerOps};
use crate::error::{Result, ServerError};
use crate::inode::{Inode, Touch};
use crate::requests::{Cred, SetAttr, TimeSet};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::{RankedMutex, rank};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::ops::Range;

/// How far a value may be above the server's.
const RAISES_MAX: u64 = 16;

/// What the VFS keeps with an inode of a server. All but `syncing`, `names` and `own_names` change under the
/// lock of the attributes.
#[derive(Default)]
pub(crate) struct ServerState {
    /// The server's newest change attribute.
    known: AtomicU64,
    /// The served value counts cached writes: the server's must still reach it.
    raised: AtomicBool,
    /// The raised value was queried.
    queried: AtomicBool,
    /// How many changes since the value was raised have not raised it again: writes, or those of requests.
    uncounted: AtomicU64,
    /// How often the cached writes were recalled.
    recalls: AtomicU64,
    /// How many threads make the file durable. See [`Syncing`](crate::sending::Syncing).
    pub(crate) syncing: AtomicU64,
    /// Rises whenever others may have changed the names of a directory.
    names: AtomicU64,
    /// What the server said of this client's newest changes of names, until their caller takes it.
    own_names: RankedMutex<rank::Leaf, OwnNames>,
}

/// What the server said of the changes of names of one call of the VFS, which may take several requests.
#[derive(Debug, Default, PartialEq, Eq)]
enum OwnNames {
    /// Nothing yet.
    #[default]
    None,
    /// From the change attribute before the first one to that after the last one.
    Known(ChangeInfo),
    /// Others changed names in between, or the server did not say.
    Unknown,
}

impl OwnNames {
    fn add(&mut self, info: Option<ChangeInfo>) {
        *self = match (&*self, info) {
            (Self::None, Some(info)) => Self::Known(info),
            (Self::Known(first), Some(info)) if first.after == info.before => {
                Self::Known(ChangeInfo { before: first.before, after: info.after })
            }
            _ => Self::Unknown,
        };
    }
}

impl ServerState {
    pub(crate) fn new(change: u64) -> Self {
        Self { known: AtomicU64::new(change), ..Self::default() }
    }

    /// Vouches for cached names while it is the same.
    pub(crate) fn names(&self) -> u64 {
        self.names.load(Relaxed)
    }

    pub(crate) fn owes_server(&self) -> bool {
        self.raised.load(Relaxed)
    }

    /// A change has not raised a raised value again. The caller holds the lock of the attributes.
    fn note_uncounted(&self) {
        self.uncounted.fetch_add(self.raised.load(Relaxed).into(), Relaxed);
    }

    /// Whether the served value counts every cached write.
    fn counts_cached_writes(&self) -> bool {
        self.raised.load(Relaxed) && self.uncounted.load(Relaxed) == 0
    }
}

impl Inode {
    /// Returns the newest change attribute that the server said, without a query. `None` for local formats.
    pub fn newest_of_server(&self) -> Option<u64> {
        self.server.as_ref().map(|state| state.known.load(Relaxed))
    }

    /// The change attribute to serve. The caller holds the lock of the attributes.
    pub(crate) fn query_server_locked(&self, server: &ServerState) -> u64 {
        if server.raised.load(Relaxed) {
            server.queried.store(true, Relaxed);
        }
        self.counter.peek_raw()
    }

    /// A cached write is visible. `delegated`: the driver counts on this client being the only one, as it was
    /// after `recalls` recalls.
    fn count_cached_write(&self, touch: Touch, delegated: bool, recalls: u64, now: Timestamp) {
        let Some(state) = &self.server else { return };
        let mut attr = self.attr.lock();
        if !delegated || state.recalls.load(Relaxed) != recalls {
            return state.note_uncounted();
        }
        if touch == Touch::Data {
            attr.mtime = attr.mtime.max(now);
        }
        if touch != Touch::Nothing {
            attr.ctime = attr.ctime.max(now);
        }
        let value = self.counter.peek_raw();
        if state.raised.load(Relaxed) && !state.queried.load(Relaxed) {
            return;
        }
        let far = value.wrapping_sub(state.known.load(Relaxed)) >= RAISES_MAX;
        let Some(raised) = value.checked_add(1).filter(|_| !far) else {
            return state.note_uncounted();
        };
        self.counter.set_raw(raised);
        state.raised.store(true, Relaxed);
        state.queried.store(false, Relaxed);
    }

    /// The value that the server must reach before this inode counts as written back. The caller holds the
    /// lock of the attributes.
    fn owed(&self) -> Option<u64> {
        let state = self.server.as_ref().filter(|state| state.raised.load(Relaxed))?;
        let owed = self.counter.peek_raw().saturating_add(state.uncounted.load(Relaxed).min(1));
        Some(owed).filter(|owed| state.known.load(Relaxed) < *owed)
    }

    /// Takes what the server said of this client's newest changes of names.
    pub(crate) fn take_own_names(&self) -> Option<ChangeInfo> {
        match std::mem::take(&mut *self.server.as_ref()?.own_names.lock()) {
            OwnNames::Known(info) => Some(info),
            OwnNames::None | OwnNames::Unknown => None,
        }
    }
}

impl Vfs {
    fn cached(&self, ino: Ino) -> Option<InodeRef> {
        self.inodes.peek(ino).map(|inode| self.counted(inode))
    }

    /// Gives up a server that does not answer: calls that wait for it fail, also a running [`Vfs::unmount`].
    /// Cached writes that were not sent are lost, and unmount reports that. Nothing for a local format.
    pub fn stop_waiting(&self) {
        self.fs.stop_waiting();
    }

    /// Makes the cached state of an inode current where a server owns it. Called without inode locks.
    pub(crate) fn revalidate(&self, cred: &Cred, inode: &Inode) -> Result<()> {
        if !inode.is_server_managed() {
            return Ok(());
        }
        self.fs.server().map_or(Ok(()), |server| server.revalidate(cred, inode))
    }

    /// Makes a server's inode current before it is queried. Cached writes that the value does not count go
    /// first: they are visible here.
    pub(crate) fn settle_with_server(&self, inode: &Inode) -> Result<()> {
        self.send_uncounted(inode)?;
        self.revalidate(&Cred::system(), inode)
    }

    /// As [`Vfs::settle_with_server`] for several inodes. One request to the server may ask for many.
    pub(crate) fn settle_many_with_server(&self, inodes: &[InodeRef]) -> Vec<Result<()>> {
        let mut settled: Vec<_> = inodes.iter().map(|inode| self.send_uncounted(inode)).collect();
        if let Some(server) = self.fs.server() {
            let places = inodes.iter().zip(&mut settled);
            let (wanted, places): (Vec<&Inode>, Vec<_>) = places
                .filter(|(inode, sent)| inode.is_server_managed() && sent.is_ok())
                .map(|(inode, sent)| (&**inode, sent))
                .unzip();
            let answers = server.revalidate_many(&Cred::system(), &wanted);
            places.into_iter().zip(answers).for_each(|(place, answer)| *place = answer);
        }
        settled
    }

    /// Sends cached writes that the change attribute of a server's inode does not count.
    fn send_uncounted(&self, inode: &Inode) -> Result<()> {
        let Some(state) = &inode.server else { return Ok(()) };
        // Also waits for a write-back that is running: what it writes is not counted yet.
        let settled = self.policy.read_only || state.counts_cached_writes();
        if !settled && (inode.pages.has_pages() || state.owes_server()) {
            self.write_back_inode(inode)?;
        }
        Ok(())
    }

    /// Sends cached writes, so that the server sets the times for them: a caller is about to ask for those.
    /// Nothing if a delegation lets them move here. Writes that cannot be sent stay cached.
    pub(crate) fn settle_times_with_server(&self, inode: &Inode) {
        let unsettled = inode.server.as_ref().is_some_and(|state| !state.counts_cached_writes());
        if unsettled
            && inode.pages.is_dirty()
            && let Err(error) = self.write_back_inode(inode)
        {
            log::info!("inode {}: its times may be old: {error}", inode.ino);
        }
    }

    /// Another client may have changed the file since this one wrote bytes that are still cached: once they
    /// are committed, they are dropped and read from the server. As long as they cannot be, they are read.
    pub(crate) fn replace_outdated(&self, inode: &Inode) {
        if inode.is_server_managed()
            && inode.pages.take_outdated()
            && let Err(error) = self.write_back_durably(inode)
        {
            inode.pages.note_outdated();
            log::info!("inode {}: its cached bytes may be old: {error}", inode.ino);
        }
    }

    /// A change of a server's inode is visible in the cache.
    pub(crate) fn changed_in_cache(&self, inode: &Inode, touch: Touch) {
        let recalls = inode.server.as_ref().map_or(0, |state| state.recalls.load(Relaxed));
        let delegated = self.fs.server().is_some_and(|server| server.changed(inode, touch));
        inode.count_cached_write(touch, delegated, recalls, self.policy.now());
    }

    /// Cached writes are sent: the server's change attribute follows the values that were served for them.
    pub(crate) fn catch_up_with_server(&self, inode: &Inode) -> Result<()> {
        let Some(state) = inode.server.as_ref() else { return Ok(()) };
        if let Some(server) = self.fs.server() {
            server.send_attributes(inode)?;
        }
        if !state.owes_server() {
            return Ok(());
        }
        let (owed, uncounted) = {
            let _attr = inode.attr.lock();
            (inode.owed(), state.uncounted.load(Relaxed))
        };
        if let (Some(owed), Some(server)) = (owed, self.fs.server()) {
            server.catch_up(inode, owed)?;
        }
        let _attr = inode.attr.lock();
        // The server's value is above each one that was served before these changes.
        if state.uncounted.load(Relaxed) == uncounted {
            state.uncounted.store(0, Relaxed);
        }
        match inode.owed() {
            // A writer has raised it again meanwhile: that is for the next write-back.
            Some(_) if owed.is_none_or(|owed| state.known.load(Relaxed) >= owed) => {}
            Some(_) => return Err(ServerError::Failed.into()),
            None => {
                inode.counter.set_raw(state.known.load(Relaxed));
                state.raised.store(false, Relaxed);
                state.queried.store(false, Relaxed);
                state.uncounted.store(0, Relaxed);
            }
        }
        Ok(())
    }

    /// See [`CacheHandle::update`](crate::CacheHandle::update).
    pub(crate) fn update_from_server(&self, ino: Ino, attr: Attr, change: u64, cause: Cause) -> bool {
        let Some(inode) = self.cached(ino) else { return false };
        let Some(state) = &inode.server else { return false };
        let differs = state.known.load(Relaxed) != change;
        if differs && cause == Cause::Unknown {
            // Before the new value is visible: it must not be served together with old bytes.
            self.drop_outdated(&inode);
        }
        // A writer raises the size under the lock of the pages: it must not be lowered again.
        inode.pages.with_unwritten(|unwritten| {
            inode.with_attr(|cached| {
                let size = if unwritten { cached.size.max(attr.size) } else { attr.size };
                state.known.store(change, Relaxed);
                if state.raised.load(Relaxed) {
                    // The times of cached writes belong to the raised value.
                    let (mtime, ctime) = (cached.mtime.max(attr.mtime), cached.ctime.max(attr.ctime));
                    *cached = Attr { size, mtime, ctime, ..attr };
                    inode.counter.set_raw(inode.counter.peek_raw().max(change));
                } else {
                    *cached = Attr { size, ..attr };
                    inode.counter.set_raw(change);
                }
            });
        });
        differs
    }

    /// Others may have changed an inode: drops what is cached of it, but for its attributes and what is not
    /// written.
    fn drop_outdated(&self, inode: &Inode) {
        inode.acl.forget();
        if let Some(state) = &inode.server {
            state.names.fetch_add(1, Relaxed);
        }
        inode.pages.drop_clean(&self.memory);
    }

    /// See [`CacheHandle::names_changed`](crate::CacheHandle::names_changed).
    pub(crate) fn names_changed_on_server(&self, dir: Ino, info: ChangeInfo, atomic: bool) {
        let Some(dir) = self.cached(dir) else { return };
        let Some(state) = &dir.server else { return };
        state.own_names.lock().add(atomic.then_some(info));
        let alone = atomic && state.known.load(Relaxed) == info.before;
        if !alone || self.info.names_alias {
            self.drop_outdated(&dir);
        }
        dir.with_attr(|_| {
            state.known.store(info.after, Relaxed);
            dir.counter.set_raw(info.after);
        });
    }

    /// See [`CacheHandle::invalidate`](crate::CacheHandle::invalidate).
    pub(crate) fn invalidate_from_server(&self, ino: Ino) {
        if let Some(inode) = self.cached(ino) {
            self.drop_outdated(&inode);
        }
    }

    /// See [`CacheHandle::write_back`](crate::CacheHandle::write_back).
    pub(crate) fn write_back_for_server(&self, ino: Ino) -> Result<()> {
        let Some(inode) = self.cached(ino) else { return Ok(()) };
        if let Some(state) = &inode.server {
            inode.with_attr(|_| state.recalls.fetch_add(1, Relaxed));
        }
        self.write_back_inode(&inode)
    }

    /// See [`CacheHandle::send`](crate::CacheHandle::send).
    pub(crate) fn send_for_server(&self, ino: Ino) -> Result<()> {
        self.cached(ino).map_or(Ok(()), |inode| self.write_back_durably(&inode))
    }

    /// See [`CacheHandle::query`](crate::CacheHandle::query).
    pub(crate) fn query_for_server(&self, ino: Ino) -> Option<(u64, u64)> {
        let inode = self.cached(ino)?;
        let state = inode.server.as_ref()?;
        inode.pages.with_unsent(|unsent| {
            let attr = inode.attr.lock();
            // The server's own value does not count these writes.
            let is_counted = !unsent || state.raised.load(Relaxed);
            is_counted.then(|| (inode.query_server_locked(state), attr.size))
        })
    }

    /// See [`CacheHandle::changed_by_request`](crate::CacheHandle::changed_by_request).
    pub(crate) fn changed_by_request(&self, ino: Ino) {
        let Some(inode) = self.cached(ino) else { return };
        let Some(state) = &inode.server else { return };
        inode.with_attr(|_| state.note_uncounted());
    }

    /// Whether a close need not send the cached writes of an inode.
    pub(crate) fn is_close_deferred(&self, inode: &Inode) -> bool {
        self.fs.server().is_some_and(|server| inode.is_server_managed() && server.defers_close(inode))
    }

    /// Sends what closes have deferred.
    pub(crate) fn send_deferred_closes(&self) {
        if let Some(server) = self.fs.server() {
            server.send_all();
        }
    }

    /// Changes the cached attributes of an inode, if the driver keeps them under a write delegation. Returns
    /// whether it does.
    pub(crate) fn set_attr_in_cache(
        &self,
        server: &dyn ServerOps,
        cred: &Cred,
        inode: &Inode,
        set: &SetAttr,
    ) -> bool {
        let recalls = inode.server.as_ref().map_or(0, |state| state.recalls.load(Relaxed));
        if !server.keep_attributes(cred, inode, set) {
            return false;
        }
        let given = |time: Option<TimeSet>, old: Timestamp| match time {
            Some(TimeSet::At(time)) => time.truncate(self.info.time_granularity_ns),
            Some(TimeSet::Now) => self.policy.now(),
            None => old,
        };
        inode.with_attr(|attr| {
            if let Some(perm) = set.perm {
                attr.perm = perm & 0o7777 & !set.keep_perm | attr.perm & set.keep_perm;
            }
            attr.atime = given(set.atime, attr.atime);
            attr.mtime = given(set.mtime, attr.mtime);
        });
        inode.count_cached_write(Touch::Metadata, true, recalls, self.policy.now());
        true
    }

    /// See [`CacheHandle::redirty`](crate::CacheHandle::redirty).
    pub(crate) fn redirty_from_server(&self, ino: Ino, range: Range<u64>) {
        if let Some(inode) = self.cached(ino)
            && inode.pages.redirty(range.start, range.end)
        {
            self.list_dirty(&inode);
        }
    }
}
