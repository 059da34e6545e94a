//! Changes: transactions, space and inodes. Nothing here knows files, directories or attributes.
//!
//! A [`Tx`] collects changes and publishes all of them at its end. Until then nobody sees them, so an error
//! needs no undo: dropping the transaction is enough.
//!
//! | module | contents |
//! |---|---|
//! | `space`, `busy` | what all transactions share: the lock of the groups, counters, busy runs |
//! | `tx`, `credits` | the transaction: units of blocks, and when changes become visible; what it may log |
//! | `deferred`, `intents` | work at the end of a transaction, and the records that promise it |
//! | `group` | heads of groups |
//! | `tree`, `tree_block` | B-trees of groups |
//! | `free_space`, `free_list`, `alloc` | free space, and allocation |
//! | `owner`, `rmap`, `refcount` | owners of blocks; the reverse map; reference counts |
//! | `inodes`, `unlinked` | inodes and their chunks; lists of unlinked inodes |
//! | `counters` | counters of the superblock |
//! | `runs` | what the code of files asks for |

pub(crate) mod alloc;
mod busy;
mod counters;
mod credits;
mod deferred;
mod free_list;
mod free_space;
mod group;
mod inodes;
pub(crate) mod intents;
mod owner;
mod refcount;
mod rmap;
mod runs;
pub(crate) mod space;
#[cfg(test)]
mod tests;
mod tree;
mod tree_block;
pub(crate) mod tx;
mod unlinked;
