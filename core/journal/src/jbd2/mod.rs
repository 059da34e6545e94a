//! The log of ext3 and ext4 (and ocfs2): JBD2.
//!
//! Source: `Documentation/filesystems/ext4/journal.rst` of the kernel ("the document" below). It describes
//! the superblock, headers, tags, tails, revocation and commit blocks. All integers are big-endian.
//! Comments say where the document leaves something out, and what other implementations do there.
//!
//! # Features
//!
//! | feature | read | written |
//! |---|---|---|
//! | version 1 superblock | yes | raised to version 2 |
//! | `COMPAT_CHECKSUM` (crc32 of a transaction in its commit block) | checked | kept |
//! | `INCOMPAT_REVOKE` | yes | always set |
//! | `INCOMPAT_64BIT` | yes | on request |
//! | `INCOMPAT_ASYNC_COMMIT` | yes | kept; commits are ordered anyway |
//! | `INCOMPAT_CSUM_V2` | checked | kept |
//! | `INCOMPAT_CSUM_V3` | checked | on request |
//! | `INCOMPAT_FAST_COMMIT` | refused if fast commits wait for replay | kept; its area is not written |
//! | external journal, several users | refused | - |
//!
//! # Where recovery stops
//!
//! Recovery stops at the first block without the expected sequence number, and at the first transaction that
//! has no commit record or a wrong checksum. So it replays a prefix of whole transactions.
//! [`Recovered::damaged`] reports a wrong checksum.
//!
//! After recovery the log skips sequence numbers. So no old record after the end is taken for a record of a
//! new transaction.

mod map;
mod records;
mod recover;
mod superblock;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use ivers_block::Device;

pub use map::{LogExtent, LogMap};
pub use recover::{Damage, Recovered};
pub use superblock::{FormatOptions, JournalSuperblock, format_superblock};

use crate::{JournalError, Lsn, Result};

/// Returns the time since 1970, for commit records.
pub type Clock = Box<dyn Fn() -> std::time::Duration + Send>;

/// What the filesystem knows about its journal.
#[derive(Debug, Clone)]
pub struct Jbd2Options {
    /// The block size of the filesystem, in bytes. The journal must have the same.
    pub block_size: u32,
    /// The number of blocks of the filesystem. Recovery refuses to write past them.
    pub fs_blocks: u64,
    /// The UUID that the journal must have, if it is known.
    pub uuid: Option<[u8; 16]>,
}

/// A transaction between tail and head.
struct LiveTransaction {
    lsn: Lsn,
    /// Its first log block.
    start: u32,
    sequence: u32,
    /// Its length in log blocks, with the commit block.
    blocks: u64,
}

/// A JBD2 log, for recovery and for a [`crate::Journal`].
pub struct Jbd2Log {
    device: Arc<dyn Device>,
    map: LogMap,
    options: Jbd2Options,
    sb: JournalSuperblock,
    /// The log block to write next.
    head: u32,
    /// Log blocks between tail and head.
    used_blocks: u64,
    /// The transactions between tail and head, in order.
    live: VecDeque<LiveTransaction>,
    /// The LSN of the next transaction. JBD2 stores none: it counts transactions since the log was opened.
    next_lsn: Lsn,
    /// The sequence number of the next transaction.
    next_sequence: u32,
    /// `s_start` on disk is not 0: recovery would scan the log.
    start_recorded: bool,
    /// The log was not clean when it was opened and has not been replayed.
    must_recover: bool,
    /// The `COMPAT_CHECKSUM` value of a transaction without a commit record yet; `None` between transactions.
    body_checksum: Option<u32>,
    clock: Clock,
}

impl Jbd2Log {
    /// Reads and checks the superblock of the journal. Writes nothing.
    ///
    /// For a read-only mount of a filesystem that needs recovery, pass an [`ivers_block::OverlayDevice`].
    pub fn open(device: Arc<dyn Device>, map: LogMap, options: Jbd2Options) -> Result<Self> {
        map.check(options.fs_blocks)?;
        let mut raw = vec![0; options.block_size.max(1024) as usize];
        device.read_at(map.offset(0, options.block_size)?, &mut raw)?;
        let sb = JournalSuperblock::parse(&raw)?;
        let corrupt = |what: String| Err(JournalError::Corrupt { what, log_block: 0 });
        if sb.block_size() != options.block_size {
            return corrupt(format!(
                "s_blocksize is {}, but the filesystem's is {}",
                sb.block_size(),
                options.block_size
            ));
        }
        if u64::from(sb.max_len()) > map.len() {
            return corrupt(format!(
                "s_maxlen is {}, but the journal has {} blocks",
                sb.max_len(),
                map.len()
            ));
        }
        if let Some(uuid) = options.uuid
            && uuid != sb.uuid()
        {
            return Err(JournalError::External { what: "its UUID is not the expected one".into() });
        }
        let is_clean = sb.start() == 0;
        // As in other implementations, a clean log continues with the number after `s_sequence`.
        let next_sequence = sb.sequence().wrapping_add(1);
        let head = sb.first();
        Ok(Self {
            device,
            map,
            options,
            head,
            used_blocks: 0,
            live: VecDeque::new(),
            next_lsn: 1,
            next_sequence,
            start_recorded: !is_clean,
            must_recover: !is_clean,
            body_checksum: None,
            clock: Box::new(system_clock),
            sb,
        })
    }

    /// Sets the clock for commit records.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// True if the log may hold transactions that are not in place.
    pub fn needs_recovery(&self) -> bool {
        self.must_recover
    }

    /// The superblock as last read or written.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.sb
    }

    /// The error that a writer recorded in the log (`s_errno`), 0 if none.
    pub fn recorded_error(&self) -> i32 {
        self.sb.errno()
    }

    /// The number of blocks of the ring.
    fn ring_blocks(&self) -> u64 {
        u64::from(self.sb.last() - self.sb.first())
    }

    /// The log block after `block`, with wrap-around.
    fn next_log_block(&self, block: u32) -> u32 {
        if block + 1 >= self.sb.last() { self.sb.first() } else { block + 1 }
    }

    fn read_log(&self, log_block: u32, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read_at(self.map.offset(log_block, self.options.block_size)?, buf)?)
    }
}

fn system_clock() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
