//! Finding the records from the tail to the head.

use super::refusal::damaged;
use super::ring::{Lsn, Record, Ring};
use super::wire::{IN_FLIGHT, SECTOR, op};
use crate::layout::bytes::number;
use crate::layout::raw::RawLogOp;
use ivers_vfs::Result;
use std::mem::{offset_of, size_of};

/// Sectors that are searched for the last record.
const SEARCHED: u32 = 2 * IN_FLIGHT + 1024;
/// Sectors of one read of the search.
const PIECE: u32 = 256;

/// What is in the log.
pub(super) struct Found {
    /// The filesystem was unmounted.
    pub clean: bool,
    /// Where the next record would start.
    pub head: Lsn,
    /// The tail that the last record names.
    pub tail: Lsn,
    /// Bytes of the longest record, as the last one says.
    pub longest: u32,
    /// The sectors at which records start, from the tail on.
    pub records: Vec<u32>,
}

/// Where the newest cycle seems to end. Sectors are missing before it if the system stopped while it wrote
/// the log.
struct Guess {
    sector: u32,
    newest: u32,
}

impl Guess {
    /// The least cycle of a record that starts at a sector. Where sectors are missing, records of older
    /// cycles can be valid.
    fn least_cycle(&self, sector: u32) -> u32 {
        if sector < self.sector || self.sector == 0 { self.newest } else { self.newest.saturating_sub(1) }
    }
}

fn guess_head(ring: &Ring<'_>) -> Result<Guess> {
    let newest = ring.cycle(0)?;
    let (mut low, mut high) = (1, ring.len);
    while low < high {
        let middle = low + (high - low) / 2;
        if ring.cycle(middle)? == newest {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(Guess { sector: low % ring.len, newest })
}

/// Returns a valid record before a sector.
fn record_before(ring: &Ring<'_>, head: u32, guess: &Guess) -> Result<Option<Record>> {
    let most = SEARCHED.min(ring.len);
    let mut back = 0;
    while back < most {
        let count = PIECE.min(most - back);
        back += count;
        let first = (head + ring.len - back) % ring.len;
        let bytes = ring.read(first, count)?;
        for (index, bytes) in (0..count).zip(bytes.chunks_exact(SECTOR)).rev() {
            let sector = (first + index) % ring.len;
            if ring.head_in(bytes, sector).is_none() {
                continue;
            }
            let least = guess.least_cycle(sector);
            if let Some(record) = ring.record(sector)?.filter(|record| record.lsn.cycle >= least) {
                return Ok(Some(record));
            }
        }
    }
    Ok(None)
}

/// Finds the records to replay.
pub(super) fn scan(ring: &Ring<'_>) -> Result<Found> {
    // A wrong guess leads to an older record. One before the end of the ring may be newer.
    let guess = guess_head(ring)?;
    let near = record_before(ring, guess.sector, &guess)?;
    let last = record_before(ring, 0, &guess)?;
    let Some(near) = near.into_iter().chain(last).max_by_key(|record| record.lsn) else {
        // Some tools clear a log with zeros.
        if ring.cycle(0)? == 0 && ring.cycle(ring.len - 1)? == 0 {
            let head = Lsn { cycle: 0, sector: 0 };
            return Ok(Found { clean: true, records: Vec::new(), head, tail: head, longest: 0 });
        }
        return Err(damaged(ring.place, "the log has no valid record at its head"));
    };
    let newest = near.lsn;
    let mut near = near;
    let mut walk = Walk::from(ring, near.tail)?;
    // The tail of a record can be where sectors are missing: that of the first record of a transaction, if
    // the log was empty before it. Then an older record says what is needed.
    while walk.records.is_empty() {
        let older = record_before(ring, near.tail.sector, &guess)?.filter(|older| older.lsn < near.tail);
        let Some(older) = older.filter(|older| distance(ring, older.lsn, newest) <= SEARCHED) else {
            break;
        };
        near = older;
        walk = Walk::from(ring, near.tail)?;
    }
    let Walk { records, tail, longest, clean, end: at } = walk;
    if records.is_empty() {
        return Err(damaged(ring.place, "the log has no valid record at its tail"));
    }
    // Records that were being written when the system stopped may be damaged, those before them not.
    if at <= newest {
        let missing = distance(ring, at, newest);
        if missing > IN_FLIGHT + 1024 {
            let what = format!("the log record at sector {} is damaged, and later ones are not", at.sector);
            return Err(damaged(ring.place, &what));
        }
    }
    let needed = records.into_iter().filter(|lsn| *lsn >= tail);
    let records = needed.map(|lsn| lsn.sector).collect();
    Ok(Found { clean, records, head: at, tail, longest })
}

/// Sectors from one position to a later one.
fn distance(ring: &Ring<'_>, from: Lsn, to: Lsn) -> u32 {
    (to.sector + ring.len - from.sector) % ring.len
}

/// Records that follow each other.
struct Walk {
    records: Vec<Lsn>,
    /// What the last one says.
    tail: Lsn,
    longest: u32,
    clean: bool,
    /// Where the next one would start.
    end: Lsn,
}

impl Walk {
    fn from(ring: &Ring<'_>, start: Lsn) -> Result<Self> {
        let tail = Lsn::from(0);
        let mut walk = Self { records: Vec::new(), tail, longest: 0, clean: false, end: start };
        let mut walked = 0u64;
        while let Some(record) = ring.record(walk.end.sector)?.filter(|record| record.lsn == walk.end) {
            walked += u64::from(record.sectors);
            if walked > u64::from(ring.len) {
                break;
            }
            // A tail only moves forward. Anything else was not written by a log.
            if record.tail < walk.tail {
                return Err(damaged(ring.place, "the tail of the log moves back"));
            }
            (walk.tail, walk.longest, walk.clean) = (record.tail, record.longest, is_unmount(&record));
            walk.records.push(walk.end);
            walk.end = ring.after(walk.end, record.sectors);
        }
        Ok(walk)
    }
}

fn is_unmount(record: &Record) -> bool {
    let flags = number(&record.data, offset_of!(RawLogOp, oh_flags), 1).unwrap_or(0) as u8;
    record.operations == 1 && record.data.len() >= size_of::<RawLogOp>() && flags & op::UNMOUNT != 0
}
