//! Taking clusters, inodes and blocks, and freeing them.
//!
//! Clusters are taken in two steps: [`Space::busy`](crate::space::Space::busy) keeps them from others while
//! data is written there, and the transaction that maps them sets their bits. Inodes and blocks are allocated
//! from slot 0, and freed to any slot. Their groups are never freed.

use crate::change::Change;
use crate::layout::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at};
use crate::layout::dinode::{CLUSTERS_AT, ID2_AT, SIZE_AT};
use crate::layout::group::{BITMAP_AT, ChainList, Group, add_to_chain, set_bits};
use crate::layout::shape::{DINODE, GROUP};
use crate::layout::superblock::incompat;
use crate::space::{Space, SubAllocator, SubGroup, UNKNOWN};
use crate::volume::Ocfs2;
use ivers_vfs::{NameError, Result};
use std::ops::Range;

/// Bytes of the bitmap of a group that may consist of several runs of clusters.
const SPLIT_BITMAP_BYTES: usize = 256;
/// A shorter run is taken only if no run of this length is free.
const GOOD_RUN: u16 = 16;

/// An allocator of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sub {
    Inodes,
    Blocks,
}

/// A block that an allocator gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub block: u64,
    pub bit: u16,
}

/// Slot, bit and group descriptor that a structure records for its own block; 0: the descriptor is computed
/// from the bit.
pub(crate) type Origin = (u16, u16, u64);

impl Ocfs2 {
    /// Clusters of each group but the last one.
    fn clusters_per_group(&self) -> Result<u64> {
        let (_, block) = self.dinode(self.global_bitmap)?;
        match u16_at(&block, ID2_AT) {
            0 => Err(self.corrupt(self.global_bitmap, "cl_cpg is 0")),
            count => Ok(count.into()),
        }
    }

    /// Reads what is free. `inodes` and `blocks` are the allocators of slot 0.
    pub(crate) fn read_space(&self, inodes: u64, blocks: u64) -> Result<Space> {
        let bitmap = self.dinode(self.global_bitmap)?.0;
        let used = bitmap.id1 & u64::from(u32::MAX);
        let groups = u64::from(self.sb.clusters).div_ceil(self.clusters_per_group()?);
        Ok(Space {
            groups: vec![UNKNOWN; groups as usize],
            free: u64::from(self.sb.clusters).saturating_sub(used),
            inodes: self.read_allocator(inodes)?,
            blocks: self.read_allocator(blocks)?,
            ..Space::default()
        })
    }

    fn read_allocator(&self, ino: u64) -> Result<SubAllocator> {
        let (_, block) = self.dinode(ino)?;
        let list = ChainList::parse(&block[ID2_AT..]).map_err(|what| self.corrupt(ino, what))?;
        let mut found = SubAllocator { ino, groups: Vec::new() };
        for chain in &list.chains {
            let mut next = chain.first;
            while next != 0 {
                let bytes = self.structure(next, &GROUP)?;
                let group = Group::parse(&bytes, &self.sb).map_err(|what| self.corrupt_block(next, what))?;
                let free = if group.is_contiguous() { group.free } else { 0 };
                found.groups.push(SubGroup { block: next, free });
                if found.groups.len() as u64 > u64::from(self.sb.clusters) {
                    return Err(self.corrupt(ino, "its groups lead to each other"));
                }
                next = group.next;
            }
        }
        Ok(found)
    }

    /// Returns the chain of a group. Fails if the allocator has no such chain.
    fn chain_of(&self, ino: u64, group: &Group<'_>) -> Result<u16> {
        let (_, block) = self.dinode(ino)?;
        let room = (block.len() - ID2_AT - 16) / 16;
        let chains = u16_at(&block, ID2_AT + 6);
        if usize::from(chains) > room || group.chain >= chains {
            let has = format!("{chains} chains, and room for {room}");
            let what = format!("the group is in chain {}, and its allocator has {has}", group.chain);
            return Err(self.corrupt_block(group.number, what));
        }
        Ok(group.chain)
    }

