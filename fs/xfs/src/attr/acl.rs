//! Access control lists: from the format of IRIX, which is stored, to that of Linux.

use crate::layout::bytes::number;

const ENTRY_BYTES: usize = 12;
/// The version of Linux's encoding.
const LINUX_VERSION: u32 = 2;
/// The most entries, if a list fits in a value.
const MAX_ENTRIES: u64 = 5461;

/// Converts a stored list: a count, then tag, id, permissions and padding of each entry. `None` if it is
/// invalid.
pub(super) fn from_disk(stored: &[u8]) -> Option<Vec<u8>> {
    let count = number(stored, 0, 4).filter(|count| *count <= MAX_ENTRIES)? as usize;
    let entries = stored.get(4..4 + count * ENTRY_BYTES)?;
    let mut out = LINUX_VERSION.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let (tag, id, perm) = (number(entry, 0, 4)?, number(entry, 4, 4)? as u32, number(entry, 8, 2)?);
        // Named users and groups have an id. The tags are the same in both encodings.
        let id = match tag {
            0x02 | 0x08 => id,
            0x01 | 0x04 | 0x10 | 0x20 => u32::MAX,
            _ => return None,
        };
        out.extend((tag as u16).to_le_bytes());
        out.extend((perm as u16).to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_convert() {
        let mut stored = vec![0, 0, 0, 2];
        stored.extend([0, 0, 0, 1, 9, 9, 9, 9, 0, 6, 0, 0]);
        stored.extend([0, 0, 0, 2, 0, 0, 3, 0xE8, 0, 4, 0, 0]);
        let shown = from_disk(&stored).unwrap();
        assert_eq!(shown[..4], [2, 0, 0, 0]);
        assert_eq!(shown[4..12], [1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(shown[12..], [2, 0, 4, 0, 0xE8, 3, 0, 0]);
        assert_eq!(from_disk(&stored[..20]), None);
        stored[7] = 3;
        assert_eq!(from_disk(&stored), None);
    }
}
