//! Who the clients are and what they hold: plain data. Time is passed in, random numbers come from a source that is passed in, and
//! nothing is sent, opened or waited for. `docs/nfsd.md` says what it keeps to.
//!
//! # How it is used
//!
//! One mutex around one [`StateManager`]. Each method is a short critical section: it looks, decides, changes tables, and returns. Under the same
//! hold of the mutex the caller takes the [`effects`](StateManager::take_effects), lets go, and carries them out:
//!
//! | effect | what to do | then |
//! |---|---|---|
//! | [`Effect::Persist`] | make it durable, one behind the other in this order | [`StateManager::effect_done`], or [`StateManager::effect_failed`] |
//! | [`Effect::Bump`] | raise the file's change attribute, whether somebody looked or not; before the reply goes out | [`StateManager::effect_done`] |
//! | [`Effect::Wake`] | let those go on who wait at this gate | |
//! | [`Effect::Callback`] | [`StateManager::begin_callback`], send, wait | [`StateManager::end_callback`]; for CB_GETATTR [`StateManager::getattr_reply`], too |
//!
//! What does not go on says why: [`Stop`].
//!
//! | operation | calls |
//! |---|---|
//! | EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION, DESTROY_*, RECLAIM_COMPLETE, TEST_STATEID, FREE_STATEID | one of that name |
//! | SEQUENCE | [`StateManager::sequence`] before, [`StateManager::finish`] after all operations of the request |
//! | READ, WRITE, SETATTR, REMOVE, ... | [`StateManager::permit`], the VFS, [`StateManager::end_permit`]: what was decided holds until then |
//! | GETATTR, VERIFY, READDIR of change, size and times | [`StateManager::begin_getattr`], the VFS, [`StateManager::end_permit`] |
//! | OPEN | [`StateManager::open_plan`]; [`StateManager::open_claim`] as soon as the file is known, before anybody else can reach it; the VFS; [`StateManager::open_commit`] or [`StateManager::open_abort`] |
//! | LOCK, LOCKT, LOCKU, CLOSE, OPEN_DOWNGRADE, DELEGRETURN | one of that name |
//! | COPY that goes on behind its reply | [`StateManager::copy_begin`]; for each slice [`StateManager::copy_slice`], the VFS, [`StateManager::end_permit`] twice, [`StateManager::copy_progress`] |
//! | operations with a seqid (4.0) | [`StateManager::begin_owner_request`] before, [`StateManager::end_owner_request`] after |
//!
//! From time to time, and at the moment that it last asked for: [`StateManager::tick`].
//!
//! # Invariants
//!
//! | | statement | established by | checked by |
//! |---|---|---|---|
//! | S1 | two opens of one file by different owners do not deny each other's access | `open_claim` | driver, `audit` |
//! | S2 | two locks of different owners that overlap are both for reading | `lock` | driver, `audit` |
//! | S3 | a write delegation is alone; nobody else's open, permit or delegation is beside it | `grant`, `permit`, `open_claim` | driver, `audit` |
//! | S4 | while there is a read delegation nobody else has the file open for writing | the same | driver, `audit` |
//! | S5 | a request of a slot or an owner is executed once | `sequence`, `turn` | driver |
//! | S6 | in grace nothing new is granted | `fresh` | driver |
//! | S7 | what a client held in the last boot goes to others only after he is struck out durably, or an expired one's record is gone | `Gate` | driver |
//! | S8 | a client with a permit, a plan, a slot or a turn out does not go | `evict` | `audit` |
//! | S9 | counts are what is counted, and within the limits | everywhere | `audit` |
//! | S10 | who has said that he has claimed all is on record until he is struck out | `be_recorded`, `StableClients` | driver |

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

/// What has to be done outside, in this order. What a request has caused is carried out before it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write to stable storage, behind what was to be written before, then say [`done`](StateManager::effect_done).
    Persist {
        /// Which.
        ticket: Ticket,
        /// What.
        change: RecordChange,
    },
    /// Raise the change attribute of a file, whether somebody has looked or not, then say [`done`](StateManager::effect_done). If the file is gone
    /// there is nothing to raise.
    Bump {
        /// Which.
        ticket: Ticket,
        /// The file.
        file: FileId,
    },
    /// A [`Stop::Wait`] that nothing outside stands for has opened: whoever waits there makes his call again.
    Wake {
        /// Which.
        ticket: Ticket,
    },
    /// Somebody has opened a file that nobody had open: until [`Effect::Unpin`] it stays, whatever happens to its names.
    Pin {
        /// The file.
        file: FileId,
    },
    /// Nobody has it open any more.
    Unpin {
        /// The file.
        file: FileId,
    },
    /// Ask something of a client.
    Callback {
        /// Whom.
        client: ClientId,
        /// What.
        call: Callback,
    },
}

