//! Verified structures in memory, and whose they are.

use ivers_block::{BlockNo, BufferRead, Contents, FileBlock};
use ivers_vfs::Error;
use std::fmt::{Display, Formatter};
use std::ops::Deref;

/// The bytes of a structure of one or several blocks.
pub(crate) enum Unit {
    Cached(BufferRead),
    /// Changed by a transaction that is not published.
    Changed(Contents),
}

impl Deref for Unit {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Cached(bytes) => bytes,
            Self::Changed(bytes) => bytes,
        }
    }
}

/// A fork of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Data,
    Attributes,
}

/// Where a unit is in a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnitPlace {
    pub ino: u64,
    pub which: Which,
    pub at: FileBlock,
    /// Blocks of the unit.
    pub count: u64,
}

/// Whose structure it is, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whose {
    Inode(u64),
    Group(u32),
}

impl Whose {
    /// The number that its structures name.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Inode(ino) => ino,
            Self::Group(ag) => ag.into(),
        }
    }

    /// Damage of the inode or group; `image` names the image.
    pub(crate) fn corrupt(self, image: &str, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{image}, {self}"))
    }

    /// Damage of a block of the inode or group.
    pub(crate) fn corrupt_block(self, image: &str, what: impl Into<String>, block: BlockNo) -> Error {
        Error::corrupt(what, format!("{image}, {self}, block {block}"))
    }
}

impl Display for Whose {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inode(ino) => write!(f, "inode {ino}"),
            Self::Group(ag) => write!(f, "group {ag}"),
        }
    }
}
