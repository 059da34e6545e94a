//! The superblock, checked once, and the arithmetic of addresses that follows from it.

use super::bytes::{MAGIC_SUPERBLOCK, read};
use super::checksum;
use super::features::{Features2, Incompat, RoCompat, Version};
use super::raw::RawSuperblock;
use ivers_block::{BlockNo, Unit};
use ivers_vfs::{Error, Result};
use std::ops::Range;

/// Blocks of the smallest allocation group. The format has 16 MiB; smaller ones are made for tests.
const MIN_AG_BLOCKS: u32 = 64;
/// The number of bits of a block in a `FsBlock`.
const FSBLOCK_BITS: u32 = 52;

/// A filesystem block as the format counts it: allocation group and block in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsBlock(pub u64);

/// The superblock.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// 4 or 5.
    pub version: u16,
    /// Bytes of a block: a power of two from 512 to 65536.
    pub block_size: u32,
    /// Bits of `block_size`.
    pub block_bits: u32,
    /// Bytes of a sector: a power of two from 512 to 32768, at most `block_size`.
    pub sector_size: u32,
    /// Bytes of an inode: a power of two from 256 to 2048, at most half a block.
    pub inode_size: u32,
    /// Bits of the number of an inode within its block.
    pub inopb_bits: u32,
    /// Blocks of an allocation group; the last one may have fewer.
    pub ag_blocks: u32,
    /// Bits of a block number within an allocation group.
    pub ag_block_bits: u32,
    /// Allocation groups.
    pub ag_count: u32,
    /// Blocks of the filesystem.
    pub blocks: u64,
    /// Bytes of a directory block: at least `block_size`, at most 65536.
    pub dir_block_size: u32,
    /// The root directory.
    pub root: u64,
    /// The UUID that users see.
    pub uuid: [u8; 16],
    /// The UUID in structures.
    pub meta_uuid: [u8; 16],
    /// The label, without padding.
    pub label: Vec<u8>,
    /// Features that matter for writing.
    pub ro_compat: RoCompat,
    /// Features that matter for reading.
    pub incompat: Incompat,
    /// Features of version 4.
    pub flags: Version,
    /// More features of version 4.
    pub features2: Features2,
    /// First block of the log.
    pub log_start: FsBlock,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// The log has records of version 2.
    pub log_v2: bool,
    /// Alignment of log records in bytes; 0 or 1: none.
    pub log_stripe_unit: u32,
    /// Allocated inodes, free inodes, free blocks.
    pub counts: Counts,
    /// Blocks of the realtime device.
    pub realtime_blocks: u64,
    /// Inodes without names: of the realtime device and of quotas.
    pub hidden_inos: [u64; 5],
    /// Which quotas are kept.
    pub quota_flags: u16,
    /// Percentage of the blocks that may be inodes.
    pub inode_max_percent: u8,
    /// What no code depends on.
    pub geometry: Geometry,
}

/// Alignments that the superblock states, in blocks; 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Of chunks of inodes.
    pub inode_alignment: u32,
    /// Of parts of sparse chunks.
    pub sparse_alignment: u32,
    /// Of large files: what one disk of an array has.
    pub stripe_unit: u32,
    /// What all disks of an array have.
    pub stripe_width: u32,
}

/// Counts in the superblock. They are right only if the filesystem was unmounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocated inodes.
    pub inodes: u64,
    /// Of them, free ones.
    pub free_inodes: u64,
    /// Free blocks.
    pub free_blocks: u64,
}

/// Bytes of a cluster of inodes of the smallest size.
const BIG_CLUSTER_BYTES: u32 = 8192;
const SMALLEST_INODE_BYTES: u32 = 256;

impl Superblock {
    /// Recognises a filesystem by the first bytes of a device.
    pub fn probe(head: &[u8]) -> bool {
        head.starts_with(b"XFSB")
    }

    /// Parses the start of a device of `device_bytes`. `head` has at least 512 bytes and, for the checksum,
    /// the whole sector. `place` names the image.
    pub fn parse(head: &[u8], device_bytes: u64, place: &str) -> Result<Self> {
        Self::parse_accepting(head, device_bytes, place, Incompat::empty())
    }

