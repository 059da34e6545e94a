//! The file allocation table: chains, and which clusters are free.

use crate::cluster::Cluster;
use crate::layout::{Geometry, RawFsInfo, STATE_DIRTY};
use ivers_block::{BlockNo, Buffer, BufferCache};
use ivers_vfs::sync::Mutex;
use ivers_vfs::{Error, NameError, Result};
use ivers_write_ordering::{Change, OrderedError, Stage, Volume};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Read of the table at once while the free clusters are counted.
const SCAN_BYTES: usize = 1 << 20;
/// `FAT[1]`, highest bits: unmounted cleanly, no read error met. (fatgen103, "FAT[1]"; FAT12 has none.)
const CLEAN16: u32 = 0x8000;
const CLEAN32: u32 = 0x0800_0000;

/// What the entry of a cluster says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nobody's.
    Free,
    /// This cluster follows.
    To(Cluster),
    /// None follows.
    End,
    /// Neither: a bad cluster, or a number that there is not.
    Odd(u32),
}

/// Which clusters may be given out. A bit that is set: taken.
struct FreeMap {
    taken: Vec<u64>,
    free: u64,
    /// Where to look first.
    next: Cluster,
}

impl FreeMap {
    fn bit(&mut self, cluster: Cluster) -> (&mut u64, u64) {
        let at = cluster - Cluster::FIRST;
        (&mut self.taken[at as usize / 64], 1 << (at % 64))
    }

    fn take(&mut self, cluster: Cluster) {
        let (word, bit) = self.bit(cluster);
        if *word & bit == 0 {
            *word |= bit;
            self.free -= 1;
        }
    }

    fn give(&mut self, cluster: Cluster) {
        let (word, bit) = self.bit(cluster);
        if *word & bit != 0 {
            *word &= !bit;
            self.free += 1;
        }
    }

    fn is_free(&self, cluster: Cluster) -> bool {
        let at = cluster - Cluster::FIRST;
        self.taken[at as usize / 64] & 1 << (at % 64) == 0
    }
}

struct Space {
    /// Made when it is first asked for: a large table takes a while to read.
    map: Option<FreeMap>,
    /// Clusters promised to dirty pages.
    promised: u64,
    /// Given up, and not yet to be given out.
    pending: u64,
    /// What the FSInfo sector said, until we know better.
    said_free: Option<u64>,
}

/// The table, and the marks beside it.
pub(crate) struct Table {
    pub geometry: Geometry,
    pub cache: Arc<BufferCache>,
    space: Mutex<Space>,
    /// It was in use, or not unmounted, before we came: that is for fsck to take away.
    pub was_dirty: bool,
}

pub(crate) fn order_error(error: OrderedError) -> Error {
    match error {
        OrderedError::Block(error) => error.into(),
        other => Error::io(other),
    }
}

impl Table {
    pub fn new(geometry: Geometry, cache: Arc<BufferCache>) -> Result<Self> {
        let space = Space { map: None, promised: 0, pending: 0, said_free: None };
        let mut table = Self { geometry, cache, space: Mutex::new(space), was_dirty: false };
        let clean = match table.geometry.bits {
            12 => true,
            16 => table.entry(Cluster(1))? & CLEAN16 != 0,
            _ => table.entry(Cluster(1))? & CLEAN32 != 0,
        };
        table.was_dirty = table.geometry.dirty || !clean;
        if let Some(sector) = table.geometry.fs_info.filter(|_| !table.was_dirty) {
            let info = RawFsInfo::parse(&table.cache.get(sector)?.read());
            let free =
                info.map(|info| info.fsi_free_count.get()).filter(|free| *free <= table.geometry.clusters);
            table.space.get_mut().said_free = free.map(u64::from);
        }
        Ok(table)
    }

    /// The sector and the byte in it where an entry begins, and by how many bits it is shifted.
    fn place(&self, cluster: Cluster) -> (BlockNo, usize, u32) {
        let bit = u64::from(cluster.0) * u64::from(self.geometry.bits);
        let byte = bit / 8;
        let sector = u64::from(self.geometry.sector);
        (self.geometry.fat + byte / sector, (byte % sector) as usize, (bit % 8) as u32)
    }

