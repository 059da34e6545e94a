//! Directories: finding and changing names.

use super::inode::{LoadedInode, NewInode};
use crate::error::{NameError, Result};
use crate::inode::Inode;
use crate::requests::Cred;
use crate::types::*;
use std::ops::ControlFlow;

/// What a directory has for a name.
pub enum Child {
    /// An inode number, which [`InodeOps::load_inode`](super::InodeOps::load_inode) accepts.
    Number(Ino),
    /// The inode, from a server whose reply contains it: saves a round trip. The VFS takes it if it is not
    /// cached; so give the reply to [`CacheHandle::update`](super::CacheHandle::update) first. If a cached
    /// inode has this number and another generation, the lookup fails with `Stale`. A local format returns a
    /// number: from there an inode could be older than one that was evicted meanwhile, and the VFS uses its
    /// number only.
    Inode(LoadedInode),
}

impl Child {
    /// Its inode number.
    pub fn ino(&self) -> Ino {
        match self {
            Child::Number(ino) => *ino,
            Child::Inode(loaded) => loaded.ino,
        }
    }
}

/// One rename. The VFS has checked types, loops and permissions; the driver checks that a replaced directory
/// is empty.
pub struct Rename<'a> {
    /// The user who asks.
    pub caller: &'a Cred,
    /// The directory that loses the name.
    pub old_dir: &'a Inode,
    /// The name.
    pub old_name: &'a [u8],
    /// The directory that gains the name; may be `old_dir`.
    pub new_dir: &'a Inode,
    /// The new name.
    pub new_name: &'a [u8],
    /// The inode to rename.
    pub inode: &'a Inode,
    /// The inode that has the new name now, if any.
    pub target: Option<&'a Inode>,
    /// Swap the two names instead of replacing `target`, which is there.
    pub exchange: bool,
}

/// Operations on directories. `caller` is the user who asks, or [`Cred::system`]; the VFS has checked
/// permissions, so a local format ignores it.
pub trait DirectoryOps {
    /// Find a name, never `.` or `..`.
    fn lookup(&self, caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>>;
    /// Whether two names differ only in spelling. A rename from one to the other has no target.
    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        a == b
    }
    /// The parent of a directory (its `..`).
    fn parent(&self, caller: &Cred, dir: &Inode) -> Result<Ino>;
    /// Emit entries, `.` and `..` included, starting at a cursor (0: the start), until `emit` breaks. Every
    /// entry that stays in the directory is emitted exactly once, even if others come and go between calls.
    fn readdir(
        &self,
        caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
    /// Make an inode with one name (a directory: with `.` and `..`) and all its attributes in one
    /// transaction. The name is free.
    fn create(&self, caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode>;
    /// Add another name for an inode, and raise `nlink`. The name is free.
    fn link(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _inode: &Inode) -> Result<()> {
        Err(NameError::NotPermitted.into())
    }
    /// Remove a name of a non-directory or of an empty directory (otherwise `NotEmpty`), and lower `nlink`.
    /// At 0 the inode becomes an orphan until [`InodeOps::delete_inode`](super::InodeOps::delete_inode).
    fn unlink(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()>;
    /// Rename in one transaction.
    fn rename(&self, rename: &Rename<'_>) -> Result<()>;
}
