//! Space of files, apart from writing: preallocated extents, and holes that are punched.

use super::change::Need;
use super::contents::key_of;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{file_of, vnode_of};
use crate::live::groups::Use;
use ivers_vfs::*;

/// The byte after the largest file, in whole sectors.
const END_MAX: u64 = 1 << 63;
/// Extents that one change preallocates.
const EXTENTS_A_CHANGE: usize = 16;

impl Btrfs {
    /// Allocates, punches or zeroes a range.
    pub(crate) fn allocate_range(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE) {
            return Err(NameError::NotSupported.into());
        }
        let sector = self.sector();
        let end = offset.checked_add(len).filter(|end| *end <= END_MAX);
        let end = end.ok_or(NameError::TooLarge)?;
        self.with_tx(|tx| tx.may_change(vnode_of(inode)))?;
        self.expand_inline(inode)?;
        // A crash may show a part of the change: it must not have the value of before.
        inode.changed(Touch::Data, Logged::Anyway);
        if mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE)
            && let Err(error) = self.punch(inode, offset, end)
        {
            return self.after_a_part(inode, error);
        }
        let mut size = inode.size();
        if !mode.contains(FallocateMode::PUNCH_HOLE) {
            let whole = (offset / sector * sector, end.next_multiple_of(sector));
            if let Err(error) = self.fill_holes(inode, whole.0, whole.1) {
                return self.after_a_part(inode, error);
            }
            if !mode.contains(FallocateMode::KEEP_SIZE) && end > size {
                size = end;
            }
        }
        let old = vnode_of(inode).size();
        if size > old && !old.is_multiple_of(sector) {
            self.rewrite_sector(inode, old / sector * sector, old)?;
        }
        self.change(Need::Removal, |tx| {
            if size > inode.size() {
                tx.raise_size(inode, size, size)?;
                inode.with_attr(|attr| attr.size = size);
            }
            tx.file_changed(inode)
        })
    }

    /// A part of a range may have zeros now, and keeps them.
    fn after_a_part(&self, inode: &Inode, error: Error) -> Result<()> {
        self.change(Need::Removal, |tx| tx.file_changed(inode))?;
        Err(error)
    }

    /// Makes a range read as zeros, and frees the whole sectors of it.
    fn punch(&self, inode: &Inode, start: u64, end: u64) -> Result<()> {
        let sector = self.sector();
        let (first, last) = (start.next_multiple_of(sector), end / sector * sector);
        if first > last {
            return self.zero_in_sector(inode, start, end);
        }
        if start < first {
            self.zero_in_sector(inode, start, first)?;
        }
        if last < end {
            self.zero_in_sector(inode, last, end)?;
        }
        let file = file_of(vnode_of(inode));
        while self.change(Need::Removal, |tx| {
            tx.unshare_for(Need::Removal, vnode_of(inode), key_of(file, first))?;
            tx.needs_commit(file);
            let dropped = tx.drop_extents(file, first, last)?;
            tx.edit_item(inode, |item| {
                let raw = item.raw_mut();
                raw.nbytes = raw.nbytes.get().saturating_sub(dropped.bytes).into();
            });
            if !dropped.more {
                let stop = last.min(vnode_of(inode).size());
                tx.insert_holes(file.0, file.1, first, stop)?;
            }
            tx.write_inode(inode)?;
            Ok(dropped.more)
        })? {}
        Ok(())
    }

    /// Preallocates extents for all holes of whole sectors.
    fn fill_holes(&self, inode: &Inode, start: u64, end: u64) -> Result<()> {
        let mut at = start;
        while at < end {
            at = self.change(Need::Items, |tx| tx.fill_some(inode, at, end))?;
        }
        Ok(())
    }
}

impl Tx<'_> {
    fn file_changed(&mut self, inode: &Inode) -> Result<()> {
        inode.changed(Touch::Data, Logged::Anyway);
        self.write_inode(inode)
    }

    /// Fills holes from a sector on. Returns where the next change continues.
    fn fill_some(&mut self, inode: &Inode, start: u64, end: u64) -> Result<u64> {
        let vnode = vnode_of(inode);
        let file = file_of(vnode);
        self.needs_commit(file);
        let mut at = start;
        let mut count = 0;
        while at < end && count < EXTENTS_A_CHANGE {
            let found = self.fs.map_file(vnode, at)?;
            let stop = found.start.saturating_add(found.len).min(end);
            if found.kind != RangeKind::Hole {
                at = stop;
                continue;
            }
            count += 1;
            let Some((place, bytes)) = self.take_unreserved(stop - at)? else {
                if count == 1 {
                    return Err(NameError::NoSpace.into());
                }
                break;
            };
            // A hole, perhaps of many items.
            self.drop_whole_range(file, at, at + bytes)?;
            self.insert_prealloc(file, at, place, bytes)?;
            self.edit_item(inode, |item| {
                let raw = item.raw_mut();
                raw.nbytes = raw.nbytes.get().saturating_add(bytes).into();
            });
            at += bytes;
        }
        self.write_inode(inode)?;
        Ok(at)
    }

    /// Takes a part of the space that nobody has reserved, at most `most` bytes.
    fn take_unreserved(&mut self, most: u64) -> Result<Option<(u64, u64)>> {
        let sector = u64::from(self.sb().sector_size);
        loop {
            let free = self.free_data() / sector * sector;
            if free > 0 && (free >= most || !self.add_chunk(Use::Data)?) {
                return Ok(self.live.groups.take_data(most.min(free).min(super::file::EXTENT_MAX), sector));
            }
            if free == 0 && !self.add_chunk(Use::Data)? {
                return Ok(None);
            }
        }
    }
}

impl AllocateOps for Btrfs {
    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        self.allocate_range(inode, mode, offset, len)
    }
}
