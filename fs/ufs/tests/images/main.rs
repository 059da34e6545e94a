//! Images that makefs makes: read, checked, damaged.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod read;
