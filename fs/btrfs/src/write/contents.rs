//! Extents of files: inserting them, and dropping what is in their place.

use super::tx::Tx;
use crate::layout::bytes::read;
use crate::layout::extent_item::Ref;
use crate::layout::features::Incompat;
use crate::layout::items::{BadExtent, Compression, FileExtent, referred_extent};
use crate::layout::key::{Key, kind};
use crate::layout::raw::{RawFileExtent, RawFileExtentPlace};
use crate::live::refs::Kind;
use crate::numbers::FileId;
use ivers_vfs::{Error, Result};
use std::mem::size_of;
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

const HEAD: usize = size_of::<RawFileExtent>();
/// Types of file extents.
const INLINE: u8 = 0;
const REGULAR: u8 = 1;
const PREALLOC: u8 = 2;

/// Extents that one change drops at most.
const DROPPED_MAX: usize = 512;

/// A new extent: where it is, its bytes there, and its bytes in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewExtent {
    pub bytenr: u64,
    pub stored: u64,
    pub len: u64,
    pub compression: Compression,
}

/// What was dropped.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Dropped {
    /// Bytes that were allocated to the file.
    pub bytes: u64,
    /// More is there.
    pub more: bool,
    /// Where it stopped.
    pub stopped_at: u64,
}

pub(super) fn key_of(file: FileId, at: u64) -> Key {
    Key::new(file.1, kind::EXTENT_DATA, at)
}

fn encode(head: &RawFileExtent, place: &RawFileExtentPlace) -> Vec<u8> {
    [head.as_bytes(), place.as_bytes()].concat()
}

