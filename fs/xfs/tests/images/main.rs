//! Images that others made or damaged, and those that ivers makes.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod kernel;
mod label;
mod mkfs;
mod planted;
mod protofile;
