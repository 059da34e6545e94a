//! The crash explorer: run a workload on a recording device, stop the medium at every point where it could stop, recover,
//! and hold what is found against what was promised.
//!
//! # Why it is built so
//!
//! A journalled filesystem is right only if *every* state that a crash can leave is. Those states are not sampled by
//! killing a process: the kernel's page cache survives that. They follow from the record of the device alone (which write
//! came when, which flush made what durable), so they can be enumerated without a crash, in memory, thousands a minute.
//!
//! A crash state is: everything up to the last flush, and of the writes since then some subset in which the last one may
//! be torn at a sector ([`states`]). What must hold in it follows from the workload's history ([`history`]): which
//! operation had begun, which had been acknowledged as durable, and which change values had been handed out.
//!
//! # What is checked ([`verify`])
//!
//! | promise | how |
//! |---|---|
//! | recovery works, the format is whole | mount, then the format's own fsck |
//! | what was synced is there | contents at least as new as the last acknowledged sync of the file |
//! | names never mix | the tree equals the tree after some operation between the last sync and the crash |
//! | a file is never without what it was made with | owner, mode, size and times of one that was made with them, at every point at which it has a name |
//! | a rename over a file shows old or new | contents of the moved file at least as new as the rename, if it shows |
//! | no garbage | each byte is one that this file held there since its last sync, or a zero of a hole; when it grows after recovery, zeros lie between |
//! | C4 | a value handed out before means the same contents and attributes after; values never go back; the next change moves past all of them |
//! | C3 | after a clean unmount the value rests |
//! | C1 | a value handed out in the midst of a call does not outlive the call, if that changes something ([`watched`]) |
//! | C5 | a write costs no inode update for the counter's sake unless somebody has looked since the one before; under `lazyversion`, which half of the workloads have, it does not even raise it |
//!
//! C4 also across a second crash (module `again`): one state in 16 is worked on after recovery, and stops once more. One in eight goes to the format's
//! fsck as it was recovered, before files grow; some are mounted by the kernel after our recovery, which must show the tree that we show
//! (module `shown`). Of a format without a journal only the values are judged, behind its fsck.
//!
//! C4 and what stands above it also after somebody else has recovered the image first (the format's fsck, the kernel), since that
//! clears the flags by which a crash is told; in half of these the driver is told to trust others, so that the epoch record
//! stands alone.
//!
//! # Invariants of the explorer itself
//!
//! 1. The history is taken from the mounted filesystem after each operation; it never queries a change attribute by
//!    itself, since a query changes what a filesystem must do next.
//! 2. Workers of a workload keep to directories of their own, so that each has a history in one order whatever the
//!    scheduler does.
//! 3. An operation counts as begun from the length of the record before its call, and as acknowledged from the length after
//!    it: a state in between may show it or not.
//!    A value asked for in the midst of a call vouches for what showed before it.
//! 4. Equal crash states with equal acknowledgements are checked once.
//! 5. What is sampled of a workload, and who recovers which state, follows from the seed and the workload's name ([`Workload::number`]), which every
//!    report prints: whatever else is run, a replay explores the same. A workload of several workers is scheduled
//!    differently each time, so that its record is another one.
//!
//! A driver joins with an implementation of [`Target`]: how to make an image, open it, and ask its fsck.

#![forbid(unsafe_code)]

mod again;
pub mod explore;
pub mod history;
pub mod ops;
mod recover;
mod shown;
pub mod states;
pub mod target;
pub mod verify;
pub mod watched;

pub use explore::{Explorer, Summary};
pub use history::whole;
pub use ops::{Op, Workload};
pub use target::{Promises, Repaired, Target};

/// A number by which the environment changes a run.
pub fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
