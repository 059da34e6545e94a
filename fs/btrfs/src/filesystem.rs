//! The open filesystem.

use crate::decompressed::Decompressed;
use crate::tree::{Forest, Tree};
use ivers_vfs::Ino;

/// An open btrfs filesystem.
pub struct Btrfs {
    pub(crate) forest: Forest,
    /// The root directory of the mounted subvolume.
    pub(crate) root: Ino,
    /// The tree of checksums of data.
    pub(crate) csum_tree: Option<Tree>,
    pub(crate) decompressed: Decompressed,
    /// Why nothing can be changed.
    pub(crate) read_only: String,
    /// What is wrong with devices or not shown, in words.
    pub(crate) notes: Vec<String>,
}
