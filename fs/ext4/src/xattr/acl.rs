//! POSIX ACLs: the short form on the device (version 1: ids only where needed) and the form of the system
//! calls (version 2: always an id).

use crate::dir::linear::{le16, le32};

const DISK_VERSION: u32 = 1;
const CALL_VERSION: u32 = 2;
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;
/// The id of an entry without one.
const NO_ID: u32 = u32::MAX;

fn is_tag(tag: u16) -> bool {
    matches!(tag, 0x01 | USER | 0x04 | GROUP | 0x10 | 0x20)
}

/// Converts the on-disk form to that of the system calls.
pub(crate) fn from_disk(value: &[u8]) -> Option<Vec<u8>> {
    if value.len() < 4 || le32(value, 0) != DISK_VERSION {
        return None;
    }
    let mut out = CALL_VERSION.to_le_bytes().to_vec();
    let mut at = 4;
    while at < value.len() {
        let head = value.get(at..at + 4)?;
        let tag = le16(head, 0);
        if !is_tag(tag) {
            return None;
        }
        out.extend_from_slice(head);
        at += 4;
        if matches!(tag, USER | GROUP) {
            out.extend_from_slice(value.get(at..at + 4)?);
            at += 4;
        } else {
            out.extend_from_slice(&NO_ID.to_le_bytes());
        }
    }
    Some(out)
}

/// Converts the form of the system calls to the on-disk form.
pub(crate) fn to_disk(value: &[u8]) -> Option<Vec<u8>> {
    if value.len() < 4 || !(value.len() - 4).is_multiple_of(8) || le32(value, 0) != CALL_VERSION {
        return None;
    }
    let mut out = DISK_VERSION.to_le_bytes().to_vec();
    for entry in value[4..].chunks(8) {
        let tag = le16(entry, 0);
        if !is_tag(tag) {
            return None;
        }
        out.extend_from_slice(&entry[..4]);
        if matches!(tag, USER | GROUP) {
            out.extend_from_slice(&entry[4..]);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acl_forms_round_trip() {
        let mut call = CALL_VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in
            [(1u16, 6u16, NO_ID), (USER, 4, 1000), (4, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)]
        {
            call.extend_from_slice(&tag.to_le_bytes());
            call.extend_from_slice(&perm.to_le_bytes());
            call.extend_from_slice(&id.to_le_bytes());
        }
        let disk = to_disk(&call).unwrap();
        assert_eq!(disk.len(), 4 + 4 * 4 + 8);
        assert_eq!(from_disk(&disk).unwrap(), call);
        assert_eq!(to_disk(&call[..call.len() - 1]), None);
        assert_eq!(from_disk(&disk[..disk.len() - 1]), None);
    }
}
