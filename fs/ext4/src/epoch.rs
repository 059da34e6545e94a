//! The epoch record on the root directory: `trusted.ivers.epoch`. What it means and when the epoch rises is
//! `ivers_vfs::epoch`; here is where ext4 keeps it.

use crate::ctx::{Ext4, Handle, ROOT_INO};
use crate::layout::raw::RawSuperblock;
use ivers_vfs::epoch::{EpochRecord, Found, base_of, decide};
use ivers_vfs::{Inode, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// `trusted.` in the format.
const INDEX_TRUSTED: u8 = 4;
/// The rest of `ivers_vfs::epoch::EPOCH_XATTR`.
const NAME: &[u8] = b"ivers.epoch";
/// Blocks that storing the record may change: inode, attribute block, its bitmap, descriptor, superblock.
const CREDITS: u32 = 16;

/// The epoch of this mount.
#[derive(Debug, Default)]
pub(crate) struct Epoch {
    /// What is added to counters, already shifted.
    base: AtomicU64,
    /// The epoch in the record: above the served one after a counter of 32 bits ran over, or without cookies.
    stored: Mutex<u64>,
    /// Why no cookie is served.
    missing: Mutex<Option<String>>,
    /// The superblock fields as they will be left.
    foreign: Mutex<[u32; 4]>,
}

/// The superblock fields by which another writer shows.
pub(crate) fn foreign_fields(raw: &RawSuperblock) -> [u32; 4] {
    [u32::from(raw.s_mnt_count.get()), raw.s_mtime.get(), raw.s_wtime.get(), raw.s_lastcheck.get()]
}

impl Epoch {
    pub(crate) fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    pub(crate) fn missing(&self) -> Option<String> {
        self.missing.lock().clone()
    }

    /// No cookie from here on.
    pub(crate) fn give_up(&self, why: impl Into<String>) {
        let why = why.into();
        log::warn!("no change attribute: {why}");
        *self.missing.lock() = Some(why);
    }
}

impl Ext4 {
    fn epoch_root(&self) -> Result<Inode> {
        Ok(self.detached(self.load(ROOT_INO, false)?))
    }

    /// Decide the epoch and, on a writable mount, make the OPEN record durable.
    pub(crate) fn open_epoch(&self, raw: &RawSuperblock, clean: bool, trust_foreign: bool) -> Result<()> {
        if self.sb.hurd {
            self.epoch.give_up("the Hurd keeps a translator where the version would be");
            return Ok(());
        }
        let root = self.epoch_root()?;
        let value = match self.xattr_get_raw(&root, INDEX_TRUSTED, NAME) {
            Ok(value) => value,
            Err(error) => {
                self.epoch.give_up(format!("the epoch record cannot be read: {error}"));
                return Ok(());
            }
        };
        let found = Found {
            record: value.as_deref(),
            uuid: self.sb.uuid,
            foreign: foreign_fields(raw),
            clean,
            trust_foreign,
            read_only: self.read_only.is_some(),
        };
        let decision = match decide(&found) {
            Ok(decision) => decision,
            Err(why) => {
                self.epoch.give_up(format!(
                    "{why}; remove the attribute trusted.ivers.epoch of the root to start anew"
                ));
                return Ok(());
            }
        };
        if let Some(why) = decision.raised {
            log::info!("{}: epoch {}: {why}", self.place, decision.epoch);
        }
        let epoch = match (&self.read_only, value.is_some()) {
            // Nothing was ever recorded: what readers see lies below what the first writer will serve.
            (Some(_), false) if clean => 0,
            (Some(_), false) => {
                self.epoch.give_up(
                    "somebody else's session did not end in good order, and no epoch is recorded yet: mount it once for writing",
                );
                return Ok(());
            }
            _ => decision.epoch,
        };
        self.epoch.base.store(base_of(epoch), Ordering::Release);
        *self.epoch.stored.lock() = epoch;
        *self.epoch.foreign.lock() = found.foreign;
        if self.read_only.is_none() {
            let stored = self.begin(CREDITS).and_then(|mut h| self.store_epoch(&mut h, &root, true));
            if let Err(error) = stored.and_then(|()| self.journal.commit()) {
                self.epoch.give_up(format!("the epoch record cannot be stored: {error}"));
            }
        }
        Ok(())
    }

    fn store_epoch(&self, h: &mut Handle, root: &Inode, open: bool) -> Result<()> {
        let record = EpochRecord {
            open,
            uuid: self.sb.uuid,
            epoch: *self.epoch.stored.lock(),
            foreign: *self.epoch.foreign.lock(),
        };
        self.xattr_set_raw(h, root, INDEX_TRUSTED, NAME, Some(&record.encode()))?;
        self.log_attributes(h, root)
    }

    /// Raise the epoch that the next mount starts from, within a transaction.
    pub(crate) fn raise_stored_epoch(&self, h: &mut Handle) -> Result<()> {
        if self.epoch.missing().is_some() {
            return Ok(());
        }
        {
            let mut stored = self.epoch.stored.lock();
            if base_of(*stored) != self.epoch.base() {
                // It is above the served one already.
                return Ok(());
            }
            *stored += 1;
        }
        let root = self.epoch_root()?;
        self.store_epoch(h, &root, true)
    }

    /// The epoch rises because changes go on that no counter shows.
    pub(crate) fn fs_raise_epoch(&self) -> Result<()> {
        let mut h = self.begin(CREDITS)?;
        self.raise_stored_epoch(&mut h)?;
        drop(h);
        self.journal.commit()
    }

    /// The session ends in good order: everything else is durable. `foreign` is how the superblock will be left.
    pub(crate) fn close_epoch(&self, foreign: [u32; 4]) -> Result<()> {
        if self.epoch.missing().is_some() {
            return Ok(());
        }
        *self.epoch.foreign.lock() = foreign;
        let root = self.epoch_root()?;
        let mut h = self.begin(CREDITS)?;
        self.store_epoch(&mut h, &root, false)?;
        drop(h);
        self.journal.commit()
    }
}
