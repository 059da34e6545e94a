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

/// Byte-range locks of POSIX: those of one owner do not conflict, a new one takes the place of an older one
/// in its range, and unlocking a part of a lock leaves the rest. Only for regular files that are open. Called
/// without locks of the inode.
///
/// A driver whose locks are lost (the server was down for too long) says so: until their owner has unlocked
/// them, its requests for locks, and reads and writes of the file, fail with
/// [`NameError::LockLost`](crate::NameError::LockLost).
pub trait LockOps {
    /// Gets a lock, or `NameError::Busy` if another owner has one in the way. Does not wait for that owner.
    fn lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<()>;
    /// Finds a lock that stands in the way of this one.
    fn test_lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<Option<LockConflict>>;
    /// Releases the locks of an owner in a range. What was written under them is durable. `caller` may be
    /// [`Cred::system`]: a process has ended.
    fn unlock(&self, caller: &Cred, inode: &Inode, owner: LockOwner, range: Range<u64>) -> Result<()>;
    /// Whether this owner has locks, or had some that were lost. Asks nobody.
    fn holds_locks(&self, inode: &Inode, owner: LockOwner) -> bool;
}
