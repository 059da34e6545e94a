//! Bitmaps and counts, against what the scan found.

use super::state::Checker;
use crate::layout::csum::crc32c;
use crate::layout::features::Incompat;
use crate::layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use ivers_block::BlockNo;
use ivers_vfs::Result;
use ivers_vfs::check::{Place, run_is};

/// The first bit and the length of each run of bits that differ, with whether `stored` has them set.
fn differences(stored: &[u8], right: &[u8], bits: u64) -> Vec<(u64, u64, bool)> {
    let mut runs: Vec<(u64, u64, bool)> = Vec::new();
    for (byte, (&a, &b)) in stored.iter().zip(right).enumerate() {
        if a == b {
            continue;
        }
        for bit in (0..8).filter(|bit| (a ^ b) >> bit & 1 == 1) {
            let (at, set) = (byte as u64 * 8 + bit, a >> bit & 1 == 1);
            if at >= bits {
                continue;
            }
            match runs.last_mut() {
                Some((start, len, same)) if *start + *len == at && *same == set => *len += 1,
                _ => runs.push((at, 1, set)),
            }
        }
    }
    runs
}

fn ones_after(bits: &[u8], from: u64) -> bool {
    (from..bits.len() as u64 * 8).all(|bit| bits[(bit / 8) as usize] >> (bit % 8) & 1 == 1)
}

/// A bitmap on the device.
struct Stored {
    /// What its bits stand for.
    noun: &'static str,
    /// The finding if its checksum is wrong.
    checksum_code: &'static str,
    block: BlockNo,
    /// Bits that the checksum covers.
    covered: u32,
    csum: u32,
}

impl Checker {
    /// Compares the bitmaps, the counts of groups and those of the superblock.
    pub(super) fn check_bitmaps(&mut self) -> Result<()> {
        let sb = self.sb();
        let (mut free_blocks, mut free_inodes) = (0u64, 0u64);
        for group in 0..sb.groups() {
            free_blocks += self.check_block_bitmap(group)?;
            free_inodes += self.check_inode_bitmap(group)?;
        }
        if self.stale_counts {
            return Ok(());
        }
        let mut stored = u64::from(self.raw.s_free_blocks_count_lo.get());
        if sb.incompat.contains(Incompat::BIT64) {
            stored |= u64::from(self.raw.s_free_blocks_count_hi.get()) << 32;
        }
        // Groups count clusters, the superblock counts blocks.
        let free_blocks = free_blocks << self.cluster_bits;
        if stored != free_blocks {
            let what = format!("s_free_blocks_count is {stored}, counted {free_blocks}");
            self.bad("free-blocks-count-wrong", Place::filesystem(), what);
        }
        let stored = u64::from(self.raw.s_free_inodes_count.get());
        if stored != free_inodes {
            let what = format!("s_free_inodes_count is {stored}, counted {free_inodes}");
            self.bad("free-inodes-count-wrong", Place::filesystem(), what);
        }
        Ok(())
    }

    /// Reads a bitmap, and checks its checksum and the bits from `bits` on. `None` if it lies nowhere, which
    /// was reported with the descriptor.
    fn stored_bitmap(&mut self, group: &Place, stored: &Stored, bits: u64) -> Result<Option<Vec<u8>>> {
        let sb = self.sb();
        let Stored { noun, checksum_code, block, covered, csum } = *stored;
        let Some(bytes) = self.reader.block(block.0)?.filter(|_| block.0 != 0) else { return Ok(None) };
        let place = group.clone().at(block.0);
        let sum = crc32c(sb.csum_seed, &bytes[..covered as usize / 8]) & GroupDesc::csum_mask(&sb);
        if sb.has_csum() && sum != csum {
            self.bad(checksum_code, place.clone(), format!("the checksum of the {noun} bitmap is wrong"));
        }
        if !ones_after(&bytes, bits) {
            let what = format!("bits of the {noun} bitmap beyond the group are not set");
            self.bad("bitmap-padding-wrong", place, what);
        }
        Ok(Some(bytes))
    }

    fn check_block_bitmap(&mut self, group: u32) -> Result<u64> {
        let sb = self.sb();
        let desc = self.descs[group as usize];
        let shift = self.cluster_bits;
        let first = sb.group_first_block(group).0 >> shift;
        let bits = u64::from(sb.group_blocks(group)).div_ceil(1 << shift);
        let mut right = self.claimed.bytes(first, bits);
        if group == 0 && sb.group_first_block(0).0 == 0 && sb.block_size == 1024 {
            // The boot block, before the superblock.
            right[0] |= 1;
        }
        let used: u64 = right.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let free = bits - used.min(bits);
        let place = Place::group(group);
        if u64::from(desc.free_blocks) != free {
            let what = format!("bg_free_blocks_count is {}, counted {free}", desc.free_blocks);
            self.bad("group-free-blocks-wrong", place.clone(), what);
        }
        let stored = if desc.flags & BLOCK_UNINIT != 0 {
            self.meta.bytes(first, bits)
        } else {
            let per_group = if shift > 0 { self.raw.s_clusters_per_group.get() } else { sb.blocks_per_group };
            let stored = Stored {
                noun: "block",
                checksum_code: "block-bitmap-checksum-wrong",
                block: desc.block_bitmap,
                covered: per_group,
                csum: desc.block_bitmap_csum,
            };
            let Some(bytes) = self.stored_bitmap(&place, &stored, bits)? else { return Ok(free) };
            bytes
        };
        for (at, len, set) in differences(&stored, &right, bits) {
            let block = (first + at) << shift;
            let blocks = run_is("block", block, block + (len << shift) - 1);
            let place = place.clone().at(block);
            if set {
                self.bad("block-lost", place, format!("{blocks} marked as used, but without an owner"));
            } else {
                self.bad("block-in-use-marked-free", place, format!("{blocks} in use, but marked as free"));
            }
        }
        Ok(free)
    }

    fn check_inode_bitmap(&mut self, group: u32) -> Result<u64> {
        let sb = self.sb();
        let desc = self.descs[group as usize];
        let (right, used, dirs) = self.inodes.used_in(group);
        let bits = u64::from(sb.inodes_per_group);
        let free = bits - u64::from(used);
        let place = Place::group(group);
        if u64::from(desc.free_inodes) != free {
            let what = format!("bg_free_inodes_count is {}, counted {free}", desc.free_inodes);
            self.bad("group-free-inodes-wrong", place.clone(), what);
        }
        if desc.used_dirs != dirs {
            let what = format!("bg_used_dirs_count is {}, counted {dirs}", desc.used_dirs);
            self.bad("group-directories-wrong", place.clone(), what);
        }
        let stored = if desc.flags & INODE_UNINIT != 0 {
            vec![0; right.len()]
        } else {
            let stored = Stored {
                noun: "inode",
                checksum_code: "inode-bitmap-checksum-wrong",
                block: desc.inode_bitmap,
                covered: sb.inodes_per_group,
                csum: desc.inode_bitmap_csum,
            };
            let Some(bytes) = self.stored_bitmap(&place, &stored, bits)? else { return Ok(free) };
            bytes
        };
        for (at, len, set) in differences(&stored, &right, bits) {
            let ino = u64::from(group) * bits + at + 1;
            let inodes = run_is("inode", ino, ino + len - 1);
            let place = Place { inode: Some(ino), ..place.clone() };
            if set {
                self.bad("inode-lost", place, format!("{inodes} marked as used, but without a file"));
            } else {
                self.bad("inode-in-use-marked-free", place, format!("{inodes} in use, but marked as free"));
            }
        }
        Ok(free)
    }
}
