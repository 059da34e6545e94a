//! The FUSE front end: mounts a [`Vfs`](ivers_vfs::Vfs) on a directory and answers the kernel's requests.
//!
//! # The change attribute
//!
//! `getxattr` returns these attributes of every inode to any caller that may stat it. `listxattr` does not
//! show them, and only those that say so can be set.
//!
//! | name | value |
//! |---|---|
//! | `system.ivers.change` | the change attribute, decimal; ENODATA where there is none |
//! | `system.ivers.stored` | the stored counter, decimal, without the epoch; reading it is no query |
//! | `system.ivers.semantics` | what the change attribute promises, JSON |
//! | `system.ivers.stats` | the statistics of the mount, JSON |
//! | `system.ivers.resize.BYTES` | what growing would do, JSON; setting it grows the filesystem |
//! | `system.ivers.generation` | the generation of the inode, decimal |
//! | `system.ivers.mount` | what is mounted and who serves it, JSON |
//! | `system.ivers.children` | of a directory: its entries with attributes (see [`parse_children`]) |
//! | `system.ivers.subvolumes` | all subvolumes (see [`parse_subvolumes`]) |
//! | `system.ivers.subvolume` | setting it announces a change of a subvolume (see [`SubvolumeCall`]) |
//!
//! `IVERS_IOC_CHANGE` of `include/ivers.h` gives the same through an open file.
//!
//! # What the kernel holds back
//!
//! From a writable OPEN or CREATE to its RELEASE the kernel may hold dirty data and times of a file,
//! including dirty mappings. For a query in that time a separate thread first opens the mounted file and
//! fsyncs it.
//!
//! That thread is outside the pool that serves requests and holds no lock. So the WRITE, SETATTR and FSYNC
//! requests that it causes are served like any other; FSYNC on its handle commits nothing. It may be in
//! another process ([`MountChannels`]), since the serving one may be sandboxed.
//!
//! The fsync is impossible if the file is unlinked or the mounting user may not open it. Then a forced bump
//! makes the answer differ from all earlier ones, which is never wrong. A query never invalidates anything.
//!
//! # What the kernel does not show yet
//!
//! A query also waits until the kernel shows every change that its answer counts. That is so when the thread
//! that requested the change has made another request, or when the lock under which the kernel processes our
//! answer has been free. An fsync of the file or directory shows the latter. After five seconds, or 30 if
//! data is held back, the query returns a change attribute that differs from all earlier ones.
//!
//! With `-o no_strict_queries` the change attribute can be ahead of the kernel's caches: usually by about ten
//! microseconds, at worst for as long as the changing thread does not run.
//!
//! | state of the file | cost of a query, two cores, filesystem in memory |
//! |---|---|
//! | not open for writing | one round trip, 10 us |
//! | open for writing | about six round trips, 55 us |
//! | dirty data | also its hand-over, 0.2 s for 512 MiB |
//!
//! # Who may do what
//!
//! With `default_permissions` (the default) the kernel checks modes and POSIX ACLs. With `fakeroot` the VFS
//! checks, and the mounting user counts as root inside the image: every check passes for that user, and new
//! files belong to root. Owners are reported as the image has them. The kernel itself refuses some actions of
//! ordinary users in any case: device nodes, `trusted.*`, removing files of others from sticky directories.

#![forbid(unsafe_code)]

mod affinity_helper;
mod bulk_stat;
mod caller_affinity;
mod change_attr;
mod connection;
mod convert;
mod errno;
mod flusher;
mod inflight_changes;
mod ioctl;
mod kept_places;
mod lock_waits;
mod mount;
mod mountinfo;
mod nodes;
mod ops;
mod options;
mod privileged_helper;
mod prune;
mod session;
mod subvolumes;
mod thread_status;

pub use bulk_stat::{CHILDREN, CHILDREN_MAX, Child, parse_children};
pub use change_attr::{
    CHANGE, GENERATION, IVERS_IOC_CHANGE, MEASUREMENT, MOUNT, OF_SERVER, RESIZE, SEMANTICS, STATS, STORED,
    semantics,
};
pub use mount::MountError;
pub use mountinfo::{MountEntry, all_mounts, mounts_of};
pub use options::{FuseOptions, OptionError};
pub use privileged_helper::MountChannels;
pub use session::{Attached, Served, Server, Session, attach, mount, serve};
pub use subvolumes::{SUBVOLUME, SUBVOLUME_FLUSH, SUBVOLUMES, SubvolumeCall, parse_subvolumes};
