//! The command on each format, and on partitions.

mod btrfs;
mod btrfs_devices;
mod command;
#[path = "../common/mod.rs"]
mod common;
mod ext4;
mod fuse2fs;
mod not_utf8;
mod ocfs2;
mod partition_commands;
mod partitions;
mod ufs;
mod xfs;
