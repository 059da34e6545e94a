//! File data. The format has no holes: a skipped range is written as zeros.

use crate::cluster::Cluster;
use crate::fs::{Fat, InodeState, fat_inode, order_error};
use ivers_block::ByteOffset;
use ivers_vfs::*;
use ivers_write_ordering::Stage;
use std::ops::Range;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// The largest file size that an entry can store.
pub(crate) const MAX_FILE_SIZE: u64 = u32::MAX as u64;

impl Fat {
    /// Reads file data. Bytes past the valid size are zeros.
    pub(crate) fn read_file(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (ranges, inside) = {
            let mut state = fat_inode(inode).state.lock();
            let inside = state.valid_size.saturating_sub(offset).min(buf.len() as u64);
            state.chain.load(&self.table, self.geometry.clusters_for(offset + inside))?;
            (state.chain.device_ranges(&self.geometry, offset, inside)?, inside as usize)
        };
        let (data, past_end) = buf.split_at_mut(inside);
        past_end.fill(0);
        let mut rest = data;
        for (byte, len) in ranges {
            let (piece, later) = rest.split_at_mut(len);
            self.cache.device().read_at(byte, piece)?;
            rest = later;
        }
        Ok(())
    }

    /// Returns how many clusters a file of `bytes` bytes needs beyond those that it has or has reserved.
    fn missing_clusters(&self, state: &mut InodeState, bytes: u64) -> Result<u64> {
        state.chain.load_all(&self.table)?;
        let has = state.chain.len() + state.reserved;
        Ok(self.geometry.clusters_for(bytes).saturating_sub(has))
    }

    /// Reserves clusters so that the file can reach `end`. Files have no holes, so all reserved clusters
    /// follow the end of the chain.
    pub(crate) fn reserve_bytes(&self, inode: &Inode, end: u64) -> Result<()> {
        // If writing stopped, data that is accepted here would be lost.
        if let Some(ordered) = &self.ordered {
            ordered.check().map_err(order_error)?;
        }
        let mut state = fat_inode(inode).state.lock();
        let missing = self.missing_clusters(&mut state, end)?;
        self.table.reserve(missing)?;
        state.reserved += missing;
        Ok(())
    }

    /// Returns the space that an inode uses or has reserved, in units of 512 bytes.
    pub(crate) fn used_and_reserved_512(&self, inode: &Inode) -> u64 {
        let state = fat_inode(inode).state.lock();
        // During write-back the chain has the clusters already, and `Attr::blocks_512` does not. If the chain
        // is not loaded, nothing is reserved and the attribute is right.
        let clusters = state.chain.len() + state.reserved;
        (clusters * u64::from(self.geometry.cluster_bytes) / 512).max(inode.with_attr(|attr| attr.blocks_512))
    }

    /// Releases reserved clusters after pages from `offset` on were dropped.
    pub(crate) fn unreserve_bytes(&self, inode: &Inode, offset: u64) {
        let mut state = fat_inode(inode).state.lock();
        let needed = self.geometry.clusters_for(offset.max(inode.size())).saturating_sub(state.chain.len());
        let unneeded = state.reserved.saturating_sub(needed);
        state.reserved -= unneeded;
        self.table.unreserve(unneeded);
    }

    fn write_ranges(&self, ranges: &[(ByteOffset, usize)], mut data: &[u8]) -> Result<()> {
        for (byte, len) in ranges {
            let (piece, rest) = data.split_at(*len);
            self.cache.device().write_at(*byte, piece).map_err(Error::file_data)?;
            data = rest;
        }
        Ok(())
    }

    fn zero_ranges(&self, ranges: &[(ByteOffset, usize)]) -> Result<()> {
        for (byte, len) in ranges {
            for at in (0..*len).step_by(ZEROS.len()) {
                let zeros = &ZEROS[..ZEROS.len().min(len - at)];
                self.cache.device().write_at(*byte + at as u64, zeros).map_err(Error::file_data)?;
            }
        }
        Ok(())
    }

    /// Writes zeros to allocated clusters that no file has yet.
    pub(crate) fn zero_clusters(&self, runs: &[Range<Cluster>]) -> Result<()> {
        let Some(ordered) = self.ordered.as_ref().filter(|_| !runs.is_empty()) else { return Ok(()) };
        ordered.begin().map_err(order_error)?;
        let bytes =
            |run: &Range<Cluster>| (run.end - run.start) as usize * self.geometry.cluster_bytes as usize;
        let ranges: Vec<_> =
            runs.iter().map(|run| (self.geometry.cluster_offset(run.start), bytes(run))).collect();
        self.zero_ranges(&ranges)
    }

