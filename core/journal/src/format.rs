//! The interface between the engine and an encoding of the log.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use ivers_block::{Contents, Unit};

use crate::{ObjectId, Result};

/// A log sequence number: the position of a transaction in the log. LSNs only grow. The encoding assigns
/// them.
pub type Lsn = u64;

/// The charge of each thing that a transaction logs, in the unit of the encoding: a block, a byte. The engine
/// adds the charges up without a call into the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// A block of a buffer, without its ranges. At least 1.
    pub buffer: u64,
    /// A range, without its bytes. 0, like `byte`, if the encoding logs whole blocks.
    pub range: u64,
    /// A byte of a range or of an object's record.
    pub byte: u64,
    /// An object, without the bytes of its record. `None` if the encoding refuses objects.
    pub object: Option<u64>,
    /// A block of a revoke.
    pub revoke: u64,
}

impl Costs {
    /// The costs of an encoding that logs whole blocks and counts blocks.
    pub const WHOLE_BLOCKS: Self = Self { buffer: 1, range: 0, byte: 0, object: None, revoke: 1 };

    /// True if the encoding logs changed bytes instead of whole blocks.
    pub fn has_ranges(&self) -> bool {
        self.range + self.byte > 0
    }

    /// The charge of a buffer of `blocks` blocks with these changed ranges.
    pub fn of_buffer(&self, blocks: usize, ranges: &[Range<u32>]) -> u64 {
        let bytes: u64 = ranges.iter().map(|r| u64::from(r.end - r.start)).sum();
        self.buffer * blocks as u64 + self.range * ranges.len() as u64 + self.byte * bytes
    }

    /// The charge of the revoke of a unit.
    pub fn of_revoke(&self, unit: &Unit) -> u64 {
        self.revoke * unit.len() as u64
    }

    /// The charge of an object with a record of `bytes` bytes.
    pub fn of_object(&self, bytes: usize) -> u64 {
        self.object.unwrap_or(0) + self.byte * bytes as u64
    }
}

/// One buffer changed by a transaction.
#[derive(Debug, Clone)]
pub struct LogItem {
    /// Its blocks on the filesystem's device.
    pub unit: Unit,
    /// Bytes that changed, sorted, neither overlapping nor adjacent. An encoding may round them up.
    pub ranges: Vec<Range<u32>>,
    /// The whole buffer as the transaction left it.
    pub data: Contents,
}

/// A record of an object.
#[derive(Debug, Clone)]
pub struct ObjectRecord {
    /// The object.
    pub id: ObjectId,
    /// What the record says about it.
    pub kind: RecordKind,
    /// The bytes that the driver serialised.
    pub bytes: Arc<[u8]>,
}

/// What a record says about its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordKind {
    /// The newest version of an object that lies in this unit. A revoke of the unit includes the object.
    Placed(Unit),
    /// The object is an intent.
    Intent,
    /// The object, an intent, is done.
    Done,
}

/// The contents of one transaction.
#[derive(Debug, Default)]
pub struct LogTransaction {
    /// Changed buffers, sorted by unit, each once.
    pub items: Vec<LogItem>,
    /// Units that were freed: their earlier records must not be replayed. None of them is in `items`.
    pub revokes: BTreeSet<Unit>,
    /// Records of objects, at most one of each. Always empty if the encoding refuses objects.
    pub objects: Vec<ObjectRecord>,
}

impl LogTransaction {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.revokes.is_empty() && self.objects.is_empty()
    }
}

/// What recovery left in the log behind its tail.
#[derive(Debug, Clone, Default)]
pub struct LiveLog {
    /// The intents without a done record, with the LSN of their newest record.
    pub intents: Vec<(ObjectId, Lsn)>,
    /// The units that a replay from the tail would write, with an LSN of each such record.
    pub units: Vec<(Unit, Lsn)>,
}

/// Log space that a write took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogWritten {
    /// The LSN of the transaction.
    pub lsn: Lsn,
    /// Blocks written to the log.
    pub blocks: u64,
    /// The same in bytes.
    pub bytes: u64,
}

/// The encoding of a log on disk. The engine calls it with the log locked, one call at a time.
///
/// For each transaction the engine calls [`write_items`](LogFormat::write_items), flushes the device, and
/// calls [`write_commit`](LogFormat::write_commit). The encoding numbers the transactions.
pub trait LogFormat: Send {
    /// The name for messages and statistics.
    fn name(&self) -> &'static str;

    /// True if the log holds transactions of an earlier session, which must be replayed first.
    fn needs_recovery(&self) -> bool;

    /// The charge of each thing that a transaction logs.
    fn costs(&self) -> Costs;

    /// Space of an empty log, in the unit of the charge.
    fn capacity(&self) -> u64;

    /// Space that can be written without moving the tail. It must not include space whose new tail a crash
    /// would not find.
    fn free(&self) -> u64;

    /// An upper bound for the space of a transaction, including its commit record.
    fn space_for(&self, transaction: &LogTransaction) -> u64;

    /// An upper bound for the space of any transaction with this charge, including its commit record.
    fn space_for_charge(&self, charge: u64) -> u64;

    /// Space from the start of the transaction `lsn`, which is in the log, to the head.
    fn used_from(&self, lsn: Lsn) -> u64;

    /// What recovery left in the log. Empty unless the encoding has intents.
    fn live(&self) -> LiveLog {
        LiveLog::default()
    }

    /// Writes `transaction` except for its commit record. The blocks need not be durable on return.
    fn write_items(&mut self, transaction: &LogTransaction) -> Result<LogWritten>;

    /// Writes the commit record of the last written transaction durably.
    fn write_commit(&mut self) -> Result<LogWritten>;

    /// Moves the tail to the transaction `tail`, or to the head if it is `None`. Everything before it is in
    /// place and durable, or finished.
    ///
    /// The new tail is durable on return, or with the next transaction: see
    /// [`settle_tail`](LogFormat::settle_tail).
    fn move_tail(&mut self, tail: Option<Lsn>) -> Result<()>;

    /// Makes the tail durable that [`move_tail`](LogFormat::move_tail) left for the next transaction. Then
    /// [`free`](LogFormat::free) counts the space before it.
    fn settle_tail(&mut self) -> Result<()> {
        Ok(())
    }

    /// Moves the tail to the head, and marks the log as clean: it needs no recovery.
    fn mark_clean(&mut self) -> Result<()>;
}
