//! The four checksums.

use blake2::Blake2b;
use sha2::digest::consts::U32 as Bytes32;
use sha2::{Digest, Sha256};

/// Bytes before what the checksum of a superblock or of a block of a tree covers: its place.
pub(crate) const CSUM_PLACE: usize = 32;

/// A checksum, padded with zeros.
pub(crate) type Sum = [u8; CSUM_PLACE];

/// The algorithm of all checksums of a filesystem (`csum_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumKind {
    /// CRC-32C, 4 bytes.
    Crc32c,
    /// XXH64 with seed 0, 8 bytes.
    XxHash64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b with 32 bytes.
    Blake2b,
}

impl ChecksumKind {
    pub(crate) fn from_disk(csum_type: u16) -> Option<Self> {
        Some(match csum_type {
            0 => Self::Crc32c,
            1 => Self::XxHash64,
            2 => Self::Sha256,
            3 => Self::Blake2b,
            _ => return None,
        })
    }

    /// All checksums.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::XxHash64, Self::Sha256, Self::Blake2b];

    /// Returns its number in the superblock.
    pub(crate) fn to_disk(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::XxHash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// The name that `mkfs.btrfs --csum` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// Bytes of a checksum.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// The checksum of some bytes.
    pub(crate) fn of(self, bytes: &[u8]) -> Sum {
        let mut sum = Sum::default();
        match self {
            Self::Crc32c => sum[..4].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes()),
            Self::XxHash64 => {
                sum[..8].copy_from_slice(&twox_hash::XxHash64::oneshot(0, bytes).to_le_bytes());
            }
            Self::Sha256 => sum.copy_from_slice(&Sha256::digest(bytes)),
            Self::Blake2b => sum.copy_from_slice(&Blake2b::<Bytes32>::digest(bytes)),
        }
        sum
    }

    /// Stores the checksum of what follows the checksum's place.
    pub(crate) fn seal(self, block: &mut [u8]) {
        let sum = self.of(&block[CSUM_PLACE..]);
        block[..CSUM_PLACE].copy_from_slice(&sum);
    }

    /// Whether a block starts with the checksum of what follows the checksum's place.
    pub(crate) fn is_valid(self, block: &[u8]) -> bool {
        let (Some(stored), Some(rest)) = (block.get(..self.size()), block.get(CSUM_PLACE..)) else {
            return false;
        };
        stored == &self.of(rest)[..self.size()]
    }
}

/// CRC-32C without its usual inversions, from a seed on.
pub(crate) fn raw_crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The hash of a name, by which directories and attributes find it: CRC-32C without its usual inversions,
/// with the seed -2.
pub(crate) fn name_hash(name: &[u8]) -> u64 {
    const SEED: u32 = !1;
    u64::from(raw_crc(SEED, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        let start = |kind: ChecksumKind| kind.of(b"abc")[..4].to_vec();
        assert_eq!(ChecksumKind::Crc32c.of(b"123456789")[..4], 0xE306_9283u32.to_le_bytes());
        assert_eq!(start(ChecksumKind::XxHash64), 0x44BC_2CF5_AD77_0999u64.to_le_bytes()[..4]);
        assert_eq!(start(ChecksumKind::Sha256), [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(start(ChecksumKind::Blake2b), [0xbd, 0xdd, 0x81, 0x3c]);
    }

    #[test]
    fn names_hash_as_mkfs_does() {
        // The entry of the default subvolume, in every image.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
