//! The virtual filesystem: what is the same for every format. Inodes and their caches, names and permissions, pages and
//! write-back, times, and the update path of the change attribute.

#![forbid(unsafe_code)]

pub mod access;
pub mod acl;
pub mod api;
mod attr;
pub mod calendar;
mod create;
mod data;
mod dcache;
mod deletions;
pub mod driver;
pub mod epoch;
pub mod error;
mod format_call;
mod icache;
pub mod inode;
pub mod names;
mod opens;
mod pages;
mod places;
pub mod policy;
mod ranges;
pub mod stats;
pub mod sync;
pub mod types;
mod vfs;
mod walk;
pub mod writeback;
mod xattr;

pub use access::Rights;
pub use api::*;
pub use driver::{
    FileSystem, FsInfo, InitialVersion, LoadedInode, NewInode, Rename, Reserve, Room, XattrMode,
};
pub use error::{Error, NameError, Result};
pub use inode::{Dirtied, Inode, Logged, Touch};
pub use names::Meant;
pub use opens::{OpenMode, Watch};
pub use policy::{AtimeMode, ChangeMode, Clock, CoarseClock, HeldBack, ManualClock, Policy};
pub use ranges::Piece;
pub use stats::{Stats, StatsSnapshot};
pub use types::*;
pub use vfs::{InodeRef, Vfs};
pub use walk::Listed;
