//! Where each kind of structure of version 5 has its checksum and its own location, and checks of both.

use super::bytes::{MAGIC_AGF, MAGIC_AGFL, MAGIC_AGI, MAGIC_SUPERBLOCK, number};
use super::raw::*;
use std::mem::offset_of;

/// Offsets of the fields with which a structure describes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfDescription {
    crc: usize,
    lsn: usize,
    uuid: usize,
    /// Its own place, in units of 512 bytes; none in structures whose place is fixed.
    blkno: Option<usize>,
    /// The inode or allocation group that it belongs to, and the bytes of that number.
    owner: Option<(usize, usize)>,
}

macro_rules! described {
    ($name:ident, $raw:ident, $crc:ident, $lsn:ident, $uuid:ident) => {
        pub(crate) const $name: SelfDescription = SelfDescription {
            crc: offset_of!($raw, $crc),
            lsn: offset_of!($raw, $lsn),
            uuid: offset_of!($raw, $uuid),
            blkno: None,
            owner: None,
        };
    };
    (
        $name:ident, $raw:ident, $crc:ident, $lsn:ident, $uuid:ident, $blkno:ident, $owner:ident $bytes:expr
    ) => {
        pub(crate) const $name: SelfDescription = SelfDescription {
            crc: offset_of!($raw, $crc),
            lsn: offset_of!($raw, $lsn),
            uuid: offset_of!($raw, $uuid),
            blkno: Some(offset_of!($raw, $blkno)),
            owner: Some((offset_of!($raw, $owner), $bytes)),
        };
    };
}

described!(SUPERBLOCK, RawSuperblock, sb_crc, sb_lsn, sb_uuid);
described!(AGF, RawAgf, agf_crc, agf_lsn, agf_uuid);
described!(AGI, RawAgi, agi_crc, agi_lsn, agi_uuid);
described!(AGFL, RawAgfl, agfl_crc, agfl_lsn, agfl_uuid);
described!(SHORT_BTREE, RawShortBlock, bb_crc, bb_lsn, bb_uuid, bb_blkno, bb_owner 4);
described!(LONG_BTREE, RawLongBlock, bb_crc, bb_lsn, bb_uuid, bb_blkno, bb_owner 8);
described!(DIR_DATA, RawDirDataHeader, crc, lsn, uuid, blkno, owner 8);
described!(DA_BLOCK, RawDaHeader, crc, lsn, uuid, blkno, owner 8);
described!(REMOTE, RawRemoteHeader, rm_crc, rm_lsn, rm_uuid, rm_blkno, rm_owner 8);

/// The magic of a link's target.
pub(crate) const LINK_TARGET_MAGIC: &[u8; 4] = b"XSLM";
/// The magic of a block of an attribute's value, and the LSN that it has.
pub(crate) const REMOTE_VALUE_MAGIC: &[u8; 4] = b"XARM";
pub(crate) const NO_LSN: u64 = u64::MAX;

/// What a structure must say of itself.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// `sb_meta_uuid`, or `sb_uuid` without that feature.
    pub uuid: [u8; 16],
    /// Its place in units of 512 bytes.
    pub blkno: u64,
    /// Its owner.
    pub owner: u64,
}

