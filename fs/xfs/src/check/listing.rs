//! What is collected of one directory.

use super::names::Reading;
use crate::layout::bytes::number;
use crate::layout::directory::NO_BEST;

/// Names, hashes and free space of one directory.
pub(super) struct Listing {
    pub(super) reading: Reading,
    /// Hash and address of each entry in the data blocks.
    pub(super) entries: Vec<(u32, u32)>,
    /// Hash and address of each entry in the index.
    pub(super) index: Vec<(u32, u32)>,
    /// The largest free range of each data block.
    pub(super) bests: Vec<u16>,
    /// What `..` says.
    pub(super) dotdot: u64,
    /// Whether all data blocks could be read.
    pub(super) sound: bool,
}

impl Listing {
    /// Notes the largest free range of a data block.
    pub(super) fn set_best(&mut self, nth: usize, best: u16) {
        if self.bests.len() <= nth {
            self.bests.resize(nth + 1, NO_BEST);
        }
        self.bests[nth] = best;
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let pairs = self.entries.capacity() + self.index.capacity();
        pairs * size_of::<(u32, u32)>() + self.bests.capacity() * size_of::<u16>()
    }
}

/// Collects hashes and addresses of entries that are not removed. Returns the last hash, if all are in order.
pub(super) fn read_hashes(bytes: &[u8], count: usize, index: &mut Vec<(u32, u32)>) -> Option<u32> {
    let (mut last, mut in_order) = (0, true);
    for entry in bytes.chunks_exact(8).take(count) {
        let hash = number(entry, 0, 4).unwrap_or(0) as u32;
        let address = number(entry, 4, 4).unwrap_or(0) as u32;
        in_order &= hash >= last;
        last = hash;
        if address != 0 {
            index.push((hash, address));
        }
    }
    in_order.then_some(last)
}
