//! The sectors of the log, and the records in them.

use super::refusal::damaged;
use super::wire::{FURTHER_BYTES, HEADER_COVERS, LITTLE_ENDIAN, MAGIC, RECORD_MAX, SECTOR, WORDS};
use crate::layout::bytes::{number, read};
use crate::layout::checksum::checksum;
use crate::layout::raw::RawLogRecord;
use crate::layout::superblock::Superblock;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::Result;
use std::mem::{offset_of, size_of};

/// A position in the log: cycle and sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lsn {
    pub cycle: u32,
    pub sector: u32,
}

impl From<u64> for Lsn {
    fn from(lsn: u64) -> Self {
        Self { cycle: (lsn >> 32) as u32, sector: lsn as u32 }
    }
}

impl Lsn {
    pub(crate) fn raw(self) -> u64 {
        u64::from(self.cycle) << 32 | u64::from(self.sector)
    }

    /// Sectors from cycle 0 on, in a ring of `len` sectors.
    pub(super) fn position(self, len: u32) -> u64 {
        u64::from(self.cycle) * u64::from(len) + u64::from(self.sector)
    }

    pub(super) fn at_position(position: u64, len: u32) -> Self {
        let len = u64::from(len);
        Self { cycle: (position / len) as u32, sector: (position % len) as u32 }
    }
}

/// The cycle after one. Words must not look like the start of a record.
pub(super) fn next_cycle(cycle: u32) -> u32 {
    let next = cycle.wrapping_add(1);
    if next == MAGIC { next.wrapping_add(1) } else { next }
}

/// A record whose header and checksum are valid.
pub(super) struct Record {
    pub lsn: Lsn,
    pub tail: Lsn,
    pub operations: u32,
    /// All sectors, headers included.
    pub sectors: u32,
    /// Bytes of the longest record in this log (`h_size`), which decides on the number of headers.
    pub longest: u32,
    /// The operations, as they were before the log was written.
    pub data: Vec<u8>,
}

/// The log on its device.
pub(super) struct Ring<'a> {
    device: &'a dyn Device,
    start: ByteOffset,
    /// The number of sectors.
    pub len: u32,
    uuid: [u8; 16],
    pub place: &'a str,
}

impl<'a> Ring<'a> {
    pub(super) fn new(device: &'a dyn Device, sb: &Superblock, place: &'a str) -> Result<Self> {
        let start = sb
            .run(sb.log_start, sb.log_blocks.into())
            .ok_or_else(|| damaged(place, "the log lies outside the filesystem"))?;
        let len = u64::from(sb.log_blocks) << (sb.block_bits - 9);
        let len = u32::try_from(len).map_err(|_| damaged(place, "the log is too large"))?;
        Ok(Self { device, start: start.offset(sb.block_size), len, uuid: sb.uuid, place })
    }

