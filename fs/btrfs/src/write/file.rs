//! Files: reserving space, write-back, truncation.

use super::change::Need;
use super::contents::{NewExtent, key_of};
use super::packing::Piece;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{Vnode, file_of, vnode_of};
use crate::layout::items::Compression;
use crate::live::groups::Use;
use ivers_vfs::*;

/// The largest new extent.
pub(super) const EXTENT_MAX: u64 = 128 << 20;

/// Where data goes: addresses and bytes.
type Places = Vec<(u64, u64)>;

/// An extent that data goes to, and what is stored there if it is compressed.
struct Part {
    extent: NewExtent,
    packed: Option<Vec<u8>>,
}

/// Space that was taken for data.
struct Taken {
    parts: Vec<Part>,
    /// The reservation that it took.
    reserved: Vec<(u64, u64)>,
}

impl Btrfs {
    pub(super) fn sector(&self) -> u64 {
        self.forest.volume.sb.sector_size.into()
    }

    /// Reserves space for whole sectors. Writing past the end may also need the sector with the old end.
    pub(crate) fn reserve_range(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let sector = self.sector();
        let vnode = vnode_of(inode);
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(sector));
        let end = end.filter(|end| *end <= i64::MAX as u64).ok_or(NameError::TooLarge)?;
        let mut wanted = vec![(offset / sector * sector, end)];
        let old_end = vnode.size();
        // Items are inline or have an end in the middle of a sector only there.
        if old_end < offset {
            wanted.push((old_end / sector * sector, old_end.next_multiple_of(sector)));
        }
        if !old_end.is_multiple_of(sector) && offset >= sector {
            wanted.push((0, sector));
        }
        self.with_tx(|tx| {
            tx.may_change(vnode)?;
            let before = vnode.reserved.lock().clone();
            let mut after = before.clone();
            for (start, end) in wanted {
                after.add(start, end);
            }
            let more = after.total() - before.total();
            if more == 0 {
                return Ok(());
            }
            while tx.free_data() < more {
                if !tx.add_chunk(Use::Data)? {
                    return Err(NameError::NoSpace.into());
                }
            }
            tx.live.reserved += more;
            if let Err(error) = tx.make_room(Need::Items, 0) {
                tx.live.reserved -= more;
                return Err(error);
            }
            *vnode.reserved.lock() = after;
            Ok(())
        })
    }

    /// Ends the reservation of a range of whole sectors.
    pub(crate) fn release_range(&self, inode: &Inode, offset: u64, end: u64) {
        if let Some(live) = self.live.write().as_mut() {
            let released = vnode_of(inode).reserved.lock().remove(offset, end);
            live.reserved = live.reserved.saturating_sub(released);
        }
    }

    /// Units of 512 bytes that a file uses or has reserved.
    pub(crate) fn shown_blocks(&self, inode: &Inode) -> u64 {
        let vnode = vnode_of(inode);
        let used = self.blocks_of(&vnode.item.lock());
        used + vnode.reserved.lock().total() / 512
    }

    /// Takes space and writes data to it. Nothing leads there yet. Ends the reservation of the range, so that
    /// bytes that are written meanwhile get one of their own.
    fn write_new(&self, vnode: &Vnode, offset: u64, data: &[u8]) -> Result<Taken> {
        let pieces = self.pack(vnode, data)?;
        let mut taken = self.with_tx(|tx| {
            tx.may_change(vnode)?;
            let parts = tx.take_parts(pieces)?;
            let range = (offset, offset + data.len() as u64);
            let reserved = vnode.reserved.lock().pieces_in(range.0, range.1);
            let released = vnode.reserved.lock().remove(range.0, range.1);
            tx.live.reserved = tx.live.reserved.saturating_sub(released);
            Ok(Taken { parts, reserved })
        })?;
        let mut done = 0;
        let written = taken.parts.iter().try_for_each(|Part { extent, packed }| {
            let plain = &data[done..done + extent.len as usize];
            done += plain.len();
            self.forest.volume.write(extent.bytenr, packed.as_deref().unwrap_or(plain))
        });
        if let Err(error) = written {
            self.give_back(vnode, &mut taken);
            return Err(match error {
                Error::Io(cause) => Error::FileData(cause),
                other => other,
            });
        }
        Ok(taken)
    }

    /// Nothing will lead to what was taken.
    fn give_back(&self, vnode: &Vnode, taken: &mut Taken) {
        if let Some(live) = self.live.write().as_mut() {
            for Part { extent, .. } in taken.parts.drain(..) {
                live.groups.give_back(extent.bytenr, extent.stored);
            }
            let mut reserved = vnode.reserved.lock();
            live.reserved +=
                taken.reserved.drain(..).map(|(start, end)| reserved.add(start, end)).sum::<u64>();
        }
    }

    /// Writes whole sectors to new places, and makes a file lead to them.
    pub(crate) fn write_back_data(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let sector = self.sector();
        let end = offset + data.len() as u64;
        let is_deleted = {
            let _trees = self.live.read();
            self.subvolume(vnode_of(inode).subvolume)?.is_none()
        };
        if is_deleted {
            // With everything in its subvolume: nothing is left to write to.
            self.release_range(inode, offset, end);
            return Ok(());
        }
        if offset == 0 && self.write_inline(inode, data)? {
            return Ok(());
        }
        self.write_old_end(inode, offset, end)?;
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(sector as usize), 0);
        self.replace_sectors(inode, offset, &padded, end)
    }

    /// Writes whole sectors. The file then ends at `end` or later, but not after its end in memory.
    fn replace_sectors(&self, inode: &Inode, offset: u64, data: &[u8], end: u64) -> Result<()> {
        let vnode = vnode_of(inode);
        let mut taken = self.write_new(vnode, offset, data)?;
        let mapped = self.change(Need::WriteBack, |tx| {
            tx.unshare_for(Need::WriteBack, vnode, key_of(file_of(vnode), offset))?;
            tx.map_data(inode, offset, data, &taken.parts)?;
            tx.raise_size(inode, offset, end.min(inode.size()))?;
            inode.logged_in_background();
            tx.write_inode(inode)
        });
        if matches!(mapped, Err(Error::Name(_))) {
            self.give_back(vnode, &mut taken);
        }
        mapped
    }

    /// Prepares a file for growing past the sector with its end: writes that sector to an extent, with zeros
    /// after the end. Does the same with inline contents if other sectors are written.
    fn write_old_end(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        let sector = self.sector();
        let vnode = vnode_of(inode);
        let old = vnode.size();
        if offset >= sector {
            self.expand_inline(inode)?;
        }
        let last = old / sector * sector;
        let is_written = offset <= last && last < end;
        if end > old && !old.is_multiple_of(sector) && !is_written {
            self.rewrite_sector(inode, last, old)?;
        }
        Ok(())
    }

    /// Contents that are in an item become a sector of an extent.
    pub(super) fn expand_inline(&self, inode: &Inode) -> Result<()> {
        let vnode = vnode_of(inode);
        let is_inline = {
            let _trees = self.live.read();
            self.has_inline(vnode)?
        };
        if is_inline { self.rewrite_sector(inode, 0, vnode.size()) } else { Ok(()) }
    }

    /// Stores a sector of a file again: with zeros after `size`.
    pub(super) fn rewrite_sector(&self, inode: &Inode, at: u64, size: u64) -> Result<()> {
        self.zero_in_sector(inode, size.clamp(at, at + self.sector()), at + self.sector())
    }

    /// Makes bytes of one sector zeros, and stores it again. `start` may be the end of the sector before.
    pub(super) fn zero_in_sector(&self, inode: &Inode, start: u64, end: u64) -> Result<()> {
        let sector = self.sector();
        let vnode = vnode_of(inode);
        let at = end.saturating_sub(1) / sector * sector;
        let mut bytes = vec![0; sector as usize];
        {
            let _trees = self.live.read();
            if self.has_zeros(vnode, at)? {
                return Ok(());
            }
            self.read_file(vnode, at, &mut bytes)?;
        }
        bytes[(start - at) as usize..(end - at) as usize].fill(0);
        self.replace_sectors(inode, at, &bytes, 0)
    }

    /// Changes the size of a file.
    pub(crate) fn truncate_data(&self, inode: &Inode, size: u64) -> Result<()> {
        let sector = self.sector();
        let vnode = vnode_of(inode);
        let old = vnode.size();
        self.with_tx(|tx| tx.may_change(vnode))?;
        if size > old {
            if !old.is_multiple_of(sector) {
                self.rewrite_sector(inode, old / sector * sector, old)?;
            }
            return self.change(Need::Items, |tx| {
                tx.raise_size(inode, size, size)?;
                inode.changed(Touch::Data, Logged::Anyway);
                tx.write_inode(inode)
            });
        }
        loop {
            match self.truncate_some(inode, size) {
                Ok(true) => {}
                Ok(false) => {
                    inode.with_attr(|attr| attr.size = size);
                    return Ok(());
                }
                Err(error) => {
                    // A part may be left, which would come back when the file grows. Nobody lost it.
                    if matches!(error, Error::Name(_)) {
                        inode.with_attr(|attr| attr.size = vnode.size());
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Cuts a file, or a part of what is after `size`, from its end on. Returns whether more is there.
    ///
    /// A commit may come between two parts. So the file always ends where its contents were dropped: bytes
    /// that are left after its end would come back when it grows.
    pub(super) fn truncate_some(&self, inode: &Inode, size: u64) -> Result<bool> {
        let sector = self.sector();
        let vnode = vnode_of(inode);
        let (file, old) = (file_of(vnode), vnode.size());
        let inline = {
            let _trees = self.live.read();
            self.inline_bytes(vnode)?
        };
        self.change(Need::Removal, |tx| {
            tx.unshare_for(Need::Removal, vnode, key_of(file, u64::MAX))?;
            tx.needs_commit(file);
            let mut dropped = tx.drop_last_extents(file, size.next_multiple_of(sector))?;
            let mut added = 0;
            let kept = inline.as_ref().map(|bytes| &bytes[..bytes.len().min(size.min(sector) as usize)]);
            let kept = kept.filter(|kept| !dropped.more && size < old && kept.len() <= tx.most_inline());
            // What does not fit stays as it is: a reader stops at the size.
            if let Some(kept) = kept {
                dropped.bytes += tx.drop_whole_range(file, 0, sector)?;
                if !kept.is_empty() {
                    tx.insert_inline(file.0, file.1, kept)?;
                    added = kept.len() as u64;
                }
            }
            let end = if dropped.more { dropped.stopped_at.clamp(size, old) } else { size };
            tx.edit_item(inode, |item| {
                let raw = item.raw_mut();
                raw.nbytes = (raw.nbytes.get().saturating_sub(dropped.bytes) + added).into();
                raw.size = end.into();
            });
            // Each part has a value of its own: a crash may show it.
            inode.changed(Touch::Data, Logged::Anyway);
            tx.write_inode(inode)?;
            Ok(dropped.more)
        })
    }
}

impl Tx<'_> {
    /// Takes space for data, in one part if possible.
    fn take_data(&mut self, len: u64) -> Result<Places> {
        let sector = u64::from(self.sb().sector_size);
        let mut taken: Places = Vec::new();
        let mut left = len;
        while left > 0 {
            match self.live.groups.take_data(left.min(EXTENT_MAX), sector) {
                Some((start, bytes)) => {
                    taken.push((start, bytes));
                    left -= bytes;
                }
                None if self.add_chunk(Use::Data)? => {}
                None if self.live.groups.pinned_bytes(Use::Data) > 0 => self.commit()?,
                None => {
                    for (start, bytes) in taken {
                        self.live.groups.give_back(start, bytes);
                    }
                    return Err(NameError::NoSpace.into());
                }
            }
        }
        Ok(taken)
    }

    /// Takes space for pieces of data.
    fn take_parts(&mut self, pieces: Vec<Piece>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for piece in pieces {
            if let Err(error) = self.take_piece(piece, &mut parts) {
                for Part { extent, .. } in parts {
                    self.live.groups.give_back(extent.bytenr, extent.stored);
                }
                return Err(error);
            }
        }
        Ok(parts)
    }

    /// Takes space for a piece. A compressed piece requires contiguous space. If there is none, the piece is
    /// stored uncompressed.
    fn take_piece(&mut self, piece: Piece, parts: &mut Vec<Part>) -> Result<()> {
        let len = piece.len as u64;
        if let Some((compression, bytes)) = piece.packed {
            let stored = bytes.len() as u64;
            let places = self.take_data(stored)?;
            if let [(bytenr, _)] = places[..] {
                // Readers come here only after a file leads to the new data.
                self.fs.decompressed.forget(bytenr);
                self.live.features |= compression.feature();
                parts.push(Part {
                    extent: NewExtent { bytenr, stored, len, compression },
                    packed: Some(bytes),
                });
                return Ok(());
            }
            for (start, bytes) in places {
                self.live.groups.give_back(start, bytes);
            }
        }
        for (bytenr, len) in self.take_data(len)? {
            let extent = NewExtent { bytenr, stored: len, len, compression: Compression::None };
            parts.push(Part { extent, packed: None });
        }
        Ok(())
    }

    /// Makes a file lead to data that is written.
    fn map_data(&mut self, inode: &Inode, offset: u64, data: &[u8], parts: &[Part]) -> Result<()> {
        let vnode = vnode_of(inode);
        let file = file_of(vnode);
        let (sector, sum_bytes) = (self.sb().sector_size as usize, self.sb().checksum.size());
        self.touch(file);
        // Holes that items show are before the old end only.
        let dropped = self.drop_whole_range(file, offset, offset + data.len() as u64)?;
        let mut done = 0;
        for Part { extent, packed } in parts {
            let plain = &data[done..done + extent.len as usize];
            if vnode.has_checksums() {
                let stored = packed.as_deref().unwrap_or(plain);
                let mut sums = Vec::with_capacity(stored.len() / sector * sum_bytes);
                for bytes in stored.chunks_exact(sector) {
                    sums.extend(&self.sb().checksum.of(bytes)[..sum_bytes]);
                }
                self.insert_checksums(extent.bytenr, &sums)?;
            }
            self.insert_extent(file, offset + done as u64, *extent)?;
            done += plain.len();
        }
        self.edit_item(inode, |item| {
            let raw = item.raw_mut();
            raw.nbytes = (raw.nbytes.get().saturating_sub(dropped) + data.len() as u64).into();
        });
        Ok(())
    }

    /// A file ends later, and has contents from `from` on only.
    pub(super) fn raise_size(&mut self, inode: &Inode, from: u64, size: u64) -> Result<()> {
        let vnode = vnode_of(inode);
        let old = vnode.size();
        if size <= old {
            return Ok(());
        }
        self.touch(file_of(vnode));
        self.insert_holes(vnode.subvolume, vnode.objectid, old, from)?;
        self.edit_item(inode, |item| item.raw_mut().size = size.into());
        Ok(())
    }
}
