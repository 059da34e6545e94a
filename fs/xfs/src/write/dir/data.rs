//! Editing of data blocks: entries and free ranges, one after the other.

use crate::dir::{Entry, item_at};
use crate::layout::directory::{ADDRESS_UNIT, BLOCK_MAGICS, DATA_MAGICS, FREE_TAG, data_start, entry_bytes};
use crate::layout::raw::RawDirDataHeader;
use crate::layout::superblock::Superblock;
use std::mem::offset_of;

/// What an entry says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) ino: u64,
    /// The type as entries have it.
    pub(crate) ftype: u8,
}

/// The entries of a data block that is being changed. Every entry of it was checked.
pub(super) struct DataEdit<'a> {
    sb: &'a Superblock,
    bytes: &'a mut [u8],
    /// Where the entries end.
    stop: usize,
    /// Offset and length of free ranges, in ascending order, none beside another.
    free: Vec<(usize, usize)>,
}

impl<'a> DataEdit<'a> {
    /// Checks a block up to `stop`.
    pub(super) fn new(sb: &'a Superblock, bytes: &'a mut [u8], stop: usize) -> Result<Self, String> {
        let mut free: Vec<(usize, usize)> = Vec::new();
        let (mut at, inside) = (data_start(sb), &bytes[..stop.min(bytes.len())]);
        while at < inside.len() {
            let (entry, len) = item_at(sb, inside, at)?;
            if entry.is_none() {
                match free.last_mut() {
                    Some(last) if last.0 + last.1 == at => last.1 += len,
                    _ => free.push((at, len)),
                }
            }
            at += len;
        }
        let stop = inside.len();
        Ok(Self { sb, bytes, stop, free })
    }

    /// Makes an empty block. What it says of itself stays.
    pub(super) fn empty(sb: &'a Superblock, bytes: &'a mut [u8], stop: usize, with_hashes: bool) -> Self {
        bytes[data_start(sb)..].fill(0);
        bytes[..4].copy_from_slice(if with_hashes { BLOCK_MAGICS[0] } else { DATA_MAGICS[0] });
        let start = data_start(sb);
        let mut edit = Self { sb, bytes, stop, free: vec![(start, stop - start)] };
        edit.store_free();
        edit
    }

    /// The length of the largest free range.
    pub(super) fn best(&self) -> u16 {
        self.free.iter().map(|(_, len)| *len).max().unwrap_or(0) as u16
    }

    /// The length of the free range that ends where the entries end.
    pub(super) fn free_at_end(&self) -> usize {
        self.free.last().filter(|(at, len)| at + len == self.stop).map_or(0, |(_, len)| *len)
    }

    /// Whether there is no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.free == [(data_start(self.sb), self.stop - data_start(self.sb))]
    }

    /// Moves the end of the entries. What is given up must be free.
    pub(super) fn set_stop(&mut self, stop: usize) {
        if stop > self.stop {
            let (from, len) = (self.stop, stop - self.stop);
            self.stop = stop;
            self.release(from, len);
        } else if stop < self.stop {
            let given_up = self.stop - stop;
            if let Some(last) = self.free.last_mut() {
                last.1 -= given_up;
            }
            self.free.retain(|(_, len)| *len > 0);
            self.stop = stop;
        }
        self.store_free();
    }

    /// Adds an entry in the first free range that is large enough; returns its offset.
    pub(super) fn add(&mut self, ino: u64, name: &[u8], ftype: u8) -> Option<usize> {
        let len = entry_bytes(self.sb, name.len());
        let at = self.free.iter().find(|(_, free)| *free >= len)?.0;
        self.add_at(at, ino, name, ftype).then_some(at)
    }

    /// Adds an entry at an offset; returns whether it is free there.
    pub(super) fn add_at(&mut self, at: usize, ino: u64, name: &[u8], ftype: u8) -> bool {
        let len = entry_bytes(self.sb, name.len());
        let found = self.free.iter().position(|(from, free)| *from <= at && at + len <= from + free);
        let Some(index) = found else { return false };
        let (from, free) = self.free[index];
        let parts = [(from, at - from), (at + len, from + free - at - len)];
        self.free.splice(index..=index, parts.into_iter().filter(|(_, len)| *len > 0));
        let place = &mut self.bytes[at..at + len];
        place.fill(0);
        place[..8].copy_from_slice(&ino.to_be_bytes());
        place[8] = name.len() as u8;
        place[9..9 + name.len()].copy_from_slice(name);
        if self.sb.has_ftype() {
            place[9 + name.len()] = ftype;
        }
        place[len - 2..].copy_from_slice(&(at as u16).to_be_bytes());
        self.store_free();
        true
    }

    /// The entry at an offset.
    pub(super) fn entry(&self, at: usize) -> Result<Entry<'_>, String> {
        let none = || format!("there is no entry at offset {at}");
        if at < data_start(self.sb) || self.free.iter().any(|(from, len)| (*from..from + len).contains(&at)) {
            return Err(none());
        }
        item_at(self.sb, &self.bytes[..self.stop], at)?.0.ok_or_else(none)
    }

    /// Calls `visit` with each entry.
    pub(super) fn each(&self, mut visit: impl FnMut(Entry<'_>)) {
        let mut at = data_start(self.sb);
        while let Ok((entry, len)) = item_at(self.sb, &self.bytes[..self.stop], at) {
            if let Some(entry) = entry {
                visit(entry);
            }
            at += len;
        }
    }

    /// Removes the entry at an offset.
    pub(super) fn remove(&mut self, at: usize) -> Result<(), String> {
        let len = entry_bytes(self.sb, self.entry(at)?.name.len());
        self.release(at, len);
        self.store_free();
        Ok(())
    }

    /// Changes the inode of an entry.
    pub(super) fn replace(&mut self, at: usize, ino: u64, ftype: u8) -> Result<(), String> {
        let name_len = self.entry(at)?.name.len();
        self.bytes[at..at + 8].copy_from_slice(&ino.to_be_bytes());
        if self.sb.has_ftype() {
            self.bytes[at + 9 + name_len] = ftype;
        }
        Ok(())
    }

    /// Adds a free range, and joins it with those beside it.
    fn release(&mut self, at: usize, len: usize) {
        let index = self.free.partition_point(|(from, _)| *from < at);
        self.free.insert(index, (at, len));
        self.free.dedup_by(|next, last| {
            let joins = last.0 + last.1 == next.0;
            last.1 += if joins { next.1 } else { 0 };
            joins
        });
    }

    /// Writes the tags of all free ranges, and the largest three into the header.
    fn store_free(&mut self) {
        for (at, len) in &self.free {
            let put = |bytes: &mut [u8], at: usize, value: u16| {
                bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
            };
            put(self.bytes, *at, FREE_TAG as u16);
            put(self.bytes, at + 2, *len as u16);
            put(self.bytes, at + len - 2, *at as u16);
        }
        let mut best: Vec<_> = self.free.clone();
        best.sort_by_key(|(at, len)| (usize::MAX - len, *at));
        best.resize(3, (0, 0));
        let header = offset_of!(RawDirDataHeader, bestfree);
        for (nth, (at, len)) in best.into_iter().take(3).enumerate() {
            let place = &mut self.bytes[header + nth * 4..][..4];
            place[..2].copy_from_slice(&(at as u16).to_be_bytes());
            place[2..].copy_from_slice(&(len as u16).to_be_bytes());
        }
    }
}

