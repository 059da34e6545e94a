//! The virtual filesystem: inodes and their caches, names and permissions, pages and write-back, times, and
//! the update path of the change attribute. It is the same for every format.

#![forbid(unsafe_code)]

pub mod access;
pub mod acl;
pub mod check;
mod clone;
mod create;
mod dcache;
pub mod driver;
pub mod epoch;
pub mod error;
mod failure;
mod fallocate;
mod feature_list;
mod file_io;
mod grow;
mod icache;
pub mod inode;
mod ioctl;
mod label;
mod locked_ranges;
mod locks;
mod lookup;
mod lost_data;
mod memory;
mod name_index;
pub mod namespace;
mod open_hooks;
mod pages;
mod path_hints;
mod pending_deletes;
mod privileges;
pub mod raises;
mod remembered;
pub mod requests;
mod reservation_windows;
mod run_guard;
mod search_start;
mod sending;
mod served_epoch;
mod server;
mod setattr;
pub mod stats;
mod subvolumes;
pub mod types;
pub mod update_policy;
mod vfs;
pub mod writeback;
mod writeback_error;
mod xattr;

pub use access::Rights;
pub use driver::{
    AllocateOps, BlockMapOps, BlockPool, CacheHandle, Cause, Child, CloneOps, DirectoryOps, DirtyRun,
    DriverOptions, EpochOps, FileOps, FileSystem, FsInfo, GrowOps, Health, InitialCounter, InodeOps,
    IoctlOps, JournalOps, LabelOps, LoadedInode, LockConflict, LockOps, LockOwner, LockRequest, NewInode,
    Next, Rename, ReservedBlocks, ResizeReport, ServerOps, SubvolumeInfo, SubvolumeOps, UnnamedFileOps,
    Written, XattrMode, XattrOps,
};
pub use error::{Error, IoError, NameError, Result, ServerError};
pub use fallocate::Piece;
pub use feature_list::FeatureList;
pub use inode::{Dirtied, Inode, Logged, Touch};
pub use ivers_sync as sync;
pub use locked_ranges::LockedRanges;
pub use locks::LockListener;
pub use lookup::Listed;
pub use lost_data::{LossListener, LostFiles};
pub use name_index::{NameIndexes, NewIndex};
pub use namespace::Expected;
pub use open_hooks::{FileObserver, OpenMode};
pub use requests::*;
pub use reservation_windows::{ReservationWindows, Window, window_blocks};
pub use search_start::SearchStart;
pub use served_epoch::ServedEpoch;
pub use stats::{Stats, StatsSnapshot};
pub use types::*;
pub use update_policy::{AtimeMode, ChangeMode, Clock, CoarseClock, DeferredUpdates, ManualClock, Policy};
pub use vfs::{InodeRef, Vfs};
pub use writeback_error::ErrorCursor;
