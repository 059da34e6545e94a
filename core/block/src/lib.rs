//! Block devices and the buffer cache of `ivers`.
//!
//! This crate knows bytes, offsets and blocks, and no filesystem. It provides
//!
//! - [`BlockNo`], [`FileBlock`] and [`ByteOffset`]: addresses that do not mix;
//! - [`Device`]: the interface through which every driver reads and writes;
//! - its implementations: [`FileDevice`] (image files and block devices, or a range of one, locked while
//!   open; [`DiskFile`] locks the range), [`MemDevice`], [`OffsetDevice`] (a range of any device),
//!   [`CountedDevice`], [`OverlayDevice`] (copy on write in memory) and [`FaultDevice`] (records writes,
//!   injects faults, and reconstructs the device after a crash);
//! - [`BufferCache`]: metadata blocks in memory, bounded by a [`Budget`] that other caches share;
//! - [`Unit`]: the blocks of a buffer, usually one;
//! - [`Contents`]: the bytes of such a block, which count in the budget also where a journal keeps them;
//! - [`NumberMap`]: a hash table that keeps neighbours side by side;
//! - [`write_in_place`], [`write_units_in_place`] and [`Timer`]: for a journal or a write order, which write
//!   cached blocks themselves.
//!
//! # Invariants
//!
//! | # | statement | established by | checked by |
//! |---|---|---|---|
//! | B1 | a buffer that is dirty or referenced is never evicted | `Shard::evict` | `cache::tests` |
//! | B2 | a read of the device holds no lock of the cache | `BufferCache::get` | - |
//! | B3 | after `forget`, no write of that block is in progress or starts | `WRITING` | `cache::tests` |
//! | B4 | a snapshot never changes | copy on write in `Buffer::modify` | `buffer::tests` |
//! | B5 | every access lies inside the device | `check_range` | `file::tests`, `memory::tests` |
//! | B6 | contents count in the budget once, until nothing refers to them | `Contents` | `contents::tests` |
//! | B7 | processes use overlapping bytes of an image only to read them | `lock` | `lock::tests` |
#![forbid(unsafe_code)]

mod address;
mod budget;
mod buffer;
mod cache;
mod contents;
mod counted;
mod device;
mod error;
mod fault;
mod file;
mod lock;
mod loop_device;
mod memory;
mod number_map;
mod offset;
mod on_disk;
mod read_ahead;
mod timer;
mod unit;
mod write_in_place;

pub use address::{BlockNo, ByteOffset, FileBlock};
pub use budget::{Budget, Meter};
pub use buffer::{Buffer, BufferRead};
pub use cache::{BufferCache, CacheStats, PlaceHook};
pub use contents::Contents;
pub use counted::{CountedDevice, IoCounts};
pub use device::{Device, write_zeros};
pub use error::{BlockError, Result, printable};
pub use fault::{Fault, FaultDevice, Recorded};
pub use file::{FileDevice, FileRange, OpenMode};
pub use lock::DiskFile;
pub use loop_device::{KernelUse, kernel_use};
pub use memory::{MemDevice, OverlayDevice};
pub use number_map::{NumberHash, NumberHasher, NumberMap, RUN};
pub use offset::OffsetDevice;
pub use timer::Timer;
pub use unit::Unit;
pub use write_in_place::{write_in_place, write_units_in_place};
