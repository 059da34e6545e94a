//! Data blocks of directories: entries and free ranges, one after the other.

use super::fork::{Mapped, place_in};
use super::listing::{Listing, read_hashes};
use super::state::Checker;
use crate::layout::bytes::number;
use crate::layout::checksum::DIR_DATA;
use crate::layout::directory::{
    ADDRESS_UNIT, BLOCK_MAGICS, DATA_MAGICS, FREE_TAG, data_start, entry_bytes, ftype,
};
use crate::layout::raw::RawDirBlockTail;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::mem::size_of;

/// An entry.
pub(super) struct Entry<'a> {
    at: usize,
    pub(super) child: u64,
    pub(super) name: &'a [u8],
    file_type: Option<u8>,
}

/// What a data block has, before its contents are checked.
pub(super) struct DataBlock<'a> {
    bytes: &'a [u8],
    /// Whether the hashes are in the block as well.
    is_block_form: bool,
    /// Where entries start and end.
    start: usize,
    stop: usize,
    hashes: usize,
}

/// What was found in a data block.
pub(super) struct Found {
    pub(super) is_block_form: bool,
    /// Hashes and addresses of the index in the block.
    pub(super) index: Vec<(u32, u32)>,
}

impl<'a> DataBlock<'a> {
    pub(super) fn of(checker: &Checker, bytes: &'a [u8]) -> Self {
        let is_block_form = bytes.starts_with(BLOCK_MAGICS[usize::from(!checker.sb.is_v5())]);
        let start = data_start(&checker.sb);
        let (mut stop, mut hashes) = (bytes.len(), 0);
        if is_block_form {
            let tail = bytes.len() - size_of::<RawDirBlockTail>();
            hashes = number(bytes, tail, 4).unwrap_or(0) as usize;
            stop = hashes.checked_mul(8).and_then(|len| tail.checked_sub(len)).unwrap_or(0);
        }
        Self { bytes, is_block_form, start, stop, hashes }
    }

    fn entry(&self, checker: &Checker, at: usize) -> Option<(Entry<'a>, usize)> {
        let bytes = &self.bytes[..self.stop];
        let name_len = usize::from(*bytes.get(at + 8)?);
        let name = bytes.get(at + 9..at + 9 + name_len)?;
        let file_type = if checker.sb.has_ftype() { Some(*bytes.get(at + 9 + name_len)?) } else { None };
        let len = entry_bytes(&checker.sb, name_len);
        let entry = Entry { at, child: number(bytes, at, 8)?, name, file_type };
        (number(bytes, at + len - 2, 2) == Some(at as u64)).then_some((entry, len))
    }

