//! The state of one COMPOUND between two of its operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::StateId;
use ivers_vfs::InodeRef;

use super::clients::{PermitGuard, ReportedAttrs, WakeReason};
use super::current_fh::{CurrentFh, Object};
use super::filesystem::{Exports, Filesystem};
use super::idmap::ClientIdMap;
use super::origin::Origin;
use super::service::Service;
use super::status::OrStatus;
use crate::exports::policy::Refusal;
use crate::exports::table::{Export, Node};
use crate::state::{Access, Caller, Digest, FileId, SessionRequest, Step, Stop};

/// The bytes that each COPY of a request may copy at least.
const COPY_BYTES_LEAST: u64 = 64 << 10;

/// The state of one COMPOUND between two of its operations.
pub struct Context {
    /// What all requests share.
    pub service: Arc<Service>,
    /// The exports at the time when the request began; a later change of the table does not affect it.
    pub exports: Arc<Exports>,
    /// The origin of the request.
    pub origin: Origin,
    /// The minor version.
    pub minor: u32,
    /// The current filehandle.
    pub current_fh: Option<CurrentFh>,
    /// The current stateid, or [`StateId::INVALID`] if there is none.
    pub stateid: StateId,
    /// The saved filehandle, with its stateid.
    pub saved_fh: Option<(CurrentFh, StateId)>,
    /// The client on whose behalf operations run. SEQUENCE sets it.
    pub caller: Caller,
    /// The request of a session that SEQUENCE has begun. The executor finishes it with the reply.
    pub session: Option<SessionRequest>,
    /// Whether the session caches the reply.
    pub cache_reply: bool,
    /// Whether this repeats a request whose reply was not cached: the second operation returns
    /// NFS4ERR_RETRY_UNCACHED_REP.
    pub retry_uncached: bool,
    /// The limit of the reply in bytes, including its header.
    pub reply_bytes: usize,
    /// A digest of the request, which distinguishes it from another one in the same slot.
    pub digest: Digest,
    /// The size of the request in bytes, including its header.
    pub request_bytes: usize,
    /// The number of operations of the request.
    pub op_count: u32,
    /// The number of the next operation, if there is one.
    pub next_op: Option<u32>,
    /// The bytes that the result of this operation may take.
    pub(crate) result_bytes_max: usize,
    /// The bytes that the COPYs of this request have copied.
    copied_bytes: AtomicU64,
    awaiting_holder: Option<FileId>,
    holder_attrs: Option<(FileId, Option<ReportedAttrs>, Arc<PermitGuard>)>,
}

impl Context {
    pub(crate) fn new(service: Arc<Service>, origin: Origin, minor: u32) -> Self {
        Self {
            exports: service.exports(),
            reply_bytes: service.limits.reply_bytes_max,
            service,
            origin,
            minor,
            current_fh: None,
            stateid: StateId::INVALID,
            saved_fh: None,
            caller: Caller::V40,
            session: None,
            cache_reply: false,
            retry_uncached: false,
            digest: Digest(0),
            request_bytes: 0,
            op_count: 0,
            next_op: None,
            result_bytes_max: 0,
            copied_bytes: AtomicU64::new(0),
            awaiting_holder: None,
            holder_attrs: None,
        }
    }

    /// Returns how many of these bytes a COPY may copy before the reply, and counts them. A request with many
    /// COPYs must not occupy its thread for long, but each COPY must copy something.
    pub(crate) fn copy_bytes(&self, wanted: u64) -> u64 {
        let left = self.service.limits.copy_bytes_max.saturating_sub(self.copied_bytes.load(Relaxed));
        let granted = wanted.min(left.max(COPY_BYTES_LEAST));
        self.copied_bytes.fetch_add(granted, Relaxed);
        granted
    }

    // ---- filehandles ----

    /// The current filehandle. Error: NFS4ERR_NOFILEHANDLE.
    pub fn current_fh(&self) -> Res<&CurrentFh> {
        self.current_fh.as_ref().ok_or(NfsStat::Nofilehandle)
    }

    /// The current object. `otherwise` is the error for a directory of the pseudo-root. Fails if the caller
    /// may not use the object.
    pub fn object(&self, otherwise: NfsStat) -> Res<&Object> {
        let object = self.current_fh()?.object(otherwise)?;
        object.read_cred()?;
        Ok(object)
    }

    /// The current directory, for an operation that changes it.
    pub fn directory(&self) -> Res<&Object> {
        let object = self.object(NfsStat::Rofs)?;
        if object.inode.kind != ivers_vfs::FileType::Directory {
            return Err(NfsStat::Notdir);
        }
        object.write_cred()?;
        Ok(object)
    }