/// A callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// CB_RECALL.
    Recall {
        /// The delegation.
        stateid: StateId,
        /// Its file.
        file: FileId,
        /// The file is going to be truncated.
        truncate: bool,
    },
    /// CB_GETATTR of change attribute and size: the answer is for [`StateManager::getattr_reply`].
    GetAttr {
        /// Whose answer it is.
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
        /// The lock-owner who wanted it.
        owner: Vec<u8>,
    },
    /// CB_OFFLOAD: a copy has ended. If he has heard it: [`StateManager::copy_acknowledged`].
    Offload {
        /// The copy.
        stateid: StateId,
        /// Into which file.
        file: FileId,
        /// How.
        info: OffloadInfo,
    },
}

/// A client as stable storage knows him: what he held when the server stops he may claim again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientRecord {
    /// NFSv4.1 or later.
    pub sessions: bool,
    /// His own name for himself.
    pub owner: Vec<u8>,
    /// Which of his boots.
    pub verifier: [u8; 8],
    /// Who he was.
    pub principal: Principal,
    /// A delegation of his was revoked, and he may not know: he must not claim any again (section 8.4.3).
    pub revoked: bool,
}

impl ClientRecord {
    /// Under what it is kept.
    fn key(&self) -> (bool, Vec<u8>) {
        (self.sessions, self.owner.clone())
    }

    /// Whether both are of one boot of one client.
    pub fn is_same_boot(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.sessions, it.verifier);
        key(self) == key(other) && self.owner == other.owner && self.principal == other.principal
    }
}

/// A change of the list of clients. There is one record for each `sessions` and `owner`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChange {
    /// Add, or put in the place of the one of the same name.
    Put(ClientRecord),
    /// Take out those that are still [of the same boot](ClientRecord::is_same_boot).
    Remove(Vec<ClientRecord>),
}

/// What a ticket is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    /// A client's record is being written.
    RecordPut,
    /// It is being written that a client has lost a delegation.
    RevocationMark(ClientId),
    /// A client is struck out, then he goes.
    Evicting(ClientId),
    /// Who did not reclaim is struck out, then grace is over.
    GraceEnd,
    /// A file's change attribute is raised.
    Bump(FileId),
    /// The holder of this write delegation is asked.
    Getattr(u32),
    /// Nothing has to be done when it is.
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
    /// Stateids of NFSv4.0 whose clients have expired: the newest ones.
    expired: BTreeSet<u32>,
    owners: BTreeMap<u64, Owner>,
    last_owner: u64,
    /// Stateids of NFSv4.0 that an owner's last CLOSE took away, and in which turn.
    closed: BTreeMap<[u8; 12], (u64, u32)>,
    files: BTreeMap<FileId, FileState>,
    in_flight: BTreeMap<u64, InFlight>,
    last_in_flight: u64,
    delegations: usize,
    /// Delegations that are recalled, by when they are looked at again.
    recalls: BTreeSet<(Time, u32)>,
    copies: BTreeSet<u32>,
    ranges: usize,
    waiters: usize,
    grace: Grace,
    events: EventCounts,
    notes: Vec<LogEvent>,
    // Where the sweeps of `tick` go on.
    sweep_at: ClientId,
    owners_at: u64,
    files_at: Option<FileId>,
}

impl StateManager {
    /// The state of a server that starts, for the `boot`th time, after a past.
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

    /// What has to be done outside since this was last asked. To be taken before the mutex is let go.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether what a ticket is for is still to come.
    pub fn is_pending(&self, ticket: Ticket) -> bool {
        self.pending.contains_key(&ticket)
    }

    /// What a ticket was for is done. False: nothing waits for it any more.
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

    /// It could not be done. Whoever waits for it and comes again makes it be tried again.
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
