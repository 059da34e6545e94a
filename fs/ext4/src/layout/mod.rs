//! What lies on the device: one module an object. Decoding checks; nothing here does I/O.

pub mod csum;
pub mod features;
pub mod group;
pub mod inode;
pub mod raw;
mod sizes;
pub mod superblock;

pub use features::{Compat, Incompat, RoCompat};
pub use group::GroupDesc;
pub use superblock::Superblock;
