//! The driver of UFS1 and UFS2, the filesystems of the BSDs, in both byte orders. It only reads.
//!
//! [`Ufs::open`] checks an image and returns a filesystem for `ivers_vfs::Vfs::mount`. `docs/ufs.md`
//! describes the format, and what is refused.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | structures on the device, their checks, the arithmetic of addresses; no I/O |
//! | `volume` | the open filesystem, its fragments and inodes |
//! | `map`, `file` | where the blocks of a file are; its contents |
//! | `dir`, `xattr` | names; extended attributes |
//! | `open`, `driver` | opening; the interface to the VFS |
//! | [`check`] | the checker |
//!
//! The driver has no locks: nothing that it keeps changes after it is opened, except a hint in each
//! directory.
//!
//! # Change attribute
//!
//! The format has no place for a change counter that other systems leave alone, so every inode is loaded with
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
mod volume;
mod xattr;

pub use open::{OpenOptions, PROBE_BYTES, probe};
pub use volume::Ufs;
