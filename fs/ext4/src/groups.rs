//! Group descriptors and bitmaps, loaded on demand.
//!
//! An unused group costs nothing. After its first use, its descriptor is kept decoded under the group's lock.
//! A second copy of its block bitmap, `busy`, also has the bits set of reservations and of freed blocks whose
//! transaction has not committed: only blocks that are clear in it may be allocated.
//!
//! This memory counts against the mount's budget. Over the budget, groups are dropped that no thread uses and
//! whose `busy` equals the bitmap on the device.

use crate::layout::csum::crc32c;
use crate::layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use crate::layout::superblock::Superblock;
use crate::transaction::Handle;
use ivers_block::{BlockNo, Buffer, BufferCache};
use ivers_vfs::sync::{RankedMutex, RankedRwLock, rank};
use ivers_vfs::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Flexible groups whose members are searched for metadata of a neighbour.
const MAX_FLEX: u32 = 64;

/// Approximate memory of a group without its bitmap, in bytes.
const GROUP_BYTES: u64 = 256;

/// The groups of a filesystem and the totals over all of them.
pub struct Groups {
    sb: Superblock,
    cache: Arc<BufferCache>,
    place: String,
    states: RankedRwLock<rank::Driver<10>, HashMap<u32, Arc<GroupLock>>>,
    /// Blocks that are neither used nor reserved, in memory.
    pub(crate) free_blocks: AtomicI64,
    /// Blocks freed by transactions that have not committed.
    pub(crate) pending: AtomicI64,
    /// Blocks reserved for delayed writes.
    pub(crate) delayed: AtomicI64,
    /// Free inodes.
    pub(crate) free_inodes: AtomicI64,
    /// No block from here on is allocated: the filesystem is to end here.
    pub(crate) limit: AtomicU64,
}

/// The lock of a group. One is held at a time.
pub(crate) type GroupLock = RankedMutex<rank::Driver<12>, Group>;

/// One group in memory.
pub(crate) struct Group {
    pub(crate) number: u32,
    pub(crate) desc: GroupDesc,
    /// The bits of blocks that must not be allocated; see the module.
    busy: Option<Box<[u8]>>,
    /// Clear bits of `busy`.
    pub(crate) free: u32,
}

impl Group {
    /// Makes blocks allocatable that the group has gained at its end.
    pub(crate) fn gain(&mut self, start: u32, len: u32) {
        if let Some(bits) = self.busy.as_mut() {
            fill(bits, start, len, false);
        }
        self.free += len;
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.shrink(&mut self.states.write());
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").field("free_blocks", &self.free_blocks).finish_non_exhaustive()
    }
}

/// The first clear bit at or after `from`, or `end`.
pub(crate) fn next_clear(bits: &[u8], from: u32, end: u32) -> u32 {
    scan(bits, from, end, 0xFF)
}

/// The first set bit at or after `from`, or `end`.
pub(crate) fn next_set(bits: &[u8], from: u32, end: u32) -> u32 {
    scan(bits, from, end, 0x00)
}

fn scan(bits: &[u8], from: u32, end: u32, skip: u8) -> u32 {
    let mut bit = from;
    while bit < end {
        let byte = bits[bit as usize / 8];
        if byte == skip && bit.is_multiple_of(8) {
            bit += 8;
            continue;
        }
        if ((byte ^ skip) >> (bit % 8)) & 1 == 1 {
            return bit;
        }
        bit += 1;
    }
    end
}

pub(crate) fn is_set(bits: &[u8], bit: u32) -> bool {
    bits[bit as usize / 8] >> (bit % 8) & 1 == 1
}

/// Sets or clears a run of bits.
pub(crate) fn fill(bits: &mut [u8], start: u32, len: u32, set: bool) {
    let end = start + len;
    let mut bit = start;
    while bit < end {
        if bit.is_multiple_of(8) && end - bit >= 8 {
            bits[bit as usize / 8] = if set { 0xFF } else { 0 };
            bit += 8;
        } else {
            let mask = 1 << (bit % 8);
            if set {
                bits[bit as usize / 8] |= mask;
            } else {
                bits[bit as usize / 8] &= !mask;
            }
            bit += 1;
        }
    }
}

