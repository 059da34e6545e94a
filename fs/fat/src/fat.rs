//! The file allocation table: links between clusters, allocation of free clusters, and the dirty mark.

use crate::cluster::Cluster;
use crate::layout::{Geometry, RawFsInfo, STATE_DIRTY, probe};
use ivers_block::{BlockNo, Buffer, BufferCache};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{NameError, Result};
use ivers_write_ordering::{Change, OrderedError, Stage, Volume};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The size of one read while the table is scanned or compared.
const SCAN_BYTES: usize = 1 << 20;
/// The bit of `FAT[1]` that says that the volume was unmounted cleanly (fatgen103). FAT12 has none.
pub(crate) fn clean_bit(bits: u32) -> Option<u32> {
    match bits {
        12 => None,
        16 => Some(0x8000),
        _ => Some(0x0800_0000),
    }
}

/// The table entry of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// The cluster is free.
    Free,
    /// The next cluster of the chain.
    Next(Cluster),
    /// The cluster is the last one of its chain.
    End,
    /// The mark of a bad cluster, or a number outside the volume.
    Invalid(u32),
}

/// The entry with all bits set that an entry has: the end of a chain.
pub(crate) fn all_ones(bits: u32) -> u32 {
    match bits {
        12 => 0xFFF,
        16 => 0xFFFF,
        // Four of 32 bits are reserved.
        _ => 0x0FFF_FFFF,
    }
}

/// The smallest entry that ends a chain. The one below marks a bad cluster (fatgen103, FAT data structure).
pub(crate) fn first_end_mark(bits: u32) -> u32 {
    all_ones(bits) - 7
}

impl Link {
    /// Returns the meaning of an entry.
    pub(crate) fn decode(geometry: &Geometry, value: u32) -> Self {
        match value {
            0 => Link::Free,
            next if geometry.is_cluster(Cluster(next)) => Link::Next(Cluster(next)),
            last if last >= first_end_mark(geometry.bits) => Link::End,
            invalid => Link::Invalid(invalid),
        }
    }
}

/// The clusters that may be allocated.
struct FreeMap {
    /// A bit for each cluster, set if the cluster is used.
    used: Vec<u64>,
    /// The number of bits that are not set.
    free: u64,
    /// Where the next search starts.
    next: Cluster,
}

impl FreeMap {
    fn bit(&mut self, cluster: Cluster) -> (&mut u64, u64) {
        let at = cluster - Cluster::FIRST;
        (&mut self.used[at as usize / 64], 1 << (at % 64))
    }

    fn set_used(&mut self, cluster: Cluster) {
        let (word, bit) = self.bit(cluster);
        if *word & bit == 0 {
            *word |= bit;
            self.free -= 1;
        }
    }

    fn set_free(&mut self, cluster: Cluster) {
        let (word, bit) = self.bit(cluster);
        if *word & bit != 0 {
            *word &= !bit;
            self.free += 1;
        }
    }

    fn is_free(&self, cluster: Cluster) -> bool {
        let at = cluster - Cluster::FIRST;
        self.used[at as usize / 64] & 1 << (at % 64) == 0
    }
}

struct Space {
    /// Created at first use, because reading a large table takes a while.
    map: Option<FreeMap>,
    /// Clusters reserved for dirty pages.
    reserved: u64,
    /// Clusters that were freed and are not available before their batch is durable.
    freeing: u64,
    /// The number of free clusters according to the FSInfo sector. Used while `map` does not exist.
    fs_info_free: Option<u64>,
}

/// The file allocation table, and the dirty mark of the volume.
pub(crate) struct AllocationTable {
    pub geometry: Geometry,
    pub cache: Arc<BufferCache>,
    space: RankedMutex<rank::Driver<15>, Space>,
    /// The volume was marked dirty at mount. The driver leaves the mark for fsck to remove.
    pub was_dirty: bool,
}

/// Contents for the FSInfo sector.
pub(crate) struct NewFsInfo {
    buffer: Arc<Buffer>,
    info: RawFsInfo,
}

