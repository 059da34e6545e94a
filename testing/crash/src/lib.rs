//! The crash explorer: runs a workload on a recording device, computes every state that a crash can leave on
//! the medium, recovers each state, and checks the result against the promises made before the crash.
//!
//! # Why it is built so
//!
//! A journalled filesystem is correct only if *every* state that a crash can leave is recoverable. Killing a
//! process does not produce these states, because the kernel's page cache survives. They follow from the
//! record of the device alone (the order of writes, and what each flush made durable). So they can be
//! enumerated in memory, without a crash, thousands per minute.
//!
//! A crash state consists of everything up to the last flush and some subset of the later writes, of which
//! the last one can be torn at a sector ([`states`]). The workload's history ([`history`]) determines what
//! must hold in it: which operations had begun, which had been acknowledged as durable, and which change
//! values had been handed out.
//!
//! # What is checked ([`verify`])
//!
//! - recovery works and the format is intact: mount, then the format's own fsck
//! - synced data is there: contents at least as new as the last acknowledged sync of the file
//! - names are consistent: the tree equals the tree after some operation between the last sync and the crash
//! - a file is created with all its attributes: owner, mode, size and times are right as soon as the file
//!   has a name
//! - a rename over a file shows old or new: contents of the moved file at least as new as the rename, if it
//!   shows
//! - a snapshot that was made durable is there, and has what its source had
//! - no garbage: each byte was in this file at this offset since its last sync, or is zero in a hole; a file
//!   that grows after recovery has zeros in between
//! - C4: an old value stands for the same contents and attributes after recovery; values never decrease; the
//!   next change exceeds all of them
//! - C3: after a clean unmount the value is unchanged
//! - C1: a value from a query during a call differs from the value after the call, if the call changes
//!   something ([`observed_fs`])
//! - C5: a write causes no inode update for the counter's sake unless the file was queried since the
//!   previous write; under `lazyversion`, which half of the workloads use, it does not even raise the
//!   counter
//!
//! - an inode that is remembered by number leaves memory and comes back as the same inode, with the same
//!   value if nothing changed (module `remembered`): workloads with a small cache evict all idle inodes at
//!   every operation
//!
//! C4 is also checked across a second crash (module `second_crash`): one state in 16 is used after recovery
//! and crashes once more. One in eight is checked by the format's fsck directly after recovery, before files
//! grow. Some are mounted by the kernel after our recovery, which must show the same tree (module
//! `kernel_view`). For a format without a journal only the values are checked, after its fsck.
//!
//! C4 and the promises above it are also checked if another program (the format's fsck, the kernel) recovers
//! the image first, because that clears the flags by which a crash is recognized. In half of these cases the
//! driver is told to trust others, so that only the epoch record remains.
//!
//! # Invariants of the explorer itself
//!
//! 1. The history is read from the mounted filesystem after each operation. Reading it never queries a change
//!    attribute, since a query changes what the filesystem must do next.
//! 2. Each worker of a workload has its own directory, so that its history has one order whatever the
//!    scheduler does.
//! 3. An operation begins at the length of the record before its call and is acknowledged at the length after
//!    it: a state in between may or may not show it. A value from a query during a call stands for the state
//!    before the call.
//! 4. Equal crash states with equal acknowledgements are checked once.
//! 5. The seed and the workload's name ([`Workload::number`]) determine what is sampled of a workload and who
//!    recovers which state. Every report prints both, so that a replay explores the same, whatever else runs.
//!    A workload of several workers is scheduled differently each time, and so is its record.
//!
//! A driver takes part through an implementation of [`Target`]: how to make an image, open it, and run its
//! fsck.

#![forbid(unsafe_code)]

pub mod explore;
pub mod history;
pub mod hooked_fs;
mod kernel_view;
mod kinds;
pub mod observed_fs;
pub mod ops;
mod recover;
mod remembered;
mod second_crash;
pub mod states;
pub mod target;
pub mod verify;

pub use explore::{Explorer, Summary};
pub use history::whole;
pub use kinds::{explore_alone, explore_kinds};
pub use ops::{Op, Workload};
pub use target::{Promises, Repaired, Target};

/// Returns a number from an environment variable that controls a run.
pub fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
