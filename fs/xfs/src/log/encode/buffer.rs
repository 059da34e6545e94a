//! Buffers: their changed chunks, and what recovery must know of them.

use crate::layout::bytes::{MAGIC_AGF, MAGIC_AGFL, MAGIC_AGI, MAGIC_INODE, MAGIC_SUPERBLOCK, number};
use crate::layout::checksum::{LINK_TARGET_MAGIC, REMOTE_VALUE_MAGIC, SelfDescription};
use crate::layout::raw::RawBufItem;
use crate::layout::superblock::Superblock;
use crate::log::ring::Lsn;
use crate::log::stamp::{heads_in, stamp_inodes};
use crate::log::wire::buffer::{CANCEL, CHUNK, INODES, TYPE_SHIFT};
use crate::log::wire::{Regions, SECTOR, kind};
use ivers_block::Unit;
use ivers_journal::{LogItem, Result};
use std::borrow::Cow;
use std::ops::Range;
use zerocopy::IntoBytes;

/// The type of a buffer that recovery only writes, without knowing what it is.
const UNKNOWN: u16 = 0;
const INODE_TYPE: u16 = 8;

/// The type of a buffer (`XFS_BLFT_...`), by its magic.
fn type_of(bytes: &[u8]) -> u16 {
    let Some(magic) = number(bytes, 0, 4) else { return UNKNOWN };
    match magic as u32 {
        MAGIC_SUPERBLOCK => 18,
        MAGIC_AGF => 5,
        MAGIC_AGFL => 6,
        MAGIC_AGI => 7,
        magic => match &magic.to_be_bytes() {
            b"AB3B" | b"AB3C" | b"IAB3" | b"FIB3" | b"RMB3" | b"R3FC" | b"BMA3" => 4,
            [0x49, 0x4e, ..] => INODE_TYPE,
            LINK_TARGET_MAGIC => 9,
            b"XDB3" => 10,
            b"XDD3" => 11,
            b"XDF3" => 12,
            REMOTE_VALUE_MAGIC => 17,
            // A quota record of users, projects or groups; its flags say which.
            [0x44, 0x51, _, flags] => match flags & 7 {
                1 => 1,
                2 => 2,
                _ => 3,
            },
            _ => match number(bytes, 8, 2) {
                Some(0x3df1) => 13,
                Some(0x3dff) => 14,
                Some(0x3ebe) => 15,
                Some(0x3bee) => 16,
                _ => UNKNOWN,
            },
        },
    }
}

/// A buffer as the log has it: consecutive sectors.
struct Buffer<'a> {
    sector: u64,
    bytes: &'a [u8],
    flags: u16,
}

impl Buffer<'_> {
    /// The regions of the chunks of `ranges`, which count from the start of the buffer. `None` if nothing of
    /// it changed.
    fn regions(&self, ranges: impl Iterator<Item = Range<usize>>) -> Option<Regions> {
        let mut is_changed = vec![false; self.bytes.len().div_ceil(CHUNK)];
        for range in ranges {
            let end = range.end.min(self.bytes.len());
            if range.start < end {
                is_changed[range.start / CHUNK..end.div_ceil(CHUNK)].fill(true);
            }
        }
        let mut map = vec![0u8; is_changed.len().div_ceil(32) * 4];
        let mut regions = vec![Vec::new()];
        for (chunk, _) in is_changed.iter().enumerate().filter(|(_, is_changed)| **is_changed) {
            map[chunk / 8] |= 1 << (chunk % 8);
            let bytes = &self.bytes[chunk * CHUNK..((chunk + 1) * CHUNK).min(self.bytes.len())];
            match regions.last_mut() {
                // Neighbouring chunks are one region.
                Some(last) if regions_continue(&is_changed, chunk) => last.extend_from_slice(bytes),
                _ => regions.push(bytes.to_vec()),
            }
        }
        if regions.len() == 1 {
            return None;
        }
        regions[0] = self.format(regions.len(), &map);
        Some(regions)
    }

    fn format(&self, regions: usize, map: &[u8]) -> Vec<u8> {
        let head = RawBufItem {
            blf_type: kind::BUFFER.into(),
            blf_size: (regions as u16).into(),
            blf_flags: self.flags.into(),
            blf_len: ((self.bytes.len() / SECTOR) as u16).into(),
            blf_blkno: self.sector.into(),
            blf_map_size: ((map.len() / 4) as u32).into(),
        };
        [head.as_bytes(), map].concat()
    }
}

/// True if the chunk before is in the same region.
fn regions_continue(is_changed: &[bool], chunk: usize) -> bool {
    chunk > 0 && is_changed[chunk - 1]
}

