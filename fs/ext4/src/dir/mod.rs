//! Names.

use crate::ctx::Ext4;
use ivers_vfs::{DirEntry, Error, Ino, Inode, LoadedInode, NewInode, Rename, Result};
use std::ops::ControlFlow;

fn missing<T>(what: &str) -> Result<T> {
    Err(Error::Incompatible(format!("{what} is not yet written")))
}

#[allow(missing_docs, unused_variables)]
impl Ext4 {
    pub(crate) fn fs_lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        missing("dir")
    }
    pub(crate) fn fs_parent(&self, dir: &Inode) -> Result<Ino> {
        missing("dir")
    }
    pub(crate) fn fs_readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        missing("dir")
    }
    pub(crate) fn fs_create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        missing("dir")
    }
    pub(crate) fn fs_create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        missing("dir")
    }
    pub(crate) fn fs_link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        missing("dir")
    }
    pub(crate) fn fs_unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        missing("dir")
    }
    pub(crate) fn fs_rename(&self, rename: &Rename<'_>) -> Result<()> {
        missing("dir")
    }
}
