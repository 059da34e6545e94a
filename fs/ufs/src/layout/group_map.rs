//! A descriptor of a group in memory, of which space and inodes are taken.

use super::bytes::{Fields, FieldsMut};
use super::group::{Group, at, bit};
use super::superblock::{Counts, Superblock, Version};
use std::collections::BTreeSet;
use std::ops::Range;

/// The field that says how many inodes were ever written. It must become durable after the inodes.
pub const INITEDIBLK: Range<usize> = at::CG_INITEDIBLK..at::CG_INITEDIBLK + 4;

/// A descriptor of a group that changes. Numbers of fragments, blocks and inodes count in the group.
pub struct GroupMap {
    bytes: Vec<u8>,
    sb: Superblock,
    /// Fragments of the group.
    frags: u64,
    /// Offsets of the maps: inodes in use, free fragments, free blocks, and the counts of clusters.
    used_at: usize,
    free_at: usize,
    clusters_at: usize,
    sums_at: usize,
    /// The fragments of the descriptor that differ from those on the device.
    changed: BTreeSet<usize>,
}

impl GroupMap {
    /// Checks a descriptor, which is a block long.
    pub fn parse(bytes: Vec<u8>, sb: &Superblock, group: u32) -> Result<Self, String> {
        Group::parse(&bytes, sb, group)?;
        let fields = Fields::new(&bytes, sb.order);
        let offset = |at: usize| fields.u32(at) as usize;
        let (used_at, free_at) = (offset(at::CG_IUSEDOFF), offset(at::CG_FREEOFF));
        let (clusters_at, sums_at) = (offset(at::CG_CLUSTEROFF), offset(at::CG_CLUSTERSUMOFF));
        let frags = sb.group_frags(group);
        let changed = BTreeSet::new();
        Ok(Self { bytes, sb: sb.clone(), frags, used_at, free_at, clusters_at, sums_at, changed })
    }

    /// The counts of the group.
    pub fn counts(&self) -> Counts {
        Counts::parse(&Fields::new(&self.bytes, self.sb.order), at::CG_CS)
    }

    /// The bytes, with a new check hash.
    pub fn hashed_bytes(&mut self) -> &[u8] {
        if self.sb.hashes_groups() {
            let covered = self.bytes.len().min(self.sb.group_bytes as usize);
            FieldsMut::new(&mut self.bytes[..covered], self.sb.order).set_check_hash(at::CG_CKHASH);
        }
        &self.bytes
    }

    /// Takes the list of fragments of the descriptor that have changed. The first one has the check hash.
    pub fn take_changed(&mut self) -> BTreeSet<usize> {
        self.changed.insert(at::CG_CKHASH / self.sb.fragment_size as usize);
        std::mem::take(&mut self.changed)
    }

    fn touch(&mut self, at: usize) {
        self.changed.insert(at / self.sb.fragment_size as usize);
    }

    fn u32(&self, at: usize) -> u32 {
        Fields::new(&self.bytes, self.sb.order).u32(at)
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        FieldsMut::new(&mut self.bytes, self.sb.order).u32(at, value);
        self.touch(at);
    }

    fn add(&mut self, at: usize, more: i32) {
        self.set_u32(at, self.u32(at).saturating_add_signed(more));
    }

    fn bit(&self, map_at: usize, nth: u64) -> bool {
        bit(self.bytes.get(map_at..).unwrap_or_default(), nth)
    }

