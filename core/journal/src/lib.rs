//! A write-ahead transaction engine, and the encodings of its log.
//!
//! A driver makes changes atomic with a [`Handle`]: call [`Journal::begin`], change buffers with
//! [`Handle::modify`], drop the handle. All handles that are open at about the same time join one
//! transaction. A commit makes the whole transaction durable in the log with one commit record. A checkpoint
//! later writes the blocks in place. The engine knows buffers, ranges, revokes and objects. A [`LogFormat`]
//! defines their bytes on disk; [`jbd2`] is the one of ext3 and ext4. `docs/journal.md` describes the design.
//!
//! ```
//! # use std::sync::Arc;
//! # use ivers_block::{BlockNo, Budget, BufferCache, MemDevice};
//! # use ivers_journal::Journal;
//! let device = Arc::new(MemDevice::new(1 << 20));
//! let cache = Arc::new(BufferCache::new(device, 4096, Arc::new(Budget::unlimited())));
//! let journal = Journal::none(cache.clone());
//! let handle = journal.begin(1)?;
//! let buffer = cache.get(BlockNo(7))?;
//! handle.modify(&buffer, |bytes| bytes[0] = 1);
//! let tid = handle.tid();
//! drop(handle);
//! journal.commit(tid)?;
//! # Ok::<(), ivers_journal::JournalError>(())
//! ```
//!
//! # Invariants
//!
//! `tests/crash.rs` checks J1 to J7 but for J4, which is B1 of `ivers_block`. `tests/engine.rs` also checks
//! J5 and J13. `tests/range_log` checks what JBD2 has not: ranges (J8), stamped blocks (J9), objects (J10)
//! and intents (J11, J12).
//!
//! - **J1**: no block is written in place before the commit record of its transaction is durable. Only a
//!   checkpoint writes in place, and it writes only committed snapshots. The engine never marks a logged
//!   buffer dirty in the cache.
//! - **J2**: after a crash each transaction is there in whole or not at all, in order. The commit record
//!   follows a flush. Recovery stops at the first incomplete transaction.
//! - **J3**: what `commit` acknowledged is there after a crash. It returns after the commit record is
//!   durable.
//! - **J4**: a buffer with changes that are not in place is not evicted. The transaction and the active
//!   items hold its `Arc`.
//! - **J5**: the journal does not write a freed block after the commit that frees it. A revoke prevents
//!   replay, and the commit removes the active item before it runs the callbacks.
//! - **J6**: file data that was written before a handle ended is durable before the transaction of that
//!   handle is. The flush between log blocks and commit record covers the data.
//! - **J7**: the tail moves only after everything before it is in place and durable, or finished. A push
//!   writes, flushes, and then moves the tail.
//! - **J8**: the newest record of a block holds every byte that changed since its last write in place. The
//!   commit adds the ranges of the active item.
//! - **J9**: a block in place has the LSN and checksum of its bytes. The write hook runs on the written
//!   bytes.
//! - **J10**: a record of a block, and a write in place, hold the newest committed version of each object in
//!   it. A commit and a push apply the patches.
//! - **J11**: an intent stays active until its done record is durable.
//! - **J12**: finishing an intent gets log space. A handle begins only if the log has space for it and for
//!   finishing each older intent.
//! - **J13**: after an error nothing more is written.
//!
//! # Locks
//!
//! The order is `log`, handles, locks of the driver, `state`. Debug builds assert it with the ranks
//! `JournalLog`, `Handle`, `Driver` and `JournalState` of [`ivers_sync::rank`].
//!
//! - `log` is held during a commit or a checkpoint, including its I/O. A commit waits for open handles while
//!   it holds `log`. So a thread with an open handle, or with a lock of its driver, must not call `commit`.
//! - [`Journal::begin`] takes `state` only, so it does not wait for I/O. It waits while a commit waits for
//!   the open handles, and while the transaction is full. So a thread with an open handle, or with a lock of
//!   its driver of a rank above `BeforeHandle`, must not begin another one.
//! - `state` protects memory only and is never held during I/O. Under it only the data of a buffer is locked.
#![forbid(unsafe_code)]

mod active;
mod checkpoint;
mod commit;
mod commit_thread;
mod commits;
mod engine;
mod error;
mod format;
mod handle;
mod intents;
pub mod jbd2;
mod object;
mod places;

pub use commits::{Changes, Commits, LastChange};
pub use engine::{Journal, JournalOptions, JournalStats, Tid};
pub use error::{JournalError, Result};
pub use format::{
    Costs, LiveLog, LogFormat, LogItem, LogTransaction, LogWritten, Lsn, ObjectRecord, RecordKind,
};
pub use handle::Handle;
pub use object::{LogObject, ObjectId, Patch, Replay};
