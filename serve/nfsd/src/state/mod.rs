//! The state of the clients and what they hold, as plain data. The caller passes in the time and a source of
//! random numbers. This module sends, opens and waits for nothing. `docs/nfsd.md` lists the requirements.
//!
//! # Usage
//!
//! One mutex protects one [`StateManager`]. Each method is a short critical section: it decides, changes
//! tables, and returns. Before the caller releases the mutex, it takes the
//! [`effects`](StateManager::take_effects). After that, it performs them:
//!
//! | effect | what to do | then |
//! |---|---|---|
//! | [`Effect::Persist`] | make it durable, in this order | [`effect_done`] or [`effect_failed`] |
//! | [`Effect::Bump`] | force a bump of the file's change attribute before the reply | [`effect_done`] |
//! | [`Effect::Wake`] | repeat the requests that wait for this ticket | |
//! | [`Effect::Pin`], [`Effect::Unpin`] | keep the file while it is open; release it | |
//! | [`Effect::Callback`] | [`StateManager::begin_callback`], send, wait | [`StateManager::end_callback`] |
//!
//! After the reply to a CB_GETATTR, call [`StateManager::getattr_reply`] too. A method that cannot continue
//! returns a [`Stop`].
//!
//! | operation | calls |
//! |---|---|
//! | EXCHANGE_ID, CREATE_SESSION, DESTROY_*, RECLAIM_COMPLETE | the method of that name |
//! | BIND_CONN_TO_SESSION, TEST_STATEID, FREE_STATEID | the method of that name |
//! | SEQUENCE | [`sequence`] before, [`finish`] after all operations of the request |
//! | READ, WRITE, SETATTR, REMOVE, ... | [`permit`], the VFS, [`end_permit`] |
//! | GETATTR, VERIFY, READDIR of change, size and times | [`begin_getattr`], the VFS, [`end_permit`] |
//! | OPEN | [`open_plan`], [`open_claim`], the VFS, [`open_commit`] or [`open_abort`] |
//! | LOCK, LOCKT, LOCKU, CLOSE, OPEN_DOWNGRADE, DELEGRETURN | the method of that name |
//! | asynchronous COPY | [`copy_begin`] |
//! | each slice of it | [`copy_slice`], the VFS, [`end_permit`] twice, [`copy_progress`] |
//! | operations with a seqid (4.0) | [`begin_owner_request`] before, [`end_owner_request`] after |
//!
//! The decision of `permit` holds until `end_permit`. Call `open_claim` as soon as the file is known and
//! before another client can reach it.
//!
//! Call [`StateManager::tick`] periodically, at the latest at the time that it returned.
//!
//! [`effect_done`]: StateManager::effect_done
//! [`effect_failed`]: StateManager::effect_failed
//! [`sequence`]: StateManager::sequence
//! [`finish`]: StateManager::finish
//! [`permit`]: StateManager::permit
//! [`end_permit`]: StateManager::end_permit
//! [`begin_getattr`]: StateManager::begin_getattr
//! [`open_plan`]: StateManager::open_plan
//! [`open_claim`]: StateManager::open_claim
//! [`open_commit`]: StateManager::open_commit
//! [`open_abort`]: StateManager::open_abort
//! [`copy_begin`]: StateManager::copy_begin
//! [`copy_slice`]: StateManager::copy_slice
//! [`copy_progress`]: StateManager::copy_progress
//! [`begin_owner_request`]: StateManager::begin_owner_request
//! [`end_owner_request`]: StateManager::end_owner_request
//!
//! # Invariants
//!
//! "invariants" is `check_invariants`, which tests call; "driver" is the randomized test in `tests/driver`.
//!
//! | | statement | established by | checked by |
//! |---|---|---|---|
//! | S1 | two opens of one file do not deny each other's access | `open_claim` | both |
//! | S2 | two overlapping locks of different owners are both for reading | `lock` | both |
//! | S3 | a write delegation excludes opens, permits, delegations of others | `grant`, `permit_as` | both |
//! | S4 | a read delegation excludes opens for writing by others | `grant`, `open_claim` | both |
//! | S5 | a request of a slot or an owner is executed once | `sequence`, `begin_owner_request` | driver |
//! | S6 | in the grace period nothing new is granted | `check_grace_over`, `check_may_acquire` | driver |
//! | S7 | reclaimable state goes to others only after durable removal | `end_grace_if_due` | driver |
//! | S8 | a client with a permit, plan, busy slot or owner request is not evicted | `evict` | invariants |
//! | S9 | counters equal what they count, and respect the limits | everywhere | invariants |
//! | S10 | RECLAIM_COMPLETE succeeds only when the client's record is durable | `ensure_recorded` | driver |

mod callback;
mod client;
mod copy;
mod delegation;
mod fair_share;
mod fault_injection;
mod file;
mod grace;
mod ids;
mod in_flight;
mod invariants;
mod lease;
mod limits;
mod lock;
mod open;
mod owner;
mod range;
mod reply_memory;
mod session;
mod slot;
mod stable_clients;
mod stateids;
mod stats;
mod v40;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::types::{ClientId, SessionId, StateId};