    /// Writes file data to the device and zeros between the old end and `offset`, allocating clusters. Then
    /// links the clusters to the file and raises its size on disk to at most the end of `data`. The caller
    /// holds the write-back lock of the file.
    pub(crate) fn write_file(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let ordered = self.ordered.as_ref().ok_or(NameError::ReadOnly)?;
        let truncated = fat_inode(inode).state.lock().truncate_ticket;
        // A chain must not become shorter and longer in one batch: the new end would be durable before the
        // smaller size.
        self.settle(truncated)?;
        // Data that is overwritten in place also needs the dirty mark.
        ordered.begin().map_err(order_error)?;
        let end = offset + data.len() as u64;
        let (allocated, zeros, ranges) = {
            let mut state = fat_inode(inode).state.lock();
            state.chain.load_all(&self.table)?;
            let has = state.chain.len();
            let count = self.geometry.clusters_for(end).saturating_sub(has);
            let near = state.chain.tail().map_or(Cluster::NONE, |tail| tail + 1);
            let reserved = count.min(state.reserved);
            let allocated = if count > 0 { self.table.allocate(count, reserved, near)? } else { Vec::new() };
            state.reserved -= reserved;
            // Readers do not read the new clusters: they are past `valid_size`.
            state.chain.append(&allocated);
            let gap = state.valid_size.min(offset)..offset;
            let ranges = |range: Range<u64>| {
                state.chain.device_ranges(&self.geometry, range.start, range.end - range.start)
            };
            let found = ranges(gap).and_then(|zeros| Ok((zeros, ranges(offset..end)?)));
            match found {
                Ok((zeros, ranges)) => (allocated, zeros, ranges),
                Err(error) => {
                    state.chain.truncate(has);
                    self.table.cancel_allocation(&allocated);
                    return Err(error);
                }
            }
        };
        let count: u64 = allocated.iter().map(|run| u64::from(run.end - run.start)).sum();
        let back_out = |error| {
            let mut state = fat_inode(inode).state.lock();
            let has = state.chain.len() - count;
            state.chain.truncate(has);
            self.table.cancel_allocation(&allocated);
            Err(error)
        };
        if let Err(error) = self.zero_ranges(&zeros).and_then(|()| self.write_ranges(&ranges, data)) {
            return back_out(error);
        }
        let change = match self.change() {
            Ok(change) => change,
            Err(error) => return back_out(error),
        };
        let mut state = fat_inode(inode).state.lock();
        let has = state.chain.len() - count;
        let tail = has.checked_sub(1).and_then(|last| state.chain.get(last)).map(|(cluster, _)| cluster);
        self.table.link_chain(&change, &allocated, tail)?;
        state.valid_size = state.valid_size.max(end);
        let clusters = state.chain.len();
        let size = inode.with_attr(|attr| {
            attr.blocks_512 = clusters * u64::from(self.geometry.cluster_bytes) / 512;
            attr.size.min(end)
        });
        if size > state.disk_size || count > 0 {
            state.disk_size = state.disk_size.max(size);
            self.log_state(&change, inode, &state)?;
            inode.logged_in_background();
        }
        Ok(())
    }

    /// Changes the size of a file. The caller holds the exclusive lock and the write-back lock of the file.
    pub(crate) fn resize(&self, inode: &Inode, size: u64) -> Result<()> {
        let old = {
            let mut state = fat_inode(inode).state.lock();
            state.chain.load_all(&self.table)?;
            state.disk_size
        };
        if size > old {
            // Without enough space, nothing is written.
            self.reserve_bytes(inode, size)?;
            // Writes the zeros between the old and the new end.
            let grown = self.write_file(inode, size, &[]);
            self.unreserve_bytes(inode, 0);
            grown?;
            let change = self.change()?;
            {
                let mut state = fat_inode(inode).state.lock();
                state.disk_size = size;
                state.valid_size = state.valid_size.max(size);
            }
            inode.changed(Touch::Data, Logged::Anyway);
            return self.log_in(&change, inode);
        }
        let change = self.change()?;
        {
            let mut state = fat_inode(inode).state.lock();
            let keep = self.geometry.clusters_for(size);
            let removed = state.chain.truncate(keep);
            if let Some(tail) = state.chain.tail().filter(|_| !removed.is_empty()) {
                self.table.set_link(&change, Stage::Cut, tail, None)?;
                state.truncate_ticket = change.ticket();
            }
            self.table.free(&change, removed);
            state.disk_size = size;
            state.valid_size = state.valid_size.min(size);
            let clusters = state.chain.len();
            inode.with_attr(|attr| attr.blocks_512 = clusters * u64::from(self.geometry.cluster_bytes) / 512);
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.log_in(&change, inode)
    }

    /// Frees all clusters of a file that has neither a name nor a user.
    pub(crate) fn free_file(&self, inode: &Inode) -> Result<()> {
        let change = self.change()?;
        let mut state = fat_inode(inode).state.lock();
        self.table.unreserve(std::mem::take(&mut state.reserved));
        state.chain.load_all(&self.table)?;
        let removed = state.chain.truncate(0);
        self.table.free(&change, removed);
        (state.disk_size, state.valid_size) = (0, 0);
        Ok(())
    }
}
