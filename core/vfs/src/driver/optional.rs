//! Interfaces that only some formats have.

use super::filesystem::BlockPool;
use super::inode::{LoadedInode, NewInode};
use crate::error::{NameError, Result};
use crate::inode::Inode;
use crate::requests::Cred;
use crate::types::*;

/// How [`XattrOps::set_xattr`] treats an attribute that is there or missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// It must be new (XATTR_CREATE).
    Create,
    /// It must be there (XATTR_REPLACE).
    Replace,
}

impl XattrMode {
    /// Whether an attribute that `exists` or not may be set in this mode, or removed.
    pub fn check(self, exists: bool, removes: bool) -> std::result::Result<(), NameError> {
        match self {
            _ if removes && !exists => Err(NameError::NoAttribute),
            _ if removes => Ok(()),
            Self::Create if exists => Err(NameError::Exists),
            Self::Replace if !exists => Err(NameError::NoAttribute),
            _ => Ok(()),
        }
    }
}

/// Extended attributes, by their full names. `caller` is the user who asks, or [`Cred::system`] where the
/// VFS reads for itself (an access control list that decides, a file capability to remove).
pub trait XattrOps {
    /// Longest value in bytes.
    fn value_max(&self) -> u32;
    /// Returns the prefix of the names of properties. A property is an attribute that changes how the format
    /// stores a file. A caller that may write the file may set its properties.
    fn properties(&self) -> Option<&'static [u8]> {
        None
    }
    /// The value; [`NameError::NoAttribute`](crate::NameError::NoAttribute) if there is none.
    fn get_xattr(&self, caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>>;
    /// All names.
    fn list_xattr(&self, caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>>;
    /// Set (`Some`) or remove (`None`) an attribute. [`XattrMode::check`] says whether that may be done.
    fn set_xattr(
        &self,
        caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()>;
}

/// Files without a name (O_TMPFILE).
pub trait UnnamedFileOps {
    /// Make an inode without a name: an orphan until it is linked.
    fn create_unnamed(&self, caller: &Cred, dir: &Inode, new: &NewInode) -> Result<LoadedInode>;
}

/// Which ranges of a file are holes.
pub trait BlockMapOps {
    /// The range of the block map that contains `offset`; the VFS adds dirty pages. Past the last block: a
    /// hole that ends at `u64::MAX`.
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange>;
}

/// Space of files, apart from writing.
pub trait AllocateOps {
    /// Returns which of [`FallocateMode::KINDS`] the format can do. The VFS refuses the others, before it
    /// looks at the range.
    fn kinds(&self) -> FallocateMode {
        FallocateMode::KINDS
    }
    /// Allocate, punch, zero, collapse or insert, and call [`Inode::changed`] with `Touch::Data`. The VFS
    /// has written back and dropped the pages concerned; the driver sets `Attr::size`.
    fn fallocate(
        &self,
        caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()>;
}

/// Copies within the filesystem that move no bytes through the VFS: a file and an offset to another file and
/// offset, perhaps of the same file. The ranges do not overlap, and the source's is below its end. The VFS
/// has written both back and dropped the target's pages. The driver raises the target's `Attr::size` if its
/// range ends later, and calls [`Inode::changed`] for it with `Touch::Data`.
pub trait CloneOps {
    /// Makes both ranges share their blocks. They begin at multiples of
    /// [`FsInfo::block_size`](super::FsInfo::block_size), and end at one or at the end of both files. After
    /// an error or a crash the start of the range may be shared, and each block has its old contents or its
    /// new ones. Returns `NotSupported`, with nothing changed, if the driver only copies.
    fn clone_range(
        &self,
        caller: &Cred,
        from: (&Inode, u64),
        to: (&Inode, u64),
        len: u64,
        pool: BlockPool,
    ) -> Result<()>;
    /// Copies up to `len` bytes, at least one, and returns how many: used where blocks cannot be shared.
    /// `NotSupported`, with nothing changed, if the driver only shares: then the VFS copies.
    fn copy_range(
        &self,
        _caller: &Cred,
        _from: (&Inode, u64),
        _to: (&Inode, u64),
        _len: u64,
        _pool: BlockPool,
    ) -> Result<u64> {
        Err(NameError::NotSupported.into())
    }
}

/// Format-specific ioctls, for root.
pub trait IoctlOps {
    /// Whether the format has an ioctl with this number.
    fn has_ioctl(&self, number: u32) -> bool;
    /// Run an ioctl. `input` is the caller's argument, of any length; the result is what it gets back. The
    /// VFS has written back and dropped the file's pages. If the ioctl changes data, the driver sets
    /// `Attr::size` and calls [`Inode::changed`] with `Touch::Data`.
    fn ioctl(&self, caller: &Cred, inode: &Inode, number: u32, input: &[u8]) -> Result<Vec<u8>>;
}

/// The epoch of a format that stores the change counter.
pub trait EpochOps {
    /// What is added to every change counter to give the change attribute: `epoch * 2^40`.
    fn base(&self) -> u64;
    /// Raise the epoch durably: the first change of a mount with `iversion=off`, so that no older value
    /// vouches for it.
    fn raise(&self) -> Result<()>;
    /// Leave the record OPEN at unmount, so that the next mount raises the epoch: what was served in this
    /// session may not match what the device holds.
    fn keep_open(&self);
}

/// The sizes of a filesystem before and after a resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeReport {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks before.
    pub old_blocks: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of block groups.
    pub groups: u32,
}

/// Growing a filesystem while it is in use.
pub trait GrowOps {
    /// What [`GrowOps::grow`] would do. Returns [`Error::Incompatible`](crate::Error::Incompatible) with the
    /// reason if it would refuse.
    fn plan_growth(&self, bytes: Option<u64>) -> Result<ResizeReport>;

    /// Makes the filesystem larger: it then has at most `bytes`, or all of the device if they are `None`. The
    /// device is extended if it is an image file. Durable on return. After a crash the filesystem has the
    /// old size or the new one.
    fn grow(&self, bytes: Option<u64>) -> Result<ResizeReport>;
}

/// The label of a filesystem.
pub trait LabelOps {
    /// Sets the label; an empty one removes it. `root` is the root directory. The VFS makes the change
    /// durable. After a crash the filesystem has the old label or the new one. Returns
    /// [`Error::Incompatible`](crate::Error::Incompatible) with the reason if the format cannot store it.
    fn set_label(&self, root: &Inode, label: &str) -> Result<()>;
}

/// Figures of a journal.
pub trait JournalOps {
    /// (blocks, bytes) written to the log since the mount.
    fn written(&self) -> (u64, u64);
}

/// A subvolume, as [`SubvolumeOps::list`] describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its number.
    pub id: u64,
    /// The number of the subvolume that contains its name; `None` for the top level.
    pub parent: Option<u64>,
    /// Its path from the top level; empty for the top level itself. `None`: it has none.
    pub path: Option<Vec<u8>>,
    /// Nothing in it can be changed.
    pub read_only: bool,
    /// It is mounted if no other one is asked for.
    pub is_default: bool,
    /// The transaction of its last change.
    pub generation: u64,
    /// Its UUID; zeros if it has none.
    pub uuid: [u8; 16],
    /// The UUID of the subvolume that it is a snapshot of, or zeros.
    pub parent_uuid: [u8; 16],
    /// The UUID of the subvolume on another filesystem that it was received from, or zeros.
    pub received_uuid: [u8; 16],
    /// When it was made.
    pub created: Timestamp,
}

/// Subvolumes: trees of files that share one filesystem, and of which snapshots are made. Each change is
/// durable when it returns.
pub trait SubvolumeOps {
    /// All subvolumes, by number.
    fn list(&self) -> Result<Vec<SubvolumeInfo>>;
    /// Whether an inode is in the subvolume with the root `root`. Reads nothing.
    fn contains(&self, root: &Inode, ino: Ino) -> bool;
    /// Makes an empty subvolume. The VFS holds the exclusive lock of the directory.
    fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<()>;
    /// Makes a snapshot of the subvolume with the root `source`. The VFS holds the exclusive locks of
    /// `source` and `dir`. It has written back all pages.
    fn snapshot(
        &self,
        source: &Inode,
        dir: &Inode,
        name: &[u8],
        read_only: bool,
        now: Timestamp,
    ) -> Result<()>;
    /// Deletes the subvolume with the root `victim`. The VFS holds the exclusive locks of `victim` and `dir`.
    /// It has written back all pages.
    fn delete(&self, dir: &Inode, name: &[u8], victim: &Inode) -> Result<()>;
}
