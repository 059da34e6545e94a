//! The sizes that a filesystem can shrink to.
//!
//! The metadata of groups that are removed occupies blocks until they are removed, also where it lies in
//! groups that stay (`flex_bg`). So a filesystem may have to shrink in several stages, and every stage makes
//! space for the next.

use super::plan::least_blocks;
use crate::fs::Ext4;
use crate::layout::features::Incompat;
use crate::layout::inode::slot_state;
use crate::layout::superblock::Superblock;
use ivers_block::BlockNo;
use ivers_vfs::Result;

/// Free blocks that are left for the maps of moved files and for names.
const MARGIN: u64 = 64;
/// Blocks that moving an inode changes, beside those with its names.
pub(super) const MOVE_CREDITS: u32 = 24;
/// A smaller gain is not worth another stage.
const LEAST_GAIN: u64 = 64;

/// How full the groups are, and where their metadata lies.
pub(super) struct Fits {
    sb: Superblock,
    /// Of each group: the first block and the length of bitmaps and inode table.
    own: Vec<[(BlockNo, u64); 3]>,
    /// Of each group: blocks in use.
    used: Vec<u32>,
    /// Blocks in use by files, all groups together.
    files: u64,
    inodes: u64,
    /// Groups that must stay.
    least_groups: u32,
}

impl Fits {
    pub(super) fn new(fs: &Ext4) -> Result<Self> {
        let sb = fs.sb.clone();
        let (mut own, mut used) = (Vec::new(), Vec::new());
        let (mut all, mut inodes) = (0, 0);
        for group in 0..sb.groups() {
            let desc = fs.groups.read_desc(group)?;
            own.push(fs.groups.fixed_runs(&desc).map(|(_, start, len)| (start, len)));
            used.push(sb.group_blocks(group) - desc.free_blocks);
            all += u64::from(sb.group_blocks(group) - desc.free_blocks);
            inodes += u64::from(sb.inodes_per_group - desc.free_inodes);
        }
        let fixed: u64 = (0..sb.groups()).map(|group| sb.own_blocks(group)).sum();
        Ok(Self { files: all.saturating_sub(fixed), sb, own, used, inodes, least_groups: 1 })
    }

    /// The number of groups of a filesystem of this many blocks.
    pub(super) fn groups_of(&self, blocks: u64) -> u32 {
        (blocks - self.sb.first_data_block.0).div_ceil(u64::from(self.sb.blocks_per_group)) as u32
    }

    /// The fewest blocks that suffice if the first `groups` groups stay of `before`. `None`: these groups
    /// are too few.
    fn needed(&self, groups: u32, before: u32, blocks_before: u64) -> Option<u64> {
        let sb = &self.sb;
        let end = BlockNo(sb.group_first_block(groups).0.min(blocks_before));
        let stay = &self.own[..groups as usize];
        let gone = &self.own[groups as usize..before as usize];
        let below = |&(start, len): &(BlockNo, u64)| {
            if start < end { ((start + len).min(end)) - start } else { 0 }
        };
        let in_the_way: u64 = gone.iter().flatten().map(below).sum();
        let fixed: u64 = (0..groups).map(|group| sb.own_blocks(group)).sum();
        let beyond: u64 = self.used[groups as usize - 1..].iter().map(|&used| u64::from(used)).sum();
        let nodes = if sb.incompat.contains(Incompat::EXTENTS) {
            2 * beyond.min(self.files) / u64::from(sb.block_size / 12)
        } else {
            0
        };
        let blocks = sb.first_data_block.0 + self.files + fixed + in_the_way + nodes + MARGIN;
        let last = groups - 1;
        let least = sb.group_first_block(last).0 + u64::from(least_blocks(sb, last));
        let own_end = stay.iter().flatten().map(|&(start, len)| (start + len).0).max().unwrap_or(0);
        let blocks = blocks.max(least).max(own_end);
        let fits = groups >= self.least_groups
            && self.inodes <= u64::from(groups) * u64::from(sb.inodes_per_group)
            && blocks <= end.0;
        fits.then_some(blocks)
    }

    /// The smallest size that can be reached at once.
    fn least(&self, before: u32, blocks_before: u64) -> u64 {
        let (mut low, mut high) = (1, before);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.needed(middle, before, blocks_before) {
                Some(_) => high = middle,
                None => low = middle + 1,
            }
        }
        self.needed(low, before, blocks_before).unwrap_or(blocks_before)
    }

    /// The sizes to shrink to in turn, in blocks. `Err`: the smallest size, if `wanted` is smaller.
    pub(super) fn stages(&self, wanted: Option<u64>) -> std::result::Result<Vec<u64>, u64> {
        let (mut before, mut blocks) = (self.sb.groups(), self.sb.blocks_count());
        let mut stages = Vec::new();
        loop {
            if let Some(wanted) = wanted
                && self.needed(self.groups_of(wanted), before, blocks).is_some_and(|least| least <= wanted)
            {
                if wanted < blocks {
                    stages.push(wanted);
                }
                return Ok(stages);
            }
            let least = self.least(before, blocks);
            if least + LEAST_GAIN > blocks {
                return if wanted.is_some() { Err(blocks) } else { Ok(stages) };
            }
            stages.push(least);
            (before, blocks) = (self.groups_of(least), least);
        }
    }

    /// Looks for inodes after the first `groups` groups that have too many names to move in one transaction
    /// of `credits` blocks, and keeps their groups. Returns whether there are any.
    pub(super) fn keep_unmovable(&mut self, fs: &Ext4, groups: u32, credits: u32) -> Result<bool> {
        let most = credits.saturating_sub(MOVE_CREDITS) / 2;
        for group in (groups..self.sb.groups()).rev() {
            let mut found = false;
            each_used_inode(fs, group, &mut |ino| {
                if let Some(slot) = fs.raw_inode_if_written(ino)? {
                    let state = slot_state(&slot);
                    // One link of a directory (`dir_nlink`): too many subdirectories to count.
                    let uncounted = state.links == 1 && state.mode & 0xF000 == 0x4000;
                    found |= uncounted || u32::from(state.links) > most;
                }
                Ok(())
            })?;
            if found {
                self.least_groups = group + 1;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Calls `f` for every inode that the bitmap of a group marks as used.
pub(super) fn each_used_inode(fs: &Ext4, group: u32, f: &mut dyn FnMut(u32) -> Result<()>) -> Result<()> {
    let bitmap = {
        let group = fs.groups.get(group)?;
        let group = group.lock();
        let Some(buffer) = fs.groups.inode_bitmap(&group)? else { return Ok(()) };
        buffer.read().to_vec()
    };
    let per = fs.sb.inodes_per_group;
    let mut bit = crate::groups::next_set(&bitmap, 0, per);
    while bit < per {
        f(group * per + bit + 1)?;
        bit = crate::groups::next_set(&bitmap, bit + 1, per);
    }
    Ok(())
}
