//! Block numbers, file blocks and byte offsets, as types that do not mix.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Number of a block on a device, in blocks of the format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNo(pub u64);

/// Number of a block within a file, counted from the file's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileBlock(pub u64);

/// Position on a device in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteOffset(pub u64);

/// Implements moving an address by a count, and the distance of two.
macro_rules! arithmetic {
    ($($address:ident)*) => {$(
        impl $address {
            /// The `count` addresses from this one on.
            pub fn run(self, count: u64) -> impl Iterator<Item = Self> + Clone {
                (self.0..self.0 + count).map(Self)
            }

            /// The address `count` further, or `None` if it exceeds 64 bits.
            pub const fn checked_add(self, count: u64) -> Option<Self> {
                match self.0.checked_add(count) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The address `count` further, or the last one of 64 bits.
            pub const fn saturating_add(self, count: u64) -> Self {
                Self(self.0.saturating_add(count))
            }
        }

        impl Add<u64> for $address {
            type Output = Self;

            fn add(self, count: u64) -> Self {
                Self(self.0 + count)
            }
        }

        impl AddAssign<u64> for $address {
            fn add_assign(&mut self, count: u64) {
                self.0 += count;
            }
        }

        impl Sub for $address {
            type Output = u64;

            fn sub(self, earlier: Self) -> u64 {
                self.0 - earlier.0
            }
        }

        impl fmt::Display for $address {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

arithmetic!(BlockNo FileBlock ByteOffset);

impl BlockNo {
    /// The byte offset of the block's start. A product of more than 64 bits saturates: no device contains
    /// that offset.
    pub const fn offset(self, block_size: u32) -> ByteOffset {
        ByteOffset(self.0.saturating_mul(block_size as u64))
    }
}

impl ByteOffset {
    /// The block that contains this byte.
    pub const fn block(self, block_size: u32) -> BlockNo {
        BlockNo(self.0 / block_size as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_offsets_convert() {
        assert_eq!(BlockNo(3).offset(4096), ByteOffset(12288));
        assert_eq!(BlockNo(u64::MAX).offset(512), ByteOffset(u64::MAX));
        assert_eq!(ByteOffset(12287).block(4096), BlockNo(2));
        assert_eq!(BlockNo(7).run(3).collect::<Vec<_>>(), [BlockNo(7), BlockNo(8), BlockNo(9)]);
        assert_eq!((BlockNo(9) - BlockNo(7), BlockNo(u64::MAX).checked_add(1)), (2, None));
        assert_eq!(BlockNo(u64::MAX).saturating_add(9).to_string(), u64::MAX.to_string());
    }
}
