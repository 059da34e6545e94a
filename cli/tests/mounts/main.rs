//! Mounts: who may mount, the processes, permissions, and the end of a mount.

#[path = "../common/mod.rs"]
mod common;
mod examples;
mod fstab;
mod resize_mounted;
mod rights;
mod sandbox;
mod sandboxed_commands;
mod unmount;
mod user;
