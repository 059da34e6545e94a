//! Inodes without names and without blocks, which are freed together.
//!
//! A transaction copies what it changes: the head of the group, and blocks of the inode B-trees. Inodes that
//! are freed one after the other share these blocks, so one transaction for many inodes costs much less than
//! one each. Until then the inodes are on the lists of unlinked inodes, where recovery finds them.

use crate::inode::Dinode;
use ivers_vfs::sync::{RankedMutex, rank};

/// Inodes that one transaction frees.
pub(super) const MOST: usize = 32;

/// Inodes that wait to be freed. Nobody uses them.
#[derive(Default)]
pub(crate) struct Unfreed(RankedMutex<rank::Leaf, Vec<Dinode>>);

impl Unfreed {
    /// Adds an inode. Returns whether enough of them wait. An inode that is added again, since freeing it
    /// failed, is there once.
    pub(super) fn add(&self, inode: Dinode) -> bool {
        let mut waiting = self.0.lock();
        waiting.retain(|other| other.ino != inode.ino);
        waiting.push(inode);
        waiting.len() >= MOST
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes up to [`MOST`] inodes out, in the order of their numbers: neighbours share a chunk.
    pub(super) fn take(&self) -> Vec<Dinode> {
        let mut waiting = self.0.lock();
        let count = waiting.len().min(MOST);
        let mut inodes: Vec<_> = waiting.drain(..count).collect();
        inodes.sort_by_key(|inode| inode.ino);
        inodes
    }
}
