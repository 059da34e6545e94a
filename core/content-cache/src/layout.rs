//! The layout of the file.
//!
//! | part | bytes | contents |
//! |---|---|---|
//! | header | 4096 | magic, geometry, salt, checksum |
//! | entries | 64 for each slot | the description of the slot's block, and a checksum of both |
//! | data | [`BLOCK_BYTES`] for each slot | a block of a file |
//!
//! The key of the file and the block number select a set of [`WAYS`] slots that may hold a block. All
//! integers are little-endian.

use std::hash::Hasher;
use std::ops::Range;

use sha2::{Digest, Sha256};
use twox_hash::XxHash64;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 16 << 10;
/// Slots that may hold a block.
pub const WAYS: usize = 8;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 64;
/// Bytes of the entries of a set.
pub const SET_BYTES: usize = WAYS * ENTRY_BYTES;
/// The start of the header. Another layout must have another number.
const MAGIC: &[u8; 32] = b"ivers content cache, layout 1\n\0\0";
/// Bytes of a key in an entry.
const KEY_BYTES: usize = 24;

/// The key of a file: a digest of everything that distinguishes it from all other files, past and future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKey([u8; KEY_BYTES]);

impl FileKey {
    /// Computes the key from what distinguishes the file.
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&hasher.finalize()[..KEY_BYTES]);
        Self(key)
    }
}

/// The positions of entries and blocks in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The number of sets of [`WAYS`] slots.
    pub sets: u64,
    /// A random number of this file, so that what another cache left on the disk does not match.
    pub salt: u64,
}

impl Geometry {
    /// Returns the largest geometry that fits in this many bytes, with at least one set.
    pub fn of_size(bytes: u64, salt: u64) -> Self {
        let set = (SET_BYTES + WAYS * BLOCK_BYTES) as u64;
        Self { sets: (bytes.saturating_sub(2 * HEADER_BYTES as u64) / set).max(1), salt }
    }

    fn data_start(self) -> u64 {
        (HEADER_BYTES as u64 + self.sets * SET_BYTES as u64).next_multiple_of(HEADER_BYTES as u64)
    }

    /// Returns the size of the whole file in bytes.
    pub fn file_bytes(self) -> u64 {
        self.data_start() + self.sets * (WAYS * BLOCK_BYTES) as u64
    }

    /// Returns the set of a block.
    pub fn set(self, file: &FileKey, block: u64) -> u64 {
        let mut hasher = XxHash64::with_seed(self.salt);
        hasher.write(&file.0);
        hasher.write(&block.to_le_bytes());
        hasher.finish() % self.sets
    }

    /// Returns the position of the entries of a set.
    pub fn entries_at(self, set: u64) -> u64 {
        HEADER_BYTES as u64 + set * SET_BYTES as u64
    }

    /// Returns the position of the block of a slot.
    pub fn block_at(self, set: u64, way: usize) -> u64 {
        self.data_start() + (set * WAYS as u64 + way as u64) * BLOCK_BYTES as u64
    }

    /// Encodes the header.
    pub fn header(self) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend(self.sets.to_le_bytes());
        header.extend(self.salt.to_le_bytes());
        let checksum = XxHash64::oneshot(0, &header);
        header.extend(checksum.to_le_bytes());
        header.resize(HEADER_BYTES, 0);
        header
    }

    /// Decodes the header of a file with this size. `None` if it is damaged, or not of this layout or size.
    pub fn decode(header: &[u8], file_bytes: u64) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(*header.get(at..)?.first_chunk()?));
        let geometry = Self { sets: number(MAGIC.len())?, salt: number(MAGIC.len() + 8)? };
        let set = (SET_BYTES + WAYS * BLOCK_BYTES) as u64;
        let fits = geometry.sets > 0 && geometry.sets <= file_bytes / set;
        (fits && header == geometry.header() && file_bytes == geometry.file_bytes()).then_some(geometry)
    }
}

/// The description of the block in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The file.
    pub file: FileKey,
    /// The version of the file.
    pub version: u64,
    /// The number of the block.
    pub block: u64,
    /// When the block was stored: a later block has a larger number. 0: the slot is empty.
    pub stored: u64,
    /// Bytes of the block. If they are fewer than [`BLOCK_BYTES`], the file ends there.
    pub len: u32,
    /// See [`Entry::checksum_of`].
    pub checksum: u64,
}

impl Entry {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let mut put = |range: Range<usize>, from: &[u8]| bytes[range].copy_from_slice(from);
        put(0..24, &self.file.0);
        put(24..32, &self.version.to_le_bytes());
        put(32..40, &self.block.to_le_bytes());
        put(40..48, &self.stored.to_le_bytes());
        put(48..52, &self.len.to_le_bytes());
        put(56..64, &self.checksum.to_le_bytes());
        bytes
    }

    /// Decodes an entry, which may be damaged.
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut file = [0; KEY_BYTES];
        file.copy_from_slice(&bytes[..24]);
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        Self {
            file: FileKey(file),
            version: number(24),
            block: number(32),
            stored: number(40),
            len: number(48) as u32,
            checksum: number(56),
        }
    }

    /// Returns the checksum over the entry and the `bytes` of its block.
    pub fn checksum_of(&self, salt: u64, bytes: &[u8]) -> u64 {
        let mut hasher = XxHash64::with_seed(salt);
        hasher.write(&Self { checksum: 0, ..*self }.encode());
        hasher.write(bytes);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_headers_round_trip() {
        let file = FileKey::new(&[b"a", b"bc"]);
        assert!(file != FileKey::new(&[b"ab", b"c"]) && file != FileKey::new(&[b"a", b"bc", b""]));
        let entry = Entry { file, version: u64::MAX, block: 7, stored: 9, len: 16_384, checksum: 11 };
        assert_eq!(Entry::decode(&entry.encode()), entry);
        let geometry = Geometry::of_size(1 << 20, 77);
        let bytes = geometry.file_bytes();
        assert!(bytes <= 1 << 20 && geometry.sets == 7, "{geometry:?}");
        assert_eq!(Geometry::decode(&geometry.header(), bytes), Some(geometry));
        assert_eq!(Geometry::decode(&geometry.header(), bytes + 1), None);
        for at in 0..HEADER_BYTES {
            let mut header = geometry.header();
            header[at] ^= 1;
            assert_eq!(Geometry::decode(&header, bytes), None, "byte {at}");
        }
        assert_eq!(Geometry::decode(&geometry.header()[..50], bytes), None);
        assert_eq!(Geometry::decode(&Geometry { sets: u64::MAX, salt: 0 }.header(), bytes), None);
    }

    #[test]
    fn slots_do_not_overlap() {
        let geometry = Geometry::of_size(10 << 20, 1);
        let last = geometry.sets - 1;
        assert!(geometry.entries_at(last) + SET_BYTES as u64 <= geometry.block_at(0, 0));
        assert_eq!(geometry.block_at(last, WAYS - 1) + BLOCK_BYTES as u64, geometry.file_bytes());
        assert_eq!(geometry.block_at(0, 0) % HEADER_BYTES as u64, 0);
    }
}
