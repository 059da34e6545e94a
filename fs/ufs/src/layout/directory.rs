//! Entries of directories.

use super::bytes::{ByteOrder, Fields, FieldsMut};
use super::superblock::Superblock;
use ivers_vfs::FileType;

/// Directories consist of units of this size. No entry crosses the end of one, so that a unit is written as
/// a whole.
pub const UNIT_BYTES: usize = 512;
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of an entry before its name.
const HEADER_BYTES: usize = 8;
/// The type of a whiteout, which hides a name of a lower directory in a union mount.
const DT_WHT: u8 = 14;

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode.
    pub ino: u32,
    /// The stored type.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// The type, if it is known.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(u32::from(self.kind) << 12)
    }
}

/// Bytes of the largest units of older systems. Units of 512 bytes can be read as units of this size, too.
const OLD_UNIT_BYTES: u32 = 1024;

/// Returns the size in bytes of the units in which a directory is read. No entry crosses the end of one.
pub fn unit_bytes(sb: &Superblock) -> usize {
    if sb.new_flags { UNIT_BYTES } else { OLD_UNIT_BYTES.min(sb.fragment_size) as usize }
}

/// Returns the entry at an offset of a unit, and the offset of the next one. `None` stands for free space.
pub fn entry<'a>(
    unit: &'a [u8],
    at: usize,
    sb: &Superblock,
) -> Result<(Option<Entry<'a>>, usize), &'static str> {
    parse_entry(unit, at, sb.order, sb.is_old)
}

/// In an old entry the length of the name has two bytes, and there is no type.
fn parse_entry(
    unit: &[u8],
    at: usize,
    order: ByteOrder,
    is_old: bool,
) -> Result<(Option<Entry<'_>>, usize), &'static str> {
    let fields = Fields::new(unit.get(at..).unwrap_or_default(), order);
    let len = usize::from(fields.u16(4));
    let space = unit.len().saturating_sub(at);
    if len < HEADER_BYTES || !len.is_multiple_of(4) || len > space {
        return Err("an entry of a directory has an impossible length");
    }
    let (kind, name_len) = if is_old { (0, fields.u16(6)) } else { (fields.u8(6), fields.u8(7).into()) };
    let ino = fields.u32(0);
    if ino == 0 || kind == DT_WHT {
        return Ok((None, at + len));
    }
    let name = fields.bytes().get(HEADER_BYTES..HEADER_BYTES + usize::from(name_len));
    let name = name.filter(|name| HEADER_BYTES + name.len() <= len && name.len() <= NAME_MAX);
    let name = name.ok_or("a name is longer than its entry")?;
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err("a name is empty, or contains a slash or a zero byte");
    }
    Ok((Some(Entry { ino, kind, name }), at + len))
}

/// Bytes that an entry with a name needs.
pub fn entry_bytes(name_len: usize) -> usize {
    (HEADER_BYTES + name_len + 1).next_multiple_of(4)
}

/// Bytes of the entry `.` of a new directory.
pub const DOT_BYTES: usize = 12;
/// The offset of the type in an entry.
pub const KIND_AT: usize = 6;
/// The offset of the length in an entry.
pub const LENGTH_AT: usize = 4;

/// Writes an entry that takes `len` bytes. Inode 0 with an empty name is free space.
pub fn put_entry(bytes: &mut [u8], entry: Entry<'_>, len: usize, order: ByteOrder) {
    let mut fields = FieldsMut::new(bytes, order);
    fields.u32(0, entry.ino);
    fields.u16(LENGTH_AT, len as u16);
    if let Some(rest) = bytes.get_mut(KIND_AT..entry_bytes(entry.name.len())) {
        rest.fill(0);
        rest[0] = entry.kind;
        rest[1] = entry.name.len() as u8;
        rest[2..2 + entry.name.len()].copy_from_slice(entry.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut unit = [0xAA; UNIT_BYTES];
            let name = [b'n'; NAME_MAX];
            let long = Entry { ino: 7, kind: 8, name: &name };
            let len = entry_bytes(NAME_MAX);
            put_entry(&mut unit, long, len, order);
            put_entry(&mut unit[len..], Entry { ino: 0, kind: 0, name: b"" }, UNIT_BYTES - len, order);
            assert_eq!(parse_entry(&unit, 0, order, false), Ok((Some(long), len)));
            assert_eq!(parse_entry(&unit, len, order, false), Ok((None, UNIT_BYTES)));
        }
        // The name ends with a zero byte.
        assert_eq!([1, 3, 4].map(entry_bytes), [12, 12, 16]);
    }

    fn unit(parts: &[(u32, u16, u8, &[u8])]) -> Vec<u8> {
        let mut unit = Vec::new();
        for (ino, len, kind, name) in parts {
            let end = unit.len() + usize::from(*len);
            unit.extend(ino.to_be_bytes());
            unit.extend(len.to_be_bytes());
            unit.extend([*kind, name.len() as u8]);
            unit.extend_from_slice(name);
            unit.resize(end.max(unit.len()), 0);
        }
        unit
    }

    #[test]
    fn entries_are_decoded() {
        let bytes = unit(&[(2, 12, 4, b"."), (0, 12, 0, b""), (1, 12, 14, b"w"), (7, 476, 8, b"file")]);
        let decoded = |at| parse_entry(&bytes, at, ByteOrder::Big, false).unwrap();
        let dot = Entry { ino: 2, kind: 4, name: b"." };
        assert_eq!((decoded(0), dot.file_type()), ((Some(dot), 12), Some(FileType::Directory)));
        assert_eq!((decoded(12), decoded(24)), ((None, 24), (None, 36)));
        assert_eq!(decoded(36), (Some(Entry { ino: 7, kind: 8, name: b"file" }), 512));
    }

    #[test]
    fn damaged_entries_are_errors() {
        for (part, word) in [
            ((2, 0, 4, &b"."[..]), "impossible length"),
            ((2, 13, 4, b"."), "impossible length"),
            ((2, 1024, 4, b"."), "impossible length"),
            ((2, 12, 4, b"too long"), "longer than its entry"),
            ((2, 16, 4, b""), "empty"),
            ((2, 16, 4, b"a/b"), "slash"),
            ((2, 16, 4, b"a\0"), "zero byte"),
        ] {
            let mut bytes = unit(&[part]);
            bytes.resize(UNIT_BYTES, 0);
            let error = parse_entry(&bytes, 0, ByteOrder::Big, false).unwrap_err();
            assert!(error.contains(word), "{part:?}: {error}");
        }
        assert!(parse_entry(&[0; 512], 512, ByteOrder::Big, false).is_err());
    }
}
