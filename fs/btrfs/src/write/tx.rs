//! The running transaction.

use crate::filesystem::Btrfs;
use crate::layout::superblock::Superblock;
use crate::live::Live;
use ivers_vfs::Error;

/// Changes of the running transaction. Nobody else reads or changes trees meanwhile.
pub(crate) struct Tx<'a> {
    pub fs: &'a Btrfs,
    pub live: &'a mut Live,
}

impl<'a> Tx<'a> {
    pub(crate) fn sb(&self) -> &'a Superblock {
        &self.fs.forest.volume.sb
    }

    /// An error of the writer, or of structures that it met. The transaction cannot go on.
    pub(super) fn broken(&self, what: impl Into<String>) -> Error {
        Error::corrupt(what, self.fs.forest.volume.place.clone())
    }
}
