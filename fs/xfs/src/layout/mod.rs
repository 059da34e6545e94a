//! On-disk structures: as bytes, and as values that are checked once. No I/O.
//!
//! Sources: "XFS Algorithms & Data Structures" (its field names are used here), the kernel's documentation of
//! XFS, and images that mkfs.xfs and Linux made.

pub(crate) mod attribute;
pub(crate) mod bytes;
pub mod checksum;
pub(crate) mod chunk;
pub(crate) mod dinode;
pub(crate) mod directory;
pub mod features;
pub(crate) mod owner;
pub mod raw;
pub mod superblock;
pub(crate) mod tree;
