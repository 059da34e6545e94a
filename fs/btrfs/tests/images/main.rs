//! Images that others made or damaged, and those that ivers makes.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod hostile;
mod interrupted;
mod kernel;
mod mkfs;
mod scrub;
