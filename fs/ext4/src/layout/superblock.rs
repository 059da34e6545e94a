//! The superblock, parsed once into values that later arithmetic can rely on.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::csum::crc32c;
use super::features::{Compat, Incompat, RoCompat};
use super::raw::RawSuperblock;
use ivers_block::{BlockNo, ByteOffset};
use ivers_vfs::{Error, ReservedBlocks, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Position of the superblock on the device.
pub const SUPERBLOCK_OFFSET: ByteOffset = ByteOffset(1024);
/// Length of the superblock in bytes.
pub const SUPERBLOCK_LEN: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// `s_state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were detected.
pub const STATE_ERROR: u16 = 2;
/// `s_creator_os` of the Hurd, which stores a translator where Linux stores the version.
pub const OS_HURD: u32 = 1;
const FLAG_UNSIGNED_HASH: u32 = 2;

/// Whether the first bytes of a device contain the magic of ext2, ext3 or ext4. The magic has two bytes, so
/// other data can match.
pub fn probe(head: &[u8]) -> bool {
    let at = SUPERBLOCK_OFFSET.0 as usize + offset_of!(RawSuperblock, s_magic);
    head.get(at..at + 2) == Some(&MAGIC.to_le_bytes())
}

/// Decodes the fields of a superblock, unchecked.
pub fn decode(bytes: &[u8], place: &str) -> Result<RawSuperblock> {
    let bytes = bytes.get(..SUPERBLOCK_LEN).unwrap_or_default();
    RawSuperblock::read_from_bytes(bytes)
        .map_err(|_| Error::corrupt("the superblock is too short", place.to_owned()))
}

/// Sets the checksum of a superblock, if the format has one.
pub fn seal(raw: &mut RawSuperblock) {
    if raw.s_feature_ro_compat.get() & RoCompat::METADATA_CSUM.bits() != 0 {
        let csum = crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_LEN - 4]);
        raw.s_checksum = csum.into();
    }
}

/// `s_volume_name` for a label.
pub fn stored_label(label: &[u8]) -> Result<[u8; 16]> {
    let mut stored = [0; 16];
    if label.len() > stored.len() {
        return Err(Error::Incompatible(format!("a label has at most 16 bytes, not {}", label.len())));
    }
    if label.contains(&0) {
        return Err(Error::Incompatible("a label cannot contain NUL".into()));
    }
    stored[..label.len()].copy_from_slice(label);
    Ok(stored)
}

/// A superblock whose geometry has been checked: every product below fits, every divisor is nonzero.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// Block size in bytes: 1024..=65536, a power of two.
    pub block_size: u32,
    /// log2 of the block size.
    pub block_bits: u32,
    /// The user and group that may use them beside root: `s_def_resuid` and `s_def_resgid`; group 0 means
    /// none.
    pub reserve: ReservedBlocks,
    /// First block of group 0: 1 with 1 KiB blocks, else 0.
    pub first_data_block: BlockNo,
    /// Blocks in a group; at most 8 * block_size.
    pub blocks_per_group: u32,
    /// Inodes in a group; at most 8 * block_size, a multiple of 8.
    pub inodes_per_group: u32,
    /// Size of an inode slot in bytes: 128..=block_size, a power of two.
    pub inode_size: u32,
    /// Inode slots in a block.
    pub inodes_per_block: u32,
    /// Blocks of one group's inode table.
    pub inode_table_blocks: u32,
    /// Size of a group descriptor in bytes: 32 or more.
    pub desc_size: u32,
    /// Group descriptors in a block.
    pub descs_per_block: u32,
    /// First descriptor block that is stored in its own meta group (`meta_bg`).
    pub first_meta_bg: u32,
    /// Descriptor blocks at the start of a group with copies, reserved ones too. Growing keeps it.
    copied_desc_blocks: u32,
    /// What changes when the filesystem grows; copies share it.
    size: Arc<LiveSize>,
    /// log2 of the number of groups in a flexible group.
    pub log_groups_per_flex: u32,
    /// Groups with backups (`sparse_super2`).
    pub backup_groups: [u32; 2],
    /// Compatible features.
    pub compat: Compat,
    /// Incompatible features.
    pub incompat: Incompat,
    /// Read-only-compatible features.
    pub ro_compat: RoCompat,
    /// The seed of metadata checksums.
    pub csum_seed: u32,
    /// The seed of name hashes.
    pub hash_seed: [u32; 4],
    /// The hash of new trees.
    pub def_hash_version: u8,
    /// Whether names are hashed as unsigned bytes.
    pub hash_unsigned: bool,
    /// First inode number that is not reserved.
    pub first_ino: u32,
    /// The UUID.
    pub uuid: [u8; 16],
    /// The label, cut at the first NUL.
    pub label: Vec<u8>,
    /// The inode number of the journal.
    pub journal_inum: u32,
    /// The device of an external journal.
    pub journal_dev: u32,
    /// The journal's UUID.
    pub journal_uuid: [u8; 16],
    /// The inode number of the orphan file, if there is one.
    pub orphan_file_inum: u32,
    /// Whether the Hurd made the filesystem.
    pub hurd: bool,
    /// Extra bytes of new inodes.
    pub want_extra_isize: u16,
    /// `s_state` as found.
    pub state: u16,
    /// The block of the multiple-mount protection.
    pub mmp_block: BlockNo,
    /// The checksum is wrong. A session changes only fields in the first half, and the checksum is at the end
    /// of the second half, so a torn write looks like this. So does damage: the checksums of other structures
    /// must decide.
    pub torn: bool,
}

