//! Claims: free blocks that get data before a transaction takes them.
//!
//! The data of a short new file must be on the device before its map is visible. If it were written inside of
//! the transaction, all other changes would wait for the device. So a group keeps a small pool of free
//! blocks. Write-back claims some of them, writes the data, and then allocates exactly these blocks.
//!
//! Nothing of this is on the device: after a crash the blocks are free.
//!
//! No other allocation takes blocks that are claimed or in a pool. Blocks enter a pool only under the lock of
//! the groups, and an allocation holds that lock from the time when it looks here until it is published. An
//! allocation that finds nothing else empties the pools; claims stay, because their data may be on its way.

use super::extent::FreeExtent;
use crate::layout::superblock::Superblock;
use ivers_block::BlockNo;
use ivers_sync::{RankedMutex, rank};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
struct Inner {
    /// By group.
    pools: BTreeMap<u32, FreeExtent>,
    claimed: Vec<(u32, FreeExtent)>,
}

/// The pools and claims of a filesystem.
#[derive(Debug, Default)]
pub(crate) struct Claims(RankedMutex<rank::Leaf, Inner>);

/// Blocks that nobody else gets until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'c> {
    claims: &'c Claims,
    pub(super) ag: u32,
    pub(super) extent: FreeExtent,
}

impl Claims {
    /// Claims blocks of the pool of a group, if it has so many.
    pub(crate) fn take(&self, ag: u32, len: u32) -> Option<Claim<'_>> {
        let mut inner = self.0.lock();
        let pool = inner.pools.get_mut(&ag).filter(|pool| pool.len >= len)?;
        let extent = FreeExtent { start: pool.start, len };
        *pool = FreeExtent { start: extent.end(), len: pool.len - len };
        inner.claimed.push((ag, extent));
        Some(Claim { claims: self, ag, extent })
    }

    /// Replaces the pool of a group. Under the lock of the groups.
    pub(super) fn fill(&self, ag: u32, extent: FreeExtent) {
        self.0.lock().pools.insert(ag, extent);
    }

    /// Empties all pools; false if they were empty.
    pub(super) fn empty_pools(&self) -> bool {
        !std::mem::take(&mut self.0.lock().pools).is_empty()
    }

    /// Adds what no allocation in a group may take to `found`: pools and claims that overlap an extent.
    pub(super) fn add_overlapping(&self, ag: u32, extent: FreeExtent, found: &mut Vec<FreeExtent>) {
        let inner = self.0.lock();
        let all = inner.pools.iter().map(|(ag, pool)| (*ag, *pool)).chain(inner.claimed.iter().copied());
        found.extend(all.filter(|(of, other)| *of == ag && other.overlaps(extent)).map(|(_, other)| other));
    }

    /// Claimed blocks of a group.
    pub(super) fn claimed_blocks(&self, ag: u32) -> u32 {
        let inner = self.0.lock();
        inner.claimed.iter().filter(|(of, _)| *of == ag).map(|(_, extent)| extent.len).sum()
    }
}

impl Claim<'_> {
    /// The first block on the device.
    pub(crate) fn first_block(&self, sb: &Superblock) -> Option<BlockNo> {
        sb.run(sb.fs_block(self.ag, self.extent.start), self.extent.len.into())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut inner = self.claims.0.lock();
        if let Some(at) = inner.claimed.iter().position(|claim| *claim == (self.ag, self.extent)) {
            inner.claimed.swap_remove(at);
        }
    }
}
