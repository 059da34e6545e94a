//! The XFS driver and its journal, with crashes.
//!
//! Promise: what a crash leaves is a whole filesystem: the log is replayed, and the checker finds nothing. A
//! file has what was durable, or later contents, and no bytes of another file; a name that moves is in one
//! place; no change attribute from before the crash stands for other contents. At the end of each schedule a
//! crash after a `sync`, and an unmount, leave exactly what the mount showed.
//!
//! | module | races |
//! |---|---|
//! | `data` | write-back, truncation, growth, modes, copy on write, files without names |
//! | `names` | create, link, unlink and rename of the same names; link counts and the change attribute |
//! | `space` | two groups of a filesystem that is nearly full; short files that claim blocks |
//! | `log` | the tail of a small log; blocks and inodes that leave memory |
//!
//! The image has two groups of the least size, and a log of 1 or 4 MiB, which only these tests make.
//!
//! What the planted mistakes in `mutants` look like:
//!
//! | mistake | what was seen |
//! |---|---|
//! | a loaded inode is read from its cluster before the log | a name refers to an inode that is free |
//! | a change takes the locks of its inodes in any order | the ranks panic in the first schedule |
//! | the counter moves before the transaction of the change | a value stands for 3 and for 4 links |
//! | a buffer may leave the cache before it is in place | a read finds the old block: a wrong checksum |
//! | an inode is copied before it is logged, and changes meanwhile | after a crash, a file lost its blocks |
//! | an fsync flushes data only if the inode was logged | after a crash, a file has older contents |
//! | a file gets blocks that are not durably free | after a crash, a file has the words of another one |
//! | a block is overwritten that a crash shares again | after a crash, a file has later words of another |
//! | an allocation takes blocks that a file has claimed | the transaction of that file reports damage |

mod data;
mod files;
mod log;
mod names;
mod space;

/// A schedule takes about ten times as long as one of the VFS alone.
const SLOWER: usize = 5;