/// The fields that growing changes.
#[derive(Debug, Default)]
struct LiveSize {
    blocks: AtomicU64,
    reserved: AtomicU64,
    inodes: AtomicU32,
    groups: AtomicU32,
    desc_blocks: AtomicU32,
    reserved_gdt_blocks: AtomicU32,
    overhead: AtomicU32,
}

impl LiveSize {
    fn set(&self, other: &Self) {
        let small = |to: &AtomicU32, from: &AtomicU32| {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        };
        self.reserved.store(other.reserved.load(Ordering::Acquire), Ordering::Release);
        small(&self.desc_blocks, &other.desc_blocks);
        small(&self.reserved_gdt_blocks, &other.reserved_gdt_blocks);
        small(&self.overhead, &other.overhead);
        small(&self.inodes, &other.inodes);
        // Blocks before groups: a group that is visible has its blocks.
        self.blocks.store(other.blocks.load(Ordering::Acquire), Ordering::Release);
        small(&self.groups, &other.groups);
    }
}

impl Superblock {
    /// Returns the name of the oldest filesystem type that has these features.
    pub fn fs_type(&self) -> &'static str {
        if self.incompat.contains(Incompat::EXTENTS) {
            "ext4"
        } else if self.compat.contains(Compat::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }

    /// Decodes and checks. `device_len` is the device's length in bytes, `place` names the image in errors.
    pub fn parse(bytes: &[u8], device_len: u64, place: &str) -> Result<Self> {
        Self::parse_accepting(bytes, device_len, place, Incompat::READABLE)
    }

