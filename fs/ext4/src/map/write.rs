//! Write-back: data to the device first, then the transaction that maps it.

use crate::balloc::Reserved;
use crate::fs::{Ext4, Handle, core_of};
use crate::map::data::PAGE_BYTES;
use crate::map::node::{Extent, MAX_UNWRITTEN};
use crate::map::{MAP_CREDITS, Mapping};
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::{Inode, RangeKind, Result};

/// Limit of the runs that one transaction maps, to bound its size.
const RUNS_PER_TRANSACTION: usize = 16;

/// A run whose data is on the device and whose map entry is not updated yet.
enum Pending {
    /// These blocks fill a hole.
    New(FileBlock, Reserved),
    /// Unwritten blocks become written.
    Written(Mapping),
}

impl Ext4 {
    /// Writes data back; see [`ivers_vfs::FileOps::write_back`].
    pub(crate) fn write_back_data(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        self.inline_to_blocks(inode)?;
        let bits = self.sb.block_bits;
        self.zero_stale_tail(inode, offset)?;
        let end = FileBlock((offset + data.len() as u64).div_ceil(1 << bits));
        let mut at = FileBlock(offset >> bits);
        while at < end {
            let mut pending = Vec::new();
            while at < end && pending.len() < RUNS_PER_TRANSACTION {
                let mut mapping = self.map_block(inode, at)?;
                mapping.len = mapping.len.min(end - at);
                let written = match mapping.kind {
                    RangeKind::Data => mapping.len,
                    RangeKind::Unwritten => {
                        pending.push(Pending::Written(mapping));
                        mapping.len
                    }
                    RangeKind::Hole => {
                        let most = mapping.len.min(u64::from(MAX_UNWRITTEN)) as u32;
                        let goal = self.goal_after(inode, at)?;
                        let grows = at.0 << bits >= core_of(inode).read().disk_size;
                        let reserved = if grows {
                            self.reserve_growing(inode, goal, at, most)?
                        } else {
                            self.reserve_blocks(inode, goal, most)?
                        };
                        mapping.block = reserved.start;
                        let len = u64::from(reserved.len);
                        pending.push(Pending::New(at, reserved));
                        len
                    }
                };
                self.put_data(inode, &mapping, written, offset, data)?;
                at += written;
            }
            let covered = (at.0 << bits).min(offset + data.len() as u64);
            self.finish(inode, pending, covered)?;
        }
        // Space was reserved for whole pages; release the blocks after the end of the file.
        let data_end = offset + data.len() as u64;
        if data_end >= inode.size() {
            let page_end = FileBlock(data_end.next_multiple_of(PAGE_BYTES) >> bits);
            self.end_reservations(&mut core_of(inode).write(), end, page_end);
        }
        Ok(())
    }

    /// The goal for a file block: the block after the previous file block, which avoids fragmentation.
    fn goal_after(&self, inode: &Inode, file_block: FileBlock) -> Result<BlockNo> {
        if file_block > FileBlock(0) {
            let before = self.map_block(inode, FileBlock(file_block.0 - 1))?;
            if before.kind != RangeKind::Hole {
                return Ok(before.block + 1);
            }
        }
        Ok(self.goal_for(inode))
    }

    /// Writes the part of `data` (which starts at `offset`) that belongs to the first `blocks` of the
    /// mapping; zeroes the rest of the last block.
    fn put_data(
        &self,
        inode: &Inode,
        mapping: &Mapping,
        blocks: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let bits = self.sb.block_bits;
        let start = ((mapping.start.0 << bits) - offset) as usize;
        let stop = (start + (blocks << bits) as usize).min(data.len());
        let place = mapping.block.offset(self.sb.block_size);
        let whole = (stop - start) & !((1 << bits) - 1);
        if whole > 0 {
            self.write_data(inode, place, &data[start..start + whole])?;
        }
        if start + whole < stop {
            let mut last = vec![0; 1 << bits];
            last[..stop - start - whole].copy_from_slice(&data[start + whole..stop]);
            self.write_data(inode, place + whole as u64, &last)?;
        }
        Ok(())
    }

    /// Maps the runs and raises the disk size to `covered`, in one transaction.
    fn finish(&self, inode: &Inode, pending: Vec<Pending>, covered: u64) -> Result<()> {
        let size = covered.min(inode.size());
        if pending.is_empty() && size <= core_of(inode).read().disk_size {
            return Ok(());
        }
        let mut h = self.begin(MAP_CREDITS * (pending.len() as u32 + 1) + 16)?;
        let (mut size, mut result) = (size, Ok(()));
        for run in pending {
            let start = match &run {
                Pending::New(file_block, _) => *file_block,
                Pending::Written(mapping) => mapping.start,
            };
            result = self.map_pending(&mut h, inode, run);
            if result.is_err() {
                size = size.min(start.0 << self.sb.block_bits);
                break;
            }
        }
        {
            let mut core = core_of(inode).write();
            core.disk_size = core.disk_size.max(size);
        }
        // Also on lack of space: the changed nodes are in this transaction, and their root is in the inode.
        inode.logged_in_background();
        self.log(&mut h, inode)?;
        result
    }

    /// Maps one run. An error leaves it unmapped.
    fn map_pending(&self, h: &mut Handle, inode: &Inode, run: Pending) -> Result<()> {
        match run {
            Pending::New(file_block, reserved) => {
                let extent =
                    Extent { file_block, len: reserved.len, start: reserved.start, unwritten: false };
                self.commit_reserved(h, reserved)?;
                let mut core = core_of(inode).write();
                if let Err(error) = self.map_run(h, inode, &mut core, extent) {
                    drop(core);
                    self.free_blocks(h, extent.start, extent.len, false)?;
                    return Err(error);
                }
                self.charge_blocks(inode, &mut core, i64::from(extent.len));
                self.end_reservations(&mut core, file_block, file_block + u64::from(extent.len));
                Ok(())
            }
            Pending::Written(mapping) => {
                let mut core = core_of(inode).write();
                self.extent_mark(h, inode, &mut core, mapping.start, mapping.start + mapping.len, false)
            }
        }
    }

    /// Zeroes the rest of the block that the disk size ends in, before the disk size grows past it: those
    /// bytes may be from before a truncate, or arbitrary.
    pub(super) fn zero_stale_tail(&self, inode: &Inode, new_data_at: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let disk_size = core_of(inode).read().disk_size;
        let in_block = disk_size & ((1 << bits) - 1);
        if in_block == 0 || new_data_at >> bits <= disk_size >> bits {
            return Ok(());
        }
        let mapping = self.map_block(inode, FileBlock(disk_size >> bits))?;
        if mapping.kind == RangeKind::Data {
            let zeros = vec![0; (1 << bits) - in_block as usize];
            self.write_data(inode, mapping.block.offset(self.sb.block_size) + in_block, &zeros)?;
        }
        Ok(())
    }
}
