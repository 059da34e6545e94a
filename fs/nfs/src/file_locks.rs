//! The byte-range locks of a file, by owner: what the server has granted, and grants again after a restart.

use std::ops::Range;

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{ExistLockOwner, LockArgs, Locker, OpenToLockOwner, UnlockArgs};
use ivers_nfs4::types::{LockType, Opaque, Owner, StateId};
use ivers_vfs::{Cred, LockOwner, LockRequest, LockedRanges};

/// Returns an owner as the server has it.
pub fn wire_owner(LockOwner(owner): LockOwner) -> Owner {
    // The session says which client it is.
    Owner { clientid: 0, owner: Opaque([&b"ivers lock "[..], &owner.to_be_bytes()].concat()) }
}

/// Returns offset and length.
pub fn wire_range(range: &Range<u64>) -> (u64, u64) {
    let to_end = range.end == u64::MAX;
    (range.start, if to_end { u64::MAX } else { range.end.saturating_sub(range.start) })
}

/// Returns the type of a lock.
pub fn kind(exclusive: bool, waits: bool) -> LockType {
    match (exclusive, waits) {
        (false, false) => LockType::Read,
        (true, false) => LockType::Write,
        (false, true) => LockType::ReadW,
        (true, true) => LockType::WriteW,
    }
}

/// Returns the newest version of a stateid, as the server knows it.
pub fn newest(stateid: StateId) -> StateId {
    StateId { seqid: 0, ..stateid }
}

/// Returns the operation that gets a lock, under an open, for an owner who has none or has those of `held`.
pub fn lock_op(lock: &LockRequest, reclaim: bool, open: StateId, held: Option<StateId>) -> Op {
    let locker = match held {
        Some(stateid) => Locker::Known(ExistLockOwner { stateid: newest(stateid), seqid: 0 }),
        None => Locker::New(OpenToLockOwner {
            open_seqid: 0,
            open_stateid: newest(open),
            lock_seqid: 0,
            lock_owner: wire_owner(lock.owner),
        }),
    };
    let (offset, length) = wire_range(&lock.range);
    Op::Lock(LockArgs { kind: kind(lock.exclusive, lock.waits), reclaim, offset, length, locker })
}

/// Returns the operation that releases locks.
pub fn unlock_op(stateid: StateId, range: &Range<u64>) -> Op {
    let (offset, length) = wire_range(range);
    Op::LockU(UnlockArgs { kind: LockType::Write, seqid: 0, stateid: newest(stateid), offset, length })
}

/// The locks of an owner.
#[derive(Debug, Clone)]
pub struct OwnerLocks {
    /// The owner.
    pub owner: LockOwner,
    /// Who asked for the first of them.
    pub caller: Cred,
    /// Their stateid.
    pub stateid: Option<StateId>,
    /// What is locked, or was when the locks were lost.
    pub ranges: LockedRanges,
    /// The server does not have all of them. They stay here until their owner unlocks them.
    pub lost: bool,
}

/// The locks of a file. Owners without locks are not in it.
#[derive(Debug, Default)]
pub struct FileLocks(Vec<OwnerLocks>);

impl FileLocks {
    /// Returns whether there are any.
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the locks of an owner.
    pub fn of(&self, owner: LockOwner) -> Option<&OwnerLocks> {
        self.0.iter().find(|locks| locks.owner == owner)
    }

    /// Records a lock that the server granted.
    pub fn granted(
        &mut self,
        owner: LockOwner,
        caller: &Cred,
        stateid: StateId,
        range: Range<u64>,
        exclusive: bool,
    ) {
        let at = self.0.iter().position(|locks| locks.owner == owner).unwrap_or_else(|| {
            let (caller, ranges) = (caller.clone(), LockedRanges::default());
            self.0.push(OwnerLocks { owner, caller, stateid: None, ranges, lost: false });
            self.0.len() - 1
        });
        self.0[at].stateid = Some(stateid);
        self.0[at].ranges.lock(range, exclusive);
    }

    /// Records that an owner has unlocked a range.
    pub fn unlocked(&mut self, owner: LockOwner, range: Range<u64>) {
        self.0.iter_mut().filter(|locks| locks.owner == owner).for_each(|locks| {
            locks.ranges.unlock(range.clone());
        });
        self.0.retain(|locks| !locks.ranges.is_empty());
    }

    /// Marks all locks as lost.
    pub fn lose_all(&mut self) {
        for locks in &mut self.0 {
            (locks.stateid, locks.lost) = (None, true);
        }
    }

    /// Marks the locks with this stateid as lost. Returns whether there were any.
    pub fn lose(&mut self, used: StateId) -> bool {
        let of = |locks: &&mut OwnerLocks| locks.stateid.is_some_and(|stateid| stateid.other == used.other);
        let lost = self.0.iter_mut().find(of);
        lost.map(|locks| (locks.stateid, locks.lost) = (None, true)).is_some()
    }

    /// Stores the stateid of an owner's locks after a restart of the server, or marks them as lost.
    pub fn reclaimed(&mut self, owner: LockOwner, stateid: Option<StateId>, lost: bool) {
        if let Some(locks) = self.0.iter_mut().find(|locks| locks.owner == owner) {
            (locks.stateid, locks.lost) = (stateid, lost);
        }
    }

    /// Returns whether the locks of any owner are lost.
    pub fn has_lost(&self) -> bool {
        self.0.iter().any(|locks| locks.lost)
    }

    /// Returns the stateid of the locks if all have one owner.
    pub fn only_stateid(&self) -> Option<StateId> {
        match &self.0[..] {
            [locks] => locks.stateid,
            _ => None,
        }
    }

    /// Returns all locks.
    pub fn all(&self) -> &[OwnerLocks] {
        &self.0
    }

    /// Removes all locks and returns them.
    pub fn take(&mut self) -> Vec<OwnerLocks> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stateid(other: u8) -> StateId {
        StateId { seqid: 1, other: [other; 12] }
    }

    #[test]
    fn ranges_and_owners_are_those_of_the_protocol() {
        assert_eq!(wire_range(&(5..u64::MAX)), (5, u64::MAX));
        assert_eq!(wire_range(&(5..6)), (5, 1));
        assert_ne!(wire_owner(LockOwner(1)), wire_owner(LockOwner(2)));
    }

    #[test]
    fn lost_locks_stay_until_they_are_unlocked() {
        let mut locks = FileLocks::default();
        let (one, two) = (LockOwner(1), LockOwner(2));
        locks.granted(one, &Cred::root(), stateid(1), 0..10, true);
        assert_eq!(locks.only_stateid(), Some(stateid(1)));
        locks.granted(two, &Cred::root(), stateid(2), 20..30, false);
        assert_eq!(locks.only_stateid(), None, "whose bytes it is about is not known");
        assert!(locks.lose(stateid(1)) && !locks.lose(stateid(3)));
        assert!(locks.has_lost() && locks.of(one).unwrap().lost && !locks.of(two).unwrap().lost);
        locks.unlocked(one, 0..5);
        assert!(locks.has_lost());
        locks.unlocked(one, 5..10);
        assert!(!locks.has_lost() && locks.of(one).is_none());
        locks.lose_all();
        locks.reclaimed(two, Some(stateid(4)), false);
        assert!(!locks.has_lost() && locks.only_stateid() == Some(stateid(4)));
    }
}
