//! Sessions, and damaged images.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod session;
