//! Changes of extended attributes, in all forms.
//!
//! | form | becomes the next one when | becomes the one before when |
//! |---|---|---|
//! | none | there is an attribute | there is none |
//! | short form | the inode has no space, or a value has more than 255 bytes | all fit in the inode |
//! | block | the block is full | one block is left |
//! | tree of blocks | | |
//!
//! Values of more than about three quarters of a block have blocks of their own.

mod acl;
mod fork_offset;
mod key;
mod leaf;
mod remote;
mod short;
mod tree;

use super::tx::Tx;
use crate::attr::{AttrSource, Attribute, Value, is_shown_acl, short as stored_short, split_name};
use crate::fork::{Fork, Which};
use crate::inode::Dinode;
use crate::layout::attribute::{VALUE_MAX, flags};
use crate::log::Pointer;
use ivers_vfs::{Error, NameError, Result, XattrMode};
use key::Key;
use leaf::Item;

impl Tx<'_> {
    /// Sets, replaces or removes an attribute by its full name.
    pub(crate) fn set_attribute(
        &mut self,
        inode: &mut Dinode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (namespace, stored) = split_name(name).ok_or(NameError::NotSupported)?;
        if stored.len() > u8::MAX.into() || stored.contains(&0) {
            return Err(NameError::AttributeTooLarge.into());
        }
        let converted = match value {
            Some(shown) if is_shown_acl(name) => Some(acl::to_disk(shown).ok_or(NameError::Invalid)?),
            other => other.map(<[u8]>::to_vec),
        };
        if converted.as_ref().is_some_and(|value| value.len() > VALUE_MAX as usize) {
            return Err(NameError::AttributeTooLarge.into());
        }
        let exists = self.find_attribute(inode, namespace, stored)?.is_some();
        mode.check(exists, converted.is_none())?;
        let key = Key { namespace, name: stored, value: None };
        let new = converted.map(|value| (key, value));
        self.change_attributes(
            inode,
            exists.then_some(key),
            new.as_ref().map(|(key, value)| (*key, &value[..])),
        )
    }

    /// Removes all attributes, but at most `limit` extents of them. Returns whether none is left.
    pub(super) fn free_attributes(&mut self, inode: &mut Dinode, limit: usize) -> Result<bool> {
        if let Fork::Extents(_) | Fork::Btree(_) = inode.attrs
            && !self.free_attribute_blocks(inode, limit)?
        {
            return Ok(false);
        }
        fork_offset::drop_attributes(inode);
        Ok(true)
    }

    /// Adds a parent pointer: a name of the inode, and the directory that has it.
    pub(super) fn add_parent(&mut self, inode: &mut Dinode, name: &[u8], parent: (u64, u32)) -> Result<()> {
        let value = parent_value(parent);
        let key = Key { namespace: flags::PARENT, name, value: Some(&value) };
        self.change_attributes(inode, None, Some((key, &value)))
    }

    /// Removes a parent pointer.
    pub(super) fn remove_parent(
        &mut self,
        inode: &mut Dinode,
        name: &[u8],
        parent: (u64, u32),
    ) -> Result<()> {
        let value = parent_value(parent);
        let key = Key { namespace: flags::PARENT, name, value: Some(&value) };
        self.change_attributes(inode, Some(key), None)
    }

    /// Replaces a parent pointer by another one.
    pub(super) fn replace_parent(
        &mut self,
        inode: &mut Dinode,
        (old_name, old_parent): (&[u8], (u64, u32)),
        (new_name, new_parent): (&[u8], (u64, u32)),
    ) -> Result<()> {
        let (old, new) = (parent_value(old_parent), parent_value(new_parent));
        let old_key = Key { namespace: flags::PARENT, name: old_name, value: Some(&old) };
        let new_key = Key { namespace: flags::PARENT, name: new_name, value: Some(&new) };
        self.change_attributes(inode, Some(old_key), Some((new_key, &new)))
    }

    /// Does what is left of a change of a parent pointer. A part of it may be done.
    pub(super) fn complete_parent(
        &mut self,
        inode: &mut Dinode,
        old: Option<Pointer<'_>>,
        new: Option<Pointer<'_>>,
    ) -> Result<()> {
        let key = |(name, value)| Key { namespace: flags::PARENT, name, value: Some(value) };
        let exists = |key: Key<'_>| {
            let found = self.find_by_hash(inode, key.hash(), |attribute| key.is(attribute))?;
            Ok::<bool, Error>(found.is_some())
        };
        let stale = match old.filter(|old| Some(*old) != new).map(key) {
            Some(key) if exists(key)? => Some(key),
            _ => None,
        };
        let missing = match new {
            Some(new) if !exists(key(new))? => Some((key(new), new.1)),
            _ => None,
        };
        match (&stale, &missing) {
            (None, None) => Ok(()),
            _ => self.change_attributes(inode, stale, missing),
        }
    }

    /// Removes one attribute and adds another one.
    fn change_attributes(
        &mut self,
        inode: &mut Dinode,
        old: Option<Key<'_>>,
        new: Option<(Key<'_>, &[u8])>,
    ) -> Result<()> {
        self.change_fork(inode, old, new)?;
        // The data fork may have more space than before.
        self.target_to_inode(inode)?;
        self.data_tree_to_extents(inode)
    }

    fn change_fork(
        &mut self,
        inode: &mut Dinode,
        old: Option<Key<'_>>,
        new: Option<(Key<'_>, &[u8])>,
    ) -> Result<()> {
        if !matches!(inode.attrs, Fork::None | Fork::Local(_)) && !inode.attrs.is_empty() {
            return self.change_tree_attributes(inode, old, new);
        }
        let mut all = match &inode.attrs {
            Fork::Local(bytes) => {
                stored_short::decode(bytes).map_err(|what| self.space().corrupt(what, inode.whose()))?
            }
            _ => Vec::new(),
        };
        if let Some(old) = old {
            let before = all.len();
            all.retain(|attribute| !old.is(attribute));
            if all.len() == before {
                return Err(self.space().corrupt("an attribute is not where it was", inode.whose()));
            }
        }
        if let Some((key, value)) = new {
            let name = key.name.to_vec();
            all.push(Attribute { flags: key.namespace, name, value: Value::Here(value.to_vec()) });
        }
        if all.is_empty() {
            fork_offset::drop_attributes(inode);
            return Ok(());
        }
        if self.store_short_attributes(inode, &all)? {
            return Ok(());
        }
        self.short_to_leaf(inode, all)
    }

    /// Stores all attributes in the inode; returns `false` if they do not fit.
    fn store_short_attributes(&mut self, inode: &mut Dinode, all: &[Attribute]) -> Result<bool> {
        let Some(bytes) = short::encode(all) else { return Ok(false) };
        let Some(offset) = fork_offset::for_local(inode, &self.space().sb, bytes.len()) else {
            return Ok(false);
        };
        inode.raw.di_forkoff = offset;
        inode.attrs = Fork::Local(bytes.into());
        inode.set_extents(Which::Attributes, 0)?;
        Ok(true)
    }

    /// Makes an item of an attribute: a long value gets blocks of its own.
    fn item_of(&mut self, inode: &mut Dinode, attribute: Attribute) -> Result<Item> {
        let Attribute { flags: set, name, value } = attribute;
        let value = match value {
            Value::Here(value) if !leaf::is_local(self.space().sb.block_size, name.len(), value.len()) => {
                let block = self.store_remote_value(inode, &value)?;
                Value::Remote { block, len: value.len() as u32 }
            }
            value => value,
        };
        let parent = match &value {
            Value::Here(value) if set & flags::PARENT != 0 => Some(&value[..]),
            _ => None,
        };
        let hash = Key { namespace: set, name: &name, value: parent }.hash();
        Ok(Item::new(hash, Attribute { flags: set, name, value }))
    }
}

/// The value of a parent pointer: inode and generation of the directory.
pub(super) fn parent_value((ino, generation): (u64, u32)) -> [u8; 12] {
    let mut value = [0; 12];
    value[..8].copy_from_slice(&ino.to_be_bytes());
    value[8..].copy_from_slice(&generation.to_be_bytes());
    value
}
