//! The epoch record: the attribute `trusted.ivers.epoch` of the root. `ivers_vfs::epoch` defines its meaning.
//!
//! A session stores OPEN by a transaction, before its first change. At its end everything is in place; then
//! CLOSED replaces these bytes. So the fingerprint can name where the unmount record will be.

use super::change::Edited;
use super::vnode::{XfsInode, core_of};
use super::volume::Xfs;
use crate::attr::AttrSource;
use crate::fork::{Fork, ForkSource};
use crate::inode::Dinode;
use crate::layout::checksum::{SelfDescription, seal_inode};
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::log::{LogEnd, mark, others_wrote};
use crate::write::space::journal_error;
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::epoch::{EPOCH_XATTR, Found, OtherWriters, RECORD_LEN, UNREADABLE_RECORD};
use ivers_vfs::{EpochOps, Error, Inode, NameError, Result, ValidUntil, XattrMode};
use std::sync::Arc;

/// Blocks of attributes of the root that are searched for the record.
const BLOCKS_MAX: usize = 4096;

/// What shows a foreign writer: where the last record of the log starts, and the sector after it, which a
/// kernel overwrites when it mounts for writing.
fn fingerprint(last_record: u64, after: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&last_record.to_le_bytes());
    bytes[8..12].copy_from_slice(&crc32c::crc32c(after).to_le_bytes());
    bytes
}

impl Xfs {
    fn epoch_root(&self) -> Result<Inode> {
        Ok(Inode::detached(self.load(self.sb.root)?))
    }

