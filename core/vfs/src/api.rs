//! What a caller of the VFS hands in and gets back, beside the types that drivers share.

use crate::opens::Watch;
use crate::policy::{AtimeMode, ChangeMode, Clock};
use crate::types::*;
use bitflags::bitflags;
use std::sync::Arc;
use std::time::Duration;

/// How a filesystem is mounted.
pub struct MountOptions {
    /// When the change counter moves.
    pub mode: ChangeMode,
    /// Timestamps alone stay in memory for up to a day.
    pub lazytime: bool,
    /// A change counter that somebody had looked at stays in memory, once raised, until something else logs the inode, it is written back, or a
    /// day passes. A crash loses what was held back, and raises the epoch: no number vouches behind it in any case.
    pub lazyversion: bool,
    /// How access times are kept.
    pub atime: AtimeMode,
    /// Nothing may change.
    pub read_only: bool,
    /// Every inode counts as marked with these: [`InodeFlags::SYNC`], [`InodeFlags::DIRSYNC`].
    pub at_once: InodeFlags,
    /// Bound of pages, buffers, inodes and dentries together (unless `budget` is given).
    pub cache_bytes: u64,
    /// Bound of dirty pages; 0: half of the cache. Write-back starts at half of this.
    pub dirty_bytes: u64,
    /// How often the write-back thread looks for old dirty data.
    pub writeback_interval: Duration,
    /// How old dirty data may get.
    pub dirty_expire: Duration,
    /// The clock of timestamps; none: the system's coarse clock.
    pub clock: Option<Box<dyn Clock>>,
    /// Run the write-back thread.
    pub background: bool,
    /// A memory bound shared with the driver's buffers.
    pub budget: Option<Arc<ivers_block::Budget>>,
    /// Who hears of opens and closes.
    pub watch: Option<Arc<dyn Watch>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            mode: ChangeMode::Lazy,
            lazytime: false,
            lazyversion: false,
            atime: AtimeMode::Relative,
            read_only: false,
            at_once: InodeFlags::empty(),
            cache_bytes: 256 << 20,
            dirty_bytes: 0,
            writeback_interval: Duration::from_secs(5),
            dirty_expire: Duration::from_secs(30),
            clock: None,
            background: true,
            budget: None,
            watch: None,
        }
    }
}

/// On whose behalf a call is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// The caller has made the permission checks already (a kernel with `default_permissions`): identities only decide
    /// who owns what is created.
    pub checked: bool,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), checked: false }
    }

    /// Somebody whose permissions were checked elsewhere.
    pub fn trusted() -> Self {
        Self { checked: true, ..Self::root() }
    }

    /// An ordinary user.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), checked: false }
    }

    /// Whether no permission check stops this caller.
    pub fn privileged(&self) -> bool {
        self.checked || self.uid == 0
    }

    /// Whether set-id bits outlive this caller's changes of data: nobody's checks elsewhere decide that.
    pub(crate) fn keeps_set_id(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller may give files of a group set-gid. Who is checked elsewhere is asked for his groups all the same.
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

/// Attributes to set; what is `None` stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Of those, the ones that stay as they are whatever `perm` says.
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
    /// Change time, from a kernel that keeps times itself.
    pub ctime: Option<Timestamp>,
    /// Inode flags.
    pub flags: Option<InodeFlags>,
    /// Project id.
    pub project: Option<u32>,
    /// Clear set-id bits and file capabilities, as a truncate by an ordinary user does.
    pub kill_priv: bool,
    /// Whoever asks has the file open for writing: that he may set the size was checked then.
    pub opened: bool,
    /// The times of changes that a cache above has accepted before: an inode flag that forbids it now comes too late.
    pub handed_over: bool,
}

impl SetAttr {
    /// Whether set-id bits and capabilities go with it.
    pub(crate) fn kills(&self, cred: &Cred) -> bool {
        let owner = self.uid.is_some() || self.gid.is_some();
        owner || self.kill_priv || (self.size.is_some() && !cred.privileged())
    }

    /// Whether it sets times alone, and to the present. A kernel that keeps times says "now" by the ctime that it gives.
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

/// What [`Vfs::create`](crate::Vfs::create) shall make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSpec {
    /// What it is.
    pub kind: FileType,
    /// Permission bits before the umask.
    pub perm: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
    /// Where a symbolic link points to.
    pub target: Vec<u8>,
    /// Permission bits to leave out, unless a default ACL decides.
    pub umask: u32,
    /// The owner, if it is not whoever makes it.
    pub uid: Option<u32>,
    /// The group, if it is not his, nor that of a directory which hands its own down.
    pub gid: Option<u32>,
    /// The access time, if it is not now.
    pub atime: Option<TimeSet>,
    /// The modification time, if it is not now.
    pub mtime: Option<TimeSet>,
    /// The size of a regular file, which is a hole.
    pub size: u64,
}

impl CreateSpec {
    /// Anything, with nothing said of it but its permission bits.
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

bitflags! {
    /// How to rename.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name is there.
        const NOREPLACE = 1;
        /// Swap the two names.
        const EXCHANGE = 2;
    }
}

bitflags! {
    /// How to write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct WriteFlags: u32 {
        /// At the end of the file, whatever the offset.
        const APPEND = 1;
        /// Past the page cache where alignment allows; in any case on the device when the call returns.
        const DIRECT = 2;
        /// Clear set-id bits and file capabilities.
        const KILL_PRIV = 4;
        /// Durable when the call returns.
        const SYNC = 8;
        /// The caller keeps the times of this file (a kernel with a write-back cache) and sets them by itself.
        const KEEP_TIMES = 16;
        /// Accepted before, by a cache above or when the file was opened to append: an inode flag that forbids it now comes too late.
        const ACCEPTED = 32;
        /// Not from the reserve ([`FsInfo::reserve`](crate::FsInfo::reserve)), whoever asks: who opened the file may not use it.
        const OPEN_ROOM = 64;
    }
}

/// What a [`ChangeEvent`] tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Contents of a file.
    Data,
    /// Attributes, links or extended attributes.
    Metadata,
    /// Names in a directory.
    Names,
    /// The inode is gone.
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
