//! Changes: transactions, space, forks, directories, attributes.
//!
//! A [`tx::Tx`] collects changes and publishes all of them at its end. Until then nobody sees them, so an
//! error needs no undo: dropping the transaction is enough. An inode that is changed is a clone of the one
//! that others see; the caller puts the clone in its place when the transaction is published.
//!
//! | module | contents |
//! |---|---|
//! | `space`, `busy` | what all transactions share: the lock of the groups, counters, busy runs |
//! | `tx`, `credits` | the transaction: units of blocks, and when changes become visible; what it may log |
//! | `works`, `deferred`, `finish` | work at the end of a transaction |
//! | `intents`, `found_intents` | the records that promise such work; those that recovery found |
//! | `map_intents`, `parent_intents` | mappings and parent pointers that a log of Linux promises |
//! | `extent`, `group` | runs of blocks in a group; heads of groups |
//! | `tree`, `tree_block` | B-trees of groups |
//! | `free_space`, `find`, `free_list`, `alloc` | free space, the search for it, allocation |
//! | `windows` | space for files that grow |
//! | `claims`, `pools` | free blocks that get data before a transaction takes them |
//! | `owner`, `rmap`, `refcount` | owners of blocks; the reverse map; reference counts |
//! | `inodes`, `unlinked` | inodes and their chunks; lists of unlinked inodes |
//! | `counters` | counters of the superblock |
//! | `runs` | what the code of files asks for |
//! | `inode` | inodes that are changed: encoding, logging, new ones |
//! | `fork`, `bmbt` | maps of forks: extents, and B-trees of them |
//! | `hash_tree`, `node` | hash trees, which directories and attributes share |
//! | `dir`, `hashes` | directories in all forms |
//! | `attr` | extended attributes in all forms |
//! | `symlink` | targets of symbolic links |
//! | `names` | operations of a user: create, link, unlink, rename, exchange |

pub(crate) mod alloc;
mod attr;
mod bmbt;
mod busy;
pub(crate) mod claims;
mod counters;
mod credits;
mod deferred;
pub(crate) mod dir;
mod extent;
mod find;
mod finish;
pub(crate) mod fork;
mod found_intents;
mod free_list;
mod free_space;
mod group;
mod hash_tree;
mod hashes;
pub(crate) mod inode;
mod inodes;
mod intents;
mod map_intents;
pub(crate) mod names;
mod node;
mod owner;
mod parent_intents;
mod pools;
mod refcount;
mod rmap;
mod runs;
pub(crate) mod space;
mod spare;
mod symlink;
#[cfg(test)]
mod tests;
mod tree;
mod tree_block;
pub(crate) mod tx;
mod unlinked;
pub(crate) mod windows;
mod works;
