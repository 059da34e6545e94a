//! Targets of symbolic links.

use super::fork::MapRequest;
use super::tx::Tx;
use crate::fork::{Fork, ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::attribute::remote_header_bytes;
use crate::layout::checksum::{LINK_TARGET_MAGIC, REMOTE};
use crate::layout::dinode::{FILE_BLOCKS_END, TARGET_MAX};
use crate::layout::raw::RawRemoteHeader;
use crate::symlink::LinkSource;
use ivers_block::FileBlock;
use ivers_vfs::{FileType, NameError, Result};
use std::mem::offset_of;

impl Tx<'_> {
    /// Stores the target of a new link: in the inode if it fits there.
    pub(crate) fn init_link(&mut self, link: &mut Dinode, target: &[u8]) -> Result<()> {
        if target.is_empty() || target.contains(&0) {
            return Err(NameError::Invalid.into());
        }
        if target.len() as u64 > TARGET_MAX {
            return Err(NameError::NameTooLong.into());
        }
        link.set_size(target.len() as u64);
        link.data = Fork::Local(target.into());
        if target.len() > link.space(&self.space().sb, Which::Data) {
            self.target_to_blocks(link)?;
        }
        Ok(())
    }

    /// Moves a target to blocks: one extent, which has a header.
    pub(super) fn target_to_blocks(&mut self, link: &mut Dinode) -> Result<()> {
        let Fork::Local(target) = std::mem::replace(&mut link.data, Fork::Extents(Vec::new())) else {
            return Ok(());
        };
        let sb = &self.space().sb;
        let header = remote_header_bytes(sb);
        let count = (target.len() + header).div_ceil(sb.block_size as usize) as u32;
        let at = FileBlock(0);
        let request = MapRequest { at, min: count, max: count, goal: None, unwritten: false, ahead: 0 };
        self.map_extent(link, Which::Data, request)?.ok_or(NameError::NoSpace)?;
        let blocks = self.unit_blocks(link, Which::Data, at, count.into())?;
        self.new_described(&blocks, &REMOTE, link.whose(), |bytes| {
            let len = offset_of!(RawRemoteHeader, rm_bytes);
            bytes[..4].copy_from_slice(LINK_TARGET_MAGIC);
            bytes[len..len + 4].copy_from_slice(&(target.len() as u32).to_be_bytes());
            bytes[header..header + target.len()].copy_from_slice(&target);
        })
    }

    /// Moves a target back into the inode if it fits there now. xfs_repair and Linux before 6.10 take one
    /// that would fit for damage.
    pub(super) fn target_to_inode(&mut self, link: &mut Dinode) -> Result<()> {
        let is_remote = link.kind() == FileType::Symlink && matches!(link.data, Fork::Extents(_));
        if !is_remote || link.size() > link.space(&self.space().sb, Which::Data) as u64 {
            return Ok(());
        }
        let target = self.remote_target(link)?;
        self.free_target(link)?;
        link.data = Fork::Local(target.into());
        link.set_extents(Which::Data, 0)
    }

    /// Frees the blocks of a link's target, before its inode is freed.
    pub(crate) fn free_target(&mut self, link: &mut Dinode) -> Result<()> {
        if let Fork::Local(_) = link.data {
            return Ok(());
        }
        let sb = &self.space().sb;
        let header = remote_header_bytes(sb);
        // The buffers are those that a reader finds: the part of each extent that has the target.
        let (mut rest, mut at) = (link.size().min(TARGET_MAX) as usize, FileBlock(0));
        while rest > 0 {
            let mapping = ForkSource::map(self, &link.data, at, link.ino)?;
            let wanted = (rest + header).div_ceil(sb.block_size as usize) as u64;
            let count = mapping.len.min(wanted);
            let blocks = self.unit_blocks(link, Which::Data, at, count)?;
            self.forget_unit(&blocks);
            rest = rest.saturating_sub((count << sb.block_bits) as usize - header);
            at += count;
        }
        self.unmap_range(link, Which::Data, FileBlock(0), FileBlock(FILE_BLOCKS_END), usize::MAX)?;
        Ok(())
    }
}
