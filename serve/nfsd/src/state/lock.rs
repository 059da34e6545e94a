//! Byte-range locks (RFC 8881 sections 9.1 to 9.6, 18.10 to 18.12, 20.11). They are advisory: no READ or
//! WRITE checks them.

use ivers_nfs4::ops::v40::{LockDenied, share};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, LockType, Opaque, StateId};

use super::effects::{Callback, Effect};
use super::fault_injection::{self, Fault};
use super::ids::{Caller, FileId, Step, Stop, Time, fail};
use super::manager::StateManager;
use super::range::Range;
use super::tables::entry::EntryKind;
use super::tables::lock::{LockState, Waiter};
use super::tables::owner::OwnerKind;

/// The lock-owner of a LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locker<'a> {
    /// The first lock of a lock-owner under an open.
    New {
        /// The open.
        open: StateId,
        /// The lock-owner.
        owner: &'a [u8],
    },
    /// A lock-owner with a lock stateid.
    Existing(StateId),
}

/// The arguments of LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest<'a> {
    /// The lock-owner.
    pub locker: Locker<'a>,
    /// The type of lock.
    pub kind: LockType,
    /// Whether to reclaim a lock from before the restart.
    pub reclaim: bool,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

fn writes(kind: LockType) -> bool {
    matches!(kind, LockType::Write | LockType::WriteW)
}

impl StateManager {
    /// LOCK (RFC 8881 section 18.10).
    pub fn lock(
        &mut self,
        now: Time,
        caller: Caller,
        file: FileId,
        request: &LockRequest<'_>,
    ) -> Step<StateId> {
        let range = Range::new(request.offset, request.length)?;
        let write = writes(request.kind);
        let stateid = match &request.locker {
            Locker::New { open, .. } => open,
            Locker::Existing(lock) => lock,
        };
        let index = self.find_for_file(caller, file, stateid)?;
        let client = self.entries[&index].client;
        let (open_index, name) = match (&request.locker, &self.entries[&index].kind) {
            (Locker::New { owner, .. }, EntryKind::Open(_)) if self.is_confirmed(index) => {
                (index, owner.to_vec())
            }
            (Locker::Existing(_), EntryKind::Lock(lock)) => {
                (lock.open, self.owners[&lock.owner].name.clone())
            }
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
            self.check_may_reclaim(client)?;
        } else {
            self.check_may_acquire(client)?;
        }
        self.check_no_pending_bump(file)?;
        let owner = self.clients[&client].owners.get(&(OwnerKind::Lock, name.clone())).copied();
        if let Err(stop) = self.check_lock_conflict(now, file, owner, range, write) {
            let Stop::Denied(_) = stop else { return Err(stop) };
            if request.reclaim {
                return fail(NfsStat::ReclaimConflict);
            }
            if matches!(request.kind, LockType::ReadW | LockType::WriteW) && caller != Caller::V40 {
                self.add_waiter(file, Waiter { client, owner: name, range, write, since: now });
            }
            return Err(stop);
        }
        let limits = self.config.limits.ranges;
        if self.clients[&client].ranges + 2 > limits.0 || !self.room_for_ranges(client, 2) {
            return fail(NfsStat::Delay);
        }
        let existing = owner.and_then(|owner| {
            let same = |at: &&u32| {
                matches!(&self.entries[*at].kind, EntryKind::Lock(lock) if lock.open == open_index)
            };
            self.owners[&owner].entries.iter().find(same).copied()
        });
        if existing.is_none() {
            self.check_room_for_entry(now, client)?;
        }
        let owner = self.owner(client, OwnerKind::Lock, &name);
        let index = match existing {
            Some(index) => {
                if let Some(entry) = self.entries.get_mut(&index) {
                    entry.changed();
                }
                index
            }
            None => {
                let index =
                    self.insert_entry(client, file, EntryKind::Lock(LockState { owner, open: open_index }));
                if let Some(owner) = self.owners.get_mut(&owner) {
                    owner.entries.insert(index);
                }
                if let Some(EntryKind::Open(open)) =
                    self.entries.get_mut(&open_index).map(|entry| &mut entry.kind)
                {
                    open.locks.insert(index);
                }
                index
            }
        };
        self.remove_waiter(file, client, &name);
        self.set_range(file, client, owner, range, Some(write));
        if request.reclaim {
            self.note_reclaim(client);
        }
        Ok(self.stateid(index))
    }

    fn room_for_ranges(&self, id: ClientId, more: usize) -> bool {
        let bound = self.config.limits.ranges.1;
        self.within_share(id, more, (self.ranges, bound), |client| client.ranges)
    }

    /// LOCKT (RFC 8881 section 18.11).
    pub fn lockt(
        &mut self,
        now: Time,
        client: ClientId,
        file: FileId,
        owner: &[u8],
        kind: LockType,
        (offset, length): (u64, u64),
    ) -> Step<()> {
        let range = Range::new(offset, length)?;
        if self.caller(client)? == Caller::V40 {
            self.renew(now, client);
        }
        self.check_grace_over()?;
        let owner = self.clients[&client].owners.get(&(OwnerKind::Lock, owner.to_vec())).copied();
        self.check_lock_conflict(now, file, owner, range, writes(kind))
    }

