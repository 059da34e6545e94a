//! Ranges of files: allocation, holes, copies.

use crate::api::*;
use crate::driver::Room;
use crate::error::{Error, NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::pages::PAGE;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::ops::Range;

const PAGE64: u64 = PAGE as u64;
const COPY_BYTES: usize = 1 << 20;

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Nothing is stored for these bytes: they are zeros.
    Hole(Range<u64>),
    /// These bytes, from this offset on.
    Data(u64, Vec<u8>),
}

/// Where the walk over a file goes on behind a range that holds `at`.
fn end_of(range: &MappedRange, at: u64, size: u64) -> u64 {
    range.start.saturating_add(range.len).min(size).max(at + 1)
}

impl Vfs {
    /// Allocate, punch, zero, collapse or insert.
    pub fn fallocate(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.balance();
        if inode.kind != FileType::Regular {
            return Err(NameError::NotSupported.into());
        }
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        if len == 0 {
            return Err(NameError::Invalid.into());
        }
        let kept = mode.contains(FallocateMode::KEEP_SIZE);
        let shifts = mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE);
        let kinds = FallocateMode::PUNCH_HOLE
            | FallocateMode::COLLAPSE_RANGE
            | FallocateMode::ZERO_RANGE
            | FallocateMode::INSERT_RANGE;
        let kind = mode & kinds;
        let bad_mix = kind.bits().count_ones() > 1
            || (mode.contains(FallocateMode::PUNCH_HOLE) && !kept)
            || (shifts && kept)
            || FallocateMode::from_bits(mode.bits()).is_none();
        if bad_mix {
            return Err(NameError::NotSupported.into());
        }
        {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            let (size, perm, flags) = inode.with_attr(|attr| (attr.size, attr.perm, attr.flags));
            if flags.contains(InodeFlags::IMMUTABLE)
                || (flags.contains(InodeFlags::APPEND) && !kind.is_empty())
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
            if !cred.keeps_set_id() && perm & 0o6000 != 0 {
                self.kill_privileges(cred, inode)?;
            }
            let _writeback = inode.writeback_lock.lock();
            let until = if shifts { u64::MAX } else { end };
            self.write_pages(inode, offset, until)?;
            if !kind.is_empty() {
                let last = if shifts { u64::MAX } else { end.div_ceil(PAGE64) };
                inode.pages.drop_pages(offset / PAGE64, last, &self.memory);
            }
            let room = self.room(cred);
            // What a failed call has put there is nobody's wish, and would fill the filesystem unseen.
            let nothing_behind = kind.is_empty() && end > size && !self.has_blocks_behind(inode)?;
            let done = self.deletions.with_room(|| self.fs.fallocate(inode, mode, offset, len, room));
            if let Err(error) = done {
                // Some of it may have been done, unless the format cannot do this at all.
                if !matches!(error, Error::Name(NameError::NotSupported)) {
                    let _ = self.changed(inode, Touch::Data, Logged::IfNeeded);
                }
                if nothing_behind && let Err(why) = self.free_behind(inode) {
                    log::warn!(
                        "inode {}: blocks behind its end stay after a failed allocation: {why}",
                        inode.ino
                    );
                }
                return Err(error);
            }
        }
        self.notify(inode, ChangeKind::Data);
        self.settle(inode, InodeFlags::SYNC)
    }

    /// The first byte behind the block that holds the end of a file.
    fn behind(&self, inode: &Inode) -> u64 {
        inode.size().next_multiple_of(u64::from(self.info.block_size))
    }

    fn has_blocks_behind(&self, inode: &Inode) -> Result<bool> {
        if inode.with_attr(|attr| attr.blocks_512) == 0 {
            return Ok(false);
        }
        let range = self.fs.map(inode, self.behind(inode))?;
        Ok(range.kind != RangeKind::Hole
            || range.start.checked_add(range.len).is_some_and(|end| end < u64::MAX))
    }

    /// Gives back the blocks behind the end of a file, which [`FallocateMode::KEEP_SIZE`] puts there. Under the exclusive lock.
    pub(crate) fn free_behind(&self, inode: &Inode) -> Result<()> {
        if !self.has_blocks_behind(inode)? {
            return Ok(());
        }
        let from = self.behind(inode);
        let len =
            self.info.max_file_size.next_multiple_of(u64::from(self.info.block_size)).saturating_sub(from);
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        self.fs.fallocate(inode, punch, from, len, Room::Open)
    }

    /// The first byte of data at or behind `offset`.
    pub fn seek_data(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        let _lock = self.shared(inode)?;
        let size = self.seekable(inode, offset)?;
        self.next_data(inode, offset, size)?.ok_or(NameError::NoSuchOffset.into())
    }

    /// The first byte of a hole at or behind `offset`; the end of the file is one.
    pub fn seek_hole(&self, inode: &InodeRef, offset: u64) -> Result<u64> {
        let _lock = self.shared(inode)?;
        let size = self.seekable(inode, offset)?;
        self.next_hole(inode, offset, size)
    }

    /// The first byte of data from `at` on, before the end; the inode's lock is held.
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

    /// The first byte of a hole from `at` on, at the end at the latest; the inode's lock is held.
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

    /// The data and the holes of a range, as they are at one moment: up to `most` pieces with up to `bytes` bytes of data, and where the file ends.
    pub fn read_pieces(
        &self,
        inode: &InodeRef,
        range: Range<u64>,
        most: usize,
        bytes: usize,
    ) -> Result<(Vec<Piece>, u64)> {
        self.balance();
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
                let read = self.read_locked(inode, at, &mut bytes, size)?;
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

    /// What lies at `at`, and the first byte behind it in that range that is still on its way to the device.
    fn look_at(&self, inode: &Inode, at: u64, size: u64) -> Result<(MappedRange, Option<u64>)> {
        loop {
            let range = self.fs.map(inode, at)?;
            if range.kind == RangeKind::Data {
                return Ok((range, None));
            }
            let dirty = inode.pages.next_dirty(at, end_of(&range, at, size));
            // Nothing is dirtied under the inode's lock, but write-back goes on, from the front: what it has brought home between the two looks was in
            // neither, though more behind it may be dirty, and is in the map now.
            if dirty == Some(at) || self.fs.map(inode, at)? == range {
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

    /// Copy bytes between files of this filesystem; says how many. Overlapping ranges of one file are refused.
    pub fn copy_range(
        &self,
        cred: &Cred,
        source: &InodeRef,
        source_offset: u64,
        target: &InodeRef,
        target_offset: u64,
        len: u64,
    ) -> Result<u64> {
        if source.ino == target.ino {
            let apart = source_offset.saturating_add(len) <= target_offset
                || target_offset.saturating_add(len) <= source_offset;
            if !apart && len > 0 {
                return Err(NameError::Invalid.into());
            }
        }
        let how = if cred.keeps_set_id() { WriteFlags::empty() } else { WriteFlags::KILL_PRIV };
        let mut buf = vec![0; COPY_BYTES.min(len.min(COPY_BYTES as u64) as usize)];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(buf.len() as u64) as usize;
            let got = match self.read(source, source_offset.saturating_add(done), &mut buf[..want]) {
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
