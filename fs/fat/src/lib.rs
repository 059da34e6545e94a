//! The driver of FAT12, FAT16 and FAT32 with long names.
//!
//! [`Fat::open`] checks a volume and returns a filesystem for `ivers_vfs::Vfs::mount`.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | on-disk structures: the boot sector, directory entries, the FSInfo sector; no I/O |
//! | `cluster`, `chain` | cluster numbers; the clusters of one file |
//! | `fs` | the opened filesystem, its inodes in memory, its locks |
//! | `open`, `driver` | mounting; the operations that the VFS calls |
//! | `fat` | the file allocation table, allocation of clusters, the dirty mark |
//! | `dir`, `names` | directories; short and long names |
//! | `file` | file data |
//! | `ino_map` | inode numbers, which the format does not have |
//! | `time` | timestamps of directory entries |
//! | [`mkfs`] | making an empty volume |
//!
//! # Change attribute
//!
//! The format has no place for a change counter, so every inode is loaded with
//! [`InitialCounter::NotStored`](ivers_vfs::InitialCounter::NotStored). The change attribute is valid until
//! unmount. A file has several names that differ in case or are its short name;
//! [`FsInfo::names_alias`](ivers_vfs::FsInfo::names_alias) tells the VFS so, and the VFS keeps a cached name
//! only while the change attribute of the directory is unchanged.
//!
//! # Limits
//!
//! The format has no links, devices, owners or extended attributes. Unnamed files and RENAME_EXCHANGE are
//! refused, because no order of writes makes them safe against a crash. exFAT, FAT+ and Atari's variant are
//! other formats and are not supported.
//!
//! `docs/fat.md` describes the order of writes and what a crash leaves.
#![forbid(unsafe_code)]

mod chain;
pub mod check;
mod cluster;
mod dir;
mod driver;
mod fat;
mod file;
mod fs;
mod ino_map;
mod layout;
pub mod mkfs;
mod names;
mod open;
mod time;

pub use fs::Fat;
pub use layout::probe;
pub use open::OpenOptions;
