//! What survives a restart, in a directory of the server's own.
//!
//! | what | why | changed |
//! |---|---|---|
//! | secret, owner, scope | handles that nobody guesses; clients that know the server again, and never take two for one | never |
//! | boot count | stateids and client ids of another boot are known as such | at each start, before anything is served |
//! | clients | what they held they may claim again | [`StableStorage::change_clients`] |
//! | lease time | how long grace is: what clients were told, not what they are told now | [`StableStorage::set_lease`] |
//! | exports: identity, UUID and device | handles mean the same after a restart; filesystems with no UUID, or a cloned one, are told apart by where they are | [`StableStorage::identify`] |
//! | exports: write verifier, and whether it is served | another verifier after an end that did not flush, the same one after an end that did | [`StableStorage::attach`], [`StableStorage::detach`] |
//! | the pseudo-root: digest, change | `change` grows when the table of exports is another one | [`StableStorage::pseudo_change`] |
//!
//! Each method returns when what it says is durable (`log` says how); what fails is as it was. A filesystem whose device is named otherwise than before is another export: its old handles are
//! stale, which is safe, where taking a clone for what it was cloned from would not be.

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

/// Far more than writes are lost in one boot: the verifiers of two boots never meet.
const BOOT_STRIDE: u64 = 1 << 32;

/// Why nothing can be kept, and what to do about it.
#[derive(Debug, Error)]
pub enum StableError {
    /// Somebody else has the directory.
    #[error(
        "another server keeps its state in {}: end it, or give this one a directory of its own", path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The system says no.
    #[error(
        "{} in the state directory {}: {source}. The server needs it durable before it serves: make it writable and free some \
        space, or give it another directory (clients then mount again, and cannot claim what they hold)", doing, path.display()
    )]
    Io {
        /// What failed.
        doing: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not what a crash leaves.
    #[error(
        "{} is damaged at byte {at}, and not by a crash: it cannot be told which clients hold what. To go on without it, move it away: \
        clients then mount again, and cannot claim what they hold. Do not put an older copy in its place: \
        it would vouch for what is over", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: usize,
    },
    /// A later version was here.
    #[error(
        "{} was written by a later version (format {version}): serve with that one, or move the file away: clients then mount again, and \
        cannot claim what they hold", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// After four thousand million starts.
    #[error(
        "{} counts as many starts as there can be: move it away; clients then mount again, and cannot claim what they hold",
        path.display()
    )]
    Boots {
        /// The file.
        path: PathBuf,
    },
}

/// What is kept. One server at a time has a directory.
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
    /// Read what was kept, and begin another boot.
    pub fn open(path: &Path) -> Result<Self, StableError> {
        let io = |doing| move |source| StableError::Io { doing, path: path.to_owned(), source };
        let file = || path.join(LOG);
        let directory = Directory::open(path).map_err(io("cannot open"))?;
        let mut log_file = directory.ok_or_else(|| StableError::Busy { path: path.to_owned() })?;
        let (mut contents, discarded) = match log_file.read().map_err(io("cannot read"))? {
            // From anywhere: if somebody has moved the directory away, clients may still come with what an earlier one's boots gave them.
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

    /// Numbers that were made once.
    pub fn identity(&self) -> ServerIdentity {
        self.identity
    }

    /// Which start this is. They are counted, from anywhere.
    pub fn boot(&self) -> u32 {
        self.boot
    }

    /// What the last boot has left.
    pub fn previous_boot(&self) -> PreviousBoot {
        self.previous.clone()
    }

    /// Bytes of a change that was under way when the last boot crashed, and is discarded: nobody was told that it had taken place.
    pub fn discarded_bytes(&self) -> usize {
        self.discarded
    }

    /// Look whether everything is still where the next start will look for it. False: it was not, and has been written there again.
    pub fn ensure_in_place(&self) -> Result<bool, StableError> {
        let doing = "cannot keep what has to outlive the server";
        let settled = self.log.lock().ensure_in_place();
        settled.map_err(|source| StableError::Io { doing, path: self.path.clone(), source })
    }

    fn keep(&self, log: &mut Log<Directory>, record: Record) -> Result<(), StableError> {
        let doing = "cannot write";
        log.append(record).map_err(|source| StableError::Io { doing, path: self.path.clone(), source })
    }

    /// What clients are told now. While those of an earlier boot may claim what they held, the longer of what they were told and this is kept: a crash within
    /// grace must not make the next grace shorter. To be called at the start, and with `settled` when grace is over.
    pub fn set_lease(&self, lease: Millis, settled: bool) -> Result<(), StableError> {
        let mut log = self.log.lock();
        let kept = log.contents().lease_ms;
        let both = if settled || self.previous.clients.is_empty() { lease.0 } else { lease.0.max(kept) };
        self.keep(&mut log, Record::Lease(both))
    }

    /// Another list of clients.
    pub fn change_clients(&self, change: &RecordChange) -> Result<(), StableError> {
        self.keep(&mut self.log.lock(), Record::from(change))
    }

    /// The identity of a filesystem, for its handles: the one that it had, or a new one. Never 0.
    pub fn identify(&self, uuid: [u8; 16], device: &[u8]) -> Result<u32, StableError> {
        let mut log = self.log.lock();
        let exports = &log.contents().exports;
        if let Some(known) = exports.values().find(|export| export.uuid == uuid && export.device == device) {
            return Ok(known.identity);
        }
        let identity = fresh(log.contents());
        let export =
            ExportRecord { identity, uuid, device: device.to_owned(), verifier: rand::random(), open: false };
        self.keep(&mut log, Record::Export(export))?;
        Ok(identity)
    }

    /// An identity for what stores nothing: after a restart its handles are stale, not another's.
    pub fn identify_volatile(&self) -> u32 {
        fresh(self.log.lock().contents())
    }

    /// An export is going to be served. Its write verifier, which is another one if it was served before and [`Self::detach`] was not said: unstable
    /// writes may be lost. What is lost while it is served is for the caller to add.
    pub fn attach(&self, identity: u32) -> Result<u64, StableError> {
        let mut log = self.log.lock();
        let Some(mut export) = log.contents().exports.get(&identity).cloned() else {
            // One that stores nothing.
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

    /// An export is served no longer, and everything was flushed. `verifier` is the last one that clients were told.
    pub fn detach(&self, identity: u32, verifier: u64) -> Result<(), StableError> {
        let mut log = self.log.lock();
        match log.contents().exports.get(&identity).cloned() {
            Some(export) => {
                self.keep(&mut log, Record::Export(ExportRecord { verifier, open: false, ..export }))
            }
            None => Ok(()),
        }
    }

    /// `change` of the pseudo-root for a table of exports with this digest.
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

fn fresh(contents: &Contents) -> u32 {
    loop {
        let identity = rand::random();
        if identity != 0 && !contents.exports.contains_key(&identity) {
            return identity;
        }
    }
}
