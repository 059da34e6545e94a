//! Extended attributes: in the inode, in blocks that are found by hash, and values in blocks of their own.

mod acl;
mod attribute;
mod leaf;
pub(crate) mod short;

use crate::da::{HashSource, HashTree, hash_name};
use crate::fork::{Fork, Which};
use crate::inode::Dinode;
use crate::layout::attribute::LEAF_MAGICS;
use crate::source::Source;
pub(crate) use attribute::{Attribute, Value, is_shown_acl, split_name};
use ivers_block::FileBlock;
use ivers_vfs::{NameError, Result};
use leaf::ValueSource;
pub(crate) use leaf::attribute_table;
use std::collections::BTreeSet;

/// Returns whether a stored access control list can be read.
pub(crate) fn is_access_list(stored: &[u8]) -> bool {
    acl::from_disk(stored).is_some()
}

/// Finding of attributes.
pub(crate) trait AttrSource: Source {
    /// The hash tree of attributes.
    fn attribute_tree<'a>(&self, inode: &'a Dinode) -> HashTree<'a> {
        HashTree {
            ino: inode.ino,
            which: Which::Attributes,
            fork: &inode.attrs,
            root: FileBlock(0),
            unit: 1,
            leaf_magics: LEAF_MAGICS,
        }
    }

    /// Returns an attribute by namespace and stored name.
    fn find_attribute(&self, inode: &Dinode, namespace: u8, name: &[u8]) -> Result<Option<Attribute>> {
        self.find_by_hash(inode, hash_name(name), |attribute| attribute.is(namespace, name))
    }

    /// Returns the attribute with a hash that `is` accepts.
    fn find_by_hash(
        &self,
        inode: &Dinode,
        hash: u32,
        is: impl Fn(&Attribute) -> bool,
    ) -> Result<Option<Attribute>> {
        if inode.attrs.is_empty() {
            return Ok(None);
        }
        if let Fork::Local(bytes) = &inode.attrs {
            let all = short::decode(bytes).map_err(|what| self.corrupt(what, inode.whose()))?;
            return Ok(all.into_iter().find(is));
        }
        let tree = self.attribute_tree(inode);
        let Some(first) = self.hash_leaf(&tree, hash)? else { return Ok(None) };
        let found = self.each_leaf_from(&tree, first, |leaf| {
            let bad = |what: String| self.corrupt_block(what, inode.whose(), leaf.block);
            let table = attribute_table(self.sb(), &leaf.bytes).map_err(bad)?;
            for index in table.first_with(hash)..table.count {
                if table.hash(index) != hash {
                    return Ok(Some(None));
                }
                let attribute = table.attribute(index).map_err(bad)?;
                if is(&attribute) {
                    return Ok(Some(Some(attribute)));
                }
            }
            Ok(None)
        })?;
        Ok(found.flatten())
    }

    /// Calls `visit` with every attribute.
    fn each_attribute(&self, inode: &Dinode, mut visit: impl FnMut(Attribute)) -> Result<()> {
        if inode.attrs.is_empty() {
            return Ok(());
        }
        if let Fork::Local(bytes) = &inode.attrs {
            let all = short::decode(bytes).map_err(|what| self.corrupt(what, inode.whose()))?;
            all.into_iter().for_each(visit);
            return Ok(());
        }
        let tree = self.attribute_tree(inode);
        let Some(first) = self.hash_leaf(&tree, 0)? else { return Ok(()) };
        self.each_leaf_from(&tree, first, |leaf| {
            let bad = |what: String| self.corrupt_block(what, inode.whose(), leaf.block);
            let table = attribute_table(self.sb(), &leaf.bytes).map_err(bad)?;
            for index in 0..table.count {
                visit(table.attribute(index).map_err(bad)?);
            }
            Ok(None::<()>)
        })?;
        Ok(())
    }

    /// Returns the value of an attribute by its full name.
    fn xattr(&self, inode: &Dinode, name: &[u8]) -> Result<Vec<u8>> {
        let (namespace, stored) = split_name(name).ok_or(NameError::NotSupported)?;
        let attribute = self.find_attribute(inode, namespace, stored)?.ok_or(NameError::NoAttribute)?;
        let value = match attribute.value {
            Value::Here(value) => value,
            Value::Remote { block, len } => self.remote_value(inode, block, len)?,
        };
        if is_shown_acl(name) {
            return acl::from_disk(&value)
                .ok_or_else(|| self.corrupt("an access control list is invalid", inode.whose()));
        }
        Ok(value)
    }

    /// Returns the full names of all attributes that users may see.
    fn xattr_names(&self, inode: &Dinode) -> Result<Vec<Vec<u8>>> {
        let mut names = BTreeSet::new();
        self.each_attribute(inode, |attribute| names.extend(attribute.full_name()))?;
        Ok(names.into_iter().collect())
    }
}

impl<S: Source> AttrSource for S {}
