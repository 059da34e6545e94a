//! Images that makefs, newfs and ivers make: read, checked, damaged, changed.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod explore;
mod freebsd;
mod kernel;
mod mkfs;
mod old;
mod read;
mod scale;
mod sleuthkit;
mod write;
