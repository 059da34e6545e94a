//! Filesystems that the command makes, labels, resizes and checks.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod label;
mod mkfs;
mod mkfs_btrfs;
mod mkfs_from;
mod mkfs_xfs;
mod resize;
mod source_date_epoch;
