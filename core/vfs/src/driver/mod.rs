//! The interface between the VFS and a filesystem driver.
//!
//! The VFS owns what is the same for every format: names and permissions, caches, times, the change counter, dirty
//! states, write-back, the reaction to failures. A driver says how an inode is decoded and encoded, and how names and
//! blocks are found and changed. It opens its own transactions; the VFS never sees one. `docs/drivers.md` is the guide.
//!
//! A driver implements [`FileSystem`] and, on the same type, [`InodeOps`], [`DirectoryOps`] and [`FileOps`]. What only
//! some formats have is an optional interface, which the driver offers by an accessor of [`FileSystem`]:
//! [`XattrOps`], [`UnnamedFileOps`], [`BlockMapOps`], [`AllocateOps`], [`IoctlOps`], [`EpochOps`], [`JournalOps`],
//! [`ServerOps`].
//!
//! # Locks
//!
//! The VFS holds `Inode::lock` around driver calls.
//!
//! | held | calls |
//! |---|---|
//! | shared, on the inode named by the call | `lookup`, `parent`, `readdir`, `read_link`, `read`, `map`, `get_xattr`, `list_xattr` |
//! | exclusive, on every inode that the call changes | `create`, `create_unnamed`, `link`, `unlink`, `rename`, `truncate`, `fallocate`, `set_xattr`, `ioctl`, `prepare_setattr` |
//! | the write-back lock of the file | `write_back`, and `truncate`, `fallocate`, `ioctl`, `delete_inode` |
//! | exclusive or the write-back lock | `reserve`, `unreserve`, `log_inode` |
//! | none | `load_inode`, `evict_inode`, `fsync`, `commit_inode`, `sync`, `stat_fs`, `health`, `reclaim_space`, `unmount` |
//!
//! With [`ServerOps`] the calls in the first row that look up or read names (`lookup`, `parent`, `readdir`) come without a
//! lock, so that nobody waits for a round trip.
//!
//! `get_xattr` is also called without a lock, to read an access control list. Write-back runs beside `read` and `map`, so
//! a driver guards its own block map with a lock below these. Attributes are under a leaf lock (`Inode::attr`): call
//! nothing while you hold it.
//!
//! # Changes
//!
//! Every call that changes an inode (`create`, `link`, `unlink`, `rename`, `truncate`, `fallocate`, `set_xattr`,
//! `ioctl`) makes the change visible first and then calls [`Inode::changed`](crate::Inode::changed): with
//! [`Logged::Anyway`](crate::Logged::Anyway) if its transaction logs the inode in any case, otherwise with
//! [`Logged::IfNeeded`](crate::Logged::IfNeeded). In the second case it logs the inode only if the answer is
//! [`Dirtied::Log`](crate::Dirtied::Log). A call that returns an error has either changed nothing visible or called
//! `changed`.
//! Background work (allocation at write-back, cleaning up orphans) never calls it.
//!
//! # Errors
//!
//! | error | meaning | what the VFS does |
//! |---|---|---|
//! | [`Error::Name`](crate::Error::Name) | the request cannot be done; nothing is broken | passes it on |
//! | `NameError::NoSpace` | as above, and nothing is half done | waits for running deletions, calls [`FileSystem::reclaim_space`], tries once more |
//! | [`Error::FileData`](crate::Error::FileData) | the device could not read or write bytes of this file; the structures of the format are sound | write-back: records a write-back error of that file; otherwise passes it on |
//! | [`Error::Server`](crate::Error::Server) | the server is slow, unreachable or has lost state | passes it on; write-back tries again later |
//! | [`Error::Corrupt`](crate::Error::Corrupt), [`Error::Io`](crate::Error::Io) from a call that changes something | a structure of the format is damaged or could not be written | calls [`FileSystem::abort`]; nothing changes until the next mount |
//! | the same from a call that only reads | | passes it on |

mod directory;
mod file;
mod filesystem;
mod inode;
mod optional;
mod server;

pub use directory::{Child, DirectoryOps, Rename};
pub use file::FileOps;
pub use filesystem::{BlockPool, FileSystem, FsInfo, Health, ReservedBlocks};
pub use inode::{InitialCounter, InodeOps, LoadedInode, NewInode};
pub use optional::{
    AllocateOps, BlockMapOps, EpochOps, IoctlOps, JournalOps, UnnamedFileOps, XattrMode, XattrOps,
};
pub use server::{CacheHandle, LockOwner, LockRequest, ServerOps};
