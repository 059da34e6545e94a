//! The questions that operations ask about clients' state. [`server`](crate::server) answers them.

use std::sync::Arc;

use ivers_nfs4::types::{StateId, Verifier};
use ivers_vfs::Cred;

use super::current_fh::Object;
use super::origin::Origin;
use crate::state::{Access, Caller, FileId, Permit, SessionRequest, Step};

/// Ends permits for their [guards](PermitGuard).
pub trait EndPermit: Send + Sync {
    /// Ends a permit.
    fn end_permit(self: Arc<Self>, permit: Permit);
}

/// A permit that ends when this is dropped.
#[must_use = "the permit ends when this is dropped"]
pub struct PermitGuard {
    /// The permit, and where it ends. Present until the drop.
    permit: Option<(Permit, Arc<dyn EndPermit>)>,
}

impl PermitGuard {
    /// Guards a permit of this state.
    pub fn new(permit: Permit, state: Arc<dyn EndPermit>) -> Self {
        Self { permit: Some((permit, state)) }
    }
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        if let Some((permit, state)) = self.permit.take() {
            state.end_permit(permit);
        }
    }
}

impl std::fmt::Debug for PermitGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PermitGuard").field(&self.permit.as_ref().map(|(permit, _)| permit)).finish()
    }
}

/// Attributes of a file that the holder of a write delegation has changed. The server has already bumped the
/// change attribute for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedAttrs {
    /// The change attribute.
    pub change: u64,
    /// The size that the holder reported.
    pub size: u64,
}

/// Why a suspended request goes on.
#[derive(Debug, Clone)]
pub enum WakeReason {
    /// The event that it waited for has happened: the operation is tried again.
    Retry,
    /// The holder of the delegation has answered CB_GETATTR: changed attributes, or none if it changed
    /// nothing. The guard keeps other changes out until every waiting request has read the attributes.
    HolderAnswered(Option<ReportedAttrs>, Arc<PermitGuard>),
    /// The event did not happen in time, or can no longer happen: NFS4ERR_DELAY.
    TimedOut,
}

/// The arguments of a COPY, validated.
pub struct CopyJob {
    /// The file to read.
    pub source: Object,
    /// The stateid that permits reading.
    pub source_stateid: StateId,
    /// The first byte to read.
    pub source_offset: u64,
    /// The file to write, in the same filesystem.
    pub target: Object,
    /// The stateid that permits writing.
    pub target_stateid: StateId,
    /// The first byte to write.
    pub target_offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The credentials of the caller.
    pub cred: Cred,
    /// The write verifier from before the first byte was written.
    pub verifier: Verifier,
}

impl CopyJob {
    /// Copies at most `length` bytes after the first `done`. Returns the number of bytes copied.
    pub fn slice(&self, done: u64, length: u64) -> ivers_vfs::Result<u64> {
        let (from, to) = (self.source_offset + done, self.target_offset + done);
        self.target.vfs().copy_range(&self.cred, &self.source.inode, from, &self.target.inode, to, length)
    }
}

/// Answers what operations on files ask about clients' state.
pub trait Clients: Send + Sync {
    /// Checks the stateid, the share reservations and the delegations of a file. The grant holds as long as
    /// the guard lives.
    fn begin_access(
        &self,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        does: Access,
    ) -> Step<PermitGuard>;

    /// Whether the caller's user opened the file with this stateid. Then OPEN has checked its rights.
    fn is_opener(&self, origin: &Origin, caller: Caller, stateid: &StateId) -> bool;

    /// Begins to read the attributes that the VFS has of a file. They are current as long as the guard lives.
    /// If another client holds a write delegation, the operation waits until that client has reported its
    /// changes.
    fn begin_getattr(&self, caller: Caller, file: FileId) -> Step<PermitGuard>;

    /// Starts a copy that continues after its reply, and returns its stateid. `None`: the caller copies
    /// before it replies.
    fn begin_copy(
        &self,
        caller: Caller,
        session: Option<&SessionRequest>,
        job: CopyJob,
    ) -> Step<Option<StateId>>;
}
