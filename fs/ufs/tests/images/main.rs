//! Images that makefs makes: read, checked, damaged, changed.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod explore;
mod kernel;
mod mkfs;
mod read;
mod sleuthkit;
mod write;
