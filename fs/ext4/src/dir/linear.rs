//! One directory block: a chain of entries that covers it, each `inode, rec_len, name_len, file_type, name`.
//! With metadata_csum, the last entry holds the checksum.
//!
//! This module works on bytes only. A walk validates the entries; after it, the offsets that it found may be
//! changed.

use ivers_vfs::{Error, FileType, Result};
use std::ops::ControlFlow;

/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 8;
/// Bytes of the entry that holds a block's checksum.
pub const TAIL_SIZE: usize = 12;
/// `det_reserved_ft`: the file type that marks the checksum's entry.
const TAIL_FILE_TYPE: u8 = 0xDE;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;

/// Parameters of directory blocks, from the superblock.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// Block size in bytes.
    pub block_size: usize,
    /// Entries store the file type (`filetype`); without it, the byte is the high half of the name's length.
    pub filetype: bool,
    /// Blocks end with a checksum (`metadata_csum`).
    pub checksum: bool,
}

/// An entry at `offset`.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Offset in its block.
    pub offset: usize,
    /// Distance to the next entry in bytes.
    pub rec_len: usize,
    /// The inode number; 0 if unused.
    pub ino: u32,
    /// The name.
    pub name: &'a [u8],
    /// The stored type, if one is stored.
    pub kind: Option<FileType>,
}

impl Entry<'_> {
    /// Whether the entry is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }

    /// Minimum length in bytes.
    fn needed(&self) -> usize {
        if self.ino == 0 { 0 } else { entry_size(self.name.len()) }
    }
}

/// Bytes of an entry with a name of this length.
pub fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(slot) = bytes.get_mut(at..at + 2) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(slot) = bytes.get_mut(at..at + 4) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

impl Format {
    /// Bytes of a block that entries may cover.
    pub fn usable(&self) -> usize {
        if self.checksum { self.block_size - TAIL_SIZE } else { self.block_size }
    }

    /// The stored form of a length: 64 KiB does not fit 16 bits.
    fn rec_len_to_disk(&self, length: usize) -> u16 {
        if length >= 1 << 16 { u16::MAX } else { length as u16 }
    }

    fn rec_len_from_disk(&self, stored: u16) -> usize {
        match stored {
            0 | u16::MAX if self.block_size >= 1 << 16 => self.block_size,
            stored => usize::from(stored),
        }
    }

