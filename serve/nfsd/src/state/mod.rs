//! Who the clients are and what they hold: plain data. Time is passed in, random numbers come from a source that is passed in, and
//! nothing is sent, opened or waited for. `docs/nfsd.md` says what it keeps to.
//!
//! # How it is used
//!
//! One mutex around one [`State`]. Each method is a short critical section: it looks, decides, changes tables, and returns. Under the same
//! hold of the mutex the caller takes the [`effects`](State::effects), lets go, and carries them out:
//!
//! | effect | what to do | then |
//! |---|---|---|
//! | [`Effect::Persist`] | make it durable, one behind the other in this order | [`State::done`], or [`State::failed`] |
//! | [`Effect::Bump`] | raise the file's change attribute, whether somebody looked or not; before the reply goes out | [`State::done`] |
//! | [`Effect::Open`] | let those go on who wait at this gate | |
//! | [`Effect::Call`] | [`State::channel`], send, wait | [`State::channel_end`]; for CB_GETATTR [`State::told`], too |
//!
//! What does not go on says why: [`Stop`].
//!
//! | operation | calls |
//! |---|---|
//! | EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION, DESTROY_*, RECLAIM_COMPLETE, TEST_STATEID, FREE_STATEID | one of that name |
//! | SEQUENCE | [`State::sequence`] before, [`State::finish`] after all operations of the request |
//! | READ, WRITE, SETATTR, REMOVE, ... | [`State::permit`], the VFS, [`State::end`]: what was decided holds until then |
//! | GETATTR, VERIFY, READDIR of change, size and times | [`State::look`], the VFS, [`State::end`] |
//! | OPEN | [`State::open_plan`]; [`State::open_claim`] as soon as the file is known, before anybody else can reach it; the VFS; [`State::open_commit`] or [`State::open_abort`] |
//! | LOCK, LOCKT, LOCKU, CLOSE, OPEN_DOWNGRADE, DELEGRETURN | one of that name |
//! | COPY that goes on behind its reply | [`State::copy_begin`]; for each slice [`State::copy_slice`], the VFS, [`State::end`] twice, [`State::copy_progress`] |
//! | operations with a seqid (4.0) | [`State::turn`] before, [`State::turn_end`] after |
//!
//! From time to time, and at the moment that it last asked for: [`State::tick`].
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
//! | S10 | who has said that he has claimed all is on record until he is struck out | `be_recorded`, `Records` | driver |

mod audit;
mod base;
mod callback;
mod census;
mod client;
mod copy;
mod delegation;
mod file;
mod grace;
mod held;
mod lease;
mod limits;
mod lock;
mod memory;
mod mistake;
mod open;
mod owner;
mod permit;
mod range;
mod record;
mod session;
mod share;
mod slot;
mod v40;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::types::{ClientId, SessionId, StateId};

pub use base::{Caller, Conn, Dice, Digest, File, Home, Principal, Reply, Span, Step, Stop, Ticket, Time};
pub use callback::{Channel, NoChannel};
pub use census::{Census, Events, Note};
pub use copy::CopyWanted;
pub use delegation::{Answer, Granted, Told, Why};
pub use grace::Past;
pub use limits::{Config, Limits};
pub use lock::{LockRequest, Locker};
pub use open::{Claim, OpenRequest, Opened, Plan};
pub use owner::{Turn, TurnOf};
pub use permit::{Does, Permit};
pub use session::Identity;
pub use slot::{Request, Running, Sequenced};

use base::fail;
use client::{Client, Name};
use file::FileState;
use grace::Grace;
use held::{Held, Owner};
use memory::Memory;
use permit::UnderWay;
use record::Records;
use session::Session;

/// What has to be done outside, in this order. What a request has caused is carried out before it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write to stable storage, behind what was to be written before, then say [`done`](State::done).
    Persist {
        /// Which.
        ticket: Ticket,
        /// What.
        change: RecordChange,
    },
    /// Raise the change attribute of a file, whether somebody has looked or not, then say [`done`](State::done). If the file is gone
    /// there is nothing to raise.
    Bump {
        /// Which.
        ticket: Ticket,
        /// The file.
        file: File,
    },
    /// A [`Stop::Gate`] that nothing outside stands for has opened: whoever waits there makes his call again.
    Open {
        /// Which.
        ticket: Ticket,
    },
    /// Somebody has opened a file that nobody had open: until [`Effect::Release`] it stays, whatever happens to its names.
    Keep {
        /// The file.
        file: File,
    },
    /// Nobody has it open any more.
    Release {
        /// The file.
        file: File,
    },
    /// Ask something of a client.
    Call {
        /// Whom.
        client: ClientId,
        /// What.
        call: Call,
    },
}

/// A callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// CB_RECALL.
    Recall {
        /// The delegation.
        stateid: StateId,
        /// Its file.
        file: File,
        /// The file is going to be truncated.
        truncate: bool,
    },
    /// CB_GETATTR of change attribute and size: the answer is for [`State::told`].
    GetAttr {
        /// Whose answer it is.
        ticket: Ticket,
        /// The file.
        file: File,
        /// The delegation.
        stateid: StateId,
    },
    /// CB_NOTIFY_LOCK: a lock may be free.
    NotifyLock {
        /// The file.
        file: File,
        /// The lock-owner who wanted it.
        owner: Vec<u8>,
    },
    /// CB_OFFLOAD: a copy has ended. If he has heard it: [`State::copy_told`].
    Offload {
        /// The copy.
        stateid: StateId,
        /// Into which file.
        file: File,
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
    pub fn is_of(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.sessions, it.verifier);
        key(self) == key(other) && self.owner == other.owner && self.principal == other.principal
    }
}

