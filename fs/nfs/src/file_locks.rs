//! The byte-range locks of a file, by owner: what this client has told the server, and gets back from it after
//! a restart.

use ivers_nfs4::types::StateId;
use ivers_vfs::{Cred, LockOwner, LockedRanges};
use std::ops::Range;

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
    /// Returns the locks of an owner.
    pub fn of(&self, owner: LockOwner) -> Option<&OwnerLocks> {
        self.0.iter().find(|locks| locks.owner == owner)
    }

    /// The server granted a lock.
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

    /// An owner has unlocked a range.
    pub fn unlocked(&mut self, owner: LockOwner, range: Range<u64>) {
        self.0.iter_mut().filter(|locks| locks.owner == owner).for_each(|locks| {
            locks.ranges.unlock(range.clone());
        });
        self.0.retain(|locks| !locks.ranges.is_empty());
    }

    /// The server has none of them.
    pub fn lose_all(&mut self) {
        for locks in &mut self.0 {
            (locks.stateid, locks.lost) = (None, true);
        }
    }

    /// The server does not have those with this stateid. Returns whether there were any.
    pub fn lose(&mut self, used: StateId) -> bool {
        let of = |locks: &&mut OwnerLocks| locks.stateid.is_some_and(|stateid| stateid.other == used.other);
        let lost = self.0.iter_mut().find(of);
        lost.map(|locks| (locks.stateid, locks.lost) = (None, true)).is_some()
    }

    /// An owner's locks have another stateid since the server restarted, or some are lost.
    pub fn reclaimed(&mut self, owner: LockOwner, stateid: Option<StateId>, lost: bool) {
        if let Some(locks) = self.0.iter_mut().find(|locks| locks.owner == owner) {
            (locks.stateid, locks.lost) = (stateid, lost);
        }
    }

    /// Returns whether an owner's locks are lost.
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

    /// Forgets all locks.
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
