//! A persistent cache: contents of remote files on local disk, which outlive the mount. See `docs/nfs.md`,
//! "Persistent cache".
//!
//! A driver stores bytes under a [`FileKey`] and a version of the file, and finds them again under the same
//! two. A key and a version must stand for one content forever.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | the layout of the file |
//! | `place` | opening the directory and the file: ownership, permissions, the lock |
//! | `cache` | reading and storing |
//!
//! The cache is one file of a fixed size. After [`ContentCache::open`] a process may enter a sandbox: the
//! cache opens no further file.

#![forbid(unsafe_code)]

mod cache;
mod layout;
mod place;

pub use cache::{ContentCache, Counts, Found};
pub use layout::{BLOCK_BYTES, FileKey};
pub use place::{BYTES_MIN, OpenError};
