//! Stable storage: what survives a restart, in a directory of the server.
//!
//! | content | purpose | written |
//! |---|---|---|
//! | secret, owner, scope | unpredictable handles; clients recognize the server | once |
//! | boot count | recognizes stateids and client IDs of other boots | at each start, before serving |
//! | clients | reclaim after a restart | [`StableStorage::change_clients`] |
//! | lease time | length of the next grace period | [`StableStorage::set_lease`] |
//! | exports: identity, UUID, device | handles that survive a restart | [`StableStorage::identify`] |
//! | exports: write verifier, open flag | a new verifier after a crash | `attach` and `detach` |
//! | pseudo-root: digest, change | grows with each new table of exports | [`StableStorage::pseudo_change`] |
//!
//! Each method returns when its change is durable, as the module `log` describes. On error, nothing changes.
//!
//! A filesystem whose device has another name is another export, and its old handles are stale. That is safe,
//! while confusing a clone with its original would not be.

mod contents;
mod log;
mod log_file;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use thiserror::Error;

use crate::state::{Millis, PreviousBoot, RecordChange};
use contents::{Contents, ExportRecord, Record};
use log::{BadLog, Log};
use log_file::{Directory, LOG, LogFile};

pub use contents::ServerIdentity;

/// The step between the write verifiers of two boots. One boot loses far fewer writes, so verifiers never
/// repeat.
const BOOT_STRIDE: u64 = 1 << 32;

/// An error of stable storage, with what to do about it.
#[derive(Debug, Error)]
pub enum StableError {
    /// Another server uses the directory.
    #[error(
        "another server uses the state directory {}: stop it, or use another directory", path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// An I/O error.
    #[error(
        "state directory {}: {doing}: {source}. Make it writable and free some space, or use another \
        directory: clients then mount again and lose their state",
        path.display()
    )]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Damage that no crash causes.
    #[error(
        "{} is damaged at byte {at}, which no crash explains. To start without it, move it away: clients \
        then mount again and lose their state. Do not restore an older copy: its clients could reclaim \
        what others hold", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The byte offset.
        at: usize,
    },
    /// A later version wrote the file.
    #[error(
        "{} was written by a later version (format {version}): use that version, or move it away: clients \
        then mount again and lose their state", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u32,
    },
    /// The boot count is at its maximum.
    #[error(
        "{}: the boot count is at its maximum: move it away: clients then mount again and lose their state",
        path.display()
    )]
    Boots {
        /// The file.
        path: PathBuf,
    },
}

/// The stable storage of one server. Only one server at a time can open a directory.
pub struct StableStorage {
    path: PathBuf,
    identity: ServerIdentity,
    boot: u32,
    previous: PreviousBoot,
    discarded: usize,
    log: Mutex<Log<Directory>>,
}

impl std::fmt::Debug for StableStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "state in {}", self.path.display())
    }
}

impl StableStorage {
    /// Reads the storage, or creates it, and begins another boot.
    pub fn open(path: &Path) -> Result<Self, StableError> {
        let io = |doing| move |source| StableError::Io { doing, path: path.to_owned(), source };
        let file = || path.join(LOG);
        let directory = Directory::open(path).map_err(io("cannot open"))?;
        let mut log_file = directory.ok_or_else(|| StableError::Busy { path: path.to_owned() })?;
        let (mut contents, discarded) = match log_file.read().map_err(io("cannot read"))? {
            // A random start: if the directory was moved away, clients may still have client IDs and stateids
            // of its boots.
            None => (Contents { boot: rand::random::<u32>() >> 1, ..Contents::default() }, 0),
            Some(bytes) => log::read(&bytes).map_err(|bad| match bad {
                BadLog::Newer(version) => StableError::Newer { path: file(), version },
                BadLog::Damaged(at) => StableError::Damaged { path: file(), at },
            })?,
        };
        let clients = contents.clients.values().cloned().collect();
        let previous = PreviousBoot { clients, lease: Millis(contents.lease_ms) };
        contents.boot = contents.boot.checked_add(1).ok_or_else(|| StableError::Boots { path: file() })?;
        let identity = *contents.identity.get_or_insert_with(|| ServerIdentity {
            secret: rand::random(),
            owner: rand::random(),
            scope: rand::random(),
        });
        let boot = contents.boot;
        let log = Log::create(log_file, contents, rand::random()).map_err(io("cannot write"))?;
        Ok(Self { path: path.to_owned(), identity, boot, previous, discarded, log: Mutex::new(log) })
    }

