//! The driver of OCFS2, the cluster filesystem of Linux: for local filesystems, and for those of a cluster
//! that no node has mounted.
//!
//! [`Ocfs2::open`] checks an image and returns a filesystem for `ivers_vfs::Vfs::mount`. `docs/ocfs2.md`
//! describes the format, how it is written, the locks, and what is refused.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | structures on the device, their checks, the arithmetic of addresses; no I/O |
//! | `volume` | the open filesystem, its blocks and inodes, checksums |
//! | `space`, `change`, `alloc` | free space; transactions; taking and freeing clusters and blocks |
//! | `map`, `tree` | where the clusters of a file are; changing that |
//! | `file`, `write`, `fallocate` | contents of files |
//! | `dir`, `index`, `names` | directories and their indexes |
//! | `xattr`, `attributes` | extended attributes |
//! | `inode` | making, linking, renaming and deleting inodes |
//! | `system`, `recover` | system files: the cluster, the journals; what crashes left |
//! | `open`, `driver` | opening; the interface to the VFS |
//! | [`check`] | the checker |
//!
//! # Change attribute
//!
//! The format has no place for a change counter, so every inode is loaded with
//! [`InitialCounter::NotStored`](ivers_vfs::InitialCounter::NotStored). The change attribute is valid while
//! the inode stays in memory, at most until unmount.

#![forbid(unsafe_code)]

mod alloc;
mod attributes;
mod change;
pub mod check;
mod dir;
mod driver;
mod fallocate;
mod file;
mod index;
mod inode;
pub mod layout;
mod map;
mod names;
mod open;
mod recover;
mod space;
mod system;
mod tree;
mod volume;
mod write;
mod xattr;

pub use open::{OpenOptions, PROBE_BYTES, probe};
pub use volume::Ocfs2;
