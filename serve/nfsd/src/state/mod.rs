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
//! | [`Effect::Persist`] | make it durable | [`State::done`], or [`State::failed`] |
//! | [`Effect::Bump`] | raise the file's change attribute, whether somebody looked or not; before the reply goes out | [`State::done`] |
//! | [`Effect::Call`] | [`State::channel`], send, wait | [`State::channel_end`]; for CB_GETATTR [`State::told`], too |
//!
//! What does not go on says why: [`Stop`].
//!
//! | operation | calls |
//! |---|---|
//! | EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION, DESTROY_*, RECLAIM_COMPLETE, TEST_STATEID, FREE_STATEID | one of that name |
//! | SEQUENCE | [`State::sequence`] before, [`State::finish`] after all operations of the request |
//! | READ, WRITE, SETATTR, REMOVE, ... | [`State::permit`], the VFS, [`State::end`]: what was decided holds until then |
//! | GETATTR, VERIFY, READDIR of what a delegate may have changed | [`State::look`], the VFS, [`State::end`] |
//! | OPEN | [`State::open_plan`]; [`State::open_claim`] as soon as the file is known, before anybody else can reach it; the VFS; [`State::open_commit`] or [`State::open_abort`] |
//! | LOCK, LOCKT, LOCKU, CLOSE, OPEN_DOWNGRADE, DELEGRETURN | one of that name |
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

mod base;
mod client;
mod lease;
mod limits;
mod mistake;
mod session;
mod slot;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ivers_nfs4::types::{ClientId, SessionId};

pub use base::{Caller, Conn, Dice, Digest, File, Principal, Reply, Span, Step, Stop, Ticket, Time};
pub use limits::{Config, Limits};
pub use session::Identity;
pub use slot::{Request, Running, Sequenced};

use base::fail;
use client::{Client, Name};
use session::Session;

/// What has to be done outside, in this order. What a request has caused is carried out before it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write to stable storage, then say [`done`](State::done).
    Persist {
        /// Which.
        ticket: Ticket,
        /// What.
        change: RecordChange,
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
}

/// A change of the list of clients. There is one record for each `sessions` and `owner`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChange {
    /// Add, or put in the place of the one of the same name.
    Put(ClientRecord),
    /// Take out those that are still exactly so.
    Strike(Vec<ClientRecord>),
}

/// What a ticket is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    /// A client's record is being written.
    Recorded(ClientId),
    /// A client is struck out, then he goes.
    Condemned(ClientId),
    /// Nothing waits for it.
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
    effects: Vec<Effect>,
    last_ticket: u64,
    last_client: u32,
    kept_bytes: u64,
    sweep_at: ClientId,
}

impl State {
    /// The state of a server that starts, for the `boot`th time.
    pub fn new(config: Config, boot: u32, dice: Box<dyn Dice>) -> Self {
        Self {
            config,
            boot,
            dice,
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            sessions: BTreeMap::new(),
            pending: BTreeMap::new(),
            effects: Vec::new(),
            last_ticket: 0,
            last_client: 0,
            kept_bytes: 0,
            sweep_at: 0,
        }
    }

    /// What has to be done outside since this was last asked. To be taken before the mutex is let go.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// What a ticket was for is done. False: nothing waits for it any more.
    pub fn done(&mut self, ticket: Ticket) -> bool {
        match self.pending.remove(&ticket) {
            Some(Pending::Recorded(client)) => self.recorded(client, true),
            Some(Pending::Condemned(client)) => self.remove_client(client),
            Some(Pending::Forgotten) => {}
            None => return false,
        }
        true
    }

    /// It could not be done. Whoever waits for it and comes again makes it be tried again.
    pub fn failed(&mut self, ticket: Ticket) -> bool {
        match self.pending.remove(&ticket) {
            Some(Pending::Recorded(client)) => self.recorded(client, false),
            Some(Pending::Condemned(client)) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.condemned = None;
                }
            }
            Some(Pending::Forgotten) => {}
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
        self.effects.push(Effect::Persist { ticket, change });
        ticket
    }
}