    /// The saved object. `otherwise` is the error for a directory of the pseudo-root.
    pub fn saved_object(&self, otherwise: NfsStat) -> Res<&Object> {
        let (fh, _) = self.saved_fh.as_ref().ok_or(NfsStat::Nofilehandle)?;
        let object = fh.object(otherwise)?;
        object.read_cred()?;
        Ok(object)
    }

    /// Sets the current filehandle and invalidates the current stateid.
    pub fn set_current_fh(&mut self, fh: CurrentFh) {
        self.current_fh = Some(fh);
        // [RFC8881 16.2.3.1.2]
        self.stateid = StateId::INVALID;
    }

    /// An object of an export with the access that the export grants to this request. Fails with
    /// NFS4ERR_ACCESS if the export excludes the caller's address.
    pub fn export_object(&self, export: &Arc<Export<Filesystem>>, inode: InodeRef) -> Res<Object> {
        let access = export.policy.admit(self.origin.caller_info());
        if let Err(why) = access {
            self.service.denials.record(&export.path, self.origin.address, why);
            if why == Refusal::Address {
                return Err(NfsStat::Access);
            }
        }
        Ok(Object { export: export.clone(), inode, access })
    }

    /// The filehandle of an entry of the pseudo-root.
    pub fn resolve_node(&self, node: &Node<Filesystem>) -> Res<CurrentFh> {
        match node {
            Node::Directory(number) => Ok(CurrentFh::Pseudo(*number)),
            Node::Export(export) => {
                let root = export.filesystem.vfs.root().nfs()?;
                self.export_object(export, root).map(CurrentFh::Object)
            }
        }
    }

    /// The mapping of user and group names for this client.
    pub fn id_map(&self) -> ClientIdMap<'_> {
        self.service.id_mapper.for_client(self.origin.address)
    }

    // ---- clients ----

    /// The stateid itself, or the current stateid if the special value for it was sent (NFSv4.1 and later).
    pub fn resolve_stateid(&self, stateid: &StateId) -> Res<StateId> {
        if self.minor == 0 || *stateid != StateId::CURRENT {
            // [RFC8881 8.2.3]
            let invalid = self.minor > 0 && *stateid == StateId::INVALID;
            return if invalid { Err(NfsStat::BadStateid) } else { Ok(*stateid) };
        }
        // [RFC8881 16.2.3.1.2]
        if self.stateid == StateId::INVALID { Err(NfsStat::BadStateid) } else { Ok(self.stateid) }
    }

    /// Begins an access to an object under a resolved stateid.
    pub fn begin_access(&self, object: &Object, stateid: &StateId, does: Access) -> Step<PermitGuard> {
        self.service.clients.begin_access(self.caller, object.file(), stateid, does)
    }

    /// Whether the caller's user opened the file with this resolved stateid.
    pub fn is_opener(&self, stateid: &StateId) -> bool {
        self.service.clients.is_opener(&self.origin, self.caller, stateid)
    }

    /// Begins a change that requires no stateid. `None` if the object is no regular file: clients hold no
    /// state of it.
    pub fn begin_change(&self, object: &Object, does: Access) -> Step<Option<PermitGuard>> {
        if object.inode.kind != ivers_vfs::FileType::Regular {
            return Ok(None);
        }
        self.begin_access(object, &StateId::ANONYMOUS, does).map(Some)
    }

    /// Begins to read attributes that the holder of a write delegation may have changed. Returns the
    /// attributes that the holder reported, if it was asked and changed the file. Otherwise the VFS has the
    /// current ones as long as the guard lives.
    pub fn begin_getattr(&mut self, object: &Object) -> Step<(Option<ReportedAttrs>, Option<PermitGuard>)> {
        let file = object.file();
        if object.inode.kind != ivers_vfs::FileType::Regular {
            return Ok((None, None));
        }
        if let Some((holder_file, reported, _)) = &self.holder_attrs
            && *holder_file == file
        {
            return Ok((*reported, None));
        }
        self.awaiting_holder = Some(file);
        self.service.clients.begin_getattr(self.caller, file).map(|guard| (None, Some(guard)))
    }

    /// Takes in why the suspended operation goes on. Error: the operation ends with it.
    pub(crate) fn wake(&mut self, reason: WakeReason) -> Step<()> {
        match (reason, self.awaiting_holder.take()) {
            (WakeReason::Retry, _) => {}
            (WakeReason::HolderAnswered(reported, until), Some(file)) => {
                self.holder_attrs = Some((file, reported, until))
            }
            (WakeReason::HolderAnswered(..), None) | (WakeReason::TimedOut, _) => {
                return Err(Stop::Fail(NfsStat::Delay));
            }
        }
        Ok(())
    }

    /// Forgets what the holder of a delegation reported for the operation that has ended.
    pub(crate) fn next_operation(&mut self) {
        (self.awaiting_holder, self.holder_attrs) = (None, None);
    }
}
