//! Arguments and results of VFS calls, apart from the types that drivers share.

use crate::error::{Error, Result};
use crate::open_hooks::FileObserver;
use crate::types::*;
use crate::update_policy::{AtimeMode, ChangeMode, Clock};
use bitflags::bitflags;
use std::sync::Arc;
use std::time::Duration;

/// How a filesystem is mounted.
pub struct MountOptions {
    /// When the change counter is bumped.
    pub mode: ChangeMode,
    /// Whether changed times alone stay in memory for up to a day.
    pub lazytime: bool,
    /// Whether a bump that only a query asked for is deferred: until something else logs the inode, it is
    /// written back, or a day passes. `None`: where the driver keeps an epoch. A crash loses deferred bumps
    /// and raises the epoch, so no earlier value vouches afterwards.
    pub lazyversion: Option<bool>,
    /// How access times are kept.
    pub atime: AtimeMode,
    /// Nothing may change.
    pub read_only: bool,
    /// Flags that count as set on every inode: [`InodeFlags::SYNC`], [`InodeFlags::DIRSYNC`].
    pub sync_flags: InodeFlags,
    /// Limit of pages, buffers, inodes and dentries together in bytes, unless `budget` is given.
    pub cache_bytes: u64,
    /// Limit of dirty pages in bytes; 0: half of the cache. Write-back starts at half of this.
    pub dirty_bytes: u64,
    /// Interval at which the write-back thread looks for old dirty data.
    pub writeback_interval: Duration,
    /// Age at which dirty data is written back.
    pub dirty_expire: Duration,
    /// The clock of timestamps; `None`: the system's coarse clock.
    pub clock: Option<Box<dyn Clock>>,
    /// Whether the write-back thread runs.
    pub background: bool,
    /// A memory limit shared with the driver's buffers.
    pub budget: Option<Arc<ivers_block::Budget>>,
    /// Where the device of the mount counts its reads and writes, for [`crate::Vfs::counters`].
    pub io_counts: Option<Arc<ivers_block::IoCounts>>,
    /// Who is told of opens and closes.
    pub observer: Option<Arc<dyn FileObserver>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            mode: ChangeMode::Lazy,
            lazytime: false,
            lazyversion: None,
            atime: AtimeMode::Relative,
            read_only: false,
            sync_flags: InodeFlags::empty(),
            cache_bytes: 256 << 20,
            dirty_bytes: 0,
            writeback_interval: Duration::from_secs(5),
            dirty_expire: Duration::from_secs(30),
            clock: None,
            background: true,
            budget: None,
            io_counts: None,
            observer: None,
        }
    }
}

/// The user on whose behalf a call runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The caller has checked permissions already (a kernel with `default_permissions`). The identity only
    /// decides who owns what is created.
    pub access_checked: bool,
    /// No user asks: the stack works for itself ([`Cred::system`]).
    pub system: bool,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), access_checked: false, system: false }
    }

    /// The stack itself, for background work, queries and checks. No permission stops it. The driver of a
    /// server uses the credentials of its machine, and not those of user 0.
    pub fn system() -> Self {
        Self { access_checked: true, system: true, ..Self::root() }
    }

    /// A caller whose permissions were checked elsewhere.
    pub fn trusted() -> Self {
        Self { access_checked: true, ..Self::root() }
    }

    /// An ordinary user.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..Self::root() }
    }

    /// Whether no permission check stops this caller.
    pub fn privileged(&self) -> bool {
        self.access_checked || self.uid == 0
    }

    /// Whether set-id bits stay when this caller changes data. [`Cred::access_checked`] has no say in it.
    pub(crate) fn keeps_set_id(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller may set set-gid on a file of this group. A [`Cred::access_checked`] caller needs
    /// the group too.
    pub(crate) fn may_set_gid(&self, gid: u32) -> bool {
        self.keeps_set_id() || self.in_group(gid)
    }

    /// Whether the caller is in a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSet {
    /// The time of the call.
    Now,
    /// A given time.
    At(Timestamp),
}

/// Attributes to set; `None` leaves an attribute as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// The permission bits that keep their value whatever `perm` says.
    pub keep_perm: u32,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncate or extend.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeSet>,
    /// Modification time.
    pub mtime: Option<TimeSet>,
    /// Change time, from a kernel that keeps times.
    pub ctime: Option<Timestamp>,
    /// Inode flags.
    pub flags: Option<InodeFlags>,
    /// Project id.
    pub project: Option<u32>,
    /// The file is open for writing by the caller: permission to change the size was checked at open.
    pub opened: bool,
    /// The times of changes that a cache above has accepted already: an inode flag that forbids them comes
    /// too late.
    pub already_accepted: bool,
}

