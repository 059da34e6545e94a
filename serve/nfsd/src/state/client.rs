//! Client identities (RFC 8881 sections 2.4, 18.35, 18.50, 18.51).

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::ops::v41::{ExchangeIdArgs, ExchangeIdOk, ProtectNone, ServerOwner, StateProtect, exchgid};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, Opaque, Verifier};
use ivers_nfs4::xdr::List;

use super::client_record::{ClientRecord, RecordChange};
use super::fault_injection::{self, Fault};
use super::ids::{ClientHost, Principal, Step, Stop, Ticket, Time, fail};
use super::manager::StateManager;
use super::stable_clients::RecordStatus;
use super::tables::client::{Client, RevocationMark};
use super::tables::entry::EntryKind;
use super::tables::pending::Pending;
use super::tables::session::CreateSlot;
use super::tables::slot::SessionRequest;

/// The flags that a client may set.
const EXCHANGE_FLAGS: u32 = exchgid::SUPP_MOVED_REFER
    | exchgid::SUPP_MOVED_MIGR
    | exchgid::SUPP_FENCE_OPS
    | exchgid::BIND_PRINC_STATEID
    | exchgid::USE_NON_PNFS
    | exchgid::USE_PNFS_MDS
    | exchgid::USE_PNFS_DS
    | exchgid::UPD_CONFIRMED_REC_A;

/// Maximum number of stateids of expired clients to remember. NFSv4.0 has a separate error for them.
const EXPIRED: usize = 4096;

