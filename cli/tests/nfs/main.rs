//! The NFS server and the NFS client of the command.

#[path = "../common/mod.rs"]
mod common;
mod nfs_changed;
mod nfs_client;
mod nfs_delegations;
mod reload;
mod serve;
mod serve_files;
mod serve_formats;
