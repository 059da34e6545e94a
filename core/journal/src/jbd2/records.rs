//! The records of the log: headers, tags, tails and checksums.

use crc::{CRC_32_MPEG_2, Crc, Table};

use ivers_block::BlockNo;

use super::superblock::{
    COMPAT_CHECKSUM, INCOMPAT_64BIT, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3, JournalSuperblock,
};

/// `h_magic`.
pub(super) const JBD2_MAGIC: u32 = 0xC03B_3998;
/// Length of `journal_header_t` in bytes.
pub(super) const HEADER_BYTES: usize = 12;
pub(super) const BLOCK_DESCRIPTOR: u32 = 1;
pub(super) const BLOCK_COMMIT: u32 = 2;
pub(super) const BLOCK_SUPERBLOCK_V1: u32 = 3;
pub(super) const BLOCK_SUPERBLOCK_V2: u32 = 4;
pub(super) const BLOCK_REVOKE: u32 = 5;

pub(super) const TAG_ESCAPED: u32 = 1;
pub(super) const TAG_SAME_UUID: u32 = 2;
pub(super) const TAG_LAST: u32 = 8;
const UUID_BYTES: usize = 16;

/// Header and `r_count` of a revocation block. `r_count` is the length from the start of the block.
pub(super) const REVOKE_HEADER_BYTES: usize = 16;
/// `h_chksum_type`, `h_chksum_size`, `h_chksum[0]`, `h_commit_sec`, `h_commit_nsec` of a commit block.
pub(super) const COMMIT_CHKSUM_TYPE: usize = 0xC;
pub(super) const COMMIT_CHKSUM_SIZE: usize = 0xD;
pub(super) const COMMIT_CHKSUM: usize = 0x10;
pub(super) const COMMIT_SEC: usize = 0x30;
pub(super) const COMMIT_NSEC: usize = 0x38;
/// `h_chksum_type` of crc32.
pub(super) const COMMIT_CRC32: u8 = 1;

/// The checksum of `COMPAT_CHECKSUM`: big-endian crc32 that starts with all ones and is not inverted at the
/// end.
static CRC32_BE: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_MPEG_2);

/// Continues a crc32c as the kernel does: the state is not inverted before or after.
pub(super) fn crc32c(state: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, bytes)
}

/// Continues the checksum of `COMPAT_CHECKSUM`, which starts with all ones.
pub(super) fn crc32_be(state: u32, bytes: &[u8]) -> u32 {
    // The crate takes the initial state with its bits reversed, as for algorithms that reflect their input.
    let mut digest = CRC32_BE.digest_with_initial(state);
    digest.update(bytes);
    digest.finalize()
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Returns `a >= b` for sequence numbers, which wrap around.
pub(super) fn sequence_at_least(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() >= 0
}

/// The layout of log blocks, which depends on the features.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub block_size: usize,
    pub is_64bit: bool,
    pub has_csum_v2: bool,
    pub has_csum_v3: bool,
    /// `COMPAT_CHECKSUM`.
    pub has_csum_v1: bool,
    /// The crc32c of the UUID, with which the other checksums start.
    pub seed: u32,
    pub uuid: [u8; 16],
}

/// An entry of a descriptor block: a logged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub block: BlockNo,
    pub flags: u32,
    /// 32 bits in version 3, 16 bits in version 2.
    pub checksum: u32,
}

impl Layout {
    pub fn of(sb: &JournalSuperblock) -> Self {
        let has = |bit| sb.incompat() & bit != 0;
        Self {
            block_size: sb.block_size() as usize,
            is_64bit: has(INCOMPAT_64BIT),
            has_csum_v2: has(INCOMPAT_CSUM_V2),
            has_csum_v3: has(INCOMPAT_CSUM_V3),
            has_csum_v1: sb.compat() & COMPAT_CHECKSUM != 0,
            seed: crc32c(!0, &sb.uuid()),
            uuid: sb.uuid(),
        }
    }