    /// LOCKU (RFC 8881 section 18.12).
    pub fn locku(
        &mut self,
        now: Time,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        (offset, length): (u64, u64),
    ) -> Step<StateId> {
        let range = Range::new(offset, length)?;
        let index = self.find_for_file(caller, file, stateid)?;
        let client = self.entries[&index].client;
        let EntryKind::Lock(LockState { owner, .. }) = self.entries[&index].kind else {
            return fail(NfsStat::BadStateid);
        };
        // A hole in the middle splits a range in two. At its limit, a client cannot do that.
        let splits = self.files.get(&file).and_then(|state| state.locks.get(&owner)).is_some_and(|ranges| {
            ranges.iter().any(|(it, _)| it.first < range.first && it.last > range.last)
        });
        let limits = self.config.limits.ranges;
        if splits && (self.clients[&client].ranges >= limits.0 || !self.room_for_ranges(client, 1)) {
            return fail(NfsStat::LockRange);
        }
        if let Some(entry) = self.entries.get_mut(&index) {
            entry.changed();
        }
        self.set_range(file, client, owner, range, None);
        self.renew(now, client);
        Ok(self.stateid(index))
    }

    /// Checks for a conflicting lock. Evicts expired holders.
    fn check_lock_conflict(
        &mut self,
        now: Time,
        file: FileId,
        owner: Option<u64>,
        range: Range,
        write: bool,
    ) -> Step<()> {
        loop {
            let Some(state) = self.files.get(&file) else { return Ok(()) };
            let mut others = state.locks.iter().filter(|(of, _)| Some(**of) != owner);
            let against = others.find_map(|(of, ranges)| Some((*of, ranges.conflict(range, write)?)));
            let Some((of, (range, write))) =
                against.filter(|_| !fault_injection::is_injected(Fault::IgnoreLocks))
            else {
                return Ok(());
            };
            let holder = &self.owners[&of];
            if !self.lease_expired(now, holder.client) {
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

    pub(super) fn has_ranges(&self, file: FileId, owner: u64) -> bool {
        self.files.get(&file).is_some_and(|state| state.locks.contains_key(&owner))
    }

    fn set_range(&mut self, file: FileId, client: ClientId, owner: u64, range: Range, lock: Option<bool>) {
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
            self.notify_waiters(file);
        }
        self.forget_file_if_idle(file);
    }

    /// Drops a lock stateid, and the owner's locks unless it has another lock stateid for the file.
    pub(super) fn drop_lock_state(&mut self, index: u32) {
        let Some(entry) = self.remove_entry(index) else { return };
        let EntryKind::Lock(lock) = entry.kind else { return };
        if let Some(EntryKind::Open(open)) = self.entries.get_mut(&lock.open).map(|entry| &mut entry.kind) {
            open.locks.remove(&index);
        }
        let mut elsewhere = false;
        if let Some(owner) = self.owners.get_mut(&lock.owner) {
            owner.entries.remove(&index);
            elsewhere = owner.entries.iter().any(|at| self.entries[at].file == entry.file);
        }
        if !elsewhere && self.has_ranges(entry.file, lock.owner) {
            self.set_range(entry.file, entry.client, lock.owner, Range { first: 0, last: u64::MAX }, None);
        }
        self.remove_owner_if_idle(lock.owner);
    }

    fn add_waiter(&mut self, file: FileId, waiter: Waiter) {
        self.remove_waiter(file, waiter.client, &waiter.owner);
        let limits = self.config.limits.waiters;
        let room = self.within_share(waiter.client, 1, (self.waiters, limits.1), |client| client.waiters);
        let Some(client) = self.clients.get_mut(&waiter.client) else { return };
        // Without notification, the client polls, which it does anyway.
        if client.waiters >= limits.0 || !room {
            return;
        }
        client.waiters += 1;
        client.waits_on.insert(file);
        self.waiters += 1;
        self.files.entry(file).or_default().waiters.push(waiter);
    }

    fn remove_waiter(&mut self, file: FileId, client: ClientId, owner: &[u8]) {
        self.drop_waiters(file, |waiter| waiter.client == client && waiter.owner == owner);
    }

    pub(super) fn drop_waiters(
        &mut self,
        file: FileId,
        mut gone: impl FnMut(&Waiter) -> bool,
    ) -> Vec<Waiter> {
        let Some(state) = self.files.get_mut(&file) else { return Vec::new() };
        let dropped: Vec<Waiter> = state.waiters.extract_if(.., |waiter| gone(waiter)).collect();
        for waiter in &dropped {
            self.waiters -= 1;
            let others = state.waiters.iter().any(|other| other.client == waiter.client);
            if let Some(client) = self.clients.get_mut(&waiter.client) {
                client.waiters -= 1;
                if !others {
                    client.waits_on.remove(&file);
                }
            }
        }
        dropped
    }

    /// Notifies waiters whose lock may be free.
    fn notify_waiters(&mut self, file: FileId) {
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
            self.effects.push(Effect::Callback {
                client: waiter.client,
                call: Callback::NotifyLock { file, owner: waiter.owner },
            });
        }
    }

    /// Forgets waiters that have not asked again for a lease time.
    pub(super) fn forget_waiters(&mut self, now: Time, file: FileId) {
        let lease = self.config.lease;
        self.drop_waiters(file, |waiter| now.since(waiter.since) > lease);
    }
}
