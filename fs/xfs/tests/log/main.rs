//! The log, written by a small driver: replayed by Linux and by ivers, read by xfs_logprint, and cut off at
//! every write.

#[path = "../common/mod.rs"]
mod common;

mod intents;
mod kernel;
mod power_cuts;
mod stopped;
mod volume;
