//! Clients: who they say they are (RFC 8881 sections 2.4, 18.35, 18.50, 18.51).

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::ops::v41::{ExchangeIdArgs, ExchangeIdOk, ProtectNone, ServerOwner, StateProtect, exchgid};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, Opaque, SessionId, Verifier};
use ivers_nfs4::xdr::List;

use super::held::{Kind, OwnerKind};
use super::mistake::{self, Mistake};
use super::record::Record;
use super::session::CreateSlot;
use super::v40::V40;
use super::{
    ClientRecord, File, Home, Pending, Principal, RecordChange, Running, State, Step, Stop, Ticket, Time,
    fail,
};

/// The flags that a client may set.
const EXCHANGE_FLAGS: u32 = exchgid::SUPP_MOVED_REFER
    | exchgid::SUPP_MOVED_MIGR
    | exchgid::SUPP_FENCE_OPS
    | exchgid::BIND_PRINC_STATEID
    | exchgid::USE_NON_PNFS
    | exchgid::USE_PNFS_MDS
    | exchgid::USE_PNFS_DS
    | exchgid::UPD_CONFIRMED_REC_A;

/// So many stateids of expired clients are remembered: NFSv4.0 has an error of its own for them.
const EXPIRED: usize = 4096;

/// Those who call themselves by one name: at most one is confirmed, and one wants to take his place.
#[derive(Debug, Default)]
pub(super) struct Name {
    pub confirmed: Option<ClientId>,
    pub unconfirmed: Option<ClientId>,
}

/// Whether stable storage knows that a delegation was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    None,
    Writing(Ticket),
    Kept,
}

/// One boot of a client.
#[derive(Debug)]
pub(super) struct Client {
    pub id: ClientId,
    pub home: Home,
    pub with_sessions: bool,
    pub owner: Vec<u8>,
    pub verifier: Verifier,
    pub principal: Principal,
    pub confirmed: bool,
    pub renewed: Time,
    /// Requests of his that are under way: permits, plans, slots, turns.
    pub busy: u32,
    pub mark: Mark,
    /// He is being struck out; until that is durable nothing of his goes to others, and he gets nothing.
    pub condemned: Option<Ticket>,
    /// All that there was to reclaim is.
    pub complete: bool,
    pub create: CreateSlot,
    pub sessions: BTreeSet<SessionId>,
    pub kept_bytes: u64,
    /// What NFSv4.0 has instead of sessions.
    pub v40: Option<V40>,
    /// He held something before the restart.
    pub may_reclaim: bool,
    pub held: BTreeSet<u32>,
    pub owners: BTreeMap<(OwnerKind, Vec<u8>), u64>,
    pub delegations: usize,
    /// Delegations that were taken away, and he has not said that he knows.
    pub revoked: usize,
    pub ranges: usize,
    pub waiters: usize,
    pub waits_at: BTreeSet<File>,
}

impl Client {
    pub fn as_record(&self) -> ClientRecord {
        ClientRecord {
            sessions: self.with_sessions,
            owner: self.owner.clone(),
            verifier: self.verifier,
            principal: self.principal.clone(),
            revoked: self.mark != Mark::None,
        }
    }

    /// Whether he holds something that others may be in want of.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}

impl State {
    /// EXCHANGE_ID: all cases of RFC 8881 section 18.35.4.
    pub fn exchange_id(
        &mut self,
        now: Time,
        home: Home,
        principal: &Principal,
        args: &ExchangeIdArgs,
    ) -> Step<ExchangeIdOk> {
        // [RFC8881 18.35.3]
        if args.flags & !EXCHANGE_FLAGS != 0 {
            return fail(NfsStat::Inval);
        }
        match args.protect {
            StateProtect::None => {}
            StateProtect::MachCred(_) => return fail(NfsStat::Inval),
            StateProtect::Ssv(_) => return fail(NfsStat::EncrAlgUnsupp),
        }
        let key = (true, args.owner.id.0.clone());
        let confirmed = self.names.get(&key).and_then(|name| name.confirmed);
        let verifier = args.owner.verifier;

        // [RFC8881 18.35.4]
        if args.flags & exchgid::UPD_CONFIRMED_REC_A != 0 {
            let Some(client) = confirmed.and_then(|id| self.clients.get_mut(&id)) else {
                return fail(NfsStat::Noent);
            };
            if client.verifier != verifier {
                return fail(NfsStat::NotSame);
            }
            if client.principal != *principal {
                return fail(NfsStat::Perm);
            }
            return Ok(self.exchanged(confirmed.unwrap_or_default()));
        }
        self.unclaimed(&key, principal)?;
        if let Some(client) = confirmed.and_then(|id| self.clients.get(&id)) {
            if client.condemned.is_some() {
                return fail(NfsStat::Delay);
            }
            let id = client.id;
            if client.principal != *principal {
                if client.holds() && !self.lease_is_over(now, id) {
                    return fail(NfsStat::ClidInuse);
                }
                self.evict(id)?;
            } else if client.verifier == verifier {
                self.renew(now, id);
                return Ok(self.exchanged(id));
            }
            // Otherwise he has restarted: what he held goes when the new one is confirmed, not before.
        }
        self.make_room(now, home)?;
        let id = self.new_client(now, home, true, &args.owner.id.0, verifier, principal);
        Ok(self.exchanged(id))
    }