    /// The descriptor of a group of clusters.
    fn cluster_group(&self, group: u64, per_group: u64) -> u64 {
        match group {
            0 => self.sb.first_cluster_group,
            _ => group * per_group * u64::from(self.sb.blocks_per_cluster),
        }
    }

    /// Takes a run of clusters that data may be written to: at least `least`, at most `most`. `credit` are
    /// reserved for the caller.
    pub(crate) fn claim(
        &self,
        space: &mut Space,
        near: u64,
        (least, most): (u64, u64),
        credit: u64,
    ) -> Result<Range<u64>> {
        if space.available(credit) < least {
            return Err(NameError::NoSpace.into());
        }
        let per_group = self.clusters_per_group()?;
        let near = if near == 0 { space.goal } else { near };
        let most = most.min(per_group).min(space.available(credit)) as u16;
        let least = least.min(u64::from(u16::MAX)) as u16;
        for need in [most.min(GOOD_RUN).max(least), least] {
            let groups = space.groups.len() as u64;
            let first = (near / per_group).min(groups - 1);
            // The first one twice: its start comes last.
            for (nth, group) in (first..groups).chain(0..first + 1).enumerate() {
                let from = if nth == 0 { near % per_group } else { 0 };
                if space.groups[group as usize] < need {
                    continue;
                }
                if let Some(range) = self.find_in_group(space, (group, per_group), from, (need, most))? {
                    space.busy.insert(range.clone());
                    space.goal = range.end;
                    return Ok(range);
                }
            }
        }
        Err(NameError::NoSpace.into())
    }

    fn find_in_group(
        &self,
        space: &mut Space,
        (nth, per_group): (u64, u64),
        from: u64,
        (need, most): (u16, u16),
    ) -> Result<Option<Range<u64>>> {
        let number = self.cluster_group(nth, per_group);
        let bytes = self.structure(number, &GROUP)?;
        let group = Group::parse(&bytes, &self.sb).map_err(|what| self.corrupt_block(number, what))?;
        let bits = u64::from(self.sb.clusters).saturating_sub(nth * per_group).min(per_group);
        if u64::from(group.bits) > bits || group.parent != self.global_bitmap {
            return Err(self.corrupt_block(number, "the group of clusters has other bits than it must"));
        }
        space.groups[nth as usize] = group.free;
        let (base, mut at) = (nth * per_group, from as u16);
        while let Some(run) = group.find_free(at, most) {
            let mut range = base + u64::from(run.start)..base + u64::from(run.end);
            at = run.end;
            while let Some((start, end)) = space.busy.overlap(&range) {
                // What is before it, or else what is after it.
                if start > range.start {
                    range.end = start;
                } else {
                    range = end.min(range.end)..range.end;
                }
            }
            if range.end - range.start >= u64::from(need) {
                return Ok(Some(range));
            }
        }
        Ok(None)
    }
}

