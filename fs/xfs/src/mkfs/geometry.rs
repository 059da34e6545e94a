//! The sizes of a new filesystem: blocks, allocation groups, log.

use super::options::{MkfsOptions, MkfsReport};
use crate::label::stored_label;
use crate::layout::features::{Incompat, RoCompat};
use ivers_vfs::{Error, Result};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// The least that mkfs.xfs makes.
const MIN_BYTES: u64 = 300 * MIB;
pub(super) const MIN_GROUP_BYTES: u64 = 16 * MIB;
/// An allocation group has less than this.
const GROUP_BYTES_LIMIT: u64 = TIB;
/// From this size on, allocation groups have their largest size.
const LARGE_BYTES: u64 = 4 * TIB;
/// Bits of a block number.
const BLOCK_NUMBER_BITS: u32 = 52;
const USUAL_GROUPS: u32 = 4;
/// The log is this part of the filesystem, within its limits.
const LOG_SHARE: u64 = 2048;
const LOG_MIN_BYTES: u64 = 64 * MIB;
const LOG_MAX_BYTES: u64 = 2038 * MIB;
/// The least log of race tests: the driver needs more than the largest transaction that they make.
const RACE_LOG_BYTES: u64 = MIB;
/// Blocks that a group with the log has beside its structures, at least.
const SPARE_BLOCKS: u32 = 64;
/// Inodes are allocated in chunks of this many, and in whole blocks.
const CHUNK_INODES: u32 = 64;
/// Bytes that Linux reads at once to get inodes of 256 bytes.
const CLUSTER_BYTES: u32 = 8192;

pub(super) fn refuse(why: String) -> Error {
    Error::Incompatible(why)
}

/// The planned sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub block_size: u32,
    pub sector_size: u32,
    pub inode_size: u32,
    pub blocks: u64,
    pub groups: u32,
    /// Blocks of a group; the last one may have fewer.
    pub group_blocks: u32,
    pub log_blocks: u32,
    /// Blocks of the list of free blocks of each group.
    pub free_list: u32,
    /// The root of each B-tree, in the order of their blocks.
    pub trees: Vec<Tree>,
}

/// A B-tree of an allocation group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tree {
    FreeByBlock,
    FreeBySize,
    Inodes,
    FreeInodes,
    ReverseMap,
    ReferenceCounts,
}

impl Plan {
    pub fn new(size_bytes: u64, options: &MkfsOptions) -> Result<Self> {
        let (block_size, sector_size, inode_size) = check_sizes(options)?;
        check_identity(options)?;
        if !options.small && size_bytes < MIN_BYTES {
            return Err(refuse(format!("{size_bytes} bytes are less than 300 MiB, the least for XFS")));
        }
        let blocks = size_bytes / u64::from(block_size);
        if blocks >> BLOCK_NUMBER_BITS != 0 {
            return Err(refuse(format!("{blocks} blocks of {block_size} bytes are too many for XFS")));
        }
        let trees = [
            (Tree::FreeByBlock, true),
            (Tree::FreeBySize, true),
            (Tree::Inodes, true),
            (Tree::FreeInodes, options.features.has(RoCompat::FINOBT)),
            (Tree::ReverseMap, options.features.has(RoCompat::RMAPBT)),
            (Tree::ReferenceCounts, options.features.has(RoCompat::REFLINK)),
        ];
        let mut plan = Self {
            block_size,
            sector_size,
            inode_size,
            blocks,
            groups: 0,
            group_blocks: 0,
            log_blocks: 0,
            free_list: 0,
            trees: trees.into_iter().filter(|(_, exists)| *exists).map(|(tree, _)| tree).collect(),
        };
        match options.groups {
            Some(groups) => plan.divide(groups)?,
            None => plan.divide_by_size()?,
        }
        // The log depends on the blocks, which the groups may have reduced.
        plan.log_blocks = plan.choose_log(options)?;
        if options.groups.is_none() && !plan.has_room_for_log() && plan.groups == USUAL_GROUPS {
            plan.blocks = blocks;
            plan.divide(2)?;
        }
        if !plan.has_room_for_log() {
            return Err(refuse(format!(
                "{} allocation groups of {} blocks are too small for a log of {} blocks of {block_size} \
                 bytes; choose a larger size, fewer groups, or smaller blocks",
                plan.groups, plan.group_blocks, plan.log_blocks
            )));
        }
        Ok(plan)
    }

