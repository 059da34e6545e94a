//! Where structures are read from: the open filesystem, or a transaction that has changed some of them.

use crate::layout::checksum::SelfDescription;
use crate::layout::superblock::Superblock;
use crate::unit::{Unit, UnitPlace, Whose};
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};

/// A source of checked structures.
pub(crate) trait Source: Sized {
    fn sb(&self) -> &Superblock;

    /// Reads a structure of one or several blocks, and checks that it describes itself as expected. The magic
    /// is the caller's to check.
    fn unit(&self, blocks: &[BlockNo], kind: &SelfDescription, whose: Whose) -> Result<Unit>;

    /// Returns the device blocks of a unit of a fork, if the source noted them.
    fn noted_unit(&self, _place: &UnitPlace) -> Option<ivers_block::Unit> {
        None
    }

    /// Lets the source note the device blocks of a unit of a fork.
    fn note_unit(&self, _place: UnitPlace, _blocks: &ivers_block::Unit) {}

    /// Damage of an inode or of an allocation group.
    fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error;

    /// Damage of a block.
    fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error;
}
