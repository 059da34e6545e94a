//! The virtual filesystem: what is the same for every format. Inodes and their caches, names and permissions, pages and
//! write-back, times, and the update path of the change attribute.

#![forbid(unsafe_code)]

pub mod driver;
pub mod epoch;
pub mod error;
pub mod inode;
pub mod policy;
pub mod stats;
pub mod types;
mod pages;

pub use driver::{FileSystem, FsInfo, InitialVersion, LoadedInode, NewInode, Rename, XattrMode};
pub use error::{Error, NameError, Result};
pub use inode::{Dirtied, Inode, Logged, Touch};
pub use policy::{AtimeMode, ChangeMode, Clock, CoarseClock, ManualClock, Policy};
pub use stats::{Stats, StatsSnapshot};
pub use types::*;
