//! Metadata changes of a filesystem without a journal, brought home in an order in which a crash loses space at worst.
//!
//! FAT, AFFS and UFS have nowhere to write a change down before it is made. What they can do is choose in which order sectors
//! reach the medium, and that is enough for one promise: *what a pointer on the medium leads to is whole, and nobody else's*.
//! A crash may then leave space that is marked as taken and that nothing points to, which any fsck gives back, and nothing worse.
//!
//! # Why it is built so
//!
//! The order follows from what a change means, not from when it was made:
//!
//! 1. [`Stage::Fresh`]: what nothing points to yet. Allocation marks, new directory blocks, new headers. File data, which the driver writes to
//!    the device by itself, counts as this: it goes out before the flush that ends this stage.
//! 2. [`Stage::Detach`]: a name that goes, be it for good or because it comes back elsewhere; and pointers that only lengthen what is longer than its size says.
//! 3. [`Stage::Turn`]: what of something detached must be changed before it is attached elsewhere (`..`, a parent's number).
//! 4. [`Stage::Attach`]: a name that comes, a size, the first block of a file.
//! 5. [`Stage::Cut`]: a chain is made shorter, now that the size on the medium needs no more of it.
//! 6. What was freed. Its allocation marks are not touched before all that pointed to it is gone durably, and since they still say "taken" nobody can
//!    be given it before either. The driver hands freed ranges to [`Change::free`], and gets them back by [`Volume::release`] when they may be marked as free.
//!
//! Between two stages lies a flush. Stages in which nothing changed cost nothing, so that creating and filling a file takes two flushes, writing
//! into the middle of one takes one.
//!
//! One sector holds changes of several stages: a FAT sector the mark of a new cluster and the cut of an old chain, a directory block a name that goes and one
//! that comes. So a block that is dirty has **a version for each stage** that changes it: a version holds the changes of its own stage and of the earlier ones,
//! and is what the stage writes. Readers see the buffer, with everything in it. At most five versions, of blocks that are small: that is the whole cost, and there is
//! neither a dependency graph (soft updates) nor anything rolled back and redone.
//!
//! Changes are collected for some seconds, by all files together, into a **batch** that goes home in one go, as a journal's transaction does: what is made and
//! removed again within it costs little. A batch is closed only when no [`Change`] is open, so that what belongs together is in one batch; stages order it, batches
//! follow each other whole.
//!
//! # What a driver must see to
//!
//! Within a batch, time is forgotten: a stage of a later change goes home before a later stage of an earlier one. That is right as long as a change does not build on the
//! *order* of an earlier one in the same batch. It does in three cases, and the driver then calls [`Ordered::settle`] with the ticket of the earlier change first:
//!
//! - to lengthen ([`Stage::Detach`]) what was made shorter ([`Stage::Cut`]) in the same batch: the new end would be durable before the smaller size is;
//! - to attach below something that is being moved what was detached above it, in formats that keep such links in what is attached itself;
//! - to move elsewhere what was moved within one block, by one write ([`Stage::Attach`]): its third place would be durable before its first is left.
//!
//! It must not forget the ticket before that is durable: what is evicted meanwhile is settled on its way out.
//!
//! # Invariants
//!
//! | # | statement | established by | checked by |
//! |---|---|---|---|
//! | O1 | nothing of a stage is written before all of the earlier stages, and all file data that was written before its batch was closed, is durable | a flush after each stage that wrote something, and at least one before any stage after the first | `tests/order.rs` |
//! | O2 | batches do not overlap on the medium | `running` is held for a whole run, and a run ends with a flush | `tests/order.rs` |
//! | O3 | the changes of one [`Change`] are in one batch | a run takes the batch under the exclusive `gate`, which every open change holds shared | `tests/order.rs` |
//! | O4 | a block with changes that are not home is not evicted | the batch holds its buffer | `ivers_block` B1 |
//! | O5 | what was freed is marked as free only when the batch that freed it is durable; until then nobody can be given it | [`Volume::release`] is called behind the last flush of that batch's stages, and its marks belong to the next batch | `tests/order.rs` |
//! | O6 | the dirty mark is durable before anything else is written, and goes last | [`Ordered::begin`] before the first change (and before data is written in place); [`Ordered::close`] | `tests/order.rs` |
//! | O7 | after a write failed nothing more is written until the filesystem is opened anew | `failed` | `tests/order.rs` |
//! | O8 | a mirrored block (a second FAT) is written in the same stage as the first | [`Mirror`] | `ivers-fat` |
//!
//! # Assumptions about the medium
//!
//! A sector is written whole or not at all (the block size of the cache is the sector size, or what belongs together lies in one sector). Between flushes writes
//! may arrive in any order, or not at all.
//!
//! # Locks
//!
//! `running` (one run at a time, with its I/O), then `gate` (shared by open changes), then the driver's locks, then `state` (in memory only). So
//! a thread opens a change *before* it takes locks of its driver, opens no second one, and runs ([`Ordered::sync`], [`Ordered::settle`]) with neither.
#![forbid(unsafe_code)]

mod batch;
mod error;
mod ordered;

pub use error::{OrderedError, Result};
pub use ordered::{Change, Figures, Mirror, Ordered, OrderedOptions, Stage, Ticket, Volume};
