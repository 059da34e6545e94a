//! Little-endian numbers of an image. The tests of OCFS2 use this file, too.

/// Reads a little-endian number of some bytes.
pub fn get(image: &[u8], at: usize, len: usize) -> u64 {
    image[at..at + len].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Adds to a little-endian number of some bytes.
pub fn add(image: &mut [u8], at: usize, len: usize, more: i64) {
    set(image, at, len, get(image, at, len).wrapping_add_signed(more));
}

pub fn set(image: &mut [u8], at: usize, len: usize, value: u64) {
    image[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}
