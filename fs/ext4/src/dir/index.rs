//! Index blocks of a hashed directory as bytes: `dx_root` (block 0, after `.` and `..`) and `dx_node`.
//!
//! To a reader without index support, both look like a directory block with one unused entry. An index is a
//! table of `(hash, block)` sorted by hash. The hash of its first row equals the hash of the parent's row and
//! is not stored; its space holds `limit` and `count`. With metadata_csum, a `dx_tail` follows the table.

use super::linear::{Format, le16, le32, put16, put32};

/// Bytes of a row.
const ROW: usize = 8;
/// Offset of `dx_root_info`: after `.` and the header and name of `..`.
const ROOT_INFO: usize = 24;
/// Bytes of `dx_root_info`.
const ROOT_INFO_LEN: usize = 8;
/// Offset of the table of a `dx_node`: after an unused entry.
const NODE_TABLE: usize = 8;
/// Bytes of `dx_tail`.
const TAIL: usize = 8;
/// A block number occupies the lower 28 bits of its field.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// The table of an index block, validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Offset in the block.
    start: usize,
    /// Capacity in rows.
    pub limit: usize,
    /// Number of rows, at least one.
    pub count: usize,
}

/// The contents of `dx_root_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// `hash_version`.
    pub hash_version: u8,
    /// `indirect_levels`: levels of `dx_node` below the root.
    pub levels: u8,
    /// The table.
    pub table: Table,
}

fn table_at(format: &Format, block: &[u8], start: usize) -> Result<Table, &'static str> {
    let (limit, count) = (usize::from(le16(block, start)), usize::from(le16(block, start + 2)));
    if limit != limit_for(format, start) {
        return Err("an index block has a bad limit");
    }
    if count == 0 || count > limit {
        return Err("an index block has a bad count");
    }
    Ok(Table { start, limit, count })
}

fn limit_for(format: &Format, start: usize) -> usize {
    let tail = if format.checksum { TAIL } else { 0 };
    (format.block_size - start - tail) / ROW
}

/// Parses the root of an index.
pub fn parse_root(format: &Format, block: &[u8]) -> Result<Root, &'static str> {
    if block.len() != format.block_size {
        return Err("a directory block is too short");
    }
    let dot = format.entry(block, 0)?;
    let dotdot = format.entry(block, 12)?;
    if dot.name != b"."
        || dot.rec_len != 12
        || dotdot.name != b".."
        || dotdot.rec_len != format.block_size - 12
    {
        return Err("an index root does not begin with . and ..");
    }
    if le32(block, ROOT_INFO) != 0
        || usize::from(block[ROOT_INFO + 5]) != ROOT_INFO_LEN
        || block[ROOT_INFO + 7] & 1 != 0
    {
        return Err("an index root has a bad header");
    }
    let table = table_at(format, block, ROOT_INFO + ROOT_INFO_LEN)?;
    Ok(Root { hash_version: block[ROOT_INFO + 4], levels: block[ROOT_INFO + 6], table })
}

/// Parses an inner node of an index.
pub fn parse_node(format: &Format, block: &[u8]) -> Result<Table, &'static str> {
    if block.len() != format.block_size || !looks_like_node(format, block) {
        return Err("an index node has a bad format");
    }
    table_at(format, block, NODE_TABLE)
}

/// Whether the block is one unused entry, as an inner node is. Only with checksums does this distinguish
/// nodes from empty leaves.
pub fn looks_like_node(format: &Format, block: &[u8]) -> bool {
    format.entry(block, 0).is_ok_and(|entry| entry.ino == 0 && entry.rec_len == format.block_size)
}

/// Makes block 0 the root of a tree with one leaf. Keeps its `.` and `..`.
pub fn init_root(format: &Format, block: &mut [u8], hash_version: u8, leaf: u32) {
    block[ROOT_INFO..].fill(0);
    put16(block, 12 + 4, (format.block_size - 12).min(usize::from(u16::MAX)) as u16);
    block[ROOT_INFO + 4] = hash_version;
    block[ROOT_INFO + 5] = ROOT_INFO_LEN as u8;
    let start = ROOT_INFO + ROOT_INFO_LEN;
    let table = Table { start, limit: limit_for(format, start), count: 1 };
    table.store(block, &[(0, leaf)]);
}

/// Sets `indirect_levels`.
pub fn set_levels(block: &mut [u8], levels: u8) {
    block[ROOT_INFO + 6] = levels;
}

