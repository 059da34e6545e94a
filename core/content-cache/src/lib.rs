//! Contents of remote files on local disk, which outlive the mount. See `docs/nfs.md`, "Persistent cache".
//!
//! A driver stores bytes under a [`FileKey`] and a version of the file, and finds them again under the same
//! two. It promises that a version stands for one content forever; this crate knows nothing else of it.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | places and records in the file |
//! | `place` | the directory and the file: whose they are, and who uses them |
//! | `cache` | reading and storing |
//!
//! The cache is one file of a fixed size. The process that uses it needs no other file: it may enter a
//! sandbox after [`ContentCache::open`].

#![forbid(unsafe_code)]

mod cache;
mod layout;
mod place;

pub use cache::{ContentCache, Counts, Found};
pub use layout::{BLOCK_BYTES, FileKey};
pub use place::{BYTES_MIN, OpenError};
