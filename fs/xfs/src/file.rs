//! Contents of files.

use crate::fork::ForkSource;
use crate::inode::Dinode;
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::live::Xfs;
use ivers_block::FileBlock;
use ivers_vfs::{Error, MappedRange, RangeKind, Result};
use std::ops::Range;

impl Xfs {
    /// Refuses a file whose data this driver cannot reach.
    pub(crate) fn check_readable(&self, file: &Dinode) -> Result<()> {
        if file.is_realtime() {
            let what = "its data is on the realtime device, which is not supported";
            return Err(Error::Incompatible(format!("{}, inode {}: {what}", self.place, file.ino)));
        }
        Ok(())
    }

    /// Fills `buf` from a byte of a file on. Both ends are multiples of the block size.
    pub(crate) fn read_file(&self, file: &Dinode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check_readable(file)?;
        let size = u64::from(self.sb.block_size);
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let (block, skip) = (at / size, at % size);
            let mapping = self.map(&file.data, FileBlock(block), file.ino)?;
            let mapped = mapping.len.saturating_mul(size).saturating_sub(skip);
            let len = mapped.min((buf.len() - done) as u64) as usize;
            let part = &mut buf[done..done + len];
            match mapping.block.filter(|_| !mapping.unwritten) {
                Some(start) => self.read_data(start, skip, part)?,
                None => part.fill(0),
            }
            done += len;
        }
        // Bytes past the end are not defined on the device.
        let inside = file.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        buf[inside..].fill(0);
        Ok(())
    }

    /// The holes of a file in a range of blocks.
    pub(crate) fn holes(&self, file: &Dinode, range: Range<FileBlock>) -> Result<Vec<Range<FileBlock>>> {
        let (mut at, mut holes) = (range.start, Vec::new());
        while at < range.end {
            let mapping = self.map(&file.data, at, file.ino)?;
            let stop = at.saturating_add(mapping.len).min(range.end);
            if mapping.block.is_none() {
                holes.push(at..stop);
            }
            at = stop;
        }
        Ok(holes)
    }

    /// Returns what is at a byte of a file, and how far.
    pub(crate) fn map_file(&self, file: &Dinode, offset: u64) -> Result<MappedRange> {
        self.check_readable(file)?;
        let size = u64::from(self.sb.block_size);
        let block = FileBlock(offset / size);
        let mapping = self.map(&file.data, block, file.ino)?;
        let kind = match mapping.block {
            None => RangeKind::Hole,
            Some(_) if mapping.unwritten => RangeKind::Unwritten,
            Some(_) => RangeKind::Data,
        };
        let start = block.0 * size;
        let end = block.0.saturating_add(mapping.len);
        // The last hole has no end.
        let end = if end >= FILE_BLOCKS_END { u64::MAX } else { end.saturating_mul(size) };
        Ok(MappedRange { start, len: end - start, kind })
    }
}
