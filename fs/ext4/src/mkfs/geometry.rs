//! The sizes of a new filesystem: blocks, groups, inodes, journal.

use super::features::{FeatureChanges, Features};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{MAGIC, stored_label};
use crate::layout::{Compat, Incompat, RoCompat};
use ivers_vfs::{Error, Result};
use md5::{Digest, Md5};
use zerocopy::FromZeros;

/// The format of a new filesystem: which features it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExtType {
    /// No journal, blocks mapped by indirect blocks, no checksums.
    Ext2,
    /// As ext2, with a journal.
    Ext3,
    /// Journal, extents, 64-bit block numbers, flexible groups, checksums of all metadata.
    #[default]
    Ext4,
}

impl ExtType {
    /// The name, as mount(8) knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
        }
    }
}

/// Options of a new filesystem.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The format.
    pub fs_type: ExtType,
    /// Block size: 1024, 2048 or 4096 bytes; `None`: by device size, 1024 below 512 MiB.
    pub block_size: Option<u32>,
    /// Inode size: 256 bytes or a larger power of two up to the block size.
    pub inode_size: u32,
    /// Bytes of the device for each inode; `None`: by device size.
    pub bytes_per_inode: Option<u32>,
    /// Reserved blocks, in percent (0..=50).
    pub reserved_percent: u32,
    /// The label, at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID.
    pub uuid: [u8; 16],
    /// The seed of hashed directories; `None`: derived from the UUID.
    pub hash_seed: Option<[u8; 16]>,
    /// Seconds since 1970: the time of creation and of every special inode.
    pub timestamp: u32,
    /// Owner of the root directory: user and group.
    pub root_owner: (u32, u32),
    /// Whether to make a journal, if the features have one.
    pub journal: bool,
    /// Changes of the features.
    pub features: FeatureChanges,
    /// The device reads as zeros: inode tables and the journal need no zeroing.
    pub zeroed: bool,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            fs_type: ExtType::Ext4,
            block_size: None,
            inode_size: 256,
            bytes_per_inode: None,
            reserved_percent: 5,
            label: Vec::new(),
            uuid: [0; 16],
            hash_seed: None,
            timestamp: 0,
            root_owner: (0, 0),
            journal: true,
            features: FeatureChanges::default(),
            zeroed: false,
        }
    }
}

/// The first inode that is not reserved; `lost+found` takes it.
pub(super) const FIRST_INO: u32 = 11;
const GROUPS_PER_FLEX_BITS: u8 = 4;
/// Minimum of blocks in the last group beside its metadata; a smaller group is left out.
const MIN_LAST_GROUP: u64 = 50;
/// A smaller filesystem has no space for a journal.
const JOURNAL_MIN_BLOCKS: u64 = 2_048;
/// Limit of the journal's blocks: four extents in the inode map no more.
const JOURNAL_MAX: u64 = 65_536;

/// The planned sizes.
#[derive(Debug, Clone)]
pub(super) struct Geometry {
    pub block_size: u32,
    pub blocks: u64,
    pub groups: u32,
    pub inodes_per_group: u32,
    pub desc_blocks: u32,
    pub reserved_gdt_blocks: u32,
    pub journal_blocks: u32,
    pub superblock: RawSuperblock,
}

fn refuse(why: String) -> Error {
    Error::Incompatible(why)
}

/// The journal's blocks for a filesystem of this size: about one in 32 to 64, as e2fsprogs scales it.
fn journal_blocks(blocks: u64) -> u64 {
    match blocks {
        0..JOURNAL_MIN_BLOCKS => 0,
        JOURNAL_MIN_BLOCKS..32_768 => 1_024,
        32_768..262_144 => 4_096,
        262_144..524_288 => 8_192,
        524_288..4_194_304 => 16_384,
        4_194_304..8_388_608 => 32_768,
        _ => JOURNAL_MAX,
    }
}

