//! The VFS, tested through the smallest driver.

mod blocks;
mod clone;
mod counting;
mod eviction;
mod expected_names;
mod posix;
mod threads;