pub use callback::{CallbackPath, NoCallbackPath};
pub use copy::CopyRequest;
pub use delegation::{DelegationGrant, GetattrOutcome, HolderAttrs, WhyNoDelegation};
pub use grace::PreviousBoot;
pub use ids::{
    CachedReply, Caller, ClientHost, ConnId, Digest, FileId, Millis, Principal, Rng, Step, Stop, Ticket, Time,
};
pub use in_flight::{Access, Permit};
pub use limits::{Config, Limits};
pub use lock::{LockRequest, Locker};
pub use open::{Claim, OpenPlan, OpenRequest, Opened};
pub use owner::{OwnerRequest, SeqidOwner};
pub use session::CallbackCred;
pub use slot::{RequestHeader, SequenceOutcome, SessionRequest};
pub use stats::{EventCounts, LogEvent, StateCounts};

use client::{Client, Incarnations};
use file::FileState;
use grace::Grace;
use ids::fail;
use in_flight::InFlight;
use reply_memory::ReplyMemory;
use session::Session;
use stable_clients::StableClients;
use stateids::{Owner, StateEntry};

/// An action for the server to perform, in this order. It performs the effects of a request before it
/// replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write to stable storage after all earlier changes, then call
    /// [`effect_done`](StateManager::effect_done).
    Persist {
        /// The ticket to report.
        ticket: Ticket,
        /// The change.
        change: RecordChange,
    },
    /// Force a bump of a file's change attribute, then call [`effect_done`](StateManager::effect_done). A
    /// file that no longer exists needs no bump.
    Bump {
        /// The ticket to report.
        ticket: Ticket,
        /// The file.
        file: FileId,
    },
    /// The ticket of a [`Stop::Wait`] is done without an action of the server: repeat the calls that wait for
    /// it.
    Wake {
        /// The ticket.
        ticket: Ticket,
    },
    /// The first open of a file. The file must stay until [`Effect::Unpin`], even if its last name is
    /// removed.
    Pin {
        /// The file.
        file: FileId,
    },
    /// The last close of a file.
    Unpin {
        /// The file.
        file: FileId,
    },
    /// Send a callback to a client.
    Callback {
        /// The client.
        client: ClientId,
        /// The callback.
        call: Callback,
    },
}

/// A callback operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// CB_RECALL.
    Recall {
        /// The delegation.
        stateid: StateId,
        /// Its file.
        file: FileId,
        /// Whether the conflicting operation truncates the file.
        truncate: bool,
    },
    /// CB_GETATTR of change attribute and size. The reply goes to [`StateManager::getattr_reply`].
    GetAttr {
        /// The ticket for the reply.
        ticket: Ticket,
        /// The file.
        file: FileId,
        /// The delegation.
        stateid: StateId,
    },
    /// CB_NOTIFY_LOCK: a lock may be free.
    NotifyLock {
        /// The file.
        file: FileId,
        /// The lock-owner that waits for the lock.
        owner: Vec<u8>,
    },
    /// CB_OFFLOAD: a copy has ended. When the client has acknowledged it, call
    /// [`StateManager::copy_acknowledged`].
    Offload {
        /// The copy.
        stateid: StateId,
        /// The file that it copied to.
        file: FileId,
        /// The result.
        info: OffloadInfo,
    },
}

/// A client on stable storage. After a restart it may reclaim what it held.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientRecord {
    /// Whether the client uses sessions (NFSv4.1 or later).
    pub sessions: bool,
    /// The client's own name: `co_ownerid`, or `id` in NFSv4.0.
    pub owner: Vec<u8>,
    /// Identifies the boot of the client.
    pub verifier: [u8; 8],
    /// The principal that created the client.
    pub principal: Principal,
    /// A delegation of the client was revoked, and the client may not know: it must not reclaim delegations
    /// (section 8.4.3).
    pub revoked: bool,
}

impl ClientRecord {
    /// The key of the record.
    fn key(&self) -> (bool, Vec<u8>) {
        (self.sessions, self.owner.clone())
    }

    /// Returns whether both records are of one boot of one client.
    pub fn is_same_boot(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.sessions, it.verifier);
        key(self) == key(other) && self.owner == other.owner && self.principal == other.principal
    }
}

/// A change of the list of clients, which has one record for each `sessions` and `owner`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChange {
    /// Add a record, or replace the one with the same key.
    Put(ClientRecord),
    /// Remove the records that are still [of the same boot](ClientRecord::is_same_boot).
    Remove(Vec<ClientRecord>),
}

/// The purpose of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    /// Writing a client's record.
    RecordPut,
    /// Recording that a client has lost a delegation.
    RevocationMark(ClientId),
    /// Removing a client's record; then the client is removed.
    Evicting(ClientId),
    /// Removing the records of clients that did not reclaim; then the grace period ends.
    GraceEnd,
    /// Bumping a file's change attribute.
    Bump(FileId),
    /// Asking the holder of this write delegation for attributes.
    Getattr(u32),
    /// Nothing to do when it is done.
    Nothing,
}

