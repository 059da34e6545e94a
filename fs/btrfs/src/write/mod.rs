//! Writing: transactions of copy-on-write trees. `docs/btrfs.md` has the invariants and the argument for
//! crashes.
//!
//! | module | contents |
//! |---|---|
//! | `ranges`, `groups` | sets of ranges; block groups, free and pinned space, allocation |
//! | `load`, `free_space` | opening for writing; the free-space tree |
//! | `tree` | copy on write; inserting, replacing and removing items |
//! | `refs`, `extents`, `checksums` | references that wait; the extent tree; checksums of data |
//! | `chunks`, `commit` | new chunks; commits and superblocks |
//! | `session` | beginning a change, space for it, failures, the commit timer |
//! | `inodes`, `names`, `attributes` | inode items; entries of directories; extended attributes |
//! | `contents`, `file` | extents of files; write-back, truncation, reservations |
//! | `allocation`, `clones` | preallocated extents and holes; files that share extents |
//! | `removal`, `epoch` | deleting inodes, and those that a crash left; the epoch record |

mod allocation;
mod attributes;
mod checksums;
mod chunks;
mod clones;
mod commit;
mod contents;
mod epoch;
mod extents;
mod file;
mod free_space;
pub(crate) mod groups;
mod inodes;
mod load;
mod names;
pub(crate) mod ranges;
pub(crate) mod refs;
mod removal;
mod session;
mod tree;

use crate::filesystem::Btrfs;
use crate::layout::superblock::Superblock;
use chunks::NewChunk;
use groups::Groups;
pub(crate) use inodes::prepare;
pub(crate) use names::LINKS_MAX;
use refs::Refs;
pub(crate) use session::{Need, Session};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The state of a filesystem that is open for writing.
pub(crate) struct Live {
    /// The running transaction.
    pub transid: u64,
    pub groups: Groups,
    pub refs: Refs,
    /// Blocks of trees that the running transaction allocated: nothing durable leads to them.
    pub fresh: HashSet<u64>,
    /// Trees whose roots moved since their items were stored.
    pub changed_roots: BTreeSet<u64>,
    pub new_chunks: Vec<NewChunk>,
    /// The running transaction has something to commit.
    pub changed: bool,
    /// The superblock of each device, by number.
    pub supers: Vec<(u64, Vec<u8>)>,
    pub chunk_uuid: [u8; 16],
    /// The chunks in the superblock.
    pub sys_chunks: Vec<u8>,
    pub is_skinny: bool,
    pub has_free_space_tree: bool,
    /// The tree with the items of block groups.
    pub group_tree: u64,
    /// The next inode number of each subvolume.
    pub next_objectid: HashMap<u64, u64>,
    /// Bytes of data that are reserved.
    pub reserved: u64,
}

/// Changes of the running transaction. Nobody else reads or changes trees meanwhile.
pub(crate) struct Tx<'a> {
    pub fs: &'a Btrfs,
    pub live: &'a mut Live,
}

impl<'a> Tx<'a> {
    pub(crate) fn sb(&self) -> &'a Superblock {
        &self.fs.forest.volume.sb
    }
}
