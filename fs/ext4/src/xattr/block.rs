//! The attribute block: attributes that do not fit the inode. Inodes with equal attributes share it.
//!
//! A block counts the inodes that use it. An attribute inode counts the blocks and bodies that refer to it,
//! not the inodes that share such a block.

use super::body::{Attribute, MAGIC, Table, Value, block_hash};
use crate::dir::linear::{le32, put32};
use crate::fs::{Ext4, Handle, core_of};
use ivers_block::{BlockNo, Buffer};
use ivers_vfs::{Inode, Result};
use std::sync::Arc;

pub(super) const REFCOUNT: usize = 4;
const BLOCKS: usize = 8;
const HASH: usize = 12;
const CHECKSUM: usize = 16;
/// Limit of the inodes that share a block.
const REFCOUNT_MAX: u32 = 1024;

impl Ext4 {
    fn attribute_block_checksum(&self, number: BlockNo, block: &[u8]) -> u32 {
        let seed = self.csum(self.sb.csum_seed, &number.0.to_le_bytes());
        let head = self.csum(seed, &block[..CHECKSUM]);
        let field = self.csum(head, &[0; 4]);
        self.csum(field, &block[CHECKSUM + 4..])
    }

    /// Returns the verified attribute block of an inode.
    pub(super) fn attribute_block(&self, inode: &Inode) -> Result<Option<Arc<Buffer>>> {
        let number = core_of(inode).read().file_acl;
        if number == BlockNo(0) {
            return Ok(None);
        }
        let buffer = self.block(number)?;
        let block = buffer.read();
        let refcount = le32(&block, REFCOUNT);
        if le32(&block, 0) != MAGIC || le32(&block, BLOCKS) != 1 || refcount == 0 || refcount > REFCOUNT_MAX {
            return Err(self.corrupt_block("a block of attributes has a bad header", number));
        }
        if self.has_csum() && !buffer.is_verified() {
            if self.attribute_block_checksum(number, &block) != le32(&block, CHECKSUM) {
                return Err(self.corrupt_block("a block of attributes has a bad checksum", number));
            }
            buffer.set_verified();
        }
        drop(block);
        Ok(Some(buffer))
    }

    pub(super) fn block_attributes(&self, inode: &Inode) -> Result<Vec<Attribute>> {
        match self.attribute_block(inode)? {
            None => Ok(Vec::new()),
            Some(buffer) => {
                Table::Block.parse(&buffer.read()).map_err(|what| self.corrupt_block(what, buffer.block()))
            }
        }
    }

    pub(super) fn change_attribute_block<R>(
        &self,
        h: &mut Handle,
        buffer: &Arc<Buffer>,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let number = buffer.block();
        let result = h.modify(buffer, |block| {
            let result = change(block);
            if self.has_csum() {
                let sum = self.attribute_block_checksum(number, block);
                put32(block, CHECKSUM, sum);
            }
            result
        })?;
        buffer.set_verified();
        Ok(result)
    }

    /// Adds to the block count of an inode. Write-back may change the same field concurrently.
    pub(super) fn add_blocks_512(&self, inode: &Inode, blocks: i64) {
        self.charge_blocks(inode, &mut core_of(inode).write(), blocks);
    }

    /// Stores these attributes in the inode's block instead of `before`; leaves a shared block to its other
    /// users. Returns the attribute inodes that lost their last reference.
    pub(super) fn store_block_attributes(
        &self,
        h: &mut Handle,
        inode: &Inode,
        before: &[Attribute],
        attributes: &[Attribute],
    ) -> Result<Vec<Inode>> {
        if attributes.is_empty() {
            return self.release_attribute_block(h, inode);
        }
        let mut content = Table::Block.encode(self.sb.block_size as usize, attributes);
        let hash = block_hash(&content);
        put32(&mut content, REFCOUNT, 1);
        put32(&mut content, BLOCKS, 1);
        put32(&mut content, HASH, hash);
        let own = self.attribute_block(inode)?.filter(|buffer| le32(&buffer.read(), REFCOUNT) == 1);
        if let Some(buffer) = own {
            self.change_attribute_block(h, &buffer, |block| block.copy_from_slice(&content))?;
            let mut dead = Vec::new();
            for gone in before.iter().filter(|old| !attributes.contains(old)) {
                dead.extend(self.put_value(h, &gone.value)?);
            }
            return Ok(dead);
        }
        let number = self.alloc_own_block(h, inode)?;
        let buffer = self.new_block(number)?;
        // The copy adds a reference to the attribute inodes that it keeps.
        for kept in attributes.iter().filter(|new| before.contains(new)) {
            if let Value::Inode { ino, .. } = kept.value {
                self.get_ea_inode(h, ino)?;
            }
        }
        let dead = self.release_attribute_block(h, inode)?;
        self.change_attribute_block(h, &buffer, |block| block.copy_from_slice(&content))?;
        core_of(inode).write().file_acl = number;
        self.add_blocks_512(inode, 1);
        Ok(dead)
    }

    /// Drops the inode's reference to its block; the last one frees the block and its references. Returns the
    /// attribute inodes that lost their last reference.
    pub(super) fn release_attribute_block(&self, h: &mut Handle, inode: &Inode) -> Result<Vec<Inode>> {
        let Some(buffer) = self.attribute_block(inode)? else { return Ok(Vec::new()) };
        let mut dead = Vec::new();
        // Count and check under the buffer's lock: other users of the block may release it concurrently, and
        // exactly one must find itself the last. A block with one user keeps its count of one.
        let is_shared = self.change_attribute_block(h, &buffer, |block| {
            let refcount = le32(block, REFCOUNT);
            put32(block, REFCOUNT, refcount.saturating_sub(1).max(1));
            refcount > 1
        })?;
        if !is_shared {
            for gone in self.block_attributes(inode)? {
                dead.extend(self.put_value(h, &gone.value)?);
            }
            self.free_blocks(h, buffer.block(), 1, true)?;
        }
        core_of(inode).write().file_acl = BlockNo(0);
        self.add_blocks_512(inode, -1);
        Ok(dead)
    }
}
