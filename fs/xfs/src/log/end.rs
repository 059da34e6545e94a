//! The end of the log after a clean unmount, which shows a foreign writer.
//!
//! Linux marks the sectors after the head as stale when it mounts for writing, also if it then writes no
//! record. So the sector there shows a foreign writer, if a session of ivers leaves another one. The mark is
//! a sector of the cycle before, which every reader of a log takes as stale.

use super::ring::{Lsn, Ring};
use super::scan::Found;
use super::wire::SECTOR;
use super::writer::MARK;
use crate::layout::raw::RawLogRecord;
use crate::layout::superblock::Superblock;
use ivers_block::Device;
use ivers_vfs::Result;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Each sector starts with its cycle.
const CYCLE_BYTES: usize = 4;
/// Where [`LogEnd::after`] has the tail, if Linux wrote that sector when it mounted: it marks what follows
/// the head with headers of records that have the tail of this moment.
const AFTER_TAIL: Range<usize> = {
    let start = offset_of!(RawLogRecord, h_tail_lsn) - CYCLE_BYTES;
    start..start + 8
};

/// Where a log ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogEnd {
    /// The last record is that of an unmount, or there is none.
    pub clean: bool,
    /// The LSN of the last record; 0 if there is none.
    pub last: u64,
    /// The LSN at which the next record would start; 0 if the log was erased.
    pub head: u64,
    /// What follows the cycle in the sector there.
    pub after: Vec<u8>,
    /// Linux wrote that sector when it mounted, and no record since. Its next mount would write the same
    /// bytes, so nothing would show that mount.
    pub hides_next_mount: bool,
}

impl LogEnd {
    /// The end of the log that a scan found. The sectors must be as the last writer left them.
    pub(super) fn of(ring: &Ring<'_>, found: &Found) -> Result<Self> {
        let head = found.head;
        let last = found.records.last().map_or(0, |sector| {
            let wrapped = *sector >= head.sector;
            Lsn { cycle: head.cycle - u32::from(wrapped && head.cycle > 0), sector: *sector }.raw()
        });
        let after = ring.read(head.sector % ring.len, 1)?.split_off(CYCLE_BYTES);
        // Linux takes the tail from the last record.
        let last_head = found.records.last().map_or(Ok(None), |sector| ring.head(*sector))?;
        let hides_next_mount =
            last_head.is_some_and(|head| after.get(AFTER_TAIL) == Some(head.h_tail_lsn.as_bytes()));
        Ok(Self { clean: found.clean, last, head: head.raw(), after, hides_next_mount })
    }
}

/// What a clean unmount leaves there.
pub(crate) fn mark() -> Vec<u8> {
    let mut rest = MARK.to_vec();
    rest.resize(SECTOR - CYCLE_BYTES, 0);
    rest
}

/// Returns whether another program has written since the last session of ivers. `None`: the log does not
/// show it. The log must be as it was when `end` was found.
pub(crate) fn others_wrote(
    end: &LogEnd,
    device: &dyn Device,
    sb: &Superblock,
    place: &str,
) -> Result<Option<bool>> {
    let last = match end.last {
        0 => None,
        last => own_record(&Ring::new(device, sb, place)?, last.into())?,
    };
    Ok(match last {
        // Linux writes the sector after the head when it mounts, before it writes any record.
        Some(_) if end.clean => Some(end.after != mark()),
        Some(last) => Some(end.after.get(AFTER_TAIL) == Some(last.h_tail_lsn.as_bytes())),
        // The unmount of ivers is a record of its own.
        None => Some(true).filter(|_| end.clean),
    })
}

/// Returns the header of the record at an LSN if ivers wrote it: the number of its transaction is the
/// position of the record in which the transaction starts. Linux draws numbers at random.
fn own_record(ring: &Ring<'_>, lsn: Lsn) -> Result<Option<RawLogRecord>> {
    let has = |head: &RawLogRecord, lsn: Lsn| head.h_lsn.get() == lsn.raw();
    let head_at = |lsn: Lsn| ring.head(lsn.sector).map(|head| head.filter(|head| has(head, lsn)));
    // The first word of the first operation is its number. In its place the sector has the cycle.
    let number = |head: &RawLogRecord| head.h_cycle_data[0].get();
    let Some(head) = head_at(lsn)? else { return Ok(None) };
    let position = lsn.position(ring.len);
    let back = (position as u32).wrapping_sub(number(&head));
    let Some(start) = position.checked_sub(back.into()).filter(|_| back < ring.len) else { return Ok(None) };
    let first = head_at(Lsn::at_position(start, ring.len))?.filter(|first| number(first) == start as u32);
    Ok(first.map(|_| head))
}
