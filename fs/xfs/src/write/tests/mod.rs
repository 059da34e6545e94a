//! Random changes of images of all kinds without a log; xfs_repair, our checker and Linux judge the results.

#[path = "../../../tests/common/mod.rs"]
mod common;
mod harness;
mod hostile;
mod inodes;
mod sharing;
mod space;
mod stamp;
mod trees;
