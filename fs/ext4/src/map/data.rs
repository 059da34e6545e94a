//! Reading data and symbolic links; reservations.

use crate::fs::{Ext4, Handle, InodeCore, core_of};
use crate::layout::Incompat;
use crate::layout::inode::{FL_EXTENTS, FL_INLINE_DATA};
use crate::map::node::Extent;
use crate::map::{MAP_CREDITS, empty_root};
use crate::xattr::body::{inline_data_range, without_inline_data};
use ivers_block::FileBlock;
use ivers_vfs::{
    BlockMapOps, BlockPool, Cred, FileOps, FileType, Inode, MappedRange, NameError, RangeKind, Result,
    Written,
};

/// Bytes of the pages that the VFS writes back.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// A shorter link target is stored in `i_block`.
const FAST_LINK: usize = 60;

impl Ext4 {
    /// Returns inline data: up to 60 bytes in `i_block`, the rest in the attribute `system.data` of the slot.
    fn inline_data(&self, inode: &Inode, core: &InodeCore) -> Result<Vec<u8>> {
        let size = usize::try_from(core.disk_size).unwrap_or(usize::MAX).min(self.sb.inode_size as usize);
        let mut data = core.i_block.to_vec();
        if size > data.len() {
            let range = inline_data_range(&core.body_xattrs)
                .map_err(|what| self.corrupt_inode(what, inode))?
                .ok_or_else(|| self.corrupt_inode("inline data without its attribute", inode))?;
            data.extend_from_slice(&core.body_xattrs[range]);
        }
        data.truncate(size);
        Ok(data)
    }

    /// Moves inline data from the slot to a block before it changes.
    pub(crate) fn inline_to_blocks(&self, inode: &Inode) -> Result<()> {
        let data = {
            let core = core_of(inode).read();
            if core.flags & FL_INLINE_DATA == 0 {
                return Ok(());
            }
            self.inline_data(inode, &core)?
        };
        let reserved = match data.len() {
            0 => None,
            _ => Some(self.reserve_blocks(inode, self.goal_for(inode), 1)?),
        };
        if let Some(reserved) = &reserved {
            let mut block = vec![0; self.sb.block_size as usize];
            block[..data.len()].copy_from_slice(&data);
            self.write_data(inode, reserved.start.offset(self.sb.block_size), &block)?;
        }
        let mut h = self.begin(MAP_CREDITS)?;
        let run = reserved.as_ref().map(|reserved| Extent {
            file_block: FileBlock(0),
            len: 1,
            start: reserved.start,
            unwritten: false,
        });
        if let Some(reserved) = reserved {
            self.commit_reserved(&mut h, reserved)?;
        }
        let mut core = core_of(inode).write();
        core.body_xattrs =
            without_inline_data(&core.body_xattrs).map_err(|what| self.corrupt_inode(what, inode))?.into();
        core.flags &= !FL_INLINE_DATA;
        if self.sb.incompat.contains(Incompat::EXTENTS) {
            core.flags |= FL_EXTENTS;
            core.i_block = empty_root();
        } else {
            core.i_block = [0; 60];
        }
        if let Some(run) = run {
            self.map_run(&mut h, inode, &mut core, run)?;
            self.charge_blocks(inode, &mut core, 1);
        }
        drop(core);
        inode.logged_in_background();
        self.log(&mut h, inode)
    }

    /// The blocks of the range that are holes and have no reservation.
    fn without_reservation(
        &self,
        inode: &Inode,
        core: &InodeCore,
        first: FileBlock,
        last: FileBlock,
    ) -> Result<Vec<FileBlock>> {
        let last = last.min(self.map_limit(core));
        let mut missing = Vec::new();
        let mut at = first;
        while at < last {
            let mapping = self.map_in(inode, core, at)?;
            let stop = at.saturating_add(mapping.len).min(last);
            if mapping.kind == RangeKind::Hole {
                missing.extend(at.run(stop - at).filter(|block| !core.delayed.blocks.contains(block)));
            }
            at = stop;
        }
        Ok(missing)
    }