    /// Divides the blocks into groups as mkfs.xfs does.
    fn divide_by_size(&mut self) -> Result<()> {
        let bytes = self.blocks * u64::from(self.block_size);
        if bytes < LARGE_BYTES {
            let groups = if bytes < u64::from(USUAL_GROUPS) * MIN_GROUP_BYTES { 2 } else { USUAL_GROUPS };
            return self.divide(groups);
        }
        self.divide_by(self.group_blocks_max())
    }

    fn group_blocks_max(&self) -> u64 {
        GROUP_BYTES_LIMIT / u64::from(self.block_size) - 1
    }

    fn divide(&mut self, groups: u32) -> Result<()> {
        if groups < 2 {
            return Err(refuse(
                "XFS needs at least two allocation groups, so that its superblock has a copy".into(),
            ));
        }
        let each = self.blocks.div_ceil(u64::from(groups));
        // Four equal groups of just under 4 TiB would be one block too large.
        let each = if each == self.group_blocks_max() + 1 { each - 1 } else { each };
        self.divide_by(each)
    }

    fn divide_by(&mut self, each: u64) -> Result<()> {
        let least = MIN_GROUP_BYTES / u64::from(self.block_size);
        if each < least {
            return Err(refuse(format!(
                "allocation groups of {each} blocks are smaller than 16 MiB; choose a larger size or \
                 fewer groups"
            )));
        }
        let most = self.group_blocks_max();
        if each > most {
            return Err(refuse(format!(
                "allocation groups of {each} blocks are not smaller than 1 TiB; choose more groups"
            )));
        }
        let mut groups = self.blocks.div_ceil(each);
        let last = self.blocks - (groups - 1) * each;
        if last < least {
            groups -= 1;
            self.blocks = groups * each;
        }
        if groups < 2 {
            return Err(refuse(format!("{} blocks are too few for two allocation groups", self.blocks)));
        }
        self.groups = u32::try_from(groups).map_err(|_| {
            refuse(format!("{} blocks are too many: there would be {groups} groups", self.blocks))
        })?;
        self.group_blocks = each as u32;
        self.free_list = self.free_list_blocks();
        Ok(())
    }

    fn choose_log(&self, options: &MkfsOptions) -> Result<u32> {
        let block_size = u64::from(self.block_size);
        let (least, most) = (log_min_blocks(self.block_size, options.small), LOG_MAX_BYTES / block_size);
        let Some(bytes) = options.log_bytes else {
            return Ok((self.blocks / LOG_SHARE).clamp(least, most) as u32);
        };
        if bytes % block_size != 0 {
            return Err(refuse(format!(
                "a log of {bytes} bytes is no multiple of the block size {block_size}"
            )));
        }
        let blocks = bytes / block_size;
        if !(least..=most).contains(&blocks) {
            return Err(refuse(format!(
                "a log of {bytes} bytes is not between {} and {} bytes",
                least * block_size,
                most * block_size
            )));
        }
        Ok(blocks as u32)
    }

    fn has_room_for_log(&self) -> bool {
        let needed =
            u64::from(self.fixed_blocks() + self.free_list + SPARE_BLOCKS) + u64::from(self.log_blocks);
        needed <= u64::from(self.group_len(self.log_group()))
    }

    /// The group in the middle holds the log: never the first one, which has the root directory.
    pub fn log_group(&self) -> u32 {
        self.groups / 2
    }

    /// Blocks of a group.
    pub fn group_len(&self, group: u32) -> u32 {
        let before = u64::from(group) * u64::from(self.group_blocks);
        (self.blocks - before).min(u64::from(self.group_blocks)) as u32
    }

    /// Blocks of the headers of a group: superblock, AGF, AGI and AGFL, a sector each.
    pub fn header_blocks(&self) -> u32 {
        (4 * self.sector_size).div_ceil(self.block_size)
    }

    /// Blocks of the headers and of the roots of the B-trees, which start each group.
    pub fn fixed_blocks(&self) -> u32 {
        self.header_blocks() + self.trees.len() as u32
    }