    pub fn has_tail(&self) -> bool {
        self.has_csum_v2 || self.has_csum_v3
    }

    fn tail_bytes(&self) -> usize {
        if self.has_tail() { 4 } else { 0 }
    }

    /// Length of a tag in bytes, without the UUID. The document gives 16 for version 3, and 8 or 12
    /// otherwise. In practice a tag of version 2 is two bytes longer; version 3 exists because of this
    /// mistake.
    pub fn tag_bytes(&self) -> usize {
        if self.has_csum_v3 {
            return 16;
        }
        8 + if self.is_64bit { 4 } else { 0 } + if self.has_csum_v2 { 2 } else { 0 }
    }

    pub fn tags_per_descriptor(&self) -> usize {
        (self.block_size - HEADER_BYTES - UUID_BYTES - self.tail_bytes()) / self.tag_bytes()
    }

    fn revoke_bytes(&self) -> usize {
        if self.is_64bit { 8 } else { 4 }
    }

    pub fn revokes_per_block(&self) -> usize {
        (self.block_size - REVOKE_HEADER_BYTES - self.tail_bytes()) / self.revoke_bytes()
    }

    /// Parses the tags of a descriptor block. Stops at the end of the block and never fails.
    pub fn parse_tags(&self, block: &[u8]) -> Vec<Tag> {
        let end = self.block_size - self.tail_bytes();
        let mut tags = Vec::new();
        let mut at = HEADER_BYTES;
        while at + self.tag_bytes() <= end {
            let low = u64::from(be32(block, at));
            let (flags, checksum, high) = if self.has_csum_v3 {
                (be32(block, at + 4), be32(block, at + 12), be32(block, at + 8))
            } else {
                let high = if self.is_64bit { be32(block, at + 8) } else { 0 };
                let word = be32(block, at + 4);
                (word & 0xFFFF, word >> 16, high)
            };
            let high = if self.is_64bit { u64::from(high) << 32 } else { 0 };
            tags.push(Tag { block: BlockNo(high | low), flags, checksum });
            at += self.tag_bytes();
            if flags & TAG_SAME_UUID == 0 {
                at += UUID_BYTES;
            }
            if flags & TAG_LAST != 0 {
                break;
            }
        }
        tags
    }

    /// Returns a descriptor block of these tags, which must fit. The first tag has the UUID. Sets the flags
    /// for the UUID and the last tag.
    pub fn descriptor(&self, sequence: u32, tags: &[Tag]) -> Vec<u8> {
        let mut block = self.block(BLOCK_DESCRIPTOR, sequence);
        let mut at = HEADER_BYTES;
        for (i, tag) in tags.iter().enumerate() {
            let mut flags = tag.flags;
            if i > 0 {
                flags |= TAG_SAME_UUID;
            }
            if i + 1 == tags.len() {
                flags |= TAG_LAST;
            }
            put32(&mut block, at, tag.block.0 as u32);
            if self.has_csum_v3 {
                put32(&mut block, at + 4, flags);
                put32(&mut block, at + 8, (tag.block.0 >> 32) as u32);
                put32(&mut block, at + 12, tag.checksum);
            } else {
                put32(&mut block, at + 4, (tag.checksum & 0xFFFF) << 16 | flags & 0xFFFF);
                if self.is_64bit {
                    put32(&mut block, at + 8, (tag.block.0 >> 32) as u32);
                }
            }
            at += self.tag_bytes();
            if i == 0 {
                block[at..at + UUID_BYTES].copy_from_slice(&self.uuid);
                at += UUID_BYTES;
            }
        }
        self.store_checksum(&mut block);
        block
    }

    /// Parses the block numbers of a revocation block. `None` if its length is invalid.
    pub fn parse_revokes(&self, block: &[u8]) -> Option<Vec<BlockNo>> {
        let count = be32(block, HEADER_BYTES) as usize;
        if !(REVOKE_HEADER_BYTES..=self.block_size - self.tail_bytes()).contains(&count) {
            return None;
        }
        let entries = block[REVOKE_HEADER_BYTES..count].chunks_exact(self.revoke_bytes());
        Some(entries.map(|e| BlockNo(e.iter().fold(0, |n, &byte| n << 8 | u64::from(byte)))).collect())
    }

