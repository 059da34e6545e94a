//! The driver of UFS1 and UFS2, the filesystems of the BSDs, in both byte orders.
//!
//! [`Ufs::open`] checks an image and returns a filesystem for `ivers_vfs::Vfs::mount`. `docs/ufs.md`
//! describes the format, what is refused, and the order of writes.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | structures on the device, their checks, the arithmetic of addresses; no I/O |
//! | `head` | the superblock of a device |
//! | `alloc` | free space and inodes; the mark of an open session |
//! | `volume` | the open filesystem, its fragments and inodes; changes of them |
//! | `map`, `file` | where the blocks of a file are; its contents |
//! | `reserve`, `write`, `allocate` | space for dirty pages; writing and shrinking files; `fallocate` |
//! | `dir`, `xattr` | reading names; extended attributes |
//! | `names`, `inode`, `rename` | changing names; making, linking and deleting inodes; renames |
//! | `open`, `recover`, `driver` | opening; recovery after a crash; the interface to the VFS |
//! | `label` | setting the label |
//! | [`check`] | the checker |
//!
//! # Locks
//!
//! In order; ARCHITECTURE.md has the ranks of all locks:
//!
//! | rank | lock |
//! |---|---|
//! | `Handle` | an open change |
//! | `Driver<0>` | the state of an inode, of one at a time |
//! | `Driver<10>` | the groups and counts |
//!
//! # Change attribute
//!
//! The format has no place for a change counter that other systems leave alone, so every inode is loaded with
//! [`InitialCounter::NotStored`](ivers_vfs::InitialCounter::NotStored). The change attribute is valid while
//! the inode stays in memory, at most until unmount.

#![forbid(unsafe_code)]

mod alloc;
mod allocate;
pub mod check;
mod dir;
mod driver;
mod file;
mod head;
mod inode;
mod label;
pub mod layout;
mod map;
pub mod mkfs;
mod names;
mod open;
mod recover;
mod rename;
mod reserve;
mod volume;
mod write;
mod xattr;

pub use head::{PROBE_BYTES, probe};
pub use label::set_label;
pub use open::OpenOptions;
pub use volume::Ufs;