impl StateManager {
    /// EXCHANGE_ID: all cases of RFC 8881 section 18.35.4.
    pub fn exchange_id(
        &mut self,
        now: Time,
        host: ClientHost,
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
        let confirmed = self.incarnations.get(&key).and_then(|name| name.confirmed);
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
        self.check_name_unclaimed(&key, principal)?;
        if let Some(client) = confirmed.and_then(|id| self.clients.get(&id)) {
            if client.evicting.is_some() {
                return fail(NfsStat::Delay);
            }
            let id = client.id;
            if client.principal != *principal {
                if client.holds_state() && !self.lease_expired(now, id) {
                    return fail(NfsStat::ClidInuse);
                }
                self.evict(id)?;
            } else if client.verifier == verifier {
                self.renew(now, id);
                return Ok(self.exchanged(id));
            }
            // Otherwise the client has restarted. Its old state goes when the new boot is confirmed, not
            // before.
        }
        self.make_room_for_client(now, host)?;
        let id = self.new_client(now, host, true, &args.owner.id.0, verifier, principal);
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

    /// Adds an unconfirmed client. It replaces another unconfirmed one of the same name.
    pub(super) fn new_client(
        &mut self,
        now: Time,
        host: ClientHost,
        with_sessions: bool,
        owner: &[u8],
        verifier: Verifier,
        principal: &Principal,
    ) -> ClientId {
        // Client IDs are unpredictable, because anybody who knows one could ask for sessions of the client.
        let id = loop {
            let id = u64::from(self.boot) << 32 | u64::from(self.rng.next_u64() as u32);
            if !self.clients.contains_key(&id) {
                break id;
            }
        };
        let name = self.incarnations.entry((with_sessions, owner.to_vec())).or_default();
        if let Some(replaced) = name.unconfirmed.replace(id) {
            self.clients.remove(&replaced);
        }
        let client = Client {
            id,
            host,
            with_sessions,
            owner: owner.to_vec(),
            verifier,
            principal: principal.clone(),
            confirmed: false,
            renewed: now,
            busy: 0,
            revocation_mark: RevocationMark::None,
            evicting: None,
            reclaim_completed: false,
            create: CreateSlot::default(),
            sessions: BTreeSet::new(),
            reply_cache_bytes: 0,
            v40: None,
            may_reclaim: false,
            entries: BTreeSet::new(),
            owners: BTreeMap::new(),
            delegations: 0,
            revoked: 0,
            ranges: 0,
            waiters: 0,
            waits_on: BTreeSet::new(),
        };
        self.clients.insert(id, client);
        id
    }

    /// Confirms a client, and removes the one that had its name with all its state. Changes nothing if that
    /// one is busy.
    pub(super) fn confirm(&mut self, now: Time, id: ClientId) -> Step<()> {
        let client = &self.clients[&id];
        let key = (client.with_sessions, client.owner.clone());
        if let Some(old) = self.incarnations.get(&key).and_then(|name| name.confirmed) {
            if self.clients[&old].busy > 0 {
                return fail(NfsStat::Delay);
            }
            // No need to wait: the old record names a boot that is over, so nobody can reclaim with it.
            let client = &self.clients[&old];
            let record = client.as_record();
            self.forget_record(record);
            self.remove_client(old);
        }
        let name = self.incarnations.entry(key).or_default();
        name.confirmed = Some(id);
        name.unconfirmed = None;
        self.renew(now, id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.confirmed = true;
            self.events.clients_confirmed += 1;
        }
        self.match_previous_boot(id);
        Ok(())
    }

    /// Without state protection, any user of a confirmed client's machine may act for the client (RFC 8881
    /// section 18.36.3). Only a certificate identifies the machine.
    pub(super) fn check_principal(&self, principal: &Principal, id: ClientId) -> Step<()> {
        match self.clients.get(&id) {
            // [RFC8881 15.1.10.3]
            Some(client) if !client.principal.accepts_machine_of(principal) => fail(NfsStat::WrongCred),
            _ => Ok(()),
        }
    }

    /// DESTROY_CLIENTID (RFC 8881 section 18.50). `inside` is the session request that contains it, if any.
    pub fn destroy_clientid(
        &mut self,
        principal: &Principal,
        inside: Option<&SessionRequest>,
        id: ClientId,
    ) -> Step<()> {
        let Some(client) = self.clients.get(&id).filter(|client| client.with_sessions) else {
            return fail(NfsStat::StaleClientid);
        };
        self.check_principal(principal, id)?;
        // [RFC8881 18.50.3]
        let own = inside.is_some_and(|running| running.client == id);
        if own || !client.sessions.is_empty() || client.holds_state() || client.busy > 0 {
            return fail(NfsStat::ClientidBusy);
        }
        let record = client.as_record();
        self.forget_record(record);
        self.remove_client(id);
        Ok(())
    }

    /// RECLAIM_COMPLETE (RFC 8881 section 18.51). With `one_fs` it has no effect, because filesystems do not
    /// migrate.
    pub fn reclaim_complete(&mut self, now: Time, id: ClientId, one_fs: bool) -> Step<()> {
        let Some(client) = self.clients.get(&id) else { return fail(NfsStat::StaleClientid) };
        if one_fs {
            return Ok(());
        }
        // [RFC8881 18.51.3]
        if client.reclaim_completed {
            return fail(NfsStat::CompleteAlready);
        }
        self.ensure_recorded(id)?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.reclaim_completed = true;
        }
        self.clear_revocation_mark(id);
        self.note_all_reclaimed(id);
        self.end_grace_if_due(now);
        Ok(())
    }

    /// Removes the record of a boot that is over, without waiting.
    fn forget_record(&mut self, record: ClientRecord) {
        if self.stable_clients.of(&record) != RecordStatus::Absent {
            self.persist(Pending::Nothing, RecordChange::Remove(vec![record]));
        }
    }

