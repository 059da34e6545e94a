//! Group descriptors.

use super::csum::{crc16, crc32c};
use super::raw::RawGroupDesc;
use super::superblock::Superblock;
use ivers_block::BlockNo;
use zerocopy::{FromZeros, IntoBytes};

/// `bg_flags`: the inode bitmap and table were never written.
pub const INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written.
pub const BLOCK_UNINIT: u16 = 2;
/// `bg_flags`: the inode table is zeroed.
pub const ITABLE_ZEROED: u16 = 4;

/// A group descriptor; split fields are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupDesc {
    /// Block number of the block bitmap.
    pub block_bitmap: BlockNo,
    /// Block number of the inode bitmap.
    pub inode_bitmap: BlockNo,
    /// First block of the inode table.
    pub inode_table: BlockNo,
    /// Free blocks.
    pub free_blocks: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories.
    pub used_dirs: u32,
    /// Inodes at the end of the table that were never used.
    pub itable_unused: u32,
    /// `bg_flags`.
    pub flags: u16,
    /// Checksum of the block bitmap.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap.
    pub inode_bitmap_csum: u32,
}

fn raw_of(sb: &Superblock, bytes: &[u8]) -> RawGroupDesc {
    let mut raw = RawGroupDesc::new_zeroed();
    let len = (sb.desc_size as usize).min(64);
    raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
    raw
}

/// Computes `bg_checksum`. `bytes` is one descriptor of `desc_size` bytes.
pub fn desc_csum(sb: &Superblock, group: u32, bytes: &[u8]) -> u16 {
    let number = group.to_le_bytes();
    let (head, rest) = (&bytes[..0x1E], &bytes[0x20..sb.desc_size as usize]);
    if sb.has_csum() {
        let crc = crc32c(crc32c(crc32c(sb.csum_seed, &number), head), &[0, 0]);
        crc32c(crc, rest) as u16
    } else {
        crc16(&[&sb.uuid, &number, head, rest])
    }
}

impl GroupDesc {
    /// Decodes one descriptor; `None` if its checksum is wrong.
    pub fn decode(sb: &Superblock, group: u32, bytes: &[u8]) -> Option<Self> {
        let raw = raw_of(sb, bytes);
        if sb.has_group_csum() && desc_csum(sb, group, bytes) != raw.bg_checksum.get() {
            return None;
        }
        let wide = |lo: u32, hi: u32| BlockNo(u64::from(lo) | u64::from(hi) << 32);
        let half = |lo: u16, hi: u16| u32::from(lo) | u32::from(hi) << 16;
        Some(Self {
            block_bitmap: wide(raw.bg_block_bitmap_lo.get(), raw.bg_block_bitmap_hi.get()),
            inode_bitmap: wide(raw.bg_inode_bitmap_lo.get(), raw.bg_inode_bitmap_hi.get()),
            inode_table: wide(raw.bg_inode_table_lo.get(), raw.bg_inode_table_hi.get()),
            free_blocks: half(raw.bg_free_blocks_count_lo.get(), raw.bg_free_blocks_count_hi.get()),
            free_inodes: half(raw.bg_free_inodes_count_lo.get(), raw.bg_free_inodes_count_hi.get()),
            used_dirs: half(raw.bg_used_dirs_count_lo.get(), raw.bg_used_dirs_count_hi.get()),
            itable_unused: half(raw.bg_itable_unused_lo.get(), raw.bg_itable_unused_hi.get()),
            // Without checksums the flags are not trustworthy; ignore them.
            flags: if sb.has_group_csum() { raw.bg_flags.get() } else { 0 },
            block_bitmap_csum: half(raw.bg_block_bitmap_csum_lo.get(), raw.bg_block_bitmap_csum_hi.get()),
            inode_bitmap_csum: half(raw.bg_inode_bitmap_csum_lo.get(), raw.bg_inode_bitmap_csum_hi.get()),
        })
    }

    /// Encodes the counts, flags and checksums; the block numbers never change.
    pub fn encode(&self, sb: &Superblock, group: u32, bytes: &mut [u8]) {
        let mut raw = raw_of(sb, bytes);
        let split = |value: u32| ((value as u16).into(), ((value >> 16) as u16).into());
        (raw.bg_free_blocks_count_lo, raw.bg_free_blocks_count_hi) = split(self.free_blocks);
        (raw.bg_free_inodes_count_lo, raw.bg_free_inodes_count_hi) = split(self.free_inodes);
        (raw.bg_used_dirs_count_lo, raw.bg_used_dirs_count_hi) = split(self.used_dirs);
        (raw.bg_itable_unused_lo, raw.bg_itable_unused_hi) = split(self.itable_unused);
        (raw.bg_block_bitmap_csum_lo, raw.bg_block_bitmap_csum_hi) = split(self.block_bitmap_csum);
        (raw.bg_inode_bitmap_csum_lo, raw.bg_inode_bitmap_csum_hi) = split(self.inode_bitmap_csum);
        if sb.has_group_csum() {
            raw.bg_flags = self.flags.into();
        }
        let len = (sb.desc_size as usize).min(64);
        bytes[..len].copy_from_slice(&raw.as_bytes()[..len]);
        if sb.has_group_csum() {
            let csum = desc_csum(sb, group, bytes);
            bytes[0x1E..0x20].copy_from_slice(&csum.to_le_bytes());
        }
    }

    /// The bits of a bitmap checksum that a descriptor of this size can store.
    pub fn csum_mask(sb: &Superblock) -> u32 {
        if sb.desc_size >= 64 { !0 } else { 0xFFFF }
    }
}
