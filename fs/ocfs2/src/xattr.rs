//! Extended attributes: at the end of the inode, in a block, or in the buckets of a tree.

use crate::layout::dinode::Dinode;
use crate::layout::extents::{Extent, ExtentList, Keys};
use crate::layout::shape::XATTR_BLOCK;
use crate::layout::superblock::incompat;
use crate::layout::xattr::{
    BLOCK_HEADER_AT, BUCKET_BYTES, BUCKET_CHECK_AT, Entry, TREE_LIST_AT, VALUE_LIST_AT, Value, acl_from_disk,
    buckets, entries, is_tree,
};
use crate::map::Owner;
use crate::volume::Ocfs2;
use ivers_block::BlockNo;
use ivers_vfs::{NameError, Result};
use std::ops::ControlFlow;

/// Most extents of the attributes of an inode, and nodes of their tree.
const EXTENTS_MAX: u32 = 4096;

/// Called with each attribute. A break ends the walk.
type Each<'a> = dyn FnMut(&Entry<'_>) -> Result<ControlFlow<()>> + 'a;

impl Ocfs2 {
    /// Calls `each` with the attributes of an inode, until it breaks.
    pub(crate) fn for_each_attribute(&self, inode: &Dinode, each: &mut Each<'_>) -> Result<()> {
        if inode.inline_xattr_bytes() > 0 {
            let block = self.block_of(inode)?;
            let area = &block[block.len() - inode.inline_xattr_bytes()..];
            if self.each_of_area(inode, area, each)?.is_break() {
                return Ok(());
            }
        }
        if inode.xattr_loc == 0 {
            return Ok(());
        }
        let block = self.structure(inode.xattr_loc, &XATTR_BLOCK)?;
        if !is_tree(&block) {
            return self.each_of_area(inode, &block[BLOCK_HEADER_AT..], each).map(drop);
        }
        let owner = Owner { ino: inode.ino, keys: Keys::Hashes };
        let root = self.parse_list(&block[TREE_LIST_AT..], owner)?;
        let mut left = EXTENTS_MAX;
        self.each_of_tree(inode, &root, &mut left, each).map(drop)
    }

    fn each_of_area(&self, inode: &Dinode, area: &[u8], each: &mut Each<'_>) -> Result<ControlFlow<()>> {
        for entry in entries(area).map_err(|what| self.corrupt(inode.ino, what))? {
            if each(&entry)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn each_of_tree(
        &self,
        inode: &Dinode,
        list: &ExtentList,
        left: &mut u32,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<()>> {
        let owner = Owner { ino: inode.ino, keys: Keys::Hashes };
        for extent in &list.records {
            // Damage could lead to one block again and again.
            let too_many =
                || self.corrupt(inode.ino, format!("it has more than {EXTENTS_MAX} extents of attributes"));
            *left = left.checked_sub(1).ok_or_else(too_many)?;
            if list.depth > 0 {
                let below = self.extent_block(extent.start, list.depth - 1, owner)?;
                if self.each_of_tree(inode, &below, left, each)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                continue;
            }
            let mut each_area = |area: &[u8]| self.each_of_area(inode, area, each);
            if self.each_bucket(inode.ino, extent, &mut each_area)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Calls `each` with the buckets of an extent, until it breaks.
    pub(crate) fn each_bucket(
        &self,
        ino: u64,
        extent: &Extent,
        each: &mut dyn FnMut(&[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let most = u64::from(extent.clusters) * u64::from(self.sb.cluster_size()) / BUCKET_BYTES as u64;
        let blocks = BUCKET_BYTES as u64 / u64::from(self.sb.block_size);
        let first = self.bucket(extent.start)?;
        let count = u64::from(buckets(&first));
        if count > most {
            let what = format!("an extent has {count} buckets of attributes, and room for {most}");
            return Err(self.corrupt(ino, what));
        }
        for nth in 0..count {
            let flow = match nth {
                0 => each(&first)?,
                _ => each(&self.bucket(extent.start + nth * blocks)?)?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads a bucket, which may take several blocks.
    fn bucket(&self, start: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BUCKET_BYTES];
        self.cache.device().read_at(BlockNo(start).offset(self.sb.block_size), &mut bytes)?;
        if self.sb.has(incompat::META_ECC)
            && let Some(right) = self.corrected_bytes(&bytes, start, BUCKET_CHECK_AT)?
        {
            bytes = right;
        }
        Ok(bytes)
    }

    /// Reads the value of an attribute.
    fn value(&self, inode: &Dinode, entry: &Entry<'_>) -> Result<Vec<u8>> {
        let value = match entry.value {
            Value::Here(value) => value.to_vec(),
            Value::Outside(root, size) => {
                let owner = Owner { ino: inode.ino, keys: Keys::Clusters };
                let list = self.parse_list(root.get(VALUE_LIST_AT..).unwrap_or_default(), owner)?;
                let mut value = vec![0; size as usize];
                let map = |cluster| self.find_run(list.clone(), owner, cluster as u32);
                self.read_mapped(0, &mut value, map)?;
                value
            }
        };
        if !entry.is_acl() {
            return Ok(value);
        }
        let damaged = || self.corrupt(inode.ino, "its access control list is damaged");
        acl_from_disk(&value).ok_or_else(damaged)
    }

    pub(crate) fn attribute_names(&self, inode: &Dinode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.for_each_attribute(inode, &mut |entry| {
            names.push(entry.name.clone());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(names)
    }

    pub(crate) fn attribute(&self, inode: &Dinode, name: &[u8]) -> Result<Vec<u8>> {
        let mut value = None;
        self.for_each_attribute(inode, &mut |entry| {
            if entry.name != name {
                return Ok(ControlFlow::Continue(()));
            }
            value = Some(self.value(inode, entry)?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(value.ok_or(NameError::NoAttribute)?)
    }
}
