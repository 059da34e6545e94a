//! What all requests share.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::types::ChangeInfo;
use parking_lot::RwLock;
use siphasher::sip::SipHasher24;

use super::clients::Clients;
use super::denial_log::DenialLog;
use super::filesystem::{Exports, Filesystem};
use super::idmap::IdMapper;
use super::op_stats::OpStats;
use super::reply_cache::ReplyCache;
use crate::exports::handle::Handles;
use crate::state::Digest;

/// Limits of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of a reply, including its header, unless a session sets a limit.
    pub reply_bytes_max: usize,
    /// Operations of an NFSv4.0 request. Sessions have their own limit.
    pub operations_max: u32,
    /// Bytes of a READ or WRITE.
    pub data_bytes_max: u32,
    /// Bytes that the synchronous COPYs of a request copy. The client continues from there.
    pub copy_bytes_max: u64,
    /// A longer COPY continues after its reply, if the client supports that.
    pub copy_sync_bytes_max: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            reply_bytes_max: 1 << 20 | 4096,
            operations_max: 64,
            data_bytes_max: 1 << 20,
            copy_bytes_max: 64 << 20,
            copy_sync_bytes_max: 4 << 20,
        }
    }
}

fn filesystems(exports: &Exports) -> impl Iterator<Item = (u32, Filesystem)> {
    exports.exports().map(|export| (export.identity, export.filesystem.clone()))
}

/// What all requests share.
pub struct Service {
    /// Encodes and decodes filehandles.
    pub handles: Handles,
    /// Clients' state.
    pub clients: Arc<dyn Clients>,
    /// User and group names.
    pub id_mapper: IdMapper,
    /// The lease time.
    pub lease_seconds: u32,
    /// Limits of one request.
    pub limits: RequestLimits,
    /// Counts of operations.
    pub op_stats: OpStats,
    /// Denied accesses to exports.
    pub denials: DenialLog,
    exports: RwLock<Arc<Exports>>,
    /// All filesystems that were ever exported, by identity: clients may hold state of a former export.
    filesystems: RwLock<HashMap<u32, Filesystem>>,
    digest_key: [u8; 16],
    unique_change: AtomicU64,
    pub(crate) reply_cache: ReplyCache,
}

/// The part of a request that is hashed. It includes everything before the data of a WRITE.
const HASHED_BYTES: usize = 512;

impl Service {
    /// A service with default limits and a lease time of 90 s. `boot` is the number of starts of the server.
    pub fn new(handles: Handles, clients: Arc<dyn Clients>, exports: Exports, boot: u32) -> Self {
        Self {
            handles,
            clients,
            id_mapper: IdMapper::default(),
            lease_seconds: 90,
            limits: RequestLimits::default(),
            op_stats: OpStats::default(),
            denials: DenialLog::default(),
            filesystems: RwLock::new(filesystems(&exports).collect()),
            exports: RwLock::new(Arc::new(exports)),
            digest_key: rand::random(),
            unique_change: AtomicU64::new(u64::from(boot) << 40),
            reply_cache: ReplyCache::default(),
        }
    }

    /// The exports for requests that begin now.
    pub fn exports(&self) -> Arc<Exports> {
        self.exports.read().clone()
    }

    /// A present or former export.
    pub fn filesystem(&self, identity: u32) -> Option<Filesystem> {
        self.filesystems.read().get(&identity).cloned()
    }

    /// All present and former exports.
    pub fn filesystems(&self) -> Vec<(u32, Filesystem)> {
        self.filesystems.read().iter().map(|(identity, filesystem)| (*identity, filesystem.clone())).collect()
    }

    /// Replaces the exports.
    pub fn set_exports(&self, exports: Exports) {
        self.filesystems.write().extend(filesystems(&exports));
        *self.exports.write() = Arc::new(exports);
    }

    /// A digest that distinguishes requests. Hashing a MiB of data would take as long as writing it, so the
    /// rest of the request is a CRC32C. A client that forges a collision gets its own old reply.
    pub fn digest(&self, request: &[u8]) -> Digest {
        let (head, rest) = request.split_at(request.len().min(HASHED_BYTES));
        let mut hasher = SipHasher24::new_with_key(&self.digest_key);
        hasher.write(head);
        hasher.write_u32(crc32c::crc32c(rest));
        hasher.write_usize(request.len());
        Digest(hasher.finish())
    }

    /// A change attribute that is never returned twice, for objects without one.
    pub fn unique_change(&self) -> u64 {
        self.unique_change.fetch_add(1, Ordering::Relaxed)
    }

    /// The change info of the VFS. Without one, two unique values: a constant would mean that nothing
    /// changed.
    pub fn change_info(&self, info: Option<ivers_vfs::ChangeInfo>) -> ChangeInfo {
        match info {
            Some(info) => ChangeInfo { atomic: true, before: info.before, after: info.after },
            None => ChangeInfo { atomic: false, before: self.unique_change(), after: self.unique_change() },
        }
    }
}