impl Groups {
    pub(crate) fn new(
        sb: Superblock,
        cache: Arc<BufferCache>,
        place: String,
        free_blocks: u64,
        free_inodes: u64,
    ) -> Self {
        Self {
            sb,
            cache,
            place,
            states: RankedRwLock::new(HashMap::new()),
            free_blocks: AtomicI64::new(free_blocks as i64),
            pending: AtomicI64::new(0),
            delayed: AtomicI64::new(0),
            free_inodes: AtomicI64::new(free_inodes as i64),
            limit: AtomicU64::new(u64::MAX),
        }
    }

    fn corrupt(&self, what: impl Into<String>, group: u32) -> Error {
        Error::corrupt(what, format!("{}, group {group}", self.place))
    }

    /// Reads one descriptor from the device.
    pub(crate) fn read_desc(&self, number: u32) -> Result<GroupDesc> {
        let (block, byte) = self.sb.desc_place(number);
        let buffer = self.cache.get(block)?;
        let bytes = buffer.read();
        let desc = GroupDesc::decode(&self.sb, number, &bytes[byte..byte + self.sb.desc_size as usize])
            .ok_or_else(|| self.corrupt("bad descriptor checksum", number))?;
        for (name, start, len) in self.fixed_runs(&desc) {
            if !self.sb.is_valid_run(start, len) {
                return Err(self.corrupt(format!("{name} is {start}"), number));
            }
        }
        let per = self.sb.inodes_per_group;
        if desc.free_inodes > per
            || desc.itable_unused > per
            || desc.used_dirs > per
            || desc.free_blocks > self.sb.group_blocks(number)
        {
            return Err(self.corrupt("the descriptor's counts exceed the group", number));
        }
        Ok(desc)
    }

    /// The blocks of a group that may be allocated, from its first on.
    pub(crate) fn allocatable(&self, number: u32) -> u32 {
        let below = self.limit.load(Ordering::Relaxed).saturating_sub(self.sb.group_first_block(number).0);
        below.min(self.sb.group_blocks(number).into()) as u32
    }

    /// Returns a group; loads it if necessary.
    pub(crate) fn get(&self, number: u32) -> Result<Arc<GroupLock>> {
        if let Some(group) = self.states.read().get(&number) {
            return Ok(group.clone());
        }
        if number >= self.sb.groups() {
            return Err(self.corrupt("there is no such group", number));
        }
        let mut states = self.states.write();
        if let Some(group) = states.get(&number) {
            return Ok(group.clone());
        }
        let desc = self.read_desc(number)?;
        let group = Arc::new(RankedMutex::new(Group { number, desc, busy: None, free: desc.free_blocks }));
        states.insert(number, group.clone());
        self.cache.budget().charge(GROUP_BYTES);
        if self.cache.budget().over() {
            self.shrink(&mut states);
        }
        Ok(group)
    }

    /// Drops groups that can be loaded again.
    fn shrink(&self, states: &mut HashMap<u32, Arc<GroupLock>>) {
        let budget = self.cache.budget();
        states.retain(|_, group| {
            // Every user of a group holds a reference, and new references come only through this map.
            let Some(mut inside) = (Arc::strong_count(group) == 1).then(|| group.try_lock()).flatten() else {
                return true;
            };
            // `busy` includes every bit of the bitmap: if the counts are equal, so are the bitmaps.
            let differs = inside.busy.is_some() && inside.free != inside.desc.free_blocks;
            if differs {
                return true;
            }
            if inside.busy.take().is_some() {
                budget.uncharge(u64::from(self.sb.block_size));
            }
            budget.uncharge(GROUP_BYTES);
            false
        });
    }

