//! B-trees: the inode B-tree of a group, and the extent B-tree of a fork.

use crate::layout::bytes::number;
use crate::layout::checksum::{LONG_BTREE, SHORT_BTREE};
use crate::layout::chunk::InodeChunk;
use crate::layout::features::Incompat;
use crate::layout::superblock::FsBlock;
use crate::layout::tree::TreeKind;
use crate::search::last_at_most;
use crate::source::Source;
use crate::unit::{Unit, Whose};
use ivers_block::BlockNo;
use ivers_vfs::Result;

/// The most levels of any B-tree; the format has at most 12.
pub(crate) const MAX_LEVELS: u32 = 16;

/// A B-tree block whose header is checked.
pub(crate) struct TreeBlock {
    bytes: Unit,
    header: usize,
    record_bytes: usize,
    /// Keys or records in it.
    pub records: usize,
}

impl TreeBlock {
    /// The bytes of a record of a leaf.
    pub(crate) fn record(&self, index: usize) -> &[u8] {
        let at = self.header + index * self.record_bytes;
        self.bytes.get(at..at + self.record_bytes).unwrap_or_default()
    }

    /// The key and the pointer of a node; both have `bytes` bytes.
    fn node_entry(&self, index: usize, bytes: usize) -> (u64, u64) {
        let most = (self.bytes.len() - self.header) / (2 * bytes);
        let field = |at| number(&self.bytes, at, bytes).unwrap_or(0);
        (field(self.header + index * bytes), field(self.header + (most + index) * bytes))
    }

    /// The key and the pointer of a node of an extent B-tree.
    pub(crate) fn extent_node_entry(&self, index: usize) -> (u64, u64) {
        self.node_entry(index, 8)
    }
}

/// Reading of blocks of B-trees.
pub(crate) trait TreeSource: Source {
    /// Checks the header of a block.
    fn check_tree_block(
        &self,
        bytes: Unit,
        kind: TreeKind,
        level: u32,
        whose: Whose,
        block: BlockNo,
    ) -> Result<TreeBlock> {
        let v5 = self.sb().is_v5();
        let header = kind.header_bytes(v5);
        let child = kind.key_bytes() + kind.pointer_bytes();
        let entry = if level == 0 { kind.record_bytes() } else { child };
        let found = number(&bytes, 0, 4).unwrap_or(0) as u32;
        let found_level = number(&bytes, 4, 2).unwrap_or(0) as u32;
        let records = number(&bytes, 6, 2).unwrap_or(0) as usize;
        let what = if !bytes.starts_with(kind.magic(v5)) {
            format!("a B-tree block has the magic {found:#010x}")
        } else if found_level != level {
            format!("a B-tree block of level {level} says that it has level {found_level}")
        } else if records > bytes.len().saturating_sub(header) / entry || (records == 0 && level > 0) {
            format!("a B-tree block has {records} records")
        } else {
            return Ok(TreeBlock { bytes, header, record_bytes: kind.record_bytes(), records });
        };
        Err(self.corrupt_block(what, whose, block))
    }

    /// Reads a block of a fork's extent B-tree.
    fn extent_tree_block(&self, pointer: u64, level: u32, ino: u64) -> Result<TreeBlock> {
        let whose = Whose::Inode(ino);
        let block = self
            .sb()
            .run(FsBlock(pointer), 1)
            .ok_or_else(|| self.corrupt(format!("the extent B-tree refers to block {pointer}"), whose))?;
        let bytes = self.unit(&[block], &LONG_BTREE, whose)?;
        self.check_tree_block(bytes, TreeKind::Extents, level, whose, block)
    }

    /// Reads a block of a B-tree of a group, whose keys and pointers have 4 bytes.
    fn group_tree_block(&self, kind: TreeKind, ag: u32, pointer: u32, level: u32) -> Result<TreeBlock> {
        let whose = Whose::Group(ag);
        let block = self
            .sb()
            .ag_block(ag, pointer)
            .ok_or_else(|| self.corrupt(format!("{} refers to block {pointer}", kind.name()), whose))?;
        let bytes = self.unit(&[block], &SHORT_BTREE, whose)?;
        self.check_tree_block(bytes, kind, level, whose, block)
    }

    /// Returns the last record of such a B-tree with at most this key, and the key of the next one.
    fn find_in_group(
        &self,
        kind: TreeKind,
        ag: u32,
        (root, levels): (u32, u32),
        wanted: u32,
    ) -> Result<(Option<Vec<u8>>, Option<u32>)> {
        if !(1..=MAX_LEVELS).contains(&levels) {
            let what = format!("{} has {levels} levels", kind.name());
            return Err(self.corrupt(what, Whose::Group(ag)));
        }
        let (mut pointer, mut next) = (root, None);
        let mut find = |count: usize, key: &dyn Fn(usize) -> u64| {
            let index = last_at_most(count, wanted.into(), key);
            let after = index.map_or(0, |index| index + 1);
            if after < count {
                next = Some(key(after) as u32);
            }
            index
        };
        for level in (1..levels).rev() {
            let node = self.group_tree_block(kind, ag, pointer, level)?;
            let found = find(node.records, &|index| node.node_entry(index, 4).0);
            let Some(index) = found else { return Ok((None, next)) };
            pointer = node.node_entry(index, 4).1 as u32;
        }
        let leaf = self.group_tree_block(kind, ag, pointer, 0)?;
        let found = find(leaf.records, &|index| number(leaf.record(index), 0, 4).unwrap_or(0));
        Ok((found.map(|index| leaf.record(index).to_vec()), next))
    }

    /// Returns the last record of a group's inode B-tree that starts at or before an inode.
    fn inode_chunk(&self, ag: u32, root: u32, levels: u32, agino: u32) -> Result<Option<InodeChunk>> {
        let (record, _) = self.find_in_group(TreeKind::Inodes, ag, (root, levels), agino)?;
        let sparse = self.sb().incompat.contains(Incompat::SPARSE);
        Ok(record.map(|record| InodeChunk::decode(&record, sparse)))
    }
}

impl<S: Source> TreeSource for S {}
