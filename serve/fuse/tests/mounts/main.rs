//! Real mounts.

mod change_attr;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod server;
mod session;
