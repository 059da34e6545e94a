//! One write-ahead transaction engine, and the encodings of its log.
//!
//! A driver wraps what must be atomic in a [`Handle`]: [`Journal::begin`], change buffers through [`Handle::modify`], drop the handle. All
//! handles that are open at about the same time join one transaction; a commit makes the whole transaction durable in the log
//! with one record, and a checkpoint later writes the blocks home. The engine knows blocks, ranges and revokes; how they
//! look on disk is the business of a [`LogFormat`]. [`jbd2`] is the one of ext3 and ext4.
//!
//! ```
//! # use std::sync::Arc;
//! # use ivers_block::{BlockNo, Budget, BufferCache, MemDevice};
//! # use ivers_journal::Journal;
//! let cache = Arc::new(BufferCache::new(Arc::new(MemDevice::new(1 << 20)), 4096, Arc::new(Budget::unlimited())));
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
//! | # | statement | established by | checked by |
//! |---|---|---|---|
//! | J1 | no block goes home before the commit record of the transaction that changed it is durable | only `checkpoint` writes home, and only committed snapshots; journalled buffers are never marked dirty in the cache | `tests/crash.rs` |
//! | J2 | after a crash each transaction is there in whole or not at all, in order | commit record after a flush; recovery stops at the first incomplete one | `tests/crash.rs` |
//! | J3 | what `commit` acknowledged is there after a crash | it returns after the commit record is durable | `tests/crash.rs` |
//! | J4 | a buffer with changes that are not home is not evicted | the transaction and the checkpoint list hold its `Arc` | `ivers_block` B1 |
//! | J5 | a freed block is not written by the journal after its freeing committed | revokes; the checkpoint list drops it under the log lock before the callbacks run | `tests/engine.rs`, `tests/crash.rs` |
//! | J6 | file data that was written before a handle ended is durable before that handle's transaction is | the flush between log blocks and commit record | `tests/crash.rs` |
//! | J7 | the tail moves only when everything before it is home and durable | `checkpoint` writes, flushes, then moves it | `tests/crash.rs` |
//!
//! # Locks
//!
//! `log` (a commit or a checkpoint in progress, with its I/O) before `state` (in memory only, never across I/O). [`Journal::begin`] takes
//! `state` alone, so it does not wait for I/O: only while a commit waits for the open handles to end, or while the transaction is full.
//! A thread must not begin a second handle, nor call `commit`, while it has one open.
#![forbid(unsafe_code)]

mod checkpoint;
mod commit;
mod engine;
mod error;
mod format;
mod handle;
pub mod jbd2;
mod timer;

pub use engine::{Journal, JournalOptions, JournalStats, Tid};
pub use error::{JournalError, Result};
pub use format::{LogFormat, LogItem, LogTransaction, LogWritten};
pub use handle::Handle;
