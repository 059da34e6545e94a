//! The interface between the VFS and a filesystem driver.
//!
//! The VFS owns what is the same for every format: names and permissions, caches, times, the change counter,
//! dirty states, write-back, the reaction to failures. A driver says how an inode is decoded and encoded, and
//! how names and blocks are found and changed. It opens its own transactions; the VFS never sees one.
//! `docs/drivers.md` is the guide.
//!
//! A driver implements [`FileSystem`] and, on the same type, [`InodeOps`], [`DirectoryOps`] and [`FileOps`].
//! What only some formats have is an optional interface, which the driver offers by an accessor of
//! [`FileSystem`]: [`XattrOps`], [`UnnamedFileOps`], [`BlockMapOps`], [`AllocateOps`], [`CloneOps`],
//! [`IoctlOps`], [`EpochOps`], [`LabelOps`], [`GrowOps`], [`JournalOps`], [`ServerOps`],
//! [`LockOps`], [`SubvolumeOps`].
//!
//! # Locks
//!
//! The VFS holds `Inode::lock`, shared or exclusive, and the write-back lock of a file around driver calls.
//! "Directories" means the directory named by the call, or both of a rename.
//!
//! | call | locks of the inodes that it names |
//! |---|---|
//! | `lookup` | shared; exclusive when a change looks its names up again |
//! | `parent`, `readdir` | shared; `parent` perhaps under the move lock of the mount |
//! | `read_link`, `list_xattr` | shared |
//! | `get_xattr` | shared or exclusive; none for access control lists |
//! | `read` | shared; exclusive for the rest of a page that is written |
//! | `read` of a page that is cut | exclusive and the write-back lock |
//! | `map` | shared or exclusive, perhaps with the write-back lock |
//! | `create`, `create_unnamed` | exclusive on the directory |
//! | `link`, `unlink`, `rename` | exclusive on the directories and the inodes that get or lose a name |
//! | `set_xattr`, `prepare_setattr` | exclusive |
//! | `set_label` | exclusive on the root |
//! | `SubvolumeOps::create` | exclusive on the directory |
//! | `SubvolumeOps::snapshot`, `delete` | exclusive on the directory and the root of the subvolume |
//! | `truncate`, `fallocate`, `ioctl` | exclusive and the write-back lock |
//! | `clone_range`, `copy_range` | exclusive on both, and both write-back locks |
//! | `reserve` | exclusive, perhaps with the write-back lock |
//! | `unreserve`, `log_inode` | exclusive, or the write-back lock |
//! | `write_back` | the write-back lock |
//! | `write_back` for direct reads and writes, `fallocate` | shared or exclusive, and the write-back lock |
//! | `delete_inode` | the write-back lock; its slot in the inode cache is busy |
//! | `load_inode`, `evict_inode`, `release_ino` | none; its slot in the inode cache is busy |
//! | `fsync`, `commit_inode`, `sync`, `stat_fs`, `describe`, `unmount`, `written` | none |
//! | `LockOps`, `SubvolumeOps::list` | none |
//! | `ServerOps` | none; `set_attr` of a size exclusive and the write-back lock |
//! | `ServerOps::changed` | exclusive, or the write-back lock |
//! | `fsync` of unstable writes, `ServerOps::catch_up` | none; under memory pressure those of a writer |
//! | `reclaim_space`, `abort` | those of the call that failed |
//! | `blocks_512`, `stored_atime`, `same_name`, `value_max`, `has_ioctl`, `contains` | any |
//! | `health`, `serves_change_attribute`, `stop_waiting`, `EpochOps`, `evict_blocks` | any |
//!
//! - With [`ServerOps`], `parent` and `readdir` come without locks, so that nobody waits for a round trip. So
//!   does `lookup`, unless the directory has changed between the lookup of a change and its locks.
//! - The thread may hold locks of other inodes: a writer under memory pressure writes back and evicts other
//!   files, and a lookup loads the inode that it found. So `write_back`, `log_inode`, `load_inode`,
//!   `delete_inode` and `evict_inode` wait for no lock of an inode other than their own.
//! - The calls that come under "any" are quick. They take leaf locks only, and no journal handle, except
//!   `EpochOps::raise`: it comes before a change and may write.
//! - Write-back runs beside `read` and `map`, so a driver guards its own block map with a lock below these.
//! - Attributes are under a leaf lock (`Inode::with_attr`): call nothing while you hold it.
//!
//! [`sync::rank`](crate::sync::rank) has the ranks of all locks. A driver whose locks are
//! [`RankedMutex`](crate::sync::RankedMutex) and [`RankedRwLock`](crate::sync::RankedRwLock) has them
//! checked in debug builds.
//!
//! # Changes
//!
//! Every call that changes an inode (`create`, `link`, `unlink`, `rename`, `truncate`, `fallocate`,
//! `clone_range`, `copy_range`, `set_xattr`, `ioctl`) makes the change visible first and then calls
//! [`Inode::changed`](crate::Inode::changed): with [`Logged::Anyway`](crate::Logged::Anyway) if its
//! transaction logs the inode in any case, otherwise with [`Logged::IfNeeded`](crate::Logged::IfNeeded). In
//! the second case it logs the inode only if the answer is [`Dirtied::Log`](crate::Dirtied::Log). A call
//! that returns an error has either changed nothing visible or called `changed`. Background work (allocation
//! at write-back, cleaning up orphans) never calls it.
//!
//! # Errors
//!
//! - [`Error::Name`](crate::Error::Name): the request cannot be done, and nothing is broken. The VFS passes
//!   it on. After a write-back the pages stay dirty with their reservation.
//! - `NameError::NoSpace`: the same, and nothing is half done. The VFS waits for running deletions, calls
//!   [`FileSystem::reclaim_space`], and tries once more. Writes, new names and attributes have a last try
//!   after all dirty data is written back, so a reservation may be for the worst case.
//! - [`Error::DataRefused`](crate::Error::DataRefused), from `write_back`: another try would not help (a
//!   quota, a server's refusal). The VFS drops the pages and records a write-back error of that file.
//! - [`Error::FileData`](crate::Error::FileData): the device could not read or write bytes of this file,
//!   the structures of the format are sound, and nothing is half done. In write-back the VFS does as above;
//!   otherwise it passes the error on. A file that `truncate` cuts is cut all the same, and its next fsync
//!   reports the error.
//! - [`Error::Server`](crate::Error::Server): the server is slow, unreachable or broken, or has lost state.
//!   The VFS passes it on; write-back tries again later.
//! - [`Error::Corrupt`](crate::Error::Corrupt), [`Error::Io`](crate::Error::Io): a structure of the format
//!   is damaged or could not be written. From a call that only reads, the VFS passes it on. From a call
//!   that changes something it calls [`FileSystem::abort`], and nothing changes until the next mount.

mod directory;
mod file;
mod filesystem;
mod inode;
mod locks;
mod optional;
mod options;
mod server;

pub use directory::{Child, DirectoryOps, Rename};
pub use file::{DirtyRun, FileOps, Next, Written};
pub use filesystem::{BlockPool, FileSystem, FsInfo, Health, ReservedBlocks};
pub use inode::{InitialCounter, InodeOps, LoadedInode, NewInode};
pub use locks::{LockConflict, LockOps, LockOwner, LockRequest};
pub use optional::{
    AllocateOps, BlockMapOps, CloneOps, EpochOps, GrowOps, IoctlOps, JournalOps, LabelOps, ResizeReport,
    SubvolumeInfo, SubvolumeOps, UnnamedFileOps, XattrMode, XattrOps,
};
pub use options::DriverOptions;
pub use server::{CacheHandle, Cause, ServerOps};
