//! The open filesystem, and verified blocks of it.

use crate::layout::checksum::{Expected, SelfDescription};
use crate::layout::superblock::{Counts, Superblock};
use crate::live::{Session, XfsInode};
use ivers_block::{BlockNo, BufferCache, BufferRead};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, Result, ServedEpoch};
use std::fmt::{Display, Formatter};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Weak};

/// An open XFS filesystem.
pub struct Xfs {
    pub(crate) sb: Superblock,
    /// The image's name in errors.
    pub(crate) place: String,
    pub(crate) cache: Arc<BufferCache>,
    /// Why nothing can be changed, if so.
    pub(crate) read_only: Option<String>,
    /// The counts at open, which stay if nothing can be changed.
    pub(crate) counts: Counts,
    /// What was found in the log, for `ivers info`.
    pub(crate) log_state: String,
    /// What a writable mount has beside.
    pub(crate) session: Option<Session>,
    pub(crate) epoch: ServedEpoch,
    /// Change counters are those that are stored.
    pub(crate) serves_stored: bool,
    /// The private part of the root, shared by every copy of that inode because it holds the epoch record.
    pub(crate) root_private: RankedMutex<rank::Leaf, Weak<XfsInode>>,
}

/// The bytes of a structure of one or several blocks.
pub(crate) enum Unit {
    Cached(BufferRead),
    /// Changed by a transaction that is not published.
    Changed(Rc<Vec<u8>>),
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

impl Xfs {
    /// Damage of an inode or of an allocation group.
    pub(crate) fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error {
        whose.corrupt(&self.place, what)
    }

    /// Damage of a block.
    pub(crate) fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error {
        whose.corrupt_block(&self.place, what, block)
    }

    /// Reads a structure of one or several blocks, and checks in version 5 that it describes itself as
    /// expected. The magic is the caller's to check.
    pub(crate) fn unit(&self, blocks: &[BlockNo], kind: &SelfDescription, whose: Whose) -> Result<Unit> {
        let Some(first) = blocks.first() else {
            return Err(self.corrupt("a structure without blocks", whose));
        };
        let buffer = self.cache.get_unit(blocks)?;
        let bytes = buffer.read();
        if !self.sb.is_v5() {
            return Ok(Unit::Cached(bytes));
        }
        // A unit belongs to one structure: the flag says that its checksum was right. What else the
        // structure says is checked in each case, since damaged pointers may lead here from elsewhere.
        if !buffer.is_verified() {
            if !kind.has_valid_crc(&bytes) {
                return Err(self.corrupt_block("bad checksum; run xfs_repair", whose, *first));
            }
            buffer.set_verified();
        }
        let expected =
            Expected { uuid: self.sb.meta_uuid, blkno: self.sb.sector_of(*first), owner: whose.number() };
        kind.check_place(&bytes, &expected).map_err(|what| self.corrupt_block(what, whose, *first))?;
        Ok(Unit::Cached(bytes))
    }

    /// Reads from the device, past the cache.
    pub(crate) fn read_data(&self, at: BlockNo, skip: u64, buf: &mut [u8]) -> Result<()> {
        let offset = at.offset(self.sb.block_size) + skip;
        self.cache.device().read_at(offset, buf).map_err(Error::file_data)
    }
}
