//! FAT12, FAT16 and FAT32 with long names, as mkfs.fat, Windows, cameras and firmware make them: read and written.
//!
//! # The change attribute
//!
//! The format has no room for one. Every inode is loaded as [`InitialCounter::NotStored`](ivers_vfs::InitialCounter::NotStored), so that the attribute differs,
//! grows and rests within a mount, and promises nothing across mounts. What Linux's vfat uses its own for, to know whether a
//! name that was not there before may be there now, is the VFS's work here: a name has several spellings
//! ([`FileSystem::names_alias`](ivers_vfs::FsInfo::names_alias)).
//!
//! # What it does not do
//!
//! Links, devices, owners, extended attributes: the format has none. Exchanging two names and making files without a name are refused, since neither can be done in an
//! order in which a crash loses nothing but space. Atari's variant, FAT+ and exFAT are other formats.
//!
//! The order of writes, with a table of what a crash leaves: docs/fat.md.
#![forbid(unsafe_code)]

mod chain;
mod cluster;
mod dir;
mod driver;
mod fat;
mod file;
mod layout;
mod names;
mod open;
mod places;
mod table;
mod time;

pub use fat::Fat;
pub use layout::probe;
pub use open::OpenOptions;
