//! Owners of blocks, in the form of the reverse map.

/// An owner, as a record of the reverse map names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// An inode, or one of the structures below.
    pub(crate) owner: u64,
    /// Flags, and the first file block.
    pub(crate) offset: u64,
}

/// An extent of the attribute fork.
pub(crate) const ATTRIBUTES: u64 = 1 << 63;
/// A block of an extent B-tree.
pub(crate) const TREE: u64 = 1 << 62;
/// The extent reads as zeros.
pub(crate) const UNWRITTEN: u64 = 1 << 61;
/// The file block of an owner that is an inode.
pub(crate) const FILE_BLOCK: u64 = (1 << 54) - 1;
/// Marks blocks for copy on write in the B-tree of reference counts.
pub(crate) const COPY_FLAG: u32 = 1 << 31;

impl Owner {
    /// Heads of groups.
    pub(crate) const HEADS: Self = Self::structure(-3);
    pub(crate) const LOG: Self = Self::structure(-4);
    /// B-trees of free space and of reverse mappings, and free lists.
    pub(crate) const SPACE: Self = Self::structure(-5);
    /// B-trees of inodes.
    pub(crate) const INODE_TREE: Self = Self::structure(-6);
    pub(crate) const INODES: Self = Self::structure(-7);
    pub(crate) const REFCOUNT: Self = Self::structure(-8);
    /// Blocks for copy on write that no file has yet.
    pub(crate) const COPY: Self = Self::structure(-9);

    const fn structure(number: i64) -> Self {
        Self { owner: number as u64, offset: 0 }
    }

    pub(crate) fn is_inode(self) -> bool {
        self.owner < 1 << 63
    }

    /// Whether its blocks are contents of a fork: they have file blocks.
    pub(crate) fn counts_blocks(self) -> bool {
        self.is_inode() && self.offset & TREE == 0
    }

    /// The owner of what follows after `len` blocks.
    pub(crate) fn after(self, len: u64) -> Self {
        if self.counts_blocks() { Self { offset: self.offset.wrapping_add(len), ..self } } else { self }
    }
}
