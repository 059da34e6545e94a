//! The suite itself, and rules that it does not test.

mod blocks;
mod broken;
mod broken_concurrent;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod failed_writes;
mod write_outcome;