    /// Decodes and checks as [`Superblock::parse`] does, and accepts these features.
    pub fn parse_accepting(bytes: &[u8], device_len: u64, place: &str, accepted: Incompat) -> Result<Self> {
        let at = || format!("{place}, superblock");
        let bad = |what: String| Error::corrupt(what, at());
        let (raw, _) = RawSuperblock::ref_from_prefix(bytes)
            .map_err(|_| bad("the image is too short for a superblock".into()))?;
        if raw.s_magic.get() != MAGIC {
            return Err(Error::Incompatible(format!(
                "{place} holds no ext2, ext3 or ext4 filesystem (bad magic)"
            )));
        }
        let rev0 = raw.s_rev_level.get() == 0;
        // The format has no other revisions.
        if raw.s_rev_level.get() > 1 {
            return Err(bad(format!("the superblock is damaged: s_rev_level is {}", raw.s_rev_level.get())));
        }
        let compat = Compat::from_bits_retain(if rev0 { 0 } else { raw.s_feature_compat.get() });
        let incompat = Incompat::from_bits_retain(if rev0 { 0 } else { raw.s_feature_incompat.get() });
        let ro_compat = RoCompat::from_bits_retain(if rev0 { 0 } else { raw.s_feature_ro_compat.get() });
        // Check first: features may change the meaning of the other fields.
        let refused = incompat.difference(accepted);
        let has_csum = ro_compat.contains(RoCompat::METADATA_CSUM);
        let torn = has_csum && crc32c(!0, &bytes[..SUPERBLOCK_LEN - 4]) != raw.s_checksum.get();
        if !refused.is_empty() && (torn || raw.s_log_block_size.get() > 6) {
            let why = "it has unknown features, and impossible values or a wrong checksum";
            return Err(bad(format!("the superblock is damaged: {why}")));
        }
        if !refused.is_empty() {
            return Err(Error::Incompatible(format!(
                "{place} has the unsupported feature {}",
                refused.feature_names().join(", ")
            )));
        }
        if has_csum && raw.s_checksum_type != 1 {
            return Err(bad(format!(
                "the superblock is damaged: s_checksum_type is {}",
                raw.s_checksum_type
            )));
        }
        if raw.s_log_block_size.get() > 6 {
            return Err(bad(format!("s_log_block_size is {}", raw.s_log_block_size.get())));
        }
        let block_bits = 10 + raw.s_log_block_size.get();
        let block_size = 1u32 << block_bits;
        let bit64 = incompat.contains(Incompat::BIT64);
        let wide = |lo: u32, hi: u32| u64::from(lo) | if bit64 { u64::from(hi) << 32 } else { 0 };
        let blocks_count = wide(raw.s_blocks_count_lo.get(), raw.s_blocks_count_hi.get());
        let first_data_block = u64::from(raw.s_first_data_block.get());
        if first_data_block != u64::from(block_size == 1024) && !ro_compat.contains(RoCompat::BIGALLOC) {
            return Err(bad(format!(
                "s_first_data_block is {first_data_block} with blocks of {block_size} bytes"
            )));
        }
        if blocks_count > device_len >> block_bits {
            return Err(bad(format!(
                "truncated: {device_len} bytes of a filesystem of {blocks_count} blocks of {block_size} bytes"
            )));
        }
        if blocks_count <= first_data_block {
            return Err(bad(format!("{blocks_count} blocks")));
        }
        if blocks_count >= 1 << 48 {
            return Err(bad(format!("{blocks_count} blocks")));
        }
        let blocks_per_group = raw.s_blocks_per_group.get();
        let clusters_per_group = raw.s_clusters_per_group.get();
        let bigalloc = ro_compat.contains(RoCompat::BIGALLOC);
        let bits = if bigalloc { clusters_per_group } else { blocks_per_group };
        if blocks_per_group < 8 || bits < 8 || bits > 8 * block_size || !bits.is_multiple_of(8) {
            return Err(bad(format!("s_blocks_per_group is {blocks_per_group}")));
        }
        let inode_size = if rev0 { 128 } else { u32::from(raw.s_inode_size.get()) };
        if inode_size < 128 || inode_size > block_size || !inode_size.is_power_of_two() {
            return Err(bad(format!("s_inode_size is {inode_size}")));
        }
        let inodes_per_group = raw.s_inodes_per_group.get();
        let inodes_per_block = block_size / inode_size;
        if inodes_per_group == 0
            || inodes_per_group > 8 * block_size
            || !inodes_per_group.is_multiple_of(8)
            || inodes_per_group < inodes_per_block
        {
            return Err(bad(format!("s_inodes_per_group is {inodes_per_group}")));
        }
        let desc_size = if bit64 { u32::from(raw.s_desc_size.get()) } else { 32 };
        if desc_size < 32 || (bit64 && desc_size < 64) || desc_size > 1024 || !desc_size.is_power_of_two() {
            return Err(bad(format!("s_desc_size is {desc_size}")));
        }
        let groups = (blocks_count - first_data_block).div_ceil(u64::from(blocks_per_group));
        let inodes_count = raw.s_inodes_count.get();
        if groups > u64::from(u32::MAX) || groups * u64::from(inodes_per_group) != u64::from(inodes_count) {
            return Err(bad(format!(
                "{inodes_count} inodes do not fill {groups} groups of {inodes_per_group}"
            )));
        }
        let groups = groups as u32;
        let descs_per_block = block_size / desc_size;
        let desc_blocks = groups.div_ceil(descs_per_block);
        let first_meta_bg =
            if incompat.contains(Incompat::META_BG) { raw.s_first_meta_bg.get() } else { desc_blocks };
        if first_meta_bg > desc_blocks {
            return Err(bad(format!(
                "s_first_meta_bg is {first_meta_bg}, there are {desc_blocks} descriptor blocks"
            )));
        }
        let first_ino = if rev0 { 11 } else { raw.s_first_ino.get() };
        if first_ino < 11 || first_ino > inodes_count {
            return Err(bad(format!("s_first_ino is {first_ino}")));
        }
        if u32::from(raw.s_reserved_gdt_blocks.get()) > block_size / 4 {
            return Err(bad(format!("s_reserved_gdt_blocks is {}", raw.s_reserved_gdt_blocks.get())));
        }
        let reserved_blocks =
            wide(raw.s_r_blocks_count_lo.get(), raw.s_r_blocks_count_hi.get()).min(blocks_count);
        let csum_seed = if incompat.contains(Incompat::CSUM_SEED) {
            raw.s_checksum_seed.get()
        } else {
            crc32c(!0, &raw.s_uuid)
        };
        let extra_room = inode_size - 128;
        let want_extra_isize = if extra_room == 0 {
            0
        } else {
            let wanted =
                u32::from(raw.s_want_extra_isize.get()).max(u32::from(raw.s_min_extra_isize.get())).max(32);
            (if wanted > extra_room || wanted % 4 != 0 { 32 } else { wanted }) as u16
        };
        let label_len = raw.s_volume_name.iter().position(|&b| b == 0).unwrap_or(16);
        let flex = u32::from(raw.s_log_groups_per_flex);
        Ok(Self {
            block_size,
            block_bits,
            reserve: ReservedBlocks {
                uid: raw.s_def_resuid.get().into(),
                gid: Some(raw.s_def_resgid.get().into()).filter(|&gid| gid != 0),
            },
            first_data_block: BlockNo(first_data_block),
            blocks_per_group,
            inodes_per_group,
            inode_size,
            inodes_per_block,
            inode_table_blocks: inodes_per_group.div_ceil(inodes_per_block),
            desc_size,
            descs_per_block,
            first_meta_bg,
            copied_desc_blocks: first_meta_bg + u32::from(raw.s_reserved_gdt_blocks.get()),
            size: Arc::new(LiveSize {
                blocks: blocks_count.into(),
                reserved: reserved_blocks.into(),
                inodes: inodes_count.into(),
                groups: groups.into(),
                desc_blocks: desc_blocks.into(),
                reserved_gdt_blocks: u32::from(raw.s_reserved_gdt_blocks.get()).into(),
                overhead: raw.s_overhead_blocks.get().into(),
            }),
            log_groups_per_flex: if incompat.contains(Incompat::FLEX_BG) && flex < 32 { flex } else { 0 },
            backup_groups: [raw.s_backup_bgs[0].get(), raw.s_backup_bgs[1].get()],
            compat,
            incompat,
            ro_compat,
            csum_seed,
            hash_seed: std::array::from_fn(|i| raw.s_hash_seed[i].get()),
            def_hash_version: raw.s_def_hash_version,
            hash_unsigned: raw.s_flags.get() & FLAG_UNSIGNED_HASH != 0,
            first_ino,
            uuid: raw.s_uuid,
            label: raw.s_volume_name[..label_len].to_vec(),
            journal_inum: raw.s_journal_inum.get(),
            journal_dev: raw.s_journal_dev.get(),
            journal_uuid: raw.s_journal_uuid,
            orphan_file_inum: raw.s_orphan_file_inum.get(),
            hurd: raw.s_creator_os.get() == OS_HURD,
            want_extra_isize,
            state: raw.s_state.get(),
            mmp_block: BlockNo(raw.s_mmp_block.get()),
            torn,
        })
    }

