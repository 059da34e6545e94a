//! Data of files. The format has no holes: what is skipped is written as zeros.

use crate::cluster::Cluster;
use crate::fat::{Fat, State, node};
use crate::table::order_error;
use ivers_block::ByteOffset;
use ivers_vfs::*;
use std::ops::Range;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// The largest size that an entry can say.
pub(crate) const MOST_BYTES: u64 = u32::MAX as u64;

impl Fat {
    pub(crate) fn read_file(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (pieces, inside) = {
            let mut state = node(inode).state.lock();
            let inside = state.valid.saturating_sub(offset).min(buf.len() as u64);
            state.chain.know(&self.table, self.geometry.clusters_for(offset + inside))?;
            (state.chain.pieces(&self.geometry, offset, inside)?, inside as usize)
        };
        let (data, behind) = buf.split_at_mut(inside);
        behind.fill(0);
        let mut rest = data;
        for (byte, len) in pieces {
            let (piece, later) = rest.split_at_mut(len);
            self.cache.device().read_at(byte, piece)?;
            rest = later;
        }
        Ok(())
    }

    /// Clusters that a file would need beyond those that it has or is promised, to hold so many bytes.
    fn missing(&self, state: &mut State, bytes: u64) -> Result<u64> {
        state.chain.know_all(&self.table)?;
        let has = state.chain.len() + state.promised;
        Ok(self.geometry.clusters_for(bytes).saturating_sub(has))
    }

    /// Files have no holes, so what is promised is all from the end of the chain on.
    pub(crate) fn reserve_bytes(&self, inode: &Inode, end: u64) -> Result<()> {
        // What is accepted after that could only be lost.
        if let Some(ordered) = &self.ordered {
            ordered.check().map_err(order_error)?;
        }
        let mut state = node(inode).state.lock();
        let missing = self.missing(&mut state, end)?;
        self.table.promise(missing)?;
        state.promised += missing;
        Ok(())
    }

    /// 512-byte units that the inode takes, or will take when its pages are written.
    pub(crate) fn shown_blocks_512(&self, inode: &Inode) -> u64 {
        let state = node(inode).state.lock();
        // While pages travel their clusters are in the chain already. Of a chain that nobody has followed yet nothing is promised.
        let clusters = state.chain.len() + state.promised;
        (clusters * u64::from(self.geometry.cluster) / 512).max(inode.with_attr(|attr| attr.blocks_512))
    }

    /// Pages were dropped: what no page behind the new end can need is given back.
    pub(crate) fn unreserve_bytes(&self, inode: &Inode, offset: u64) {
        let mut state = node(inode).state.lock();
        let needed = self.geometry.clusters_for(offset.max(inode.size())).saturating_sub(state.chain.len());
        let back = state.promised.saturating_sub(needed);
        state.promised -= back;
        self.table.unpromise(back);
    }

    fn write_pieces(&self, pieces: &[(ByteOffset, usize)], mut data: &[u8]) -> Result<()> {
        for (byte, len) in pieces {
            let (piece, rest) = data.split_at(*len);
            self.cache.device().write_at(*byte, piece).map_err(Error::file_data)?;
            data = rest;
        }
        Ok(())
    }

    fn zero_pieces(&self, pieces: &[(ByteOffset, usize)]) -> Result<()> {
        for (byte, len) in pieces {
            for at in (0..*len).step_by(ZEROS.len()) {
                let few = ZEROS.len().min(len - at);
                self.cache.device().write_at(*byte + at as u64, &ZEROS[..few]).map_err(Error::file_data)?;
            }
        }
        Ok(())
    }

    /// Clusters of a file that nobody has yet, all zeros.
    pub(crate) fn zero_runs(&self, runs: &[Range<Cluster>]) -> Result<()> {
        let Some(ordered) = self.ordered.as_ref().filter(|_| !runs.is_empty()) else { return Ok(()) };
        ordered.begin().map_err(order_error)?;
        let bytes = |run: &Range<Cluster>| (run.end - run.start) as usize * self.geometry.cluster as usize;
        let pieces: Vec<_> =
            runs.iter().map(|run| (self.geometry.cluster_byte(run.start), bytes(run))).collect();
        self.zero_pieces(&pieces)
    }

