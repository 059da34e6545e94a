//! Interfaces that only some formats have.

use super::filesystem::BlockPool;
use super::inode::{LoadedInode, NewInode};
use crate::error::Result;
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

/// Extended attributes, by their full names.
pub trait XattrOps {
    /// Longest value in bytes.
    fn value_max(&self) -> u32;
    /// The value; [`NameError::NoAttribute`](crate::NameError::NoAttribute) if there is none.
    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>>;
    /// All names.
    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>>;
    /// Set (`Some`) or remove (`None`) an attribute on behalf of `caller`.
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
    /// Allocate, punch, zero, collapse or insert, and call [`Inode::changed`] with `Touch::Data`. The VFS
    /// has written back and dropped the pages concerned; the driver sets `Attr::size`.
    fn fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()>;
}

/// Format-specific ioctls without an argument, for root.
pub trait IoctlOps {
    /// Whether the format has an ioctl with this number.
    fn has_ioctl(&self, number: u32) -> bool;
    /// Run an ioctl that changes a file's data, and call [`Inode::changed`] with `Touch::Data`. The VFS has
    /// written back and dropped the file's pages; the driver sets `Attr::size`.
    fn ioctl(&self, inode: &Inode, number: u32) -> Result<()>;
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

/// Figures of a journal.
pub trait JournalOps {
    /// (blocks, bytes) written to the log since the mount.
    fn written(&self) -> (u64, u64);
}
