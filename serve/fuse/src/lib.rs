//! The FUSE front end: mounts a [`Vfs`](ivers_vfs::Vfs) on a directory and answers what the kernel asks.
//!
//! # The change cookie
//!
//! Every inode answers `getxattr` for these names, to anyone who may stat it; `listxattr` does not show them and they
//! cannot be set:
//!
//! | name | value |
//! |---|---|
//! | `system.ivers.change` | the change attribute, decimal; ENODATA where there is none |
//! | `system.ivers.stored` | the stored counter, decimal, without the epoch and without marking it as seen |
//! | `system.ivers.semantics` | what the change attribute promises, JSON |
//! | `system.ivers.stats` | the counters of the mount, JSON |
//! | `system.ivers.generation` | the generation of the inode, decimal |
//! | `system.ivers.mount` | what is mounted and who serves it, JSON |
//! | `system.ivers.children` | of a directory: its names and what is asked of the files behind them (see [`parse_children`]) |
//!
//! `IVERS_IOC_CHANGE` of `include/ivers.h` gives the same through an open file.
//!
//! # What the kernel holds back
//!
//! Between a writable OPEN or CREATE and its RELEASE the kernel may hold dirty data and times of a file, dirty mappings
//! included. A query that falls into that window has one of our own threads fsync a descriptor of its own on the mounted
//! file first. The thread is outside the pool that serves requests and holds no lock, so the WRITE, SETATTR and FSYNC
//! requests that this causes are served as any other; FSYNC on that handle commits nothing. It may live in another process
//! ([`Connection`]), since the one that serves may be locked in. Where it cannot be done
//! (the file is unlinked, or the user who mounted may not open it) the counter is bumped by force: the answer differs from
//! all earlier ones, which is never wrong. Nothing is ever invalidated to answer a query.
//!
//! # What the kernel does not show yet
//!
//! A query also waits until the kernel shows every change that its answer counts: until the thread that asked for it
//! has come again, or until the lock under which the kernel digests our answer has been free, which is seen in the same way, by an fsync of
//! the file or the directory; for five seconds at most, and for 30 where something is held back, then the answer differs from all earlier ones.
//! With `-o no_strict_queries` a number can be ahead of the kernel's caches, by some ten microseconds as a rule and by as long as
//! the changing thread does not get to run at worst.
//!
//! What a query costs: one round trip while nobody has the file open for writing (10 us on two cores), some five more while
//! somebody has (55 us), and on top of that the hand-over of what is dirty (0.2 s for 512 MiB, to a filesystem in memory).
//!
//! # Who may do what
//!
//! With `default_permissions` (the default) the kernel checks modes and POSIX ACLs. With `fakeroot` the VFS checks, and the
//! user who mounted counts as root inside the image: every check passes for them, and what they create belongs to root.
//! Owners are reported as the image has them. What the kernel itself refuses ordinary users (device nodes, `trusted.*`,
//! removing others' files from sticky directories) stays refused.

#![forbid(unsafe_code)]

mod attendant;
mod children;
mod company;
mod convert;
mod cookie;
mod errno;
mod flusher;
mod ioctl;
mod mounting;
mod mounts;
mod nodes;
mod ops;
mod options;
mod outside;
mod serving;
mod session;
mod unfinished;

pub use children::{CHILDREN, CHILDREN_MAX, Child, parse_children};
pub use cookie::{
    CHANGE, GENERATION, IVERS_IOC_CHANGE, MEASUREMENT, MOUNT, SEMANTICS, STATS, STORED, semantics,
};
pub use mounting::MountError;
pub use mounts::{MountEntry, all_mounts, mounts_of};
pub use options::{FuseOptions, OptionError};
pub use outside::Connection;
pub use session::{Attached, Served, Server, Session, attach, mount, serve};
