//! Units: the blocks that one buffer holds.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::BlockNo;

/// The blocks of one buffer, in the order of its bytes: one block, or several that a format reads, checks and
/// logs together. Several need not be neighbours. Never empty.
///
/// Units are ordered by their blocks, the first one first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(Blocks);

#[derive(Debug, Clone)]
enum Blocks {
    One(BlockNo),
    Several(Arc<[BlockNo]>),
}

impl Unit {
    /// A unit of these blocks.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(blocks: &[BlockNo]) -> Self {
        match blocks {
            [] => panic!("a unit has at least one block"),
            [one] => Self(Blocks::One(*one)),
            several => Self(Blocks::Several(several.into())),
        }
    }

    /// A unit of `count` neighbours.
    ///
    /// # Panics
    /// If there is none, or there is no such block.
    pub fn run(first: BlockNo, count: u64) -> Self {
        match count {
            0 => panic!("a unit has at least one block"),
            1 => Self(Blocks::One(first)),
            _ => Self(Blocks::Several(first.run(count).collect())),
        }
    }

    /// The first block. A cache holds at most one unit that starts with it.
    pub fn first(&self) -> BlockNo {
        match &self.0 {
            Blocks::One(block) => *block,
            Blocks::Several(blocks) => blocks[0],
        }
    }

    /// The blocks and the bytes of each, of a buffer with these bytes.
    pub fn split<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (BlockNo, &'a [u8])> {
        let each = bytes.len() / self.len();
        self.iter().copied().zip(bytes.chunks_exact(each.max(1)))
    }

    /// The blocks as runs of neighbours: the index of the first block of a run in the unit, its number, and
    /// the number of blocks.
    pub fn runs(&self) -> impl Iterator<Item = (usize, BlockNo, usize)> {
        let mut at = 0;
        self.chunk_by(|a, b| a.checked_add(1) == Some(*b)).map(move |run| {
            let start = at;
            at += run.len();
            (start, run[0], run.len())
        })
    }
}

impl From<BlockNo> for Unit {
    fn from(block: BlockNo) -> Self {
        Self(Blocks::One(block))
    }
}

impl Deref for Unit {
    type Target = [BlockNo];

    fn deref(&self) -> &[BlockNo] {
        self.0.as_slice()
    }
}

impl Hash for Unit {
    /// Only the first block: units with the same one are rare.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.first().hash(state);
    }
}

impl Blocks {
    fn as_slice(&self) -> &[BlockNo] {
        match self {
            Self::One(block) => std::slice::from_ref(block),
            Self::Several(blocks) => blocks,
        }
    }
}

impl PartialEq for Blocks {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Blocks {}

impl PartialOrd for Blocks {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Blocks {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_split_into_blocks_and_runs() {
        let unit = Unit::new(&[5, 6, 9, 3, 4].map(BlockNo));
        assert_eq!((unit.first(), unit.len()), (BlockNo(5), 5));
        let runs: Vec<_> = unit.runs().collect();
        assert_eq!(runs, [(0, BlockNo(5), 2), (2, BlockNo(9), 1), (3, BlockNo(3), 2)]);
        let parts: Vec<_> = unit.split(&[1, 1, 2, 2, 3, 3, 4, 4, 5, 5]).map(|(b, d)| (b.0, d[0])).collect();
        assert_eq!(parts, [(5, 1), (6, 2), (9, 3), (3, 4), (4, 5)]);
        assert_eq!(Unit::new(&[BlockNo(7)]), Unit::from(BlockNo(7)));
        assert!(Unit::from(BlockNo(5)) < unit && unit < Unit::from(BlockNo(6)));
        assert_eq!(size_of::<Unit>(), 16);
    }
}
