//! What a network filesystem has beyond a local one: a server that owns the change attribute, decides about
//! permissions, and changes files without asking the cache.

use crate::error::{NameError, Result};
use crate::inode::{Inode, Touch};
use crate::open_hooks::OpenMode;
use crate::requests::{Cred, SetAttr};
use crate::types::*;
use crate::vfs::Vfs;
use std::ops::Range;
use std::sync::Weak;

/// Operations that a server decides or answers. All are called without inode locks, so that a round trip
/// blocks nobody. Exceptions are `changed`, which asks nothing, and `set_attr` when it changes a size.
///
/// The VFS asks `permission` before it takes locks, and where a request names no caller. Under locks it
/// leaves every check to the server, which gets the caller with each change: of permissions, of names that
/// exist, of loops.
///
/// Errors: [`Error::Server`](crate::Error::Server) for a server that is slow, unreachable or broken,
/// `NameError::Stale` for a filehandle that it no longer knows.
pub trait ServerOps {
    /// Makes the cached state of an inode current: its attributes and change attribute, and through
    /// [`CacheHandle`] its pages. Called before any of them is used, so it must be cheap while a delegation,
    /// a lease or a timeout vouches for the cache.
    fn revalidate(&self, caller: &Cred, inode: &Inode) -> Result<()>;
    /// As [`ServerOps::revalidate`] for several inodes. Returns one result for each. Implement it if one
    /// request of the protocol can ask for several inodes.
    fn revalidate_many(&self, caller: &Cred, inodes: &[&Inode]) -> Vec<Result<()>> {
        inodes.iter().map(|inode| self.revalidate(caller, inode)).collect()
    }
    /// Returns whether requests carry the credentials of their callers. If not, all callers are the same to
    /// the server, and no caller's groups matter to [`ServerOps::permission`] and [`ServerOps::revalidate`].
    fn sends_callers(&self) -> bool {
        true
    }
    /// Checks that the server grants `caller` the whole `mask` (R4 W2 X1): `NameError::Access` if not.
    fn permission(&self, caller: &Cred, inode: &Inode, mask: u32) -> Result<()>;
    /// Sets attributes on the server, the size included, and gives the reply to [`CacheHandle::update`].
    /// Takes the place of [`InodeOps::prepare_setattr`](super::InodeOps::prepare_setattr) and
    /// [`FileOps::truncate`](super::FileOps::truncate). If the size changes, the exclusive lock and the
    /// write-back lock of the inode are held; the VFS then drops the pages past the new end.
    fn set_attr(&self, caller: &Cred, inode: &Inode, set: &SetAttr) -> Result<()>;
    /// A regular file is opened: gets an open, and perhaps a delegation, from the server.
    fn open(&self, _caller: &Cred, _inode: &Inode, _mode: OpenMode) -> Result<()> {
        Ok(())
    }
    /// Bytes of an open file changed in the cache, and are visible. Returns whether a write delegation
    /// vouches that this client alone changes the file: then the VFS moves times and change attribute itself,
    /// and queries do not send the cached writes first. Quick; called under the lock of the inode. A recall
    /// first makes this return false, then calls [`CacheHandle::write_back`], then returns the delegation.
    fn changed(&self, _inode: &Inode, _touch: Touch) -> bool {
        false
    }
    /// Values up to `value` were served for writes under a delegation, and the writes are sent. Changes the
    /// file on the server, without changing its contents, until the server's change attribute is at least
    /// `value`, and calls [`CacheHandle::update`]. For drivers whose `changed` returns true.
    fn catch_up(&self, _inode: &Inode, _value: u64) -> Result<()> {
        Err(NameError::NotSupported.into())
    }
    /// Attributes are set, and not the size. Returns whether the driver keeps them under a write delegation
    /// and sends them later, with [`ServerOps::send_attributes`]: then the VFS changes the cached ones. The
    /// driver must be sure that the server permits it. Sends nothing.
    fn keep_attributes(&self, _caller: &Cred, _inode: &Inode, _set: &SetAttr) -> bool {
        false
    }
    /// Sends the attributes that were kept. The cached writes from before are sent already. Called before
    /// [`ServerOps::catch_up`].
    fn send_attributes(&self, _inode: &Inode) -> Result<()> {
        Ok(())
    }
    /// Returns whether a close need not send the cached writes of a file: a write delegation makes the server
    /// recall it before anyone else can see the file. The driver then sends them soon after
    /// [`ServerOps::close`]. Sends nothing.
    fn defers_close(&self, _inode: &Inode) -> bool {
        false
    }
    /// Sends what closes have deferred, many files at a time. Called before everything is written back.
    fn send_all(&self) {}
    /// One open ends. Its data has been written back, unless [`ServerOps::defers_close`].
    fn close(&self, _inode: &Inode, _mode: OpenMode) {}
}

