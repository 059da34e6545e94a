//! The sizes of a filesystem after it has grown or shrunk.

use crate::layout::features::{Compat, Incompat, RoCompat};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::Superblock;
use ivers_vfs::{Error, Result};
use zerocopy::IntoBytes;

/// Free blocks that a last group must have beside its metadata; a smaller group is left out.
const MIN_LAST_GROUP: u64 = 50;

/// A change of size.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The superblock before.
    pub(crate) old: Superblock,
    /// The superblock after.
    pub(crate) new: Superblock,
    /// The fields of `new` as stored. Counts of free blocks and inodes are those of `old`.
    pub(crate) raw: RawSuperblock,
}

impl Plan {
    /// Plans the growth of a filesystem to at most `new_bytes`. `Error::Incompatible` says why it cannot.
    pub(crate) fn grow(old: &Superblock, raw: &RawSuperblock, new_bytes: u64, place: &str) -> Result<Self> {
        let refuse = |why: String| Error::Incompatible(format!("{place} cannot grow: {why}"));
        check_features(old, place)?;
        let wide = old.incompat.contains(Incompat::BIT64);
        let mut blocks = new_bytes / u64::from(old.block_size);
        if !wide && blocks > u64::from(u32::MAX) {
            return Err(refuse("without the feature 64bit it has at most 2^32 - 1 blocks".to_owned()));
        }
        loop {
            if blocks < old.blocks_count() {
                return Err(Error::Incompatible(format!(
                    "{place} has {} blocks of {} bytes, and {new_bytes} bytes are {blocks}",
                    old.blocks_count(),
                    old.block_size
                )));
            }
            let plan = Self::with_blocks(old, raw, blocks, place)?;
            let last = plan.new.groups() - 1;
            if last >= old.groups() && plan.new.group_blocks(last) < least_blocks(&plan.new, last) {
                blocks -= u64::from(plan.new.group_blocks(last));
                continue;
            }
            return Ok(plan);
        }
    }

    /// Plans the shrinking of a filesystem to exactly `blocks`.
    pub(crate) fn shrink(old: &Superblock, raw: &RawSuperblock, blocks: u64, place: &str) -> Result<Self> {
        Self::with_blocks(old, raw, blocks, place)
    }

    fn with_blocks(old: &Superblock, raw: &RawSuperblock, blocks: u64, place: &str) -> Result<Self> {
        let refuse = |why: String| Error::Incompatible(format!("{place} cannot grow: {why}"));
        let groups = (blocks - old.first_data_block.0).div_ceil(u64::from(old.blocks_per_group));
        let inodes = u32::try_from(groups * u64::from(old.inodes_per_group))
            .map_err(|_| refuse(format!("{blocks} blocks would have more than 2^32 inodes")))?;
        let desc_blocks = groups.div_ceil(u64::from(old.descs_per_block));
        let more = desc_blocks.saturating_sub(u64::from(old.desc_blocks()));
        if more > u64::from(old.reserved_gdt_blocks()) {
            let most =
                u64::from(old.desc_blocks() + old.reserved_gdt_blocks()) * u64::from(old.descs_per_block);
            let most = most * u64::from(old.blocks_per_group) * u64::from(old.block_size);
            return Err(refuse(format!(
                "its descriptors need {more} blocks, and it reserves {} (feature resize_inode): it can grow \
                 to {} MiB; make a larger filesystem and copy the files",
                old.reserved_gdt_blocks(),
                most >> 20
            )));
        }
        // Descriptor blocks that are no longer needed are reserved again.
        let fewer = u64::from(old.desc_blocks()).saturating_sub(desc_blocks);
        let reserved_gdt = match u64::from(old.reserved_gdt_blocks()) {
            0 => 0,
            reserved => (reserved - more + fewer).min(u64::from(old.block_size / 4)),
        };
        let mut raw = raw.clone();
        let ratio =
            |count: u64| (u128::from(count) * u128::from(blocks) / u128::from(old.blocks_count())) as u64;
        let reserved = ratio(old.reserved_blocks());
        raw.s_blocks_count_lo = (blocks as u32).into();
        raw.s_r_blocks_count_lo = (reserved as u32).into();
        if old.incompat.contains(Incompat::BIT64) {
            raw.s_blocks_count_hi = ((blocks >> 32) as u32).into();
            raw.s_r_blocks_count_hi = ((reserved >> 32) as u32).into();
        }
        raw.s_inodes_count = inodes.into();
        raw.s_reserved_gdt_blocks = (reserved_gdt as u16).into();
        let device_bytes = blocks * u64::from(old.block_size);
        let new = Superblock::parse(raw.as_bytes(), device_bytes, place)?;
        if old.overhead_blocks() != 0 {
            let all = |sb: &Superblock| (0..sb.groups()).map(|group| sb.own_blocks(group)).sum::<u64>();
            let others = u64::from(old.overhead_blocks()).saturating_sub(all(old));
            new.set_overhead_blocks((others + all(&new)).min(u32::MAX.into()) as u32);
            raw.s_overhead_blocks = new.overhead_blocks().into();
        }
        Ok(Self { old: old.frozen(), new, raw })
    }

    /// Whether the size stays the same.
    pub(crate) fn is_same(&self) -> bool {
        self.old.blocks_count() == self.new.blocks_count()
    }

    /// Applies the new sizes to the superblock of the running session. The flags and counts that the session
    /// keeps there stay.
    pub(crate) fn apply(&self, raw: &mut RawSuperblock) {
        raw.s_blocks_count_lo = self.raw.s_blocks_count_lo;
        raw.s_blocks_count_hi = self.raw.s_blocks_count_hi;
        raw.s_r_blocks_count_lo = self.raw.s_r_blocks_count_lo;
        raw.s_r_blocks_count_hi = self.raw.s_r_blocks_count_hi;
        raw.s_inodes_count = self.raw.s_inodes_count;
        raw.s_reserved_gdt_blocks = self.raw.s_reserved_gdt_blocks;
        raw.s_overhead_blocks = self.raw.s_overhead_blocks;
    }
}

/// The fewest blocks that a last group may have.
pub(crate) fn least_blocks(sb: &Superblock, group: u32) -> u32 {
    (sb.own_blocks(group) + MIN_LAST_GROUP).min(u32::MAX.into()) as u32
}

/// Refuses features whose structures this module does not keep consistent.
pub(crate) fn check_features(sb: &Superblock, place: &str) -> Result<()> {
    let feature = if sb.incompat.contains(Incompat::META_BG) {
        "meta_bg"
    } else if sb.compat.contains(Compat::SPARSE_SUPER2) {
        "sparse_super2"
    } else if sb.ro_compat.contains(RoCompat::BIGALLOC) {
        "bigalloc"
    } else {
        return Ok(());
    };
    Err(Error::Incompatible(format!(
        "{place} cannot be resized: ivers does not resize filesystems with the feature {feature}"
    )))
}
