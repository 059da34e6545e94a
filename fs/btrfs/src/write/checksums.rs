//! The tree of checksums of data.

use super::tx::Tx;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::{HEADER_BYTES, ITEM_BYTES};
use ivers_vfs::Result;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Items of a tree.
pub(super) type Items = BTreeMap<Key, Vec<u8>>;

fn key(address: u64) -> Key {
    Key::new(object::EXTENT_CSUM, kind::EXTENT_CSUM, address)
}

impl Tx<'_> {
    /// The most sums in an item.
    fn most_sums(&self) -> usize {
        // As on Linux: two items fit in a leaf, and none is larger than a page.
        let leaf = self.sb().node_size as usize - HEADER_BYTES;
        let size = self.sb().checksum.size();
        (((leaf - 2 * ITEM_BYTES) / size) - 1).min(4096 / size)
    }

    /// Stores the checksums of whole sectors at an address, which has none.
    pub(super) fn insert_checksums(&mut self, address: u64, sums: &[u8]) -> Result<()> {
        let (size, sector) = (self.sb().checksum.size(), u64::from(self.sb().sector_size));
        let most = self.most_sums() * size;
        for (index, part) in sums.chunks(most).enumerate() {
            let at = address + (index * most / size) as u64 * sector;
            self.insert(object::CSUM_TREE, key(at), part)?;
        }
        Ok(())
    }

    /// The items that [`Tx::insert_checksums`] stores for a range; `None` if a checksum is missing.
    pub(super) fn checksums_of(&self, address: u64, bytes: u64) -> Result<Option<Items>> {
        let (size, sector) = (self.sb().checksum.size(), u64::from(self.sb().sector_size));
        let tree = self.tree(object::CSUM_TREE)?;
        let end = address.saturating_add(bytes);
        let before = self.fs.forest.last_at_most(&tree, key(address), |found, _| Ok(found))?;
        let first = before.filter(|found| found.kind == kind::EXTENT_CSUM).unwrap_or(key(address));
        let (mut sums, mut at) = (Vec::new(), address);
        self.fs.forest.scan(&tree, first, key(end.saturating_sub(1)), |found, data| {
            let stop = found.offset.saturating_add((data.len() / size) as u64 * sector).min(end);
            if found.offset <= at && at < stop {
                let index = |address: u64| ((address - found.offset) / sector) as usize * size;
                sums.extend_from_slice(&data[index(at)..index(stop)]);
                at = stop;
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        if at < end {
            return Ok(None);
        }
        let most = self.most_sums();
        let parts = sums.chunks(most * size).enumerate();
        Ok(Some(
            parts.map(|(nth, part)| (key(address + (nth * most) as u64 * sector), part.to_vec())).collect(),
        ))
    }

    /// Removes the checksums of an extent that is free.
    pub(super) fn remove_checksums(&mut self, address: u64, bytes: u64) -> Result<()> {
        let (size, sector) = (self.sb().checksum.size() as u64, u64::from(self.sb().sector_size));
        let end = address + bytes;
        let tree = self.tree(object::CSUM_TREE)?;
        let before = self.fs.forest.last_at_most(&tree, key(address), |found, _| Ok(found))?;
        let first = before.filter(|found| found.kind == kind::EXTENT_CSUM).unwrap_or(key(address));
        let mut found = Vec::new();
        self.fs.forest.scan(&tree, first, key(end - 1), |at, sums| {
            found.push((at.offset, sums.to_vec()));
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        for (start, sums) in found {
            let stop = start.saturating_add(sums.len() as u64 / size * sector);
            if stop <= address || start >= end {
                continue;
            }
            let bytes_to = |at: u64| ((at - start) / sector * size) as usize;
            self.remove(object::CSUM_TREE, key(start))?;
            if start < address {
                self.insert(object::CSUM_TREE, key(start), &sums[..bytes_to(address)])?;
            }
            if stop > end {
                self.insert(object::CSUM_TREE, key(end), &sums[bytes_to(end)..])?;
            }
        }
        Ok(())
    }
}
