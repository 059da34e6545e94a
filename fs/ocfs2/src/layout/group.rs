//! Allocators: chains of groups, each with a bitmap.

use super::bytes::{put_u16, put_u32, u16_at, u32_at, u64_at};
use super::dinode::ID2_AT;
use super::extents::{ExtentList, Keys};
use super::superblock::Superblock;
use std::ops::Range;

/// The offset of the counts of used bits and of all bits in the inode of an allocator.
const USED_AT: usize = 0xB8;
/// The offset of the bitmap in a group descriptor.
pub const BITMAP_AT: usize = 0x40;
/// The offset of the list of extents of a group that is not contiguous.
const LIST_AT: usize = 0x140;

/// A chain of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Free bits of all its groups.
    pub free: u32,
    /// Bits of all its groups.
    pub total: u32,
    /// The first group.
    pub first: u64,
}

/// The chains of an allocator.
#[derive(Debug, Clone)]
pub struct ChainList {
    /// Clusters of a group.
    pub clusters_per_group: u16,
    /// Bits for each cluster.
    pub bits_per_cluster: u16,
    /// The chains.
    pub chains: Vec<Chain>,
}

impl ChainList {
    /// Decodes the list at the start of `bytes`, which end where the room of the list ends.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (count, used) = (usize::from(u16_at(bytes, 4)), usize::from(u16_at(bytes, 6)));
        let room = bytes.len().saturating_sub(16) / 16;
        if count > room || used > count {
            return Err(format!("the allocator has {used} of {count} chains, and room for {room}"));
        }
        let chain = |record: &[u8]| Chain {
            free: u32_at(record, 0),
            total: u32_at(record, 4),
            first: u64_at(record, 8),
        };
        Ok(Self {
            clusters_per_group: u16_at(bytes, 0),
            bits_per_cluster: u16_at(bytes, 2),
            chains: bytes[16..].chunks_exact(16).take(used).map(chain).collect(),
        })
    }
}

/// Sets the counts of a chain in the inode of an allocator, and its own.
pub fn add_to_chain(inode: &mut [u8], chain: u16, free: i32, total: u32) {
    let at = ID2_AT + 16 + usize::from(chain) * 16;
    let (old_free, old_total) = (u32_at(inode, at), u32_at(inode, at + 4));
    put_u32(inode, at, old_free.saturating_add_signed(free));
    put_u32(inode, at + 4, old_total.saturating_add(total));
    let (used, all) = (u32_at(inode, USED_AT), u32_at(inode, USED_AT + 4));
    put_u32(inode, USED_AT, used.saturating_add(total).saturating_add_signed(-free));
    put_u32(inode, USED_AT + 4, all.saturating_add(total));
}

/// Changes the bits of a range in a group, and its count.
pub fn set_bits(group: &mut [u8], bits: Range<u16>, used: bool) {
    let len = bits.end - bits.start;
    for bit in bits {
        let byte = &mut group[BITMAP_AT + usize::from(bit / 8)];
        *byte = *byte & !(1 << (bit % 8)) | u8::from(used) << (bit % 8);
    }
    let free = u16_at(group, 0x0C);
    put_u16(group, 0x0C, if used { free.saturating_sub(len) } else { free.saturating_add(len) });
    // The longest free run is not known.
    put_u16(group, 0x14, 0);
}

/// The descriptor of a group.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// Its block.
    pub number: u64,
    /// Bits in use or free.
    pub bits: u16,
    /// Free bits.
    pub free: u16,
    /// The number of its chain.
    pub chain: u16,
    /// The next group of the chain; 0: none.
    pub next: u64,
    /// The allocator that it belongs to.
    pub parent: u64,
    bitmap: &'a [u8],
    /// The pieces of a group that is not contiguous: positions count clusters of the group.
    pieces: Option<ExtentList>,
}

impl<'a> Group<'a> {
    /// Decodes a descriptor of which the block was checked.
    pub fn parse(bytes: &'a [u8], sb: &Superblock) -> Result<Self, String> {
        let (size, bits) = (usize::from(u16_at(bytes, 0x08)), u16_at(bytes, 0x0A));
        if BITMAP_AT + size > bytes.len() || usize::from(bits) > size * 8 {
            return Err(format!("the group has {bits} bits in a bitmap of {size} bytes"));
        }
        let is_split = BITMAP_AT + size == LIST_AT && u16_at(bytes, LIST_AT + 4) != 0;
        let pieces = match is_split {
            true => Some(ExtentList::parse(&bytes[LIST_AT..], sb, Keys::Clusters)?),
            false => None,
        };
        if pieces.as_ref().is_some_and(|pieces| pieces.depth != 0) {
            return Err("the list of the group's pieces has a depth".into());
        }
        Ok(Self {
            number: u64_at(bytes, 0x28),
            bits,
            free: u16_at(bytes, 0x0C),
            chain: u16_at(bytes, 0x0E),
            next: u64_at(bytes, 0x18),
            parent: u64_at(bytes, 0x20),
            bitmap: &bytes[BITMAP_AT..BITMAP_AT + size],
            pieces,
        })
    }

    /// Whether it is one run of clusters.
    pub fn is_contiguous(&self) -> bool {
        self.pieces.is_none()
    }

    /// Returns the first run of free bits from `from` on, of at most `most` bits.
    pub fn find_free(&self, from: u16, most: u16) -> Option<Range<u16>> {
        let first = (from..self.bits).find(|&bit| !self.is_used(bit))?;
        let end = (first..self.bits).take(most.into()).find(|&bit| self.is_used(bit));
        Some(first..end.unwrap_or(self.bits.min(first.saturating_add(most))))
    }

    /// Whether all bits of a range are in this state.
    pub fn are_all(&self, mut bits: Range<u16>, used: bool) -> bool {
        bits.end <= self.bits && bits.all(|bit| self.is_used(bit) == used)
    }

    fn is_used(&self, bit: u16) -> bool {
        self.bitmap.get(usize::from(bit / 8)).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }

    /// The runs of bits that are set: the first one and their number.
    pub fn used(&self) -> Vec<(u16, u16)> {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for bit in (0..self.bits).filter(|bit| self.is_used(*bit)) {
            match runs.last_mut() {
                Some((first, len)) if *first + *len == bit => *len += 1,
                _ => runs.push((bit, 1)),
            }
        }
        runs
    }

    /// Returns the block of a bit of an allocator of blocks. `None`: no piece of the group has it.
    pub fn block_of(&self, bit: u16, sb: &Superblock) -> Option<u64> {
        let Some(pieces) = &self.pieces else { return self.number.checked_add(bit.into()) };
        let cluster = u32::from(bit) / sb.blocks_per_cluster;
        let piece = pieces.find(cluster).0.filter(|piece| cluster < piece.cpos + piece.clusters)?;
        Some(piece.start + u64::from(u32::from(bit) - piece.cpos * sb.blocks_per_cluster))
    }

    /// The clusters of an allocator of blocks, as runs of first cluster and length.
    pub fn clusters(&self, sb: &Superblock) -> Vec<(u64, u64)> {
        match &self.pieces {
            Some(pieces) => {
                let run =
                    |piece: &super::extents::Extent| (sb.cluster_of(piece.start), piece.clusters.into());
                pieces.records.iter().map(run).collect()
            }
            None => {
                let count = u64::from(self.bits).div_ceil(sb.blocks_per_cluster.into());
                vec![(sb.cluster_of(self.number), count)]
            }
        }
    }
}
