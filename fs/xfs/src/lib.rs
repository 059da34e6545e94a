//! The XFS driver. It reads versions 4 and 5, and writes version 5.
//!
//! [`Xfs::open`] checks an image, replays a dirty log, and returns a filesystem for `ivers_vfs::Vfs::mount`.
//! `docs/xfs.md` explains the format's bits, what is refused, and how it writes.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | on-disk structures, their checks, the arithmetic of addresses; no I/O |
//! | `search` | binary search |
//! | `unit`, `source` | verified blocks; where they are read from |
//! | `btree`, `fork` | B-trees of inodes and extents; where the blocks of a fork are |
//! | `inode`, `loading` | inodes; how they are found and loaded |
//! | `heads`, `ag` | heads of allocation groups; lists of unlinked inodes |
//! | `da` | hash trees of names, for directories and attributes |
//! | `dir`, `attr`, `symlink`, `file` | names, extended attributes, link targets, data |
//! | [`mod@log`] | finding the log's end, replay, and writing the log |
//! | `open`, `geometry_facts`, `driver` | opening; what `ivers info` shows; the interface to the VFS |
//! | `write` | changes: transactions, space, inodes, forks, names |
//! | `sharing` | which blocks files share |
//! | `live`, `delayed` | the open filesystem, and changes through the VFS; delayed allocation |
//! | [`mkfs`], `label` | making a filesystem; setting its label |
//! | [`check`] | the checker |
//!
//! A filesystem that is only read has no locks: nothing that it keeps changes. Those of a writable one are in
//! `docs/xfs.md`.

#![forbid(unsafe_code)]

// The helpers of the tests in `tests/common` name the crate.
#[cfg(test)]
extern crate self as ivers_xfs;

mod ag;
mod attr;
mod btree;
pub mod check;
mod da;
mod delayed;
mod dir;
mod driver;
mod file;
mod fork;
mod geometry_facts;
mod heads;
mod inode;
mod label;
pub mod layout;
mod live;
mod loading;
pub mod log;
pub mod mkfs;
mod open;
mod search;
mod sharing;
mod source;
mod symlink;
mod unit;
mod write;

pub use label::set_label;
pub use live::Xfs;
pub use open::{OpenOptions, probe};
