//! Values that have blocks of their own.

use crate::fork::Which;
use crate::inode::Dinode;
use crate::layout::attribute::remote_header_bytes;
use crate::layout::checksum::{NO_LSN, REMOTE, REMOTE_VALUE_MAGIC};
use crate::layout::raw::RawRemoteHeader;
use crate::write::tx::Tx;
use ivers_block::FileBlock;
use ivers_vfs::{NameError, Result};
use std::mem::offset_of;

impl Tx<'_> {
    fn value_blocks(&self, len: usize) -> u64 {
        let sb = &self.space().sb;
        len.div_ceil(sb.block_size as usize - remote_header_bytes(sb)) as u64
    }

    /// Writes a value into new blocks; returns the first file block.
    pub(super) fn store_remote_value(&mut self, inode: &mut Dinode, value: &[u8]) -> Result<FileBlock> {
        let count = self.value_blocks(value.len());
        let first = self.first_hole(inode, Which::Attributes, FileBlock(0), count)?;
        if first.0 + count > u32::MAX.into() {
            return Err(NameError::NoSpace.into());
        }
        self.map_all(inode, Which::Attributes, first, count)?;
        let sb = &self.space().sb;
        let header = remote_header_bytes(sb);
        let each = sb.block_size as usize - header;
        let blocks = self.unit_blocks(inode, Which::Attributes, first, count)?;
        for (nth, (block, part)) in blocks.iter().zip(value.chunks(each)).enumerate() {
            self.new_described(&[*block], &REMOTE, inode.whose(), |bytes| {
                let put = |bytes: &mut [u8], at: usize, value: u32| {
                    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
                };
                bytes[..4].copy_from_slice(REMOTE_VALUE_MAGIC);
                let lsn = offset_of!(RawRemoteHeader, rm_lsn);
                bytes[lsn..lsn + 8].copy_from_slice(&NO_LSN.to_be_bytes());
                put(bytes, offset_of!(RawRemoteHeader, rm_offset), (nth * each) as u32);
                put(bytes, offset_of!(RawRemoteHeader, rm_bytes), part.len() as u32);
                bytes[header..header + part.len()].copy_from_slice(part);
            })?;
        }
        Ok(first)
    }

    /// Frees the blocks of a value.
    pub(super) fn free_remote_value(&mut self, inode: &mut Dinode, first: FileBlock, len: u32) -> Result<()> {
        // Only a damaged image has a value without bytes in blocks.
        if len == 0 {
            return Ok(());
        }
        let count = self.value_blocks(len as usize);
        for block in self.unit_blocks(inode, Which::Attributes, first, count)?.iter().copied() {
            self.forget_unit(&[block]);
        }
        self.unmap_range(inode, Which::Attributes, first, first + count, usize::MAX)?;
        Ok(())
    }
}
