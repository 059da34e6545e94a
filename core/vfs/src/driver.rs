//! What a filesystem driver says, and what it may rely on.
//!
//! The VFS owns what is the same for all: names and permissions, caches, times, the change counter, dirty states,
//! write-back. A driver says how an inode is decoded and encoded and how names and blocks are found and changed. It
//! opens its own transactions: the VFS never sees one.
//!
//! # Locks
//!
//! `Inode::lock` is held by the VFS around driver calls: *shared* for `lookup`, `readdir`, `readlink`, `read`, `map`;
//! *exclusive* for everything that changes names or the map (`create`, `link`, `unlink`, `rename`: the directories
//! and the victim; `truncate`, `fallocate`, `call`, `write_direct`: the file). `write_back`, `reserve` and `log_inode` come under the
//! file's write-back lock or its exclusive lock: a driver guards its map with a lock of its own, below these.
//! Attributes lie under a short leaf lock (`Inode::attr`): never call out while you hold it.
//!
//! # Changes
//!
//! Every call that changes an inode (`create`, `link`, `unlink`, `rename`, `truncate`, `fallocate`, `set_xattr`, `call`) makes the change visible first and then calls [`Inode::changed`] with
//! [`Logged::Anyway`](crate::Logged::Anyway) if it logs the inode in the same transaction whatever happens, or with [`Logged::IfNeeded`](crate::Logged::IfNeeded), and
//! logs it only if that returns true. A call that returns an error has either changed nothing visible or called
//! `changed`. Background work (allocation at write-back, orphan clean-up) never calls it.

use crate::error::{NameError, Result};
use crate::inode::Inode;
use crate::pages::PAGE;
use crate::types::*;
use std::any::Any;
use std::ops::ControlFlow;

/// What a driver tells about the filesystem that it opened.
#[derive(Debug, Clone)]
pub struct FsInfo {
    /// The format: `ext4`, `mem`.
    pub fs_type: &'static str,
    /// The label, lossy.
    pub label: String,
    /// The UUID; all zero where the format has none.
    pub uuid: [u8; 16],
    /// Bytes a block.
    pub block_size: u32,
    /// The root directory.
    pub root: Ino,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Largest file in bytes.
    pub max_file_size: u64,
    /// Largest number of names of a non-directory.
    pub max_links: u32,
    /// Granule of stored times in nanoseconds.
    pub time_granularity_ns: u32,
    /// The promises of the change attribute.
    pub semantics: ChangeSemantics,
    /// Why there is no cookie, if there is none.
    pub no_cookie: Option<String>,
    /// Why it is read-only, if it is.
    pub read_only: Option<String>,
    /// Longest value of an extended attribute in bytes; 0: none are kept.
    pub xattr_value_max: u32,
    /// Project ids are kept.
    pub projects: bool,
    /// A number with its generation means the same inode, or none, when the filesystem is mounted again. The root's do in any case.
    pub numbers_last: bool,
    /// Who may use the blocks that are kept from everybody else; `None`: none are.
    pub reserve: Option<Reserve>,
}

/// Whose the blocks are that a filesystem keeps for times of need, beside the superuser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// This user.
    pub uid: u32,
    /// The members of this group.
    pub gid: Option<u32>,
}

/// Which free blocks a change may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Those that are for everybody.
    Open,
    /// The reserve too.
    Reserve,
}

/// An inode as a driver decodes it.
pub struct LoadedInode {
    /// Its number.
    pub ino: Ino,
    /// Tells lives of one inode number apart.
    pub generation: u32,
    /// Its attributes.
    pub attr: Attr,
    /// Where the change counter starts.
    pub version: InitialVersion,
    /// What the driver keeps beside it; see [`Inode::private`].
    pub private: Box<dyn Any + Send + Sync>,
}

/// Where the counter of an inode starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialVersion {
    /// Read from the device: nobody knows who saw it, so it starts as queried.
    Stored(u64),
    /// A new life of a stored inode slot, above everything its earlier lives showed: starts unqueried.
    Fresh(u64),
    /// The format stores none: takes the next value of the mount-wide counter.
    NotStored,
}

