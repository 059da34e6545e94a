//! Where structures are read from: the open filesystem, or a transaction that has changed some of them.

use crate::layout::checksum::SelfDescription;
use crate::layout::superblock::Superblock;
use crate::volume::{Unit, Whose, Xfs};
use crate::write::tx::Tx;
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};

/// A source of checked structures.
pub(crate) trait Source: Sized {
    fn sb(&self) -> &Superblock;

    /// Reads a structure of one or several blocks, and checks that it describes itself as expected. The magic
    /// is the caller's to check.
    fn unit(&self, blocks: &[BlockNo], kind: &SelfDescription, whose: Whose) -> Result<Unit>;

    /// Damage of an inode or of an allocation group.
    fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error;

    /// Damage of a block.
    fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error;
}

impl Source for Tx<'_> {
    fn sb(&self) -> &Superblock {
        &self.space().sb
    }

    fn unit(&self, blocks: &[BlockNo], kind: &SelfDescription, whose: Whose) -> Result<Unit> {
        self.read_unit(blocks, Some(kind), whose)
    }

    fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error {
        self.space().corrupt(what, whose)
    }

    fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error {
        self.space().corrupt_block(what, whose, block)
    }
}

impl Source for Xfs {
    fn sb(&self) -> &Superblock {
        &self.sb
    }

    fn unit(&self, blocks: &[BlockNo], kind: &SelfDescription, whose: Whose) -> Result<Unit> {
        self.unit(blocks, kind, whose)
    }

    fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error {
        self.corrupt(what, whose)
    }

    fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error {
        self.corrupt_block(what, whose, block)
    }
}
