//! Structures on the device: their fields, checked once, and the arithmetic of addresses. No I/O.
//!
//! Field names are those of FreeBSD's `sys/ufs/ffs/fs.h` and `sys/ufs/ufs/dinode.h`. Addresses of the format
//! count fragments, the smallest unit of space.

mod bytes;
pub mod dinode;
pub mod directory;
pub mod group;
pub mod group_map;
pub mod superblock;

pub use bytes::{ByteOrder, Fields, FieldsMut};
