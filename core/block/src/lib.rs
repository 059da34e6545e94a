//! Block devices and the buffer cache of `ivers`.
//!
//! This crate knows bytes, offsets and blocks, and no filesystem. It holds
//!
//! - [`Device`], what every driver reads and writes through, with [`FileDevice`] (images and block devices, locked while
//!   open), [`MemDevice`], [`OffsetDevice`] (a partition), [`OverlayDevice`] (copy on write in memory) and [`FaultDevice`] (records what it is told, fails
//!   on request, and shows what a crash would leave behind);
//! - [`BufferCache`], metadata blocks in memory, bounded by a [`Budget`] that other caches share;
//! - [`Timer`] and [`write_in_place`], for whoever brings cached blocks home by himself.
//!
//! # Invariants
//!
//! | # | statement | established by | checked by |
//! |---|---|---|---|
//! | B1 | a buffer that is dirty, or that anyone holds, is never evicted | `Shard::evict` looks at the strong count under the shard's lock | `cache::tests::eviction_spares_dirty_and_held` |
//! | B2 | no lock of the cache is held across device reads; reads of different blocks run in parallel | `BufferCache::get` | - |
//! | B3 | after `forget` returned, no write of that block is under way or will start | the `WRITING` flag, see `buffer` | `cache::tests::forgotten_blocks_are_not_written` |
//! | B4 | a snapshot never changes | data is `Arc<[u8]>`, changed by copy on write | `buffer::tests::snapshots_stay` |
//! | B5 | every access is inside the device | `check_range` in every device | `file::tests`, `memory::tests` |
#![forbid(unsafe_code)]

mod address;
mod budget;
mod buffer;
mod cache;
mod device;
mod error;
mod fault;
mod file;
mod loop_device;
mod memory;
mod offset;
mod timer;
mod write_in_place;

pub use address::{BlockNo, ByteOffset, FileBlock};
pub use budget::Budget;
pub use buffer::{Buffer, BufferRead};
pub use cache::{BufferCache, CacheStats};
pub use device::Device;
pub use error::{BlockError, Result};
pub use fault::{Fault, FaultDevice, Recorded};
pub use file::{FileDevice, OpenMode};
pub use memory::{MemDevice, OverlayDevice};
pub use offset::OffsetDevice;
pub use timer::Timer;
pub use write_in_place::write_in_place;
