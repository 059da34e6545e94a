//! The log of ext3 and ext4 (and ocfs2): JBD2.
//!
//! Written from `Documentation/filesystems/ext4/journal.rst` of the kernel ("the document" below), which describes superblock, headers,
//! tags, tails, revocation and commit blocks. All integers are big-endian. What the document leaves out, and what other implementations
//! do, is said where it matters.
//!
//! # What is read, what is written
//!
//! | feature | read | written |
//! |---|---|---|
//! | version 1 superblock | yes | raised to version 2 |
//! | `COMPAT_CHECKSUM` (crc32 of a transaction in its commit block) | checked | kept |
//! | `INCOMPAT_REVOKE` | yes | always set |
//! | `INCOMPAT_64BIT` | yes | on request |
//! | `INCOMPAT_ASYNC_COMMIT` | yes | kept; commits are ordered all the same |
//! | `INCOMPAT_CSUM_V2` | checked | kept |
//! | `INCOMPAT_CSUM_V3` | checked | on request |
//! | `INCOMPAT_FAST_COMMIT` | refused if fast commits are pending | kept; its area is left alone |
//! | external journal, several users | refused | - |
//!
//! # Where recovery stops
//!
//! At the first block that is not the next one of the log, and at the first transaction that lacks its commit record or of which any
//! checksum is wrong: what is replayed is always a prefix of whole transactions. A wrong checksum is reported in [`Recovered::damaged`].
//! Afterwards one sequence number is skipped, so that no record left over from the transaction that did not make it can be taken
//! for one of its successor.

mod map;
mod records;
mod recover;
mod superblock;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use ivers_block::Device;

pub use map::{LogExtent, LogMap};
pub use recover::{Damage, Recovered};
pub use superblock::{FormatOptions, JournalSuperblock, format_superblock};

use crate::{JournalError, Result};

/// Tells the time since the epoch, for commit records.
pub type Clock = Box<dyn Fn() -> std::time::Duration + Send>;

/// What the filesystem says about its journal.
#[derive(Debug, Clone)]
pub struct Jbd2Options {
    /// Block size of the filesystem, which must be the journal's.
    pub block_size: u32,
    /// Number of blocks of the filesystem: nothing is replayed beyond.
    pub fs_blocks: u64,
    /// The UUID that the journal must have, if that is known.
    pub uuid: Option<[u8; 16]>,
}

/// A JBD2 log: replays it, and writes it for a [`crate::Journal`].
pub struct Jbd2Log {
    device: Arc<dyn Device>,
    map: LogMap,
    options: Jbd2Options,
    sb: JournalSuperblock,
    /// Log block that is written next.
    head: u32,
    /// Log blocks between tail and head.
    used_blocks: u64,
    /// Sequence number of the transaction that is written next.
    next_sequence: u32,
    /// The superblock on disk names a start, so that recovery would look at the log.
    live: bool,
    /// What is in the log was there when it was opened, and has not been replayed.
    foreign: bool,
    /// Checksum of the transaction whose commit record is due; `None` between transactions.
    open_checksum: Option<u32>,
    clock: Clock,
}

impl Jbd2Log {
    /// Reads and checks the journal's superblock. Writes nothing.
    ///
    /// For a read-only mount of a filesystem that needs recovery, let `device` be an [`ivers_block::OverlayDevice`].
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
            return Err(JournalError::External { what: "its UUID is another".into() });
        }
        let live = sb.start() != 0;
        // As everybody does: a clean log goes on one after the number it was left with.
        let next_sequence = sb.sequence().wrapping_add(1);
        let head = sb.first();
        Ok(Self {
            device,
            map,
            options,
            head,
            used_blocks: 0,
            next_sequence,
            live,
            foreign: live,
            open_checksum: None,
            clock: Box::new(system_clock),
            sb,
        })
    }

    /// The same with another clock for commit records.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// True if the log may hold transactions that are not home.
    pub fn needs_recovery(&self) -> bool {
        self.foreign
    }

    /// The superblock as it was last read or written.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.sb
    }

    /// The error that somebody recorded in the log, 0 if none.
    pub fn recorded_error(&self) -> i32 {
        self.sb.errno()
    }

    /// Blocks of the ring.
    fn ring(&self) -> u64 {
        u64::from(self.sb.last() - self.sb.first())
    }

    /// The log block after `block`.
    fn after(&self, block: u32) -> u32 {
        if block + 1 >= self.sb.last() { self.sb.first() } else { block + 1 }
    }

    fn read_log(&self, log_block: u32, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read_at(self.map.offset(log_block, self.options.block_size)?, buf)?)
    }
}

fn system_clock() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