    /// Blocks in the filesystem.
    pub fn blocks_count(&self) -> u64 {
        self.size.blocks.load(Ordering::Acquire)
    }

    /// Number of reserved blocks.
    pub fn reserved_blocks(&self) -> u64 {
        self.size.reserved.load(Ordering::Relaxed)
    }

    /// Inodes in the filesystem.
    pub fn inodes_count(&self) -> u32 {
        self.size.inodes.load(Ordering::Relaxed)
    }

    /// Number of groups.
    pub fn groups(&self) -> u32 {
        self.size.groups.load(Ordering::Acquire)
    }

    /// Blocks of the descriptor table.
    pub fn desc_blocks(&self) -> u32 {
        self.size.desc_blocks.load(Ordering::Relaxed)
    }

    /// Descriptor blocks reserved for growing.
    pub fn reserved_gdt_blocks(&self) -> u32 {
        self.size.reserved_gdt_blocks.load(Ordering::Relaxed)
    }

    /// Blocks of metadata, or 0 if not computed.
    pub fn overhead_blocks(&self) -> u32 {
        self.size.overhead.load(Ordering::Relaxed)
    }

    /// Sets the blocks of metadata.
    pub(crate) fn set_overhead_blocks(&self, blocks: u32) {
        self.size.overhead.store(blocks, Ordering::Relaxed);
    }

