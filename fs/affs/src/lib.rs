//! The Amiga's filesystems: OFS and FFS, plain, international and with directory caches.
//!
//! [`Affs::open`] finds a volume in a floppy or hard disk image, checks it, and gives a filesystem for `ivers_vfs::Vfs::mount`.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | the structures on the device, as bytes; no I/O |
//! | [`rdb`] | the partitions of a hard disk |
//! | `open`, `recover` | finding the root; a volume that was not closed |
//! | `volume` | the opened volume: checked blocks, and changes of them |
//! | `space` | the bitmap, and the mark that says whether it holds |
//! | `names`, `rename`, `listing` | directories: names that come and go, that move, and how they are listed |
//! | `dircache` | what `DOS\4` and `DOS\5` keep beside a directory |
//! | `file`, `node` | data, attributes |
//! | `driver` | the calls of the VFS |
//! | [`mkfs`] | an empty volume |
//!
//! Why writes go home in the order in which they do is told in `docs/affs.md`.

#![forbid(unsafe_code)]

mod dircache;
mod driver;
mod file;
pub mod layout;
mod listing;
pub mod mkfs;
mod names;
mod node;
mod open;
pub mod rdb;
mod recover;
mod rename;
mod space;
mod volume;

pub use open::{OpenOptions, probe};
pub use volume::Affs;