    /// As [`Superblock::parse`], but accepts features that a mount refuses.
    pub(crate) fn parse_accepting(
        head: &[u8],
        device_bytes: u64,
        place: &str,
        accepted: Incompat,
    ) -> Result<Self> {
        let bad = |what: String| Error::corrupt(what, format!("{place}, superblock"));
        let unsupported = |what: String| Error::Incompatible(format!("{place}: {what}"));
        let raw: RawSuperblock =
            read(head, 0).ok_or_else(|| bad("the image is too short for a superblock".into()))?;
        if raw.sb_magicnum.get() != MAGIC_SUPERBLOCK {
            return Err(bad("no XFS superblock".into()));
        }
        let flags = Version::from_bits_retain(raw.sb_versionnum.get() & !0xF);
        let version = raw.sb_versionnum.get() & 0xF;
        if !(4..=5).contains(&version) {
            return Err(unsupported(format!("XFS version {version} is not supported, only 4 and 5")));
        }
        let v5 = version == 5;
        let sector_size = u32::from(raw.sb_sectsize.get());
        if !in_powers(sector_size, 512..32769) || head.len() < sector_size as usize {
            return Err(bad(format!("sb_sectsize is {sector_size}")));
        }
        if v5 && !checksum::SUPERBLOCK.has_valid_crc(&head[..sector_size as usize]) {
            return Err(bad("bad checksum; run xfs_repair".into()));
        }
        let incompat =
            if v5 { Incompat::from_bits_retain(raw.sb_features_incompat.get()) } else { Incompat::empty() };
        let ro_compat =
            if v5 { RoCompat::from_bits_retain(raw.sb_features_ro_compat.get()) } else { RoCompat::empty() };
        if incompat.contains(Incompat::NEEDSREPAIR) && !accepted.contains(Incompat::NEEDSREPAIR) {
            return Err(unsupported("it is marked as damaged (needsrepair): run xfs_repair".into()));
        }
        let unknown = incompat.difference(Incompat::KNOWN | accepted).feature_names();
        if !unknown.is_empty() {
            return Err(unsupported(format!("the feature {} is not supported", unknown.join(", "))));
        }
        if raw.sb_inprogress != 0 {
            return Err(unsupported("mkfs.xfs did not finish: make the filesystem again".into()));
        }
        if !flags.contains(Version::DIRV2) {
            return Err(unsupported("directories of version 1 are not supported".into()));
        }
        let features2 = if flags.contains(Version::MOREBITS) {
            Features2::from_bits_retain(raw.sb_features2.get())
        } else {
            Features2::empty()
        };
        let block_size = raw.sb_blocksize.get();
        let smallest = if v5 { 1024 } else { 512 };
        if !in_powers(block_size, smallest..65537) || block_size < sector_size {
            return Err(bad(format!("sb_blocksize is {block_size}")));
        }
        let inode_size = u32::from(raw.sb_inodesize.get());
        let smallest = if v5 { 512 } else { 256 };
        if !in_powers(inode_size, smallest..2049) || inode_size * 2 > block_size {
            return Err(bad(format!("sb_inodesize is {inode_size}")));
        }
        let block_bits = block_size.ilog2();
        let inopb_bits = (block_size / inode_size).ilog2();
        let ag_blocks = raw.sb_agblocks.get();
        let ag_block_bits = ag_blocks.checked_next_power_of_two().map_or(32, u32::ilog2);
        let logs = [
            ("sb_blocklog", raw.sb_blocklog, block_bits),
            ("sb_sectlog", raw.sb_sectlog, sector_size.ilog2()),
            ("sb_inodelog", raw.sb_inodelog, inode_size.ilog2()),
            ("sb_inopblog", raw.sb_inopblog, inopb_bits),
            ("sb_agblklog", raw.sb_agblklog, ag_block_bits),
        ];
        if let Some((name, value, _)) = logs.iter().find(|(_, value, right)| u32::from(*value) != *right) {
            return Err(bad(format!("{name} is {value}, which contradicts other fields")));
        }
        if ag_blocks < MIN_AG_BLOCKS || ag_block_bits > 31 {
            return Err(bad(format!("sb_agblocks is {ag_blocks}")));
        }
        let (blocks, ag_count) = (raw.sb_dblocks.get(), raw.sb_agcount.get());
        let groups = u64::from(ag_count);
        let most = groups * u64::from(ag_blocks);
        if ag_count == 0 || blocks > most || blocks <= most - u64::from(ag_blocks) {
            return Err(bad(format!("sb_dblocks is {blocks} with {ag_count} groups of {ag_blocks} blocks")));
        }
        if blocks >> FSBLOCK_BITS != 0 || u64::from(ag_count - 1) >> (FSBLOCK_BITS - ag_block_bits) != 0 {
            return Err(bad(format!("sb_dblocks is {blocks}")));
        }
        if device_bytes / u64::from(block_size) < blocks {
            let what =
                format!("{blocks} blocks of {block_size} bytes are more than the image has: it is cut off");
            return Err(bad(what));
        }
        let dir_bits = block_bits + u32::from(raw.sb_dirblklog);
        if dir_bits > 16 {
            return Err(bad(format!("sb_dirblklog is {}", raw.sb_dirblklog)));
        }
        let meta_uuid = incompat.contains(Incompat::META_UUID);
        let label = raw.sb_fname;
        let log_stripe_unit = raw.sb_logsunit.get();
        let sb = Self {
            version,
            block_size,
            block_bits,
            sector_size,
            inode_size,
            inopb_bits,
            ag_blocks,
            ag_block_bits,
            ag_count,
            blocks,
            dir_block_size: 1 << dir_bits,
            root: raw.sb_rootino.get(),
            uuid: raw.sb_uuid,
            meta_uuid: if meta_uuid { raw.sb_meta_uuid } else { raw.sb_uuid },
            label: label.split(|&byte| byte == 0).next().unwrap_or_default().to_vec(),
            ro_compat,
            incompat,
            flags,
            features2,
            log_start: FsBlock(raw.sb_logstart.get()),
            log_blocks: raw.sb_logblocks.get(),
            log_v2: flags.contains(Version::LOGV2),
            log_stripe_unit,
            counts: Counts {
                inodes: raw.sb_icount.get(),
                free_inodes: raw.sb_ifree.get(),
                free_blocks: raw.sb_fdblocks.get(),
            },
            realtime_blocks: raw.sb_rblocks.get(),
            hidden_inos: [
                raw.sb_rbmino.get(),
                raw.sb_rsumino.get(),
                raw.sb_uquotino.get(),
                raw.sb_gquotino.get(),
                raw.sb_pquotino.get(),
            ],
            quota_flags: raw.sb_qflags.get(),
            inode_max_percent: raw.sb_imax_pct,
            geometry: Geometry {
                inode_alignment: if flags.contains(Version::ALIGN) { raw.sb_inoalignmt.get() } else { 0 },
                sparse_alignment: if incompat.contains(Incompat::SPARSE) {
                    raw.sb_spino_align.get()
                } else {
                    0
                },
                stripe_unit: raw.sb_unit.get(),
                stripe_width: raw.sb_width.get(),
            },
        };
        if sb.log_start.0 == 0 {
            return Err(unsupported("the log is on another device, which is not supported".into()));
        }
        if sb.log_blocks == 0 || sb.run(sb.log_start, u64::from(sb.log_blocks)).is_none() {
            return Err(bad(format!("the log has {} blocks at {}", sb.log_blocks, sb.log_start.0)));
        }
        if sb.inode_place(sb.root).is_none() {
            return Err(bad(format!("sb_rootino is {}", sb.root)));
        }
        Ok(sb)
    }

