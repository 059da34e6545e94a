//! Byte-range locks (RFC 8881 sections 9.1 to 9.6, 18.10 to 18.12, 20.11). They are advisory: no READ or WRITE is stopped by them.

use ivers_nfs4::ops::v40::{LockDenied, share};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, LockType, Opaque, StateId};

use super::held::{Kind, OwnerKind};
use super::mistake::{self, Mistake};
use super::range::Range;
use super::{Call, Caller, Effect, File, State, Step, Stop, Time, fail};

#[derive(Debug)]
pub(super) struct LockState {
    pub owner: u64,
    /// The open that the locks are under.
    pub open: u32,
}

/// Somebody who wants to know when a lock may be free. Nothing is kept for him.
#[derive(Debug)]
pub(super) struct Waiter {
    pub client: ClientId,
    pub owner: Vec<u8>,
    range: Range,
    write: bool,
    since: Time,
}

/// For whom a lock is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locker<'a> {
    /// A lock-owner's first one under an open.
    New {
        /// The open.
        open: StateId,
        /// The lock-owner.
        owner: &'a [u8],
    },
    /// One who has a stateid.
    Old(StateId),
}

/// What LOCK asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest<'a> {
    /// For whom.
    pub locker: Locker<'a>,
    /// Which kind.
    pub kind: LockType,
    /// It was held before the restart.
    pub reclaim: bool,
    /// From here.
    pub offset: u64,
    /// So many bytes.
    pub length: u64,
}

fn writes(kind: LockType) -> bool {
    matches!(kind, LockType::Write | LockType::WriteW)
}

impl State {
    /// LOCK (RFC 8881 section 18.10).
    pub fn lock(
        &mut self,
        now: Time,
        caller: Caller,
        file: File,
        request: &LockRequest<'_>,
    ) -> Step<StateId> {
        let range = Range::new(request.offset, request.length)?;
        let write = writes(request.kind);
        let stateid = match &request.locker {
            Locker::New { open, .. } => open,
            Locker::Old(lock) => lock,
        };
        let index = self.find_of(caller, file, stateid)?;
        let client = self.held[&index].client;
        let (open_index, name) = match (&request.locker, &self.held[&index].kind) {
            (Locker::New { owner, .. }, Kind::Open(_)) if self.is_confirmed(index) => (index, owner.to_vec()),
            (Locker::Old(_), Kind::Lock(lock)) => (lock.open, self.owners[&lock.owner].name.clone()),
            _ => return fail(NfsStat::BadStateid),
        };
        self.caller(client)?;
        if caller == Caller::V40 {
            self.renew(now, client);
        }
        // [RFC8881 18.10.3]
        let needed = if write { share::WRITE } else { share::READ };
        if self.open_at(open_index).is_none_or(|open| open.access & needed == 0) {
            return fail(NfsStat::Openmode);
        }
        if request.reclaim {
            self.may_reclaim(client)?;
        } else {
            self.fresh_for(client)?;
        }
        self.bumped(file)?;
        let owner = self.clients[&client].owners.get(&(OwnerKind::Lock, name.clone())).copied();
        if let Err(stop) = self.unlocked(now, file, owner, range, write) {
            let Stop::Denied(_) = stop else { return Err(stop) };
            if request.reclaim {
                return fail(NfsStat::ReclaimConflict);
            }
            if matches!(request.kind, LockType::ReadW | LockType::WriteW) && caller != Caller::V40 {
                self.wait(file, Waiter { client, owner: name, range, write, since: now });
            }
            return Err(stop);
        }
        let limits = self.config.limits.ranges;
        if self.clients[&client].ranges + 2 > limits.0 || !self.room_for_ranges(client, 2) {
            return fail(NfsStat::Delay);
        }
        let existing = owner.and_then(|owner| {
            let same =
                |at: &&u32| matches!(&self.held[*at].kind, Kind::Lock(lock) if lock.open == open_index);
            self.owners[&owner].held.iter().find(same).copied()
        });
        if existing.is_none() {
            self.room_for_state(now, client)?;
        }
        let owner = self.owner(client, OwnerKind::Lock, &name);
        let index = match existing {
            Some(index) => {
                if let Some(held) = self.held.get_mut(&index) {
                    held.changed();
                }
                index
            }
            None => {
                let index = self.hold(client, file, Kind::Lock(LockState { owner, open: open_index }));
                if let Some(owner) = self.owners.get_mut(&owner) {
                    owner.held.insert(index);
                }
                if let Some(Kind::Open(open)) = self.held.get_mut(&open_index).map(|held| &mut held.kind) {
                    open.locks.insert(index);
                }
                index
            }
        };
        self.unwait(file, client, &name);
        self.set_range(file, client, owner, range, Some(write));
        if request.reclaim {
            self.reclaimed(client);
        }
        Ok(self.stateid(index))
    }