impl Tx<'_> {
    /// The most bytes that are stored in an item.
    pub(super) fn most_inline(&self) -> usize {
        (self.most_data() - HEAD).min(self.sb().sector_size as usize - 1)
    }

    fn new_head(&self, kind: u8, ram_bytes: u64) -> RawFileExtent {
        RawFileExtent {
            generation: self.live.transid.into(),
            ram_bytes: ram_bytes.into(),
            compression: 0,
            encryption: 0,
            other_encoding: 0.into(),
            kind,
        }
    }

    /// Inserts contents of a small file, or the target of a symbolic link.
    pub(super) fn insert_inline(&mut self, subvolume: u64, objectid: u64, bytes: &[u8]) -> Result<()> {
        self.insert_inline_packed((subvolume, objectid), bytes, bytes.len() as u64, Compression::None)
    }

    /// Inserts contents of a small file, `len` bytes before `stored` was compressed.
    pub(super) fn insert_inline_packed(
        &mut self,
        file: FileId,
        stored: &[u8],
        len: u64,
        compression: Compression,
    ) -> Result<()> {
        let mut head = self.new_head(INLINE, len);
        head.compression = compression.number();
        self.insert(file.0, key_of(file, 0), &[head.as_bytes(), stored].concat())
    }

    /// Inserts a new extent, which gets its first reference.
    pub(super) fn insert_extent(&mut self, file: FileId, at: u64, extent: NewExtent) -> Result<()> {
        self.insert_new(REGULAR, file, at, extent)
    }

    /// Inserts a new extent that reads as zeros.
    pub(super) fn insert_prealloc(&mut self, file: FileId, at: u64, bytenr: u64, bytes: u64) -> Result<()> {
        let extent = NewExtent { bytenr, stored: bytes, len: bytes, compression: Compression::None };
        self.insert_new(PREALLOC, file, at, extent)
    }

    fn insert_new(&mut self, kind: u8, file: FileId, at: u64, extent: NewExtent) -> Result<()> {
        let NewExtent { bytenr, stored, len, compression } = extent;
        let place = RawFileExtentPlace {
            disk_bytenr: bytenr.into(),
            disk_num_bytes: stored.into(),
            offset: 0.into(),
            num_bytes: len.into(),
        };
        let mut head = self.new_head(kind, len);
        head.compression = compression.number();
        self.insert(file.0, key_of(file, at), &encode(&head, &place))?;
        let by = Ref::Data { root: file.0, objectid: file.1, offset: at };
        self.live.refs.create(bytenr, Kind::Data { bytes: stored }, by);
        Ok(())
    }

    /// Inserts an item that refers to a part of what another item (`data`) refers to: the bytes from
    /// `part.0` on, `part.1` of them. Returns how many bytes are allocated to the file by it.
    pub(super) fn insert_shared(
        &mut self,
        file: FileId,
        at: u64,
        data: &[u8],
        part: (u64, u64),
    ) -> Result<u64> {
        let short = || self.broken(format!("inode {}: an extent is too short", file.1));
        let mut head: RawFileExtent = read(data, 0).ok_or_else(short)?;
        let mut place: RawFileExtentPlace = read(data, HEAD).ok_or_else(short)?;
        let (bytenr, bytes) = (place.disk_bytenr.get(), place.disk_num_bytes.get());
        if bytenr == 0 {
            return Ok(0);
        }
        head.generation = self.live.transid.into();
        place.offset = (place.offset.get() + part.0).into();
        place.num_bytes = part.1.into();
        self.insert(file.0, key_of(file, at), &encode(&head, &place))?;
        let offset = at.wrapping_sub(place.offset.get());
        let by = Ref::Data { root: file.0, objectid: file.1, offset };
        self.live.refs.change(bytenr, Kind::Data { bytes }, by, 1);
        Ok(part.1)
    }

    /// Inserts an item as a log has it. Its extent is new, or gets one more reference.
    pub(super) fn insert_logged(&mut self, file: FileId, key: Key, data: &[u8], is_new: bool) -> Result<()> {
        self.insert(file.0, key, data)?;
        let Some(extent) = referred_extent(key, data).map_err(|what| self.broken(what))? else {
            return Ok(());
        };
        let by = Ref::Data { root: file.0, objectid: file.1, offset: extent.offset };
        let kind = Kind::Data { bytes: extent.bytes };
        match is_new {
            true => self.live.refs.create(extent.bytenr, kind, by),
            false => self.live.refs.change(extent.bytenr, kind, by, 1),
        }
        Ok(())
    }

    /// Inserts items for holes in a range that has nothing, where the filesystem wants them.
    pub(super) fn insert_holes(&mut self, subvolume: u64, objectid: u64, from: u64, to: u64) -> Result<()> {
        let sector = u64::from(self.sb().sector_size);
        let (mut at, to) = (from.next_multiple_of(sector), to.next_multiple_of(sector));
        let file = (subvolume, objectid);
        if self.sb().incompat.contains(Incompat::NO_HOLES) {
            return Ok(());
        }
        while at < to {
            // Preallocated extents may be after the end of a file.
            let next = self.extents_in(file, at, to, 1)?.into_iter().next();
            let (start, end) = match next {
                Some((key, data)) => (key.offset, key.offset + self.extent_len(file, key, &data)?),
                None => (to, to),
            };
            if start > at {
                self.insert_hole(file, at, start - at)?;
            }
            at = end;
        }
        Ok(())
    }

    fn insert_hole(&mut self, file: FileId, at: u64, len: u64) -> Result<()> {
        let place = RawFileExtentPlace {
            disk_bytenr: 0.into(),
            disk_num_bytes: 0.into(),
            offset: 0.into(),
            num_bytes: len.into(),
        };
        let data = encode(&self.new_head(REGULAR, len), &place);
        self.insert(file.0, key_of(file, at), &data)
    }

    /// The items of a file that overlap a range, at most `most`.
    pub(super) fn extents_in(
        &self,
        file: FileId,
        start: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let tree = self.tree(file.0)?;
        let before = self.fs.forest.last_at_most(&tree, key_of(file, start), |key, _| Ok(key))?;
        let is_own = |key: &Key| (key.objectid, key.kind) == (file.1, kind::EXTENT_DATA);
        let first = before.filter(is_own).unwrap_or(key_of(file, start));
        let mut found = Vec::new();
        self.fs.forest.scan(&tree, first, key_of(file, end - 1), |key, data| {
            let (from, len) = (key.offset, self.extent_len(file, key, data)?);
            if from.saturating_add(len) > start {
                found.push((key, data.to_vec()));
            }
            Ok(if found.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found)
    }

    /// Bytes of the file that an item covers.
    pub(super) fn extent_len(&self, file: FileId, key: Key, data: &[u8]) -> Result<u64> {
        let sector = self.sb().sector_size;
        match FileExtent::decode(data, key.offset, sector) {
            Ok(extent) => Ok(extent.len(sector)),
            Err(BadExtent::Damaged(what)) => Err(self.broken(format!("inode {}: {what}", file.1))),
            Err(BadExtent::Unsupported(what)) => {
                Err(Error::Incompatible(format!("{}, inode {}: {what}", self.fs.forest.volume.place, file.1)))
            }
        }
    }

    /// Drops what a file has in a range of whole sectors: the first items of it, if there are many.
    pub(super) fn drop_extents(&mut self, file: FileId, start: u64, end: u64) -> Result<Dropped> {
        let mut dropped = Dropped { stopped_at: end, ..Dropped::default() };
        if start >= end {
            return Ok(dropped);
        }
        let found = self.extents_in(file, start, end, DROPPED_MAX)?;
        dropped.more = found.len() == DROPPED_MAX;
        let mut stopped_at = end;
        for (index, (key, data)) in found.into_iter().enumerate() {
            if index > 0 && (self.has_many_refs() || self.must_unshare(file.0, key)?) {
                dropped.more = true;
                break;
            }
            stopped_at = end.min(key.offset + self.extent_len(file, key, &data)?);
            dropped.bytes += self.drop_part(file, key, &data, start, end)?;
        }
        if dropped.more {
            dropped.stopped_at = stopped_at;
        }
        Ok(dropped)
    }

    /// Drops all that a file has in a range of whole sectors, in one change: for ranges that a few extents
    /// cover, or that refer to nothing. Returns how many allocated bytes the file has less.
    pub(super) fn drop_whole_range(&mut self, file: FileId, start: u64, end: u64) -> Result<u64> {
        let mut bytes = 0;
        loop {
            let dropped = self.drop_extents(file, start, end)?;
            bytes += dropped.bytes;
            if !dropped.more {
                return Ok(bytes);
            }
        }
    }

    /// Drops the last items that a file has from a byte on.
    pub(super) fn drop_last_extents(&mut self, file: FileId, start: u64) -> Result<Dropped> {
        let mut dropped = Dropped { stopped_at: u64::MAX, ..Dropped::default() };
        for count in 0..DROPPED_MAX {
            if count > 0 && self.has_many_refs() {
                break;
            }
            let tree = self.tree(file.0)?;
            let last = self
                .fs
                .forest
                .last_at_most(&tree, key_of(file, u64::MAX), |key, data| Ok((key, data.to_vec())))?;
            let last = last.filter(|(key, _)| (key.objectid, key.kind) == (file.1, kind::EXTENT_DATA));
            let last = match last {
                Some((key, data)) => {
                    let end = key.offset.saturating_add(self.extent_len(file, key, &data)?);
                    (end > start).then_some((key, data))
                }
                None => None,
            };
            let Some((key, data)) = last else {
                dropped.stopped_at = start;
                return Ok(dropped);
            };
            if count > 0 && self.must_unshare(file.0, key)? {
                break;
            }
            dropped.stopped_at = key.offset.max(start);
            dropped.bytes += self.drop_part(file, key, &data, start, u64::MAX)?;
        }
        dropped.more = true;
        Ok(dropped)
    }

    /// Drops the part of an item in a range. Returns how many allocated bytes the file has less.
    fn drop_part(&mut self, file: FileId, key: Key, data: &[u8], start: u64, end: u64) -> Result<u64> {
        let short = || self.broken(format!("inode {}: the extent {key} is too short", file.1));
        let head: RawFileExtent = read(data, 0).ok_or_else(short)?;
        if head.kind == INLINE {
            self.remove(file.0, key)?;
            return Ok(head.ram_bytes.get());
        }
        let mut place: RawFileExtentPlace = read(data, HEAD).ok_or_else(short)?;
        let (from, to) = (key.offset, key.offset.saturating_add(place.num_bytes.get()));
        let extent = referred_extent(key, data).map_err(|what| self.broken(what))?;
        let count = |tx: &mut Self, delta: i64| {
            if let Some(extent) = extent {
                let by = Ref::Data { root: file.0, objectid: file.1, offset: extent.offset };
                tx.live.refs.change(extent.bytenr, Kind::Data { bytes: extent.bytes }, by, delta);
            }
        };
        let right = (to > end).then(|| {
            let mut right = place.clone();
            // A hole refers to nothing, and has no place in it.
            if extent.is_some() {
                right.offset = (place.offset.get() + (end - from)).into();
            }
            right.num_bytes = (to - end).into();
            encode(&head, &right)
        });
        if from < start {
            place.num_bytes = (start - from).into();
            self.put(file.0, key, &encode(&head, &place))?;
            if let Some(right) = right {
                self.insert(file.0, key_of(file, end), &right)?;
                count(self, 1);
            }
        } else if let Some(right) = right {
            self.rekey(file.0, key, key_of(file, end))?;
            self.put(file.0, key_of(file, end), &right)?;
        } else {
            self.remove(file.0, key)?;
            count(self, -1);
        }
        let gone = to.min(end) - from.max(start);
        Ok(if extent.is_some() { gone } else { 0 })
    }
}