impl Geometry {
    pub fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<Self> {
        let small = size_bytes < 512 << 20;
        let block_size = options.block_size.unwrap_or(if small { 1024 } else { 4096 });
        if !matches!(block_size, 1024 | 2048 | 4096) {
            return Err(refuse(format!("block size {block_size} is not 1024, 2048 or 4096")));
        }
        if !options.inode_size.is_power_of_two() || !(256..=block_size).contains(&options.inode_size) {
            return Err(refuse(format!(
                "inode size {} is not a power of two from 256 to the block size {block_size}",
                options.inode_size
            )));
        }
        let label = stored_label(&options.label)?;
        if options.reserved_percent > 50 {
            return Err(refuse(format!("{} % reserved is more than 50 %", options.reserved_percent)));
        }
        let ratio = match options.bytes_per_inode {
            Some(ratio) if ratio < 1024 || u64::from(ratio) > size_bytes => {
                return Err(refuse(format!("{ratio} bytes per inode is not between 1024 and the size")));
            }
            Some(ratio) => ratio.max(block_size),
            None if small => 4096,
            None if size_bytes >= 16 << 40 => 65_536,
            None if size_bytes >= 4 << 40 => 32_768,
            None => 16_384,
        };
        let mut blocks = size_bytes / u64::from(block_size);
        let first_data_block = u64::from(block_size == 1024);
        let per_group = block_size * 8;
        let features = Features::new(options);
        if features.incompat.contains(Incompat::BIT64) && !features.incompat.contains(Incompat::EXTENTS) {
            return Err(refuse("the feature 64bit needs extent".to_owned()));
        }
        let is_flexible = features.incompat.contains(Incompat::FLEX_BG);
        let is_64bit = features.incompat.contains(Incompat::BIT64);
        let desc_size = if is_64bit { 64 } else { 32 };
        let descs_per_block = u64::from(block_size / desc_size);
        if !is_64bit && blocks > u64::from(u32::MAX) {
            return Err(refuse(format!(
                "{size_bytes} bytes are too many for {} without the feature 64bit, which ext4 has by default",
                options.fs_type.name()
            )));
        }
        loop {
            if blocks < 64 + first_data_block {
                return Err(refuse(format!("{size_bytes} bytes are not enough for a filesystem")));
            }
            let groups = (blocks - first_data_block).div_ceil(u64::from(per_group));
            let desc_blocks = groups.div_ceil(descs_per_block);
            let reserved = match features.compat.contains(Compat::RESIZE_INODE) {
                true => reserved_gdt(blocks, first_data_block, block_size, desc_size, desc_blocks),
                false => 0,
            };
            if desc_blocks + reserved + 16 > u64::from(per_group) / 2 || groups > u64::from(u32::MAX) / 8 {
                return Err(refuse(format!("{size_bytes} bytes are too many for blocks of {block_size}")));
            }
            let wanted = (size_bytes / u64::from(ratio)).clamp(16, u64::from(u32::MAX) - 1024);
            let inodes_per_block = block_size / options.inode_size;
            let unit = u64::from(inodes_per_block.max(8));
            let most = (u64::from(u32::MAX) / groups / unit * unit).min(u64::from(per_group));
            // The reserved inodes and `lost+found` are in group 0.
            let in_group = wanted.div_ceil(groups).max(u64::from(FIRST_INO));
            let inodes_per_group = in_group.next_multiple_of(unit).min(most) as u32;
            let table = u64::from(inodes_per_group / inodes_per_block);
            let last = blocks - first_data_block - (groups - 1) * u64::from(per_group);
            // The worst case: a group with a copy of the superblock, bitmaps and a table.
            let worst = 1 + desc_blocks + reserved + 2 + table + MIN_LAST_GROUP;
            // Without flexible groups, each group holds its own bitmaps and table.
            if !is_flexible && worst > u64::from(per_group) {
                return Err(refuse(format!("{table} blocks of inodes do not fit into a group")));
            }
            if last < worst {
                if groups == 1 {
                    return Err(refuse(format!("{size_bytes} bytes are not enough for a filesystem")));
                }
                blocks -= last;
                continue;
            }
            let journalled = features.compat.contains(Compat::HAS_JOURNAL);
            let journal_blocks = if journalled { journal_blocks(blocks) as u32 } else { 0 };
            if journalled && journal_blocks == 0 {
                return Err(refuse(format!(
                    "{blocks} blocks of {block_size} bytes are too few for a journal ({JOURNAL_MIN_BLOCKS} \
                     are needed)"
                )));
            }
            let mut geometry = Self {
                block_size,
                blocks,
                groups: groups as u32,
                inodes_per_group,
                desc_blocks: desc_blocks as u32,
                reserved_gdt_blocks: reserved as u32,
                journal_blocks,
                superblock: RawSuperblock::new_zeroed(),
            };
            geometry.superblock = geometry.raw_superblock(options, features);
            geometry.superblock.s_volume_name = label;
            return Ok(geometry);
        }
    }

