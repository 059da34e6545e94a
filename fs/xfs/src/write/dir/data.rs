//! Editing of data blocks: entries and free ranges, one after the other.

use crate::dir::{Entry, item_at, item_len};
use crate::layout::bytes::number;
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

/// The entries of a data block that is being changed. The lengths of all were checked.
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
            let (len, is_free) = item_len(sb, inside, at)?;
            if is_free {
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

    /// Calls `visit` with each entry. Fails if one is damaged.
    pub(super) fn each(&self, mut visit: impl FnMut(Entry<'_>)) -> Result<(), String> {
        let mut at = data_start(self.sb);
        while at < self.stop {
            let (entry, len) = item_at(self.sb, &self.bytes[..self.stop], at)?;
            if let Some(entry) = entry {
                visit(entry);
            }
            at += len;
        }
        Ok(())
    }

    /// Removes the entry at an offset.
    pub(super) fn remove(&mut self, at: usize) -> Result<(), String> {
        let len = entry_bytes(self.sb, self.entry(at)?.name.len());
        // It becomes part of a free range, in which nobody must find it.
        store_tags(self.bytes, (at, len));
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
        for range in &self.free {
            store_tags(self.bytes, *range);
        }
        store_best(self.bytes, &mut self.free.clone());
    }
}

/// Free ranges in the header.
const BEST: usize = 3;
const BEST_OFFSET: usize = offset_of!(RawDirDataHeader, bestfree);

/// Writes what a free range says of itself.
fn store_tags(bytes: &mut [u8], (at, len): (usize, usize)) {
    let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    put(at, FREE_TAG as u16);
    put(at + 2, len as u16);
    put(at + len - 2, at as u16);
}

/// Writes the largest ranges into the header.
fn store_best(bytes: &mut [u8], ranges: &mut Vec<(usize, usize)>) {
    ranges.sort_by_key(|(at, len)| (usize::MAX - len, *at));
    ranges.resize(BEST, (0, 0));
    for (nth, (at, len)) in ranges.iter().enumerate() {
        let place = &mut bytes[BEST_OFFSET + nth * 4..][..4];
        place[..2].copy_from_slice(&(*at as u16).to_be_bytes());
        place[2..].copy_from_slice(&(*len as u16).to_be_bytes());
    }
}

/// Removes the entry at an offset of a data block without hashes, and looks only at what is beside it.
/// Returns the length of the largest free range, and whether no entry is left. `None`, and nothing is
/// changed, if the header does not tell which ranges are the largest afterwards.
pub(super) fn remove_locally(
    sb: &Superblock,
    bytes: &mut [u8],
    at: usize,
) -> Result<Option<(u16, bool)>, String> {
    let start = data_start(sb);
    let word = |at: usize| number(bytes, at, 2).unwrap_or(0) as usize;
    let (len, is_free) = item_len(sb, bytes, at)?;
    if is_free || at < start {
        return Err(format!("there is no entry at offset {at}"));
    }
    let mut best: Vec<_> = (0..BEST)
        .map(|nth| (word(BEST_OFFSET + nth * 4), word(BEST_OFFSET + nth * 4 + 2)))
        .filter(|(_, len)| *len > 0)
        .collect();
    let (mut from, mut end) = (at, at + len);
    let mut is_beside = |range: (usize, usize)| {
        let free = item_len(sb, bytes, range.0).is_ok_and(|(len, is_free)| is_free && len == range.1);
        free.then(|| best.iter().position(|listed| *listed == range).map(|nth| best.remove(nth)).is_some())
    };
    let mut listed = 0;
    // Every item ends with its offset.
    let before = if at > start { word(at - 2) } else { at };
    if before >= start
        && before < at
        && let Some(is_listed) = is_beside((before, at - before))
    {
        (from, listed) = (before, listed + usize::from(is_listed));
    }
    if end < bytes.len()
        && let Some(is_listed) = is_beside((end, word(end + 2)))
    {
        (end, listed) = (end + word(end + 2), listed + usize::from(is_listed));
    }
    // The new range is at least as long as each one that it replaces. If it replaces two of a full list, the
    // header does not tell the third largest.
    if listed > 1 && best.len() + listed == BEST {
        return Ok(None);
    }
    let range = (from, end - from);
    best.push(range);
    // The entry becomes part of a free range, in which nobody must find it.
    store_tags(bytes, (at, len));
    store_tags(bytes, range);
    store_best(bytes, &mut best);
    Ok(Some((best[0].1 as u16, best[0] == (start, bytes.len() - start))))
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
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    fn names(edit: &DataEdit<'_>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        edit.each(|entry| all.push(entry.name.to_vec())).unwrap();
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

    /// Removing entries one by one leaves the same block, whether the others are looked at or not.
    #[test]
    fn removing_locally_is_the_same() {
        let sb = superblock();
        let mut random = rand::rngs::StdRng::seed_from_u64(5);
        let mut full = vec![0; 4096];
        let mut edit = DataEdit::empty(&sb, &mut full, 4096, false);
        let mut places = Vec::new();
        while let Some(at) = edit.add(9, &[b'n'; 40][..random.random_range(1..40)], 1) {
            places.push(at);
        }
        let (mut local, mut unknown) = (0, 0);
        for _ in 0..50 {
            let (mut bytes, mut left) = (full.clone(), places.clone());
            left.shuffle(&mut random);
            while let Some(at) = left.pop() {
                let mut scanned = bytes.clone();
                let mut edit = DataEdit::new(&sb, &mut scanned, 4096).unwrap();
                edit.remove(at).unwrap();
                let expected = (edit.best(), edit.is_empty());
                let before = bytes.clone();
                match remove_locally(&sb, &mut bytes, at).unwrap() {
                    Some(found) => {
                        assert_eq!((found, &bytes), (expected, &scanned));
                        local += 1;
                    }
                    None => {
                        assert_eq!(bytes, before);
                        bytes = scanned;
                        unknown += 1;
                    }
                }
                assert!(remove_locally(&sb, &mut bytes, at).is_err(), "it is gone");
            }
        }
        assert!(local > 10 * unknown && unknown > 10, "{local} {unknown}");
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