    fn exchanged(&self, id: ClientId) -> ExchangeIdOk {
        let client = &self.clients[&id];
        let confirmed = if client.confirmed { exchgid::CONFIRMED_R } else { 0 };
        ExchangeIdOk {
            clientid: id,
            sequenceid: client.create.next(),
            flags: exchgid::USE_NON_PNFS | confirmed,
            protect: ProtectNone,
            owner: ServerOwner { minor: 0, major: Opaque(self.config.server_major.clone()) },
            scope: Opaque(self.config.scope.clone()),
            implementation: List(Vec::new()),
        }
    }

    /// A client who is not confirmed yet, in the place of any other such one of his name.
    pub(super) fn new_client(
        &mut self,
        now: Time,
        home: Home,
        with_sessions: bool,
        owner: &[u8],
        verifier: Verifier,
        principal: &Principal,
    ) -> ClientId {
        // Who knows one does not know the next: whoever can name a client can ask for sessions of his.
        let id = loop {
            let id = u64::from(self.boot) << 32 | u64::from(self.dice.roll() as u32);
            if !self.clients.contains_key(&id) {
                break id;
            }
        };
        let name = self.names.entry((with_sessions, owner.to_vec())).or_default();
        if let Some(replaced) = name.unconfirmed.replace(id) {
            self.clients.remove(&replaced);
        }
        let client = Client {
            id,
            home,
            with_sessions,
            owner: owner.to_vec(),
            verifier,
            principal: principal.clone(),
            confirmed: false,
            renewed: now,
            busy: 0,
            mark: Mark::None,
            condemned: None,
            complete: false,
            create: CreateSlot::default(),
            sessions: BTreeSet::new(),
            kept_bytes: 0,
            v40: None,
            may_reclaim: false,
            held: BTreeSet::new(),
            owners: BTreeMap::new(),
            delegations: 0,
            revoked: 0,
            ranges: 0,
            waiters: 0,
            waits_at: BTreeSet::new(),
        };
        self.clients.insert(id, client);
        id
    }

    /// A client is confirmed; the one who had the name before goes, with all that he held. Nothing happens if he cannot go now.
    pub(super) fn confirm(&mut self, now: Time, id: ClientId) -> Step<()> {
        let client = &self.clients[&id];
        let key = (client.with_sessions, client.owner.clone());
        if let Some(old) = self.names.get(&key).and_then(|name| name.confirmed) {
            if self.clients[&old].busy > 0 {
                return fail(NfsStat::Delay);
            }
            // Nothing waits for that: his record names a boot of his that is over, so nobody can claim anything by it.
            let client = &self.clients[&old];
            let record = client.as_record();
            self.forget_record(record);
            self.remove_client(old);
        }
        let name = self.names.entry(key).or_default();
        name.confirmed = Some(id);
        name.unconfirmed = None;
        self.renew(now, id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.confirmed = true;
            self.events.clients_confirmed += 1;
        }
        self.recognize(id);
        Ok(())
    }

    /// Without state protection any user of a client's machine may speak for the client once he is confirmed (RFC 8881 section 18.36.3). Which machine that is only
    /// a certificate can say.
    pub(super) fn speaks_for(&self, principal: &Principal, id: ClientId) -> Step<()> {
        match self.clients.get(&id) {
            // [RFC8881 15.1.10.3]
            Some(client) if !client.principal.is_spoken_for_by(principal) => fail(NfsStat::WrongCred),
            _ => Ok(()),
        }
    }

    /// DESTROY_CLIENTID (RFC 8881 section 18.50), inside this request if it is one of a session.
    pub fn destroy_clientid(
        &mut self,
        principal: &Principal,
        inside: Option<&Running>,
        id: ClientId,
    ) -> Step<()> {
        let Some(client) = self.clients.get(&id).filter(|client| client.with_sessions) else {
            return fail(NfsStat::StaleClientid);
        };
        self.speaks_for(principal, id)?;
        // [RFC8881 18.50.3]
        let own = inside.is_some_and(|running| running.client == id);
        if own || !client.sessions.is_empty() || client.holds() || client.busy > 0 {
            return fail(NfsStat::ClientidBusy);
        }
        let record = client.as_record();
        self.forget_record(record);
        self.remove_client(id);
        Ok(())
    }

