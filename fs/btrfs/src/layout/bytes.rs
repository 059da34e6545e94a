//! Reading of structures at an offset.

use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Reads a structure at an offset, if the bytes reach that far.
pub(crate) fn read<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8], at: usize) -> Option<T> {
    Some(T::read_from_prefix(bytes.get(at..)?).ok()?.0)
}

/// Returns `len` bytes from `at` on, if there are as many.
pub(crate) fn slice(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(len)?)
}
