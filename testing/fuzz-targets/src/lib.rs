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
pub mod btrfs;
mod damage;
mod fat;
mod fix;
pub mod input;
pub mod inputs;
mod journal;
mod measure;
mod nfs;
mod ocfs2;
mod partitions;
pub mod place;
mod plain;
mod ufs;
mod work;
pub mod xfs;

use place::Class;

/// A fuzz target.
pub struct Target {
    /// The name in `fuzz/`, on the command line and of the directory of its inputs.
    pub name: &'static str,
    /// The longest useful input in bytes.
    pub max_len: usize,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Structures of the base images that the inputs overwrite.
    pub structures: Structures,
}

/// Structures of base images.
#[derive(Debug, Clone, Copy)]
pub enum Structures {
    /// The input is the structure, or the target has images of its own.
    None,
    /// Of ext2, ext3 and ext4 images.
    Ext4(&'static [Class]),
    /// Of XFS images.
    Xfs(&'static [xfs::Class]),
    /// Of btrfs images.
    Btrfs(&'static [btrfs::Class]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    ext4("superblock", 2048, plain::superblock, SUPERBLOCK),
    ext4("inode", 1024, |input| work::run(input, INODE), INODE),
    ext4("extent", 1024, |input| work::run(input, EXTENT), EXTENT),
    ext4("directory", 1024, |input| work::run(input, DIRECTORY), DIRECTORY),
    ext4("xattr", 1024, |input| work::run(input, XATTR), XATTR),
    ext4("journal", 4096, journal::run, JOURNAL),
    other("epoch", 256, plain::epoch),
    ext4("mount_walk", 4096, |input| work::run(input, Class::ALL), Class::ALL),
    ext4("check", 4096, |input| work::check(input, Class::ALL), Class::ALL),
    other("fat", 1024, fat::run),
    other("affs", 2048, affs::run),
    other("ufs", 1024, ufs::run),
    other("ocfs2", 1024, ocfs2::run),
    xfs("xfs", |input| xfs::run(input, xfs::Class::ALL), xfs::Class::ALL),
    xfs("check_xfs", |input| xfs::check(input, xfs::Class::ALL), xfs::Class::ALL),
    xfs("xfs_heads", |input| xfs::run(input, XFS_HEADS), XFS_HEADS),
    xfs("xfs_inodes", |input| xfs::run(input, XFS_INODES), XFS_INODES),
    xfs("xfs_trees", |input| xfs::run(input, XFS_TREES), XFS_TREES),
    xfs("xfs_directories", |input| xfs::run(input, XFS_DIRECTORIES), XFS_DIRECTORIES),
    xfs("xfs_attributes", |input| xfs::run(input, XFS_ATTRIBUTES), XFS_ATTRIBUTES),
    xfs("xfs_log", |input| xfs::run(input, XFS_LOG), XFS_LOG),
    btrfs("btrfs", |input| btrfs::run(input, btrfs::Class::ALL), btrfs::Class::ALL),
    btrfs("btrfs_superblock", |input| btrfs::run(input, BTRFS_SUPERBLOCK), BTRFS_SUPERBLOCK),
    btrfs("btrfs_trees", |input| btrfs::run(input, BTRFS_TREES), BTRFS_TREES),
    btrfs("btrfs_files", |input| btrfs::run(input, BTRFS_FILES), BTRFS_FILES),
    btrfs("btrfs_space", |input| btrfs::run(input, BTRFS_SPACE), BTRFS_SPACE),
    btrfs("btrfs_compressed", |input| btrfs::run(input, BTRFS_COMPRESSED), BTRFS_COMPRESSED),
    btrfs("btrfs_log", |input| btrfs::run(input, btrfs::Class::OF_LOGS), btrfs::Class::OF_LOGS),
    other("partitions", 4096, partitions::run),
    other("saved_state", 4096, plain::saved_state),
    other("measure", 4096, measure::run),
    other("nfs_wire", 1200, nfs::wire::run),
    other("nfs_compound", 1200, nfs::compound::run),
    other("nfs_callbacks", 2048, nfs::callbacks::run),
    other("nfs_session", 1200, nfs::session::run),
    other("nfs_client", 256, nfs::client::run),
];

const fn other(name: &'static str, max_len: usize, run: fn(&[u8])) -> Target {
    Target { name, max_len, run, structures: Structures::None }
}

const fn ext4(name: &'static str, max_len: usize, run: fn(&[u8]), classes: &'static [Class]) -> Target {
    Target { name, max_len, run, structures: Structures::Ext4(classes) }
}

const fn xfs(name: &'static str, run: fn(&[u8]), classes: &'static [xfs::Class]) -> Target {
    Target { name, max_len: 2048, run, structures: Structures::Xfs(classes) }
}

const fn btrfs(name: &'static str, run: fn(&[u8]), classes: &'static [btrfs::Class]) -> Target {
    Target { name, max_len: 2048, run, structures: Structures::Btrfs(classes) }
}

pub(crate) const SUPERBLOCK: &[Class] = &[Class::Superblock];
const INODE: &[Class] = &[Class::GroupDescriptor, Class::InodeSlot, Class::Bitmap];
const EXTENT: &[Class] = &[Class::SlotMap, Class::MapNode];
const DIRECTORY: &[Class] = &[Class::DirBlock, Class::DirSlot];
const XATTR: &[Class] = &[Class::SlotBody, Class::XattrBlock, Class::EaInode];
pub(crate) const JOURNAL: &[Class] = &[Class::Journal];

const XFS_HEADS: &[xfs::Class] = &[xfs::Class::Head];
const XFS_INODES: &[xfs::Class] = &[xfs::Class::Inode, xfs::Class::Forks, xfs::Class::LinkTarget];
const XFS_TREES: &[xfs::Class] = &[xfs::Class::Tree];
const XFS_DIRECTORIES: &[xfs::Class] =
    &[xfs::Class::Directory, xfs::Class::HashNode, xfs::Class::ShortDirectory];
const XFS_ATTRIBUTES: &[xfs::Class] =
    &[xfs::Class::Attributes, xfs::Class::HashNode, xfs::Class::ShortAttributes];
const XFS_LOG: &[xfs::Class] = &[xfs::Class::LogOperation, xfs::Class::LogHead];

const BTRFS_SUPERBLOCK: &[btrfs::Class] = &[btrfs::Class::Superblock, btrfs::Class::ChunkArray];
const BTRFS_TREES: &[btrfs::Class] =
    &[btrfs::Class::Header, btrfs::Class::Pointers, btrfs::Class::ItemTable, btrfs::Class::Root];
const BTRFS_FILES: &[btrfs::Class] = &[
    btrfs::Class::Inode,
    btrfs::Class::Name,
    btrfs::Class::Attribute,
    btrfs::Class::FileExtent,
    btrfs::Class::Checksums,
];
const BTRFS_COMPRESSED: &[btrfs::Class] = &[btrfs::Class::Compressed, btrfs::Class::FileExtent];
const BTRFS_SPACE: &[btrfs::Class] =
    &[btrfs::Class::Extent, btrfs::Class::Group, btrfs::Class::FreeSpace, btrfs::Class::Chunk];

/// Returns the target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