    /// Calls `visit` with each entry up to the first that is damaged.
    pub(super) fn each(&self, checker: &Checker, visit: &mut dyn FnMut(&Entry<'a>)) {
        let mut at = self.start;
        while at < self.stop {
            if number(self.bytes, at, 2) == Some(FREE_TAG) {
                let len = number(self.bytes, at + 2, 2).unwrap_or(0) as usize;
                if len == 0 {
                    break;
                }
                at += len;
            } else if let Some((entry, len)) = self.entry(checker, at) {
                visit(&entry);
                at += len;
            } else {
                break;
            }
        }
    }
}

impl Checker {
    /// Checks a data block, and collects its entries. `None` if it cannot be read.
    pub(super) fn check_data_block(
        &mut self,
        mapped: &Mapped,
        listing: &mut Listing,
        nth: u64,
        blocks: &[u64],
    ) -> Result<Option<Found>> {
        let bytes = self.blocks(blocks)?;
        let ino = mapped.ino;
        let place = place_in(ino, blocks.first().copied().unwrap_or_default());
        let v5 = self.sb.is_v5();
        let data = DataBlock::of(self, &bytes);
        listing.set_best(nth as usize, 0);
        let magic = bytes.starts_with(DATA_MAGICS[usize::from(!v5)]);
        let alone = nth == 0
            && mapped.extents.last().is_some_and(|last| {
                last.file_block.0 + last.len == u64::from(self.sb.dir_block_size / self.sb.block_size)
            });
        // Only a directory of one block has its hashes in that block.
        if !(if alone { data.is_block_form } else { magic }) {
            listing.sound = false;
            self.bad("directory-block-invalid", place, "a data block of the directory has a wrong magic");
            return Ok(None);
        }
        if data.stop < data.start {
            listing.sound = false;
            let what = format!("the directory's only block has {} hashes", data.hashes);
            self.bad("directory-block-invalid", place, what);
            return Ok(None);
        }
        self.check_identity(&bytes, &DIR_DATA, "a data block of the directory", &place, ino);
        let mut free: Vec<(u64, u64)> = Vec::new();
        let (mut at, mut entries) = (data.start, 0u64);
        while at < data.stop {
            if number(&bytes, at, 2) == Some(FREE_TAG) {
                let len = number(&bytes, at + 2, 2).unwrap_or(0) as usize;
                let end = at + len;
                let tag = number(&bytes[..data.stop], end.wrapping_sub(2), 2);
                if len == 0 || !len.is_multiple_of(ADDRESS_UNIT as usize) || tag != Some(at as u64) {
                    listing.sound = false;
                    let what = format!("a free range at offset {at} has a wrong length or tag");
                    self.bad("directory-entry-invalid", place, what);
                    return Ok(None);
                }
                if free.last().is_some_and(|(start, len)| start + len == at as u64) {
                    let what = format!("free ranges at offset {at} are not joined");
                    self.bad("directory-entry-invalid", place.clone(), what);
                }
                free.push((at as u64, len as u64));
                at = end;
                continue;
            }
            let Some((entry, len)) = data.entry(self, at) else {
                listing.sound = false;
                let what = format!("an entry at offset {at} has a wrong length or tag");
                self.bad("directory-entry-invalid", place, what);
                return Ok(None);
            };
            let address = (nth * u64::from(self.sb.dir_block_size) + entry.at as u64) / ADDRESS_UNIT;
            listing.entries.push((self.hash_of(entry.name), address as u32));
            match (nth, entries) {
                (0, 0) => {
                    if entry.name != b"." || entry.child != ino {
                        self.bad("directory-dots-wrong", place.clone(), "the first entry is not .");
                    }
                    self.check_dot_type(&entry, &place);
                }
                (0, 1) if entry.name == b".." => {
                    listing.dotdot = entry.child;
                    self.check_dot_type(&entry, &place);
                }
                (0, 1) => self.bad("directory-dots-wrong", place.clone(), "the second entry is not .."),
                _ if matches!(entry.name, b"." | b"..") => {
                    self.bad("directory-dots-wrong", place.clone(), "there is a second entry . or ..");
                }
                _ => self.count_entry(listing.reading, &place, entry.name, entry.child, entry.file_type),
            }
            entries += 1;
            at += len;
        }
        self.check_best_free(&bytes, v5, free, &place, listing, nth);
        let mut index = Vec::new();
        if data.is_block_form {
            let in_order = read_hashes(&bytes[data.stop..], data.hashes, &mut index).is_some();
            if !in_order && data.hashes > 0 {
                self.bad("hash-order-wrong", place.clone(), "the hashes of the directory are out of order");
            }
            let stale = number(&bytes, bytes.len() - 4, 4).unwrap_or(0);
            let removed = (data.hashes - index.len()) as u64;
            if stale != removed {
                let what = format!("the directory has {stale} removed entries, counted {removed}");
                self.bad("hash-block-invalid", place, what);
            }
        }
        Ok(Some(Found { is_block_form: data.is_block_form, index }))
    }

    fn check_dot_type(&mut self, entry: &Entry<'_>, place: &Place) {
        if entry.file_type.is_some_and(|found| found != ftype::DIRECTORY) {
            self.bad("filetype-wrong", place.clone(), "the entry . or .. has not the type of a directory");
        }
    }

    /// Compares the largest free ranges in the header of a block with those that it has.
    fn check_best_free(
        &mut self,
        bytes: &[u8],
        v5: bool,
        mut free: Vec<(u64, u64)>,
        place: &Place,
        listing: &mut Listing,
        nth: u64,
    ) {
        free.sort_unstable_by_key(|(at, len)| (u64::MAX - len, *at));
        let at = if v5 { 48 } else { 4 };
        let field = |index: usize| number(bytes, at + index * 2, 2).unwrap_or(0);
        let stored = [0, 1, 2].map(|nth| (field(nth * 2), field(nth * 2 + 1)));
        let is_right = stored.iter().enumerate().all(|(nth, (at, len))| match free.get(nth) {
            // Ranges of one length are in any order.
            Some((_, found)) => found == len && free.contains(&(*at, *len)),
            None => (*at, *len) == (0, 0),
        });
        let distinct =
            stored[0].1 == 0 || (stored[0] != stored[1] && (stored[1].1 == 0 || stored[1] != stored[2]));
        if !is_right || !distinct {
            let what = "the largest free ranges of the block are recorded wrongly";
            self.bad("directory-best-free-wrong", place.clone(), what);
        }
        listing.set_best(nth as usize, free.first().map_or(0, |(_, len)| *len as u16));
    }
}
