//! The journal superblock, `journal_superblock_s`: the first 1024 bytes of log block 0.

use crate::{JournalError, Result};

use super::records::{BLOCK_SUPERBLOCK_V1, BLOCK_SUPERBLOCK_V2, JBD2_MAGIC, crc32c};

pub(super) const COMPAT_CHECKSUM: u32 = 0x1;
pub(super) const INCOMPAT_REVOKE: u32 = 0x1;
pub(super) const INCOMPAT_64BIT: u32 = 0x2;
pub(super) const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
pub(super) const INCOMPAT_CSUM_V2: u32 = 0x8;
pub(super) const INCOMPAT_CSUM_V3: u32 = 0x10;
pub(super) const INCOMPAT_FAST_COMMIT: u32 = 0x20;
const INCOMPAT_KNOWN: u32 = INCOMPAT_REVOKE
    | INCOMPAT_64BIT
    | INCOMPAT_ASYNC_COMMIT
    | INCOMPAT_CSUM_V2
    | INCOMPAT_CSUM_V3
    | INCOMPAT_FAST_COMMIT;

/// `s_checksum_type` of crc32c.
const CHECKSUM_CRC32C: u8 = 4;
/// Length of the fast-commit area in blocks if `s_num_fc_blocks` is 0 (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
const DEFAULT_FC_BLOCKS: u32 = 256;
/// Least blocks of a log beside its fast-commit area; a shorter one has no area (`JBD2_MIN_JOURNAL_BLOCKS`).
const MIN_LOG_BLOCKS: u32 = 1024;

/// Length of the structure in bytes.
pub(super) const SUPERBLOCK_BYTES: usize = 1024;
const S_BLOCKTYPE: usize = 0x4;
const S_BLOCKSIZE: usize = 0xC;
const S_MAXLEN: usize = 0x10;
const S_FIRST: usize = 0x14;
const S_SEQUENCE: usize = 0x18;
const S_START: usize = 0x1C;
const S_ERRNO: usize = 0x20;
const S_FEATURE_COMPAT: usize = 0x24;
const S_FEATURE_INCOMPAT: usize = 0x28;
const S_FEATURE_RO_COMPAT: usize = 0x2C;
const S_UUID: usize = 0x30;
const S_NR_USERS: usize = 0x40;
const S_CHECKSUM_TYPE: usize = 0x50;
const S_NUM_FC_BLOCKS: usize = 0x54;
const S_CHECKSUM: usize = 0xFC;

/// The journal superblock, checked. Kept as bytes, so that unknown fields survive.
#[derive(Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    raw: Box<[u8; SUPERBLOCK_BYTES]>,
}

impl std::fmt::Debug for JournalSuperblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalSuperblock")
            .field("s_maxlen", &self.max_len())
            .field("s_first", &self.first())
            .field("s_sequence", &self.sequence())
            .field("s_start", &self.start())
            .field("s_feature_compat", &self.compat())
            .field("s_feature_incompat", &self.incompat())
            .finish_non_exhaustive()
    }
}

