//! The driver of ext2, ext3 and ext4.
//!
//! [`Ext4::open`] checks an image, replays its journal and returns a filesystem for `ivers_vfs::Vfs::mount`.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | on-disk structures, decoded into checked types; no I/O |
//! | `fs`, `transaction` | the opened filesystem; its transactions |
//! | `open`, `driver` | mounting; operations on the filesystem and on inodes |
//! | `groups`, `balloc`, `ialloc` | bitmaps; allocation of blocks and inodes |
//! | `inode_io`, `orphan`, `epoch` | reading and logging inodes; orphans; the epoch record |
//! | `system_zone` | blocks of the filesystem's own structures, which no file may refer to |
//! | `map`, `journal_bmap` | block maps and file data; the journal's map |
//! | `dir`, `xattr` | names; extended attributes |
//! | `mkfs`, `resize` | making a filesystem; growing and shrinking it |
//! | [`check`] | the checker, which trusts none of the modules above but `layout` |

#![forbid(unsafe_code)]

mod balloc;
mod bootloader;
pub mod check;
mod dir;
mod driver;
mod epoch;
pub mod fs;
mod groups;
mod ialloc;
mod inode_io;
mod journal_bmap;
pub mod layout;
mod map;
pub mod mkfs;
mod new_groups;
mod open;
mod orphan;
pub mod resize;
mod system_zone;
pub mod transaction;
mod xattr;

pub use fs::Ext4;
pub use layout::superblock::probe;
pub use open::OpenOptions;
