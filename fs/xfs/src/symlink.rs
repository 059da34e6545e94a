//! Targets of symbolic links.

use crate::fork::{Fork, ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::attribute::remote_header_bytes;
use crate::layout::bytes::read;
use crate::layout::checksum::{LINK_TARGET_MAGIC, REMOTE};
use crate::layout::dinode::TARGET_MAX;
use crate::layout::raw::RawRemoteHeader;
use crate::source::Source;
use ivers_block::FileBlock;
use ivers_vfs::Result;

/// Reading of targets in blocks.
pub(crate) trait LinkSource: Source {
    /// Returns a target that is in blocks.
    fn remote_target(&self, link: &Dinode) -> Result<Vec<u8>> {
        let sb = self.sb();
        let (header, size) = (remote_header_bytes(sb), link.size().min(TARGET_MAX) as usize);
        let (mut target, mut at) = (Vec::with_capacity(size), FileBlock(0));
        while target.len() < size {
            let rest = size - target.len();
            let mapping = self.map(&link.data, at, link.ino)?;
            // The blocks that the rest of the target takes, at most.
            let wanted = (rest + header).div_ceil(sb.block_size as usize) as u64;
            let blocks =
                self.mapped_blocks(&link.data, link.unit(Which::Data, at, mapping.len.min(wanted)))?;
            at += blocks.len() as u64;
            let room = (blocks.len() * sb.block_size as usize).saturating_sub(header).min(rest);
            let bytes = self.unit(&blocks, &REMOTE, link.whose())?;
            let head = read::<RawRemoteHeader>(&bytes, 0).filter(|head| {
                // Version 4 has no header.
                !sb.is_v5()
                    || head.rm_magic.get().to_be_bytes() == *LINK_TARGET_MAGIC
                        && head.rm_offset.get() as usize == target.len()
                        && head.rm_bytes.get() as usize == room
            });
            if head.is_none() {
                let what = "a block of a link's target has a wrong magic, offset or length";
                return Err(self.corrupt_block(what, link.whose(), blocks.first()));
            }
            target.extend_from_slice(&bytes[header..header + room]);
        }
        Ok(target)
    }

    /// Returns the target of a link: in the inode, or in extents that have a header each in version 5.
    fn link_target(&self, link: &Dinode) -> Result<Vec<u8>> {
        let size = link.size();
        if size == 0 || size > TARGET_MAX {
            return Err(self.corrupt(format!("the target of the link has {size} bytes"), link.whose()));
        }
        let target = match &link.data {
            Fork::Local(target) => target.to_vec(),
            _ => self.remote_target(link)?,
        };
        if target.contains(&0) {
            return Err(self.corrupt("the target of the link is invalid", link.whose()));
        }
        Ok(target)
    }
}

impl<S: Source> LinkSource for S {}
