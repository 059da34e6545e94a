//! Random changes of images of all kinds without a log; xfs_repair, our checker and Linux judge the results.

mod claims;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod crash;
mod fixture;
mod harness;
mod hostile;
mod hostile_names;
mod inodes;
mod mappings;
mod names;
mod parents;
pub(super) mod samples;
mod sharing;
mod space;
mod trees;
mod walks;