impl JournalSuperblock {
    /// Parses and checks the first 1024 bytes of log block 0.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: String| Err(JournalError::Corrupt { what, log_block: 0 });
        let Some(raw) =
            bytes.get(..SUPERBLOCK_BYTES).and_then(|b| <[u8; SUPERBLOCK_BYTES]>::try_from(b).ok())
        else {
            return corrupt("the superblock is truncated".into());
        };
        let sb = Self { raw: Box::new(raw) };
        if sb.get(0) != JBD2_MAGIC {
            return corrupt("the superblock of the journal has no magic number".into());
        }
        if !matches!(sb.get(S_BLOCKTYPE), BLOCK_SUPERBLOCK_V1 | BLOCK_SUPERBLOCK_V2) {
            return corrupt(format!("a block of type {} instead of a superblock", sb.get(S_BLOCKTYPE)));
        }
        sb.check_features()?;
        if sb.has_checksums() {
            if sb.raw[S_CHECKSUM_TYPE] != CHECKSUM_CRC32C {
                return corrupt(format!("s_checksum_type is {}, not crc32c", sb.raw[S_CHECKSUM_TYPE]));
            }
            if sb.get(S_CHECKSUM) != sb.checksum() {
                return corrupt("the superblock's checksum is wrong".into());
            }
        }
        if !sb.block_size().is_power_of_two() || !(1024..=65536).contains(&sb.block_size()) {
            return corrupt(format!("s_blocksize is {}", sb.block_size()));
        }
        // At least one transaction must fit (descriptor, block, commit), and one block stays free.
        if sb.first() == 0 || sb.max_len() < 8 || sb.first() > sb.max_len() - 4 || sb.last() - sb.first() < 4
        {
            return corrupt(format!("s_first is {}, s_maxlen is {}", sb.first(), sb.max_len()));
        }
        if sb.start() != 0 && !(sb.first()..sb.last()).contains(&sb.start()) {
            return corrupt(format!("s_start is {}, outside the log", sb.start()));
        }
        Ok(sb)
    }

    fn check_features(&self) -> Result<()> {
        let unknown = self.incompat() & !INCOMPAT_KNOWN;
        let unknown_ro = self.field_v2(S_FEATURE_RO_COMPAT);
        let mut names = Vec::new();
        if unknown != 0 {
            names.push(format!("incompat {unknown:#x}"));
        }
        if unknown_ro != 0 {
            names.push(format!("ro_compat {unknown_ro:#x}"));
        }
        if !names.is_empty() {
            return Err(JournalError::Incompatible { features: names.join(", ") });
        }
        if self.incompat() & INCOMPAT_CSUM_V2 != 0 && self.incompat() & INCOMPAT_CSUM_V3 != 0
            || self.has_checksums() && self.compat() & COMPAT_CHECKSUM != 0
        {
            let what = "the superblock has checksums of two versions".into();
            return Err(JournalError::Corrupt { what, log_block: 0 });
        }
        if self.field_v2(S_NR_USERS) > 1 {
            return Err(JournalError::External {
                what: format!("s_nr_users is {}", self.field_v2(S_NR_USERS)),
            });
        }
        Ok(())
    }

    fn get(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.raw[at], self.raw[at + 1], self.raw[at + 2], self.raw[at + 3]])
    }

    fn put(&mut self, at: usize, value: u32) {
        self.raw[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// A field of version 2, 0 in version 1.
    fn field_v2(&self, at: usize) -> u32 {
        if self.get(S_BLOCKTYPE) == BLOCK_SUPERBLOCK_V2 { self.get(at) } else { 0 }
    }

    /// Crc32c of all 1024 bytes with `s_checksum` as zero. It starts with all ones, not with the UUID.
    fn checksum(&self) -> u32 {
        let mut copy = *self.raw;
        copy[S_CHECKSUM..S_CHECKSUM + 4].fill(0);
        crc32c(!0, &copy)
    }

    /// `s_blocksize`.
    pub fn block_size(&self) -> u32 {
        self.get(S_BLOCKSIZE)
    }

    /// `s_maxlen`: the length of the journal in blocks, with superblock and fast-commit area.
    pub fn max_len(&self) -> u32 {
        self.get(S_MAXLEN)
    }

    /// `s_first`: the first block of the ring.
    pub fn first(&self) -> u32 {
        self.get(S_FIRST)
    }

    /// The block after the ring: the start of the fast-commit area, or the end of the journal.
    pub fn last(&self) -> u32 {
        if self.incompat() & INCOMPAT_FAST_COMMIT == 0 {
            return self.max_len();
        }
        let blocks = match self.field_v2(S_NUM_FC_BLOCKS) {
            0 => DEFAULT_FC_BLOCKS,
            n => n,
        };
        match self.max_len().checked_sub(blocks) {
            Some(last) if last >= MIN_LOG_BLOCKS => last,
            _ => self.max_len(),
        }
    }

    /// `s_sequence`: the sequence number of the first transaction in the log.
    pub fn sequence(&self) -> u32 {
        self.get(S_SEQUENCE)
    }

    /// `s_start`: the first block of the first transaction, 0 if the log is clean.
    pub fn start(&self) -> u32 {
        self.get(S_START)
    }

    /// `s_errno`.
    pub fn errno(&self) -> i32 {
        self.get(S_ERRNO).cast_signed()
    }

    /// `s_feature_compat`.
    pub fn compat(&self) -> u32 {
        self.field_v2(S_FEATURE_COMPAT)
    }

    /// `s_feature_incompat`.
    pub fn incompat(&self) -> u32 {
        self.field_v2(S_FEATURE_INCOMPAT)
    }

    /// `s_uuid`.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&self.raw[S_UUID..S_UUID + 16]);
        uuid
    }

    /// True if the log has checksums of version 2 or 3.
    pub fn has_checksums(&self) -> bool {
        self.incompat() & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0
    }

    /// Returns a copy with this `s_start` and `s_sequence`.
    pub(super) fn with_position(&self, start: u32, sequence: u32) -> Self {
        let mut new = self.clone();
        new.put(S_START, start);
        new.put(S_SEQUENCE, sequence);
        new.with_checksum()
    }

    /// Returns a copy with the features that writing requires; see [`super::Jbd2Log::prepare`].
    pub(super) fn with_features(&self, checksums: bool, is_64bit: bool) -> Self {
        let mut new = self.clone();
        if new.get(S_BLOCKTYPE) == BLOCK_SUPERBLOCK_V1 {
            new.put(S_BLOCKTYPE, BLOCK_SUPERBLOCK_V2);
            new.raw[S_FEATURE_COMPAT..].fill(0);
            new.put(S_NR_USERS, 1);
        }
        let (mut compat, mut incompat) = (new.compat(), new.incompat() | INCOMPAT_REVOKE);
        if is_64bit {
            incompat |= INCOMPAT_64BIT;
        }
        if checksums && incompat & INCOMPAT_CSUM_V2 == 0 {
            incompat |= INCOMPAT_CSUM_V3;
            compat &= !COMPAT_CHECKSUM;
            new.raw[S_CHECKSUM_TYPE] = CHECKSUM_CRC32C;
        }
        new.put(S_FEATURE_COMPAT, compat);
        new.put(S_FEATURE_INCOMPAT, incompat);
        new.with_checksum()
    }

    fn with_checksum(mut self) -> Self {
        if self.has_checksums() {
            let sum = self.checksum();
            self.put(S_CHECKSUM, sum);
        }
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.raw[..]
    }
}

