//! On-disk structures, one module each. Decoding checks them; this module does no I/O.

pub mod csum;
pub mod features;
pub mod group;
pub mod inode;
pub mod raw;
mod sizes;
pub mod slot_body;
pub mod superblock;

pub use features::{Compat, Incompat, RoCompat};
pub use group::GroupDesc;
pub use superblock::Superblock;
