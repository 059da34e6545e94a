//! Moving attribute blocks below the end that the filesystem is to have, and attribute inodes that get other
//! numbers.

use super::block::REFCOUNT;
use super::body::{Attribute, Table};
use crate::dir::linear::{le32, put32};
use crate::fs::{Ext4, Handle, core_of};
use ivers_block::BlockNo;
use ivers_vfs::{Inode, Result};
use std::collections::HashMap;

/// Blocks that moving a block changes, beside one for each attribute inode: both blocks, two bitmaps, two
/// descriptors, the inode; and a margin.
const CREDITS: u32 = 16;
/// Moved blocks that are remembered for other inodes that share them. More are copied once for each inode.
const MAX_SHARED: usize = 1 << 16;

impl Ext4 {
    /// Moves an inode's attribute block if it lies at `limit` or after it. `moved` contains the new positions
    /// of blocks that other inodes still share.
    pub(crate) fn relocate_attribute_block(
        &self,
        inode: &Inode,
        limit: BlockNo,
        moved: &mut HashMap<BlockNo, BlockNo>,
    ) -> Result<()> {
        let old_block = core_of(inode).read().file_acl;
        if old_block < limit {
            return Ok(());
        }
        let Some(old) = self.attribute_block(inode)? else { return Ok(()) };
        let attributes = self.block_attributes(inode)?;
        let values: Vec<u32> = attributes.iter().filter_map(Attribute::value_inode).collect();
        let mut h = self.begin(CREDITS + 2 * values.len() as u32)?;
        let sharers = le32(&old.read(), REFCOUNT);
        let known = moved.get(&old_block).copied();
        let new_block = match known {
            Some(new_block) => {
                let copy = self.block(new_block)?;
                self.change_attribute_block(&mut h, &copy, |block| {
                    let count = le32(block, REFCOUNT);
                    put32(block, REFCOUNT, count + 1);
                })?;
                new_block
            }
            None => {
                let new_block = self.alloc_meta_block(&mut h, inode, self.goal_for(inode))?;
                let copy = self.new_block(new_block)?;
                let bytes = old.read().to_vec();
                self.change_attribute_block(&mut h, &copy, |block| {
                    block.copy_from_slice(&bytes);
                    put32(block, REFCOUNT, 1);
                })?;
                // An attribute inode counts both blocks while there are two.
                values.iter().try_for_each(|&ino| self.get_ea_inode(&mut h, ino))?;
                new_block
            }
        };
        if sharers > 1 {
            self.change_attribute_block(&mut h, &old, |block| put32(block, REFCOUNT, sharers - 1))?;
            if moved.len() < MAX_SHARED {
                moved.insert(old_block, new_block);
            }
        } else {
            moved.remove(&old_block);
            for attribute in &attributes {
                self.put_value(&mut h, &attribute.value)?;
            }
            self.free_blocks(&mut h, old_block, 1, true)?;
        }
        core_of(inode).write().file_acl = new_block;
        self.log(&mut h, inode)
    }

    /// The attribute inodes that an inode's body and its block refer to.
    pub(crate) fn attribute_inodes(&self, inode: &Inode) -> Result<Vec<u32>> {
        let all = [self.body_attributes(inode)?, self.block_attributes(inode)?];
        Ok(all.iter().flatten().filter_map(Attribute::value_inode).collect())
    }

    /// Changes the number of an attribute inode where an inode refers to it. The caller logs the inode.
    pub(crate) fn renumber_attribute_inode(
        &self,
        h: &mut Handle,
        inode: &Inode,
        old: u32,
        new: u32,
    ) -> Result<()> {
        let damaged = |what: &'static str| self.corrupt_inode(what, inode);
        Table::Body.renumber(&mut core_of(inode).write().body_xattrs, old, new).map_err(damaged)?;
        if let Some(block) = self.attribute_block(inode)? {
            let is_used = Table::Block.renumber(&mut block.read().to_vec(), old, new).map_err(damaged)?;
            if is_used {
                // Inodes that share the block find the new number there.
                self.change_attribute_block(h, &block, |bytes| Table::Block.renumber(bytes, old, new))?
                    .map_err(damaged)?;
            }
        }
        Ok(())
    }
}
