//! Editing of directories in the inode.

use crate::dir::ShortForm;
use crate::layout::directory::{ADDRESS_UNIT, data_start, entry_bytes};
use crate::layout::superblock::Superblock;
use crate::write::hashes::ENTRY_BYTES;

/// Encodes a directory. Inode numbers have 8 bytes each if one of them needs that.
pub(super) fn encode(short: &ShortForm<'_>, has_type: bool) -> Vec<u8> {
    let is_large = |ino: u64| ino > u64::from(u32::MAX);
    let large = usize::from(is_large(short.parent))
        + short.entries.iter().filter(|entry| is_large(entry.ino)).count();
    let mut bytes = vec![short.entries.len() as u8, large as u8];
    let put_ino = |bytes: &mut Vec<u8>, ino: u64| {
        let all = ino.to_be_bytes();
        bytes.extend(if large > 0 { &all[..] } else { &all[4..] });
    };
    put_ino(&mut bytes, short.parent);
    for entry in &short.entries {
        bytes.push(entry.name.len() as u8);
        bytes.extend(((entry.address * ADDRESS_UNIT) as u16).to_be_bytes());
        bytes.extend(entry.name);
        if has_type {
            bytes.push(entry.ftype);
        }
        put_ino(&mut bytes, entry.ino);
    }
    bytes
}

/// The address that a new entry gets, and its place among the entries. `None` if the entries would not fit in
/// a block.
pub(super) fn place_for(sb: &Superblock, short: &ShortForm<'_>, name_len: usize) -> Option<(u64, usize)> {
    let need = entry_bytes(sb, name_len) as u64;
    let mut at = data_start(sb) as u64 + 2 * entry_bytes(sb, 1) as u64;
    let mut found = None;
    for (index, entry) in short.entries.iter().enumerate() {
        let start = entry.address * ADDRESS_UNIT;
        if found.is_none() && start >= at + need {
            found = Some((at, index));
        }
        at = start + entry_bytes(sb, entry.name.len()) as u64;
    }
    let end = if found.is_some() { at } else { at + need };
    // Each entry, `.` and `..` have a hash, and the block has a tail of that size.
    let hashes = (short.entries.len() as u64 + 4) * ENTRY_BYTES as u64;
    let (at, index) = found.unwrap_or((at, short.entries.len()));
    (end + hashes <= u64::from(sb.dir_block_size)).then_some((at / ADDRESS_UNIT, index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::Entry;
    use crate::write::tests::samples::superblock;

    #[test]
    fn directories_decode_as_they_were_encoded() {
        let sb = superblock();
        let mut short = ShortForm { parent: 128, entries: Vec::new() };
        let names: Vec<String> = (0..9).map(|nth| format!("name-{nth}")).collect();
        for (nth, name) in names.iter().enumerate() {
            let (address, index) = place_for(&sb, &short, name.len()).unwrap();
            assert_eq!(index, nth);
            short.entries.push(Entry { ino: 200 + nth as u64, name: name.as_bytes(), ftype: 1, address });
        }
        // `.` and `..` take 16 bytes each.
        assert_eq!(short.entries[0].address * ADDRESS_UNIT, 64 + 32);
        for large in [false, true] {
            if large {
                short.entries[3].ino = 1 << 33;
            }
            let bytes = encode(&short, true);
            let again = ShortForm::decode(&bytes, true, 64).unwrap();
            assert_eq!((again.parent, &again.entries), (128, &short.entries));
            assert_eq!(bytes.len(), 2 + 9 * 10 + if large { 10 * 8 } else { 10 * 4 });
        }
        let removed = short.entries.remove(4);
        assert_eq!(place_for(&sb, &short, 6), Some((removed.address, 4)));
        assert_eq!(place_for(&sb, &short, 60).unwrap().1, 8);
    }
}
