//! Inodes: decoding, encoding, deleting.

use crate::error::{NameError, Result};
use crate::inode::Inode;
use crate::requests::Cred;
use crate::types::*;
use std::any::Any;

/// An inode as a driver decodes it.
pub struct LoadedInode {
    /// Its inode number.
    pub ino: Ino,
    /// Distinguishes successive inodes with this number.
    pub generation: u32,
    /// Its attributes.
    pub attr: Attr,
    /// Where the change counter starts.
    pub counter: InitialCounter,
    /// What the driver keeps with it; see [`Inode::private`].
    pub private: Box<dyn Any + Send + Sync>,
}

/// Where the change counter of an inode starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialCounter {
    /// Read from the device. It starts as queried: nobody knows who saw the stored value.
    Stored(u64),
    /// A new inode in a used slot. The value must be above every value that earlier inodes in the slot
    /// showed. It starts as not queried.
    Fresh(u64),
    /// All 64 bits of a server's change attribute. The VFS never bumps it and serves it as it is.
    Server(u64),
    /// The format stores no counter: the inode takes the next value of a mount-wide counter.
    NotStored,
}

/// What a new inode gets. The VFS has already applied set-gid inheritance, umask and default ACLs.
#[derive(Debug, Clone)]
pub struct NewInode {
    /// Its type.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project id, inherited or 0; a format without project ids ignores it.
    pub project: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Size of a regular file in bytes; all of it is a hole. 0 for other types.
    pub size: u64,
    /// ctime and btime.
    pub now: Timestamp,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes to set in the same transaction (inherited ACLs), with full names.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl NewInode {
    /// An inode of root without any permission, made at `now`.
    pub fn new(kind: FileType, now: Timestamp) -> Self {
        Self {
            kind,
            perm: 0,
            uid: 0,
            gid: 0,
            project: 0,
            rdev: 0,
            target: Vec::new(),
            size: 0,
            now,
            atime: now,
            mtime: now,
            xattrs: Vec::new(),
        }
    }

    /// Its first attributes, with this link count.
    pub fn attr(&self, nlink: u32) -> Attr {
        Attr {
            kind: self.kind,
            perm: self.perm & 0o7777,
            uid: self.uid,
            gid: self.gid,
            project: self.project,
            nlink,
            size: self.size,
            blocks_512: 0,
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.now,
            btime: Some(self.now),
            flags: InodeFlags::empty(),
        }
    }
}

/// Operations on inodes of any type.
pub trait InodeOps {
    /// Decode an inode. It has no caller: the inode stays for all. Returns [`NameError::Stale`] for a free or
    /// reserved slot, and for a number that was valid only while its inode was in memory.
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode>;
    /// The attributes change from `old` to `new` on behalf of `caller`: reduces `new` to what the format can
    /// store, or refuses. Called once for a request, before anything changes, also before a change of the
    /// size that may still fail: it must not act.
    fn prepare_setattr(&self, _caller: &Cred, _inode: &Inode, _old: &Attr, _new: &mut Attr) -> Result<()> {
        Ok(())
    }
    /// An access time as the format stores it, where its granularity differs from that of the other times.
    fn stored_atime(&self, atime: Timestamp) -> Timestamp {
        atime
    }
    /// Put the inode's attributes and `peek` of its change counter into the log, or mark them for writing.
    /// The size on disk must never run ahead of written data.
    fn log_inode(&self, inode: &Inode) -> Result<()>;
    /// Free an orphan that is no longer used, and its blocks.
    fn delete_inode(&self, inode: &Inode) -> Result<()>;
    /// The inode leaves memory: release what is kept with it, for example preallocated blocks. May write.
    fn evict_inode(&self, _inode: &Inode) {}
    /// The inode is out of memory, and no front end remembers its number: releases what the driver keeps for
    /// the number. Until then [`InodeOps::load_inode`] must accept it. For formats whose numbers exist only
    /// in memory.
    fn release_ino(&self, _ino: Ino) {}
    /// Make one inode durable. The VFS has written its pages back and logged it. `data_only`: as fdatasync.
    fn fsync(&self, inode: &Inode, data_only: bool) -> Result<()>;
    /// Make durable what was logged of an inode (for a directory: its names too), but not its data. A driver
    /// whose callers can share a commit that flushes nothing else overrides this.
    fn commit_inode(&self, inode: &Inode) -> Result<()> {
        self.fsync(inode, false)
    }
    /// The target of a symbolic link, for `caller`.
    fn read_link(&self, _caller: &Cred, _inode: &Inode) -> Result<Vec<u8>> {
        Err(NameError::Invalid.into())
    }
}