    /// Whether structures have checksums.
    pub fn is_v5(&self) -> bool {
        self.version == 5
    }

    /// Whether directory entries have the type of their inode.
    pub fn has_ftype(&self) -> bool {
        self.incompat.contains(Incompat::FTYPE)
            || (!self.is_v5() && self.features2.contains(Features2::FTYPE))
    }

    /// Whether names are found without regard to case.
    pub fn ignores_case(&self) -> bool {
        self.flags.contains(Version::ASCII_CI)
    }

    /// Whether project ids have 32 bits.
    pub fn has_wide_projects(&self) -> bool {
        self.is_v5() || self.features2.contains(Features2::PROJID32)
    }

    /// Blocks of an allocation group.
    pub fn ag_len(&self, ag: u32) -> u32 {
        let before = u64::from(ag) * u64::from(self.ag_blocks);
        self.blocks.saturating_sub(before).min(u64::from(self.ag_blocks)) as u32
    }

    /// The device block of a block of an allocation group, if there is such a block.
    pub fn ag_block(&self, ag: u32, block: u32) -> Option<BlockNo> {
        (ag < self.ag_count && block < self.ag_len(ag))
            .then(|| BlockNo(u64::from(ag) * u64::from(self.ag_blocks) + u64::from(block)))
    }

