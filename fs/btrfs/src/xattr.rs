//! Extended attributes. They are stored under their full names, and access control lists in the encoding that
//! Linux shows.

use crate::filesystem::Btrfs;
use crate::inode::Vnode;
use crate::layout::checksum::name_hash;
use crate::layout::items::DirItem;
use crate::layout::key::{Key, kind};
use ivers_vfs::{NameError, Result};
use std::ops::ControlFlow;

impl Btrfs {
    /// Returns the value of an attribute.
    pub(crate) fn xattr(&self, inode: &Vnode, name: &[u8]) -> Result<Vec<u8>> {
        if inode.is_placeholder() {
            return Err(NameError::NoAttribute.into());
        }
        let key = Key::new(inode.objectid, kind::XATTR_ITEM, name_hash(name));
        let found = self.forest.get(&self.tree_of(inode)?, key, |data| {
            let all = DirItem::decode_all(data, true)?;
            Ok(all.iter().find(|attribute| attribute.name == name).map(|found| found.value.to_vec()))
        })?;
        Ok(found.flatten().ok_or(NameError::NoAttribute)?)
    }

    /// Returns the names of all attributes.
    pub(crate) fn xattr_names(&self, inode: &Vnode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        if inode.is_placeholder() {
            return Ok(names);
        }
        let first = Key::new(inode.objectid, kind::XATTR_ITEM, 0);
        let last = Key::new(inode.objectid, kind::XATTR_ITEM, u64::MAX);
        let tree = &self.tree_of(inode)?;
        self.forest.scan(tree, first, last, |key, data| {
            let all = DirItem::decode_all(data, true).map_err(|what| self.forest.corrupt(what, tree, key))?;
            names.extend(all.iter().map(|attribute| attribute.name.to_vec()));
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(names)
    }
}