    /// Returns the entry at an offset of `area` (a block's usable part, or a piece of inline data),
    /// validated.
    pub fn entry<'a>(&self, area: &'a [u8], offset: usize) -> std::result::Result<Entry<'a>, &'static str> {
        let header =
            area.get(offset..offset + ENTRY_HEADER).ok_or("a directory entry runs over its block")?;
        let ino = le32(header, 0);
        let rec_len = self.rec_len_from_disk(le16(header, 4));
        let name_len = if self.filetype { usize::from(header[6]) } else { usize::from(le16(header, 6)) };
        if rec_len < ENTRY_HEADER || !rec_len.is_multiple_of(4) {
            return Err("a directory entry has a bad length");
        }
        let end = offset.checked_add(rec_len).filter(|&end| end <= area.len());
        end.ok_or("a directory entry runs over its block")?;
        if ino == 0 {
            // An unused entry may keep remains of a name; ignore them.
            return Ok(Entry { offset, rec_len, ino, name: &[], kind: None });
        }
        if name_len == 0 || name_len > NAME_MAX || entry_size(name_len) > rec_len {
            return Err("a directory entry has a bad name length");
        }
        let name = &area[offset + ENTRY_HEADER..offset + ENTRY_HEADER + name_len];
        if name.contains(&b'/') || name.contains(&0) {
            return Err("a name contains a slash or a zero byte");
        }
        let kind = if self.filetype { FileType::from_dirent_number(header[7]) } else { None };
        Ok(Entry { offset, rec_len, ino, name, kind })
    }

    /// Walks the entries of `area`, including unused ones.
    pub fn walk<'a, B>(
        &self,
        area: &'a [u8],
        place: &dyn Fn() -> String,
        mut visit: impl FnMut(Entry<'a>) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        let mut offset = 0;
        while offset < area.len() {
            let entry = self.entry(area, offset).map_err(|what| Error::corrupt(what, place()))?;
            offset += entry.rec_len;
            if let ControlFlow::Break(value) = visit(entry) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Finds a name in `area`.
    pub fn find<'a>(
        &self,
        area: &'a [u8],
        name: &[u8],
        place: &dyn Fn() -> String,
    ) -> Result<Option<Entry<'a>>> {
        self.walk(area, place, |entry| {
            if entry.ino != 0 && entry.name == name {
                ControlFlow::Break(entry)
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    /// Finds space for a name of this length: the offset of an entry with enough unused bytes at its end.
    pub fn room(&self, area: &[u8], name_len: usize, place: &dyn Fn() -> String) -> Result<Option<usize>> {
        let wanted = entry_size(name_len);
        self.walk(area, place, |entry| {
            if entry.rec_len - entry.needed() >= wanted {
                ControlFlow::Break(entry.offset)
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    /// Writes an entry at an offset that has `rec_len` bytes.
    pub fn write_entry(
        &self,
        area: &mut [u8],
        offset: usize,
        rec_len: usize,
        ino: u32,
        name: &[u8],
        kind: Option<FileType>,
    ) {
        put32(area, offset, ino);
        put16(area, offset + 4, self.rec_len_to_disk(rec_len));
        put16(area, offset + 6, name.len() as u16);
        if self.filetype
            && let Some(byte) = area.get_mut(offset + 7)
        {
            *byte = kind.map_or(0, FileType::dirent_number);
        }
        if let Some(slot) = area.get_mut(offset + ENTRY_HEADER..offset + ENTRY_HEADER + name.len()) {
            slot.copy_from_slice(name);
        }
    }

    /// Inserts a name at the offset that [`Format::room`] returned; other entries do not move.
    pub fn insert_at(
        &self,
        area: &mut [u8],
        offset: usize,
        ino: u32,
        name: &[u8],
        kind: FileType,
    ) -> Result<()> {
        let (used, rec_len) = {
            let entry = self.entry(area, offset).map_err(|what| Error::corrupt(what, "directory block"))?;
            (entry.needed(), entry.rec_len)
        };
        if used > 0 {
            put16(area, offset + 4, self.rec_len_to_disk(used));
        }
        self.write_entry(area, offset + used, rec_len - used, ino, name, Some(kind));
        Ok(())
    }

    /// Removes the entry at `offset`: the entry before it gets its bytes; the first entry becomes unused.
    pub fn remove_at(&self, area: &mut [u8], offset: usize, place: &dyn Fn() -> String) -> Result<()> {
        let mut before = None;
        let found = self.walk(area, place, |entry| {
            if entry.offset >= offset {
                return ControlFlow::Break((entry.offset, entry.rec_len));
            }
            before = Some((entry.offset, entry.rec_len));
            ControlFlow::Continue(())
        })?;
        let Some((_, rec_len)) = found.filter(|&(at, _)| at == offset) else {
            return Err(Error::corrupt("a directory entry vanished", place()));
        };
        match before {
            Some((at, length)) => put16(area, at + 4, self.rec_len_to_disk(length + rec_len)),
            None => put32(area, offset, 0),
        }
        Ok(())
    }

    /// Makes the entry at `offset` refer to another inode.
    pub fn set_at(&self, area: &mut [u8], offset: usize, ino: u32, kind: FileType) {
        put32(area, offset, ino);
        if self.filetype
            && let Some(byte) = area.get_mut(offset + 7)
        {
            *byte = kind.dirent_number();
        }
    }

    /// Makes a block of one unused entry, and the checksum's entry if checksums are enabled.
    pub fn clear_block(&self, block: &mut [u8]) {
        block.fill(0);
        put16(block, 4, self.rec_len_to_disk(self.usable()));
        self.write_tail(block);
    }

    /// Writes the entry for the checksum.
    pub fn write_tail(&self, block: &mut [u8]) {
        if self.checksum && block.len() >= TAIL_SIZE {
            let at = self.usable();
            block[at..].fill(0);
            put16(block, at + 4, TAIL_SIZE as u16);
            block[at + 7] = TAIL_FILE_TYPE;
        }
    }

    /// Whether the block ends with the checksum's entry.
    pub fn has_tail(&self, block: &[u8]) -> bool {
        let at = self.usable();
        self.checksum
            && block.len() == self.block_size
            && le32(block, at) == 0
            && usize::from(le16(block, at + 4)) == TAIL_SIZE
            && block[at + 6] == 0
            && block[at + 7] == TAIL_FILE_TYPE
    }

    /// Fills a block with the entries in order; the last one gets the remaining bytes. The entries must fit.
    /// Stores no type for `None`.
    pub fn fill_block<'a>(
        &self,
        block: &mut [u8],
        entries: impl Iterator<Item = (u32, &'a [u8], Option<FileType>)>,
    ) {
        self.clear_block(block);
        let usable = self.usable();
        let mut offset = 0;
        let mut last = None;
        for (ino, name, kind) in entries {
            let size = entry_size(name.len());
            if offset + size > usable {
                break;
            }
            self.write_entry(block, offset, size, ino, name, kind);
            last = Some(offset);
            offset += size;
        }
        if let Some(last) = last {
            put16(block, last + 4, self.rec_len_to_disk(usable - last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> String {
        "test".into()
    }

    fn names(format: &Format, block: &[u8]) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        format
            .walk::<()>(&block[..format.usable()], &place, |entry| {
                if entry.ino != 0 {
                    names.push(entry.name.to_vec());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        names
    }

    #[test]
    fn inserts_and_removes_until_full() {
        for (block_size, filetype, checksum) in
            [(1024, true, true), (4096, false, false), (65536, true, true), (65536, true, false)]
        {
            let format = Format { block_size, filetype, checksum };
            let usable = format.usable();
            let mut block = vec![0; block_size];
            format.clear_block(&mut block);
            assert_eq!(format.has_tail(&block), checksum);
            let mut count = 0;
            while let Some(at) = format.room(&block[..usable], 10, &place).unwrap() {
                let name = format!("name{count:06}");
                format
                    .insert_at(&mut block[..usable], at, count + 1, name.as_bytes(), FileType::Regular)
                    .unwrap();
                count += 1;
            }
            assert_eq!(count as usize, usable / entry_size(10));
            assert_eq!(names(&format, &block).len(), count as usize);
            for number in (0..count).step_by(2) {
                let name = format!("name{number:06}");
                let at = format.find(&block[..usable], name.as_bytes(), &place).unwrap().unwrap().offset;
                format.remove_at(&mut block[..usable], at, &place).unwrap();
            }
            assert_eq!(names(&format, &block).len(), count as usize / 2);
            assert_eq!(format.has_tail(&block), checksum);
        }
    }

    #[test]
    fn invalid_directory_blocks_are_errors() {
        let format = Format { block_size: 1024, filetype: true, checksum: false };
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut block = vec![0; 1024];
            format.fill_block(
                &mut block,
                (0..20).map(|i| (i + 1, &b"some name"[..5 + i as usize % 4], Some(FileType::Regular))),
            );
            for _ in 0..3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                block[(state >> 33) as usize % 1024] = (state >> 56) as u8;
            }
            if let Ok(Some(at)) = format.room(&block, 30, &place) {
                let _ = format.insert_at(&mut block, at, 99, &[b'x'; 30], FileType::Regular);
            }
            if let Ok(Some(entry)) = format.find(&block, b"some ", &place) {
                let at = entry.offset;
                let _ = format.remove_at(&mut block, at, &place);
            }
        }
    }
}
