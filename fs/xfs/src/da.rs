//! Hash trees of names: directories of several blocks and attributes outside the inode share them.

use crate::fork::{Fork, ForkSource, Which};
use crate::layout::bytes::number;
use crate::layout::checksum::DA_BLOCK;
use crate::layout::directory::{MAX_DEPTH, NODE_MAGICS, da_header_bytes, hash_entries_start};
use crate::layout::raw::RawDaNodeEntry;
use crate::search::partition;
use crate::source::Source;
use crate::unit::{Unit, UnitPlace, Whose};
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::Result;
use std::collections::BTreeSet;
use std::mem::size_of;

/// Returns the hash of a name.
pub(crate) fn hash_name(name: &[u8]) -> u32 {
    name.iter().fold(0, |hash: u32, &byte| hash.rotate_left(7) ^ u32::from(byte))
}

/// A tree in the blocks of a fork.
#[derive(Clone, Copy)]
pub(crate) struct HashTree<'a> {
    pub ino: u64,
    pub which: Which,
    pub fork: &'a Fork,
    /// The block with the root.
    pub root: FileBlock,
    /// Filesystem blocks of a block of the tree.
    pub unit: u64,
    /// Magics of a leaf, in version 5 and 4.
    pub leaf_magics: [u16; 2],
}

impl HashTree<'_> {
    fn place(&self, at: FileBlock) -> UnitPlace {
        UnitPlace { ino: self.ino, which: self.which, at, count: self.unit }
    }
}

/// A block of a tree whose header is checked.
pub(crate) struct HashBlock {
    pub bytes: Unit,
    pub block: BlockNo,
    magic: u16,
    next: u32,
}

/// Reading of hash trees.
pub(crate) trait HashSource: Source {
    /// Reads a block of a tree.
    fn hash_block(&self, tree: &HashTree<'_>, at: FileBlock) -> Result<HashBlock> {
        let blocks = self.mapped_blocks(tree.fork, tree.place(at))?;
        let bytes = self.unit(&blocks, &DA_BLOCK, Whose::Inode(tree.ino))?;
        let field = |at, len| number(&bytes, at, len).unwrap_or(0);
        let (magic, next) = (field(8, 2) as u16, field(0, 4) as u32);
        let block = blocks.first();
        Ok(HashBlock { bytes, block, magic, next })
    }

    /// Returns the first leaf that may have names with a hash.
    fn hash_leaf(&self, tree: &HashTree<'_>, hash: u32) -> Result<Option<HashBlock>> {
        let (whose, version) = (Whose::Inode(tree.ino), usize::from(!self.sb().is_v5()));
        let (header, entries) = (da_header_bytes(self.sb()), hash_entries_start(self.sb()));
        let (mut at, mut level) = (tree.root, None);
        for _ in 0..MAX_DEPTH {
            let found = self.hash_block(tree, at)?;
            let bad = |what: String| self.corrupt_block(what, whose, found.block);
            if found.magic == tree.leaf_magics[version] {
                return match level {
                    None | Some(1) => Ok(Some(found)),
                    Some(_) => Err(bad("a leaf of a hash tree is where a node should be".into())),
                };
            }
            if found.magic != NODE_MAGICS[version] {
                return Err(bad(format!("a block of a hash tree has the magic {:#06x}", found.magic)));
            }
            let field = |at, len| number(&found.bytes, at, len).unwrap_or(0);
            let (count, own_level) = (field(header, 2) as usize, field(header + 2, 2));
            if own_level == 0 || level.is_some_and(|level| own_level + 1 != level) {
                return Err(bad(format!("a node of a hash tree has level {own_level}")));
            }
            level = Some(own_level);
            let entry = |index: usize| entries + index * size_of::<RawDaNodeEntry>();
            if count == 0 || entry(count) > found.bytes.len() {
                return Err(bad(format!("a node of a hash tree has {count} entries")));
            }
            let first = partition(count, |index| (field(entry(index), 4) as u32) < hash);
            // A hash above all others is in no leaf.
            if first == count {
                return Ok(None);
            }
            at = FileBlock(field(entry(first) + 4, 4));
        }
        Err(self.corrupt("a hash tree is too deep", whose))
    }

    /// Calls `visit` with a leaf and those after it until it breaks: names with one hash can be in several.
    fn each_leaf_from<T>(
        &self,
        tree: &HashTree<'_>,
        first: HashBlock,
        mut visit: impl FnMut(&HashBlock) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let version = usize::from(!self.sb().is_v5());
        let (mut seen, mut leaf) = (BTreeSet::new(), first);
        loop {
            if leaf.magic != tree.leaf_magics[version] {
                let what = format!("a leaf of a hash tree has the magic {:#06x}", leaf.magic);
                return Err(self.corrupt_block(what, Whose::Inode(tree.ino), leaf.block));
            }
            if let Some(found) = visit(&leaf)? {
                return Ok(Some(found));
            }
            if leaf.next == 0 {
                return Ok(None);
            }
            if !seen.insert(leaf.next) {
                return Err(self.corrupt("the leaves of a hash tree have a cycle", Whose::Inode(tree.ino)));
            }
            leaf = self.hash_block(tree, FileBlock(leaf.next.into()))?;
        }
    }
}

impl<S: Source> HashSource for S {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_format() {
        // From the examples of "XFS Algorithms & Data Structures".
        assert_eq!(hash_name(b"attribute_267"), 0x3437_d1a8);
        assert_eq!([&b"."[..], b".."].map(hash_name), [0x2e, 0x172e]);
        assert_eq!(hash_name(b""), 0);
    }
}
