//! Little-endian numbers. An offset past the end reads as 0: the caller gives structures their full length.

fn array<const LEN: usize>(bytes: &[u8], at: usize) -> [u8; LEN] {
    let found = at.checked_add(LEN).and_then(|end| bytes.get(at..end)?.try_into().ok());
    found.unwrap_or([0; LEN])
}

/// The byte at an offset.
pub fn u8_at(bytes: &[u8], at: usize) -> u8 {
    array::<1>(bytes, at)[0]
}

/// The 16-bit number at an offset.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// The 32-bit number at an offset.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// The 64-bit number at an offset.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Sets the 16-bit number at an offset, which is inside the structure.
pub fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Sets the 32-bit number at an offset, which is inside the structure.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Sets the 64-bit number at an offset, which is inside the structure.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Returns the text before the first zero byte.
pub fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_end_at_the_end() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!((u8_at(&bytes, 8), u16_at(&bytes, 7), u32_at(&bytes, 1)), (9, 0x0908, 0x0504_0302));
        assert_eq!((u64_at(&bytes, 1), u64_at(&bytes, 2)), (0x0908_0706_0504_0302, 0));
        assert_eq!((u16_at(&bytes, usize::MAX), u8_at(&bytes, 9)), (0, 0));
        assert_eq!((text(b"ab\0c\0"), text(b"abc")), (&b"ab"[..], &b"abc"[..]));
    }
}
