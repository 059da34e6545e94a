//! Extents that were decompressed last.

use ivers_vfs::sync::{RankedMutex, rank};
use std::collections::VecDeque;
use std::sync::Arc;

/// Decompressed extents that are kept: each is read in several parts.
const DECOMPRESSED_MAX: usize = 8;

/// Which extent was decompressed: its address, its length, and whether its checksums were right.
type ExtentId = (u64, u64, bool);

/// The oldest first.
type Kept = VecDeque<(ExtentId, Arc<Vec<u8>>)>;

/// The extents that were decompressed last: at most 1 MiB.
pub(crate) struct Decompressed(RankedMutex<rank::Leaf, Kept>);

impl Decompressed {
    pub(crate) fn new() -> Self {
        Self(RankedMutex::new(VecDeque::new()))
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<Arc<Vec<u8>>> {
        self.0.lock().iter().find(|(other, _)| *other == id).map(|(_, bytes)| bytes.clone())
    }

    /// Forgets the extent at an address, where other data will be.
    pub(crate) fn forget(&self, address: u64) {
        self.0.lock().retain(|((other, ..), _)| *other != address);
    }

    pub(crate) fn keep(&self, id: ExtentId, bytes: Arc<Vec<u8>>) {
        let mut kept = self.0.lock();
        if kept.len() >= DECOMPRESSED_MAX {
            kept.pop_front();
        }
        kept.push_back((id, bytes));
    }
}
