//! Owners that changes name.

use crate::layout::owner::{ATTRIBUTES, Owner, TREE, UNWRITTEN};

impl Owner {
    /// A file block of an inode's data.
    pub(crate) const fn data(ino: u64, file_block: u64) -> Self {
        Self { owner: ino, offset: file_block }
    }

    /// A file block of an inode's attributes.
    pub(crate) const fn attributes(ino: u64, file_block: u64) -> Self {
        Self { owner: ino, offset: file_block | ATTRIBUTES }
    }

    /// A block of an inode's extent B-tree.
    pub(crate) const fn extent_tree(ino: u64, of_attributes: bool) -> Self {
        Self { owner: ino, offset: if of_attributes { TREE | ATTRIBUTES } else { TREE } }
    }

    /// The same owner, of an extent that reads as zeros.
    pub(crate) const fn unwritten(self) -> Self {
        Self { owner: self.owner, offset: self.offset | UNWRITTEN }
    }

    /// Whether its blocks may be shared between files.
    pub(crate) fn is_data(self) -> bool {
        self.counts_blocks() && self.offset & ATTRIBUTES == 0
    }
}