    /// RECLAIM_COMPLETE (RFC 8881 section 18.51). Of one filesystem (`one_fs`): none of ours ever moves, so there is nothing to it.
    pub fn reclaim_complete(&mut self, now: Time, id: ClientId, one_fs: bool) -> Step<()> {
        let Some(client) = self.clients.get(&id) else { return fail(NfsStat::StaleClientid) };
        if one_fs {
            return Ok(());
        }
        // [RFC8881 18.51.3]
        if client.complete {
            return fail(NfsStat::CompleteAlready);
        }
        self.be_recorded(id)?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.complete = true;
        }
        self.unmark(id);
        self.reclaimed_all(id);
        self.end_grace_if_due(now);
        Ok(())
    }

    /// A boot of a client is over, and nothing waits for that.
    fn forget_record(&mut self, record: ClientRecord) {
        if self.records.of(&record) != Record::None {
            self.persist(Pending::Forgotten, RecordChange::Strike(vec![record]));
        }
    }

    /// Go on only when stable storage knows the client.
    pub(super) fn be_recorded(&mut self, id: ClientId) -> Step<()> {
        if let Some(ticket) = self.clients[&id].condemned {
            return Err(Stop::Gate(ticket));
        }
        let record = self.clients[&id].as_record();
        match self.records.of(&record) {
            _ if mistake::is(Mistake::BelieveThePast) && self.grace.knew(&record) => Ok(()),
            Record::Kept => Ok(()),
            Record::Unsettled(ticket) => Err(Stop::Gate(ticket)),
            Record::None => Err(Stop::Gate(self.persist(Pending::Recorded, RecordChange::Put(record)))),
        }
    }

    /// Go on only when it is durable that this client has lost a delegation: otherwise he could claim it again after a restart, not knowing
    /// that others had the file since.
    pub(super) fn be_marked(&mut self, id: ClientId) -> Step<()> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if let Some(ticket) = client.condemned {
            // Written now it would come behind his being struck out, and bring him back.
            return Err(Stop::Gate(ticket));
        }
        let record = ClientRecord { revoked: true, ..client.as_record() };
        match (client.mark, self.records.of(&record)) {
            (Mark::Kept, _) => Ok(()),
            (Mark::Writing(ticket), _) => Err(Stop::Gate(ticket)),
            (Mark::None, Record::None) => {
                // Should he ever be on record, then so.
                client.mark = Mark::Kept;
                Ok(())
            }
            (Mark::None, Record::Unsettled(ticket)) => Err(Stop::Gate(ticket)),
            (Mark::None, Record::Kept) => {
                let ticket = self.persist(Pending::Marked(id), RecordChange::Put(record));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.mark = Mark::Writing(ticket);
                }
                Err(Stop::Gate(ticket))
            }
        }
    }

    pub(super) fn marked(&mut self, id: ClientId, ticket: Ticket, durable: bool) {
        if let Some(client) = self.clients.get_mut(&id)
            && client.mark == Mark::Writing(ticket)
        {
            client.mark = if durable { Mark::Kept } else { Mark::None };
        }
    }

    /// He knows what he has lost.
    pub(super) fn unmark(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.revoked > 0 || client.mark == Mark::None {
            return;
        }
        client.mark = Mark::None;
        let record = client.as_record();
        if client.condemned.is_none() && self.records.expected(&record).is_some() {
            self.persist(Pending::Forgotten, RecordChange::Put(record));
        }
    }

    /// What a client holds goes.
    fn drop_all(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else { return };
        let (held, files) = (client.held.clone(), client.waits_at.clone());
        for file in files {
            self.drop_waiters(file, |waiter| waiter.client == id);
            self.tidy(file);
        }
        let v40 = self.clients[&id].v40.is_some();
        for index in held {
            // Locks go with their opens.
            match self.held.get(&index).map(|held| &held.kind) {
                Some(Kind::Open(_)) => self.drop_open(index),
                Some(Kind::Delegation(_)) => self.end_delegation(index),
                Some(Kind::Copy(_)) => self.drop_copy(index),
                Some(Kind::Lock(_)) | None => {}
            }
            if v40 {
                self.expired.insert(index);
            }
        }
        while self.expired.len() > EXPIRED {
            self.expired.pop_first();
        }
        let owners: Vec<u64> = self.clients[&id].owners.values().copied().collect();
        for owner in owners {
            self.forget_owner(owner);
        }
    }

    /// Forget a client and all that he has.
    pub(super) fn remove_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let sessions = std::mem::take(&mut client.sessions);
        for session in sessions {
            self.remove_session(session);
        }
        self.drop_all(id);
        let Some(client) = self.clients.remove(&id) else { return };
        let key = (client.with_sessions, client.owner);
        if let Some(name) = self.names.get_mut(&key) {
            for place in [&mut name.confirmed, &mut name.unconfirmed] {
                if *place == Some(id) {
                    *place = None;
                }
            }
            if name.confirmed.is_none() && name.unconfirmed.is_none() {
                self.names.remove(&key);
            }
        }
    }
}