    /// Reads sectors from one on, around the end of the ring.
    pub(super) fn read(&self, sector: u32, count: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * SECTOR];
        let before_end = ((self.len - sector).min(count) as usize) * SECTOR;
        let (head, rest) = bytes.split_at_mut(before_end);
        self.device.read_at(self.offset(sector), head)?;
        if !rest.is_empty() {
            self.device.read_at(self.start, rest)?;
        }
        Ok(bytes)
    }

    /// Where a sector is on the device.
    pub(super) fn offset(&self, sector: u32) -> ByteOffset {
        self.start + u64::from(sector) * SECTOR as u64
    }

    /// Returns the cycle of a sector.
    pub(super) fn cycle(&self, sector: u32) -> Result<u32> {
        Ok(cycle_in(&self.read(sector, 1)?))
    }

    /// Returns the cycles of sectors from one on, around the end of the ring.
    pub(super) fn cycles(&self, sector: u32, count: u32) -> Result<Vec<u32>> {
        Ok(self.read(sector, count)?.chunks_exact(SECTOR).map(cycle_in).collect())
    }

    /// Returns the position `sectors` after `lsn`. `sectors` must be less than the size of the ring.
    pub(super) fn after(&self, lsn: Lsn, sectors: u32) -> Lsn {
        match lsn.sector + sectors {
            sector if sector < self.len => Lsn { sector, ..lsn },
            sector => Lsn { cycle: next_cycle(lsn.cycle), sector: sector - self.len },
        }
    }

    /// Returns the header of a record that starts at a sector, if there is a valid one.
    pub(super) fn head(&self, sector: u32) -> Result<Option<RawLogRecord>> {
        Ok(self.head_in(&self.read(sector, 1)?, sector))
    }

    /// Returns the header of a record in the bytes of a sector, if there is a valid one.
    pub(super) fn head_in(&self, bytes: &[u8], sector: u32) -> Option<RawLogRecord> {
        read::<RawLogRecord>(bytes, 0).filter(|head| self.is_valid(head, sector))
    }

    /// Returns the record that starts at a sector, if there is a valid one.
    pub(super) fn record(&self, sector: u32) -> Result<Option<Record>> {
        let Some(head) = self.head(sector)? else { return Ok(None) };
        let (len, size) = (head.h_len.get(), head.h_size.get());
        let headers = if head.h_version.get() & 2 != 0 { size.div_ceil(HEADER_COVERS).max(1) } else { 1 };
        let sectors = headers + len.div_ceil(SECTOR as u32);
        if sectors > self.len {
            return Ok(None);
        }
        let mut bytes = self.read(sector, sectors)?;
        let (heads, data) = bytes.split_at_mut(headers as usize * SECTOR);
        data.get_mut(len as usize..).unwrap_or_default().fill(0);
        let data = &mut data[..len as usize];
        // mkfs.xfs and xfs_repair write records without a checksum.
        if head.h_crc.get() != 0 && head.h_crc.get() != record_checksum(heads, data) {
            return Ok(None);
        }
        for (index, sector) in data.chunks_mut(SECTOR).enumerate() {
            let at = word_place(index);
            // Records without a checksum may have more data than words.
            let word = heads.get(at..at + 4).unwrap_or_default();
            let len = word.len().min(sector.len());
            sector[..len].copy_from_slice(&word[..len]);
        }
        let data = data.to_vec();
        let lsn = Lsn { cycle: head.h_cycle.get(), sector };
        let (tail, operations) = (Lsn::from(head.h_tail_lsn.get()), head.h_num_logops.get());
        Ok(Some(Record { lsn, tail, operations, sectors, longest: size, data }))
    }

    fn is_valid(&self, head: &RawLogRecord, sector: u32) -> bool {
        let lsn = Lsn { cycle: head.h_cycle.get(), sector };
        head.h_magicno.get() == MAGIC
            && lsn.cycle != 0
            && head.h_lsn.get() == lsn.raw()
            && matches!(head.h_version.get(), 1 | 2)
            // Only little-endian logs are read.
            && head.h_fmt.get() == LITTLE_ENDIAN
            && head.h_fs_uuid == self.uuid
            && (1..=RECORD_MAX).contains(&head.h_len.get())
            && head.h_size.get() <= RECORD_MAX
            && Lsn::from(head.h_tail_lsn.get()) <= lsn
            && Lsn::from(head.h_tail_lsn.get()).sector < self.len
    }
}

/// Returns the offset, in the headers of a record, of the saved first word of a sector of its data. The first
/// header has these words at another offset than the extended headers.
pub(super) fn word_place(sector: usize) -> usize {
    match sector / WORDS {
        0 => offset_of!(RawLogRecord, h_cycle_data) + sector * 4,
        header => header * SECTOR + 4 + sector % WORDS * 4,
    }
}

fn cycle_in(sector: &[u8]) -> u32 {
    let first = number(sector, 0, 4).unwrap_or(0) as u32;
    // A header starts with its magic.
    if first == MAGIC { number(sector, 4, 4).unwrap_or(0) as u32 } else { first }
}

/// The checksum of a record: its header, what is used of further headers, its data.
pub(super) fn record_checksum(heads: &[u8], data: &[u8]) -> u32 {
    let first = &heads[..size_of::<RawLogRecord>()];
    let mut sum = checksum(first, offset_of!(RawLogRecord, h_crc));
    for head in heads.chunks_exact(SECTOR).skip(1) {
        sum = crc32c::crc32c_append(sum, &head[..FURTHER_BYTES]);
    }
    crc32c::crc32c_append(sum, data)
}
