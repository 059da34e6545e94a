//! Write-back: allocates unwritten blocks, writes the data, then marks the blocks as written. A short write
//! to a hole needs one transaction: the data is on the device before the map is visible, and a commit flushes
//! the device before it writes to the log. The data of a short new file is written before the transaction
//! begins, if blocks can be [claimed](crate::write::claims).

use super::change::Edited;
use super::reservations::PAGE_BYTES;
use super::vnode::{core_of, private_of};
use super::volume::Xfs;
use crate::fork::{ForkSource, Mapping};
use crate::layout::dinode::EXTENT_MAX;
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::{Error, Inode, NameError, Result};
use std::ops::Range;

/// Data of at most so many bytes is written inside of a transaction. Other changes wait meanwhile.
const SHORT_WRITE_BYTES: usize = 64 << 10;

impl Xfs {
    /// What a file has at a block. The write-back lock keeps it so.
    pub(super) fn mapping_at(&self, inode: &Inode, at: FileBlock) -> Result<Mapping> {
        let core = core_of(inode);
        self.map(&core.data, at, core.ino)
    }

    /// Writes data of a file directly to the device.
    pub(super) fn write_data(&self, inode: &Inode, at: BlockNo, skip: u64, data: &[u8]) -> Result<()> {
        let session = self.session()?;
        let written = self.cache.device().write_at(at.offset(self.sb.block_size) + skip, data);
        session.commits.changes().data_written(&private_of(inode).last_change);
        written.map_err(Error::file_data)
    }

    /// See [`ivers_vfs::FileOps::write_back`].
    pub(super) fn write_back_data(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        self.check_readable(&core_of(inode))?;
        let ranges_a_change = self.session()?.extents_a_change;
        let bits = self.sb.block_bits;
        let data_end = offset + data.len() as u64;
        self.zero_stale_tail(inode, offset)?;
        let range = FileBlock(offset >> bits)..FileBlock(data_end.div_ceil(1 << bits));
        let mut at = range.start;
        if self.write_to_hole(inode, range.clone(), offset, data)? {
            at = range.end;
        }
        self.allocate_delayed(inode, at..range.end)?;
        while at < range.end {
            let (mut unwritten, first) = (Vec::new(), at);
            while at < range.end && unwritten.len() < ranges_a_change {
                let (mapping, shared) = self.mapping_to_change(inode, at, range.end)?;
                let stop = at + mapping.len;
                let Some(block) = mapping.block else {
                    return Err(self.corrupt("a block that was allocated is a hole", core_of(inode).whose()));
                };
                if shared {
                    self.write_copies(inode, at..stop, offset, data)?;
                } else {
                    self.put_data(inode, block, at..stop, offset, data)?;
                    if mapping.unwritten {
                        unwritten.push(at..stop);
                    }
                }
                at = stop;
            }
            self.release_range(inode, first..at);
            self.note_written(inode, &unwritten, (at.0 << bits).min(data_end))?;
        }
        // The blocks after the end of the file are not used.
        if data_end >= inode.size() {
            self.release_range(inode, range.end..self.page_end(range.end));
        }
        Ok(())
    }

    /// The first block after the page with the block before `end`. Space is reserved for whole pages.
    fn page_end(&self, end: FileBlock) -> FileBlock {
        let bits = self.sb.block_bits;
        FileBlock((end.0 << bits).next_multiple_of(PAGE_BYTES) >> bits)
    }

    /// Allocates, writes and maps a short hole in one transaction. Returns false, and does nothing, if the
    /// range is not such a hole, is a part of a longer one that is delayed, or gets no single extent.
    fn write_to_hole(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        let (bits, len) = (self.sb.block_bits, range.end - range.start);
        if data.len() > SHORT_WRITE_BYTES || range.start.0 << bits != offset {
            return Ok(false);
        }
        let delayed = private_of(inode).delayed.lock().holes.around(range.start);
        let mapping = self.mapping_at(inode, range.start)?;
        let is_hole = mapping.block.is_none() && mapping.len >= len;
        if !is_hole || delayed.is_some_and(|delayed| delayed.end > self.page_end(range.end)) {
            return Ok(false);
        }
        if self.write_to_claim(inode, range.clone(), offset, data)? {
            return Ok(true);
        }
        let ahead = self.session()?.window_blocks(range.start);
        let mut change = self.change()?;
        let mut edited = Edited::new(inode);
        let Some(start) = change.allocate_written(&mut edited.core, range.start, len as u32, ahead)? else {
            return Ok(false);
        };
        self.put_data(inode, start, range.clone(), offset, data)?;
        raise_size(&mut edited, (offset + data.len() as u64).min(inode.size()));
        change.finish(vec![edited])?;
        self.release_range(inode, range);
        Ok(true)
    }