/// The address of an entry in the directory: in which data block it is, and where.
pub(super) fn address_of(sb: &Superblock, number: u64, at: usize) -> u32 {
    ((number * u64::from(sb.dir_block_size) + at as u64) / ADDRESS_UNIT) as u32
}

/// The data block of an address, and the offset in it.
pub(super) fn place_of(sb: &Superblock, address: u32) -> (u64, usize) {
    let byte = u64::from(address) * ADDRESS_UNIT;
    let size = u64::from(sb.dir_block_size);
    (byte / size, (byte % size) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::tests::samples::superblock;

    fn names(edit: &DataEdit<'_>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        edit.each(|entry| all.push(entry.name.to_vec()));
        all
    }

    #[test]
    fn entries_are_added_and_removed() {
        let (sb, mut bytes) = (superblock(), vec![0xEE; 4096]);
        let mut edit = DataEdit::empty(&sb, &mut bytes, 4096, false);
        assert!(edit.is_empty() && edit.best() == 4032);
        let at: Vec<usize> =
            (0..4u64).map(|nth| edit.add(nth + 1, format!("name{nth}").as_bytes(), 1).unwrap()).collect();
        assert_eq!(at, [64, 88, 112, 136]);
        edit.remove(88).unwrap();
        assert!(edit.remove(88).is_err() && edit.remove(96).is_err() && edit.remove(0).is_err());
        edit.remove(112).unwrap();
        assert_eq!((edit.best(), edit.free_at_end()), (4096 - 160, 4096 - 160));
        edit.replace(136, 99, 2).unwrap();
        assert_eq!((edit.entry(136).unwrap().ino, edit.entry(136).unwrap().ftype), (99, 2));
        // It fits into the range of the two that were removed.
        assert_eq!(edit.add(7, &[b'x'; 30], 1), Some(88));
        let again = DataEdit::new(&sb, &mut bytes, 4096).unwrap();
        assert_eq!(names(&again), [b"name0".to_vec(), vec![b'x'; 30], b"name3".to_vec()]);
        let mut again = again;
        [64, 88, 136].into_iter().for_each(|at| again.remove(at).unwrap());
        assert!(again.is_empty());
    }

    #[test]
    fn a_full_block_takes_no_more() {
        let (sb, mut bytes) = (superblock(), vec![0; 4096]);
        let mut edit = DataEdit::empty(&sb, &mut bytes, 4096, false);
        let mut count = 0;
        while edit.add(count, &[b'y'; 200], 1).is_some() {
            count += 1;
        }
        assert_eq!(count, 4032 / 216);
        edit.set_stop(4096 - edit.free_at_end());
        assert_eq!((edit.best(), edit.free_at_end()), (0, 0));
        edit.set_stop(4096);
        assert_eq!(edit.free_at_end(), 4032 % 216);
    }

    #[test]
    fn damage_is_an_error() {
        let (sb, mut bytes) = (superblock(), vec![0; 4096]);
        let mut edit = DataEdit::empty(&sb, &mut bytes, 4096, true);
        (0..20).for_each(|nth| assert!(edit.add(nth + 1, &[b'z'; 50], 1).is_some()));
        for at in 64..64 + 20 * 64 {
            let mut copy = bytes.clone();
            copy[at] ^= 0xFF;
            // It is an error or not, and never a panic.
            if let Ok(mut edit) = DataEdit::new(&sb, &mut copy, 4096) {
                let _ = edit.remove(at);
                edit.add(1, b"more", 1);
            }
        }
    }
}
