//! Sessions that change a filesystem.

mod commits;
#[path = "../common/mod.rs"]
mod common;
mod full;
mod growing;
mod large_commit;
mod parents;
mod removal;
mod session;
mod sharing;
mod storm;