    /// Writes data to claimed blocks, and maps them in a transaction. Returns false, and leaves the file as
    /// it is, if no blocks can be claimed or mapped, or if the file has blocks already, which new ones should
    /// follow.
    fn write_to_claim(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        if core_of(inode).data.has_blocks() {
            return Ok(false);
        }
        let Some((ag, _)) = self.sb.agino(inode.ino.0) else { return Ok(false) };
        let len = (range.end - range.start) as u32;
        let Some(claim) = self.session()?.space.claims.take(ag, len) else { return Ok(false) };
        let Some(start) = claim.first_block(&self.sb) else { return Ok(false) };
        self.put_data(inode, start, range.clone(), offset, data)?;
        let mut change = self.change()?;
        let mut edited = Edited::new(inode);
        if !change.map_claim(&mut edited.core, range.start, &claim)? {
            return Ok(false);
        }
        raise_size(&mut edited, (offset + data.len() as u64).min(inode.size()));
        change.finish(vec![edited])?;
        self.release_range(inode, range);
        Ok(true)
    }

    /// Gives space to all holes of a range, and to what else is delayed around them: a file that is written
    /// back piece by piece has long extents.
    fn allocate_delayed(&self, inode: &Inode, range: Range<FileBlock>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let mapping = self.mapping_at(inode, at)?;
            let stop = at.saturating_add(mapping.len);
            if mapping.block.is_some() {
                at = stop;
                continue;
            }
            let delayed = private_of(inode).delayed.lock().holes.around(at);
            let most = delayed.map_or(range.end, |delayed| delayed.end.max(range.end));
            let ahead = self.session()?.window_blocks(at);
            at = self.allocate_unwritten(inode, at..most.min(stop), ahead)?;
        }
        Ok(())
    }

    /// Allocates the start of a hole, as much as one extent can have. Returns the block after it. If the file
    /// ends there, it should get `ahead` blocks more later.
    pub(super) fn allocate_unwritten(
        &self,
        inode: &Inode,
        hole: Range<FileBlock>,
        ahead: u32,
    ) -> Result<FileBlock> {
        let most = (hole.end - hole.start).min(EXTENT_MAX.into()) as u32;
        let mut change = self.change()?;
        let mut edited = Edited::new(inode);
        let len = change.allocate(&mut edited.core, hole.start, most, ahead)?.ok_or(NameError::NoSpace)?;
        change.finish(vec![edited])?;
        let end = hole.start + len;
        self.release_range(inode, hole.start..end);
        Ok(end)
    }

    /// Writes the part of `data`, which starts at byte `offset`, that belongs to some blocks; zeros follow it
    /// up to the end of the last block.
    pub(super) fn put_data(
        &self,
        inode: &Inode,
        block: BlockNo,
        blocks: Range<FileBlock>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let bits = self.sb.block_bits;
        let start = ((blocks.start.0 << bits) - offset) as usize;
        let stop = (((blocks.end.0 << bits) - offset) as usize).min(data.len());
        let whole = (stop - start) & !((1 << bits) - 1);
        if whole > 0 {
            self.write_data(inode, block, 0, &data[start..start + whole])?;
        }
        if start + whole < stop {
            let mut last = vec![0; 1 << bits];
            last[..stop - start - whole].copy_from_slice(&data[start + whole..stop]);
            self.write_data(inode, block, whole as u64, &last)?;
        }
        Ok(())
    }

    /// Marks ranges as written, and raises the size on the device.
    fn note_written(&self, inode: &Inode, unwritten: &[Range<FileBlock>], covered: u64) -> Result<()> {
        let size = covered.min(inode.size());
        if unwritten.is_empty() && size <= core_of(inode).size() {
            return Ok(());
        }
        let mut change = self.change()?;
        let mut edited = Edited::new(inode);
        for range in unwritten {
            change.mark_written(&mut edited.core, range.clone())?;
        }
        raise_size(&mut edited, size);
        change.finish(vec![edited])
    }

    /// Zeroes what is written on the device past its size, up to where new data begins: those bytes may be
    /// from before a truncation, or arbitrary.
    pub(super) fn zero_stale_tail(&self, inode: &Inode, new_data_at: u64) -> Result<()> {
        let size = core_of(inode).size();
        if new_data_at > size { self.zero_bytes(inode, size, new_data_at) } else { Ok(()) }
    }

    /// Writes zeros to the device.
    pub(super) fn zero(&self, inode: &Inode, block: BlockNo, skip: u64, len: u64) -> Result<()> {
        const PIECE: u64 = 1 << 20;
        let zeros = vec![0; len.min(PIECE) as usize];
        for at in (0..len).step_by(PIECE as usize) {
            let piece = (len - at).min(PIECE) as usize;
            self.write_data(inode, block, skip + at, &zeros[..piece])?;
        }
        Ok(())
    }
}

/// Raises the size on the device, unless it is larger already.
fn raise_size(edited: &mut Edited<'_>, size: u64) {
    if size > edited.core.size() {
        edited.core.set_size(size);
    }
}
