//! Checks of the invariants of the tables.

use std::collections::BTreeSet;

use ivers_nfs4::ops::v40::share;

use super::manager::StateManager;
use super::tables::entry::EntryKind;
use super::tables::in_flight::InFlightKind;
use super::tables::open::Open;
use super::tables::slot::Slot;

impl StateManager {
    /// Panics if an invariant is violated.
    pub(crate) fn check_invariants(&self) {
        self.check_files();
        self.check_counts();
        self.check_incarnations();
    }

    /// Returns whether no permit, plan, session request or owner request is active.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.clients.values().all(|client| client.busy == 0)
    }

    fn check_files(&self) {
        for (file, state) in &self.files {
            let opens: Vec<_> = state.opens.iter().map(|at| (at, self.open_at(*at).unwrap())).collect();
            for (at, (index, one)) in opens.iter().enumerate() {
                assert_eq!(self.entries[index].file, *file);
                for (_, two) in &opens[at + 1..] {
                    assert_ne!(one.owner, two.owner, "S1: two opens of one owner");
                    assert!(one.access & two.deny == 0 && two.access & one.deny == 0, "S1: {file:?}");
                }
            }
            let with = |has: fn(&Open) -> bool| opens.iter().filter(|(_, open)| has(open)).count();
            assert_eq!(state.writing_opens, with(|open| open.access & share::WRITE != 0), "S9");
            assert_eq!(state.denying_opens, with(|open| open.deny != 0), "S9");
            let locks: Vec<_> = state.locks.iter().collect();
            for (at, (_, one)) in locks.iter().enumerate() {
                assert!(one.len() > 0);
                for (_, two) in &locks[at + 1..] {
                    assert!(one.iter().all(|(range, write)| two.conflict(range, write).is_none()), "S2");
                }
            }
            for index in &state.delegations {
                let entry = &self.entries[index];
                let EntryKind::Delegation(delegation) = &entry.kind else { panic!() };
                assert!(!delegation.revoked && entry.file == *file);
                for other in state.delegations.iter().filter(|other| *other != index) {
                    assert!(!delegation.write, "S3: beside another delegation");
                    assert_ne!(self.entries[other].client, entry.client);
                }
                for (at, open) in &opens {
                    let other = self.entries[at].client != entry.client;
                    assert!(!(other && delegation.write), "S3: beside another client's open");
                    assert!(!(other && open.access & share::WRITE != 0), "S4");
                }
                for number in &state.in_flight {
                    let it = &self.in_flight[number];
                    let (other, answer) =
                        (it.client != Some(entry.client), matches!(it.kind, InFlightKind::HolderReply(..)));
                    assert!(!(other && delegation.write) || answer, "S3: beside another client's permit");
                }
            }
            let idle = state.opens.is_empty() && state.delegations.is_empty() && state.locks.is_empty();
            let quiet =
                state.waiters.is_empty() && state.in_flight.is_empty() && state.pending_bumps.is_empty();
            assert!(!(idle && quiet && state.last_conflict.is_none()), "{file:?} has state, but it is empty");
        }
    }

    fn check_counts(&self) {
        let limits = &self.config.limits;
        let mut kept = 0;
        for (id, client) in &self.clients {
            assert_eq!(client.id, *id);
            let slots = client.sessions.iter().flat_map(|at| &self.sessions[at].slots);
            let slots = slots.filter(|slot: &&Slot| slot.is_busy()).count();
            let in_flight = self.in_flight.values().filter(|it| it.client == Some(*id)).count();
            let owner_requests = client.owners.values().filter(|at| self.owners[*at].is_busy()).count();
            assert_eq!(client.busy as usize, slots + in_flight + owner_requests, "S8: {id}");
            let bytes: u64 = client.sessions.iter().map(|at| self.sessions[at].reserved()).sum();
            assert_eq!(client.reply_cache_bytes, bytes);
            kept += bytes;
            let entries: BTreeSet<u32> =
                self.entries.iter().filter(|(_, entry)| entry.client == *id).map(|(at, _)| *at).collect();
            assert_eq!(client.entries, entries);
            let delegations = entries.iter().filter_map(|at| match &self.entries[at].kind {
                EntryKind::Delegation(it) => Some(it.revoked),
                _ => None,
            });
            let (revoked, live): (Vec<_>, Vec<_>) = delegations.partition(|revoked| *revoked);
            assert_eq!((client.revoked, client.delegations), (revoked.len(), live.len()), "S9: {id}");
            let ranges = |owner: &u64| -> usize {
                self.files.values().filter_map(|state| state.locks.get(owner)).map(|it| it.len()).sum()
            };
            assert_eq!(client.ranges, client.owners.values().map(ranges).sum::<usize>(), "S9: {id}");
            let mut waiters = 0;
            for (file, state) in &self.files {
                let here = state.waiters.iter().filter(|waiter| waiter.client == *id).count();
                assert_eq!(here > 0, client.waits_on.contains(file));
                waiters += here;
            }
            assert_eq!(client.waiters, waiters);
            assert!(client.entries.len() <= limits.stateids.0 && client.ranges <= limits.ranges.0);
            assert!(client.delegations <= limits.delegations.0 && client.waiters <= limits.waiters.0);
            assert!(client.evicting.is_none() || client.busy == 0, "S8");
        }
        assert_eq!(self.reply_cache_bytes, kept);
        let most = |bound: usize| bound + bound / 2;
        assert!(self.reply_cache_bytes <= limits.reply_cache_bytes.1 + limits.reply_cache_bytes.1 / 2);
        assert!(
            self.entries.len() <= most(limits.stateids.1) && self.owners.len() <= most(limits.owners.1),
            "S9"
        );
        assert!(self.ranges <= most(limits.ranges.1) && self.waiters <= most(limits.waiters.1), "S9");
        assert!(self.delegations <= most(limits.delegations.1), "S9");
        assert_eq!(self.delegations, self.clients.values().map(|client| client.delegations).sum::<usize>());
        assert_eq!(self.ranges, self.clients.values().map(|client| client.ranges).sum::<usize>());
        assert_eq!(self.waiters, self.clients.values().map(|client| client.waiters).sum::<usize>());
        let recalled: BTreeSet<u32> = self.recalls.iter().map(|(_, index)| *index).collect();
        for (index, entry) in &self.entries {
            let (recall, on_file) = match &entry.kind {
                EntryKind::Delegation(it) => (
                    it.recall.is_some() && !it.revoked,
                    it.revoked || self.files[&entry.file].delegations.contains(index),
                ),
                EntryKind::Open(open) => {
                    assert!(self.owners[&open.owner].entries.contains(index));
                    (false, self.files[&entry.file].opens.contains(index))
                }
                EntryKind::Copy(_) => {
                    assert!(self.copies.contains(index));
                    (false, true)
                }
                EntryKind::Lock(lock) => {
                    assert!(self.owners[&lock.owner].entries.contains(index));
                    (false, self.open_at(lock.open).unwrap().locks.contains(index))
                }
            };
            assert_eq!(recall, recalled.contains(index));
            assert!(on_file);
        }
        assert_eq!(recalled.len(), self.recalls.len());
        let copies = self.entries.values().filter(|entry| matches!(entry.kind, EntryKind::Copy(_))).count();
        assert!(copies == self.copies.len() && copies <= most(limits.copies.1), "S9");
    }

    fn check_incarnations(&self) {
        for (id, client) in &self.clients {
            let name = &self.incarnations[&(client.with_sessions, client.owner.clone())];
            let place = if client.confirmed { name.confirmed } else { name.unconfirmed };
            assert_eq!(place, Some(*id));
            for (key, number) in &client.owners {
                let owner = &self.owners[number];
                assert_eq!((owner.client, owner.kind, &owner.name), (*id, key.0, &key.1));
                assert!(!owner.entries.is_empty() || owner.sequence.is_some(), "an owner of nothing");
            }
        }
        assert_eq!(self.owners.len(), self.clients.values().map(|client| client.owners.len()).sum::<usize>());
        for session in self.sessions.values() {
            assert_eq!(session.slots.len() + session.retired.len(), session.fore.max_requests as usize);
            assert!(self.clients.contains_key(&session.client));
        }
        for (owner, _) in self.closed.values() {
            assert!(self.owners.contains_key(owner));
        }
    }
}
