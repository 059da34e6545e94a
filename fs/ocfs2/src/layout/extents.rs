//! Lists of extents: nodes of the trees that map files, indexes of directories, and extended attributes.

use super::bytes::{put_u16, put_u32, put_u64, u8_at, u16_at, u32_at, u64_at};
use super::superblock::Superblock;

/// Bytes of a `struct ocfs2_extent_list` before its records.
pub const LIST_BYTES: usize = 16;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 16;
/// Most clusters of an extent: the field has 16 bits.
pub const EXTENT_MAX: u32 = 0xFFFF;
/// Levels below a root. No driver makes more.
pub const DEPTH_MAX: u16 = 5;
/// The offset of the list in an extent block.
pub const BLOCK_LIST_AT: usize = 0x30;

/// Flag of an extent that is allocated and reads as zeros.
pub const UNWRITTEN: u8 = 0x1;
/// Flag of an extent that several files may share.
pub const REFCOUNTED: u8 = 0x2;

/// What the positions of a tree are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Clusters of a file.
    Clusters,
    /// Hashes: extents may seem to overlap.
    Hashes,
    /// Physical clusters; a record leads to one block, which may be anywhere in a cluster.
    RefcountBlocks,
}

/// A record: an extent of a leaf, or the subtree of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its first position.
    pub cpos: u32,
    /// Its length in clusters; of a subtree, what all of it covers.
    pub clusters: u32,
    /// Its first block.
    pub start: u64,
    /// [`UNWRITTEN`] and [`REFCOUNTED`].
    pub flags: u8,
}

/// A list of extents, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentList {
    /// Levels below this one; 0: the records are extents.
    pub depth: u16,
    /// The records. One that is empty is left out.
    pub records: Vec<Extent>,
}

impl ExtentList {
    /// Decodes the list at the start of `bytes`, which end where the room of the list ends.
    pub fn parse(bytes: &[u8], sb: &Superblock, keys: Keys) -> Result<Self, String> {
        let (depth, count, used) = (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4));
        let room = bytes.len().saturating_sub(LIST_BYTES) / RECORD_BYTES;
        if depth > DEPTH_MAX {
            return Err(format!("l_tree_depth is {depth}, more than {DEPTH_MAX}"));
        }
        if usize::from(count) > room || used > count {
            return Err(format!("an extent list has {used} of {count} records, and room for {room}"));
        }
        let mut list = Self { depth, records: Vec::with_capacity(used.into()) };
        for nth in 0..usize::from(used) {
            let record = &bytes[LIST_BYTES + nth * RECORD_BYTES..][..RECORD_BYTES];
            let is_leaf = depth == 0;
            let extent = Extent {
                cpos: u32_at(record, 0),
                clusters: if is_leaf { u16_at(record, 4).into() } else { u32_at(record, 4) },
                start: u64_at(record, 8),
                flags: if is_leaf { u8_at(record, 7) } else { 0 },
            };
            // Linux leaves an empty record at the start of a leaf.
            if is_leaf && extent.clusters == 0 {
                continue;
            }
            list.check_record(&extent, sb, keys)?;
            list.records.push(extent);
        }
        Ok(list)
    }

    /// Writes the list to the start of `bytes`, which has room for all records. Keeps the room that the list
    /// says it has.
    pub fn encode(&self, bytes: &mut [u8]) {
        put_u16(bytes, 0, self.depth);
        put_u16(bytes, 4, self.records.len() as u16);
        let room = usize::from(u16_at(bytes, 2));
        let used = LIST_BYTES + self.records.len() * RECORD_BYTES;
        for (extent, record) in self.records.iter().zip(bytes[LIST_BYTES..].chunks_exact_mut(RECORD_BYTES)) {
            put_u32(record, 0, extent.cpos);
            put_u32(record, 4, extent.clusters);
            if self.depth == 0 {
                (record[6], record[7]) = (0, extent.flags);
            }
            put_u64(record, 8, extent.start);
        }
        let end = (LIST_BYTES + room * RECORD_BYTES).min(bytes.len());
        bytes[used..end.max(used)].fill(0);
    }

    /// Writes an empty list that takes all of `bytes`.
    pub fn encode_empty(bytes: &mut [u8]) {
        bytes.fill(0);
        put_u16(bytes, 2, ((bytes.len() - LIST_BYTES) / RECORD_BYTES) as u16);
    }

    fn check_record(&self, extent: &Extent, sb: &Superblock, keys: Keys) -> Result<(), String> {
        let Extent { cpos, clusters, start, .. } = *extent;
        let per_cluster = u64::from(sb.blocks_per_cluster);
        let is_data = self.depth == 0 && keys != Keys::RefcountBlocks;
        let blocks = if is_data { u64::from(clusters) * per_cluster } else { 1 };
        if start == 0 || start.checked_add(blocks).is_none_or(|end| end > sb.blocks()) {
            return Err(format!("the extent at {cpos} is at block {start}, outside the filesystem"));
        }
        if is_data && !start.is_multiple_of(per_cluster) {
            return Err(format!("the extent at {cpos} starts at block {start}, inside a cluster"));
        }
        if is_data && keys == Keys::Clusters && cpos.checked_add(clusters).is_none() {
            return Err(format!("the extent at {cpos} is longer than a file can be"));
        }
        let Some(last) = self.records.last() else { return Ok(()) };
        let is_after = match (is_data, keys) {
            (true, Keys::Clusters) => cpos >= last.cpos.saturating_add(last.clusters),
            _ => cpos > last.cpos,
        };
        if !is_after {
            return Err(format!("the extents at {} and {cpos} overlap, or have no order", last.cpos));
        }
        Ok(())
    }

    /// Joins extents that continue each other.
    pub fn join(&mut self, sb: &Superblock) {
        self.records.dedup_by(|next, last| {
            let end = last.start + u64::from(last.clusters) * u64::from(sb.blocks_per_cluster);
            let continues =
                (next.cpos, next.start, next.flags) == (last.cpos + last.clusters, end, last.flags);
            let joins = continues && last.clusters + next.clusters <= EXTENT_MAX;
            if joins {
                last.clusters += next.clusters;
            }
            joins
        });
    }

    /// Returns the record that a position is in or behind, and where the next record starts.
    pub fn find(&self, cpos: u32) -> (Option<&Extent>, Option<u32>) {
        let after = self.records.partition_point(|extent| extent.cpos <= cpos);
        let found = after.checked_sub(1).and_then(|at| self.records.get(at));
        (found, self.records.get(after).map(|extent| extent.cpos))
    }
}