    /// The bits of an entry, of one that there is.
    fn entry(&self, cluster: Cluster) -> Result<u32> {
        let (block, at, shift) = self.place(cluster);
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

    /// Changes an entry. In FAT12 half of a byte is its neighbour's, and it may lie in two sectors.
    fn set_entry(&self, change: &Change<'_>, stage: Stage, cluster: Cluster, value: u32) -> Result<()> {
        let (block, at, shift) = self.place(cluster);
        let buffer = self.cache.get(block)?;
        match self.geometry.bits {
            12 => {
                let mask = 0xFFFu32 << shift;
                let value = value << shift;
                let low = move |byte: &mut u8| *byte = *byte & !(mask as u8) | value as u8;
                let high = move |byte: &mut u8| *byte = *byte & !((mask >> 8) as u8) | (value >> 8) as u8;
                if at + 1 < self.geometry.sector as usize {
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
            // The upper four bits are not ours.
            _ => change.put(&buffer, stage, |bytes| {
                let kept = bytes[at + 3] & 0xF0;
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                bytes[at + 3] = bytes[at + 3] & 0x0F | kept;
            }),
        }
        Ok(())
    }

    /// What follows a cluster, whose number is valid.
    pub fn link(&self, cluster: Cluster) -> Result<Link> {
        let value = self.entry(cluster)?;
        let end = match self.geometry.bits {
            12 => 0xFF8,
            16 => 0xFFF8,
            _ => 0x0FFF_FFF8,
        };
        Ok(match value {
            0 => Link::Free,
            next if self.geometry.is_cluster(Cluster(next)) => Link::To(Cluster(next)),
            last if last >= end => Link::End,
            odd => Link::Odd(odd),
        })
    }

    pub fn set_link(
        &self,
        change: &Change<'_>,
        stage: Stage,
        cluster: Cluster,
        next: Option<Cluster>,
    ) -> Result<()> {
        let end = match self.geometry.bits {
            12 => 0xFFF,
            16 => 0xFFFF,
            _ => 0x0FFF_FFFF,
        };
        self.set_entry(change, stage, cluster, next.map_or(end, |next| next.0))
    }

    // ---- space ---------------------------------------------------------------------------------------------------------

    fn with_map<R>(&self, f: impl FnOnce(&mut FreeMap, &mut u64) -> R) -> Result<R> {
        let mut space = self.space.lock();
        let space = &mut *space;
        if space.map.is_none() {
            space.map = Some(self.scan()?);
        }
        let map = space.map.as_mut().expect("made above");
        Ok(f(map, &mut space.promised))
    }

    /// Count what is free, whatever the FSInfo sector says.
    pub fn count(&self) -> Result<()> {
        self.with_map(|_, _| ())
    }

    /// Whether what is free is known, for the FSInfo sector.
    pub fn has_counted(&self) -> bool {
        self.space.lock().map.is_some()
    }

    /// Reads the whole table. Entries change only under the lock of `space`, or are those of clusters that stay taken.
    fn scan(&self) -> Result<FreeMap> {
        let geometry = &self.geometry;
        let mut map = FreeMap {
            taken: vec![0; geometry.clusters.div_ceil(64) as usize],
            free: 0,
            next: Cluster::FIRST,
        };
        map.free = u64::from(geometry.clusters);
        let sector = u64::from(geometry.sector);
        // Whole entries of all widths in each piece.
        let piece_sectors = (SCAN_BYTES as u64 / sector / 3 * 3).max(3);
        let mut bytes = Vec::new();
        let mut cluster = Cluster(0);
        let mut at = 0;
        while at < geometry.fat_sectors && cluster < geometry.end() {
            let sectors = piece_sectors.min(geometry.fat_sectors - at);
            bytes.resize((sectors * sector) as usize, 0);
            self.cache.device().read_at((geometry.fat + at).offset(geometry.sector), &mut bytes)?;
            for (nth, piece) in bytes.chunks_exact_mut(sector as usize).enumerate() {
                // What has not gone home yet is newer.
                if let Some(buffer) = self.cache.peek(geometry.fat + at + nth as u64) {
                    piece.copy_from_slice(&buffer.read());
                }
            }
            let entries = bytes.len() as u64 * 8 / u64::from(geometry.bits);
            for nth in 0..entries {
                if cluster >= geometry.end() {
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
                    map.take(cluster);
                }
                cluster += 1;
            }
            at += sectors;
        }
        Ok(map)
    }

    /// Sets clusters aside for dirty pages.
    pub fn promise(&self, clusters: u64) -> Result<()> {
        if clusters == 0 {
            return Ok(());
        }
        self.with_map(|map, promised| {
            if map.free < promised.saturating_add(clusters) {
                return Err(NameError::NoSpace.into());
            }
            *promised += clusters;
            Ok(())
        })?
    }

    pub fn unpromise(&self, clusters: u64) {
        let mut space = self.space.lock();
        space.promised = space.promised.saturating_sub(clusters);
    }

    /// Takes clusters, in memory, `of_promised` of them from those that were set aside: near one another and behind `near` if that goes.
    pub fn pick(&self, count: u64, of_promised: u64, near: Cluster) -> Result<Vec<Range<Cluster>>> {
        let end = self.geometry.end();
        self.with_map(|map, promised| {
            let others = promised.saturating_sub(of_promised);
            if map.free < others.saturating_add(count) {
                return Err(NameError::NoSpace.into());
            }
            *promised -= of_promised.min(*promised);
            let mut runs: Vec<Range<Cluster>> = Vec::new();
            let mut left = count;
            let mut at = if self.geometry.is_cluster(near) && map.is_free(near) { near } else { map.next };
            while left > 0 {
                if at >= end {
                    at = Cluster::FIRST;
                }
                // Whole words that are taken are passed over at once.
                let bit = at - Cluster::FIRST;
                if bit.is_multiple_of(64) && map.taken[bit as usize / 64] == u64::MAX {
                    at += 64;
                    continue;
                }
                if map.is_free(at) {
                    map.take(at);
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

    /// Gives back what was picked and never marked.
    pub fn unpick(&self, runs: &[Range<Cluster>]) {
        if let Some(map) = &mut self.space.lock().map {
            Cluster::each(runs).for_each(|cluster| map.give(cluster));
        }
    }

    /// Marks what was picked as one chain, for something that follows `tail` or is new.
    pub fn chain_up(
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

    /// Gives clusters up: free when nothing on the medium points to them.
    pub fn free(&self, change: &Change<'_>, runs: impl IntoIterator<Item = Range<Cluster>>) {
        let mut count = 0;
        for run in runs {
            count += u64::from(run.end - run.start);
            change.free(u64::from(run.start.0)..u64::from(run.end.0));
        }
        self.space.lock().pending += count;
    }

    /// Clusters that are or will be free, as far as is known.
    pub fn free_count(&self) -> Result<u64> {
        {
            let space = self.space.lock();
            if let (None, Some(said)) = (&space.map, space.said_free) {
                return Ok((said + space.pending).min(u64::from(self.geometry.clusters)));
            }
        }
        let free = self.with_map(|map, promised| map.free.saturating_sub(*promised))?;
        Ok(free + self.space.lock().pending)
    }

    /// Says in the FSInfo sector what is free.
    pub fn put_fs_info(&self, change: &Change<'_>) -> Result<()> {
        let known = self.space.lock().map.as_ref().map(|map| (map.free as u32, map.next));
        let (Some(sector), Some((free, next))) = (self.geometry.fs_info, known) else { return Ok(()) };
        let buffer = self.cache.get(sector)?;
        let Some(mut info) = RawFsInfo::parse(&buffer.read()) else { return Ok(()) };
        info.fsi_free_count.set(free);
        info.fsi_nxt_free.set(next.0);
        change.put(&buffer, Stage::Attach, |bytes| bytes[..512].copy_from_slice(info.as_bytes()));
        Ok(())
    }

    /// After a crash the copies may lag behind the first, sector by sector: make them alike.
    pub fn align_copies(&self) -> Result<u64> {
        let (geometry, device) = (&self.geometry, self.cache.device());
        let sector = u64::from(geometry.sector);
        let step = SCAN_BYTES as u64 / sector;
        let mut changed = 0;
        for at in (0..geometry.fat_sectors).step_by(step as usize) {
            let len = (step.min(geometry.fat_sectors - at) * sector) as usize;
            let (mut first, mut copy) = (vec![0; len], vec![0; len]);
            device.read_at((geometry.fat + at).offset(geometry.sector), &mut first)?;
            for nth in 1..=geometry.copies {
                let offset = (geometry.fat + nth * geometry.fat_sectors + at).offset(geometry.sector);
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

    fn put_mark(&self, change: &Change<'_>, at_work: bool) -> Result<()> {
        if self.was_dirty {
            return Ok(());
        }
        let at = self.geometry.state_byte;
        let bit = if at_work { STATE_DIRTY } else { 0 };
        change.put(&self.boot_sector()?, Stage::Fresh, |bytes| bytes[at] = bytes[at] & !STATE_DIRTY | bit);
        let clean = match self.geometry.bits {
            12 => return Ok(()),
            16 => CLEAN16,
            _ => CLEAN32,
        };
        let value = self.entry(Cluster(1))?;
        self.set_entry(change, Stage::Fresh, Cluster(1), if at_work { value & !clean } else { value | clean })
    }

    fn put_free(&self, change: &Change<'_>, freed: &[Range<u64>]) -> Result<()> {
        let mut space = self.space.lock();
        for cluster in freed.iter().cloned().flatten().map(|cluster| Cluster(cluster as u32)) {
            self.set_entry(change, Stage::Fresh, cluster, 0)?;
            if let Some(map) = &mut space.map {
                map.give(cluster);
            }
            space.pending = space.pending.saturating_sub(1);
            if space.map.is_none() {
                space.said_free = space.said_free.map(|free| free + 1);
            }
        }
        Ok(())
    }
}

/// The order of writes asks in its own words.
impl Volume for Table {
    fn mark(&self, change: &Change<'_>, at_work: bool) -> ivers_write_ordering::Result<()> {
        stopped(self.put_mark(change, at_work))
    }

    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> ivers_write_ordering::Result<()> {
        stopped(self.put_free(change, freed))
    }
}

fn stopped(result: Result<()>) -> ivers_write_ordering::Result<()> {
    result.map_err(|error| OrderedError::Stopped { cause: error.to_string() })
}
