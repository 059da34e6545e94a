//! Structures on the device: their fields, checked once, and the arithmetic of addresses. No I/O.
//!
//! Field names are those of Linux' `fs/ocfs2/ocfs2_fs.h`. All numbers are little-endian. Most structures take
//! one block, begin with a signature, and have their own block number and the generation of the filesystem.
//! Addresses count blocks; extents and the bitmap of the filesystem count clusters.

pub mod blockcheck;
pub mod bytes;
pub mod dinode;
pub mod directory;
pub mod extents;
pub mod group;
pub mod name_hash;
pub mod shape;
pub mod superblock;
pub mod xattr;
