//! Entries of directories.

use super::bytes::{put_u16, put_u32, put_u64, u8_at, u16_at, u32_at, u64_at};
use ivers_vfs::FileType;

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of an entry before its name.
const HEADER_BYTES: usize = 12;
/// Bytes of a `struct ocfs2_dir_block_trailer`, which ends blocks of directories and looks like a free entry.
pub const TRAILER_BYTES: usize = 64;
/// The offset of the checksum in the trailer.
pub const TRAILER_CHECK_AT: usize = 0x38;
const TRAILER_SIGNATURE: &[u8] = b"DIRTRL1";
/// Types in entries, by number.
const KINDS: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::CharDevice,
    FileType::BlockDevice,
    FileType::Fifo,
    FileType::Socket,
    FileType::Symlink,
];

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode.
    pub ino: u64,
    /// The stored type.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// The type, if it is known.
    pub fn file_type(&self) -> Option<FileType> {
        KINDS.get(usize::from(self.kind).checked_sub(1)?).copied()
    }
}

/// Returns the entry at an offset of a block or of inline data, and the offset of the next one. `None` stands
/// for free space.
pub fn entry(block: &[u8], at: usize) -> Result<(Option<Entry<'_>>, usize), &'static str> {
    let rest = block.get(at..).unwrap_or_default();
    let len = usize::from(u16_at(rest, 8));
    if len < HEADER_BYTES || !len.is_multiple_of(4) || len > rest.len() {
        return Err("an entry of a directory has an impossible length");
    }
    let ino = u64_at(rest, 0);
    if ino == 0 {
        return Ok((None, at + len));
    }
    let name = rest.get(HEADER_BYTES..HEADER_BYTES + usize::from(u8_at(rest, 10)));
    let name = name.filter(|name| HEADER_BYTES + name.len() <= len);
    let name = name.ok_or("a name is longer than its entry")?;
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err("a name is empty, or contains a slash or a zero byte");
    }
    Ok((Some(Entry { ino, kind: u8_at(rest, 11), name }), at + len))
}

/// Returns what is wrong with the trailer of a block of the directory `owner`.
pub fn check_trailer(block: &[u8], number: u64, owner: u64) -> Result<(), &'static str> {
    let trailer = &block[block.len().saturating_sub(TRAILER_BYTES)..];
    if trailer.get(0x10..0x17) != Some(TRAILER_SIGNATURE) {
        return Err("a block of the directory has no trailer");
    }
    if u64_at(trailer, 0) != 0 || usize::from(u16_at(trailer, 8)) != TRAILER_BYTES || u8_at(trailer, 10) != 0
    {
        return Err("the trailer of a block of the directory is no free entry");
    }
    if u64_at(trailer, 0x28) != number || u64_at(trailer, 0x30) != owner {
        return Err("the trailer of a block is of another block or directory");
    }
    Ok(())
}

/// The offset in the trailer of the longest free space of the block.
pub const TRAILER_FREE_AT: usize = 0x0E;
/// The offset in the trailer of the next block with free space.
pub const TRAILER_NEXT_AT: usize = 0x20;

/// Writes the trailer of a block of the directory `owner`.
pub fn put_trailer(block: &mut [u8], number: u64, owner: u64) {
    let start = block.len() - TRAILER_BYTES;
    let trailer = &mut block[start..];
    trailer.fill(0);
    put_u16(trailer, 8, TRAILER_BYTES as u16);
    trailer[0x10..0x17].copy_from_slice(TRAILER_SIGNATURE);
    put_u64(trailer, 0x28, number);
    put_u64(trailer, 0x30, owner);
}

/// The number of a type in entries.
pub fn number_of(kind: FileType) -> u8 {
    KINDS.iter().position(|known| *known == kind).map_or(0, |at| at as u8 + 1)
}

/// Bytes of an entry.
pub fn entry_bytes(name: &[u8]) -> usize {
    (HEADER_BYTES + name.len()).next_multiple_of(4)
}

/// Writes an entry that takes `len` bytes.
pub fn put_entry(area: &mut [u8], at: usize, len: usize, entry: Entry<'_>) {
    put_u64(area, at, entry.ino);
    put_u16(area, at + 8, len as u16);
    (area[at + 10], area[at + 11]) = (entry.name.len() as u8, entry.kind);
    let name_at = at + HEADER_BYTES;
    area[name_at..name_at + entry.name.len()].copy_from_slice(entry.name);
}

/// Changes the length of an entry.
pub fn put_length(area: &mut [u8], at: usize, len: usize) {
    put_u16(area, at + 8, len as u16);
}

/// Free bytes in an entry of `len` bytes.
fn space_in(found: Option<Entry<'_>>, len: usize) -> usize {
    len.saturating_sub(found.map_or(0, |entry| entry_bytes(entry.name)))
}

/// Returns the entry with room for `need` more bytes, and the longest free space of all.
pub fn find_space(area: &[u8], need: usize) -> Result<(Option<usize>, usize), &'static str> {
    let (mut at, mut found, mut longest) = (0, None, 0);
    while at < area.len() {
        let (has, next) = entry(area, at)?;
        let space = space_in(has, next - at);
        longest = longest.max(space);
        if space >= need && found.is_none() {
            found = Some(at);
        }
        at = next;
    }
    Ok((found, longest))
}

