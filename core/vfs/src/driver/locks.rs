//! Byte-range locks that live elsewhere: on a server, which knows those of other clients.

use crate::error::Result;
use crate::inode::Inode;
use crate::requests::Cred;
use std::ops::Range;

/// The owner of byte-range locks: chosen by the front end, unique in the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// A byte-range lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest {
    /// The owner.
    pub owner: LockOwner,
    /// The bytes; `u64::MAX` as the end means to the end of the file.
    pub range: Range<u64>,
    /// An exclusive lock; otherwise shared.
    pub exclusive: bool,
    /// The owner asks again until it gets the lock. A server may keep a place for it.
    pub waits: bool,
}

/// A lock that stands in the way of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockConflict {
    /// Its bytes; `u64::MAX` as the end means to the end of the file.
    pub range: Range<u64>,
    /// It is exclusive; otherwise shared.
    pub exclusive: bool,
}

/// POSIX byte-range locks. Locks of one owner do not conflict; a new lock replaces older ones of its owner in
/// its range; unlocking a part of a lock keeps the rest. Only open regular files have them. The caller holds
/// no lock of the inode.
///
/// A driver may lose locks, for example if the server was down for too long. Until their owner has unlocked
/// them, its lock requests, and reads and writes of the file, fail with
/// [`NameError::LockLost`](crate::NameError::LockLost).
pub trait LockOps {
    /// Gets a lock, without waiting. Fails with `NameError::Busy` if another owner holds a conflicting lock.
    fn lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<()>;
    /// Finds a lock of another owner that conflicts with this one.
    fn test_lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<Option<LockConflict>>;
    /// Releases the locks of an owner in a range. The caller first makes durable what was written under them.
    /// `caller` is [`Cred::system`] if a process has ended.
    fn unlock(&self, caller: &Cred, inode: &Inode, owner: LockOwner, range: Range<u64>) -> Result<()>;
    /// Whether this owner has locks, or had some that were lost. Asks nobody.
    fn holds_locks(&self, inode: &Inode, owner: LockOwner) -> bool;
}
