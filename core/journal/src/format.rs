//! The interface between the engine and an encoding of the log.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use ivers_block::BlockNo;

use crate::Result;

/// One block changed by a transaction.
#[derive(Debug, Clone)]
pub struct LogItem {
    /// The block number on the filesystem's device.
    pub block: BlockNo,
    /// Bytes that changed, sorted, neither overlapping nor adjacent. An encoding may round them up.
    pub ranges: Vec<Range<u32>>,
    /// The whole block as the transaction left it.
    pub data: Arc<[u8]>,
}

/// The contents of one transaction.
#[derive(Debug, Default)]
pub struct LogTransaction {
    /// Changed blocks, sorted by number, each once.
    pub items: Vec<LogItem>,
    /// Blocks whose earlier log records must not be replayed. None of them is among the items.
    pub revokes: BTreeSet<BlockNo>,
}

/// Log space that a write took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogWritten {
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

    /// Blocks that an empty log can hold.
    fn capacity_blocks(&self) -> u64;

    /// Blocks that can be written without moving the tail.
    fn free_blocks(&self) -> u64;

    /// An upper bound for the log blocks of a transaction, including its commit record.
    fn blocks_for(&self, items: u64, revokes: u64) -> u64;

    /// Writes `transaction` except for its commit record. The blocks need not be durable on return.
    fn write_items(&mut self, transaction: &LogTransaction) -> Result<LogWritten>;

    /// Writes the commit record of the last written transaction durably.
    fn write_commit(&mut self) -> Result<LogWritten>;

    /// Frees the whole log durably. Every committed transaction is in place and durable.
    fn release_all(&mut self) -> Result<()>;

    /// Frees the whole log as [`release_all`](LogFormat::release_all), and marks it as clean: it needs no
    /// recovery.
    fn mark_clean(&mut self) -> Result<()>;
}
