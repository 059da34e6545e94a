//! What an encoding of the log must do.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use ivers_block::BlockNo;

use crate::Result;

/// One block changed by a transaction.
#[derive(Debug, Clone)]
pub struct LogItem {
    /// The block's number on the filesystem's device.
    pub block: BlockNo,
    /// Bytes that changed, sorted, neither overlapping nor adjacent. An encoding may round them up.
    pub ranges: Vec<Range<u32>>,
    /// The whole block as the transaction left it.
    pub data: Arc<[u8]>,
}

/// What is to be made durable together.
#[derive(Debug, Default)]
pub struct LogTransaction {
    /// Changed blocks, sorted by number, each once.
    pub items: Vec<LogItem>,
    /// Blocks whose contents in earlier transactions must not be replayed. None of them is among the items.
    pub revokes: BTreeSet<BlockNo>,
}

/// What a transaction cost in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogWritten {
    /// Blocks written to the log.
    pub blocks: u64,
    /// The same in bytes.
    pub bytes: u64,
}

/// The encoding of a log on disk. The engine calls it with the log locked, one call at a time.
///
/// The order of calls for one transaction is [`write_items`](LogFormat::write_items), a flush of the device by the engine,
/// [`write_commit`](LogFormat::write_commit). Transactions are numbered by the encoding.
pub trait LogFormat: Send {
    /// Name for messages and statistics.
    fn name(&self) -> &'static str;

    /// True if the log holds transactions from before that must be replayed first.
    fn needs_recovery(&self) -> bool;

    /// Blocks that the log can hold when it is empty.
    fn capacity_blocks(&self) -> u64;

    /// Blocks that can be written now without moving the tail.
    fn free_blocks(&self) -> u64;

    /// Upper bound for the log blocks of a transaction of so many items and revokes, commit record included.
    fn blocks_for(&self, items: u64, revokes: u64) -> u64;

    /// Writes everything of `transaction` but its commit record. Need not be durable when this returns.
    fn write_items(&mut self, transaction: &LogTransaction) -> Result<LogWritten>;

    /// Writes the commit record of the transaction last written, durably.
    fn write_commit(&mut self) -> Result<LogWritten>;

    /// Every committed transaction is home and durable: frees the whole log, durably.
    fn release_all(&mut self) -> Result<()>;

    /// As [`release_all`](LogFormat::release_all), and marks the log as clean: it needs no recovery.
    fn mark_clean(&mut self) -> Result<()>;
}