impl SetAttr {
    /// Whether it sets owner or group, also to the same value.
    pub(crate) fn is_chown(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Whether it only sets times, and to the present. A kernel that keeps times says "now" by the ctime that
    /// it gives.
    pub(crate) fn is_touch(&self) -> bool {
        let now = |time: TimeSet| match time {
            TimeSet::Now => true,
            TimeSet::At(time) => self.ctime == Some(time),
        };
        let times = Self { atime: self.atime, mtime: self.mtime, ctime: self.ctime, ..Self::default() };
        *self == times
            && (self.atime.is_some() || self.mtime.is_some())
            && self.atime.is_none_or(now)
            && self.mtime.is_none_or(now)
    }
}

/// What [`Vfs::create`](crate::Vfs::create) creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSpec {
    /// Its type.
    pub kind: FileType,
    /// Permission bits before the umask.
    pub perm: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Permission bits to remove, unless a default ACL decides.
    pub umask: u32,
    /// The owner, if it is not the caller.
    pub uid: Option<u32>,
    /// The group, if it is neither the caller's nor inherited from a set-gid directory.
    pub gid: Option<u32>,
    /// The access time, if it is not now.
    pub atime: Option<TimeSet>,
    /// The modification time, if it is not now.
    pub mtime: Option<TimeSet>,
    /// Size of a regular file in bytes; all of it is a hole.
    pub size: u64,
}

impl CreateSpec {
    /// An inode of this type with these permission bits and defaults for the rest.
    pub fn of(kind: FileType, perm: u32) -> Self {
        Self {
            kind,
            perm,
            rdev: 0,
            target: Vec::new(),
            umask: 0,
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            size: 0,
        }
    }

    /// A regular file.
    pub fn file(perm: u32) -> Self {
        Self::of(FileType::Regular, perm)
    }

    /// A directory.
    pub fn directory(perm: u32) -> Self {
        Self::of(FileType::Directory, perm)
    }

    /// A symbolic link.
    pub fn symlink(target: impl Into<Vec<u8>>) -> Self {
        Self { target: target.into(), ..Self::of(FileType::Symlink, 0o777) }
    }
}

/// What a write did.
#[derive(Debug)]
pub struct WriteOutcome {
    /// How many bytes were written, from the front.
    pub bytes: usize,
    /// Why the rest was not written, if there is a rest.
    pub error: Option<Error>,
}

impl WriteOutcome {
    /// The number of bytes, as write(2) returns it: the error only if nothing was written.
    pub fn count(self) -> Result<usize> {
        match self.error {
            Some(error) if self.bytes == 0 => Err(error),
            _ => Ok(self.bytes),
        }
    }

    /// The number of bytes if all were written, otherwise the error.
    pub fn complete(self) -> Result<usize> {
        self.error.map_or(Ok(self.bytes), Err)
    }
}

bitflags! {
    /// How to rename.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name exists.
        const NOREPLACE = 1;
        /// Swap the two names.
        const EXCHANGE = 2;
    }
}

bitflags! {
    /// How to write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct WriteFlags: u32 {
        /// Write at the end of the file, whatever the offset.
        const APPEND = 1;
        /// Bypass the page cache where alignment allows. The data is on the device when the call returns.
        const DIRECT = 2;
        /// Remove set-id bits: the kernel of a [`Cred::access_checked`] caller decided so.
        const KILL_SET_ID = 4;
        /// Durable when the call returns.
        const SYNC = 8;
        /// The caller keeps the times of this file and sets them itself (a kernel with a write-back cache).
        const TIMES_SET_BY_CALLER = 16;
        /// Accepted already, by a cache above or when the file was opened to append: an inode flag that
        /// forbids it comes too late.
        const ALREADY_ACCEPTED = 32;
        /// Do not use reserved blocks ([`FsInfo::reserved`](crate::FsInfo::reserved)): the opener of the
        /// file may not.
        const UNRESERVED_POOL = 64;
        /// The caller caches these bytes: do not keep a second copy where alignment allows. The data is on
        /// the device when the call returns, or in the page cache if the device failed.
        const CACHED_BY_CALLER = 128;
    }
}

/// The kind of a [`ChangeEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Contents of a file.
    Data,
    /// Attributes, links or extended attributes.
    Metadata,
    /// Names in a directory.
    Names,
    /// The inode was deleted.
    Deleted,
}

/// A change that completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The inode.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// What changed.
    pub kind: ChangeKind,
}