    /// The block of the root of a B-tree, if the filesystem has that tree.
    pub fn tree_root(&self, tree: Tree) -> Option<u32> {
        let index = self.trees.iter().position(|other| *other == tree)?;
        Some(self.header_blocks() + index as u32)
    }

    /// Blocks that a change may take for the B-trees of free space and of reverse mappings while they have
    /// one level: one for each split of a tree that can get a second level, and its new root.
    fn free_list_blocks(&self) -> u32 {
        let header = size_of::<crate::layout::raw::RawShortBlock>() as u32;
        let least_records = |record_bytes: u32| (self.block_size - header) / record_bytes / 2;
        // Free blocks and used ones alternate at worst.
        let free_grows = self.group_blocks.div_ceil(2) > least_records(8);
        let map_grows = self.tree_root(Tree::ReverseMap).is_some() && self.group_blocks > least_records(24);
        2 * (2 * u32::from(free_grows) + u32::from(map_grows))
    }

    /// Inodes of the first chunk.
    pub fn chunk_inodes(&self) -> u32 {
        CHUNK_INODES.max(self.block_size / self.inode_size)
    }

    /// Blocks of the first chunk.
    pub fn chunk_blocks(&self) -> u32 {
        self.chunk_inodes() * self.inode_size / self.block_size
    }

    /// `sb_inoalignmt` and `sb_spino_align`: the alignment of chunks, and of parts of chunks, in blocks.
    pub fn inode_alignment(&self, options: &MkfsOptions) -> (u32, u32) {
        let cluster = CLUSTER_BYTES * (self.inode_size / 256) / self.block_size;
        match options.features.has_incompat(Incompat::SPARSE) {
            true => (CHUNK_INODES * self.inode_size / self.block_size, cluster),
            false => (cluster, 0),
        }
    }

    /// Bytes of the unit of log records, if it is not a sector of 512 bytes: a whole number of sectors of the
    /// device, and of blocks.
    pub fn log_unit(&self) -> Option<u32> {
        (self.sector_size > 512).then_some(self.block_size)
    }

    pub fn report(&self, options: &MkfsOptions) -> MkfsReport {
        MkfsReport {
            block_size: self.block_size,
            blocks: self.blocks,
            groups: self.groups,
            log_blocks: self.log_blocks,
            sector_size: self.sector_size,
            inode_size: self.inode_size,
            features: options.features.names(),
        }
    }
}

/// Returns block size, sector size and inode size.
fn check_sizes(options: &MkfsOptions) -> Result<(u32, u32, u32)> {
    let check = |name: &str, value: u32, least: u32, most: u32| match value {
        value if value.is_power_of_two() && (least..=most).contains(&value) => Ok(value),
        value => Err(refuse(format!("{name} size {value} is not a power of two from {least} to {most}"))),
    };
    let block_size = check("block", options.block_size, 1024, 65536)?;
    let sector_size = check("sector", options.sector_size, 512, block_size.min(32768))?;
    let inode_size = check("inode", options.inode_size, 512, (block_size / 2).min(2048))?;
    Ok((block_size, sector_size, inode_size))
}

fn check_identity(options: &MkfsOptions) -> Result<()> {
    stored_label(&options.label)?;
    if options.uuid == [0; 16] {
        return Err(refuse("Linux does not mount an XFS whose UUID is all zeros".into()));
    }
    if !options.features.has_incompat(Incompat::BIGTIME) && i32::try_from(options.timestamp).is_err() {
        return Err(refuse(format!("without bigtime, times end in 2038: {} is later", options.timestamp)));
    }
    Ok(())
}

/// The least blocks of a log. Linux and xfsprogs compute it from the largest transaction, each version in
/// its own way: these are more than any of them asked for with any features, rounded up.
fn log_min_blocks(block_size: u32, small: bool) -> u64 {
    // A race test has to reach the end of the log in few steps, and no kernel sees its image.
    if cfg!(shuttle) {
        return RACE_LOG_BYTES / u64::from(block_size);
    }
    let largest_transactions = match block_size {
        1024 | 2048 => 10 * MIB / u64::from(block_size),
        4096 => 4352,
        8192 | 16384 | 32768 => 3520,
        _ => 2816,
    };
    if small { largest_transactions } else { largest_transactions.max(LOG_MIN_BYTES / u64::from(block_size)) }
}
