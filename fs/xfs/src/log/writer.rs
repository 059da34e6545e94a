//! The encoding of the log for the journal: transactions as records.
//!
//! A transaction starts a record. Its last record has the commit operation, is written after a flush, and is
//! durable when `write_commit` returns. So a small transaction is one record.
//!
//! # The tail
//!
//! Each record names the tail. A tail that moved is durable with the next record, and only then its space
//! counts as free: a crash would find the older tail, and what lies there must be whole. `settle_tail` writes
//! an empty transaction for that, when there is no other record. The space for it is never given away.

use super::encode::{self, COSTS};
use super::record::{RecordHead, RecordShape, add_operation, unmount_operation};
use super::refusal::damaged;
use super::ring::Lsn;
use super::wire::{IN_FLIGHT, RECORD_MAX, SECTOR, client, op};
use crate::layout::superblock::Superblock;
use ivers_block::{ByteOffset, Device};
use ivers_journal::{Costs, JournalError, LiveLog, LogFormat, LogTransaction, LogWritten, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `XFS_TRANS_HEADER_MAGIC` and `XFS_TRANS_CHECKPOINT`.
const TRANSACTION_MAGIC: u32 = 0x5452_414E;
const TYPE_CHECKPOINT: u32 = 40;
/// Bytes of an operation without data.
const OPERATION_BYTES: usize = 12;
/// Bytes of the operations that each transaction has: start, header, commit.
const ENVELOPE_BYTES: u64 = 3 * OPERATION_BYTES as u64 + 16;
/// Bytes at the end of a record that may stay unused, and the header of an operation that continues.
const SPLIT_BYTES: u64 = 3 * OPERATION_BYTES as u64;
/// Sectors that may be written before a flush. Recovery looks for missing ones only in the last
/// [`IN_FLIGHT`].
const UNFLUSHED_MAX: u32 = IN_FLIGHT - IN_FLIGHT / 8;
/// Shortest records that always have space: an empty transaction, an unmount, and what aligns them.
const RESERVED_RECORDS: u64 = 4;
/// What follows the cycle in the sector after the head of a clean log.
pub(super) const MARK: &[u8] = b"ivers: the log ends before this sector";

/// The log of a filesystem that is open for writing.
pub struct XfsLog {
    device: Arc<dyn Device>,
    sb: Arc<Superblock>,
    start: ByteOffset,
    /// Sectors of the ring.
    len: u32,
    shape: RecordShape,
    /// Positions count sectors since cycle 0. This is where the next record starts.
    head: u64,
    /// The LSN of that record. All accesses are relaxed: who needs the value waits for the last record.
    next_record: Arc<AtomicU64>,
    /// Where recovery must start.
    tail: u64,
    /// Where recovery would start after a crash.
    durable_tail: u64,
    /// The sector of the last record.
    previous: u32,
    /// The tail is an empty transaction, and nothing follows it.
    ends_empty: bool,
    /// The last record is that of an unmount.
    is_clean: bool,
    open: Option<Open>,
    /// Sectors since the last flush.
    unflushed: u32,
    live: LiveLog,
}

/// A transaction without its commit operation.
struct Open {
    position: u64,
    tid: u32,
    /// Operations of the next record.
    data: Vec<u8>,
    operations: u32,
}

/// Where a log continues.
pub(super) struct Continued {
    pub head: Lsn,
    pub tail: Lsn,
    /// The tail that the last record names.
    pub durable_tail: Lsn,
    pub is_clean: bool,
    /// Bytes of the longest record, if the records after the tail must agree with it.
    pub longest: Option<u32>,
    pub live: LiveLog,
}

impl XfsLog {
    /// Continues a log. Nothing after its head may look like a record that follows.
    pub(super) fn new(
        device: Arc<dyn Device>,
        sb: &Superblock,
        start: ByteOffset,
        len: u32,
        from: Continued,
        place: &str,
    ) -> ivers_vfs::Result<Self> {
        let unit = sb.log_stripe_unit.max(SECTOR as u32);
        let unit_is_valid = unit.is_multiple_of(SECTOR as u32)
            && unit <= RECORD_MAX
            && len.is_multiple_of(unit / SECTOR as u32)
            && from.head.sector.is_multiple_of(unit / SECTOR as u32);
        // Cycles that come near the magic of a record were not reached by writing.
        if !unit_is_valid || from.head.cycle > u32::MAX / 2 {
            let what =
                format!("sb_logsunit is {unit}, the log has {len} sectors and ends at {:?}", from.head);
            return Err(damaged(place, &what));
        }
        let mut shape = RecordShape::new(sb.uuid, unit);
        shape.longest = from.longest.unwrap_or(shape.longest).max(shape.longest);
        let mut log = Self {
            device,
            sb: Arc::new(sb.clone()),
            start,
            len,
            shape,
            head: 0,
            next_record: Arc::default(),
            tail: 0,
            durable_tail: 0,
            previous: u32::MAX,
            ends_empty: false,
            is_clean: from.is_clean,
            open: None,
            unflushed: 0,
            live: from.live,
        };
        // An erased log has cycle 0.
        let head = Lsn { cycle: from.head.cycle.max(1), ..from.head };
        log.move_head(log.position(head));
        log.tail = if from.head.cycle == 0 { log.head } else { log.position(from.tail) };
        log.durable_tail = if from.is_clean { log.head } else { log.position(from.durable_tail) };
        Ok(log)
    }

    /// The LSN of the next record, as it changes.
    pub fn next_record(&self) -> Arc<AtomicU64> {
        self.next_record.clone()
    }

    fn move_head(&mut self, position: u64) {
        self.head = position;
        self.next_record.store(self.lsn(position).raw(), Ordering::Relaxed);
    }

    fn position(&self, lsn: Lsn) -> u64 {
        lsn.position(self.len)
    }

    fn lsn(&self, position: u64) -> Lsn {
        Lsn::at_position(position, self.len)
    }

    /// Bytes of the shortest record.
    fn least(&self) -> u64 {
        self.shape.bytes(1) as u64
    }

    /// Bytes of items in a record, at least.
    fn payload_of_record(&self) -> u64 {
        self.shape.data_max() as u64 - OPERATION_BYTES as u64 - SPLIT_BYTES
    }

    /// Bytes of records that have `payload` bytes of operations.
    fn space_of(&self, payload: u64) -> u64 {
        let (full, rest) = (payload / self.payload_of_record(), payload % self.payload_of_record());
        let longest = self.shape.bytes(self.shape.data_max()) as u64;
        full * longest + self.shape.bytes((rest + SPLIT_BYTES) as usize) as u64
    }

    /// Writes sectors from a position on, around the end of the ring.
    fn write_sectors(&self, position: u64, bytes: &[u8], durable: bool) -> Result<()> {
        let sector = self.lsn(position).sector;
        let before_end = ((self.len - sector) as usize * SECTOR).min(bytes.len());
        let (first, second) = bytes.split_at(before_end);
        let parts = [(self.start + u64::from(sector) * SECTOR as u64, first), (self.start, second)];
        for (offset, part) in parts.into_iter().filter(|(_, part)| !part.is_empty()) {
            if durable {
                self.device.write_fua(offset, part)?;
            } else {
                self.device.write_at(offset, part)?;
            }
        }
        Ok(())
    }

    /// Writes a record at the head. Returns its bytes.
    fn write_record(&mut self, data: Vec<u8>, operations: u32, durable: bool) -> Result<u64> {
        let lsn = self.lsn(self.head);
        let head = RecordHead { lsn, tail: self.lsn(self.tail), previous: self.previous, operations };
        let bytes = self.shape.record(&head, data, self.len);
        let sectors = (bytes.len() / SECTOR) as u32;
        if !durable && self.unflushed + sectors > UNFLUSHED_MAX {
            self.device.flush()?;
            self.unflushed = 0;
        }
        let end = self.head + u64::from(sectors);
        if end > self.durable_tail + u64::from(self.len) {
            return Err(JournalError::TooLarge { charge: bytes.len() as u64, limit: self.free() });
        }
        self.write_sectors(self.head, &bytes, durable)?;
        self.move_head(end);
        self.previous = lsn.sector;
        self.ends_empty = false;
        self.is_clean = false;
        self.unflushed = if durable { 0 } else { self.unflushed + sectors };
        Ok(bytes.len() as u64)
    }

    /// Adds a region to the open transaction. Writes the records that are full.
    fn add_region(&mut self, open: &mut Open, region: &[u8]) -> Result<u64> {
        // Each record keeps space for the commit operation.
        let most = self.shape.data_max() - OPERATION_BYTES;
        let (mut rest, mut flags, mut written) = (region, 0, 0);
        loop {
            let space = most.saturating_sub(open.data.len() + OPERATION_BYTES);
            if rest.len() <= space {
                let ends = if flags == 0 { 0 } else { flags | op::END };
                open.add(ends, rest);
                return Ok(written);
            }
            // A split leaves both parts aligned. A short rest of the record stays unused.
            let part = space / 8 * 8;
            if part > 0 {
                let (now, later) = rest.split_at(part);
                open.add(flags | op::CONTINUE, now);
                (rest, flags) = (later, op::WAS_CONTINUED);
            }
            let operations = std::mem::take(&mut open.operations);
            let data = std::mem::replace(&mut open.data, Vec::with_capacity(self.shape.data_max()));
            written += self.write_record(data, operations, false)?;
        }
    }

    fn begin(&self) -> Open {
        // Unique among the transactions that the ring can hold.
        let tid = self.head as u32;
        let mut open = Open { position: self.head, tid, data: Vec::new(), operations: 0 };
        open.add(op::START, &[]);
        open
    }

    /// Writes the last record of a transaction, with its commit operation.
    fn end(&mut self, mut open: Open) -> Result<LogWritten> {
        open.add(op::COMMIT, &[]);
        let tail = self.tail;
        let bytes = self.write_record(open.data, open.operations, true)?;
        self.durable_tail = tail;
        Ok(self.written(open.position, bytes))
    }

    fn written(&self, position: u64, bytes: u64) -> LogWritten {
        let blocks = bytes.div_ceil(u64::from(self.sb.block_size));
        LogWritten { lsn: self.lsn(position).raw(), blocks, bytes }
    }
}

impl Open {
    fn add(&mut self, flags: u8, data: &[u8]) {
        add_operation(&mut self.data, self.tid, client::TRANSACTION, flags, data);
        self.operations += 1;
    }
}

impl LogFormat for XfsLog {
    fn name(&self) -> &'static str {
        "xfs"
    }

    fn needs_recovery(&self) -> bool {
        false
    }

    fn costs(&self) -> Costs {
        COSTS
    }

    fn capacity(&self) -> u64 {
        (u64::from(self.len) * SECTOR as u64).saturating_sub(RESERVED_RECORDS * self.least())
    }

    fn free(&self) -> u64 {
        self.capacity().saturating_sub((self.head - self.durable_tail) * SECTOR as u64)
    }

    fn space_for(&self, transaction: &LogTransaction) -> u64 {
        let items: u64 =
            transaction.items.iter().map(|item| COSTS.of_buffer(item.unit.len(), &item.ranges)).sum();
        let revokes: u64 = transaction.revokes.iter().map(|unit| COSTS.of_revoke(unit)).sum();
        let objects: u64 = transaction.objects.iter().map(|object| COSTS.of_object(object.bytes.len())).sum();
        self.space_for_charge(items + revokes + objects)
    }

    fn space_for_charge(&self, charge: u64) -> u64 {
        self.space_of(charge + ENVELOPE_BYTES)
    }

    fn used_from(&self, lsn: u64) -> u64 {
        self.head.saturating_sub(self.position(lsn.into())) * SECTOR as u64
    }

    fn live(&self) -> LiveLog {
        self.live.clone()
    }

    fn write_items(&mut self, transaction: &LogTransaction) -> Result<LogWritten> {
        let sb = self.sb.clone();
        let items = encode::count(&sb, transaction) as u32;
        let mut open = self.begin();
        let header = [TRANSACTION_MAGIC, TYPE_CHECKPOINT, open.tid, items];
        open.add(0, &header.map(u32::to_le_bytes).concat());
        let (mut bytes, mut encoded) = (0, 0);
        encode::items(&sb, self.lsn(self.head), transaction, |item| {
            encoded += 1;
            for region in &item {
                bytes += self.add_region(&mut open, region)?;
            }
            Ok(())
        })?;
        debug_assert_eq!(encoded, items);
        let written = self.written(open.position, bytes);
        self.open = Some(open);
        Ok(written)
    }

    fn write_commit(&mut self) -> Result<LogWritten> {
        match self.open.take() {
            Some(open) => self.end(open),
            None => Ok(LogWritten::default()),
        }
    }

    fn move_tail(&mut self, tail: Option<u64>) -> Result<()> {
        match tail {
            Some(tail) => self.tail = self.position(tail.into()),
            // Only an empty transaction follows the tail: moving it would need another one.
            None if self.ends_empty => {}
            None => self.tail = self.head,
        }
        Ok(())
    }

    fn settle_tail(&mut self) -> Result<()> {
        if self.tail == self.durable_tail || self.is_clean {
            return Ok(());
        }
        let is_empty = self.tail == self.head;
        // Without a header: Linux expects items after one.
        let open = self.begin();
        self.end(open)?;
        self.ends_empty = is_empty;
        Ok(())
    }

    fn mark_clean(&mut self) -> Result<()> {
        if self.is_clean {
            return Ok(());
        }
        self.tail = self.head;
        let after = self.head + self.least() / SECTOR as u64;
        // Linux writes this sector when it mounts the filesystem, so it shows whether anyone did.
        let mut mark = vec![0; self.shape.unit as usize];
        let cycle = self.lsn(after).cycle - 1;
        mark[..4].copy_from_slice(&cycle.to_be_bytes());
        mark[4..4 + MARK.len()].copy_from_slice(MARK);
        self.write_sectors(after, &mark, false)?;
        let tid = self.head as u32;
        self.write_record(unmount_operation(tid), 1, true)?;
        self.tail = self.head;
        self.durable_tail = self.head;
        self.is_clean = true;
        Ok(())
    }
}