    fn stored_record(&self, root: &Inode) -> Result<Option<Vec<u8>>> {
        match self.xattr(&core_of(root), EPOCH_XATTR) {
            Ok(value) => Ok(Some(value)),
            Err(Error::Name(NameError::NoAttribute)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn found<'a>(&self, record: Option<&'a [u8]>, end: &LogEnd, trust_foreign: bool) -> Result<Found<'a>> {
        let others = others_wrote(end, &**self.cache.device(), &self.sb, &self.place)?;
        Ok(Found {
            record,
            uuid: self.sb.uuid,
            fingerprint: fingerprint(end.last, &end.after),
            clean: end.clean,
            trust_foreign,
            read_only: self.session.is_none(),
            others: OtherWriters::Known(others),
        })
    }

    /// Decides which values a mount serves that writes nothing.
    pub(crate) fn read_epoch(&self, end: &LogEnd, trust_foreign: bool) -> Result<Option<ValidUntil>> {
        let Ok(record) = self.stored_record(&self.epoch_root()?) else {
            return Ok(Some(ValidUntil::Unmount(Some(UNREADABLE_RECORD))));
        };
        let found = self.found(record.as_deref(), end, trust_foreign)?;
        Ok(self.epoch.serve_reader(&found, !end.hides_next_mount))
    }

    /// Decides the epoch of a writable mount, and makes the OPEN record durable.
    pub(crate) fn open_epoch(&self, end: &LogEnd, trust_foreign: bool) -> Result<()> {
        let root = self.epoch_root()?;
        let record = match self.stored_record(&root) {
            Ok(record) => record,
            Err(error) => {
                self.epoch.stop_serving(format!("{UNREADABLE_RECORD}: {error}"));
                return Ok(());
            }
        };
        let found = self.found(record.as_deref(), end, trust_foreign)?;
        let Some(decision) = self.epoch.decide(&found, &self.place) else { return Ok(()) };
        self.epoch.serve(decision.epoch, decision.raises, found.fingerprint);
        let commits = &self.session()?.commits;
        let stored = self.store_epoch(&root).and_then(|()| commits.commit().map_err(journal_error));
        if let Err(error) = stored {
            self.epoch.stop_serving(format!("the epoch record cannot be stored: {error}"));
        }
        Ok(())
    }

    /// Stores the OPEN record.
    fn store_epoch(&self, root: &Inode) -> Result<()> {
        let record = self.epoch.record(self.sb.uuid, true).encode();
        let mut change = self.change()?;
        let mut edited = Edited::new(root).without_attributes();
        change.tx.set_attribute(&mut edited.core, EPOCH_XATTR, Some(&record), XattrMode::Any)?;
        change.finish(vec![edited])
    }

    /// Replaces the OPEN record by CLOSED, in place. Everything else is in place: `next_record` is where the
    /// unmount record will start.
    pub(crate) fn close_epoch(&self, next_record: u64) -> Result<()> {
        if !self.epoch.closes() {
            return Ok(());
        }
        let open = self.epoch.record(self.sb.uuid, true).encode();
        self.epoch.set_fingerprint(fingerprint(next_record, &mark()));
        let closed = self.epoch.record(self.sb.uuid, false).encode();
        let root = self.epoch_root()?;
        let core = core_of(&root).clone();
        for place in self.places_of_attributes(&core)? {
            if self.replace_in_place(place, &core, &open, &closed)? {
                return Ok(());
            }
        }
        log::warn!("{}: the epoch record is not where it was: the next mount raises the epoch", self.place);
        Ok(())
    }

    /// Blocks that can have the record: that of the inode, and those of its attributes.
    fn places_of_attributes(&self, root: &Dinode) -> Result<Vec<BlockNo>> {
        let own = self.sb.inode_place(root.ino).map(|(block, _)| block);
        let mut places: Vec<BlockNo> = own.into_iter().collect();
        if !matches!(root.attrs, Fork::Extents(_) | Fork::Btree(_)) {
            return Ok(places);
        }
        let mut at = FileBlock(0);
        while at.0 < FILE_BLOCKS_END && places.len() < BLOCKS_MAX {
            let mapping = self.map(&root.attrs, at, root.ino)?;
            if let Some(first) = mapping.block {
                places.extend(first.run(mapping.len));
            }
            at = at.saturating_add(mapping.len);
        }
        Ok(places)
    }

    fn replace_in_place(
        &self,
        block: BlockNo,
        root: &Dinode,
        old: &[u8; RECORD_LEN],
        new: &[u8; RECORD_LEN],
    ) -> Result<bool> {
        let (device, offset) = (self.cache.device(), block.offset(self.sb.block_size));
        let mut bytes = vec![0; self.sb.block_size as usize];
        device.read_at(offset, &mut bytes)?;
        let Some(at) = bytes.windows(RECORD_LEN).position(|window| window == old) else { return Ok(false) };
        bytes[at..at + RECORD_LEN].copy_from_slice(new);
        match self.sb.inode_place(root.ino).filter(|(place, _)| *place == block) {
            Some((_, slot)) => seal_inode(&mut bytes[slot..slot + self.sb.inode_size as usize]),
            None => {
                let Some(kind) = SelfDescription::of(&bytes) else { return Ok(false) };
                let lsn = kind.lsn(&bytes).unwrap_or(0);
                kind.seal(&mut bytes, lsn);
            }
        }
        device.write_fua(offset, &bytes)?;
        device.flush()?;
        Ok(true)
    }

    /// Makes every copy of the root share one private part, so that the epoch record and users' changes do
    /// not overwrite each other.
    pub(crate) fn share_root(&self, new: Arc<XfsInode>) -> Arc<XfsInode> {
        let mut shared = self.root_private.lock();
        if let Some(private) = shared.upgrade() {
            return private;
        }
        *shared = Arc::downgrade(&new);
        new
    }
}

impl EpochOps for Xfs {
    fn keep_open(&self) {
        self.epoch.keep_open();
    }

    fn base(&self) -> u64 {
        self.epoch.base()
    }

    /// Raises the epoch, because changes follow that no counter shows.
    fn raise(&self) -> Result<()> {
        if !self.epoch.raise_stored() {
            return Ok(());
        }
        self.store_epoch(&self.epoch_root()?)?;
        self.session()?.commits.commit().map_err(journal_error)
    }
}
