//! The end of the log after a clean unmount, which shows a foreign writer.
//!
//! Linux marks the sectors after the head as stale when it mounts for writing, also if it then writes no
//! record. So the sector there shows a foreign writer, if a session of ivers leaves another one. The mark is
//! a sector of the cycle before, which every reader of a log takes as stale.

use super::ring::{Lsn, Ring};
use super::scan::{self, Found};
use super::wire::SECTOR;
use super::writer::MARK;
use crate::layout::superblock::Superblock;
use ivers_block::Device;
use ivers_vfs::Result;

/// Each sector starts with its cycle.
const CYCLE_BYTES: usize = 4;

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
        Ok(Self { clean: found.clean, last, head: head.raw(), after })
    }
}

/// Returns the end of the log.
pub(crate) fn end(device: &dyn Device, sb: &Superblock, place: &str) -> Result<LogEnd> {
    let ring = Ring::new(device, sb, place)?;
    LogEnd::of(&ring, &scan::scan(&ring)?)
}

/// What a clean unmount leaves there.
pub(crate) fn mark() -> Vec<u8> {
    let mut rest = MARK.to_vec();
    rest.resize(SECTOR - CYCLE_BYTES, 0);
    rest
}