impl NewFsInfo {
    pub fn put(&self, change: &Change<'_>) {
        change.put(&self.buffer, Stage::Attach, |bytes| bytes[..512].copy_from_slice(self.info.as_bytes()));
    }
}

impl AllocationTable {
    pub fn new(geometry: Geometry, cache: Arc<BufferCache>) -> Result<Self> {
        let space = Space { map: None, reserved: 0, freeing: 0, fs_info_free: None };
        let mut table = Self { geometry, cache, space: RankedMutex::new(space), was_dirty: false };
        let clean = match clean_bit(table.geometry.bits) {
            None => true,
            Some(bit) => table.entry(Cluster(1))? & bit != 0,
        };
        table.was_dirty = table.geometry.dirty || !clean;
        if let Some(sector) = table.geometry.fs_info.filter(|_| !table.was_dirty) {
            let info = RawFsInfo::parse(&table.cache.get(sector)?.read());
            let free =
                info.map(|info| info.fsi_free_count.get()).filter(|free| *free <= table.geometry.clusters);
            table.space.lock().fs_info_free = free.map(u64::from);
        }
        Ok(table)
    }

    /// Returns the sector in which an entry begins, the byte in it, and the bit in that byte.
    fn position(&self, cluster: Cluster) -> (BlockNo, usize, u32) {
        let bit = u64::from(cluster.0) * u64::from(self.geometry.bits);
        let byte = bit / 8;
        let sector = u64::from(self.geometry.sector_bytes);
        (self.geometry.fat_start + byte / sector, (byte % sector) as usize, (bit % 8) as u32)
    }

