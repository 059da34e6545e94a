//! Extended attributes.

use super::change::Need;
use super::packing::{PROPERTIES, PROPERTY, flags_of_property};
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{Vnode, vnode_of};
use crate::layout::checksum::name_hash;
use crate::layout::items::{DirItem, FT_XATTR, InodeItem, NAME_MAX, encode_entry, inode_flags};
use crate::layout::key::{Key, kind, object};
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The root of the top-level subvolume. It has hidden attributes with what later sessions must know.
pub(super) const TOP: (u64, u64) = (object::FS_TREE, object::FIRST_FREE);
/// An attribute has no location.
const NOWHERE: Key = Key::new(0, 0, 0);

impl Btrfs {
    /// Reads a hidden attribute of the root of the top-level subvolume.
    pub(super) fn top_attribute(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let root = Vnode::new(TOP.0, TOP.1, InodeItem::empty(FileType::Directory));
        match self.xattr(&root, name) {
            Ok(value) => Ok(Some(value)),
            Err(Error::Name(NameError::NoAttribute)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Tx<'_> {
    fn encode_attribute(&self, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        if name.len() > NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        let data = encode_entry(NOWHERE, self.live.transid, name, value, FT_XATTR);
        if data.len() > self.most_data() || value.len() > usize::from(u16::MAX) {
            return Err(NameError::NoSpace.into());
        }
        Ok(data)
    }

    /// The items for the attributes of a new inode. Their keys lack its number.
    pub(super) fn encode_new_attributes(&self, all: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut items: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (name, value) in all {
            items.entry(name_hash(name)).or_default().extend(self.encode_attribute(name, value)?);
        }
        if items.values().any(|data| data.len() > self.most_data()) {
            return Err(NameError::NoSpace.into());
        }
        Ok(items.into_iter().map(|(hash, data)| (Key::new(0, kind::XATTR_ITEM, hash), data)).collect())
    }

    /// Sets or removes an attribute. An error of a name comes before any change.
    pub(super) fn store_attribute(
        &mut self,
        (subvolume, objectid): (u64, u64),
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let key = Key::new(objectid, kind::XATTR_ITEM, name_hash(name));
        let data = self.item(subvolume, key)?.unwrap_or_default();
        let all = DirItem::decode_all(&data, true).map_err(|what| self.broken(what))?;
        let exists = all.iter().any(|attribute| attribute.name == name);
        mode.check(exists, value.is_none())?;
        let mut rest = Vec::new();
        for other in all.iter().filter(|attribute| attribute.name != name) {
            rest.extend(encode_entry(other.location, other.transid, other.name, other.value, other.kind));
        }
        if let Some(value) = value {
            rest.extend(self.encode_attribute(name, value)?);
        }
        if rest.len() > self.most_data() {
            return Err(NameError::NoSpace.into());
        }
        self.touch((subvolume, objectid));
        self.put_rest(subvolume, key, &rest)
    }
}

impl Btrfs {
    /// Sets or removes an attribute.
    pub(crate) fn set_attribute(
        &self,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        if name.starts_with(PROPERTIES) {
            return self.set_property(inode, name, value, mode);
        }
        let vnode = vnode_of(inode);
        let need = if value.is_some() { Need::Items } else { Need::Removal };
        self.change(need, |tx| {
            tx.may_change(vnode)?;
            tx.store_attribute((vnode.subvolume, vnode.objectid), name, value, mode)?;
            inode.changed(Touch::Metadata, Logged::Anyway);
            tx.write_inode(inode)
        })
    }

    /// Sets or removes a property: an attribute that changes flags of the inode.
    fn set_property(&self, inode: &Inode, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        let vnode = vnode_of(inode);
        if name != PROPERTY || !matches!(inode.kind, FileType::Regular | FileType::Directory) {
            return Err(NameError::Invalid.into());
        }
        let flags = flags_of_property(value).ok_or(NameError::Invalid)?;
        if flags != 0 && vnode.item.lock().flags() & inode_flags::PLAIN != 0 {
            return Err(NameError::Invalid.into());
        }
        // An empty value removes it, as on Linux.
        let value = value.filter(|value| !value.is_empty());
        self.change(Need::Items, |tx| {
            tx.may_change(vnode)?;
            tx.store_attribute((vnode.subvolume, vnode.objectid), name, value, mode)?;
            tx.edit_item(inode, |item| {
                let raw = item.raw_mut();
                raw.flags = (raw.flags.get() & !inode_flags::COMPRESSION | flags).into();
            });
            vnode.not_shrunk.store(0, Ordering::Relaxed);
            inode.changed(Touch::Metadata, Logged::Anyway);
            tx.write_inode(inode)
        })
    }
}
