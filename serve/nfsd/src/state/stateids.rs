//! State of clients, and the stateids that identify it (RFC 8881 sections 8.2, 18.38, 18.48; RFC 7530 section
//! 9.1.4).

use std::collections::BTreeSet;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};

use super::ids::{Caller, FileId, Step, Stop, Time, fail};
use super::manager::StateManager;
use super::tables::entry::{EntryKind, StateEntry};
use super::tables::open::Open;
use super::tables::owner::{Owner, OwnerKind};

impl StateManager {
    pub(super) fn stateid(&self, index: u32) -> StateId {
        let entry = &self.entries[&index];
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.boot.to_be_bytes());
        other[4..8].copy_from_slice(&index.to_be_bytes());
        other[8..].copy_from_slice(&entry.random.to_be_bytes());
        StateId { seqid: entry.seqid, other }
    }

    /// Returns the index in a stateid, without validating it.
    pub(super) fn index_of(stateid: &StateId) -> u32 {
        let bytes = &stateid.other[4..8];
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Finds the state of a stateid. Fails if it belongs to another caller or has the wrong seqid.
    pub(super) fn find(&self, caller: Caller, stateid: &StateId) -> Step<u32> {
        let v40 = caller == Caller::V40;
        let word = |at: usize| {
            let bytes = &stateid.other[at..at + 4];
            u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let special = stateid.other == [0; 12] || stateid.other == [0xff; 12];
        // [RFC7530 9.1.4.2]
        if !special && word(0) != self.boot && v40 {
            return fail(NfsStat::StaleStateid);
        }
        let index = word(4);
        let found = self.entries.get(&index).filter(|entry| {
            word(0) == self.boot
                && entry.random == word(8)
                && caller.client().is_none_or(|client| client == entry.client)
                && self.clients.get(&entry.client).is_some_and(|client| client.with_sessions != v40)
        });
        let Some(entry) = found else {
            // [RFC7530 9.1.4.4]
            let expired = v40 && word(0) == self.boot && self.expired.contains(&index);
            return fail(if expired { NfsStat::Expired } else { NfsStat::BadStateid });
        };
        if matches!(&entry.kind, EntryKind::Delegation(delegation) if delegation.revoked) {
            return fail(NfsStat::DelegRevoked);
        }
        // [RFC8881 8.2.2]
        if stateid.seqid != entry.seqid && (v40 || stateid.seqid != 0) {
            let newer = stateid.seqid.wrapping_sub(entry.seqid) as i32 > 0;
            return fail(if newer { NfsStat::BadStateid } else { NfsStat::OldStateid });
        }
        Ok(index)
    }

    /// Finds the state of a stateid for an operation on a file.
    pub(super) fn find_for_file(&self, caller: Caller, file: FileId, stateid: &StateId) -> Step<u32> {
        let index = self.find(caller, stateid)?;
        if self.entries[&index].file != file {
            return fail(NfsStat::BadStateid);
        }
        Ok(index)
    }

    pub(super) fn open_at(&self, index: u32) -> Option<&Open> {
        match &self.entries.get(&index)?.kind {
            EntryKind::Open(open) => Some(open),
            _ => None,
        }
    }

    /// Checks the limits for one more piece of state, held or planned.
    pub(super) fn check_room_for_entry(&mut self, now: Time, id: ClientId) -> Step<()> {
        let limits = self.config.limits.stateids;
        let client = &self.clients[&id];
        if client.entries.len() + client.busy as usize >= limits.0 {
            return fail(NfsStat::Delay);
        }
        if self.entries.len() + self.in_flight.len() >= limits.1 {
            self.evict_longest_expired(now)?;
        }
        let total = self.entries.len() + self.in_flight.len();
        if !self.within_share(id, 1, (total, limits.1), |client| client.entries.len() + client.busy as usize)
        {
            return fail(NfsStat::Delay);
        }
        Ok(())
    }

    pub(super) fn insert_entry(&mut self, client: ClientId, file: FileId, kind: EntryKind) -> u32 {
        loop {
            self.last_index = self.last_index.wrapping_add(1);
            if self.last_index != 0 && !self.entries.contains_key(&self.last_index) {
                break;
            }
        }
        let index = self.last_index;
        let random = self.rng.next_u64() as u32;
        self.expired.remove(&index);
        self.entries.insert(index, StateEntry { client, file, random, seqid: 1, kind });
        if let Some(client) = self.clients.get_mut(&client) {
            client.entries.insert(index);
        }
        index
    }

    /// Removes a piece of state from the tables that are common to all kinds.
    pub(super) fn remove_entry(&mut self, index: u32) -> Option<StateEntry> {
        let entry = self.entries.remove(&index)?;
        if let Some(client) = self.clients.get_mut(&entry.client) {
            client.entries.remove(&index);
        }
        Some(entry)
    }

    /// Returns the owner with this name. Creates it if necessary.
    pub(super) fn owner(&mut self, client: ClientId, kind: OwnerKind, name: &[u8]) -> u64 {
        let Some(of) = self.clients.get_mut(&client) else { return 0 };
        if let Some(owner) = of.owners.get(&(kind, name.to_vec())) {
            return *owner;
        }
        self.last_owner += 1;
        of.owners.insert((kind, name.to_vec()), self.last_owner);
        let owner = Owner { client, kind, name: name.to_vec(), entries: BTreeSet::new(), sequence: None };
        self.owners.insert(self.last_owner, owner);
        self.last_owner
    }

    /// Forgets an owner without state. NFSv4.0 owners stay for a while, because of their sequence.
    pub(super) fn remove_owner_if_idle(&mut self, number: u64) {
        let Some(owner) = self.owners.get(&number) else { return };
        if owner.entries.is_empty() && owner.sequence.is_none() {
            self.remove_owner(number);
        }
    }

    pub(super) fn remove_owner(&mut self, number: u64) {
        let Some(owner) = self.owners.remove(&number) else { return };
        if let Some(client) = self.clients.get_mut(&owner.client) {
            client.owners.remove(&(owner.kind, owner.name));
        }
    }

    /// TEST_STATEID (RFC 8881 section 18.48): a status for each stateid.
    pub fn test_stateid(&self, client: ClientId, stateids: &[StateId]) -> Vec<NfsStat> {
        let status = |stateid: &StateId| match self.find(Caller::Client(client), stateid) {
            Err(Stop::Fail(status)) => status,
            _ => NfsStat::Ok,
        };
        stateids.iter().map(status).collect()
    }

    /// FREE_STATEID (RFC 8881 section 18.38).
    pub fn free_stateid(&mut self, id: ClientId, stateid: &StateId) -> Step<()> {
        let caller = Caller::Client(id);
        let index = match self.find(caller, stateid) {
            Ok(index) => index,
            Err(Stop::Fail(NfsStat::DelegRevoked)) => {
                let bytes = &stateid.other[4..8];
                let index = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                self.remove_entry(index);
                if let Some(client) = self.clients.get_mut(&id) {
                    client.revoked -= 1;
                }
                self.clear_revocation_mark(id);
                return Ok(());
            }
            Err(stop) => return Err(stop),
        };
        // [RFC8881 18.38.3]
        match &self.entries[&index].kind {
            EntryKind::Lock(lock) if !self.has_ranges(self.entries[&index].file, lock.owner) => {
                self.drop_lock_state(index);
                Ok(())
            }
            _ => fail(NfsStat::LocksHeld),
        }
    }
}
