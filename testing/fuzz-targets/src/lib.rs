//! The bodies of the fuzz targets: decoders, mounts of damaged images, and requests of NFSv4 clients.
//!
//! `fuzz/` runs them under libFuzzer. `tests/replay.rs` runs them on inputs that once failed, with a stable
//! compiler. A target must return for any bytes: a panic, an overflow, a hang or excessive memory is a
//! finding.
//!
//! The targets for image structures do not take images, which are too large to mutate well. An input refers
//! to one of the small images in `bases/`, and says which structures to overwrite and which calls to make:
//! see [`input`].

#![forbid(unsafe_code)]

mod affs;
pub mod base;
mod fat;
mod fix;
pub mod input;
pub mod inputs;
mod journal;
mod measure;
mod nfs;
mod partitions;
pub mod place;
mod plain;
mod work;
mod xfs;

use place::Class;

/// A fuzz target.
pub struct Target {
    /// The name in `fuzz/`, on the command line and of the directory of its inputs.
    pub name: &'static str,
    /// The longest useful input in bytes.
    pub max_len: usize,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Structures that the inputs overwrite; empty if the input is the structure.
    pub classes: &'static [Class],
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "superblock", max_len: 2048, run: plain::superblock, classes: SUPERBLOCK },
    Target { name: "inode", max_len: 1024, run: |input| work::run(input, INODE), classes: INODE },
    Target { name: "extent", max_len: 1024, run: |input| work::run(input, EXTENT), classes: EXTENT },
    Target { name: "directory", max_len: 1024, run: |input| work::run(input, DIRECTORY), classes: DIRECTORY },
    Target { name: "xattr", max_len: 1024, run: |input| work::run(input, XATTR), classes: XATTR },
    Target { name: "journal", max_len: 4096, run: journal::run, classes: JOURNAL },
    Target { name: "epoch", max_len: 256, run: plain::epoch, classes: &[] },
    Target {
        name: "mount_walk",
        max_len: 4096,
        run: |input| work::run(input, Class::ALL),
        classes: Class::ALL,
    },
    Target { name: "check", max_len: 4096, run: |input| work::check(input, Class::ALL), classes: Class::ALL },
    Target { name: "fat", max_len: 1024, run: fat::run, classes: &[] },
    Target { name: "affs", max_len: 2048, run: affs::run, classes: &[] },
    Target { name: "xfs", max_len: 2048, run: xfs::run, classes: &[] },
    Target { name: "check_xfs", max_len: 2048, run: xfs::check, classes: &[] },
    Target { name: "partitions", max_len: 4096, run: partitions::run, classes: &[] },
    Target { name: "saved_state", max_len: 4096, run: plain::saved_state, classes: &[] },
    Target { name: "measure", max_len: 4096, run: measure::run, classes: &[] },
    Target { name: "nfs_wire", max_len: 1200, run: nfs::wire::run, classes: &[] },
    Target { name: "nfs_compound", max_len: 1200, run: nfs::compound::run, classes: &[] },
    Target { name: "nfs_session", max_len: 1200, run: nfs::session::run, classes: &[] },
];

pub(crate) const SUPERBLOCK: &[Class] = &[Class::Superblock];
const INODE: &[Class] = &[Class::GroupDescriptor, Class::InodeSlot, Class::Bitmap];
const EXTENT: &[Class] = &[Class::SlotMap, Class::MapNode];
const DIRECTORY: &[Class] = &[Class::DirBlock, Class::DirSlot];
const XATTR: &[Class] = &[Class::SlotBody, Class::XattrBlock, Class::EaInode];
pub(crate) const JOURNAL: &[Class] = &[Class::Journal];

/// Returns the target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
