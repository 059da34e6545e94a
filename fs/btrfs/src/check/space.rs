//! Addresses of all chunks as one row of sectors, and what each sector is.

use crate::layout::chunk::Chunk;
use ivers_vfs::check::Bits;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block group: a chunk, and what its item says.
pub(super) struct Group {
    pub chunk: Arc<Chunk>,
    /// Bytes of extents in it, as its item says.
    pub stored_used: Option<u64>,
    /// Bytes of extents in it.
    pub used: u64,
    /// Free extents, and whether they are stored as bitmaps, as the free-space tree says.
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
    /// Of them, data of files.
    pub data: Bits,
    /// Sectors with a checksum.
    pub sums: Bits,
    /// Sectors that the free-space tree has.
    pub free: Bits,
    /// First sectors of blocks of trees that were visited.
    pub visited: Bits,
    /// Memory of the groups.
    group_bytes: usize,
}

impl Space {
    /// `chunks` do not overlap.
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

    /// The group of an address.
    pub(super) fn group(&self, address: u64) -> Option<&Group> {
        let (_, group) = self.groups.range(..=address).next_back()?;
        (address < group.chunk.end()).then_some(group)
    }

    pub(super) fn group_mut(&mut self, address: u64) -> Option<&mut Group> {
        let (_, group) = self.groups.range_mut(..=address).next_back()?;
        (address < group.chunk.end()).then_some(group)
    }

    /// The sectors of a range of addresses that starts at a sector and lies in one group: the first one and
    /// their number.
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

    /// The address of a sector of a group.
    pub(super) fn address(&self, group: &Group, sector: u64) -> u64 {
        group.chunk.start + (sector - group.first) * self.sector
    }

    /// Bytes of data that have no checksum.
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

    /// Memory that it takes.
    pub(super) fn bytes_kept(&self) -> usize {
        let bits = [&self.used, &self.data, &self.sums, &self.free, &self.visited];
        bits.iter().map(|bits| bits.bytes_kept()).sum::<usize>() + self.group_bytes
    }
}