    /// Ends the reservations of blocks that are now allocated, or never will be.
    pub(crate) fn end_reservations(&self, core: &mut InodeCore, from: FileBlock, to: FileBlock) {
        if from >= to || core.delayed.blocks.is_empty() {
            return;
        }
        let mut rest = core.delayed.blocks.split_off(&from);
        let mut after = rest.split_off(&to);
        core.delayed.blocks.append(&mut after);
        if !rest.is_empty() {
            let ended: Vec<FileBlock> = rest.into_iter().collect();
            self.release_delayed(self.reservation_for(core, &ended));
        }
    }

    /// The free blocks to reserve for these blocks (sorted, none of them reserved): the blocks themselves,
    /// and one of the map for every stretch of the file that has no reservation yet. A stretch never needs
    /// more than one new node of the lowest level.
    fn reservation_for(&self, core: &InodeCore, blocks: &[FileBlock]) -> u64 {
        // The same for both kinds of map: a reservation must end with the size that it started with.
        let stretch = u64::from(self.sb.block_size) / 32;
        let mut nodes = 0;
        let mut last = None;
        for block in blocks {
            let number = block.0 / stretch;
            if last != Some(number) {
                last = Some(number);
                let range = FileBlock(number * stretch)..FileBlock((number + 1) * stretch);
                nodes += u64::from(core.delayed.blocks.range(range).next().is_none());
            }
        }
        blocks.len() as u64 + nodes
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let size = inode.size();
        let core = core_of(inode).read();
        if size == 0 || size > u64::from(self.sb.block_size) {
            return Err(self.corrupt_inode(format!("a symbolic link of {size} bytes"), inode));
        }
        let size = size as usize;
        if core.flags & FL_INLINE_DATA != 0 {
            return self.inline_data(inode, &core);
        }
        if size < FAST_LINK && core.flags & FL_EXTENTS == 0 {
            return Ok(core.i_block[..size].to_vec());
        }
        drop(core);
        // The block is journalled as metadata: the device may not hold it yet.
        match self.dir_block(inode, FileBlock(0))? {
            Some(buffer) => Ok(buffer.read()[..size].to_vec()),
            None => Err(self.corrupt_inode("a symbolic link without its block", inode)),
        }
    }

    /// Stores the target of a new symbolic link: in the inode if it is short, else in a block that is written
    /// as metadata. Sets the size; the caller logs the inode.
    pub(crate) fn write_symlink(&self, h: &mut Handle, inode: &Inode, target: &[u8]) -> Result<()> {
        if target.len() >= self.sb.block_size as usize {
            return Err(NameError::NameTooLong.into());
        }
        let size = target.len() as u64;
        if target.len() < FAST_LINK {
            let mut core = core_of(inode).write();
            core.flags &= !FL_EXTENTS;
            core.i_block = [0; 60];
            core.i_block[..target.len()].copy_from_slice(target);
            core.disk_size = size;
        } else {
            let block = self.alloc_own_block(h, inode)?;
            let buffer = self.new_block(block)?;
            h.modify(&buffer, |bytes| bytes[..target.len()].copy_from_slice(target))?;
            let mut core = core_of(inode).write();
            core.i_block = if core.flags & FL_EXTENTS != 0 { empty_root() } else { [0; 60] };
            self.map_run(
                h,
                inode,
                &mut core,
                Extent { file_block: FileBlock(0), len: 1, start: block, unwritten: false },
            )?;
            self.charge_blocks(inode, &mut core, 1);
            core.disk_size = size;
        }
        inode.with_attr(|attr| attr.size = size);
        Ok(())
    }
}

