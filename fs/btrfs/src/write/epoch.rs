//! The epoch record: the attribute `trusted.ivers.epoch` of the root of the top-level subvolume.
//! `ivers_vfs::epoch` defines its meaning.
//!
//! A session commits OPEN before its first change, and CLOSED in its last commit. Each commit has other roots
//! and another generation, so these show a foreign writer.

use super::attributes::TOP;
use super::change::Need;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::layout::key::object;
use ivers_vfs::epoch::{EPOCH_XATTR, EpochRecord, Found, OtherWriters, UNREADABLE_RECORD};
use ivers_vfs::{EpochOps, Error, NameError, Result, ValidUntil, XattrMode};

/// What shows a foreign writer: the last transaction, and where its tree of roots is.
fn fingerprint(generation: u64, root: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&generation.to_le_bytes());
    bytes[8..].copy_from_slice(&root.to_le_bytes());
    bytes
}

impl Btrfs {
    /// Loads what a writer needs, makes the OPEN record durable, and deletes what a crash left.
    pub(crate) fn start_writing(&mut self, trust_foreign: bool) -> Result<()> {
        // A replay of the log has loaded it.
        if self.live.read().is_none() {
            let live = self.load_live()?;
            *self.live.write() = Some(live);
        }
        self.is_persistent = true;
        self.open_epoch(trust_foreign)?;
        if let Err(error) = self.remove_what_was_deleted() {
            let place = &self.forest.volume.place;
            log::error!("{place}: what was deleted before the last unmount or crash stays: {error}");
        }
        if self.failure().is_some() {
            // The change that failed was dropped, and the mount is read-only.
            return Ok(());
        }
        // If no record was stored, a replay may not be committed yet. Commit it before an fsync replaces the
        // log that it came from.
        self.commit()
    }

    /// Deletes inodes without a name, and trees of deleted subvolumes.
    fn remove_what_was_deleted(&self) -> Result<()> {
        let place = &self.forest.volume.place;
        let orphans = self.remove_orphans()?;
        if orphans > 0 {
            log::info!("{place}: {orphans} inodes without a name were deleted");
        }
        let trees = self.drop_deleted_subvolumes()?;
        if trees > 0 {
            log::info!("{place}: {trees} deleted subvolumes were dropped");
        }
        Ok(())
    }

    /// Decides which values a mount serves that stores nothing. Every commit changes the fingerprint.
    pub(crate) fn read_epoch(&mut self, trust_foreign: bool) {
        let Ok(record) = self.top_attribute(EPOCH_XATTR) else {
            self.valid_until = ValidUntil::Unmount(Some(UNREADABLE_RECORD));
            return;
        };
        let found = self.found(record.as_deref(), trust_foreign, true);
        match self.epoch.serve_reader(&found, true) {
            None => self.is_persistent = true,
            Some(until) => self.valid_until = until,
        }
    }

    fn found<'a>(&self, record: Option<&'a [u8]>, trust_foreign: bool, read_only: bool) -> Found<'a> {
        let sb = &self.forest.volume.sb;
        let known = record.and_then(|bytes| EpochRecord::decode(bytes).ok());
        Found {
            record,
            uuid: sb.fsid,
            fingerprint: fingerprint(sb.generation, sb.root.bytenr),
            // A commit is complete or absent. Only a crash leaves a log tree.
            clean: !sb.has_log(),
            trust_foreign,
            read_only,
            // The commits of a session change the fingerprint, too.
            others: match known {
                Some(record) if record.open => OtherWriters::Known(None),
                _ => OtherWriters::ByFingerprint,
            },
        }
    }

    fn open_epoch(&self, trust_foreign: bool) -> Result<()> {
        let record = self.top_attribute(EPOCH_XATTR)?;
        let found = self.found(record.as_deref(), trust_foreign, false);
        let Some(decision) = self.epoch.decide(&found, &self.forest.volume.place) else { return Ok(()) };
        self.epoch.serve(decision.epoch, decision.raises, found.fingerprint);
        match self.store_epoch() {
            Err(Error::Name(error)) => {
                self.epoch.stop_serving(format!("the epoch record cannot be stored: {error}"));
                Ok(())
            }
            other => other,
        }
    }

    /// Stores the OPEN record and commits it.
    fn store_epoch(&self) -> Result<()> {
        let record = self.epoch.record(self.forest.volume.sb.fsid, true).encode();
        self.change(Need::Removal, |tx| tx.put_record(&record))?;
        self.commit()
    }

    /// The last commit, with the CLOSED record.
    pub(crate) fn close_epoch(&self) -> Result<()> {
        if self.live.read().is_none() {
            return Ok(());
        }
        if !self.epoch.closes() {
            return self.commit();
        }
        let uuid = self.forest.volume.sb.fsid;
        self.with_tx(|tx| {
            // Makes the leaf with the record one of this transaction.
            tx.put_record(&self.epoch.record(uuid, true).encode())?;
            tx.commit_with(|tx| {
                let root = tx.tree(object::ROOT_TREE)?.root.bytenr;
                self.epoch.set_fingerprint(fingerprint(tx.live.transid, root));
                // Of the same length, in a block that is in memory: nothing else changes.
                tx.put_record(&self.epoch.record(uuid, false).encode())
            })
        })
    }
}

impl Tx<'_> {
    fn put_record(&mut self, record: &[u8]) -> Result<()> {
        if self.fs.root_of(TOP.0)?.is_some_and(|root| root.read_only) {
            return Err(NameError::ReadOnly.into());
        }
        self.store_attribute(TOP, EPOCH_XATTR, Some(record), XattrMode::Any)
    }
}

impl EpochOps for Btrfs {
    fn base(&self) -> u64 {
        self.epoch.base()
    }

    fn raise(&self) -> Result<()> {
        // A reader stores nothing.
        if self.live.read().is_none() {
            return Ok(());
        }
        if self.epoch.raise_stored() { self.store_epoch() } else { Ok(()) }
    }

    fn keep_open(&self) {
        self.epoch.keep_open();
    }
}
