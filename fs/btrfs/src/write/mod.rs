//! Writing: transactions of copy-on-write trees. `docs/btrfs.md` has the invariants and the argument for
//! crashes.
//!
//! | module | contents |
//! |---|---|
//! | `tx` | the running transaction |
//! | `load`, `free_space` | opening for writing; the free-space tree |
//! | `tree` | copy on write; inserting, replacing and removing items |
//! | `extents`, `checksums` | the extent tree; checksums of data |
//! | `chunks`, `commit` | new chunks; commits and superblocks |
//! | `change` | beginning a change, space for it, failures, the commit timer |
//! | `unshare` | copying shared blocks before a change, while space is short |
//! | `inodes`, `names`, `attributes` | inode items; entries of directories; extended attributes |
//! | `contents`, `file` | extents of files; write-back, truncation, reservations |
//! | `packing` | compressing data before it is written; the property of compression |
//! | `allocation`, `clones` | preallocated extents and holes; files that share extents |
//! | `log_tree` | writing the log tree: fsync of a file without a commit |
//! | `replay`, `replay_names` | replaying a log tree that a crash left |
//! | `subvolumes`, `dropping` | making and deleting subvolumes; dropping their trees |
//! | `removal`, `epoch` | deleting inodes, and those that a crash left; the epoch record |

mod allocation;
mod attributes;
mod change;
mod checksums;
mod chunks;
mod clones;
mod commit;
mod contents;
mod dropping;
mod epoch;
mod extents;
mod file;
mod free_space;
mod inodes;
mod load;
mod log_tree;
mod names;
mod packing;
mod removal;
mod replay;
mod replay_names;
mod subvolumes;
#[cfg(test)]
mod tests;
mod tree;
mod tx;
mod unshare;

pub(crate) use change::Need;
pub(crate) use inodes::prepare;
pub(crate) use names::LINKS_MAX;
pub(crate) use packing::PROPERTIES;
pub(crate) use tx::Tx;
