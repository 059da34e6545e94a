//! The contract of the change attribute, tested on any backend: random operations against a simple model,
//! sequentially ([`check`]) and by several actors at once ([`check_together`]); writers and observers in
//! threads ([`observe`]). Every failure is reduced to a short script.
//!
//! # Why it is built so
//!
//! The contract is about observers. So the suite sees a backend as an observer does: files that can be
//! changed, read and queried. [`Subject`] has no more than that. So the same code tests a filesystem in this
//! process ([`InProcess`]), a directory mounted by the kernel ([`Mounted`]), an export of an NFSv4 server
//! ([`Served`]) and two clients of a server ([`Clients`], which says at which points they must agree); also
//! the kernel's own filesystems, with ctime as the value. Separate suites test what an
//! observer cannot see (how often an inode is logged, what a crash leaves).
//!
//! The model knows the contents of each file, the value of its last query, and whether anything has happened
//! since. So it can predict the next query: a larger value, the same value, or either (if a call changed
//! nothing visible, or a promise ends by design). The suite also tries operations that must fail; they must
//! change nothing. Caches and write-back belong to the backend: syncs, evictions and remounts are operations
//! that change nothing.
//!
//! Operations name files and never refer to results. So each part of a script is a script, and a failure is
//! shortened by removing operations and running the rest from the initial state. The output is Rust code:
//! paste it into a call of [`replay`].
//!
//! # Promises and claims
//!
//! A backend says which promises it keeps ([`Subject::claims`]). A broken claimed promise is a failure.
//! Broken promises that were not claimed are counted. [`Tallies::kept_unclaimed`] names promises that were
//! tested, never broken and not claimed: the backend could claim more. [`Limits`] say where a promise ends by
//! design; each is documented.
//!
//! # Invariants
//!
//! 1. Any part of a script is a script: `model::judge` returns `Skip` where an operation has lost its
//!    meaning. Test: `broken.rs`, each failure shrinks.
//! 2. The model changes only after the subject succeeded (`run::apply_one`). Test: every run compares
//!    everything at its end.
//! 3. A promise is judged only by values that the subject returned (`run::query`, `run::infos`).
//!    Test: `broken.rs`, each planted mistake is classified correctly.
//! 4. Equal seeds give equal scripts, if the subject is right: the generator sees only the model, and with
//!    several actors not even that. Test: `broken.rs`, a replayed seed finds the same.
//! 5. Overlapping operations have no assumed order: intervals are counted by one counter, and a search finds
//!    an order. Test: `broken_concurrent.rs`, printed scripts never fail without the mistake.
//!
//! Other suites: the crash explorer and the kill tests check C4 (values across crashes).
//! `tests/suite/cost.rs` checks C5 (the cost of changes).

#![forbid(unsafe_code)]

mod bracketed_reads;
mod check;
mod clients;
mod concurrent;
mod generate;
mod inprocess;
mod model;
mod mounted;
pub mod op;
mod promise;
mod run;
mod served;
mod shared_inode;
mod snapshots;
mod subject;

pub use bracketed_reads::observe;
pub use check::{Broken, Make, Report, check, replay};
pub use clients::{Asked, Clients, MakeClient, Role};
pub use concurrent::{
    BrokenTogether, Figures, Phase, REPEATS, Script, Together, check_together, replay_together,
};
pub use inprocess::{InProcess, MountedVfs, ServerValue};
pub use mounted::{ChangeSource, Mounted, Remount};
pub use op::Op;
pub use promise::{Promise, Tallies, Tally};
pub use run::Failure;
pub use served::{Restart, Served};
pub use subject::{Claims, Limits, Refused, Result, Seen, SharedFile, Subject};
