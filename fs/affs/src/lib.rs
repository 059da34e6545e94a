//! The AFFS driver: OFS and FFS, the Amiga's filesystems; plain, international and with directory caches.
//!
//! [`Affs::open`] finds a volume in a floppy or hard disk image, checks it, and returns a filesystem for
//! `ivers_vfs::Vfs::mount`. `docs/affs.md` explains the order of writes.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | on-disk structures, as bytes; no I/O |
//! | [`rdb`] | the partitions of a hard disk |
//! | `open`, `recover` | finding the root block; recovery after a crash |
//! | `volume` | the open volume: checked blocks, and changes of them |
//! | `bitmap` | free blocks, reservations, and the dirty mark |
//! | `names`, `rename`, `readdir` | directories: adding, removing, moving and listing names |
//! | `dircache` | the directory caches of `DOS\4` and `DOS\5` |
//! | `file`, `inode` | data; attributes |
//! | `driver` | the interface to the VFS |
//! | [`mkfs`] | making an empty volume |
//!
//! # Locks
//!
//! In order; ARCHITECTURE.md has the ranks of all locks:
//!
//! | rank | lock |
//! |---|---|
//! | `Handle` | an open change |
//! | `Driver<0>` | `chain_lock`: the hash chains |
//! | `Driver<10>` | the update lock of the directory caches |
//! | `Driver<15>` | the state of an inode: its block map and its reservation |
//! | `Leaf` | the bitmap, the last move, the generations, the stale records |

#![forbid(unsafe_code)]

mod bitmap;
pub mod check;
mod dircache;
mod driver;
mod file;
mod inode;
pub mod layout;
pub mod mkfs;
mod names;
mod open;
pub mod rdb;
mod readdir;
mod recover;
mod rename;
mod volume;

pub use open::{OpenOptions, probe};
pub use volume::Affs;
