//! The driver of OCFS2, the cluster filesystem of Linux: for local filesystems, and for those of a cluster
//! that no node has mounted. It only reads.
//!
//! [`Ocfs2::open`] checks an image and returns a filesystem for `ivers_vfs::Vfs::mount`. `docs/ocfs2.md`
//! describes the format, and what is refused.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | structures on the device, their checks, the arithmetic of addresses; no I/O |
//! | `volume` | the open filesystem, its blocks and inodes, checksums |
//! | `map`, `file` | where the clusters of a file are; its contents |
//! | `dir`, `xattr` | names; extended attributes |
//! | `system` | system files: the cluster, the journals |
//! | `open`, `driver` | opening; the interface to the VFS |
//! | [`check`] | the checker |
//!
//! The driver has no locks: nothing that it keeps changes after it is opened, except a hint in each directory
//! and a count.
//!
//! # Change attribute
//!
//! The format has no place for a change counter, so every inode is loaded with
//! [`InitialCounter::NotStored`](ivers_vfs::InitialCounter::NotStored). The change attribute is valid while
//! the inode stays in memory, at most until unmount.

#![forbid(unsafe_code)]

pub mod check;
mod dir;
mod driver;
mod file;
pub mod layout;
mod map;
mod open;
mod system;
mod volume;
mod xattr;

pub use open::{OpenOptions, PROBE_BYTES, probe};
pub use volume::Ocfs2;