/// Stores the checksum of an inode of version 3.
pub fn seal_inode(bytes: &mut [u8]) {
    let at = offset_of!(RawDinode, di_crc);
    let sum = checksum(bytes, at);
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

/// Returns whether the checksum of an inode of version 3 is right.
pub fn has_valid_inode_crc(bytes: &[u8]) -> bool {
    let at = offset_of!(RawDinode, di_crc);
    bytes.get(at..at + 4).is_some_and(|stored| stored == checksum(bytes, at).to_le_bytes())
}

/// Returns whether an inode of version 3 in memory is undamaged. Checksum 0 means changed and not yet
/// written. So an inode that is damaged on the device and has a stored checksum of 0 is not noticed here.
pub(crate) fn is_whole_inode(bytes: &[u8]) -> bool {
    let at = offset_of!(RawDinode, di_crc);
    bytes.get(at..at + 4) == Some(&[0; 4]) || has_valid_inode_crc(bytes)
}

/// CRC-32C of a structure; the field at `crc` counts as zeros.
pub fn checksum(bytes: &[u8], crc: usize) -> u32 {
    let (head, rest) = bytes.split_at(crc.min(bytes.len()));
    let sum = crc32c::crc32c_append(crc32c::crc32c(head), &[0; 4]);
    crc32c::crc32c_append(sum, rest.get(4..).unwrap_or_default())
}

impl SelfDescription {
    /// Returns whether the checksum is right.
    pub fn has_valid_crc(&self, bytes: &[u8]) -> bool {
        bytes
            .get(self.crc..self.crc + 4)
            .is_some_and(|stored| stored == checksum(bytes, self.crc).to_le_bytes())
    }

    /// Returns whether it belongs to a filesystem.
    pub fn has_uuid(&self, bytes: &[u8], uuid: &[u8; 16]) -> bool {
        bytes.get(self.uuid..self.uuid + 16) == Some(&uuid[..])
    }

    /// Checks everything but the checksum.
    pub fn check_place(&self, bytes: &[u8], expected: &Expected) -> Result<(), String> {
        if !self.has_uuid(bytes, &expected.uuid) {
            return Err("has another UUID".into());
        }
        let blkno = self.blkno.and_then(|at| number(bytes, at, 8));
        if let Some(blkno) = blkno.filter(|blkno| *blkno != expected.blkno) {
            return Err(format!("names sector {blkno} as its place instead of {}", expected.blkno));
        }
        let owner = self.owner.and_then(|(at, len)| number(bytes, at, len));
        match owner.filter(|owner| *owner != expected.owner) {
            Some(owner) => Err(format!("names {owner} as its owner instead of {}", expected.owner)),
            None => Ok(()),
        }
    }

    /// Stores what a structure says of itself, but for LSN and checksum.
    pub fn describe(&self, bytes: &mut [u8], expected: &Expected) {
        bytes[self.uuid..self.uuid + 16].copy_from_slice(&expected.uuid);
        if let Some(at) = self.blkno {
            bytes[at..at + 8].copy_from_slice(&expected.blkno.to_be_bytes());
        }
        if let Some((at, len)) = self.owner {
            bytes[at..at + len].copy_from_slice(&expected.owner.to_be_bytes()[8 - len..]);
        }
    }

    /// The LSN of the last change that is in place.
    pub fn lsn(&self, bytes: &[u8]) -> Option<u64> {
        number(bytes, self.lsn, 8)
    }

    /// Stores an LSN and the checksum.
    pub fn seal(&self, bytes: &mut [u8], lsn: u64) {
        // Linux does not log values of attributes, and refuses to write one with an LSN: in its recovery too.
        let lsn = if bytes.starts_with(REMOTE_VALUE_MAGIC) { NO_LSN } else { lsn };
        if let Some(place) = bytes.get_mut(self.lsn..self.lsn + 8) {
            place.copy_from_slice(&lsn.to_be_bytes());
        }
        let sum = checksum(bytes, self.crc);
        if let Some(place) = bytes.get_mut(self.crc..self.crc + 4) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Recognises a structure of version 5 by its magic. `None` for inodes, quota records and everything
    /// that has no checksum.
    pub fn of(bytes: &[u8]) -> Option<&'static Self> {
        Some(match number(bytes, 0, 4)? as u32 {
            MAGIC_SUPERBLOCK => &SUPERBLOCK,
            MAGIC_AGF => &AGF,
            MAGIC_AGI => &AGI,
            MAGIC_AGFL => &AGFL,
            magic => match &magic.to_be_bytes() {
                // Free space by block and by size, inodes, free inodes, reverse map, reference counts.
                b"AB3B" | b"AB3C" | b"IAB3" | b"FIB3" | b"RMB3" | b"R3FC" => &SHORT_BTREE,
                b"BMA3" => &LONG_BTREE,
                b"XDB3" | b"XDD3" | b"XDF3" => &DIR_DATA,
                LINK_TARGET_MAGIC | REMOTE_VALUE_MAGIC => &REMOTE,
                _ => match number(bytes, 8, 2)? {
                    0x3df1 | 0x3dff | 0x3ebe | 0x3bee => &DA_BLOCK,
                    _ => return None,
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_structures_are_valid_and_flipped_bits_are_found() {
        let mut block = vec![7u8; 1024];
        block[..4].copy_from_slice(b"BMA3");
        let described = *SelfDescription::of(&block).unwrap();
        assert_eq!(described, LONG_BTREE);
        described.seal(&mut block, 0x1_0000_0002);
        assert!(described.has_valid_crc(&block) && described.lsn(&block) == Some(0x1_0000_0002));
        for bit in [0, 100 * 8, 1023 * 8 + 7] {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!described.has_valid_crc(&block), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        let expected = Expected { uuid: [7; 16], blkno: 0x0707_0707_0707_0707, owner: 0x0707_0707_0707_0707 };
        assert_eq!(described.check_place(&block, &expected), Ok(()));
        assert!(
            described.check_place(&block, &Expected { owner: 1, ..expected }).unwrap_err().contains("owner")
        );
        assert!(
            described.check_place(&block, &Expected { blkno: 1, ..expected }).unwrap_err().contains("place")
        );
        assert!(described.check_place(&block, &Expected { uuid: [0; 16], ..expected }).is_err());
        assert!(!LONG_BTREE.has_valid_crc(&block[..60]), "a short structure");
    }
}
