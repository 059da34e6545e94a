//! Write ordering for the metadata of formats without a journal: a crash loses space at worst.
//!
//! FAT, AFFS and UFS have no place to log a change before making it. A driver can only choose the order in
//! which sectors reach the medium. That suffices for one promise: *what a pointer on the medium leads to is
//! complete and has no other owner*. After a crash, space may be marked as used although nothing points
//! to it. Any fsck frees such space.
//!
//! # Stages
//!
//! What a change means decides when it is written, not when it was made:
//!
//! 1. [`Stage::Fresh`]: what nothing points to yet. Allocation marks, new directory blocks, new headers. File
//!    data counts as this stage: the driver writes it to the device itself, before the flush that ends the
//!    stage.
//! 2. [`Stage::Detach`]: a name that is removed, for good or because it moves; and a pointer that lengthens a
//!    chain beyond what the size requires.
//! 3. [`Stage::Turn`]: a change of a detached object that must precede its attachment (`..`, a parent's
//!    number).
//! 4. [`Stage::Attach`]: a name that is added, a size, the first block of a file.
//! 5. [`Stage::Cut`]: a chain is shortened, once the size on the medium allows it.
//! 6. Freed space. The driver passes freed ranges to [`Change::free`]. Their allocation marks stay until
//!    every pointer to them is durably removed, so they cannot be reused. Then [`Volume::release`] gets them
//!    back, to mark them as free.
//!
//! A flush separates two stages. A stage without changes costs nothing: creating and filling a file takes two
//! flushes, writing into the middle of one takes one.
//!
//! One sector may hold changes of several stages: a FAT sector has the mark of a new cluster and the cut of
//! an old chain, a directory block has a name that goes and one that comes. So a dirty block has **one
//! version for each stage** that changes it. A version holds the changes of its stage and of all earlier
//! ones, and is what the stage writes. Readers see the buffer, which holds every change. The cost is at most
//! five versions of a small block; there is no dependency graph (soft updates), and nothing is rolled back
//! and redone.
//!
//! Changes of all files are collected for some seconds into a **batch**, which is written together as a
//! journal's transaction is. What is created and removed within a batch costs little. A batch closes only
//! when no [`Change`] is open, so a change is never split. Stages order one batch; batches follow each other
//! completely.
//!
//! # Obligations of a driver
//!
//! Within a batch, the order of changes is lost: an early stage of a later change is written before a late
//! stage of an earlier change. That is correct unless a change depends on the *order* of an earlier one in
//! the same batch. In three cases it does. The driver then first calls [`Ordered::settle`] with the ticket of
//! the earlier change:
//!
//! - it lengthens ([`Stage::Detach`]) what the batch shortened ([`Stage::Cut`]): the new end would be durable
//!   before the smaller size;
//! - it attaches below an object that is being moved what was detached above it, in formats that keep such
//!   links in the attached object;
//! - it moves again what was moved within one block by one write ([`Stage::Attach`]): the third place would
//!   be durable before the first is removed.
//!
//! The driver must keep the ticket until that change is durable. It settles an inode's ticket when it evicts
//! the inode.
//!
//! # Invariants
//!
//! Each with what establishes it; `tests/order.rs` checks O1 to O3 and O5 to O7.
//!
//! - O1: a stage is written only when all earlier stages, and all file data written before its batch closed,
//!   are durable. By: a flush after each stage that wrote something, at least one before any stage after the
//!   first.
//! - O2: batches do not overlap on the medium. By: `running` is held for a whole run, and a run ends with a
//!   flush.
//! - O3: all changes made through one [`Change`] are in one batch. By: a run takes the batch under the
//!   exclusive `gate`, which every open change holds shared.
//! - O4: a block with unwritten changes is not evicted. By: the batch holds its buffer. Checked by
//!   `ivers_block` (B1).
//! - O5: freed space is marked as free only when the batch that freed it is durable, and is not allocated
//!   before. By: [`Volume::release`] is called after the last flush of that batch; its marks belong to the
//!   next batch.
//! - O6: the dirty mark is durable before anything else is written, and is removed last. By:
//!   [`Ordered::begin`] before the first change and before data is written in place; [`Ordered::close`].
//! - O7: after a failed write nothing is written until the filesystem is opened again. By: `failed`.
//! - O8: a mirrored block (a second FAT) is written in the same stage as the first. By: [`Mirror`]. Checked
//!   by `ivers-fat`.
//!
//! # Assumptions about the medium
//!
//! - A sector is written completely or not at all. The block size of the cache is the sector size, or what
//!   must change together lies in one sector.
//! - Between flushes, writes may arrive in any order or not at all.
//!
//! # Locks
//!
//! In order: `running` (one run at a time, including its I/O), `gate` (shared by open changes), the driver's
//! locks, `state` (memory only). So a thread opens a change *before* it takes a driver's lock, never opens a
//! second one, and calls [`Ordered::sync`] and [`Ordered::settle`] with neither. Debug builds check this: an
//! open change and such a call count as a lock of [`ivers_sync::rank::Handle`].
#![forbid(unsafe_code)]

mod batch;
mod error;
mod ordered;

pub use error::{OrderedError, Result};
pub use ordered::{Change, Figures, Mirror, Ordered, OrderedOptions, Stage, Ticket, Volume};
