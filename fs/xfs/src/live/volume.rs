//! The open filesystem.

use super::session::Session;
use super::vnode::XfsInode;
use crate::layout::checksum::{Expected, SelfDescription};
use crate::layout::superblock::{Counts, Superblock};
use crate::source::Source;
use crate::unit::{Unit, Whose};
use ivers_block::{BlockNo, BufferCache};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, Inode, NameError, Result, ServedEpoch, ValidUntil};
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
    /// Change attributes are persistent.
    pub(crate) is_persistent: bool,
    /// How long they are valid otherwise.
    pub(crate) valid_until: ValidUntil,
    /// The private part of the root, shared by every copy of that inode because it holds the epoch record.
    pub(crate) root_private: RankedMutex<rank::Leaf, Weak<XfsInode>>,
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

    /// The state for writing.
    pub(crate) fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(|| NameError::ReadOnly.into())
    }

    /// Ends the reservation ahead of the end of a file.
    pub(crate) fn forget_window(&self, inode: &Inode) {
        if let Some(session) = &self.session {
            session.space.windows.remove(inode.ino);
        }
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
