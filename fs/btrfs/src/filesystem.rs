//! The open filesystem.

use crate::compressor::CompressWith;
use crate::decompressed::Decompressed;
use crate::live::{Live, Session};
use crate::tree::Forest;
use ivers_vfs::sync::{RankedRwLock, rank};
use ivers_vfs::{Ino, ServedEpoch, ValidUntil};

/// An open btrfs filesystem.
pub struct Btrfs {
    pub(crate) forest: Forest,
    /// The root directory of the mounted subvolume.
    pub(crate) root: Ino,
    pub(crate) decompressed: Decompressed,
    /// How new data is compressed, unless a file says otherwise.
    pub(crate) compress: Option<CompressWith>,
    /// The state of a writer; `None`: nothing is written. A thread that reads trees holds it shared, so that
    /// they do not change meanwhile.
    pub(crate) live: RankedRwLock<rank::Driver<0>, Option<Live>>,
    pub(crate) session: Session,
    pub(crate) epoch: ServedEpoch,
    /// The change attribute is that of earlier mounts.
    pub(crate) is_persistent: bool,
    /// How long change attributes are valid otherwise.
    pub(crate) valid_until: ValidUntil,
    /// Why nothing can be changed.
    pub(crate) read_only: Option<String>,
    /// What is wrong with devices or not shown, in words.
    pub(crate) notes: Vec<String>,
}