/// Adds an entry in the free space of another one, which [`find_space`] returned. Returns where it begins.
pub fn add(area: &mut [u8], at: usize, new: Entry<'_>) -> Result<usize, &'static str> {
    let (has, next) = entry(area, at)?;
    let used = has.map_or(0, |entry| entry_bytes(entry.name));
    if next - at < used + entry_bytes(new.name) {
        return Err("free space vanished");
    }
    if used > 0 {
        put_length(area, at, used);
    }
    put_entry(area, at + used, next - at - used, new);
    Ok(at + used)
}

/// Returns where an entry is.
pub fn find(area: &[u8], name: &[u8]) -> Result<Option<(usize, u64)>, &'static str> {
    let mut at = 0;
    while at < area.len() {
        let (has, next) = entry(area, at)?;
        if let Some(found) = has.filter(|found| found.name == name) {
            return Ok(Some((at, found.ino)));
        }
        at = next;
    }
    Ok(None)
}

/// Removes the entry at an offset: the one before it gets its space.
pub fn remove(area: &mut [u8], target: usize) -> Result<(), &'static str> {
    let (mut at, mut before) = (0, None);
    while at < target {
        before = Some(at);
        at = entry(area, at)?.1;
    }
    let next = entry(area, target)?.1;
    match before {
        Some(before) => put_length(area, before, next - before),
        None => put_u64(area, target, 0),
    }
    Ok(())
}

/// Changes the inode of the entry at an offset.
pub fn put_target(area: &mut [u8], at: usize, ino: u64, kind: FileType) {
    put_u64(area, at, ino);
    area[at + 11] = number_of(kind);
}

/// An entry of an index: the hash, and the block that has the name.
pub type IndexEntry = ([u32; 2], u64);

/// Entries that fit into the list of an index.
pub fn index_room(list: &[u8]) -> usize {
    usize::from(u16_at(list, 4)).min(list.len().saturating_sub(8) / 16)
}

/// Writes the list of an index, which takes all of `list`.
pub fn put_index(list: &mut [u8], entries: &[IndexEntry]) {
    list.fill(0);
    put_u16(list, 4, ((list.len() - 8) / 16) as u16);
    put_u16(list, 6, entries.len() as u16);
    for (([major, minor], block), to) in entries.iter().zip(list[8..].chunks_exact_mut(16)) {
        put_u32(to, 0, *major);
        put_u32(to, 4, *minor);
        put_u64(to, 8, *block);
    }
}

/// Entries of an index: a hash, and the block with the name.
pub fn index_entries(list: &[u8]) -> Result<impl Iterator<Item = ([u32; 2], u64)> + '_, String> {
    let (count, used) = (usize::from(u16_at(list, 4)), usize::from(u16_at(list, 6)));
    let room = list.len().saturating_sub(8) / 16;
    if count > room || used > count {
        return Err(format!("an index has {used} of {count} entries, and room for {room}"));
    }
    let entries = list[8..].chunks_exact(16).take(used);
    Ok(entries.map(|entry| ([u32_at(entry, 0), u32_at(entry, 4)], u64_at(entry, 8))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(parts: &[(u64, u16, u8, &[u8])]) -> Vec<u8> {
        let mut block = Vec::new();
        for (ino, len, kind, name) in parts {
            let end = block.len() + usize::from(*len);
            block.extend(ino.to_le_bytes());
            block.extend(len.to_le_bytes());
            block.extend([name.len() as u8, *kind]);
            block.extend_from_slice(name);
            block.resize(end.max(block.len()), 0);
        }
        block
    }

    #[test]
    fn entries_are_decoded() {
        let bytes = block(&[(2, 16, 2, b"."), (0, 12, 0, b""), (1 << 40, 484, 1, b"file")]);
        let decoded = |at| entry(&bytes, at).unwrap();
        let dot = Entry { ino: 2, kind: 2, name: b"." };
        assert_eq!((decoded(0), dot.file_type()), ((Some(dot), 16), Some(FileType::Directory)));
        assert_eq!(decoded(16), (None, 28));
        assert_eq!(decoded(28), (Some(Entry { ino: 1 << 40, kind: 1, name: b"file" }), 512));
        assert_eq!(Entry { ino: 1, kind: 0, name: b"x" }.file_type(), None);
        assert_eq!(Entry { ino: 1, kind: 8, name: b"x" }.file_type(), None);
    }

    #[test]
    fn damaged_entries_are_errors() {
        for (part, word) in [
            ((2, 0, 4, &b"."[..]), "impossible length"),
            ((2, 17, 4, b"."), "impossible length"),
            ((2, 1024, 4, b"."), "impossible length"),
            ((2, 16, 4, b"too long"), "longer than its entry"),
            ((2, 16, 4, b""), "empty"),
            ((2, 16, 4, b"a/b"), "slash"),
            ((2, 16, 4, b"a\0"), "zero byte"),
        ] {
            let mut bytes = block(&[part]);
            bytes.resize(512, 0);
            let error = entry(&bytes, 0).unwrap_err();
            assert!(error.contains(word), "{part:?}: {error}");
        }
        assert!(entry(&[0; 512], 512).is_err());
    }
}
