//! What all requests share.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::types::{ChangeInfo, Verifier};
use ivers_vfs::Vfs;
use parking_lot::RwLock;
use siphasher::sip::SipHasher24;

use super::clients::Clients;
use super::names::Owners;
use super::refusals::Refusals;
use super::replies::Replies;
use super::tally::Tally;
use crate::exports::handle::Handles;
use crate::exports::table::Table;
use crate::state::Digest;

/// What is exported.
#[derive(Clone)]
pub struct Filesystem {
    /// The filesystem.
    pub vfs: Arc<Vfs>,
    /// The write verifier that it began with. What may be lost since is counted by the VFS.
    pub write_verifier: u64,
    /// Which life of it this is, if numbers of files mean something else after the next mount; otherwise 0. Handles of another life are stale.
    pub instance: u32,
}

impl Filesystem {
    /// A generation as handles have it, or as they had it: the one is made of the other in the same way.
    pub fn in_handles(&self, inode: u64, generation: u32) -> u32 {
        // Whoever has mounted the export begins there.
        if inode == self.vfs.info().root.0 { generation } else { generation ^ self.instance }
    }

    /// The verifier of writes that begin now, or of a flush that is done now.
    pub fn verifier(&self) -> Verifier {
        self.newest_verifier().to_be_bytes()
    }

    /// The verifier as a number, for whoever keeps it over a stop.
    pub fn newest_verifier(&self) -> u64 {
        self.write_verifier.wrapping_add(self.vfs.losses())
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.vfs.info().fs_type, self.vfs.info().label)
    }
}

fn filesystems(exports: &Exports) -> impl Iterator<Item = (u32, Filesystem)> {
    exports.exports().map(|export| (export.identity, export.filesystem.clone()))
}

/// The table of exports.
pub type Exports = Table<Filesystem>;

/// How much one request may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a reply, its head included, where no session says otherwise.
    pub reply_bytes: usize,
    /// Operations of a request of NFSv4.0; sessions have bounds of their own.
    pub operations: u32,
    /// Bytes of a READ or WRITE.
    pub data_bytes: u32,
    /// Bytes that one COPY copies before it is answered: the client goes on from there.
    pub copy_bytes: u64,
    /// A longer copy goes on behind its reply, if the client likes.
    pub copy_at_once: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            reply_bytes: 1 << 20 | 4096,
            operations: 64,
            data_bytes: 1 << 20,
            copy_bytes: 64 << 20,
            copy_at_once: 4 << 20,
        }
    }
}

/// What all requests share.
pub struct Service {
    /// Makes filehandles.
    pub handles: Handles,
    /// Whose files are whose.
    pub clients: Arc<dyn Clients>,
    /// Owners as strings.
    pub owners: Owners,
    /// The lease time.
    pub lease_seconds: u32,
    /// How much one request may be.
    pub bounds: Bounds,
    /// What was done.
    pub tally: Tally,
    /// Who was refused.
    pub refusals: Refusals,
    exports: RwLock<Arc<Exports>>,
    /// All that were ever exported, by their identities: clients hold something of those that are not any more.
    filesystems: RwLock<HashMap<u32, Filesystem>>,
    digest_key: [u8; 16],
    unvouched: AtomicU64,
    pub(super) replies: Replies,
}

/// What comes before the data of a WRITE is in the first of these.
const HASHED_BYTES: usize = 512;

impl Service {
    /// With everything as usual. `boot` counts the server's starts.
    pub fn new(handles: Handles, clients: Arc<dyn Clients>, exports: Exports, boot: u32) -> Self {
        Self {
            handles,
            clients,
            owners: Owners::default(),
            lease_seconds: 90,
            bounds: Bounds::default(),
            tally: Tally::default(),
            refusals: Refusals::default(),
            filesystems: RwLock::new(filesystems(&exports).collect()),
            exports: RwLock::new(Arc::new(exports)),
            digest_key: rand::random(),
            unvouched: AtomicU64::new(u64::from(boot) << 40),
            replies: Replies::default(),
        }
    }

    /// The table of exports, for requests that begin now.
    pub fn exports(&self) -> Arc<Exports> {
        self.exports.read().clone()
    }

    /// One that is exported, or was.
    pub fn filesystem(&self, identity: u32) -> Option<Filesystem> {
        self.filesystems.read().get(&identity).cloned()
    }

    /// All of these.
    pub fn filesystems(&self) -> Vec<(u32, Filesystem)> {
        self.filesystems.read().iter().map(|(identity, filesystem)| (*identity, filesystem.clone())).collect()
    }

    /// Export something else from now on.
    pub fn set_exports(&self, exports: Exports) {
        self.filesystems.write().extend(filesystems(&exports));
        *self.exports.write() = Arc::new(exports);
    }

    /// What tells a request from another one. A MiB of data would take as long to hash as to write: it is summed up by a checksum that the
    /// processor knows. Who makes two alike on purpose gets his own old reply.
    pub fn digest(&self, request: &[u8]) -> Digest {
        let (head, rest) = request.split_at(request.len().min(HASHED_BYTES));
        let mut hasher = SipHasher24::new_with_key(&self.digest_key);
        hasher.write(head);
        hasher.write_u32(crc32c::crc32c(rest));
        hasher.write_usize(request.len());
        Digest(hasher.finish())
    }

    /// A change attribute for what has none: it never comes again.
    pub fn unvouched(&self) -> u64 {
        self.unvouched.fetch_add(1, Ordering::Relaxed)
    }

    /// The VFS's change info, if it has one. A constant in its place would tell every client that nothing changes.
    pub fn change_info(&self, info: Option<ivers_vfs::ChangeInfo>) -> ChangeInfo {
        match info {
            Some(info) => ChangeInfo { atomic: true, before: info.before, after: info.after },
            None => ChangeInfo { atomic: false, before: self.unvouched(), after: self.unvouched() },
        }
    }
}