    pub fn inodes(&self) -> u32 {
        self.inodes_per_group * self.groups
    }

    fn raw_superblock(&self, options: &MkfsOptions, mut features: Features) -> RawSuperblock {
        let mut raw = RawSuperblock::new_zeroed();
        let reserved = self.blocks * u64::from(options.reserved_percent) / 100;
        raw.s_inodes_count = self.inodes().into();
        raw.s_blocks_count_lo = (self.blocks as u32).into();
        raw.s_blocks_count_hi = ((self.blocks >> 32) as u32).into();
        raw.s_r_blocks_count_lo = (reserved as u32).into();
        raw.s_r_blocks_count_hi = ((reserved >> 32) as u32).into();
        raw.s_first_data_block = u32::from(self.block_size == 1024).into();
        raw.s_log_block_size = (self.block_size.trailing_zeros() - 10).into();
        raw.s_log_cluster_size = raw.s_log_block_size;
        raw.s_blocks_per_group = (self.block_size * 8).into();
        raw.s_clusters_per_group = raw.s_blocks_per_group;
        raw.s_inodes_per_group = self.inodes_per_group.into();
        raw.s_wtime = options.timestamp.into();
        raw.s_lastcheck = options.timestamp.into();
        raw.s_mkfs_time = options.timestamp.into();
        raw.s_max_mnt_count = u16::MAX.into();
        raw.s_magic = MAGIC.into();
        raw.s_state = 1.into();
        raw.s_errors = 1.into();
        raw.s_rev_level = 1.into();
        raw.s_first_ino = FIRST_INO.into();
        raw.s_inode_size = (options.inode_size as u16).into();
        if features.compat.contains(Compat::HAS_JOURNAL) {
            raw.s_journal_inum = 8.into();
            raw.s_jnl_backup_type = 1;
        }
        if self.reserved_gdt_blocks == 0 {
            features.compat -= Compat::RESIZE_INODE;
        }
        if features.incompat.contains(Incompat::BIT64) {
            raw.s_desc_size = 64.into();
        }
        if features.incompat.contains(Incompat::FLEX_BG) {
            raw.s_log_groups_per_flex = GROUPS_PER_FLEX_BITS;
        }
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            // crc32c
            raw.s_checksum_type = 1;
        }
        raw.s_feature_compat = features.compat.bits().into();
        raw.s_feature_incompat = features.incompat.bits().into();
        raw.s_feature_ro_compat = features.ro_compat.bits().into();
        raw.s_uuid = options.uuid;
        raw.s_reserved_gdt_blocks = (self.reserved_gdt_blocks as u16).into();
        let hash_seed = options.hash_seed.unwrap_or_else(|| derived_seed(&options.uuid));
        for (word, bytes) in raw.s_hash_seed.iter_mut().zip(hash_seed.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().expect("chunks of four")).into();
        }
        raw.s_def_hash_version = 1;
        // user_xattr and acl
        raw.s_default_mount_opts = 0xC.into();
        raw.s_min_extra_isize = 32.into();
        raw.s_want_extra_isize = 32.into();
        // signed directory hashes
        raw.s_flags = 1.into();
        raw
    }
}

/// A seed of hashed directories that follows from the UUID: so the UUID alone makes an image reproducible.
fn derived_seed(uuid: &[u8; 16]) -> [u8; 16] {
    Md5::new().chain_update(b"seed of hashed directories").chain_update(uuid).finalize().into()
}

/// Blocks after the descriptors that are reserved so that the filesystem can grow to 1,024 times its size,
/// limited by one indirect block.
fn reserved_gdt(
    blocks: u64,
    first_data_block: u64,
    block_size: u32,
    desc_size: u32,
    desc_blocks: u64,
) -> u64 {
    let most = blocks.saturating_mul(1024).min(u64::from(u32::MAX));
    let groups = most.saturating_sub(first_data_block).div_ceil(u64::from(block_size * 8));
    let wanted = groups.div_ceil(u64::from(block_size / desc_size)).saturating_sub(desc_blocks);
    wanted.min(u64::from(block_size / 4).saturating_sub(desc_blocks % u64::from(block_size / 4)))
}
