//! Who owns blocks, in the form of the reverse map.

/// An owner, as a record of the reverse map names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    /// An inode, or one of the structures below.
    pub(super) owner: u64,
    /// Flags, and the first file block.
    pub(super) offset: u64,
}

/// An extent of the attribute fork.
pub(super) const ATTRIBUTES: u64 = 1 << 63;
/// A block of an extent B-tree.
pub(super) const TREE: u64 = 1 << 62;
/// The extent reads as zeros.
pub(super) const UNWRITTEN: u64 = 1 << 61;
/// The file block of an owner that is an inode.
pub(super) const FILE_BLOCK: u64 = (1 << 54) - 1;

impl Owner {
    /// Heads of groups.
    pub(super) const HEADS: Self = Self::structure(-3);
    pub(super) const LOG: Self = Self::structure(-4);
    /// B-trees of free space and of reverse mappings, and free lists.
    pub(super) const SPACE: Self = Self::structure(-5);
    /// B-trees of inodes.
    pub(super) const INODE_TREE: Self = Self::structure(-6);
    pub(super) const INODES: Self = Self::structure(-7);
    pub(super) const REFCOUNT: Self = Self::structure(-8);
    /// Blocks for copy on write that no file has yet.
    pub(super) const COPY: Self = Self::structure(-9);

    const fn structure(number: i64) -> Self {
        Self { owner: number as u64, offset: 0 }
    }

    pub(super) fn is_inode(self) -> bool {
        self.owner < 1 << 63
    }

    fn counts_blocks(self) -> bool {
        self.is_inode() && self.offset & TREE == 0
    }

    /// The owner of what follows after `len` blocks.
    pub(super) fn after(self, len: u64) -> Self {
        if self.counts_blocks() { Self { offset: self.offset.wrapping_add(len), ..self } } else { self }
    }
}

/// A run of blocks of a group, and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) owner: Owner,
}

/// Sorts mappings by owner, and joins those that continue each other.
pub(super) fn join(mappings: &mut Vec<Mapping>) {
    mappings.sort_unstable_by_key(|mapping| (mapping.owner, mapping.start));
    mappings.dedup_by(|next, last| {
        let end = u64::from(last.start) + u64::from(last.len);
        let joins = end == u64::from(next.start) && last.owner.after(last.len.into()) == next.owner;
        match last.len.checked_add(next.len) {
            Some(len) if joins => {
                last.len = len;
                true
            }
            _ => false,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_continue_are_joined() {
        let mapping = |start, len, owner, offset| Mapping { start, len, owner: Owner { owner, offset } };
        let mut all = vec![
            mapping(20, 5, 7, 15),
            mapping(10, 10, 7, 5),
            mapping(25, 1, 7, 20 | UNWRITTEN),
            mapping(31, 1, 7, TREE),
            mapping(30, 1, 7, TREE),
            Mapping { start: 3, len: 2, owner: Owner::SPACE },
            Mapping { start: 5, len: 2, owner: Owner::SPACE },
        ];
        join(&mut all);
        assert_eq!(
            all.iter().map(|mapping| (mapping.start, mapping.len)).collect::<Vec<_>>(),
            [(10, 15), (25, 1), (30, 2), (3, 4)]
        );
    }
}