    /// Logs a changed descriptor.
    pub(crate) fn store(&self, h: &mut Handle, group: &Group) -> Result<()> {
        let (block, byte) = self.sb.desc_place(group.number);
        let buffer = self.cache.get(block)?;
        h.modify(&buffer, |bytes| {
            group.desc.encode(&self.sb, group.number, &mut bytes[byte..byte + self.sb.desc_size as usize]);
        })
    }

    /// The bitmaps and the inode table of a group: name of the descriptor's field, first block, number of
    /// blocks.
    pub(crate) fn fixed_runs(&self, desc: &GroupDesc) -> [(&'static str, BlockNo, u64); 3] {
        [
            ("bg_block_bitmap", desc.block_bitmap, 1),
            ("bg_inode_bitmap", desc.inode_bitmap, 1),
            ("bg_inode_table", desc.inode_table, u64::from(self.sb.inode_table_blocks)),
        ]
    }

    /// Sets the bits of the part of a run of filesystem blocks that lies in a group.
    fn mark_run(&self, number: u32, bits: &mut [u8], start: BlockNo, len: u64) {
        let first = self.sb.group_first_block(number);
        let from = start.max(first);
        let to = (start + len).min(first + u64::from(self.sb.group_blocks(number)));
        if from < to {
            fill(bits, (from - first) as u32, (to - from) as u32, true);
        }
    }

    /// Sets the bits of a group's blocks that hold metadata in fixed places.
    fn mark_own_metadata(&self, number: u32, desc: &GroupDesc, bits: &mut [u8]) {
        let first = self.sb.group_first_block(number);
        self.mark_run(number, bits, first, u64::from(self.sb.base_meta_blocks(number)));
        for (_, start, len) in self.fixed_runs(desc) {
            self.mark_run(number, bits, start, len);
        }
    }

    fn mark_tail(&self, number: u32, bits: &mut [u8]) {
        let blocks = self.sb.group_blocks(number);
        let all = bits.len() as u32 * 8;
        fill(bits, blocks, all - blocks, true);
    }

    /// The initial bitmap of a group whose bitmap was never written.
    fn fresh_block_bitmap(&self, number: u32, desc: &GroupDesc) -> Box<[u8]> {
        let mut bits = vec![0; self.sb.block_size as usize].into_boxed_slice();
        self.mark_own_metadata(number, desc, &mut bits);
        self.mark_tail(number, &mut bits);
        bits
    }

    fn block_bitmap_csum(&self, bits: &[u8]) -> u32 {
        let crc = crc32c(self.sb.csum_seed, &bits[..self.sb.blocks_per_group as usize / 8]);
        crc & GroupDesc::csum_mask(&self.sb)
    }

    fn inode_bitmap_csum(&self, bits: &[u8]) -> u32 {
        let crc = crc32c(self.sb.csum_seed, &bits[..self.sb.inodes_per_group as usize / 8]);
        crc & GroupDesc::csum_mask(&self.sb)
    }

    /// Reads and checks the block bitmap on the device.
    pub(crate) fn read_block_bitmap(&self, group: &Group) -> Result<Arc<Buffer>> {
        let buffer = self.cache.get(group.desc.block_bitmap)?;
        if !buffer.is_verified() {
            if self.sb.has_csum() && self.block_bitmap_csum(&buffer.read()) != group.desc.block_bitmap_csum {
                return Err(self.corrupt("bad block bitmap checksum", group.number));
            }
            buffer.set_verified();
        }
        Ok(buffer)
    }

    /// The bits of blocks that must not be allocated.
    pub(crate) fn busy<'a>(&self, group: &'a mut Group) -> Result<&'a mut Box<[u8]>> {
        if group.busy.is_none() {
            let mut bits = if group.desc.flags & BLOCK_UNINIT != 0 {
                self.fresh_block_bitmap(group.number, &group.desc)
            } else {
                let bits: Box<[u8]> = self.read_block_bitmap(group)?.read().to_vec().into();
                bits
            };
            self.mark_tail(group.number, &mut bits);
            let blocks = self.sb.group_blocks(group.number);
            let clear: u32 = bits.iter().map(|byte| byte.count_zeros()).sum();
            if clear != group.desc.free_blocks {
                return Err(self.corrupt(
                    format!(
                        "the bitmap has {clear} of {blocks} blocks clear, the descriptor counts {}",
                        group.desc.free_blocks
                    ),
                    group.number,
                ));
            }
            // A damaged bitmap must not allow metadata to be allocated.
            self.mark_own_metadata(group.number, &group.desc, &mut bits);
            self.mark_flex_metadata(group.number, &mut bits)?;
            let left: u32 = bits.iter().map(|byte| byte.count_zeros()).sum();
            if left != clear {
                return Err(self.corrupt("the bitmap shows metadata as free", group.number));
            }
            group.free = left;
            group.busy = Some(bits);
            self.cache.budget().charge(u64::from(self.sb.block_size));
        }
        Ok(group.busy.as_mut().expect("filled above"))
    }

    fn mark_flex_metadata(&self, number: u32, bits: &mut [u8]) -> Result<()> {
        let flex = 1u32 << self.sb.log_groups_per_flex;
        if flex == 1 || flex > MAX_FLEX {
            return Ok(());
        }
        let first = number / flex * flex;
        for other in first..first.saturating_add(flex).min(self.sb.groups()) {
            if other == number {
                continue;
            }
            for (_, start, len) in self.fixed_runs(&self.read_desc(other)?) {
                self.mark_run(number, bits, start, len);
            }
        }
        Ok(())
    }

    /// The block bitmap for a change; writes the initial bitmap if none was ever written.
    pub(crate) fn init_block_bitmap(&self, h: &mut Handle, group: &mut Group) -> Result<Arc<Buffer>> {
        if group.desc.flags & BLOCK_UNINIT == 0 {
            return self.read_block_bitmap(group);
        }
        let bits = self.fresh_block_bitmap(group.number, &group.desc);
        let buffer = self.cache.get_zeroed(group.desc.block_bitmap)?;
        group.desc.flags &= !BLOCK_UNINIT;
        group.desc.block_bitmap_csum = self.block_bitmap_csum(&bits);
        h.modify(&buffer, |bytes| bytes.copy_from_slice(&bits))?;
        Ok(buffer)
    }

    /// Sets (allocates) or clears (frees) a run in the bitmap on the device. All bits of the run must have
    /// the opposite value before.
    pub(crate) fn change_blocks(
        &self,
        h: &mut Handle,
        group: &mut Group,
        start: u32,
        len: u32,
        set: bool,
    ) -> Result<()> {
        if !set && group.desc.flags & BLOCK_UNINIT != 0 {
            return Err(self.corrupt("freeing blocks of an unused group", group.number));
        }
        let buffer = self.init_block_bitmap(h, group)?;
        let wrong = {
            let bits = buffer.read();
            if set { next_set(&bits, start, start + len) } else { next_clear(&bits, start, start + len) }
        };
        if wrong != start + len {
            let block = self.sb.group_first_block(group.number) + u64::from(wrong);
            let state = if set { "allocated twice" } else { "freed twice" };
            return Err(self.corrupt(format!("block {block} is {state}"), group.number));
        }
        let csum = h.modify(&buffer, |bytes| {
            fill(bytes, start, len, set);
            self.block_bitmap_csum(bytes)
        })?;
        if self.sb.has_csum() {
            group.desc.block_bitmap_csum = csum;
        }
        group.desc.free_blocks =
            if set { group.desc.free_blocks.saturating_sub(len) } else { group.desc.free_blocks + len };
        self.store(h, group)
    }

    /// Clears bits after the end of a group that grows, or sets those of a group that becomes shorter. The
    /// caller counts the blocks and stores the descriptor.
    pub(crate) fn change_tail(
        &self,
        h: &mut Handle,
        group: &mut Group,
        start: u32,
        len: u32,
        set: bool,
    ) -> Result<()> {
        let buffer = self.read_block_bitmap(group)?;
        let csum = h.modify(&buffer, |bytes| {
            fill(bytes, start, len, set);
            self.block_bitmap_csum(bytes)
        })?;
        if self.sb.has_csum() {
            group.desc.block_bitmap_csum = csum;
        }
        Ok(())
    }

    /// Clears bits of `busy`.
    pub(crate) fn release(&self, number: u32, start: u32, len: u32) {
        let Ok(group) = self.get(number) else { return };
        let mut group = group.lock();
        if let Some(bits) = group.busy.as_mut() {
            fill(bits, start, len, false);
        }
        group.free += len;
        self.free_blocks.fetch_add(i64::from(len), Ordering::Relaxed);
    }

    /// The inode bitmap for reading: `None` if no inode of the group was ever used.
    pub(crate) fn inode_bitmap(&self, group: &Group) -> Result<Option<Arc<Buffer>>> {
        if group.desc.flags & INODE_UNINIT != 0 {
            return Ok(None);
        }
        let buffer = self.cache.get(group.desc.inode_bitmap)?;
        if !buffer.is_verified() {
            if self.sb.has_csum() && self.inode_bitmap_csum(&buffer.read()) != group.desc.inode_bitmap_csum {
                return Err(self.corrupt("bad inode bitmap checksum", group.number));
            }
            buffer.set_verified();
        }
        Ok(Some(buffer))
    }

    /// Whether the inode bitmap marks an inode as used.
    pub(crate) fn is_inode_used(&self, ino: u32) -> Result<bool> {
        let (number, bit) = self.sb.group_of_inode(ino);
        let group = self.get(number)?;
        let bitmap = self.inode_bitmap(&group.lock())?;
        Ok(bitmap.is_some_and(|bitmap| is_set(&bitmap.read(), bit)))
    }

    /// The inode bitmap for a change; writes the initial inode and block bitmaps if none were ever written.
    pub(crate) fn init_inode_bitmap(&self, h: &mut Handle, group: &mut Group) -> Result<Arc<Buffer>> {
        if let Some(buffer) = self.inode_bitmap(group)? {
            return Ok(buffer);
        }
        self.init_block_bitmap(h, group)?;
        let buffer = self.cache.get_zeroed(group.desc.inode_bitmap)?;
        let per = self.sb.inodes_per_group;
        let csum = h.modify(&buffer, |bytes| {
            bytes.fill(0);
            let all = bytes.len() as u32 * 8;
            fill(bytes, per, all - per, true);
            self.inode_bitmap_csum(bytes)
        })?;
        group.desc.flags &= !INODE_UNINIT;
        group.desc.itable_unused = per;
        group.desc.inode_bitmap_csum = csum;
        Ok(buffer)
    }

    /// Sets or clears the bit of an inode in the bitmap; the caller stores the descriptor.
    pub(crate) fn change_inode(&self, h: &mut Handle, group: &mut Group, bit: u32, set: bool) -> Result<()> {
        let buffer = self.init_inode_bitmap(h, group)?;
        if is_set(&buffer.read(), bit) == set {
            let ino = u64::from(group.number) * u64::from(self.sb.inodes_per_group) + u64::from(bit) + 1;
            let state = if set { "allocated twice" } else { "freed twice" };
            return Err(self.corrupt(format!("inode {ino} is {state}"), group.number));
        }
        let csum = h.modify(&buffer, |bytes| {
            fill(bytes, bit, 1, set);
            self.inode_bitmap_csum(bytes)
        })?;
        if self.sb.has_csum() {
            group.desc.inode_bitmap_csum = csum;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_bits_are_found_and_filled() {
        let mut bits = vec![0u8; 16];
        fill(&mut bits, 3, 20, true);
        assert_eq!(next_set(&bits, 0, 128), 3);
        assert_eq!(next_clear(&bits, 3, 128), 23);
        assert_eq!(next_set(&bits, 23, 128), 128);
        fill(&mut bits, 5, 1, false);
        assert_eq!(next_clear(&bits, 3, 128), 5);
        assert!(is_set(&bits, 4) && !is_set(&bits, 5));
    }
}
