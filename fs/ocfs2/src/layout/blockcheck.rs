//! The checksum of a structure: a CRC-32, and a Hamming code that can correct one bit.
//!
//! `struct ocfs2_block_check` has `bc_crc32e` (32 bits) and `bc_ecc` (16 bits). Both are computed with the
//! structure's own 8 bytes as zeros. The CRC is that of IEEE 802.3 without the final inversion.
//!
//! The code gives each bit of the block, in the order of its bytes from the lowest bit on, the next number
//! from 1 on that is not a power of two. `bc_ecc` is the exclusive or of the numbers of all set bits. If one
//! bit is wrong, the stored and the computed value differ by its number.

use super::bytes::{u16_at, u32_at};
use crc::{CRC_32_JAMCRC, Crc, Table};
use std::sync::OnceLock;

const CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_JAMCRC);

/// Bytes of a `struct ocfs2_block_check`.
pub const CHECK_BYTES: usize = 8;

/// The offset of `i_check` in an inode, and so in the superblock.
pub const INODE_CHECK_AT: usize = 0x80;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The checksum is right.
    Good,
    /// One bit was wrong. These are the right bytes.
    Corrected(Vec<u8>),
    /// More is wrong than the code can correct.
    Bad,
}

fn crc(bytes: &[u8], check_at: usize) -> u32 {
    let mut digest = CRC.digest();
    digest.update(&bytes[..check_at]);
    digest.update(&[0; CHECK_BYTES]);
    digest.update(&bytes[check_at + CHECK_BYTES..]);
    digest.finalize()
}

/// The number of a bit in the code.
fn number_of(bit: usize) -> usize {
    let mut number = bit + 1;
    let mut power = 1;
    while power <= number {
        number += 1;
        power *= 2;
    }
    number
}

/// The bit of a number; `None`: it is a power of two, which no bit has.
fn bit_of(number: usize) -> Option<usize> {
    let powers = number.checked_ilog2()? as usize + 1;
    (!number.is_power_of_two()).then(|| number - 1 - powers)
}

/// Bits of the largest structure: a block, or a bucket of attributes.
const BITS_MAX: usize = 4096 * 8;

/// The numbers of the bits of the largest structure.
fn numbers() -> &'static [u16] {
    static NUMBERS: OnceLock<Vec<u16>> = OnceLock::new();
    NUMBERS.get_or_init(|| (0..BITS_MAX).map(|bit| number_of(bit) as u16).collect())
}

fn hamming(bytes: &[u8], check_at: usize) -> u16 {
    let numbers = numbers().chunks_exact(8);
    let data = bytes.iter().zip(numbers).enumerate();
    let data = data.filter(|(at, _)| !(check_at..check_at + CHECK_BYTES).contains(at));
    data.fold(0, |code, (_, (&byte, numbers))| {
        let set = numbers.iter().enumerate().filter(|(bit, _)| byte >> bit & 1 == 1);
        if byte == 0 { code } else { set.fold(code, |code, (_, number)| code ^ number) }
    })
}

/// Returns the check of a structure, as it must be at `check_at`.
pub fn compute(bytes: &[u8], check_at: usize) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check[..4].copy_from_slice(&crc(bytes, check_at).to_le_bytes());
    check[4..6].copy_from_slice(&hamming(bytes, check_at).to_le_bytes());
    check
}

/// Compares a structure with its check at `check_at`.
pub fn verify(bytes: &[u8], check_at: usize) -> Verdict {
    let stored = u32_at(bytes, check_at);
    if crc(bytes, check_at) == stored {
        return Verdict::Good;
    }
    let number = usize::from(u16_at(bytes, check_at + 4) ^ hamming(bytes, check_at));
    let Some(bit) = bit_of(number).filter(|bit| bit / 8 < bytes.len()) else { return Verdict::Bad };
    let mut corrected = bytes.to_vec();
    corrected[bit / 8] ^= 1 << (bit % 8);
    if crc(&corrected, check_at) == stored { Verdict::Corrected(corrected) } else { Verdict::Bad }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_the_numbers_that_are_no_powers_of_two() {
        let numbers: Vec<_> = (0..12).map(number_of).collect();
        assert_eq!(numbers, [3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17]);
        assert!((0..40_000).all(|bit| bit_of(number_of(bit)) == Some(bit)));
        assert_eq!((bit_of(0), bit_of(1), bit_of(64)), (None, None, None));
    }

    #[test]
    fn one_bit_is_corrected_and_more_are_not() {
        let mut block: Vec<u8> = (0..512u32).map(|at| (at * 7 + at / 3) as u8).collect();
        let check = compute(&block, 0x80);
        block[0x80..0x88].copy_from_slice(&check);
        assert_eq!(verify(&block, 0x80), Verdict::Good);
        for bit in [0, 77, 1023, 0x88 * 8, 4095] {
            let mut wrong = block.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify(&wrong, 0x80), Verdict::Corrected(block.clone()), "bit {bit}");
            wrong[(bit / 8) ^ 1] ^= 4;
            assert_eq!(verify(&wrong, 0x80), Verdict::Bad, "bit {bit}");
        }
        // A wrong checksum is no wrong bit of the block.
        block[0x80] ^= 1;
        assert_eq!(verify(&block, 0x80), Verdict::Bad);
    }
}