/// All that the server knows about its clients.
pub struct StateManager {
    config: Config,
    boot: u32,
    rng: Box<dyn Rng>,
    clients: BTreeMap<ClientId, Client>,
    incarnations: BTreeMap<(bool, Vec<u8>), Incarnations>,
    sessions: BTreeMap<SessionId, Session>,
    pending: BTreeMap<Ticket, Pending>,
    stable_clients: StableClients,
    effects: Vec<Effect>,
    last_ticket: u64,
    reply_cache_bytes: u64,
    reply_memory: ReplyMemory,
    entries: BTreeMap<u32, StateEntry>,
    last_index: u32,
    /// Indexes of NFSv4.0 stateids of expired clients, limited to the newest.
    expired: BTreeSet<u32>,
    owners: BTreeMap<u64, Owner>,
    last_owner: u64,
    /// NFSv4.0 stateids that an owner's last CLOSE ended, with the owner and the seqid of that CLOSE.
    closed: BTreeMap<[u8; 12], (u64, u32)>,
    files: BTreeMap<FileId, FileState>,
    in_flight: BTreeMap<u64, InFlight>,
    last_in_flight: u64,
    delegations: usize,
    /// Recalled delegations by the time of their next check.
    recalls: BTreeSet<(Time, u32)>,
    copies: BTreeSet<u32>,
    ranges: usize,
    waiters: usize,
    grace: Grace,
    events: EventCounts,
    notes: Vec<LogEvent>,
    // Where the sweeps of `tick` continue.
    sweep_at: ClientId,
    owners_at: u64,
    files_at: Option<FileId>,
}

impl StateManager {
    /// Creates the state of a starting server. `boot` is its boot count, `past` what the last boot left.
    pub fn new(now: Time, config: Config, boot: u32, past: PreviousBoot, rng: Box<dyn Rng>) -> Self {
        Self {
            config,
            boot,
            rng,
            clients: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            sessions: BTreeMap::new(),
            pending: BTreeMap::new(),
            stable_clients: StableClients::new(past.clients.iter()),
            effects: Vec::new(),
            last_ticket: 0,
            reply_cache_bytes: 0,
            reply_memory: ReplyMemory::default(),
            entries: BTreeMap::new(),
            last_index: 0,
            expired: BTreeSet::new(),
            owners: BTreeMap::new(),
            last_owner: 0,
            closed: BTreeMap::new(),
            files: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            last_in_flight: 0,
            delegations: 0,
            recalls: BTreeSet::new(),
            copies: BTreeSet::new(),
            ranges: 0,
            waiters: 0,
            grace: Grace::new(now, past),
            events: EventCounts::default(),
            notes: Vec::new(),
            sweep_at: 0,
            owners_at: 0,
            files_at: None,
        }
    }

    /// Returns the effects since the last call. Call it before releasing the mutex.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns whether a ticket is not done yet.
    pub fn is_pending(&self, ticket: Ticket) -> bool {
        self.pending.contains_key(&ticket)
    }

    /// Reports that the action for a ticket is done. Returns false if nothing waits for it.
    pub fn effect_done(&mut self, ticket: Ticket) -> bool {
        self.stable_clients.settle(ticket, true);
        match self.pending.remove(&ticket) {
            Some(Pending::RevocationMark(client)) => self.revocation_mark_written(client, ticket, true),
            Some(Pending::Evicting(client)) => self.remove_client(client),
            Some(Pending::GraceEnd) => self.end_grace(),
            Some(Pending::Bump(file)) => {
                if let Some(state) = self.files.get_mut(&file) {
                    state.pending_bumps.remove(&ticket);
                }
                self.forget_file_if_idle(file);
            }
            Some(Pending::RecordPut | Pending::Getattr(_) | Pending::Nothing) => {}
            None => return false,
        }
        true
    }

    /// Reports that the action for a ticket failed. A caller that waits for it repeats its call, which tries
    /// again.
    pub fn effect_failed(&mut self, ticket: Ticket) -> bool {
        self.stable_clients.settle(ticket, false);
        match self.pending.remove(&ticket) {
            Some(Pending::RevocationMark(client)) => self.revocation_mark_written(client, ticket, false),
            Some(Pending::Evicting(client)) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.evicting = None;
                }
            }
            Some(Pending::GraceEnd) => self.retry_grace_end(ticket),
            Some(Pending::Bump(file)) => {
                if let Some(state) = self.files.get_mut(&file) {
                    state.pending_bumps.remove(&ticket);
                }
                self.request_bump(file);
            }
            Some(Pending::RecordPut | Pending::Getattr(_) | Pending::Nothing) => {}
            None => return false,
        }
        true
    }

    fn ticket(&mut self, pending: Pending) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.pending.insert(ticket, pending);
        ticket
    }

    fn persist(&mut self, pending: Pending, change: RecordChange) -> Ticket {
        let ticket = self.ticket(pending);
        self.stable_clients.ask(ticket, &change);
        self.effects.push(Effect::Persist { ticket, change });
        ticket
    }
}