    /// Returns a revocation block of these block numbers, which must fit.
    pub fn revocation(&self, sequence: u32, blocks: &[BlockNo]) -> Vec<u8> {
        let mut block = self.block(BLOCK_REVOKE, sequence);
        let mut at = REVOKE_HEADER_BYTES;
        for revoked in blocks {
            let size = self.revoke_bytes();
            block[at..at + size].copy_from_slice(&revoked.0.to_be_bytes()[8 - size..]);
            at += size;
        }
        put32(&mut block, HEADER_BYTES, at as u32);
        self.store_checksum(&mut block);
        block
    }

    /// Returns a commit block. `sum_v1` is the `COMPAT_CHECKSUM` value of the transaction.
    pub fn commit(&self, sequence: u32, sum_v1: u32, time: std::time::Duration) -> Vec<u8> {
        let mut block = self.block(BLOCK_COMMIT, sequence);
        block[COMMIT_SEC..COMMIT_SEC + 8].copy_from_slice(&time.as_secs().to_be_bytes());
        put32(&mut block, COMMIT_NSEC, time.subsec_nanos());
        if self.has_tail() {
            let sum = crc32c(self.seed, &block);
            put32(&mut block, COMMIT_CHKSUM, sum);
        } else if self.has_csum_v1 {
            block[COMMIT_CHKSUM_TYPE] = COMMIT_CRC32;
            block[COMMIT_CHKSUM_SIZE] = 4;
            put32(&mut block, COMMIT_CHKSUM, sum_v1);
        }
        block
    }

    /// True if the checksum of a commit block is right.
    pub fn commit_is_good(&self, block: &[u8], sum_v1: u32) -> bool {
        let stored = be32(block, COMMIT_CHKSUM);
        if self.has_tail() {
            let sum = crc32c(self.seed, &block[..COMMIT_CHKSUM]);
            let sum = crc32c(sum, &[0; 4]);
            return crc32c(sum, &block[COMMIT_CHKSUM + 4..]) == stored;
        }
        if !self.has_csum_v1 {
            return true;
        }
        let (kind, size) = (block[COMMIT_CHKSUM_TYPE], block[COMMIT_CHKSUM_SIZE]);
        // The feature is a compatible one: a program that does not know it writes commit blocks without it.
        (kind, size, stored) == (0, 0, 0) || (kind, size, stored) == (COMMIT_CRC32, 4, sum_v1)
    }

    /// True if the checksum in the tail of a descriptor or revocation block is right.
    pub fn tail_is_good(&self, block: &[u8]) -> bool {
        if !self.has_tail() {
            return true;
        }
        let at = self.block_size - 4;
        crc32c(crc32c(self.seed, &block[..at]), &[0; 4]) == be32(block, at)
    }

    /// Returns the checksum in the tag of a logged block. `data` is the block as in the log, so escaped.
    pub fn data_checksum(&self, sequence: u32, data: &[u8]) -> u32 {
        let sum = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), data);
        if self.has_csum_v3 { sum } else { sum & 0xFFFF }
    }

    /// True if a block in the log matches the checksum in its tag.
    pub fn data_is_good(&self, sequence: u32, data: &[u8], tag: &Tag) -> bool {
        !self.has_tail() || self.data_checksum(sequence, data) == tag.checksum
    }

    fn block(&self, kind: u32, sequence: u32) -> Vec<u8> {
        let mut block = vec![0; self.block_size];
        put32(&mut block, 0, JBD2_MAGIC);
        put32(&mut block, 4, kind);
        put32(&mut block, 8, sequence);
        block
    }

    fn store_checksum(&self, block: &mut [u8]) {
        if self.has_tail() {
            let sum = crc32c(self.seed, block);
            put32(block, self.block_size - 4, sum);
        }
    }
}