    /// Returns the random numbers that identify the server.
    pub fn identity(&self) -> ServerIdentity {
        self.identity
    }

    /// Returns the boot count. It starts at a random number.
    pub fn boot(&self) -> u32 {
        self.boot
    }

    /// Returns what the last boot left.
    pub fn previous_boot(&self) -> PreviousBoot {
        self.previous.clone()
    }

    /// Returns the size of a change that a crash of the last boot interrupted. It is discarded, because it
    /// was never acknowledged.
    pub fn discarded_bytes(&self) -> usize {
        self.discarded
    }

    /// Checks that the next start will find everything. Returns false if something was missing; then it has
    /// been written again.
    pub fn ensure_in_place(&self) -> Result<bool, StableError> {
        let doing = "cannot write";
        let in_place = self.log.lock().ensure_in_place();
        in_place.map_err(|source| StableError::Io { doing, path: self.path.clone(), source })
    }

    fn keep(&self, log: &mut Log<Directory>, record: Record) -> Result<(), StableError> {
        let doing = "cannot write";
        log.append(record).map_err(|source| StableError::Io { doing, path: self.path.clone(), source })
    }

    /// Stores the lease time. Until the grace period is over, keeps the maximum of this and the stored one: a
    /// crash within the grace period must not shorten the next one. Call it at the start, and with `settled`
    /// when the grace period is over.
    pub fn set_lease(&self, lease: Millis, settled: bool) -> Result<(), StableError> {
        let mut log = self.log.lock();
        let kept = log.contents().lease_ms;
        let both = if settled || self.previous.clients.is_empty() { lease.0 } else { lease.0.max(kept) };
        self.keep(&mut log, Record::Lease(both))
    }

    /// Changes the list of clients.
    pub fn change_clients(&self, change: &RecordChange) -> Result<(), StableError> {
        self.keep(&mut self.log.lock(), Record::from(change))
    }

    /// Returns the identity of a filesystem for its handles: the known one or a new one, never 0.
    pub fn identify(&self, uuid: [u8; 16], device: &[u8]) -> Result<u32, StableError> {
        let mut log = self.log.lock();
        let exports = &log.contents().exports;
        if let Some(known) = exports.values().find(|export| export.uuid == uuid && export.device == device) {
            return Ok(known.identity);
        }
        let identity = unused_identity(log.contents());
        let export =
            ExportRecord { identity, uuid, device: device.to_owned(), verifier: rand::random(), open: false };
        self.keep(&mut log, Record::Export(export))?;
        Ok(identity)
    }

    /// Returns a new identity for a filesystem that stores nothing. After a restart, its handles are stale.
    pub fn identify_volatile(&self) -> u32 {
        unused_identity(self.log.lock().contents())
    }

    /// Marks an export as open and returns its write verifier. The verifier is a new one if the last boot did
    /// not [`Self::detach`] the export, because unstable writes may be lost. The caller changes it when
    /// writes are lost while the export is served.
    pub fn attach(&self, identity: u32) -> Result<u64, StableError> {
        let mut log = self.log.lock();
        let Some(mut export) = log.contents().exports.get(&identity).cloned() else {
            // A filesystem that stores nothing.
            return Ok(rand::random());
        };
        if export.open {
            export.verifier = export.verifier.wrapping_add(BOOT_STRIDE);
        }
        export.open = true;
        let verifier = export.verifier;
        self.keep(&mut log, Record::Export(export))?;
        Ok(verifier)
    }

    /// Marks an export as closed after a complete flush. `verifier` is the last one that clients were told.
    pub fn detach(&self, identity: u32, verifier: u64) -> Result<(), StableError> {
        let mut log = self.log.lock();
        match log.contents().exports.get(&identity).cloned() {
            Some(export) => {
                self.keep(&mut log, Record::Export(ExportRecord { verifier, open: false, ..export }))
            }
            None => Ok(()),
        }
    }

    /// Returns `change` of the pseudo-root for a table of exports with this digest.
    pub fn pseudo_change(&self, digest: u64) -> Result<u64, StableError> {
        let mut log = self.log.lock();
        let (known, change) = log.contents().pseudo;
        if known == digest && change != 0 {
            return Ok(change);
        }
        self.keep(&mut log, Record::Pseudo(digest, change + 1))?;
        Ok(change + 1)
    }
}

fn unused_identity(contents: &Contents) -> u32 {
    loop {
        let identity = rand::random();
        if identity != 0 && !contents.exports.contains_key(&identity) {
            return identity;
        }
    }
}
