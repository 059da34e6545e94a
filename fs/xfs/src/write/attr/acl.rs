//! Access control lists: from the format of Linux to that of IRIX, which is stored.

/// Bytes of an entry of Linux.
const LINUX_ENTRY_BYTES: usize = 8;
const LINUX_VERSION: [u8; 4] = 2u32.to_le_bytes();

/// Converts a list as users see it. `None` if it is invalid.
pub(super) fn to_disk(shown: &[u8]) -> Option<Vec<u8>> {
    let entries = shown.strip_prefix(&LINUX_VERSION)?;
    if !entries.len().is_multiple_of(LINUX_ENTRY_BYTES) {
        return None;
    }
    let mut stored = ((entries.len() / LINUX_ENTRY_BYTES) as u32).to_be_bytes().to_vec();
    for entry in entries.chunks_exact(LINUX_ENTRY_BYTES) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let perm = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        // Only named users and groups have an id.
        let id = match tag {
            0x02 | 0x08 => id,
            0x01 | 0x04 | 0x10 | 0x20 => 0,
            _ => return None,
        };
        stored.extend(u32::from(tag).to_be_bytes());
        stored.extend(id.to_be_bytes());
        stored.extend(perm.to_be_bytes());
        stored.extend([0, 0]);
    }
    Some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::is_access_list;

    #[test]
    fn lists_convert() {
        let mut shown = vec![2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255];
        shown.extend([2, 0, 4, 0, 0xE8, 3, 0, 0]);
        let stored = to_disk(&shown).unwrap();
        assert_eq!(stored[..16], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 6, 0, 0]);
        assert_eq!(stored[16..], [0, 0, 0, 2, 0, 0, 3, 0xE8, 0, 4, 0, 0]);
        assert!(is_access_list(&stored));
        assert_eq!(to_disk(&shown[..19]), None);
        shown[4] = 3;
        assert_eq!(to_disk(&shown), None);
    }
}