    /// The device block of the first of `count` blocks, if all lie in one allocation group.
    pub fn run(&self, start: FsBlock, count: u64) -> Option<BlockNo> {
        let ag = u32::try_from(start.0 >> self.ag_block_bits).ok()?;
        let first = (start.0 & ((1 << self.ag_block_bits) - 1)) as u32;
        let block = self.ag_block(ag, first)?;
        (count <= u64::from(self.ag_len(ag) - first)).then_some(block)
    }

    /// The allocation group of a device block, and the block in it.
    pub(crate) fn ag_of_device(&self, block: BlockNo) -> (u32, u32) {
        let of = u64::from(self.ag_blocks);
        ((block.0 / of) as u32, (block.0 % of) as u32)
    }

    /// The allocation group of a block of the format, and the block in it.
    pub fn ag_of(&self, block: FsBlock) -> (u32, u32) {
        let in_group = (block.0 & ((1 << self.ag_block_bits) - 1)) as u32;
        (u32::try_from(block.0 >> self.ag_block_bits).unwrap_or(u32::MAX), in_group)
    }

    /// The block of the format that is a block of an allocation group.
    pub fn fs_block(&self, ag: u32, block: u32) -> FsBlock {
        FsBlock(u64::from(ag) << self.ag_block_bits | u64::from(block))
    }

    /// The allocation group and the number within it of an inode.
    pub fn agino(&self, ino: u64) -> Option<(u32, u32)> {
        let bits = self.ag_block_bits + self.inopb_bits;
        let ag = u32::try_from(ino.checked_shr(bits)?).ok()?;
        let agino = u32::try_from(ino & ((1u64 << bits) - 1)).ok()?;
        (ag < self.ag_count).then_some((ag, agino))
    }

    /// The block of an inode and the offset in it.
    pub fn inode_place(&self, ino: u64) -> Option<(BlockNo, usize)> {
        let (ag, agino) = self.agino(ino)?;
        let block = self.ag_block(ag, agino >> self.inopb_bits)?;
        Some((block, ((agino & ((1 << self.inopb_bits) - 1)) * self.inode_size) as usize))
    }

    /// Blocks of an inode cluster, if clusters are aligned to their size.
    fn aligned_cluster_blocks(&self) -> u32 {
        let small = BIG_CLUSTER_BYTES >> self.block_bits;
        let scaled = (BIG_CLUSTER_BYTES * (self.inode_size / SMALLEST_INODE_BYTES)) >> self.block_bits;
        let fits = self.is_v5() && self.geometry.inode_alignment >= scaled;
        if fits { scaled.max(1) } else { small.max(1) }
    }

    /// Blocks of a cluster of inodes: a buffer that Linux reads, logs and writes as a whole.
    pub fn cluster_blocks(&self) -> u32 {
        let blocks = self.aligned_cluster_blocks();
        // Without this alignment only the inode B-tree knows where clusters start.
        if self.geometry.inode_alignment >= blocks { blocks } else { 1 }
    }

    /// Whether the place of an inode tells where its cluster starts. Only then can inodes be written.
    pub(crate) fn has_aligned_clusters(&self) -> bool {
        self.chunk_alignment().is_multiple_of(self.aligned_cluster_blocks())
    }

    /// The blocks of the cluster with an inode, and the offset of the inode in it.
    pub fn inode_cluster(&self, ino: u64) -> Option<(Unit, usize)> {
        let (ag, agino) = self.agino(ino)?;
        let (block, count) = (agino >> self.inopb_bits, self.cluster_blocks());
        let first = block - block % count;
        let cluster = Unit::run(self.ag_block(ag, first)?, count.into());
        self.ag_block(ag, first + count - 1)?;
        let index = agino - (first << self.inopb_bits);
        Some((cluster, (index * self.inode_size) as usize))
    }

    /// The number of 512 bytes at which a block starts.
    pub fn sector_of(&self, block: BlockNo) -> u64 {
        block.0 << (self.block_bits - 9)
    }
}

/// Whether a number is a power of two in a range.
fn in_powers(value: u32, range: Range<u32>) -> bool {
    value.is_power_of_two() && range.contains(&value)
}
