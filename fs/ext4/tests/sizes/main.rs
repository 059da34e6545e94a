//! Growing, shrinking and full filesystems.

#[path = "../common/mod.rs"]
mod common;
mod full;
mod grow_online;
mod resize;
mod shrink;
