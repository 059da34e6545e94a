//! On-disk structures: as bytes, and as values that are checked once. No I/O.
//!
//! Sources: the page "On-disk Format" of btrfs.readthedocs.io (its field names are used here), the pages of
//! its manual, and images that mkfs.btrfs 6.2 and Linux 6.18 made, as `btrfs inspect-internal` prints them.

pub(crate) mod bytes;
pub mod checksum;
pub(crate) mod chunk;
pub(crate) mod edit;
pub(crate) mod extent_item;
pub mod features;
pub(crate) mod items;
pub(crate) mod key;
pub(crate) mod node;
pub mod raw;
pub mod superblock;
