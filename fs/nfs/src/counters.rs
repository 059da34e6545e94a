//! Counters of a mount, for `ivers stats`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ivers_nfs4::ops::{Op, number};

/// The operations that are counted each, and their names. SEQUENCE is in every request.
const OPERATIONS: [(u32, &str); 32] = [
    (number::ACCESS, "server_access"),
    (number::ALLOCATE, "server_allocate"),
    (number::CLONE, "server_clone"),
    (number::CLOSE, "server_close"),
    (number::COMMIT, "server_commit"),
    (number::COPY, "server_copy"),
    (number::CREATE, "server_create"),
    (number::DEALLOCATE, "server_deallocate"),
    (number::DELEGRETURN, "server_delegreturn"),
    (number::FREE_STATEID, "server_free_stateid"),
    (number::GETATTR, "server_getattr"),
    (number::GETXATTR, "server_getxattr"),
    (number::LINK, "server_link"),
    (number::LISTXATTRS, "server_listxattrs"),
    (number::LOCK, "server_lock"),
    (number::LOCKT, "server_lockt"),
    (number::LOCKU, "server_locku"),
    (number::LOOKUP, "server_lookup"),
    (number::LOOKUPP, "server_lookupp"),
    (number::OPEN, "server_open"),
    (number::READ, "server_read"),
    (number::READDIR, "server_readdir"),
    (number::READLINK, "server_readlink"),
    (number::RELEASE_LOCKOWNER, "server_release_lockowner"),
    (number::REMOVE, "server_remove"),
    (number::REMOVEXATTR, "server_removexattr"),
    (number::RENAME, "server_rename"),
    (number::SEEK, "server_seek"),
    (number::SETATTR, "server_setattr"),
    (number::SETXATTR, "server_setxattr"),
    (number::TEST_STATEID, "server_test_stateid"),
    (number::WRITE, "server_write"),
];

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests, each counted once: they are round trips.
    pub requests: AtomicU64,
    /// Requests that were sent again: their reply was lost, or the server asked for a pause.
    pub retries: AtomicU64,
    /// Connections that were made.
    pub connections: AtomicU64,
    /// Sessions that were made.
    pub sessions: AtomicU64,
    /// Questions that cached attributes answered.
    pub attribute_hits: AtomicU64,
    /// Questions that cached results of ACCESS answered.
    pub access_hits: AtomicU64,
    /// Callbacks that the server sent.
    pub callbacks: AtomicU64,
    /// Delegations that the server granted.
    pub delegations: AtomicU64,
    /// Delegations that the server recalled.
    pub recalls: AtomicU64,
    /// Opens under a delegation, without a request.
    pub local_opens: AtomicU64,
    /// Requests that no program waited for.
    pub background: AtomicU64,
    /// Requests that carried the data of several files.
    pub together: AtomicU64,
    /// Closes that left a file to be sent or closed later.
    pub deferred_closes: AtomicU64,
    /// Names that a directory certainly lacks, known without a request.
    pub absent_names: AtomicU64,
    operations: [AtomicU64; OPERATIONS.len()],
}

impl Counters {
    /// Counts one more.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// Counts the operations of a request. With NFSv4.0, RELEASE_LOCKOWNER is sent for FREE_STATEID.
    pub fn operations(&self, ops: &[Op], is_version_40: bool) {
        for op in ops {
            let sent = match op.number() {
                number::FREE_STATEID if is_version_40 => number::RELEASE_LOCKOWNER,
                other => other,
            };
            if let Some(at) = OPERATIONS.iter().position(|(number, _)| *number == sent) {
                Self::count(&self.operations[at]);
            }
        }
    }

    /// Returns names and values.
    pub fn fields(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("server_requests", &self.requests),
            ("server_retries", &self.retries),
            ("server_connections", &self.connections),
            ("server_sessions", &self.sessions),
            ("server_attribute_hits", &self.attribute_hits),
            ("server_access_hits", &self.access_hits),
            ("server_callbacks", &self.callbacks),
            ("server_delegations", &self.delegations),
            ("server_recalls", &self.recalls),
            ("server_local_opens", &self.local_opens),
            ("server_background_requests", &self.background),
            ("server_shared_requests", &self.together),
            ("server_deferred_closes", &self.deferred_closes),
            ("server_absent_names", &self.absent_names),
        ];
        let operations = OPERATIONS.iter().map(|(_, name)| *name).zip(&self.operations);
        all.into_iter().chain(operations).map(|(name, count)| (name, count.load(Relaxed))).collect()
    }
}
