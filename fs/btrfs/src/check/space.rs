//! The sectors of all chunks in one row, and the use of each sector.

use crate::layout::chunk::Chunk;
use ivers_vfs::check::Bits;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block group: a chunk, and the values of its item.
pub(super) struct Group {
    pub chunk: Arc<Chunk>,
    /// Bytes of extents in it, according to its item.
    pub stored_used: Option<u64>,
    /// Bytes of extents in it, as counted.
    pub used: u64,
    /// According to the free-space tree: the number of free extents, and whether they are stored as bitmaps.
    pub free: Option<(u32, bool)>,
    /// The number of its first sector in the row.
    first: u64,
}

/// All block groups, and sets of sectors.
pub(super) struct Space {
    pub groups: BTreeMap<u64, Group>,
    pub sector: u64,
    /// Sectors of extents.
    pub used: Bits,
    /// Those of them that have data of files.
    pub data: Bits,
    /// Sectors with a checksum.
    pub sums: Bits,
    /// Sectors that are free according to the free-space tree.
    pub free: Bits,
    /// First sectors of blocks of trees that were visited.
    pub visited: Bits,
    /// The bytes of memory that the groups take.
    group_bytes: usize,
}

impl Space {
    /// Makes empty sets for chunks, which must not overlap.
    pub(super) fn new(chunks: Vec<Arc<Chunk>>, sector_size: u32) -> Self {
        let sector = u64::from(sector_size);
        let (mut groups, mut first) = (BTreeMap::new(), 0u64);
        for chunk in chunks {
            let (start, sectors) = (chunk.start, chunk.length / sector);
            let group = Group { chunk, stored_used: None, used: 0, free: None, first };
            groups.insert(start, group);
            first += sectors;
        }
        let bits = || Bits::new(first);
        let (used, data, sums, free, visited) = (bits(), bits(), bits(), bits(), bits());
        let bytes_of = |group: &Group| 32 * group.chunk.stripes.len() + 250;
        let group_bytes = groups.values().map(bytes_of).sum();
        Self { groups, sector, used, data, sums, free, visited, group_bytes }
    }

    /// Returns the group of an address.
    pub(super) fn group(&self, address: u64) -> Option<&Group> {
        let (_, group) = self.groups.range(..=address).next_back()?;
        (address < group.chunk.end()).then_some(group)
    }

    pub(super) fn group_mut(&mut self, address: u64) -> Option<&mut Group> {
        let (_, group) = self.groups.range_mut(..=address).next_back()?;
        (address < group.chunk.end()).then_some(group)
    }

    /// Returns the sectors of a range of addresses: the first one and their number. `None`, unless the range
    /// starts at a sector and lies in one group.
    pub(super) fn sectors(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        let group = self.group(address)?;
        let (offset, sector) = (address - group.chunk.start, self.sector);
        let inside = offset.is_multiple_of(sector) && len <= group.chunk.length - offset;
        inside.then(|| (group.first + offset / sector, len.div_ceil(sector)))
    }

    /// Sectors of all groups.
    pub(super) fn sectors_total(&self) -> u64 {
        self.groups.values().map(|group| group.chunk.length / self.sector).sum()
    }

    /// Returns the address of a sector of a group.
    pub(super) fn address(&self, group: &Group, sector: u64) -> u64 {
        group.chunk.start + (sector - group.first) * self.sector
    }

    /// Returns the bytes of data that have no checksum.
    pub(super) fn data_without_sums(&self) -> u64 {
        let (end, mut at, mut sectors) = (self.sectors_total(), 0, 0);
        while let Some(first) = self.data.find_outside(&self.sums, at, end - at) {
            let stop = self.sums.find(first, end - first, true).unwrap_or(end);
            let stop = self.data.find(first, stop - first, false).unwrap_or(stop);
            sectors += stop - first;
            at = stop;
        }
        sectors * self.sector
    }

    /// Returns the bytes of memory that it takes.
    pub(super) fn bytes_kept(&self) -> usize {
        let bits = [&self.used, &self.data, &self.sums, &self.free, &self.visited];
        bits.iter().map(|bits| bits.bytes_kept()).sum::<usize>() + self.group_bytes
    }
}