    /// A copy that keeps its size when this filesystem grows.
    pub(crate) fn frozen(&self) -> Self {
        let size = LiveSize::default();
        size.set(&self.size);
        Self { size: Arc::new(size), ..self.clone() }
    }

    /// Takes the size of a filesystem that has grown. What the new groups need is in place: others see them
    /// from now on.
    pub(crate) fn grow_to(&self, grown: &Self) {
        self.size.set(&grown.size);
    }

    /// Whether metadata carries crc32c checksums.
    pub fn has_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors carry a checksum, and with it the UNINIT flags.
    pub fn has_group_csum(&self) -> bool {
        self.ro_compat.intersects(RoCompat::METADATA_CSUM.union(RoCompat::GDT_CSUM))
    }

    /// The first block of a group.
    pub fn group_first_block(&self, group: u32) -> BlockNo {
        self.first_data_block + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// The number of blocks of a group: fewer in the last one.
    pub fn group_blocks(&self, group: u32) -> u32 {
        let rest = self.blocks_count().saturating_sub(self.group_first_block(group).0);
        rest.min(u64::from(self.blocks_per_group)) as u32
    }

    /// The group of a block, and the block's bit in the group's bitmap.
    pub fn group_of_block(&self, block: BlockNo) -> (u32, u32) {
        let rel = block - self.first_data_block;
        let per = u64::from(self.blocks_per_group);
        ((rel / per) as u32, (rel % per) as u32)
    }

    /// The group of an inode, and the inode's bit in the group's bitmap. `ino` is at least 1.
    pub fn group_of_inode(&self, ino: u32) -> (u32, u32) {
        let rel = ino - 1;
        (rel / self.inodes_per_group, rel % self.inodes_per_group)
    }

    /// Whether metadata may refer to a block.
    pub fn is_valid_block(&self, block: BlockNo) -> bool {
        block > self.first_data_block && block.0 < self.blocks_count()
    }

    /// Whether metadata may refer to a run.
    pub fn is_valid_run(&self, block: BlockNo, len: u64) -> bool {
        len > 0 && self.is_valid_block(block) && len <= self.blocks_count() - block.0
    }

    /// The groups that hold copies of superblock and descriptors.
    pub fn copies(&self) -> impl Iterator<Item = u32> + '_ {
        (1..self.groups()).filter(|&group| self.has_super(group))
    }

    /// Blocks of a group that hold its own metadata, wherever they lie.
    pub fn own_blocks(&self, group: u32) -> u64 {
        u64::from(self.base_meta_blocks(group)) + 2 + u64::from(self.inode_table_blocks)
    }

    /// Whether a group holds the superblock or a copy of it.
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if group == 1 || !self.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        let power_of = |base: u64| {
            let mut power = base;
            while power < u64::from(group) {
                power *= base;
            }
            power == u64::from(group)
        };
        power_of(3) || power_of(5) || power_of(7)
    }

    /// Blocks at the start of a group that hold copies of the superblock and of descriptors.
    pub fn base_meta_blocks(&self, group: u32) -> u32 {
        let copy = u32::from(self.has_super(group));
        let meta_group = group / self.descs_per_block;
        if meta_group < self.first_meta_bg || !self.incompat.contains(Incompat::META_BG) {
            if copy == 1 { 1 + self.copied_desc_blocks } else { 0 }
        } else {
            let index = group % self.descs_per_block;
            copy + u32::from(index == 0 || index == 1 || index == self.descs_per_block - 1)
        }
    }

    /// The block that holds a group's descriptor, and its offset in the block.
    pub fn desc_place(&self, group: u32) -> (BlockNo, usize) {
        let meta_group = group / self.descs_per_block;
        let byte = (group % self.descs_per_block * self.desc_size) as usize;
        let block = if meta_group < self.first_meta_bg || !self.incompat.contains(Incompat::META_BG) {
            self.superblock_place().0 + 1 + u64::from(meta_group)
        } else {
            let first = meta_group * self.descs_per_block;
            // With 1 KiB blocks and clusters, groups start at block 0, but the superblock stays in block 1.
            let shifted = u64::from(first == 0 && self.superblock_place().0 > self.first_data_block);
            self.group_first_block(first) + u64::from(self.has_super(first)) + shifted
        };
        (block, byte)
    }

    /// The block that holds the superblock, and its offset in the block.
    pub fn superblock_place(&self) -> (BlockNo, usize) {
        (
            SUPERBLOCK_OFFSET.block(self.block_size),
            (SUPERBLOCK_OFFSET.0 % u64::from(self.block_size)) as usize,
        )
    }
}
