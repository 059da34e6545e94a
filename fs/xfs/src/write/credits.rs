//! Upper bounds of what changes log.
//!
//! One change of a group inserts into or deletes from each B-tree a few records. An insertion or deletion
//! changes at most three blocks a level: the block, the one that it is split into or joined with, and the
//! link of the next one. The parts of one change are near each other: they share most of these blocks.
//!
//! - Free space by block: at most two operations, on neighbours.
//! - Free space by size: at most three operations, at three places.
//! - Reverse map: at most three operations, on neighbours.
//! - Reference counts: up to 16 records that are neighbours, which is at most two leaves and their paths.
//! - The free list: the same again once, for blocks that it gets.
//! - Inode B-trees: one operation each, and a change of free space for a block of each level.
//!
//! The bound is not for groups that have no free extent longer than a block: there the free list may need
//! several changes. A transaction compares what it logs with its credits before it publishes anything, so
//! exceeding the bound is an error without damage, and not a transaction that the log cannot hold.

use super::space::Space;
use super::tree_block::Shape;
use crate::layout::features::RoCompat;
use crate::layout::tree::TreeKind;

/// Blocks a level that an operation changes.
const BLOCKS_A_LEVEL: u64 = 3;

/// Blocks that changed in whole, and bytes, for which a change has credits when it begins.
const MOST_BLOCKS: u64 = 32;
const MOST_CREDITS: u32 = 512 << 10;

/// Blocks of the tree of attributes and of the map of its fork that one attribute changes.
const ATTRIBUTE_BLOCKS: u64 = 16;

impl Space {
    /// Levels of the tallest tree of a kind: every block but the root is half full.
    fn most_levels(&self, kind: TreeKind) -> u64 {
        let shape = Shape::new(kind, self.sb.block_size as usize);
        let mut blocks = u64::from(self.sb.ag_blocks).div_ceil((shape.most(0) as u64 / 2).max(1));
        let mut levels = 1;
        while blocks > 1 {
            blocks = blocks.div_ceil((shape.most(1) as u64 / 2).max(2));
            levels += 1;
        }
        levels
    }

    /// Blocks of a tree of this kind with a record for each of so many blocks, if its blocks are half full.
    pub(super) fn most_tree_blocks(&self, kind: TreeKind, records: u32) -> u32 {
        let shape = Shape::new(kind, self.sb.block_size as usize);
        let half = |level| (shape.most(level) as u32 / 2).max(2);
        let mut blocks = records.div_ceil(half(0));
        let mut sum = blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(half(1));
            sum += blocks;
        }
        sum
    }

    fn credits(&self, blocks: u64) -> u32 {
        let whole = self.costs.of_buffer(1, std::slice::from_ref(&(0..self.sb.block_size)));
        let credits = u32::try_from(whole.saturating_mul(blocks)).unwrap_or(u32::MAX);
        // A larger transaction cannot begin; what it logs is compared before it is published.
        credits.min(self.journal.max_credits())
    }

    /// The most credits that a change begins with: several changes must fit one transaction of the journal.
    pub(crate) fn most_credits(&self) -> u32 {
        self.credits(MOST_BLOCKS).max(MOST_CREDITS)
    }

    /// Blocks of one change of free space: its trees, the free list, and the heads.
    fn change_blocks(&self) -> u64 {
        let mut paths = self.most_levels(TreeKind::FreeByBlock) + 3 * self.most_levels(TreeKind::FreeBySize);
        if self.sb.ro_compat.contains(RoCompat::RMAPBT) {
            paths += 2 * self.most_levels(TreeKind::ReverseMap);
        }
        if self.sb.ro_compat.contains(RoCompat::REFLINK) {
            paths += 2 * self.most_levels(TreeKind::Refcounts);
        }
        3 + BLOCKS_A_LEVEL * paths
    }

    /// Credits of one change of free space: an allocation, or one deferred work such as freeing a run.
    pub(crate) fn credits_of_change(&self) -> u32 {
        self.credits(self.change_blocks())
    }

    /// Credits of a change of an attribute that has no blocks of its own: the paths to two leaves that come
    /// or go, in the tree of attributes and in the map of the fork.
    pub(crate) fn credits_of_attribute(&self) -> u32 {
        self.credits(2 * self.change_blocks() + ATTRIBUTE_BLOCKS)
    }

    /// Credits for an inode that is allocated, freed, or moved on a list of unlinked inodes.
    #[cfg(test)]
    pub(crate) fn credits_of_inode(&self) -> u32 {
        let trees = self.most_levels(TreeKind::Inodes) + self.most_levels(TreeKind::FreeInodes);
        // A chunk, its clusters, and blocks of the trees.
        let chunk = u64::from(self.sb.chunk_blocks());
        self.credits(self.change_blocks() + BLOCKS_A_LEVEL * trees + chunk + trees)
    }
}
