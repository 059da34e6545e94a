//! The block of attributes that does not fit the inode, shared by inodes whose attributes are the same, and values in
//! inodes of their own.

use super::body::{Attribute, MAGIC, Table, block_hash};
use crate::ctx::{Ext4, Handle, core_of};
use crate::dir::linear::{le32, put32};
use crate::layout::inode::FL_EA_INODE;
use ivers_block::Buffer;
use ivers_vfs::{Error, Inode, Result};
use std::sync::Arc;

const REFCOUNT: usize = 4;
const BLOCKS: usize = 8;
const HASH: usize = 12;
const CHECKSUM: usize = 16;
/// Most inodes that share a block.
const REFCOUNT_MAX: u32 = 1024;
/// Longest value of an attribute inode.
const EA_VALUE_MAX: u32 = 1 << 20;

impl Ext4 {
    fn attribute_block_checksum(&self, number: u64, block: &[u8]) -> u32 {
        let seed = self.csum(self.sb.csum_seed, &number.to_le_bytes());
        let head = self.csum(seed, &block[..CHECKSUM]);
        let field = self.csum(head, &[0; 4]);
        self.csum(field, &block[CHECKSUM + 4..])
    }

    /// The verified block of an inode's attributes.
    fn attribute_block(&self, inode: &Inode) -> Result<Option<Arc<Buffer>>> {
        let number = core_of(inode).read().file_acl;
        if number == 0 {
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

    fn change_attribute_block(
        &self,
        h: &mut Handle,
        buffer: &Arc<Buffer>,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let number = buffer.block();
        h.modify(buffer, |block| {
            change(block);
            if self.has_csum() {
                let sum = self.attribute_block_checksum(number, block);
                put32(block, CHECKSUM, sum);
            }
        })?;
        buffer.set_verified();
        Ok(())
    }

    /// Count the blocks of an inode up or down.
    fn add_blocks_512(&self, inode: &Inode, blocks: i64) {
        let change = blocks * i64::from(self.sb.block_size / 512);
        let counted = inode.with_attr(|attr| {
            attr.blocks_512 = attr.blocks_512.saturating_add_signed(change);
            attr.blocks_512
        });
        core_of(inode).write().blocks_512 = counted;
    }

    /// Let the inode's block hold these attributes; shared blocks are left to the others.
    pub(super) fn store_block_attributes(
        &self,
        h: &mut Handle,
        inode: &Inode,
        attributes: &[Attribute],
    ) -> Result<()> {
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
            return self.change_attribute_block(h, &buffer, |block| block.copy_from_slice(&content));
        }
        let number = self.alloc_meta_block(h, inode, self.goal_for(inode))?;
        let buffer = self.new_block(number)?;
        self.release_attribute_block(h, inode)?;
        self.change_attribute_block(h, &buffer, |block| block.copy_from_slice(&content))?;
        core_of(inode).write().file_acl = number;
        self.add_blocks_512(inode, 1);
        Ok(())
    }

    /// Drop the inode's reference to its block; the last one frees it.
    pub(super) fn release_attribute_block(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let Some(buffer) = self.attribute_block(inode)? else { return Ok(()) };
        let refcount = le32(&buffer.read(), REFCOUNT);
        if refcount > 1 {
            self.change_attribute_block(h, &buffer, |block| put32(block, REFCOUNT, refcount - 1))?;
        } else {
            self.free_blocks(h, buffer.block(), 1, true)?;
        }
        core_of(inode).write().file_acl = 0;
        self.add_blocks_512(inode, -1);
        Ok(())
    }

    /// The value that an attribute inode holds.
    pub(super) fn ea_inode_value(&self, ino: u32, size: u32) -> Result<Vec<u8>> {
        let place = || format!("{}, attribute inode {ino}", self.place);
        if size > EA_VALUE_MAX {
            return Err(Error::corrupt("an attribute's value is too long", place()));
        }
        let inode = self.detached(self.load(ino, true)?);
        if core_of(&inode).read().flags & FL_EA_INODE == 0 || inode.size() != u64::from(size) {
            return Err(Error::corrupt(
                "an attribute's value is in an inode that is none of its kind",
                place(),
            ));
        }
        let mut value = vec![0; (size as usize).next_multiple_of(self.sb.block_size as usize)];
        self.fs_read(&inode, 0, &mut value)?;
        value.truncate(size as usize);
        Ok(value)
    }
}
