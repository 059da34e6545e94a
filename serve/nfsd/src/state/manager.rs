//! The tables of the state. Files above this one add the operations.

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::types::{ClientId, SessionId};

use super::client_record::RecordChange;
use super::effects::Effect;
use super::ids::{FileId, Rng, Ticket, Time};
use super::limits::Config;
use super::stable_clients::StableClients;
use super::tables::client::{Client, Incarnations};
use super::tables::entry::StateEntry;
use super::tables::events::{EventCounts, LogEvent};
use super::tables::file::FileState;
use super::tables::grace::{Grace, PreviousBoot};
use super::tables::in_flight::InFlight;
use super::tables::owner::Owner;
use super::tables::pending::Pending;
use super::tables::reply_memory::ReplyMemory;
use super::tables::session::Session;

/// All that the server knows about its clients.
pub struct StateManager {
    pub(super) config: Config,
    pub(super) boot: u32,
    pub(super) rng: Box<dyn Rng>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    pub(super) incarnations: BTreeMap<(bool, Vec<u8>), Incarnations>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) pending: BTreeMap<Ticket, Pending>,
    pub(super) stable_clients: StableClients,
    pub(super) effects: Vec<Effect>,
    pub(super) last_ticket: u64,
    pub(super) reply_cache_bytes: u64,
    pub(super) reply_memory: ReplyMemory,
    pub(super) entries: BTreeMap<u32, StateEntry>,
    pub(super) last_index: u32,
    /// Indexes of NFSv4.0 stateids of expired clients, limited to the newest.
    pub(super) expired: BTreeSet<u32>,
    pub(super) owners: BTreeMap<u64, Owner>,
    pub(super) last_owner: u64,
    /// NFSv4.0 stateids that an owner's last CLOSE ended, with the owner and the seqid of that CLOSE.
    pub(super) closed: BTreeMap<[u8; 12], (u64, u32)>,
    pub(super) files: BTreeMap<FileId, FileState>,
    pub(super) in_flight: BTreeMap<u64, InFlight>,
    pub(super) last_in_flight: u64,
    pub(super) delegations: usize,
    /// Recalled delegations by the time of their next check.
    pub(super) recalls: BTreeSet<(Time, u32)>,
    pub(super) copies: BTreeSet<u32>,
    pub(super) ranges: usize,
    pub(super) waiters: usize,
    pub(super) grace: Grace,
    pub(super) events: EventCounts,
    pub(super) notes: Vec<LogEvent>,
    // Where the sweeps of `tick` continue.
    pub(super) sweep_at: ClientId,
    pub(super) owners_at: u64,
    pub(super) files_at: Option<FileId>,
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

    pub(super) fn ticket(&mut self, pending: Pending) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.pending.insert(ticket, pending);
        ticket
    }

    pub(super) fn persist(&mut self, pending: Pending, change: RecordChange) -> Ticket {
        let ticket = self.ticket(pending);
        self.stable_clients.ask(ticket, &change);
        self.effects.push(Effect::Persist { ticket, change });
        ticket
    }
}
