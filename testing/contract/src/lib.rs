//! The contract of the change attribute, held against any backend: random operations beside a simple model, one after the other
//! ([`check`]) and by several actors at the same time ([`check_together`]), writers beside counters ([`observe`]), and every failure
//! cut down to a short script.
//!
//! # Why it is built so
//!
//! The contract is about observers. So the suite sees a backend as an observer does: files that can be changed, looked at and
//! asked for their value. That is all that [`Subject`] has, and it is little enough that a filesystem in this process
//! ([`InProcess`]), a directory that the kernel has mounted ([`Mounted`]) and an export of an NFSv4 server ([`Served`]) are held to the same sentences by the same code; the
//! kernel's own filesystems too, with ctime taken for the value. What cannot be seen from there (how often an inode is
//! logged, what a crash leaves) has suites of its own.
//!
//! The model knows of each file what it holds and what a query last showed, and whether anything has happened to it since. So
//! it can say before a query what it must answer: something larger, the same, or (where a call changed nothing that shows, or a
//! promise ends by design) either. An operation that must fail is tried too, and must then have changed nothing. What caches and
//! write-back do meanwhile is the backend's affair: syncs, evictions and remounts are operations that change nothing.
//!
//! Operations name files; they never refer to results. So each part of a script is a script, and a failure can be shortened by
//! leaving operations out and trying again from the first state. What is printed is Rust: paste it into a call of [`replay`].
//!
//! # Promises and claims
//!
//! A backend says which promises it keeps ([`Subject::claims`]). A broken promise that was claimed is a failure. One that was not
//! claimed is counted, and [`Tallies::kept_unclaimed`] names those that were put to the test and never broke: the backend could
//! claim more. [`Limits`] are not promises: they say where a promise ends by design, and each is in the documents.
//!
//! # Invariants
//!
//! | # | statement | kept by | test |
//! |---|---|---|---|
//! | 1 | any part of a script is a script | `model::judge` answers `Skip` where an operation has lost its meaning | `broken.rs`: each failure shrinks |
//! | 2 | the model changes only after the subject succeeded | `run::apply_one` | every run looks at everything at its end |
//! | 3 | a promise is judged only by values that the subject answered | `run::query`, `run::infos` | `broken.rs`: each planted mistake is found as what it is |
//! | 4 | equal seed, equal script, whatever the subject does right | the generator sees the model alone, that of several actors not even that | `broken.rs`: a replayed seed finds the same |
//! | 5 | of operations that overlap no order is assumed | intervals by one counter, and a search for an order | `broken_together.rs`: what is printed never fails without the mistake |
//!
//! Not here: C4 (values across crashes) is the crash explorer's and the kill tests'; C5 (what changes cost) is counted in
//! `tests/cost.rs`.

#![forbid(unsafe_code)]

mod actors;
mod check;
mod concurrent;
mod generate;
mod inprocess;
mod model;
mod mounted;
pub mod op;
mod promise;
mod run;
mod served;
mod subject;

pub use actors::{
    BrokenTogether, Figures, Phase, REPEATS, Script, Together, check_together, replay_together,
};
pub use check::{Broken, Make, Report, check, replay};
pub use concurrent::observe;
pub use inprocess::{InProcess, MountedVfs};
pub use mounted::{Cookie, Mounted, Remount};
pub use op::Op;
pub use promise::{Promise, Tallies, Tally};
pub use run::Failure;
pub use served::{Restart, Served};
pub use subject::{Claims, Limits, Refused, Result, Seen, SharedFile, Subject};