/// Why a server's change attribute moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Perhaps because another client changed the inode.
    Unknown,
    /// Only because of this client's own requests, which the cache has seen.
    Own,
}

/// Access to the cached inodes of a mount, for its driver, from any thread. It does not keep the mount alive.
/// Hold no lock of the driver during these calls.
#[derive(Clone)]
pub struct CacheHandle(pub(crate) Weak<Vfs>);

impl CacheHandle {
    /// Takes over what the server said of an inode, if it is cached. `change` is all 64 bits of the server's
    /// change attribute. If it differs from the newest one, for another `cause` than own changes, clean pages
    /// and cached names are dropped, and reads that are running leave none behind; dirty pages stay and keep
    /// the size. Returns whether it differed.
    ///
    /// Replies may arrive out of order: the driver drops the older one.
    pub fn update(&self, ino: Ino, attr: Attr, change: u64, cause: Cause) -> bool {
        self.0.upgrade().is_some_and(|vfs| vfs.update_from_server(ino, attr, change, cause))
    }

    /// This client changed the names of a directory, and the server's reply had `info` (`change_info4`). If
    /// it was `atomic` and `before` is the newest value that is known, nobody else changed the directory, and
    /// its cached names stay. Called by the driver within `create`, `link`, `unlink` and `rename`, before it
    /// calls [`CacheHandle::update`] for the directory. The caller of the request gets an `atomic` info.
    pub fn names_changed(&self, dir: Ino, info: ChangeInfo, atomic: bool) {
        if let Some(vfs) = self.0.upgrade() {
            vfs.names_changed_on_server(dir, info, atomic);
        }
    }

    /// Sends the cached writes of an inode to the server, as a recalled delegation requires. They need not be
    /// durable on it afterwards. Not within a call of the VFS: it waits for locks of the inode.
    pub fn write_back(&self, ino: Ino) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |vfs| vfs.write_back_for_server(ino))
    }

    /// Makes the cached writes of an inode durable on the server, and sends its kept attributes. Not within a
    /// call of the VFS: it waits for locks of the inode.
    pub fn send(&self, ino: Ino) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |vfs| vfs.send_for_server(ino))
    }

    /// Returns the change attribute and the size that this client serves for an inode, as a query does. For
    /// a server that asks the holder of a write delegation (CB_GETATTR). Does not block. `None` if the inode
    /// is not cached, or if the value does not count all cached writes: the server must recall the file.
    pub fn query(&self, ino: Ino) -> Option<(u64, u64)> {
        self.0.upgrade().and_then(|vfs| vfs.query_for_server(ino))
    }

    /// A request of this client has changed an inode, by something else than sending what is cached: set its
    /// size, gave it a name. Call it before the call of the VFS returns.
    pub fn changed_by_request(&self, ino: Ino) {
        if let Some(vfs) = self.0.upgrade() {
            vfs.changed_by_request(ino);
        }
    }

    /// The server lost unstable writes ([`Written::Unstable`](super::Written)) of these bytes, as a changed
    /// verifier says: they are written again. May be called within `fsync`, which then also sends and commits
    /// them.
    pub fn redirty(&self, ino: Ino, range: Range<u64>) {
        if let Some(vfs) = self.0.upgrade() {
            vfs.redirty_from_server(ino, range);
        }
    }

    /// Drops what is cached of an inode's contents or names, except bytes that are not written back. Its
    /// attributes stay until they are revalidated.
    pub fn invalidate(&self, ino: Ino) {
        if let Some(vfs) = self.0.upgrade() {
            vfs.invalidate_from_server(ino);
        }
    }

    /// Reports that a byte-range lock of an inode may be free. Programs that wait for one try again. Does not
    /// block.
    pub fn lock_available(&self, ino: Ino) {
        if let Some(vfs) = self.0.upgrade() {
            vfs.lock_available(ino);
        }
    }

    /// Forgets what a directory has for a name.
    pub fn invalidate_name(&self, dir: Ino, name: &[u8]) {
        if let Some(vfs) = self.0.upgrade() {
            vfs.names.invalidate(dir, name);
        }
    }
}
