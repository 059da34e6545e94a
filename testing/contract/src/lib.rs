//! The contract of the change attribute, checked by random operations against a simple model, over anything behind
//! [`ivers_vfs::Vfs`].
//!
//! The model knows of each inode its contents and what was last seen of its attribute, and whether anything that counts
//! has happened to it since. Then a query must show another, larger value if something has (C1, C2) and the same value if nothing
//! has (C3), whatever the caches and write-back did in between. [`run_concurrent`] holds C6 against real threads.
//!
//! A failure prints the seed; the same seed replays the same operations.

mod concurrent;
mod model;

pub use concurrent::run_concurrent;
pub use model::{Plan, Report, run};