    /// Returns the bits of an entry. The cluster number must be valid, or 0 or 1.
    fn entry(&self, cluster: Cluster) -> Result<u32> {
        let (block, at, shift) = self.position(cluster);
        let buffer = self.cache.get(block)?.read();
        Ok(match self.geometry.bits {
            12 => {
                let high = match buffer.get(at + 1) {
                    Some(high) => *high,
                    None => self.cache.get(block + 1)?.read()[0],
                };
                (u32::from(buffer[at]) | u32::from(high) << 8) >> shift & 0xFFF
            }
            16 => u32::from(u16::from_le_bytes([buffer[at], buffer[at + 1]])),
            _ => {
                let bytes = [buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]];
                u32::from_le_bytes(bytes) & 0x0FFF_FFFF
            }
        })
    }

    /// Changes an entry. In FAT12 an entry shares a byte with its neighbour and may span two sectors.
    fn set_entry(&self, change: &Change<'_>, stage: Stage, cluster: Cluster, value: u32) -> Result<()> {
        let (block, at, shift) = self.position(cluster);
        let buffer = self.cache.get(block)?;
        match self.geometry.bits {
            12 => {
                let mask = 0xFFFu32 << shift;
                let value = value << shift;
                let low = move |byte: &mut u8| *byte = *byte & !(mask as u8) | value as u8;
                let high = move |byte: &mut u8| *byte = *byte & !((mask >> 8) as u8) | (value >> 8) as u8;
                if at + 1 < self.geometry.sector_bytes as usize {
                    change.put(&buffer, stage, |bytes| {
                        low(&mut bytes[at]);
                        high(&mut bytes[at + 1]);
                    });
                } else {
                    change.put(&buffer, stage, |bytes| low(&mut bytes[at]));
                    change.put(&self.cache.get(block + 1)?, stage, |bytes| high(&mut bytes[0]));
                }
            }
            16 => change.put(&buffer, stage, |bytes| {
                bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
            }),
            // The upper four bits are reserved and keep their value.
            _ => change.put(&buffer, stage, |bytes| {
                let kept = bytes[at + 3] & 0xF0;
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                bytes[at + 3] = bytes[at + 3] & 0x0F | kept;
            }),
        }
        Ok(())
    }

    /// Returns the entry of a cluster whose number is valid.
    pub fn link(&self, cluster: Cluster) -> Result<Link> {
        Ok(Link::decode(&self.geometry, self.entry(cluster)?))
    }

    /// Sets the entry of a cluster to the next cluster, or to the end of the chain.
    pub fn set_link(
        &self,
        change: &Change<'_>,
        stage: Stage,
        cluster: Cluster,
        next: Option<Cluster>,
    ) -> Result<()> {
        let value = next.map_or(all_ones(self.geometry.bits), |next| next.0);
        self.set_entry(change, stage, cluster, value)
    }

    /// Calls `f` with the free clusters and the number of reserved ones. Scans the table at first use.
    fn with_map<R>(&self, f: impl FnOnce(&mut FreeMap, &mut u64) -> R) -> Result<R> {
        let mut space = self.space.lock();
        let space = &mut *space;
        if space.map.is_none() {
            space.map = Some(self.scan()?);
        }
        let map = space.map.as_mut().expect("created above");
        Ok(f(map, &mut space.reserved))
    }

    /// Scans the table, so that the FSInfo sector is not used.
    pub fn count(&self) -> Result<()> {
        self.with_map(|_, _| ())
    }

    /// Reads the whole table. Meanwhile no cluster becomes free or used: the caller holds the lock of
    /// `space`, and entries that change without it belong to clusters that stay used.
    fn scan(&self) -> Result<FreeMap> {
        let geometry = &self.geometry;
        let mut map =
            FreeMap { used: vec![0; geometry.clusters.div_ceil(64) as usize], free: 0, next: Cluster::FIRST };
        map.free = u64::from(geometry.clusters);
        let sector = u64::from(geometry.sector_bytes);
        // A piece holds whole entries of every width.
        let piece_sectors = (SCAN_BYTES as u64 / sector / 3 * 3).max(3);
        let mut bytes = Vec::new();
        let mut cluster = Cluster(0);
        let mut at = 0;
        while at < geometry.fat_sectors && cluster < geometry.end_cluster() {
            let sectors = piece_sectors.min(geometry.fat_sectors - at);
            bytes.resize((sectors * sector) as usize, 0);
            self.cache
                .device()
                .read_at((geometry.fat_start + at).offset(geometry.sector_bytes), &mut bytes)?;
            for (nth, piece) in bytes.chunks_exact_mut(sector as usize).enumerate() {
                // A cached sector may be newer than the device.
                if let Some(buffer) = self.cache.peek(geometry.fat_start + at + nth as u64) {
                    piece.copy_from_slice(&buffer.read());
                }
            }
            let entries = bytes.len() as u64 * 8 / u64::from(geometry.bits);
            for nth in 0..entries {
                if cluster >= geometry.end_cluster() {
                    break;
                }
                let byte = (nth * u64::from(geometry.bits) / 8) as usize;
                let used = match geometry.bits {
                    12 => {
                        let high = bytes.get(byte + 1).copied().unwrap_or(0);
                        let value = u32::from(bytes[byte]) | u32::from(high) << 8;
                        value >> (nth % 2 * 4) & 0xFFF != 0
                    }
                    16 => bytes[byte..byte + 2] != [0, 0],
                    _ => bytes[byte..byte + 3] != [0, 0, 0] || bytes[byte + 3] & 0x0F != 0,
                };
                if used && cluster >= Cluster::FIRST {
                    map.set_used(cluster);
                }
                cluster += 1;
            }
            at += sectors;
        }
        Ok(map)
    }

    /// Reserves clusters for dirty pages, or returns `NoSpace`.
    pub fn reserve(&self, clusters: u64) -> Result<()> {
        if clusters == 0 {
            return Ok(());
        }
        self.with_map(|map, reserved| {
            if map.free < reserved.saturating_add(clusters) {
                return Err(NameError::NoSpace.into());
            }
            *reserved += clusters;
            Ok(())
        })?
    }

    /// Releases reserved clusters that are not needed.
    pub fn unreserve(&self, clusters: u64) {
        let mut space = self.space.lock();
        space.reserved = space.reserved.saturating_sub(clusters);
    }

    /// Allocates `count` clusters in memory. `of_reserved` of them were reserved before. Tries to find
    /// contiguous clusters, from `near` on. Returns `NoSpace` if there are too few.
    pub fn allocate(&self, count: u64, of_reserved: u64, near: Cluster) -> Result<Vec<Range<Cluster>>> {
        let end = self.geometry.end_cluster();
        self.with_map(|map, reserved| {
            let others = reserved.saturating_sub(of_reserved);
            if map.free < others.saturating_add(count) {
                return Err(NameError::NoSpace.into());
            }
            *reserved -= of_reserved.min(*reserved);
            let mut runs: Vec<Range<Cluster>> = Vec::new();
            let mut left = count;
            let mut at = if self.geometry.is_cluster(near) && map.is_free(near) { near } else { map.next };
            while left > 0 {
                if at >= end {
                    at = Cluster::FIRST;
                }
                // Skip 64 clusters at once if all of them are used.
                let bit = at - Cluster::FIRST;
                if bit.is_multiple_of(64) && map.used[bit as usize / 64] == u64::MAX {
                    at += 64;
                    continue;
                }
                if map.is_free(at) {
                    map.set_used(at);
                    left -= 1;
                    match runs.last_mut() {
                        Some(run) if run.end == at => run.end += 1,
                        _ => runs.push(at..at + 1),
                    }
                }
                at += 1;
            }
            map.next = if at >= end { Cluster::FIRST } else { at };
            Ok(runs)
        })?
    }

    /// Makes allocated clusters free again that were not linked in the table.
    pub fn cancel_allocation(&self, runs: &[Range<Cluster>]) {
        if let Some(map) = &mut self.space.lock().map {
            Cluster::each(runs).for_each(|cluster| map.set_free(cluster));
        }
    }

    /// Links allocated clusters into one chain. It continues the chain that ends at `tail`, or is a new one.
    pub fn link_chain(
        &self,
        change: &Change<'_>,
        runs: &[Range<Cluster>],
        tail: Option<Cluster>,
    ) -> Result<()> {
        let mut clusters = Cluster::each(runs).peekable();
        if let (Some(tail), Some(first)) = (tail, clusters.peek()) {
            self.set_link(change, Stage::Detach, tail, Some(*first))?;
        }
        while let Some(cluster) = clusters.next() {
            self.set_link(change, Stage::Fresh, cluster, clusters.peek().copied())?;
        }
        Ok(())
    }

    /// Frees clusters. They become available when no pointer on the medium leads to them.
    pub fn free(&self, change: &Change<'_>, runs: impl IntoIterator<Item = Range<Cluster>>) {
        let mut count = 0;
        for run in runs {
            count += u64::from(run.end - run.start);
            change.free(u64::from(run.start.0)..u64::from(run.end.0));
        }
        self.space.lock().freeing += count;
    }

    /// Returns the number of clusters that are free or will be when their batch is durable, without the
    /// reserved ones.
    pub fn free_count(&self) -> Result<u64> {
        {
            let space = self.space.lock();
            if let (None, Some(free)) = (&space.map, space.fs_info_free) {
                return Ok((free + space.freeing).min(u64::from(self.geometry.clusters)));
            }
        }
        let free = self.with_map(|map, reserved| map.free.saturating_sub(*reserved))?;
        Ok(free + self.space.lock().freeing)
    }

    /// The FSInfo sector with the current number of free clusters, if there is such a sector and its number
    /// is another one.
    pub fn changed_fs_info(&self) -> Result<Option<NewFsInfo>> {
        let Some(sector) = self.geometry.fs_info else { return Ok(None) };
        let buffer = self.cache.get(sector)?;
        let Some(mut info) = RawFsInfo::parse(&buffer.read()) else { return Ok(None) };
        let before = info.fsi_free_count.get();
        let space = self.space.lock();
        match (&space.map, space.fs_info_free) {
            (Some(map), _) => {
                info.fsi_free_count.set(map.free as u32);
                info.fsi_nxt_free.set(map.next.0);
            }
            // The table was never scanned: clusters were freed, and none allocated.
            (None, Some(free)) => {
                info.fsi_free_count.set(free.min(u64::from(self.geometry.clusters)) as u32);
            }
            (None, None) => {}
        }
        Ok((info.fsi_free_count.get() != before).then_some(NewFsInfo { buffer, info }))
    }

    /// Makes the other copies of the table equal to the first. After a crash, sectors of them may be older.
    /// Returns the number of pieces that were written.
    pub fn align_copies(&self) -> Result<u64> {
        let (geometry, device) = (&self.geometry, self.cache.device());
        let sector = u64::from(geometry.sector_bytes);
        let step = SCAN_BYTES as u64 / sector;
        let mut changed = 0;
        for at in (0..geometry.fat_sectors).step_by(step as usize) {
            let len = (step.min(geometry.fat_sectors - at) * sector) as usize;
            let (mut first, mut copy) = (vec![0; len], vec![0; len]);
            device.read_at((geometry.fat_start + at).offset(geometry.sector_bytes), &mut first)?;
            for nth in 1..=geometry.copies {
                let offset =
                    (geometry.fat_start + nth * geometry.fat_sectors + at).offset(geometry.sector_bytes);
                device.read_at(offset, &mut copy)?;
                if first != copy {
                    device.write_at(offset, &first)?;
                    changed += 1;
                }
            }
        }
        Ok(changed)
    }

    fn boot_sector(&self) -> Result<Arc<Buffer>> {
        Ok(self.cache.get(BlockNo(0))?)
    }

    /// Sets or removes the dirty mark, unless the volume was dirty at mount.
    fn put_dirty_mark(&self, change: &Change<'_>, dirty: bool) -> Result<()> {
        if self.was_dirty {
            return Ok(());
        }
        let at = self.geometry.state_byte;
        let bit = if dirty { STATE_DIRTY } else { 0 };
        change.put(&self.boot_sector()?, Stage::Fresh, |bytes| bytes[at] = bytes[at] & !STATE_DIRTY | bit);
        let Some(clean) = clean_bit(self.geometry.bits) else { return Ok(()) };
        let value = self.entry(Cluster(1))?;
        self.set_entry(change, Stage::Fresh, Cluster(1), if dirty { value & !clean } else { value | clean })
    }

    /// Sets the label in the boot sector and its backup. They are written after the entry of the root
    /// directory, which counts.
    pub fn put_label(&self, change: &Change<'_>, label: [u8; 11]) -> Result<()> {
        let backup = self.geometry.backup_boot.map(|sector| self.cache.get(sector)).transpose()?;
        for buffer in [Some(self.boot_sector()?), backup].into_iter().flatten() {
            // Elsewhere there may be boot code.
            if let Some(at) = self.geometry.label_byte
                && probe(&buffer.read())
            {
                change.put(&buffer, Stage::Cut, |bytes| bytes[at..at + 11].copy_from_slice(&label));
            }
        }
        Ok(())
    }

    /// Marks clusters as free in the table.
    fn mark_free(&self, change: &Change<'_>, freed: &[Range<u64>]) -> Result<()> {
        let mut space = self.space.lock();
        for cluster in freed.iter().cloned().flatten().map(|cluster| Cluster(cluster as u32)) {
            self.set_entry(change, Stage::Fresh, cluster, 0)?;
            if let Some(map) = &mut space.map {
                map.set_free(cluster);
            }
            space.freeing = space.freeing.saturating_sub(1);
            if space.map.is_none() {
                space.fs_info_free = space.fs_info_free.map(|free| free + 1);
            }
        }
        Ok(())
    }
}

impl Volume for AllocationTable {
    fn mark(&self, change: &Change<'_>, dirty: bool) -> ivers_write_ordering::Result<()> {
        stopped(self.put_dirty_mark(change, dirty))
    }

    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> ivers_write_ordering::Result<()> {
        stopped(self.mark_free(change, freed))
    }
}

fn stopped(result: Result<()>) -> ivers_write_ordering::Result<()> {
    result.map_err(|error| OrderedError::Stopped { cause: error.to_string() })
}
