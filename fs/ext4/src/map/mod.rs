//! From file blocks to device blocks, and the data in them.

use crate::ctx::{Ext4, Handle};
use ivers_block::Buffer;
use ivers_vfs::{Error, FallocateMode, Inode, MappedRange, Result};
use std::sync::Arc;

/// What is promised to delayed writes of one inode.
#[derive(Debug, Default)]
pub struct Delayed;

fn missing<T>(what: &str) -> Result<T> {
    Err(Error::Incompatible(format!("{what} is not yet written")))
}

#[allow(missing_docs, unused_variables)]
impl Ext4 {
    pub(crate) fn append_dir_block(&self, h: &mut Handle, dir: &Inode) -> Result<(u64, Arc<Buffer>)> {
        missing("map")
    }
    pub(crate) fn dir_block(&self, dir: &Inode, lblk: u64) -> Result<Option<Arc<Buffer>>> {
        missing("map")
    }
    pub(crate) fn remove_blocks(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        missing("map")
    }
    pub(crate) fn write_symlink(&self, h: &mut Handle, inode: &Inode, target: &[u8]) -> Result<()> {
        missing("map")
    }
    pub(crate) fn fs_read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        missing("map")
    }
    pub(crate) fn fs_read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        missing("map")
    }
    pub(crate) fn fs_reserve(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        missing("map")
    }
    pub(crate) fn fs_unreserve(&self, inode: &Inode, offset: u64, len: u64) {}
    pub(crate) fn fs_write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        missing("map")
    }
    pub(crate) fn fs_truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        missing("map")
    }
    pub(crate) fn fs_fallocate(&self, inode: &Inode, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        missing("map")
    }
    pub(crate) fn fs_map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        missing("map")
    }
}
