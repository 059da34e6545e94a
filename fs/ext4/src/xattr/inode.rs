//! Attribute inodes (`ea_inode`): values that do not fit a block.
//!
//! Such an inode has no name. Its reference count is stored where other inodes store ctime (upper half) and
//! version (lower half), the checksum of its value where they store atime. Its blocks are journalled like
//! metadata.

use super::body::Value;
use crate::dir::linear::{le16, le32, put16, put32};
use crate::fs::{Ext4, Handle, core_of};
use crate::layout::inode::FL_EA_INODE;
use crate::layout::inode::offset::{I_ATIME, I_CTIME, I_DISK_VERSION, I_FLAGS, I_LINKS_COUNT};
use ivers_block::FileBlock;
use ivers_vfs::{Error, FileType, Inode, NewInode, Result};

/// Limit of the length of a value that is read, in bytes.
const EA_VALUE_MAX: u32 = 1 << 20;

impl Ext4 {
    fn ea_place(&self, ino: u32) -> String {
        format!("{}, attribute inode {ino}", self.place)
    }

    /// Returns the value of an attribute inode.
    pub(super) fn ea_inode_value(&self, ino: u32, size: u32) -> Result<Vec<u8>> {
        if size > EA_VALUE_MAX {
            return Err(Error::corrupt("an attribute's value is too long", self.ea_place(ino)));
        }
        let inode = Inode::detached(self.load(ino, true)?);
        if core_of(&inode).read().flags & FL_EA_INODE == 0 || inode.size() != u64::from(size) {
            return Err(Error::corrupt(
                "an attribute refers to an inode that is not an attribute inode",
                self.ea_place(ino),
            ));
        }
        // Read through the buffers: the journal may not have written the blocks in place yet.
        let mut value = Vec::with_capacity(size as usize);
        for lblk in FileBlock(0).run(u64::from(size.div_ceil(self.sb.block_size))) {
            match self.dir_block(&inode, lblk)? {
                Some(buffer) => value.extend_from_slice(&buffer.read()),
                None => value.resize(value.len() + self.sb.block_size as usize, 0),
            }
        }
        value.truncate(size as usize);
        Ok(value)
    }

    /// Makes an inode that holds a value: its number and the value's hash. The handle has credits for its
    /// blocks. On lack of space, the inode is added to `dead`.
    pub(super) fn make_ea_inode(
        &self,
        h: &mut Handle,
        owner: &Inode,
        value: &[u8],
        dead: &mut Vec<Inode>,
    ) -> Result<(u32, u32)> {
        let attr = owner.attr();
        let new = NewInode {
            perm: 0o600,
            uid: attr.uid,
            gid: attr.gid,
            ..NewInode::new(FileType::Regular, attr.ctime)
        };
        let inode = Inode::detached(self.alloc_inode(h, owner, &new)?);
        let ino = inode.ino.0 as u32;
        core_of(&inode).write().flags |= FL_EA_INODE;
        let hash = self.csum(self.sb.csum_seed, value);
        let mut filled = Ok(());
        for chunk in value.chunks(self.sb.block_size as usize) {
            filled = self.append_dir_block(h, &inode).and_then(|(_, buffer)| {
                h.modify(&buffer, |block| block[..chunk.len()].copy_from_slice(chunk))
            });
            if filled.is_err() {
                break;
            }
        }
        let size = value.len() as u64;
        core_of(&inode).write().disk_size = size;
        inode.with_attr(|attr| attr.size = size);
        self.log(h, &inode)?;
        self.modify_slot(h, ino, |slot| {
            put32(slot, I_ATIME, hash);
            put32(slot, I_CTIME, 0);
            put32(slot, I_DISK_VERSION, 1);
        })?;
        if let Err(error) = filled {
            // Its blocks are freed in transactions of their own.
            dead.extend(self.put_ea_inode(h, ino)?);
            return Err(error);
        }
        Ok((ino, hash))
    }

    /// Adds to the reference count of an attribute inode and returns the new count. Under the buffer's lock,
    /// because inodes that share a value may release it concurrently.
    fn count_ea_references(&self, h: &mut Handle, ino: u32, change: i64) -> Result<u64> {
        self.raw_inode(ino)?;
        let counted = self.modify_slot(h, ino, |slot| {
            let count = u64::from(le32(slot, I_CTIME)) << 32 | u64::from(le32(slot, I_DISK_VERSION));
            if le32(slot, I_FLAGS) & FL_EA_INODE == 0 || count == 0 || le16(slot, I_LINKS_COUNT) == 0 {
                return None;
            }
            let count = count.saturating_add_signed(change);
            put32(slot, I_CTIME, (count >> 32) as u32);
            put32(slot, I_DISK_VERSION, count as u32);
            if count == 0 {
                put16(slot, I_LINKS_COUNT, 0);
            }
            Some(count)
        })?;
        counted.ok_or_else(|| {
            Error::corrupt("an attribute refers to an inode without a value", self.ea_place(ino))
        })
    }

    /// Adds a reference.
    pub(super) fn get_ea_inode(&self, h: &mut Handle, ino: u32) -> Result<()> {
        self.count_ea_references(h, ino, 1).map(drop)
    }

    /// Drops a reference. After the last one the inode is an orphan, which the caller deletes after the
    /// handle has ended.
    pub(super) fn put_ea_inode(&self, h: &mut Handle, ino: u32) -> Result<Option<Inode>> {
        if self.count_ea_references(h, ino, -1)? > 0 {
            return Ok(None);
        }
        let inode = Inode::detached(self.load(ino, true)?);
        self.orphan_add(h, &inode)?;
        Ok(Some(inode))
    }

    /// Releases a value.
    pub(super) fn put_value(&self, h: &mut Handle, value: &Value) -> Result<Option<Inode>> {
        match value {
            Value::Here(_) => Ok(None),
            Value::Inode { ino, .. } => self.put_ea_inode(h, *ino),
        }
    }
}
