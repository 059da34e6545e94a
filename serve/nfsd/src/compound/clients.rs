//! What this floor asks about clients. [`State`](crate::state::State) knows the answers; whoever holds its mutex and carries out its effects gives them.

use std::any::Any;
use std::sync::Arc;

use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::types::{StateId, Verifier};
use ivers_vfs::Cred;

use super::context::{Context, Origin};
use super::place::Object;
use crate::state::{Caller, Does, File, Step};

/// Leave to do something to a file ([`Permit`](crate::state::Permit)): what was decided holds until this is dropped.
#[must_use = "what was decided holds only as long as this lives"]
pub struct Held(Box<dyn Send + Sync>);

impl Held {
    /// Ends when `until` is dropped.
    pub fn new(until: impl Send + Sync + 'static) -> Self {
        Self(Box::new(until))
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({:p})", self.0)
    }
}

/// What the holder of a write delegation has made of a file, after the server has bumped its change attribute for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// The change attribute.
    pub change: u64,
    /// His size.
    pub size: u64,
}

/// Why a request that has waited goes on.
#[derive(Debug, Clone)]
pub enum News {
    /// What it waited for is done: the operation is tried again.
    Again,
    /// The holder of the delegation was asked: he has written, or not. What was decided with that holds until all who were told have read the attributes.
    Told(Option<Shown>, Arc<Held>),
    /// It took too long, or came to nothing: NFS4ERR_DELAY.
    Late,
}

/// How an operation of clients' state was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// By this.
    Result(Box<OpResult>),
    /// It is a retry of the whole request: this COMPOUND was the reply (RFC 8881 section 2.10.6.1).
    Replay(Arc<[u8]>),
}

/// What is to be copied, when everything that can be looked at before was.
pub struct CopyOrder {
    /// From this file.
    pub source: Object,
    /// By which right.
    pub read_by: StateId,
    /// From here.
    pub source_offset: u64,
    /// Into this file of the same filesystem.
    pub target: Object,
    /// By which right.
    pub write_by: StateId,
    /// To here.
    pub target_offset: u64,
    /// So many bytes.
    pub length: u64,
    /// As whom.
    pub cred: Cred,
    /// The write verifier from before the first byte.
    pub verifier: Verifier,
}

impl CopyOrder {
    /// Copy a part of it; says how many bytes.
    pub fn slice(&self, done: u64, length: u64) -> ivers_vfs::Result<u64> {
        let (from, to) = (self.source_offset + done, self.target_offset + done);
        self.target.vfs().copy_range(&self.cred, &self.source.inode, from, &self.target.inode, to, length)
    }
}

/// Whose files are whose.
pub trait Clients: Send + Sync {
    /// Look at the stateid, the share modes and the delegations ([`State::permit`](crate::state::State::permit)). It is ended by dropping it.
    fn permit(&self, caller: Caller, file: File, stateid: &StateId, does: Does) -> Step<Held>;

    /// Whether who asks has opened himself what this stateid is of: then what he may do was settled.
    fn is_opener(&self, origin: &Origin, caller: Caller, stateid: &StateId) -> bool;

    /// Leave to look at change attribute, size and times of a file as the VFS has them ([`State::look`](crate::state::State::look)).
    fn look(&self, caller: Caller, file: File) -> Step<Held>;

    /// Copy behind the reply, under this stateid. None: it is to be done at once.
    fn copy(&self, context: &Context, order: CopyOrder) -> Step<Option<StateId>>;

    /// An operation of clients, sessions, opens, locks or delegations. SEQUENCE fills in [`Context::session`] and what goes with it.
    fn operate(&self, context: &mut Context, op: &Op) -> Step<Answered>;

    /// A request with a session is over. `reply` is its COMPOUND; none if whoever worked on it has died: then NFS4ERR_SERVERFAULT is its reply for ever.
    fn finish(&self, session: Box<dyn Any + Send>, reply: Option<&[u8]>);
}
