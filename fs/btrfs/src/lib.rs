//! The btrfs driver.
//!
//! [`Btrfs::open`] checks the images of all devices, and returns a filesystem for `ivers_vfs::Vfs::mount`.
//! `docs/btrfs.md` explains the format's bits and what is refused.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | on-disk structures, their checks, the arithmetic of addresses; no I/O |
//! | `devices`, `volume` | superblocks and devices; logical addresses and their copies |
//! | `node_cache`, `dirty_nodes` | blocks of trees in memory, as stored and as changed |
//! | `tree`, `chunks` | finding and visiting items; finding the chunks |
//! | `numbers`, `subvolume` | inode numbers; subvolumes and their names |
//! | `subvolume_list` | listing subvolumes |
//! | `inode`, `names`, `xattr` | inodes, directories, extended attributes |
//! | `compress`, `compressor` | decompressing and compressing extents |
//! | `decompressed` | the extents that were decompressed last |
//! | `data`, `file` | checked data; contents of files |
//! | `ranges`, `live` | sets of ranges; what a writer has in memory |
//! | `write` | transactions, and everything that changes |
//! | `interrupted_commit` | a device without the superblock of the last commit |
//! | `filesystem`, `open`, `driver` | what is open; opening; the interface to the VFS |
//! | [`check`], [`mkfs`] | the checker and the scrub; making filesystems |

#![forbid(unsafe_code)]

pub mod check;
mod chunks;
mod compress;
mod compressor;
mod data;
mod decompressed;
mod devices;
mod dirty_nodes;
mod driver;
mod file;
mod filesystem;
mod inode;
mod interrupted_commit;
pub mod layout;
mod live;
pub mod mkfs;
mod names;
mod node_cache;
mod numbers;
mod open;
mod ranges;
mod subvolume;
mod subvolume_list;
mod tree;
mod volume;
mod write;
mod xattr;

pub use compressor::CompressWith;
pub use devices::{DeviceId, device_id};
pub use filesystem::Btrfs;
pub use open::{OpenOptions, PROBE_BYTES, probe};
pub use subvolume::Subvolume;