/// What a new inode shall be. The VFS has already settled set-gid inheritance, umask and default ACLs.
#[derive(Debug, Clone)]
pub struct NewInode {
    /// What it is.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project id, inherited or 0; formats without project ids leave it out.
    pub project: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
    /// Where a symbolic link points to.
    pub target: Vec<u8>,
    /// Bytes of a regular file, all of them a hole; 0 for everything else, and for a file that is to be filled.
    pub size: u64,
    /// ctime and btime.
    pub now: Timestamp,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Attributes to set in the same transaction (inherited ACLs), full names.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl NewInode {
    /// One of root's, with no permission for anybody, made now.
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

    /// The attributes that it starts with, and so many names. All that is given is in here: a driver that starts from this stores it.
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

/// One rename, checked by the VFS (types, emptiness is the driver's to check, loops, permissions).
pub struct Rename<'a> {
    /// Directory that loses the name.
    pub old_dir: &'a Inode,
    /// The name.
    pub old_name: &'a [u8],
    /// Directory that gains the name; may be `old_dir`.
    pub new_dir: &'a Inode,
    /// The new name.
    pub new_name: &'a [u8],
    /// What is renamed.
    pub inode: &'a Inode,
    /// What the new name stands for now, if anything.
    pub target: Option<&'a Inode>,
    /// Swap the two (target is there) instead of replacing.
    pub exchange: bool,
}

/// How `set_xattr` treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Make or replace.
    Any,
    /// Must be new (XATTR_CREATE).
    Create,
    /// Must be there (XATTR_REPLACE).
    Replace,
}

