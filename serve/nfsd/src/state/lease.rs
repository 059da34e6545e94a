//! Leases: how long the server waits for a client, and how it evicts one (RFC 8881 sections 8.3, 8.4; RFC
//! 7530 section 9.5).

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::client_record::{ClientRecord, RecordChange};
use super::fair_share::FairShare;
use super::fault_injection::{self, Fault};
use super::ids::{ClientHost, Millis, Step, Stop, Time, fail};
use super::manager::StateManager;
use super::stable_clients::RecordStatus;
use super::tables::client::Client;
use super::tables::events::LogEvent;
use super::tables::pending::Pending;

/// Maximum number of clients that one [`StateManager::tick`] checks.
const SLICE: usize = 64;

impl StateManager {
    pub(super) fn renew(&mut self, now: Time, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.renewed = client.renewed.max(now);
        }
    }

    /// Returns whether a client's lease is over and no request of it is running.
    pub(super) fn lease_expired(&self, now: Time, id: ClientId) -> bool {
        self.clients
            .get(&id)
            .is_none_or(|client| client.busy == 0 && now.since(client.renewed) > self.config.lease)
    }

    /// Evicts a client. If it is on record, its record is removed first: otherwise it could reclaim after a
    /// restart what another client holds.
    pub(super) fn evict(&mut self, id: ClientId) -> Step<()> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        if let Some(ticket) = client.evicting {
            return Err(Stop::Wait(ticket));
        }
        if client.busy > 0 {
            return fail(NfsStat::Delay);
        }
        let record = client.as_record();
        match self.stable_clients.of(&record) {
            RecordStatus::Absent => {
                if client.confirmed {
                    self.note(LogEvent::Evicted(id));
                }
                self.remove_client(id);
                Ok(())
            }
            RecordStatus::Pending(ticket) => Err(Stop::Wait(ticket)),
            RecordStatus::Durable if fault_injection::is_injected(Fault::EvictBeforeRemoval) => {
                self.remove_client(id);
                Ok(())
            }
            RecordStatus::Durable => {
                let ticket = self.persist(Pending::Evicting(id), RecordChange::Remove(vec![record]));
                self.note(LogEvent::Evicted(id));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.evicting = Some(ticket);
                }
                Err(Stop::Wait(ticket))
            }
        }
    }

    /// Makes room for one more client. Unconfirmed clients go first, then expired ones, those with the oldest
    /// lease first.
    ///
    /// A client of a host that holds [little](FairShare) is admitted above the limit, and is not removed for
    /// other hosts before it confirms.
    pub(super) fn make_room_for_client(&mut self, now: Time, host: ClientHost) -> Step<()> {
        let bound = self.config.limits.clients;
        if self.clients.len() < bound {
            return Ok(());
        }
        let shares = FairShare::new(bound as u64, host, self.clients.values().map(|client| (client.host, 1)));
        let longest = |goes: &dyn Fn(&Client) -> bool| {
            let clients = self.clients.values().filter(|client| goes(client));
            clients.min_by_key(|client| (client.renewed, client.id)).map(|client| client.id)
        };
        let may_go = |client: &Client| client.host == host || !shares.holds_little(client.host);
        if let Some(id) = longest(&|client| !client.confirmed && may_go(client)) {
            self.remove_client(id);
            return Ok(());
        }
        match longest(&|client| client.confirmed).filter(|&id| self.lease_expired(now, id)) {
            Some(id) => self.evict(id),
            None if shares.available(host) > 0 => Ok(()),
            None => fail(NfsStat::Delay),
        }
    }

    /// Evicts the client with the oldest lease if it is expired.
    pub(super) fn evict_longest_expired(&mut self, now: Time) -> Step<()> {
        let oldest = self
            .clients
            .values()
            .filter(|client| client.confirmed)
            .min_by_key(|client| (client.renewed, client.id))
            .map(|client| client.id);
        match oldest.filter(|&id| self.lease_expired(now, id)) {
            Some(id) => self.evict(id),
            None => Ok(()),
        }
    }

    /// Removes the records of clients without state when the server stops, so that the next grace period does
    /// not wait for them. No request may be running, and none may follow.
    pub fn remove_idle_records(&mut self) {
        // Clients of the last boot that have not returned yet keep their records.
        if self.in_grace() {
            return;
        }
        let clients = self.clients.values();
        let idle = clients.filter(|it| it.evicting.is_none() && it.busy == 0 && !it.holds_state());
        let kept = |record: &ClientRecord| self.stable_clients.of(record) == RecordStatus::Durable;
        let idle: Vec<_> = idle.map(Client::as_record).filter(kept).collect();
        if !idle.is_empty() {
            self.persist(Pending::Nothing, RecordChange::Remove(idle));
        }
    }

    /// Does what is due, limited per call. Returns when to call it again at the latest.
    pub fn tick(&mut self, now: Time) -> Time {
        let slice: Vec<ClientId> =
            self.clients.range(self.sweep_at..).map(|(id, _)| *id).take(SLICE).collect();
        for id in &slice {
            let client = &self.clients[id];
            let patience = if client.confirmed { self.config.courtesy } else { self.config.lease };
            // An expired client without state has no use for courtesy.
            let patience = if client.confirmed && client.sessions.is_empty() && !client.holds_state() {
                self.config.lease
            } else {
                patience
            };
            if client.busy == 0 && now.since(client.renewed) > patience {
                // If the removal takes a while, a later sweep or conflict completes it.
                let _ = self.evict(*id);
            }
        }
        let mut more = slice.len() == SLICE;
        self.sweep_at = if more { slice[SLICE - 1] + 1 } else { 0 };
        more |= self.forget_conflicts(now, SLICE);
        more |= self.forget_owners(now, SLICE);
        let recalls = self.sweep_recalls(now, SLICE);
        self.forget_copies(now);
        self.balance_reply_memory(now);
        self.end_grace_if_due(now);
        let next = if more { now } else { now + Millis(self.config.lease.0 / 4) };
        [recalls, self.grace.next()].into_iter().flatten().fold(next, Time::min)
    }
}
