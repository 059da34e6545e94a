//! What must be true of the tables at any time.

use std::collections::BTreeSet;

use super::held::Kind;
use super::permit::At;
use super::slot::Slot;
use super::*;
use ivers_nfs4::ops::v40::share;

impl State {
    /// Panics if something is not as it must be.
    pub(crate) fn audit(&self) {
        self.audit_files();
        self.audit_counts();
        self.audit_names();
    }

    /// Whether nothing is under way: no permit, no plan, no request of a session, no owner's turn.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way.is_empty() && self.clients.values().all(|client| client.busy == 0)
    }

    fn audit_files(&self) {
        for (file, state) in &self.files {
            let opens: Vec<_> = state.opens.iter().map(|at| (at, self.open_at(*at).unwrap())).collect();
            for (at, (index, one)) in opens.iter().enumerate() {
                assert_eq!(self.held[index].file, *file);
                for (_, two) in &opens[at + 1..] {
                    assert_ne!(one.owner, two.owner, "S1: two opens of one owner");
                    assert!(one.access & two.deny == 0 && two.access & one.deny == 0, "S1: {file:?}");
                }
            }
            let locks: Vec<_> = state.locks.iter().collect();
            for (at, (_, one)) in locks.iter().enumerate() {
                assert!(one.len() > 0);
                for (_, two) in &locks[at + 1..] {
                    assert!(one.iter().all(|(range, write)| two.conflict(range, write).is_none()), "S2");
                }
            }
            for index in &state.delegations {
                let held = &self.held[index];
                let Kind::Delegation(delegation) = &held.kind else { panic!() };
                assert!(!delegation.revoked && held.file == *file);
                for other in state.delegations.iter().filter(|other| *other != index) {
                    assert!(!delegation.write, "S3: beside another delegation");
                    assert_ne!(self.held[other].client, held.client);
                }
                for (at, open) in &opens {
                    let other = self.held[at].client != held.client;
                    assert!(!(other && delegation.write), "S3: beside somebody else's open");
                    assert!(!(other && open.access & share::WRITE != 0), "S4");
                }
                for number in &state.under_way {
                    let it = &self.under_way[number];
                    let (other, answer) = (it.client != Some(held.client), matches!(it.at, At::Answer(..)));
                    assert!(!(other && delegation.write) || answer, "S3: beside somebody else's permit");
                }
            }
            let idle = state.opens.is_empty() && state.delegations.is_empty() && state.locks.is_empty();
            let quiet = state.waiters.is_empty() && state.under_way.is_empty() && state.bumps.is_empty();
            assert!(!(idle && quiet && state.conflict.is_none()), "{file:?} is remembered for nothing");
        }
    }

    fn audit_counts(&self) {
        let limits = &self.config.limits;
        let mut kept = 0;
        for (id, client) in &self.clients {
            assert_eq!(client.id, *id);
            let slots = client.sessions.iter().flat_map(|at| &self.sessions[at].slots);
            let slots = slots.filter(|slot: &&Slot| slot.is_busy()).count();
            let under_way = self.under_way.values().filter(|it| it.client == Some(*id)).count();
            let turns = client.owners.values().filter(|at| self.owners[*at].is_busy()).count();
            assert_eq!(client.busy as usize, slots + under_way + turns, "S8: {id}");
            let bytes: u64 = client.sessions.iter().map(|at| self.sessions[at].reserved()).sum();
            assert_eq!(client.kept_bytes, bytes);
            kept += bytes;
            let held: BTreeSet<u32> =
                self.held.iter().filter(|(_, held)| held.client == *id).map(|(at, _)| *at).collect();
            assert_eq!(client.held, held);
            let delegations = held.iter().filter_map(|at| match &self.held[at].kind {
                Kind::Delegation(it) => Some(it.revoked),
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
                assert_eq!(here > 0, client.waits_at.contains(file));
                waiters += here;
            }
            assert_eq!(client.waiters, waiters);
            assert!(client.held.len() <= limits.stateids.0 && client.ranges <= limits.ranges.0);
            assert!(client.delegations <= limits.delegations.0 && client.waiters <= limits.waiters.0);
            assert!(client.condemned.is_none() || client.busy == 0, "S8");
        }
        assert_eq!(self.kept_bytes, kept);
        let most = |bound: usize| bound + bound / 2;
        assert!(self.kept_bytes <= limits.kept_bytes.1 + limits.kept_bytes.1 / 2);
        assert!(
            self.held.len() <= most(limits.stateids.1) && self.owners.len() <= most(limits.owners.1),
            "S9"
        );
        assert!(self.ranges <= most(limits.ranges.1) && self.waiters <= most(limits.waiters.1), "S9");
        assert!(self.delegations <= most(limits.delegations.1), "S9");
        assert_eq!(self.delegations, self.clients.values().map(|client| client.delegations).sum::<usize>());
        assert_eq!(self.ranges, self.clients.values().map(|client| client.ranges).sum::<usize>());
        assert_eq!(self.waiters, self.clients.values().map(|client| client.waiters).sum::<usize>());
        let recalled: BTreeSet<u32> = self.recalls.iter().map(|(_, index)| *index).collect();
        for (index, held) in &self.held {
            let (recall, on_file) = match &held.kind {
                Kind::Delegation(it) => (
                    it.recall.is_some() && !it.revoked,
                    it.revoked || self.files[&held.file].delegations.contains(index),
                ),
                Kind::Open(open) => {
                    assert!(self.owners[&open.owner].held.contains(index));
                    (false, self.files[&held.file].opens.contains(index))
                }
                Kind::Copy(_) => {
                    assert!(self.copies.contains(index));
                    (false, true)
                }
                Kind::Lock(lock) => {
                    assert!(self.owners[&lock.owner].held.contains(index));
                    (false, self.open_at(lock.open).unwrap().locks.contains(index))
                }
            };
            assert_eq!(recall, recalled.contains(index));
            assert!(on_file);
        }
        assert_eq!(recalled.len(), self.recalls.len());
        let copies = self.held.values().filter(|held| matches!(held.kind, Kind::Copy(_))).count();
        assert!(copies == self.copies.len() && copies <= most(limits.copies.1), "S9");
    }

    fn audit_names(&self) {
        for (id, client) in &self.clients {
            let name = &self.names[&(client.with_sessions, client.owner.clone())];
            let place = if client.confirmed { name.confirmed } else { name.unconfirmed };
            assert_eq!(place, Some(*id));
            for (key, number) in &client.owners {
                let owner = &self.owners[number];
                assert_eq!((owner.client, owner.kind, &owner.name), (*id, key.0, &key.1));
                assert!(!owner.held.is_empty() || owner.sequence.is_some(), "an owner of nothing");
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
