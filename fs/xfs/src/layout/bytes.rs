//! Magics, and reading of structures and numbers at an offset.

use zerocopy::{FromBytes, Immutable, KnownLayout};

pub(crate) const MAGIC_SUPERBLOCK: u32 = 0x5846_5342;
pub(crate) const MAGIC_AGF: u32 = 0x5841_4746;
pub(crate) const MAGIC_AGI: u32 = 0x5841_4749;
pub(crate) const MAGIC_AGFL: u32 = 0x5841_464c;
pub(crate) const MAGIC_INODE: u16 = 0x494e;

/// No block of a group.
pub(crate) const NULL_AGBLOCK: u32 = u32::MAX;
/// No inode, in the lists of unlinked inodes.
pub(crate) const NULL_AGINO: u32 = u32::MAX;

/// Reads a structure at an offset, if the bytes reach that far.
pub(crate) fn read<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8], at: usize) -> Option<T> {
    Some(T::read_from_prefix(bytes.get(at..)?).ok()?.0)
}

/// Reads some bytes at an offset, such as those of a little-endian number.
#[inline]
pub(crate) fn array<const LEN: usize>(bytes: &[u8], at: usize) -> Option<[u8; LEN]> {
    bytes.get(at..at.checked_add(LEN)?)?.try_into().ok()
}

/// Reads a big-endian number of up to 8 bytes at an offset.
#[inline]
pub(crate) fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    // The usual lengths are one load each.
    Some(match len {
        2 => u16::from_be_bytes(array(bytes, at)?).into(),
        4 => u32::from_be_bytes(array(bytes, at)?).into(),
        8 => u64::from_be_bytes(array(bytes, at)?),
        _ => {
            let end = at.checked_add(len)?;
            bytes.get(at..end)?.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
        }
    })
}