/// A filesystem of some format, opened.
pub trait FileSystem: Send + Sync + 'static {
    /// What it is.
    fn info(&self) -> FsInfo;
    /// Free space and such.
    fn stat_fs(&self) -> Result<StatFs>;

    /// Decode an inode. Free or reserved slots are [`NameError::Stale`], and so are numbers that were good only while the inode was in memory.
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode>;
    /// Attributes are to be set to `new`: cut them down to what the format keeps, or refuse. Under the inode's exclusive lock.
    fn fit(&self, _inode: &Inode, _old: &Attr, _new: &mut Attr) -> Result<()> {
        Ok(())
    }
    /// An access time as the format keeps it, where its granule is another than that of the other times.
    fn stored_atime(&self, atime: Timestamp) -> Timestamp {
        atime
    }
    /// Put the inode's attributes and `peek` of its counter into the log (or mark them for writing). The disk size
    /// never runs ahead of written data.
    fn log_inode(&self, inode: &Inode) -> Result<()>;
    /// The last user of an inode without names is gone: free its blocks and itself.
    fn delete_inode(&self, inode: &Inode) -> Result<()>;
    /// The inode leaves the cache; drop what is kept beside it (preallocation). Under none of its locks: this may write.
    fn forget_inode(&self, _inode: &Inode) {}

    /// Find a name, never `.` or `..`.
    fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>>;
    /// Whether several spellings may be one name (case that does not count, short names beside long ones). The VFS then believes what it remembers of names only
    /// while their directory has not changed.
    fn names_alias(&self) -> bool {
        false
    }
    /// Whether two names differ in their spelling alone: a rename from one to the other comes with no target.
    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        a == b
    }
    /// The parent of a directory (its `..`).
    fn parent(&self, dir: &Inode) -> Result<Ino>;
    /// Emit entries, `.` and `..` included, from a cursor on (0: the start) until `emit` breaks. Entries that stay
    /// throughout are emitted exactly once even if others come and go between calls.
    fn readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
    /// Make an inode with one name (a directory: with `.` and `..`) and everything that is said of it in one transaction; the name is known to be free.
    fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode>;
    /// Make an inode without a name (O_TMPFILE): an orphan until it is linked.
    fn create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<LoadedInode>;
    /// Another name for an inode; known to be free. `nlink` rises in here.
    fn link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()>;
    /// Take a name away from a non-directory or an empty directory (checked here: `NotEmpty`). `nlink` falls in here; at 0
    /// the inode becomes an orphan until `delete_inode`.
    fn unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()>;
    /// Rename in one transaction.
    fn rename(&self, rename: &Rename<'_>) -> Result<()>;
    /// The target of a symbolic link.
    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>>;

    /// Fill `buf` from the device, holes and unwritten ranges as zeros. `offset` is block-aligned; what lies behind the
    /// size is zero.
    fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Promise room for dirtying these bytes later (delayed allocation), or `NoSpace` now. Called before pages become
    /// dirty, and before a file grows past a step of [`FileSystem::room_step`] within a dirty page; repeated calls for one range promise once, from
    /// the room of the first.
    fn reserve(&self, inode: &Inode, offset: u64, len: u64, room: Room) -> Result<()>;
    /// In steps of how many bytes of a file room is promised. Formats with blocks smaller than pages either promise whole pages, or say
    /// here that a page that is dirty already may need more.
    fn room_step(&self) -> u64 {
        PAGE as u64
    }
    /// Write a run of page data: allocate what is missing, put the data on the device, then map it and carry the disk
    /// size up to `min(offset + data.len(), Attr::size)`, in that order, so that a crash never shows another file's bytes. `offset` is
    /// page-aligned; `data` ends at a page or at the end of the file.
    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()>;
    /// 512-byte units that an inode takes and that were promised to it, so that what is shown does not change when the pages are written. What has
    /// data and no block passes for one hole: there are tools that do not read it then.
    fn blocks_512(&self, inode: &Inode) -> u64 {
        inode.with_attr(|attr| attr.blocks_512)
    }
    /// The pages of this range were dropped unwritten (truncate, delete): give reservations back.
    fn unreserve(&self, _inode: &Inode, _offset: u64, _len: u64) {}
    /// Change the size (and call [`Inode::changed`] with `Touch::Data`). The VFS has cut its pages and set `Attr::size`; growing makes a hole. A shrink to the middle of a
    /// block has zeroed that block's tail in the page cache; the driver zeroes the device's when it must.
    fn truncate(&self, inode: &Inode, size: u64) -> Result<()>;
    /// Allocate, punch, zero, collapse or insert (and call [`Inode::changed`] with `Touch::Data`). The VFS has written back and dropped the pages concerned, and sets the size afterwards from
    /// `Attr::size` as the driver left it.
    fn fallocate(&self, inode: &Inode, mode: FallocateMode, offset: u64, len: u64, room: Room) -> Result<()>;
    /// The piece of the map that holds `offset` (delayed data is the VFS's to know). Behind the last block: a hole to
    /// `u64::MAX`.
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange>;

    /// The value of an attribute, by its full name.
    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>>;
    /// The full names.
    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>>;
    /// Set (`Some`) or remove (`None`).
    fn set_xattr(&self, inode: &Inode, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()>;

    /// Make one inode durable: the VFS has written its pages back and logged it. `data_only` as fdatasync.
    fn fsync(&self, inode: &Inode, data_only: bool) -> Result<()>;
    /// Make durable what was logged of an inode (of a directory: its names too), but not its data. Drivers whose callers can share a commit that flushes
    /// nothing else say more than this.
    fn commit(&self, inode: &Inode) -> Result<()> {
        self.fsync(inode, false)
    }
    /// Make everything that was logged durable.
    fn sync(&self) -> Result<()>;
    /// Everything is written back: make it durable and mark the filesystem closed.
    fn unmount(&self) -> Result<()>;

    /// Whether the format has a call of its own by this number, that of a Linux ioctl without an argument.
    fn has_call(&self, _number: u32) -> bool {
        false
    }
    /// Do such a call, which changes a file's data (and call [`Inode::changed`] with `Touch::Data`). The VFS has written back and
    /// dropped the file's pages and holds it exclusively; `Attr::size` is as the driver leaves it.
    fn call(&self, _inode: &Inode, _number: u32) -> Result<()> {
        Err(NameError::NotSupported.into())
    }

    /// What is added to every counter before it is handed out: `epoch * 2^40`. Formats that store nothing answer 0.
    fn version_base(&self) -> u64 {
        0
    }
    /// Whether the change attribute may be handed out now: false after a journal abort. Cheap; asked at every query.
    fn serves_cookie(&self) -> bool {
        true
    }
    /// The first change of a mount with `iversion=off`: raise the epoch so that no older value vouches.
    fn raise_epoch(&self) -> Result<()> {
        Ok(())
    }
    /// Journal figures: (blocks, bytes) written so far.
    fn journal_stats(&self) -> (u64, u64) {
        (0, 0)
    }
    /// A short list of format-specific facts for `ivers info`.
    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
