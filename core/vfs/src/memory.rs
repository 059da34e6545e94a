//! The memory of a mount's caches.

use crate::pages::PAGE64;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Ino;
use ivers_block::{Budget, RUN};
use std::sync::Arc;

/// A table of fewer slots is not worth shrinking.
const SHRINK_FROM: usize = 1024;

/// Whether a table has many slots and fewer than one in `share` of them in use: then it should shrink.
pub(crate) fn is_sparse(used: usize, capacity: usize, share: usize) -> bool {
    capacity >= SHRINK_FROM && used < capacity / share
}

/// A number in 32 bits by which the shards of a table are chosen. Neighbours are in one shard, where they are
/// side by side. Under shuttle they are not, since the inodes of a schedule are all neighbours.
pub(crate) fn mixed(ino: Ino) -> u64 {
    let run = if cfg!(shuttle) { ino.0 } else { ino.0 / RUN };
    scattered(run)
}

/// 32 bits that look random, and differ much between neighbours.
pub(crate) fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// Memory of a mount, how much of it is dirty, and the unit of its pages.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) budget: Arc<Budget>,
    /// Pages of an [`FsInfo::io_unit`](crate::FsInfo::io_unit): a power of two, at most
    /// [`RUN_PAGES`](crate::pages::RUN_PAGES).
    pub(crate) unit_pages: u64,
    /// Dirty pages and pages under write-back, in bytes.
    dirty_bytes: AtomicU64,
    pub(crate) dirty_limit: u64,
    /// Nothing more could be freed at this use of the budget, or 0.
    pub(crate) no_shrink_up_to: AtomicU64,
}

impl Memory {
    pub(crate) fn new(budget: Arc<Budget>, dirty_limit: u64, unit_bytes: u64) -> Self {
        Self {
            budget,
            unit_pages: unit_bytes / PAGE64,
            dirty_bytes: AtomicU64::new(0),
            dirty_limit,
            no_shrink_up_to: AtomicU64::new(0),
        }
    }

    /// The unit of the driver's reads and writes in bytes.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.unit_pages * PAGE64
    }

    /// How many bytes of its unit precede this offset. Without a division: every write calls it.
    pub(crate) fn offset_in_unit(&self, offset: u64) -> u64 {
        offset & (self.unit_bytes() - 1)
    }

    /// The first page of the unit that contains this page.
    pub(crate) fn unit_start(&self, page: u64) -> u64 {
        page & !(self.unit_pages - 1)
    }

    /// The first page of the first unit that begins at this page or later.
    pub(crate) fn next_unit(&self, page: u64) -> u64 {
        self.unit_start(page + self.unit_pages - 1)
    }

    /// Counts pages that must stay now.
    pub(crate) fn newly_dirty(&self, pages: u64) {
        self.dirty_bytes.fetch_add(pages * PAGE64, Ordering::Relaxed);
    }

    /// Pages that [`Memory::newly_dirty`] counted are written or dropped. If one is counted twice here, every
    /// writer waits for ever.
    pub(crate) fn no_longer_dirty(&self, pages: u64) {
        let before = self.dirty_bytes.fetch_sub(pages * PAGE64, Ordering::Relaxed);
        debug_assert!(before >= pages * PAGE64, "{pages} pages were not counted: {before}");
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }
}