    /// Puts bytes on the device, with zeros between the old end and them, in clusters that the file has or gets; then makes them the file's.
    /// `data` ends where the file does on the medium, or before. Under the file's write-back lock.
    pub(crate) fn write_file(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let ordered = self.ordered.as_ref().ok_or(NameError::ReadOnly)?;
        let cut = node(inode).state.lock().cut;
        // What is lengthened must not have been shortened in the same batch: the new end would be durable before the smaller size.
        self.settle(cut)?;
        // Data that is overwritten in place is a change too.
        ordered.begin().map_err(order_error)?;
        let end = offset + data.len() as u64;
        let (picked, zeros, pieces) = {
            let mut state = node(inode).state.lock();
            state.chain.know_all(&self.table)?;
            let has = state.chain.len();
            let count = self.geometry.clusters_for(end).saturating_sub(has);
            let near = state.chain.tail().map_or(Cluster::NONE, |tail| tail + 1);
            let promised = count.min(state.promised);
            let picked = if count > 0 { self.table.pick(count, promised, near)? } else { Vec::new() };
            state.promised -= promised;
            // Readers do not come that far: `valid` says so.
            state.chain.append(&picked);
            let gap = state.valid.min(offset)..offset;
            let pieces =
                |range: Range<u64>| state.chain.pieces(&self.geometry, range.start, range.end - range.start);
            let found = pieces(gap).and_then(|zeros| Ok((zeros, pieces(offset..end)?)));
            match found {
                Ok((zeros, pieces)) => (picked, zeros, pieces),
                Err(error) => {
                    state.chain.cut(has);
                    self.table.unpick(&picked);
                    return Err(error);
                }
            }
        };
        let count: u64 = picked.iter().map(|run| u64::from(run.end - run.start)).sum();
        let back_out = |error| {
            let mut state = node(inode).state.lock();
            let has = state.chain.len() - count;
            state.chain.cut(has);
            self.table.unpick(&picked);
            Err(error)
        };
        if let Err(error) = self.zero_pieces(&zeros).and_then(|()| self.write_pieces(&pieces, data)) {
            return back_out(error);
        }
        let change = match self.change() {
            Ok(change) => change,
            Err(error) => return back_out(error),
        };
        let mut state = node(inode).state.lock();
        let has = state.chain.len() - count;
        let tail = has.checked_sub(1).and_then(|last| state.chain.at(last)).map(|(cluster, _)| cluster);
        let chained = self.table.chain_up(&change, &picked, tail);
        chained?;
        state.valid = state.valid.max(end);
        let clusters = state.chain.len();
        let size = inode.with_attr(|attr| {
            attr.blocks_512 = clusters * u64::from(self.geometry.cluster) / 512;
            attr.size.min(end)
        });
        if size > state.disk_size || count > 0 {
            state.disk_size = state.disk_size.max(size);
            self.log_state(&change, inode, &state)?;
            inode.logged_in_background();
        }
        Ok(())
    }

    /// Another size. Under the file's exclusive lock and its write-back lock.
    pub(crate) fn resize(&self, inode: &Inode, size: u64) -> Result<()> {
        let old = {
            let mut state = node(inode).state.lock();
            state.chain.know_all(&self.table)?;
            state.disk_size
        };
        if size > old {
            // All of it is had before anything is written.
            self.reserve_bytes(inode, size)?;
            // The zeros between are written for it.
            let grown = self.write_file(inode, size, &[]);
            self.unreserve_bytes(inode, 0);
            grown?;
            let change = self.change()?;
            {
                let mut state = node(inode).state.lock();
                state.disk_size = size;
                state.valid = state.valid.max(size);
            }
            inode.changed(Touch::Data, Logged::Anyway);
            return self.log_in(&change, inode);
        }
        let change = self.change()?;
        {
            let mut state = node(inode).state.lock();
            let keep = self.geometry.clusters_for(size);
            let gone = state.chain.cut(keep);
            if let Some(tail) = state.chain.tail().filter(|_| !gone.is_empty()) {
                let cut = self.table.set_link(&change, ivers_write_ordering::Stage::Cut, tail, None);
                cut?;
                state.cut = change.ticket();
            }
            self.table.free(&change, gone);
            state.disk_size = size;
            state.valid = state.valid.min(size);
            let clusters = state.chain.len();
            inode.with_attr(|attr| attr.blocks_512 = clusters * u64::from(self.geometry.cluster) / 512);
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.log_in(&change, inode)
    }

    /// All clusters of what nobody uses any more.
    pub(crate) fn free_file(&self, inode: &Inode) -> Result<()> {
        let change = self.change()?;
        let mut state = node(inode).state.lock();
        self.table.unpromise(std::mem::take(&mut state.promised));
        state.chain.know_all(&self.table)?;
        let gone = state.chain.cut(0);
        self.table.free(&change, gone);
        (state.disk_size, state.valid) = (0, 0);
        Ok(())
    }
}
