//! Descriptors of cylinder groups, with their bitmaps.

use super::bytes::Fields;
use super::superblock::{Counts, GROUP_HEADER_BYTES, Superblock, Version};

pub(crate) const MAGIC: u32 = 0x0009_0255;

/// Offsets of fields.
pub(crate) mod at {
    pub(crate) const CG_MAGIC: usize = 4;
    pub(crate) const CG_OLD_TIME: usize = 8;
    pub(crate) const CG_CGX: usize = 12;
    pub(crate) const CG_OLD_NCYL: usize = 16;
    pub(crate) const CG_OLD_NIBLK: usize = 18;
    pub(crate) const CG_NDBLK: usize = 20;
    pub(crate) const CG_CS: usize = 24;
    pub(crate) const CG_FRSUM: usize = 52;
    pub(crate) const CG_OLD_BTOTOFF: usize = 84;
    pub(crate) const CG_OLD_BOFF: usize = 88;
    pub(crate) const CG_IUSEDOFF: usize = 92;
    pub(crate) const CG_FREEOFF: usize = 96;
    pub(crate) const CG_NEXTFREEOFF: usize = 100;
    pub(crate) const CG_CLUSTERSUMOFF: usize = 104;
    pub(crate) const CG_CLUSTEROFF: usize = 108;
    pub(crate) const CG_NCLUSTERBLKS: usize = 112;
    pub(crate) const CG_NIBLK: usize = 116;
    pub(crate) const CG_INITEDIBLK: usize = 120;
    pub(crate) const CG_CKHASH: usize = 132;
    pub(crate) const CG_TIME: usize = 136;
}

/// A descriptor of a group.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    fields: Fields<'a>,
    /// The counts of the group.
    pub counts: Counts,
    /// How many inodes were ever written. The contents of those after them are not defined.
    pub initialized_inodes: u32,
    used_inodes: &'a [u8],
    free_frags: &'a [u8],
    clusters: Option<(usize, &'a [u8])>,
}

/// Whether a bit of a map is set. The map ends with clear bits.
pub(super) fn bit(map: &[u8], nth: u64) -> bool {
    map.get((nth / 8) as usize).is_some_and(|byte| byte >> (nth % 8) & 1 == 1)
}

impl<'a> Group<'a> {
    /// Decodes and checks the descriptor of a group, which is a block long.
    pub fn parse(bytes: &'a [u8], sb: &Superblock, group: u32) -> Result<Self, String> {
        let fields = Fields::new(bytes, sb.order);
        if fields.u32(at::CG_MAGIC) != MAGIC {
            return Err("the descriptor of the group has no magic".into());
        }
        // A descriptor has several sectors. A crash can leave some of them old, and then the hash is wrong.
        if sb.hashes_groups() && sb.clean {
            let covered = Fields::new(bytes.get(..sb.group_bytes as usize).unwrap_or(bytes), sb.order);
            if covered.check_hash(at::CG_CKHASH) != fields.u32(at::CG_CKHASH) {
                return Err("the descriptor of the group has a bad check hash".into());
            }
        }
        if fields.u32(at::CG_CGX) != group {
            return Err(format!("the descriptor is that of group {}", fields.u32(at::CG_CGX)));
        }
        let frags = sb.group_frags(group);
        if u64::from(fields.u32(at::CG_NDBLK)) != frags {
            return Err(format!("cg_ndblk is {}, the group has {frags}", fields.u32(at::CG_NDBLK)));
        }
        let map = |name: &str, offset_at: usize, bits: u64| {
            let start = fields.u32(offset_at) as usize;
            let end = start.saturating_add(bits.div_ceil(8) as usize);
            let found = bytes.get(start..end).filter(|_| start >= GROUP_HEADER_BYTES);
            found.ok_or_else(|| format!("{name} is {start}: the map is outside the descriptor"))
        };
        let clusters = match sb.cluster_lengths {
            0 => None,
            lengths => {
                let blocks = frags / u64::from(sb.frags_per_block);
                if u64::from(fields.u32(at::CG_NCLUSTERBLKS)) != blocks {
                    let what = fields.u32(at::CG_NCLUSTERBLKS);
                    return Err(format!("cg_nclusterblks is {what}, the group has {blocks} blocks"));
                }
                // The counts are 32 bits each, from length 0 on.
                let sums = u64::from(lengths + 1) * 32;
                map("cg_clustersumoff", at::CG_CLUSTERSUMOFF, sums)?;
                let map = map("cg_clusteroff", at::CG_CLUSTEROFF, blocks)?;
                Some((fields.u32(at::CG_CLUSTERSUMOFF) as usize, map))
            }
        };
        let initialized_inodes = match sb.version {
            Version::Ufs1 => sb.inodes_per_group,
            Version::Ufs2 => fields.u32(at::CG_INITEDIBLK),
        };
        if initialized_inodes > sb.inodes_per_group {
            return Err(format!("cg_initediblk is {initialized_inodes}, the group has fewer inodes"));
        }
        Ok(Self {
            counts: Counts::parse(&fields, at::CG_CS),
            initialized_inodes,
            used_inodes: map("cg_iusedoff", at::CG_IUSEDOFF, sb.inodes_per_group.into())?,
            free_frags: map("cg_freeoff", at::CG_FREEOFF, frags)?,
            clusters,
            fields,
        })
    }

    /// Whether an inode, counted in the group, is marked as used.
    pub fn is_inode_used(&self, nth: u32) -> bool {
        bit(self.used_inodes, nth.into())
    }

    /// Whether a fragment, counted in the group, is marked as free.
    pub fn is_frag_free(&self, nth: u64) -> bool {
        bit(self.free_frags, nth)
    }

    /// Whether a block, counted in the group, is marked as free in the map of clusters. `None`: there is no
    /// such map.
    pub fn is_block_free(&self, nth: u64) -> Option<bool> {
        self.clusters.map(|(_, map)| bit(map, nth))
    }

    /// How many clusters of a length the group counts. The last length counts longer ones, too.
    pub fn clusters_of(&self, length: u32) -> Option<u32> {
        self.clusters.map(|(at, _)| self.fields.u32(at + length as usize * 4))
    }

    /// How many runs of `length` free fragments the group counts, in blocks that are partly in use.
    pub fn fragment_runs(&self, length: usize) -> u32 {
        self.fields.u32(at::CG_FRSUM + length * 4)
    }
}