    fn room_for_ranges(&self, id: ClientId, more: usize) -> bool {
        let bound = self.config.limits.ranges.1;
        self.shares(id, more, (self.ranges, bound), |client| client.ranges)
    }

    /// LOCKT (RFC 8881 section 18.11).
    pub fn lockt(
        &mut self,
        now: Time,
        client: ClientId,
        file: File,
        owner: &[u8],
        kind: LockType,
        (offset, length): (u64, u64),
    ) -> Step<()> {
        let range = Range::new(offset, length)?;
        if self.caller(client)? == Caller::V40 {
            self.renew(now, client);
        }
        self.fresh()?;
        let owner = self.clients[&client].owners.get(&(OwnerKind::Lock, owner.to_vec())).copied();
        self.unlocked(now, file, owner, range, writes(kind))
    }

    /// LOCKU (RFC 8881 section 18.12).
    pub fn locku(
        &mut self,
        now: Time,
        caller: Caller,
        file: File,
        stateid: &StateId,
        (offset, length): (u64, u64),
    ) -> Step<StateId> {
        let range = Range::new(offset, length)?;
        let index = self.find_of(caller, file, stateid)?;
        let client = self.held[&index].client;
        let Kind::Lock(LockState { owner, .. }) = self.held[&index].kind else {
            return fail(NfsStat::BadStateid);
        };
        // A hole in the middle makes two of one. Whoever is at his limit can only unlock what does not.
        let splits = self.files.get(&file).and_then(|state| state.locks.get(&owner)).is_some_and(|ranges| {
            ranges.iter().any(|(it, _)| it.first < range.first && it.last > range.last)
        });
        let limits = self.config.limits.ranges;
        if splits && (self.clients[&client].ranges >= limits.0 || !self.room_for_ranges(client, 1)) {
            return fail(NfsStat::LockRange);
        }
        if let Some(held) = self.held.get_mut(&index) {
            held.changed();
        }
        self.set_range(file, client, owner, range, None);
        self.renew(now, client);
        Ok(self.stateid(index))
    }

    /// Whether nobody else's lock is in the way.
    fn unlocked(&mut self, now: Time, file: File, owner: Option<u64>, range: Range, write: bool) -> Step<()> {
        loop {
            let Some(state) = self.files.get(&file) else { return Ok(()) };
            let mut others = state.locks.iter().filter(|(of, _)| Some(**of) != owner);
            let against = others.find_map(|(of, ranges)| Some((*of, ranges.conflict(range, write)?)));
            let Some((of, (range, write))) = against.filter(|_| !mistake::is(Mistake::ForgetLocks)) else {
                return Ok(());
            };
            let holder = &self.owners[&of];
            if !self.lease_is_over(now, holder.client) {
                // [RFC8881 18.10.4]
                return Err(Stop::Denied(Box::new(LockDenied {
                    offset: range.first,
                    length: range.length(),
                    kind: if write { LockType::Write } else { LockType::Read },
                    owner: ivers_nfs4::types::Owner {
                        clientid: holder.client,
                        owner: Opaque(holder.name.clone()),
                    },
                })));
            }
            let client = holder.client;
            self.evict(client)?;
        }
    }

    pub(super) fn has_ranges(&self, file: File, owner: u64) -> bool {
        self.files.get(&file).is_some_and(|state| state.locks.contains_key(&owner))
    }