/// Options of a new journal.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// The block size of the filesystem in bytes, at least 1024.
    pub block_size: u32,
    /// The length of the journal in blocks. Other implementations refuse less than 1024.
    pub blocks: u32,
    /// The UUID of the journal.
    pub uuid: [u8; 16],
    /// Checksums of version 3, for a filesystem with `metadata_csum`.
    pub checksums: bool,
    /// 64-bit block numbers, for a filesystem with `64bit`.
    pub is_64bit: bool,
}

/// Returns log block 0 of a new, clean journal. The other blocks must not contain a journal header; zeros do.
pub fn format_superblock(options: &FormatOptions) -> Result<Vec<u8>> {
    let mut sb = JournalSuperblock { raw: Box::new([0; SUPERBLOCK_BYTES]) };
    sb.put(0, JBD2_MAGIC);
    sb.put(S_BLOCKTYPE, BLOCK_SUPERBLOCK_V2);
    sb.put(S_BLOCKSIZE, options.block_size);
    sb.put(S_MAXLEN, options.blocks);
    // Not in the document: the log starts at block 1 for every block size.
    sb.put(S_FIRST, 1);
    sb.put(S_SEQUENCE, 1);
    sb.put(S_NR_USERS, 1);
    sb.raw[S_UUID..S_UUID + 16].copy_from_slice(&options.uuid);
    let sb = sb.with_features(options.checksums, options.is_64bit);
    let sb = JournalSuperblock::parse(sb.bytes())?;
    let mut block = vec![0; options.block_size as usize];
    block[..SUPERBLOCK_BYTES].copy_from_slice(sb.bytes());
    Ok(block)
}