/// A change of the list of clients. There is one record for each `sessions` and `owner`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChange {
    /// Add, or put in the place of the one of the same name.
    Put(ClientRecord),
    /// Take out those that are still [of the same boot](ClientRecord::is_of).
    Strike(Vec<ClientRecord>),
}

/// What a ticket is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    /// A client's record is being written.
    Recorded,
    /// It is being written that a client has lost a delegation.
    Marked(ClientId),
    /// A client is struck out, then he goes.
    Condemned(ClientId),
    /// Who did not reclaim is struck out, then grace is over.
    GraceEnds,
    /// A file's change attribute is raised.
    Bumped(File),
    /// The holder of this write delegation is asked.
    Asked(u32),
    /// Nothing has to be done when it is.
    Forgotten,
}

/// All that the server knows about its clients.
pub struct State {
    config: Config,
    boot: u32,
    dice: Box<dyn Dice>,
    clients: BTreeMap<ClientId, Client>,
    names: BTreeMap<(bool, Vec<u8>), Name>,
    sessions: BTreeMap<SessionId, Session>,
    pending: BTreeMap<Ticket, Pending>,
    records: Records,
    effects: Vec<Effect>,
    last_ticket: u64,
    kept_bytes: u64,
    memory: Memory,
    held: BTreeMap<u32, Held>,
    last_index: u32,
    /// Stateids of NFSv4.0 whose clients have expired: the newest ones.
    expired: BTreeSet<u32>,
    owners: BTreeMap<u64, Owner>,
    last_owner: u64,
    /// Stateids of NFSv4.0 that an owner's last CLOSE took away, and in which turn.
    closed: BTreeMap<[u8; 12], (u64, u32)>,
    files: BTreeMap<File, FileState>,
    under_way: BTreeMap<u64, UnderWay>,
    last_under_way: u64,
    delegations: usize,
    /// Delegations that are recalled, by when they are looked at again.
    recalls: BTreeSet<(Time, u32)>,
    copies: BTreeSet<u32>,
    ranges: usize,
    waiters: usize,
    grace: Grace,
    events: Events,
    notes: Vec<Note>,
    // Where the sweeps of `tick` go on.
    sweep_at: ClientId,
    owners_at: u64,
    files_at: Option<File>,
}

impl State {
    /// The state of a server that starts, for the `boot`th time, after a past.
    pub fn new(now: Time, config: Config, boot: u32, past: Past, dice: Box<dyn Dice>) -> Self {
        Self {
            config,
            boot,
            dice,
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            sessions: BTreeMap::new(),
            pending: BTreeMap::new(),
            records: Records::new(past.clients.iter()),
            effects: Vec::new(),
            last_ticket: 0,
            kept_bytes: 0,
            memory: Memory::default(),
            held: BTreeMap::new(),
            last_index: 0,
            expired: BTreeSet::new(),
            owners: BTreeMap::new(),
            last_owner: 0,
            closed: BTreeMap::new(),
            files: BTreeMap::new(),
            under_way: BTreeMap::new(),
            last_under_way: 0,
            delegations: 0,
            recalls: BTreeSet::new(),
            copies: BTreeSet::new(),
            ranges: 0,
            waiters: 0,
            grace: Grace::new(now, past),
            events: Events::default(),
            notes: Vec::new(),
            sweep_at: 0,
            owners_at: 0,
            files_at: None,
        }
    }

    /// What has to be done outside since this was last asked. To be taken before the mutex is let go.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether what a ticket is for is still to come.
    pub fn is_pending(&self, ticket: Ticket) -> bool {
        self.pending.contains_key(&ticket)
    }

    /// What a ticket was for is done. False: nothing waits for it any more.
    pub fn done(&mut self, ticket: Ticket) -> bool {
        self.records.settle(ticket, true);
        match self.pending.remove(&ticket) {
            Some(Pending::Marked(client)) => self.marked(client, ticket, true),
            Some(Pending::Condemned(client)) => self.remove_client(client),
            Some(Pending::GraceEnds) => self.grace_is_over(),
            Some(Pending::Bumped(file)) => {
                if let Some(state) = self.files.get_mut(&file) {
                    state.bumps.remove(&ticket);
                }
                self.tidy(file);
            }
            Some(Pending::Recorded | Pending::Asked(_) | Pending::Forgotten) => {}
            None => return false,
        }
        true
    }

    /// It could not be done. Whoever waits for it and comes again makes it be tried again.
    pub fn failed(&mut self, ticket: Ticket) -> bool {
        self.records.settle(ticket, false);
        match self.pending.remove(&ticket) {
            Some(Pending::Marked(client)) => self.marked(client, ticket, false),
            Some(Pending::Condemned(client)) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.condemned = None;
                }
            }
            Some(Pending::GraceEnds) => self.grace_goes_on(ticket),
            Some(Pending::Bumped(file)) => {
                if let Some(state) = self.files.get_mut(&file) {
                    state.bumps.remove(&ticket);
                }
                self.bump(file);
            }
            Some(Pending::Recorded | Pending::Asked(_) | Pending::Forgotten) => {}
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
        self.records.ask(ticket, &change);
        self.effects.push(Effect::Persist { ticket, change });
        ticket
    }
}
