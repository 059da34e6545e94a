//! Images that others made or damaged: what ivers reads, finds and refuses.

mod check;
mod cold_walk;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod images;
mod kernel;
mod label;
mod reader;
