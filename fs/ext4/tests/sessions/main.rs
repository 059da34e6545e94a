//! Sessions that change a filesystem: files, names, commits and orphans.

mod bootloader;
mod commits;
#[path = "../common/mod.rs"]
mod common;
mod concurrent;
mod map;
mod names;
mod orphans;
mod session;
mod sync_flags;
