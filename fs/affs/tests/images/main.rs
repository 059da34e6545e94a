//! Volumes: checked, damaged, and written by others.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod evicted;
mod hostile;
mod volumes;
