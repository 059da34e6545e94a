//! Storage of the epoch record: the attribute `trusted.ivers.epoch` of the root directory. `ivers_vfs::epoch`
//! defines its meaning and when the epoch rises.

use crate::fs::{Ext4, Handle, ROOT_INO};
use crate::layout::raw::RawSuperblock;
use crate::open::OpenOptions;
use ivers_vfs::epoch::{Found, OtherWriters};
use ivers_vfs::raises::Raises;
use ivers_vfs::{EpochOps, Inode, Result};
use std::sync::atomic::Ordering;

/// Name index of `trusted.`.
const INDEX_TRUSTED: u8 = 4;
/// `ivers_vfs::epoch::EPOCH_XATTR` without its prefix.
const NAME: &[u8] = b"ivers.epoch";
/// Blocks that storing the record may change: inode, attribute block, bitmap, descriptor, superblock.
const CREDITS: u32 = 16;

/// The superblock fields that reveal a foreign writer.
pub(crate) fn foreign_fields(raw: &RawSuperblock) -> [u32; 4] {
    [u32::from(raw.s_mnt_count.get()), raw.s_mtime.get(), raw.s_wtime.get(), raw.s_lastcheck.get()]
}

/// The fingerprint that the epoch record stores of these fields: each in little-endian order.
pub(crate) fn fingerprint(fields: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

impl Ext4 {
    fn epoch_root(&self) -> Result<Inode> {
        Ok(Inode::detached(self.load(ROOT_INO, false)?))
    }

    /// Decides the epoch. On a writable mount, makes the OPEN record durable, or leaves that to
    /// [`Ext4::record_open`] in a short session.
    pub(crate) fn open_epoch(&self, raw: &RawSuperblock, clean: bool, options: &OpenOptions) -> Result<()> {
        if self.sb.hurd {
            self.epoch.stop_serving("the Hurd stores a translator in the version field");
            return Ok(());
        }
        let root = self.epoch_root()?;
        let value = match self.xattr_get_raw(&root, INDEX_TRUSTED, NAME) {
            Ok(value) => value,
            Err(error) => {
                self.epoch.stop_serving(format!("the epoch record cannot be read: {error}"));
                return Ok(());
            }
        };
        let found = Found {
            record: value.as_deref(),
            uuid: self.sb.uuid,
            fingerprint: fingerprint(foreign_fields(raw)),
            clean,
            trust_foreign: options.trust_foreign,
            read_only: self.read_only.is_some(),
            others: OtherWriters::ByFingerprint,
        };
        let Some(decision) = self.epoch.decide(&found, &self.place) else { return Ok(()) };
        let (epoch, raises) = match (&self.read_only, value.is_some()) {
            // No record exists: the values that readers see are below those that the first writable mount
            // will serve.
            (Some(_), false) if clean => (0, Raises::default()),
            (Some(_), false) => {
                self.epoch.stop_serving(
                    "a foreign writer's session ended uncleanly, and no epoch is recorded: mount for writing",
                );
                return Ok(());
            }
            _ => (decision.epoch, decision.raises),
        };
        self.epoch.serve(epoch, raises, found.fingerprint);
        if self.read_only.is_none() {
            let stored = self.begin(CREDITS).and_then(|mut h| self.store_epoch(&mut h, &root, true));
            let waits = options.short_session && self.journal.is_atomic() && stored.is_ok();
            self.open_waits.store(waits, Ordering::Release);
            let stored = stored.and_then(|()| if waits { Ok(()) } else { self.journal.commit() });
            if let Err(error) = stored {
                self.epoch.stop_serving(format!("the epoch record cannot be stored: {error}"));
            }
        }
        Ok(())
    }

    /// Makes the OPEN record durable. Called before anything that the log does not order after the record:
    /// data in place, and values that observers keep. All transactions contain it or follow it. If a crash
    /// comes before the first of them is durable, the device is as the last session left it.
    ///
    /// This thread must hold no handle.
    pub(crate) fn record_open(&self) -> Result<()> {
        if self.open_waits.load(Ordering::Acquire) {
            self.journal.commit()?;
            self.open_waits.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn store_epoch(&self, h: &mut Handle, root: &Inode, open: bool) -> Result<()> {
        let record = self.epoch.record(self.sb.uuid, open);
        self.xattr_set_raw(h, root, INDEX_TRUSTED, NAME, Some(&record.encode()))?;
        self.log_attributes(h, root)
    }

    /// Raises the epoch that the next mount starts from, in the caller's transaction.
    pub(crate) fn raise_stored_epoch(&self, h: &mut Handle) -> Result<()> {
        if !self.epoch.raise_stored() {
            return Ok(());
        }
        let root = self.epoch_root()?;
        self.store_epoch(h, &root, true)
    }

    /// Records that the session is CLOSED, in the transaction of its last changes or after them. `foreign`
    /// holds the superblock fields as unmount will leave them: a record that stays OPEN gets them too.
    pub(crate) fn close_epoch(&self, foreign: [u32; 4]) -> Result<()> {
        if self.epoch.is_missing() {
            return Ok(());
        }
        self.epoch.set_fingerprint(fingerprint(foreign));
        let root = self.epoch_root()?;
        let mut h = self.begin(CREDITS)?;
        self.store_epoch(&mut h, &root, !self.epoch.closes())?;
        drop(h);
        self.journal.commit()
    }
}

impl EpochOps for Ext4 {
    fn keep_open(&self) {
        self.epoch.keep_open();
    }

    fn base(&self) -> u64 {
        self.epoch.base()
    }

    /// Raises the epoch, because changes follow that no counter shows.
    fn raise(&self) -> Result<()> {
        let mut h = self.begin(CREDITS)?;
        self.raise_stored_epoch(&mut h)?;
        drop(h);
        self.journal.commit()
    }
}
