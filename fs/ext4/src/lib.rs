//! ext2, ext3 and ext4.
//!
//! [`Ext4::open`] checks an image, replays its journal and gives a filesystem for `ivers_vfs::Vfs::mount`.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | the structures on the device, decoded into checked types; no I/O |
//! | `ctx` | the opened filesystem and its transactions |
//! | `open`, `driver` | mounting; the calls of the VFS |
//! | `groups`, `balloc`, `windows`, `ialloc` | group descriptors and bitmaps, blocks, room ahead of growing files, inodes |
//! | `inode_io`, `orphan`, `epoch` | inodes to and from the device; unlinked ones; the epoch record |
//! | `zones` | the filesystem's own blocks, which no inode may name |
//! | `map` | from file blocks to device blocks, and data |
//! | `dir`, `xattr` | names; extended attributes |

#![forbid(unsafe_code)]

mod balloc;
mod bootloader;
pub mod ctx;
mod dir;
mod driver;
mod epoch;
mod groups;
mod ialloc;
mod inode_io;
mod jmap;
pub mod layout;
mod map;
pub mod mkfs;
mod open;
mod orphan;
pub mod tx;
mod windows;
mod xattr;
mod zones;

pub use ctx::Ext4;
pub use open::OpenOptions;
