//! Directories in the inode.

use super::entry::{Entry, check_name};
use crate::inode::Dinode;
use crate::layout::bytes::number;
use crate::layout::directory::{ADDRESS_UNIT, data_start};
use crate::source::Source;
use ivers_vfs::Result;

/// A decoded directory.
#[derive(Debug)]
pub(crate) struct ShortForm<'a> {
    pub parent: u64,
    /// In ascending order of their addresses; without `.` and `..`.
    pub entries: Vec<Entry<'a>>,
}

impl<'a> ShortForm<'a> {
    pub(crate) fn decode(bytes: &'a [u8], has_type: bool, first: usize) -> std::result::Result<Self, String> {
        let cut = || "the entries end past the directory".to_owned();
        let byte = |at: usize| bytes.get(at).copied().ok_or_else(cut);
        let count = usize::from(byte(0)?);
        let ino_bytes = if byte(1)? > 0 { 8 } else { 4 };
        let parent = number(bytes, 2, ino_bytes).ok_or_else(cut)?;
        let mut at = 2 + ino_bytes;
        let mut entries: Vec<Entry<'a>> = Vec::with_capacity(count);
        // `.` and `..` take 16 bytes each.
        let mut least = (first as u64 + 32) / ADDRESS_UNIT;
        for _ in 0..count {
            let name_len = usize::from(byte(at)?);
            let offset = number(bytes, at + 1, 2).ok_or_else(cut)?;
            let name = bytes.get(at + 3..at + 3 + name_len).ok_or_else(cut)?;
            check_name(name)?;
            if matches!(name, b"." | b"..") {
                return Err("an entry has the name of the directory itself or of its parent".into());
            }
            at += 3 + name_len;
            let ftype = if has_type { byte(at)? } else { 0 };
            at += usize::from(has_type);
            let ino = number(bytes, at, ino_bytes).ok_or_else(cut)?;
            at += ino_bytes;
            let address = offset / ADDRESS_UNIT;
            if offset % ADDRESS_UNIT != 0 || address < least {
                return Err(format!("an entry has the offset {offset}"));
            }
            least = address + 1;
            entries.push(Entry { ino, name, ftype, address });
        }
        Ok(Self { parent, entries })
    }
}

impl ShortForm<'_> {
    /// Decodes the entries of a directory.
    pub(crate) fn of<'a, S: Source>(source: &S, dir: &Dinode, bytes: &'a [u8]) -> Result<ShortForm<'a>> {
        let sb = source.sb();
        ShortForm::decode(bytes, sb.has_ftype(), data_start(sb))
            .map_err(|what| source.corrupt(what, dir.whose()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory of the format's document: 4 files, without types.
    fn example() -> Vec<u8> {
        let mut bytes = vec![4, 0, 0, 0, 0, 128];
        for index in 0..4u8 {
            bytes.extend([15, 0, 0x30 + index * 0x20]);
            bytes.extend(format!("frame00000{index}.tst").as_bytes());
            bytes.extend([1, 0x80, 0, 0x81 + index]);
        }
        bytes
    }

    #[test]
    fn the_example_of_the_document_decodes() {
        let bytes = example();
        assert_eq!(bytes.len(), 94);
        let short = ShortForm::decode(&bytes, false, 16).unwrap();
        assert_eq!((short.parent, short.entries.len()), (128, 4));
        assert_eq!(short.entries[3].ino, 25_165_956);
        assert_eq!((short.entries[1].name, short.entries[1].address), (&b"frame000001.tst"[..], 0x50 / 8));
    }

    #[test]
    fn damage_is_found() {
        let damaged = |at: usize, value: u8| {
            let mut bytes = example();
            bytes[at] = value;
            ShortForm::decode(&bytes, false, 16).map(|short| short.entries.len())
        };
        assert_eq!(damaged(8, 0x31), Err("an entry has the offset 49".into()));
        assert_eq!(damaged(8, 0x28), Err("an entry has the offset 40".into()));
        assert_eq!(damaged(30, 0x30), Err("an entry has the offset 48".into()));
        assert!(damaged(0, 5).is_err() && damaged(1, 1).is_err() && damaged(6, 0).is_err());
        assert!(damaged(9, b'/').is_err());
        assert!((0..94).all(|len| ShortForm::decode(&example()[..len], false, 16).is_err()));
    }
}