    fn set_bit(&mut self, map_at: usize, nth: u64, value: bool) {
        let at = map_at + (nth / 8) as usize;
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte = *byte & !(1 << (nth % 8)) | u8::from(value) << (nth % 8);
            self.touch(at);
        }
    }

    /// Blocks of the group. The last one may be shorter than others.
    fn blocks(&self) -> u64 {
        self.frags.div_ceil(self.sb.frags_per_block.into())
    }

    /// The free fragments of a block, as bits.
    fn mask(&self, block: u64) -> u32 {
        // The fragments of a block are in one byte.
        let first = block * u64::from(self.sb.frags_per_block);
        let byte = self.bytes.get(self.free_at + (first / 8) as usize).copied().unwrap_or(0);
        let exist = self.frags.saturating_sub(first).min(self.sb.frags_per_block.into());
        u32::from(byte) >> (first % 8) & ((1 << exist) - 1)
    }

    fn full_mask(&self) -> u32 {
        (1 << self.sb.frags_per_block) - 1
    }

    /// Whether a fragment is free.
    pub fn is_frag_free(&self, nth: u64) -> bool {
        nth < self.frags && self.bit(self.free_at, nth)
    }

    /// Whether all fragments in a range are free.
    pub fn are_free(&self, mut range: Range<u64>) -> bool {
        range.all(|nth| self.is_frag_free(nth))
    }

    /// Returns the first fragment of a free block, looked for from a fragment on, and then from the start.
    pub fn find_block(&self, from: u64) -> Option<u64> {
        let per_block = u64::from(self.sb.frags_per_block);
        let (first, full) = ((from / per_block).min(self.blocks()), self.full_mask());
        let is_free = |block: &u64| self.mask(*block) == full;
        let found = (first..self.blocks()).find(is_free).or_else(|| (0..first).find(is_free));
        found.map(|block| block * per_block)
    }

    /// Returns `count` free fragments of a block that is partly in use. The shortest run that suffices is
    /// taken, and of these the first one.
    pub fn find_frags(&self, count: u64) -> Option<u64> {
        let per_block = u64::from(self.sb.frags_per_block);
        let length = (count..per_block).find(|&length| self.u32(at::CG_FRSUM + length as usize * 4) > 0)?;
        let full = self.full_mask();
        let blocks = (0..self.blocks()).map(|block| (block, self.mask(block)));
        blocks.filter(|&(_, mask)| mask != 0 && mask != full).find_map(|(block, mask)| {
            let run = runs(mask).find(|&(_, len)| len == length as u32)?;
            Some(block * per_block + u64::from(run.0))
        })
    }

    /// Marks fragments as free or as used. Returns an error, with nothing changed, if one of them is already.
    pub fn mark_frags(&mut self, range: Range<u64>, free: bool) -> Result<(), String> {
        if range.end > self.frags || range.clone().any(|nth| self.is_frag_free(nth) == free) {
            let state = if free { "free already" } else { "used already" };
            return Err(format!("fragments {range:?} of the group: some are {state}"));
        }
        let per_block = u64::from(self.sb.frags_per_block);
        let mut at = range.start;
        while at < range.end {
            let block = at / per_block;
            let end = range.end.min((block + 1) * per_block);
            let before = self.mask(block);
            (at..end).for_each(|nth| self.set_bit(self.free_at, nth, free));
            let after = self.mask(block);
            self.count(before, -1);
            self.count(after, 1);
            if (before == self.full_mask()) != (after == self.full_mask()) {
                self.mark_cluster(block, free);
            }
            at = end;
        }
        Ok(())
    }

    /// Adds a block with these free fragments to the counts, or removes it.
    fn count(&mut self, mask: u32, sign: i32) {
        if mask == self.full_mask() {
            return self.add(at::CG_CS + 4, sign);
        }
        self.add(at::CG_CS + 12, sign * mask.count_ones() as i32);
        for (_, len) in runs(mask) {
            self.add(at::CG_FRSUM + len as usize * 4, sign);
        }
    }

    /// Marks a block as free or not in the map of clusters, and counts the clusters that it joins or parts.
    fn mark_cluster(&mut self, block: u64, free: bool) {
        let longest = u64::from(self.sb.cluster_lengths);
        if longest == 0 || block >= self.frags / u64::from(self.sb.frags_per_block) {
            return;
        }
        let is_free = |block: &u64| self.bit(self.clusters_at, *block);
        let last = (self.frags / u64::from(self.sb.frags_per_block)).min(block + 1 + longest);
        let after = (block + 1..last).take_while(is_free).count();
        let before = (block.saturating_sub(longest)..block).rev().take_while(is_free).count();
        let sign = if free { 1 } else { -1 };
        let joined = (before + after + 1).min(longest as usize);
        self.set_bit(self.clusters_at, block, free);
        for (length, sign) in [(before, -sign), (after, -sign), (joined, sign)] {
            if length > 0 {
                self.add(self.sums_at + length * 4, sign);
            }
        }
    }

    /// Whether an inode is marked as used.
    pub fn is_inode_used(&self, nth: u32) -> bool {
        self.bit(self.used_at, nth.into())
    }

    /// Returns the first free inode from a number on.
    pub fn find_inode(&self, from: u32) -> Option<u32> {
        (from..self.sb.inodes_per_group).find(|&nth| !self.bit(self.used_at, nth.into()))
    }

    /// Marks an inode as used or as free. Returns an error, with nothing changed, if it is already.
    pub fn mark_inode(&mut self, nth: u32, used: bool, is_dir: bool) -> Result<(), String> {
        if self.bit(self.used_at, nth.into()) == used {
            return Err(format!(
                "inode {nth} of the group is {} already",
                if used { "used" } else { "free" }
            ));
        }
        self.set_bit(self.used_at, nth.into(), used);
        let sign = if used { 1 } else { -1 };
        self.add(at::CG_CS + 8, -sign);
        if is_dir {
            self.add(at::CG_CS, sign);
        }
        Ok(())
    }

    /// How many inodes were ever written.
    pub fn initialized_inodes(&self) -> u32 {
        match self.sb.version {
            Version::Ufs1 => self.sb.inodes_per_group,
            Version::Ufs2 => self.u32(at::CG_INITEDIBLK),
        }
    }

    /// Sets how many inodes were ever written.
    pub fn set_initialized_inodes(&mut self, count: u32) {
        self.set_u32(at::CG_INITEDIBLK, count);
    }

    /// Sets all maps and counts: which fragments are free, which inodes are used, and which of these are
    /// directories.
    pub fn rebuild(&mut self, is_free: impl Fn(u64) -> bool, is_used: impl Fn(u32) -> Option<bool>) {
        let per_block = u64::from(self.sb.frags_per_block);
        let (inodes, longest) = (self.sb.inodes_per_group, self.sb.cluster_lengths as usize);
        let maps = [(self.used_at, inodes.into()), (self.free_at, self.frags)];
        let clusters = (longest > 0).then_some((self.clusters_at, self.frags / per_block));
        for (at, bits) in maps.into_iter().chain(clusters) {
            let bytes = bits.div_ceil(8) as usize;
            self.bytes.get_mut(at..at + bytes).unwrap_or_default().fill(0);
        }
        [0, 4, 12].into_iter().for_each(|offset| self.set_u32(at::CG_CS + offset, 0));
        self.set_u32(at::CG_CS + 8, inodes);
        (0..8).for_each(|length| self.set_u32(at::CG_FRSUM + length * 4, 0));
        if longest > 0 {
            (0..=longest).for_each(|length| self.set_u32(self.sums_at + length * 4, 0));
        }
        for block in 0..self.blocks() {
            let first = block * per_block;
            let end = (first + per_block).min(self.frags);
            let mask =
                (first..end).filter(|&nth| is_free(nth)).fold(0, |mask, nth| mask | 1 << (nth - first));
            for (start, len) in runs(mask) {
                let start = first + u64::from(start);
                // Nothing is marked as free yet.
                let _ = self.mark_frags(start..start + u64::from(len), true);
            }
        }
        for (nth, is_dir) in (0..inodes).filter_map(|nth| Some((nth, is_used(nth)?))) {
            let _ = self.mark_inode(nth, true, is_dir);
        }
        self.changed = (0..self.bytes.len() / self.sb.fragment_size as usize).collect();
    }
}

/// The runs of bits in a mask: the first bit and the length of each.
fn runs(mask: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let start = (rest != 0).then(|| rest.trailing_zeros())?;
        let len = (rest >> start).trailing_ones();
        rest &= !(((1 << len) - 1) << start);
        Some((start, len))
    })
}