/// Makes an inner node of these rows; the hash of the first is not stored.
pub fn init_node(format: &Format, block: &mut [u8], rows: &[(u32, u32)]) {
    block.fill(0);
    let stored = if format.block_size >= 1 << 16 { u16::MAX } else { format.block_size as u16 };
    put16(block, 4, stored);
    Table { start: NODE_TABLE, limit: limit_for(format, NODE_TABLE), count: rows.len() }.store(block, rows);
}

impl Table {
    /// The hash of a row; 0 for the first, whose hash is not stored.
    pub fn hash(&self, block: &[u8], row: usize) -> u32 {
        if row == 0 { 0 } else { le32(block, self.start + row * ROW) }
    }

    /// The directory block that a row refers to.
    pub fn block(&self, block: &[u8], row: usize) -> u32 {
        le32(block, self.start + row * ROW + 4) & BLOCK_MASK
    }

    /// The last row whose hash is not above `hash`.
    pub fn find(&self, block: &[u8], hash: u32) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.hash(block, middle) > hash {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low - 1
    }

    /// Returns all rows.
    pub fn rows(&self, block: &[u8]) -> Vec<(u32, u32)> {
        (0..self.count).map(|row| (self.hash(block, row), self.block(block, row))).collect()
    }

    /// Replaces the table.
    pub fn store(&self, block: &mut [u8], rows: &[(u32, u32)]) {
        for (row, &(hash, target)) in rows.iter().enumerate() {
            if row > 0 {
                put32(block, self.start + row * ROW, hash);
            }
            put32(block, self.start + row * ROW + 4, target);
        }
        put16(block, self.start, self.limit as u16);
        put16(block, self.start + 2, rows.len() as u16);
    }

    /// Inserts a row after `row`; the table must have space.
    pub fn insert_after(&self, block: &mut [u8], row: usize, hash: u32, target: u32) {
        let at = self.start + (row + 1) * ROW;
        let end = self.start + self.count * ROW;
        block.copy_within(at..end, at + ROW);
        put32(block, at, hash);
        put32(block, at + 4, target);
        put16(block, self.start + 2, self.count as u16 + 1);
    }

    /// The end of the bytes that the checksum covers before the tail, and the offset of the tail.
    fn covered(&self) -> (usize, usize) {
        (self.start + self.count * ROW, self.start + self.limit * ROW)
    }

    /// Computes the checksum of the block; `chain` continues a CRC.
    pub fn checksum(&self, block: &[u8], seed: u32, chain: impl Fn(u32, &[u8]) -> u32) -> u32 {
        let (end, tail) = self.covered();
        let over_rows = chain(seed, block.get(..end).unwrap_or_default());
        let over_reserved = chain(over_rows, block.get(tail..tail + 4).unwrap_or_default());
        chain(over_reserved, &[0; 4])
    }

    /// The stored checksum.
    pub fn stored_checksum(&self, block: &[u8]) -> u32 {
        le32(block, self.covered().1 + 4)
    }

    /// Stores the checksum.
    pub fn store_checksum(&self, block: &mut [u8], checksum: u32) {
        put32(block, self.covered().1 + 4, checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_vfs::FileType;

    #[test]
    fn tables_round_trip() {
        for (block_size, checksum, root_limit, node_limit) in [
            (1024, false, 124, 127),
            (4096, false, 508, 511),
            (4096, true, 507, 510),
            (65536, true, 8187, 8190),
        ] {
            let format = Format { block_size, filetype: true, checksum };
            let mut block = vec![0; block_size];
            format.write_entry(&mut block, 0, 12, 2, b".", Some(FileType::Directory));
            format.write_entry(&mut block, 12, block_size - 12, 2, b"..", Some(FileType::Directory));
            init_root(&format, &mut block, 1, 1);
            let root = parse_root(&format, &block).unwrap();
            assert_eq!((root.hash_version, root.levels, root.table.limit), (1, 0, root_limit));
            root.table.insert_after(&mut block, 0, 100, 2);
            let table = parse_root(&format, &block).unwrap().table;
            table.insert_after(&mut block, 0, 50, 3);
            let table = parse_root(&format, &block).unwrap().table;
            assert_eq!(table.rows(&block), [(0, 1), (50, 3), (100, 2)]);
            for (hash, row) in [(0, 0), (49, 0), (50, 1), (99, 1), (100, 2), (u32::MAX, 2)] {
                assert_eq!(table.find(&block, hash), row);
            }
            init_node(&format, &mut block, &[(7, 1), (8, 2)]);
            let table = parse_node(&format, &block).unwrap();
            assert_eq!((table.limit, table.rows(&block)), (node_limit, vec![(0, 1), (8, 2)]));
        }
    }
}