impl Change<'_> {
    /// Sets or clears the bits of clusters of one or more groups.
    fn mark(&mut self, mut range: Range<u64>, used: bool) -> Result<()> {
        let (fs, per_group) = (self.fs, self.fs.clusters_per_group()?);
        if range.end > fs.sb.clusters.into() {
            return Err(fs.corrupt_block(range.start, "clusters are outside the filesystem"));
        }
        while !range.is_empty() {
            let nth = range.start / per_group;
            let end = range.end.min((nth + 1) * per_group);
            let bits = (range.start - nth * per_group) as u16..(end - nth * per_group) as u16;
            let number = fs.cluster_group(nth, per_group);
            let (chain, is_right) = {
                let bytes = fs.structure(number, &GROUP)?;
                let group = Group::parse(&bytes, &fs.sb).map_err(|what| fs.corrupt_block(number, what))?;
                let is_own = bits.contains(&0) && !used;
                (fs.chain_of(fs.global_bitmap, &group)?, group.are_all(bits.clone(), !used) && !is_own)
            };
            if !is_right {
                let (act, state) = if used { ("allocate", "in use") } else { ("free", "free") };
                let what =
                    format!("cannot {act} clusters {range:?}: marked as {state} already; run ivers check");
                return Err(fs.corrupt_block(number, what));
            }
            let (count, free) = (i32::from(bits.end - bits.start), end - range.start);
            self.put_shape(number, &GROUP, |bytes| set_bits(bytes, bits, used))?;
            let more = if used { -count } else { count };
            self.put_shape(fs.global_bitmap, &DINODE, |bytes| add_to_chain(bytes, chain, more, 0))?;
            let known = &mut self.space.groups[nth as usize];
            *known = if *known == UNKNOWN { UNKNOWN } else { known.saturating_add_signed(more as i16) };
            self.space.free =
                if used { self.space.free.saturating_sub(free) } else { self.space.free + free };
            range.start = end;
        }
        Ok(())
    }

    /// Sets the bits of clusters that were claimed.
    pub fn take_claimed(&mut self, range: Range<u64>) -> Result<()> {
        self.space.busy.remove(range.clone());
        self.mark(range, true)
    }

    /// Takes clusters at once.
    pub fn clusters(&mut self, near: u64, count: u64) -> Result<Range<u64>> {
        let range = self.fs.claim(&mut self.space, near, (count, count), 0)?;
        self.take_claimed(range.clone())?;
        Ok(range)
    }

    /// Frees clusters. They can be taken again once that is durable.
    pub fn free_clusters(&mut self, range: Range<u64>) -> Result<()> {
        self.mark(range.clone(), false)?;
        self.space.busy.insert(range.clone());
        self.release_on_commit(range);
        Ok(())
    }

    fn sub(&mut self, sub: Sub) -> &mut SubAllocator {
        match sub {
            Sub::Inodes => &mut self.space.inodes,
            Sub::Blocks => &mut self.space.blocks,
        }
    }

    /// Makes sure that `count` blocks can be taken beside what is reserved, of which `credit` are the
    /// caller's. Growing is a complete change: if a later step fails, it may stay.
    pub fn ensure(&mut self, sub: Sub, count: u64, credit: u64) -> Result<()> {
        let reserved = if sub == Sub::Blocks { self.space.reserved_blocks } else { 0 };
        let need = count + reserved.saturating_sub(credit);
        while self.sub(sub).free() < need {
            let before = self.changed;
            self.grow(sub)?;
            self.changed = before;
        }
        Ok(())
    }

    /// Adds a group to an allocator of blocks.
    fn grow(&mut self, sub: Sub) -> Result<()> {
        let (fs, ino) = (self.fs, self.sub(sub).ino);
        let (list, room, block) = {
            let (_, block) = fs.dinode(ino)?;
            let list = ChainList::parse(&block[ID2_AT..]).map_err(|what| fs.corrupt(ino, what))?;
            (list, usize::from(u16_at(&block, ID2_AT + 4)), block)
        };
        let clusters = u64::from(list.clusters_per_group);
        let bits = u32::from(list.clusters_per_group) * fs.sb.blocks_per_cluster;
        let bytes = match fs.sb.has(incompat::DISCONTIG_BG) {
            true => SPLIT_BITMAP_BYTES,
            false => fs.sb.block_size as usize - BITMAP_AT,
        };
        if bits == 0 || bits as usize > bytes * 8 || room == 0 {
            let what = format!("cl_cpg is {clusters}, which gives no group of at most {} bits", bytes * 8);
            return Err(fs.corrupt(ino, what));
        }
        let total = u64::from(u32_at(&block, CLUSTERS_AT)) + clusters;
        drop(block);
        let smallest = (0..list.chains.len()).min_by_key(|&nth| list.chains[nth].total);
        let chain = if list.chains.len() < room { list.chains.len() } else { smallest.unwrap_or(0) };
        let next = list.chains.get(chain).map_or(0, |chain| chain.first);
        let range = self.clusters(0, clusters)?;
        let number = range.start * u64::from(fs.sb.blocks_per_cluster);
        self.put_new(number, GROUP.check_at, |group| {
            GROUP.put(group, number, fs.sb.generation);
            put_u16(group, 0x08, bytes as u16);
            put_u16(group, 0x0A, bits as u16);
            put_u16(group, 0x0C, bits as u16);
            put_u16(group, 0x0E, chain as u16);
            put_u64(group, 0x18, next);
            put_u64(group, 0x20, ino);
            set_bits(group, 0..1, true);
        })?;
        let size = total * u64::from(fs.sb.cluster_size());
        self.put_shape(ino, &DINODE, |inode| {
            put_u32(inode, CLUSTERS_AT, total as u32);
            put_u64(inode, SIZE_AT, size);
            if chain == list.chains.len() {
                put_u16(inode, ID2_AT + 6, chain as u16 + 1);
            }
            put_u64(inode, ID2_AT + 16 + chain * 16 + 8, number);
            add_to_chain(inode, chain as u16, bits as i32 - 1, bits);
        })?;
        self.sub(sub).groups.push(SubGroup { block: number, free: bits as u16 - 1 });
        Ok(())
    }

    /// Returns the block that [`block`](Self::block) takes next, the index of its group in `groups`, and the
    /// chain of the group.
    pub fn next_block(&mut self, sub: Sub) -> Result<(Taken, usize, u16)> {
        let fs = self.fs;
        let ino = self.sub(sub).ino;
        let Some(nth) = self.sub(sub).groups.iter().position(|group| group.free > 0) else {
            return Err(NameError::NoSpace.into());
        };
        let number = self.sub(sub).groups[nth].block;
        let bytes = fs.structure(number, &GROUP)?;
        let group = Group::parse(&bytes, &fs.sb).map_err(|what| fs.corrupt_block(number, what))?;
        let found = group.find_free(1, 1).filter(|_| group.parent == ino && group.is_contiguous());
        let wrong = || fs.corrupt_block(number, "the group has fewer free bits than it counts");
        let bit = found.ok_or_else(wrong)?.start;
        Ok((Taken { block: number + u64::from(bit), bit }, nth, fs.chain_of(ino, &group)?))
    }

    /// Takes a block of an allocator. [`ensure`](Self::ensure) made sure that there is one.
    pub fn block(&mut self, sub: Sub) -> Result<Taken> {
        let (taken, nth, chain) = self.next_block(sub)?;
        let (ino, number, bit) = (self.sub(sub).ino, self.sub(sub).groups[nth].block, taken.bit);
        self.put_shape(number, &GROUP, |bytes| set_bits(bytes, bit..bit + 1, true))?;
        self.put_shape(ino, &DINODE, |bytes| add_to_chain(bytes, chain, -1, 0))?;
        self.sub(sub).groups[nth].free -= 1;
        Ok(taken)
    }

    /// Frees a block of an allocator of any slot.
    pub fn free_block(&mut self, sub: Sub, block: u64, (slot, bit, place): Origin) -> Result<()> {
        let fs = self.fs;
        let name = if sub == Sub::Inodes { "inode_alloc" } else { "extent_alloc" };
        let unknown = || fs.corrupt_block(block, format!("it comes from slot {slot}, which does not exist"));
        let ino = self.writer.files.of_slot(name, slot).ok_or_else(unknown)?;
        let number = if place != 0 { Some(place) } else { block.checked_sub(bit.into()) };
        let number = number.ok_or_else(unknown)?;
        let (chain, is_contiguous) = {
            let bytes = fs.structure(number, &GROUP)?;
            let group = Group::parse(&bytes, &fs.sb).map_err(|what| fs.corrupt_block(number, what))?;
            let is_right = bit != 0
                && group.parent == ino
                && group.are_all(bit..bit.saturating_add(1), true)
                && group.block_of(bit, &fs.sb) == Some(block);
            if !is_right {
                let what = format!("bit {bit} of the group is freed, and not that of block {block}");
                return Err(fs.corrupt_block(number, what));
            }
            (fs.chain_of(ino, &group)?, group.is_contiguous())
        };
        self.put_shape(number, &GROUP, |bytes| set_bits(bytes, bit..bit + 1, false))?;
        self.put_shape(ino, &DINODE, |bytes| add_to_chain(bytes, chain, 1, 0))?;
        if let Some(group) = self.sub(sub).groups.iter_mut().find(|group| group.block == number) {
            group.free = group.free.saturating_add(is_contiguous.into());
        }
        Ok(())
    }
}
