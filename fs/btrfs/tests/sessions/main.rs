//! Sessions that change a filesystem.

#[path = "../common/mod.rs"]
mod common;
mod compression;
mod full;
mod log;
mod log_written;
mod write;
