//! Entries of directories.

use super::bytes::{u8_at, u16_at, u32_at, u64_at};
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
