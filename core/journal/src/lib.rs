//! A write-ahead transaction engine, and the encodings of its log.
//!
//! A driver makes changes atomic with a [`Handle`]: call [`Journal::begin`], change buffers with
//! [`Handle::modify`], drop the handle. All handles that are open at about the same time join one
//! transaction. A commit makes the whole transaction durable in the log with one commit record. A checkpoint
//! later writes the blocks in place. The engine knows blocks, ranges and revokes. A [`LogFormat`] defines
//! their bytes on disk; [`jbd2`] is the one of ext3 and ext4.
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
//! `tests/crash.rs` checks all but J4, which is B1 of `ivers_block`. `tests/engine.rs` also checks J5.
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
//! - **J7**: the tail moves only after everything before it is in place and durable. A checkpoint writes,
//!   flushes, and then moves the tail.
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

mod checkpoint;
mod commit;
mod commit_thread;
mod engine;
mod error;
mod format;
mod handle;
pub mod jbd2;

pub use engine::{Journal, JournalOptions, JournalStats, Tid};
pub use error::{JournalError, Result};
pub use format::{LogFormat, LogItem, LogTransaction, LogWritten};
pub use handle::Handle;
