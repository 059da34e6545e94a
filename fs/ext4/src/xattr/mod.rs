//! Extended attributes.

use crate::ctx::{Ext4, Handle};
use ivers_vfs::{Error, Inode, Result, XattrMode};

fn missing<T>(what: &str) -> Result<T> {
    Err(Error::Incompatible(format!("{what} is not yet written")))
}

#[allow(missing_docs, unused_variables)]
impl Ext4 {
    pub(crate) fn fs_get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        missing("xattr")
    }
    pub(crate) fn fs_list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        missing("xattr")
    }
    pub(crate) fn fs_set_xattr(&self, inode: &Inode, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        missing("xattr")
    }
    /// The value of an attribute by the format's name index and short name, or `None`.
    pub(crate) fn xattr_get_raw(&self, inode: &Inode, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        missing("xattr")
    }
    /// Set or remove one within a transaction. Changes `InodeCore` and attribute blocks; the caller logs the inode.
    pub(crate) fn xattr_set_raw(
        &self,
        h: &mut Handle,
        inode: &Inode,
        index: u8,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        missing("xattr")
    }
    /// Give up everything that the attributes of a dying inode hold: the block's reference, attribute inodes.
    pub(crate) fn xattr_delete_all(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        missing("xattr")
    }
}