/// Returns the number of items of a changed buffer.
pub(super) fn count_changed(sb: &Superblock, item: &LogItem) -> usize {
    match heads_in(sb, &item.unit) {
        Some(sectors) => {
            let size = sb.sector_size as usize;
            let sectors = sectors.min(item.data.len() / size);
            (0..sectors).filter(|index| ranges_in(item, index * size, size).next().is_some()).count()
        }
        None => runs_of(sb, item).filter(|run| run.ranges(item).next().is_some()).count(),
    }
}

/// Encodes a changed buffer: usually one item.
pub(super) fn changed(
    sb: &Superblock,
    lsn: Lsn,
    item: &LogItem,
    write: &mut impl FnMut(Regions) -> Result<()>,
) -> Result<()> {
    let mut write = |buffer: Option<Regions>| buffer.map_or(Ok(()), &mut *write);
    if let Some(sectors) = heads_in(sb, &item.unit) {
        let size = sb.sector_size as usize;
        for (index, bytes) in item.data.chunks_exact(size).take(sectors).enumerate() {
            let sector = sb.sector_of(item.unit.first()) + (index * size / SECTOR) as u64;
            let buffer = Buffer { sector, bytes, flags: type_of(bytes) << TYPE_SHIFT };
            write(buffer.regions(ranges_in(item, index * size, size)))?;
        }
        return Ok(());
    }
    let (bytes, flags) = contents(sb, lsn, item);
    for run in runs_of(sb, item) {
        let bytes = &bytes[run.at..run.at + run.len];
        let buffer = Buffer { sector: run.sector, bytes, flags };
        write(buffer.regions(run.ranges(item)))?;
    }
    Ok(())
}

/// A run of consecutive blocks of a buffer: where it is in the buffer and on the device.
struct Run {
    at: usize,
    len: usize,
    sector: u64,
    has_checksum_of_several: bool,
}

fn runs_of<'a>(sb: &'a Superblock, item: &'a LogItem) -> impl Iterator<Item = Run> + 'a {
    let is_split = item.unit.runs().nth(1).is_some();
    let size = sb.block_size as usize;
    item.unit.runs().map(move |(index, first, count)| {
        let has_checksum_of_several = is_split && index == 0;
        Run { at: index * size, len: count * size, sector: sb.sector_of(first), has_checksum_of_several }
    })
}

impl Run {
    /// The ranges to log, which count from the start of the run.
    fn ranges<'a>(&self, item: &'a LogItem) -> impl Iterator<Item = Range<usize>> + 'a {
        // The checksum and LSN of a split buffer are in its first chunk.
        let head = self.has_checksum_of_several.then_some(0..CHUNK);
        ranges_in(item, self.at, self.len).chain(head)
    }
}

/// The bytes to log of a buffer, and its flags.
///
/// Recovery completes a buffer of a known type with LSN and checksum. It does not for inodes in a new
/// cluster, and not for a buffer of several runs, which it sees as several buffers: these are logged
/// complete.
fn contents<'a>(sb: &Superblock, lsn: Lsn, item: &'a LogItem) -> (Cow<'a, [u8]>, u16) {
    let data: &[u8] = &item.data;
    if item.unit.runs().nth(1).is_some() {
        let mut bytes = data.to_vec();
        if let Some(kind) = SelfDescription::of(data) {
            kind.seal(&mut bytes, lsn.raw());
        }
        return (bytes.into(), UNKNOWN << TYPE_SHIFT);
    }
    let flags = type_of(data) << TYPE_SHIFT;
    if number(data, 0, 2) != Some(MAGIC_INODE.into()) {
        return (data.into(), flags);
    }
    // Of a cluster that exists, recovery takes only the links between unlinked inodes.
    if !item.ranges.iter().any(|range| range.start == 0 && range.end as usize == data.len()) {
        return (data.into(), flags | INODES);
    }
    let mut bytes = data.to_vec();
    stamp_inodes(sb, lsn.raw(), &mut bytes);
    (bytes.into(), flags)
}

/// Encodes a freed buffer: recovery must not restore what the log has of it before.
pub(super) fn freed(
    sb: &Superblock,
    unit: &Unit,
    write: &mut impl FnMut(Regions) -> Result<()>,
) -> Result<()> {
    for (_, first, count) in unit.runs() {
        // Recovery compares start and length.
        let bytes = vec![0; count * sb.block_size as usize];
        let buffer = Buffer { sector: sb.sector_of(first), bytes: &bytes, flags: CANCEL };
        write(vec![buffer.format(1, &vec![0; bytes.len().div_ceil(CHUNK * 32) * 4])])?;
    }
    Ok(())
}

/// The changed ranges in `len` bytes of a buffer, from their start.
fn ranges_in(item: &LogItem, at: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
    item.ranges.iter().filter_map(move |range| {
        let start = (range.start as usize).max(at);
        let end = (range.end as usize).min(at + len);
        (start < end).then(|| start - at..end - at)
    })
}