    /// Succeeds if the client's record is durable; otherwise writes it.
    pub(super) fn ensure_recorded(&mut self, id: ClientId) -> Step<()> {
        if let Some(ticket) = self.clients[&id].evicting {
            return Err(Stop::Wait(ticket));
        }
        let record = self.clients[&id].as_record();
        match self.stable_clients.of(&record) {
            _ if fault_injection::is_injected(Fault::TrustStartupRecords)
                && self.grace.was_on_record(&record) =>
            {
                Ok(())
            }
            RecordStatus::Durable => Ok(()),
            RecordStatus::Pending(ticket) => Err(Stop::Wait(ticket)),
            RecordStatus::Absent => {
                Err(Stop::Wait(self.persist(Pending::RecordPut, RecordChange::Put(record))))
            }
        }
    }

    /// Succeeds if it is durable that this client has lost a delegation. Otherwise the client could reclaim
    /// the delegation after a restart, although others had the file since.
    pub(super) fn ensure_revocation_marked(&mut self, id: ClientId) -> Step<()> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if let Some(ticket) = client.evicting {
            // A write now would follow the removal of the record and restore it.
            return Err(Stop::Wait(ticket));
        }
        let record = ClientRecord { revoked: true, ..client.as_record() };
        match (client.revocation_mark, self.stable_clients.of(&record)) {
            (RevocationMark::Durable, _) => Ok(()),
            (RevocationMark::Writing(ticket), _) => Err(Stop::Wait(ticket)),
            (RevocationMark::None, RecordStatus::Absent) => {
                // If the client's record is ever written, it includes the mark.
                client.revocation_mark = RevocationMark::Durable;
                Ok(())
            }
            (RevocationMark::None, RecordStatus::Pending(ticket)) => Err(Stop::Wait(ticket)),
            (RevocationMark::None, RecordStatus::Durable) => {
                let ticket = self.persist(Pending::RevocationMark(id), RecordChange::Put(record));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.revocation_mark = RevocationMark::Writing(ticket);
                }
                Err(Stop::Wait(ticket))
            }
        }
    }

    pub(super) fn revocation_mark_written(&mut self, id: ClientId, ticket: Ticket, durable: bool) {
        if let Some(client) = self.clients.get_mut(&id)
            && client.revocation_mark == RevocationMark::Writing(ticket)
        {
            client.revocation_mark = if durable { RevocationMark::Durable } else { RevocationMark::None };
        }
    }

    /// Removes the mark when the client has acknowledged all its revoked delegations.
    pub(super) fn clear_revocation_mark(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.revoked > 0 || client.revocation_mark == RevocationMark::None {
            return;
        }
        client.revocation_mark = RevocationMark::None;
        let record = client.as_record();
        if client.evicting.is_none() && self.stable_clients.expected(&record).is_some() {
            self.persist(Pending::Nothing, RecordChange::Put(record));
        }
    }

    /// Drops all state of a client.
    fn drop_client_state(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else { return };
        let (entries, files) = (client.entries.clone(), client.waits_on.clone());
        for file in files {
            self.drop_waiters(file, |waiter| waiter.client == id);
            self.forget_file_if_idle(file);
        }
        let v40 = self.clients[&id].v40.is_some();
        for index in entries {
            // Locks go with their opens.
            match self.entries.get(&index).map(|entry| &entry.kind) {
                Some(EntryKind::Open(_)) => self.drop_open(index),
                Some(EntryKind::Delegation(_)) => self.end_delegation(index),
                Some(EntryKind::Copy(_)) => self.drop_copy(index),
                Some(EntryKind::Lock(_)) | None => {}
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

    /// Removes a client with all that it has.
    pub(super) fn remove_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let sessions = std::mem::take(&mut client.sessions);
        for session in sessions {
            self.remove_session(session);
        }
        self.drop_client_state(id);
        let Some(client) = self.clients.remove(&id) else { return };
        let key = (client.with_sessions, client.owner);
        if let Some(name) = self.incarnations.get_mut(&key) {
            for place in [&mut name.confirmed, &mut name.unconfirmed] {
                if *place == Some(id) {
                    *place = None;
                }
            }
            if name.confirmed.is_none() && name.unconfirmed.is_none() {
                self.incarnations.remove(&key);
            }
        }
    }
}