    fn set_range(&mut self, file: File, client: ClientId, owner: u64, range: Range, lock: Option<bool>) {
        let state = self.files.entry(file).or_default();
        let ranges = state.locks.entry(owner).or_default();
        let before = ranges.len();
        ranges.set(range, lock);
        let after = ranges.len();
        if after == 0 {
            state.locks.remove(&owner);
        }
        self.ranges = self.ranges + after - before;
        if let Some(client) = self.clients.get_mut(&client) {
            client.ranges = client.ranges + after - before;
        }
        if lock != Some(true) {
            self.wake(file);
        }
        self.tidy(file);
    }

    /// A lock-owner's stateid under an open goes, and what it locked, unless it locked that under another open too.
    pub(super) fn drop_lock_state(&mut self, index: u32) {
        let Some(held) = self.release(index) else { return };
        let Kind::Lock(lock) = held.kind else { return };
        if let Some(Kind::Open(open)) = self.held.get_mut(&lock.open).map(|held| &mut held.kind) {
            open.locks.remove(&index);
        }
        let mut elsewhere = false;
        if let Some(owner) = self.owners.get_mut(&lock.owner) {
            owner.held.remove(&index);
            elsewhere = owner.held.iter().any(|at| self.held[at].file == held.file);
        }
        if !elsewhere && self.has_ranges(held.file, lock.owner) {
            self.set_range(held.file, held.client, lock.owner, Range { first: 0, last: u64::MAX }, None);
        }
        self.let_owner_go(lock.owner);
    }

    fn wait(&mut self, file: File, waiter: Waiter) {
        self.unwait(file, waiter.client, &waiter.owner);
        let limits = self.config.limits.waiters;
        let room = self.shares(waiter.client, 1, (self.waiters, limits.1), |client| client.waiters);
        let Some(client) = self.clients.get_mut(&waiter.client) else { return };
        // Without a place he asks again after a while, as he does anyway.
        if client.waiters >= limits.0 || !room {
            return;
        }
        client.waiters += 1;
        client.waits_at.insert(file);
        self.waiters += 1;
        self.files.entry(file).or_default().waiters.push(waiter);
    }

    fn unwait(&mut self, file: File, client: ClientId, owner: &[u8]) {
        self.drop_waiters(file, |waiter| waiter.client == client && waiter.owner == owner);
    }

    pub(super) fn drop_waiters(&mut self, file: File, mut gone: impl FnMut(&Waiter) -> bool) -> Vec<Waiter> {
        let Some(state) = self.files.get_mut(&file) else { return Vec::new() };
        let dropped: Vec<Waiter> = state.waiters.extract_if(.., |waiter| gone(waiter)).collect();
        for waiter in &dropped {
            self.waiters -= 1;
            let others = state.waiters.iter().any(|other| other.client == waiter.client);
            if let Some(client) = self.clients.get_mut(&waiter.client) {
                client.waiters -= 1;
                if !others {
                    client.waits_at.remove(&file);
                }
            }
        }
        dropped
    }

    /// Those are told for whom a lock may be free now.
    fn wake(&mut self, file: File) {
        let Some(state) = self.files.get(&file).filter(|state| !state.waiters.is_empty()) else { return };
        let free: Vec<bool> = state
            .waiters
            .iter()
            .map(|waiter| {
                let client = &self.clients[&waiter.client];
                let own = client.owners.get(&(OwnerKind::Lock, waiter.owner.clone()));
                let mut others = state.locks.iter().filter(|(owner, _)| Some(*owner) != own);
                others.all(|(_, ranges)| ranges.conflict(waiter.range, waiter.write).is_none())
            })
            .collect();
        let mut free = free.into_iter();
        // [RFC8881 20.11]
        for waiter in self.drop_waiters(file, |_| free.next().unwrap_or(false)) {
            self.effects.push(Effect::Call {
                client: waiter.client,
                call: Call::NotifyLock { file, owner: waiter.owner },
            });
        }
    }

    /// Waiters who have not asked again for a lease time have given up.
    pub(super) fn forget_waiters(&mut self, now: Time, file: File) {
        let lease = self.config.lease;
        self.drop_waiters(file, |waiter| now.since(waiter.since) > lease);
    }
}