impl FileOps for Ext4 {
    /// Fills `buf` from the device; holes, unwritten ranges and bytes after the disk size read as zeros. Data
    /// bypasses the buffer cache, which holds metadata only.
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let core = core_of(inode).read();
        if core.flags & FL_INLINE_DATA != 0 {
            let data = self.inline_data(inode, &core)?;
            buf.fill(0);
            if let Some(rest) = usize::try_from(offset).ok().and_then(|offset| data.get(offset..)) {
                let len = rest.len().min(buf.len());
                buf[..len].copy_from_slice(&rest[..len]);
            }
            return Ok(());
        }
        let bits = self.sb.block_bits;
        let on_device = core.disk_size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut at = 0;
        while at < on_device {
            let position = offset + at as u64;
            let in_block = position & ((1 << bits) - 1);
            let mapping = self.map_in(inode, &core, FileBlock(position >> bits))?;
            let run = (mapping.len.min(1 << 32) << bits) - in_block;
            let len = run.min((on_device - at) as u64) as usize;
            let part = &mut buf[at..at + len];
            if mapping.kind == RangeKind::Data {
                self.dev.read_at(mapping.block.offset(self.sb.block_size) + in_block, part)?;
            } else {
                part.fill(0);
            }
            at += len;
        }
        buf[on_device..].fill(0);
        Ok(())
    }

    /// Reserves a free block for each block of the range that has none yet.
    fn reserve(&self, inode: &Inode, offset: u64, len: u64, pool: BlockPool) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let bits = self.sb.block_bits;
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        self.inline_to_blocks(inode)?;
        // Write-back writes whole pages: reserve the blocks of whole pages.
        let page = PAGE_BYTES.max(1 << bits);
        let first = FileBlock((offset / page * page) >> bits);
        let last = FileBlock(end.div_ceil(page).saturating_mul(page) >> bits);
        loop {
            let wanted = {
                let core = core_of(inode).read();
                if FileBlock(end.div_ceil(1 << bits)) > self.map_limit(&core) {
                    return Err(NameError::TooLarge.into());
                }
                let missing = self.without_reservation(inode, &core, first, last)?;
                self.reservation_for(&core, &missing)
            };
            if wanted == 0 {
                return Ok(());
            }
            // Without the lock: this may wait for a commit, and the commit for a handle that waits for the
            // lock.
            self.reserve_delayed(wanted, pool)?;
            let mut core = core_of(inode).write();
            let missing = match self.without_reservation(inode, &core, first, last) {
                Ok(missing) if self.reservation_for(&core, &missing) <= wanted => missing,
                other => {
                    self.release_delayed(wanted);
                    other?;
                    continue;
                }
            };
            self.release_delayed(wanted - self.reservation_for(&core, &missing));
            core.delayed.blocks.extend(missing);
            return Ok(());
        }
    }

    /// Ends the reservations of the range.
    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let bits = self.sb.block_bits;
        let end = FileBlock(offset.saturating_add(len).div_ceil(1 << bits));
        self.end_reservations(&mut core_of(inode).write(), FileBlock(offset >> bits), end);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.write_back_data(inode, offset, data).map(|()| Written::Durable)
    }

    /// 512-byte units that the file uses, or will use after write-back.
    fn blocks_512(&self, inode: &Inode) -> u64 {
        let core = core_of(inode).read();
        let size = inode.size();
        if core.flags & FL_INLINE_DATA != 0 && inode.kind == FileType::Regular {
            return core.blocks_512 + size.div_ceil(512);
        }
        let bits = self.sb.block_bits;
        // Space is reserved for whole pages; the blocks after the end of the file will not be used.
        let beyond_end = core.delayed.blocks.range(FileBlock(size.div_ceil(1 << bits))..).count();
        core.blocks_512 + ((core.delayed.blocks.len() - beyond_end) as u64 * (1 << bits) / 512)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.reservation_windows.remove(inode.ino);
        self.truncate_data(inode, size)
    }
}

impl BlockMapOps for Ext4 {
    /// Returns the mapped range at `offset`.
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let core = core_of(inode).read();
        if core.flags & FL_INLINE_DATA != 0 {
            return Ok(if offset < core.disk_size {
                MappedRange { start: 0, len: core.disk_size, kind: RangeKind::Data }
            } else {
                MappedRange { start: offset, len: u64::MAX - offset, kind: RangeKind::Hole }
            });
        }
        let bits = self.sb.block_bits;
        let mapping = self.map_in(inode, &core, FileBlock(offset >> bits))?;
        let start = mapping.start.0 << bits;
        let len = mapping.len.saturating_mul(1 << bits).min(u64::MAX - start);
        Ok(MappedRange { start, len, kind: mapping.kind })
    }
}
