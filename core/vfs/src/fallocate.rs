//! Ranges of files: allocation, holes, copies.

use crate::clone::Ranges;
use crate::driver::BlockPool;
use crate::error::{Error, NameError, Result};
use crate::file_io::Missing;
use crate::inode::{Inode, Logged, Touch};
use crate::pages::PAGE64;
use crate::requests::*;
use crate::sync::atomic::Ordering;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::ops::Range;

const COPY_BYTES: usize = 1 << 20;

/// A piece of a file's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes without blocks: zeros.
    Hole(Range<u64>),
    /// Bytes, with the offset of the first.
    Data(u64, Vec<u8>),
}

/// Where a walk over a file continues after a range that contains `at`.
fn end_of(range: &MappedRange, at: u64, size: u64) -> u64 {
    range.start.saturating_add(range.len).min(size).max(at + 1)
}

impl Vfs {
    /// Allocates, punches, zeroes, collapses or inserts a range.
    pub fn fallocate(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.fallocate_as(cred, inode, mode, offset, len, WriteFlags::empty())
    }

    /// [`Vfs::fallocate`], as a write with these flags: with [`WriteFlags::TIMES_SET_BY_CALLER`] it moves no
    /// times. Other flags do nothing.
    pub fn fallocate_as(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        flags: WriteFlags,
    ) -> Result<()> {
        self.reclaim();
        if inode.kind != FileType::Regular {
            return Err(NameError::NotSupported.into());
        }
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        if len == 0 {
            return Err(NameError::Invalid.into());
        }
        let kept = mode.contains(FallocateMode::KEEP_SIZE);
        let shifts = mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE);
        let kind = mode & FallocateMode::KINDS;
        let bad_mix = kind.bits().count_ones() > 1
            || (mode.contains(FallocateMode::PUNCH_HOLE) && !kept)
            || (shifts && kept)
            || FallocateMode::from_bits(mode.bits()).is_none();
        if bad_mix {
            return Err(NameError::NotSupported.into());
        }
        let allocation = self.fs.allocation().filter(|allocation| allocation.kinds().contains(kind));
        let allocation = allocation.ok_or(NameError::NotSupported)?;
        {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            let (size, inode_flags) = inode.with_attr(|attr| (attr.size, attr.flags));
            if inode_flags.contains(InodeFlags::IMMUTABLE)
                || (inode_flags.contains(InodeFlags::APPEND) && !kind.is_empty())
            {
                return Err(NameError::NotPermitted.into());
            }
            let largest =
                if mode.contains(FallocateMode::INSERT_RANGE) { size.saturating_add(len) } else { end };
            if largest > self.info.max_file_size && !mode.contains(FallocateMode::PUNCH_HOLE) {
                return Err(NameError::TooLarge.into());
            }
            if shifts {
                let block = u64::from(self.info.block_size);
                let collapse_to_end = mode.contains(FallocateMode::COLLAPSE_RANGE) && end >= size;
                let insert_behind = mode.contains(FallocateMode::INSERT_RANGE) && offset >= size;
                if !offset.is_multiple_of(block)
                    || !len.is_multiple_of(block)
                    || collapse_to_end
                    || insert_behind
                {
                    return Err(NameError::Invalid.into());
                }
            }
            self.remove_privileges(cred, inode, !cred.keeps_set_id())?;
            let _writeback = inode.writeback_lock.lock();
            let until = if shifts { u64::MAX } else { end };
            self.write_pages(inode, offset, until)?;
            if !kind.is_empty() {
                let last = if shifts { u64::MAX } else { end.div_ceil(PAGE64) };
                inode.pages.drop_pages(offset / PAGE64, last, &self.memory);
            }
            let pool = self.block_pool(cred);
            // Nobody wants the blocks of a failed call, and they would fill the filesystem unseen.
            let nothing_behind = kind.is_empty() && end > size && !self.has_blocks_behind(inode)?;
            let keeps_times = flags.contains(WriteFlags::TIMES_SET_BY_CALLER);
            inode.times_set_by_caller.store(keeps_times, Ordering::Relaxed);
            let done = self.with_space(|| allocation.fallocate(cred, inode, mode, offset, len, pool));
            // A failed call may have changed something, unless the format cannot do this at all.
            if done.as_ref().is_err_and(|error| !matches!(error, Error::Name(NameError::NotSupported))) {
                let _ = self.changed(inode, Touch::Data, Logged::IfNeeded);
            }
            inode.times_set_by_caller.store(false, Ordering::Relaxed);
            if let Err(error) = done {
                if nothing_behind && let Err(why) = self.free_behind(cred, inode) {
                    log::warn!(
                        "inode {}: cannot free the blocks past its end after a failed allocation: {why}",
                        inode.ino
                    );
                }
                return Err(error);
            }
        }
        self.notify(inode, ChangeKind::Data);
        self.sync_if_required(inode, InodeFlags::SYNC)
    }

    /// The first byte after the block that contains the end of a file.
    fn behind(&self, inode: &Inode) -> u64 {
        inode.size().next_multiple_of(u64::from(self.info.block_size))
    }

    /// The range of the block map at `offset`. A format without a block map stores all of a file.
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        match self.fs.block_map() {
            Some(block_map) => block_map.map(inode, offset),
            None => {
                let end = inode.size();
                let kind = if offset < end { RangeKind::Data } else { RangeKind::Hole };
                let (start, end) = if offset < end { (0, end) } else { (end, u64::MAX) };
                Ok(MappedRange { start, len: end - start, kind })
            }
        }
    }

    fn has_blocks_behind(&self, inode: &Inode) -> Result<bool> {
        if inode.with_attr(|attr| attr.blocks_512) == 0 {
            return Ok(false);
        }
        let range = self.map(inode, self.behind(inode))?;
        Ok(range.kind != RangeKind::Hole
            || range.start.checked_add(range.len).is_some_and(|end| end < u64::MAX))
    }

    /// Releases the blocks past the end of a file, which [`FallocateMode::KEEP_SIZE`] allocates. Under the
    /// exclusive lock.
    pub(crate) fn free_behind(&self, cred: &Cred, inode: &Inode) -> Result<()> {
        let Some(allocation) = self.fs.allocation() else { return Ok(()) };
        if !self.has_blocks_behind(inode)? {
            return Ok(());
        }
        let from = self.behind(inode);
        // The largest size may be the largest offset: then no block ends there.
        let end = self.info.max_file_size.next_multiple_of(u64::from(self.info.block_size));
        let len = end.min(i64::MAX as u64).saturating_sub(from);
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        self.guarded(|| allocation.fallocate(cred, inode, punch, from, len, BlockPool::Unreserved))
    }

    /// The first byte of data at `offset` or later.
    pub fn seek_data(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        let _lock = self.shared(inode)?;
        let size = self.seekable(inode, offset)?;
        self.next_data(inode, offset, size)?.ok_or(NameError::NoSuchOffset.into())
    }

    /// The first byte of a hole at `offset` or later; the end of the file counts as one.
    pub fn seek_hole(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        let _lock = self.shared(inode)?;
        let size = self.seekable(inode, offset)?;
        self.next_hole(inode, offset, size)
    }

    /// The first byte of data from `at` on and before the end. The caller holds the inode's lock.
    fn next_data(&self, inode: &Inode, mut at: u64, size: u64) -> Result<Option<u64>> {
        while at < size {
            let (range, dirty) = self.look_at(inode, at, size)?;
            if range.kind == RangeKind::Data {
                return Ok(Some(at));
            }
            if let Some(dirty) = dirty.filter(|&dirty| dirty < size) {
                return Ok(Some(dirty));
            }
            at = end_of(&range, at, size);
        }
        Ok(None)
    }

    /// The first byte of a hole from `at` on, at the latest the end. The caller holds the inode's lock.
    fn next_hole(&self, inode: &Inode, mut at: u64, size: u64) -> Result<u64> {
        while at < size {
            let (range, dirty) = self.look_at(inode, at, size)?;
            if range.kind == RangeKind::Data {
                at = end_of(&range, at, size);
            } else if dirty.is_some_and(|dirty| dirty <= at) {
                at = ((at / PAGE64 + 1) * PAGE64).min(size);
            } else {
                return Ok(at);
            }
        }
        Ok(size)
    }

    /// The data and holes of a range at one moment: up to `most` pieces with up to `bytes` bytes of data, and
    /// the size of the file.
    pub fn read_pieces(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        range: Range<u64>,
        most: usize,
        bytes: usize,
    ) -> Result<(Vec<Piece>, u64)> {
        self.reclaim();
        if inode.kind != FileType::Regular {
            return Err(NameError::Invalid.into());
        }
        let mut pieces = Vec::new();
        let size = {
            let _lock = self.shared(inode)?;
            let size = inode.size();
            let (mut at, end, mut room) = (range.start, range.end.min(size), bytes);
            while at < end && pieces.len() < most {
                let data = self.next_data(inode, at, size)?.unwrap_or(end).min(end);
                if data > at {
                    pieces.push(Piece::Hole(at..data));
                    at = data;
                    continue;
                }
                let until = self.next_hole(inode, at, size)?.min(end).max(at + 1);
                let mut bytes = vec![0; usize::try_from(until - at).unwrap_or(usize::MAX).min(room)];
                if bytes.is_empty() {
                    break;
                }
                let read = self.read_locked(cred, inode, at, &mut bytes, size, Missing::Keep)?;
                bytes.truncate(read);
                room -= read;
                pieces.push(Piece::Data(at, bytes));
                at += read as u64;
            }
            size
        };
        if pieces.iter().any(|piece| matches!(piece, Piece::Data(..))) {
            self.accessed(inode);
        }
        Ok((pieces, size))
    }

    /// The range of the block map at `at`, and the first byte in it whose page is dirty or under write-back.
    fn look_at(&self, inode: &Inode, at: u64, size: u64) -> Result<(MappedRange, Option<u64>)> {
        loop {
            let range = self.map(inode, at)?;
            if range.kind == RangeKind::Data {
                return Ok((range, None));
            }
            let dirty = inode.pages.next_dirty(at, end_of(&range, at, size));
            // Nothing is dirtied under the inode's lock, but write-back continues, from the front. What it
            // wrote between the two looks was in neither of them and is in the map now, even if more pages
            // after it are dirty.
            if dirty == Some(at) || self.map(inode, at)? == range {
                return Ok((range, dirty));
            }
        }
    }

    fn seekable(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        if inode.kind != FileType::Regular {
            return Err(NameError::Invalid.into());
        }
        let size = inode.size();
        if offset >= size { Err(NameError::NoSuchOffset.into()) } else { Ok(size) }
    }

    /// Copies bytes between files of this filesystem and returns how many. The driver shares blocks or copies
    /// where it can; otherwise the bytes go through the cache. Overlapping ranges of one file are
    /// refused.
    pub fn copy_range(
        &self,
        cred: &Cred,
        source: &InodeRef,
        source_offset: u64,
        target: &InodeRef,
        target_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let ranges = Ranges { source, source_offset, target, target_offset, len };
        if ranges.overlap() {
            return Err(NameError::Invalid.into());
        }
        match self.copy_by_driver(cred, ranges) {
            Err(Error::Name(NameError::NotSupported | NameError::CrossDevice)) => {}
            copied => return copied,
        }
        let how = if cred.keeps_set_id() { WriteFlags::empty() } else { WriteFlags::KILL_SET_ID };
        let mut buf = vec![0; COPY_BYTES.min(len.min(COPY_BYTES as u64) as usize)];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(buf.len() as u64) as usize;
            let got = match self.read(cred, source, source_offset.saturating_add(done), &mut buf[..want]) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            match self.write(cred, target, target_offset.saturating_add(done), &buf[..got], how) {
                Ok(wrote) => {
                    done += wrote as u64;
                    if wrote < got {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
