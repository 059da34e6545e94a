//! Byte-range locks: LOCK, LOCKT, LOCKU (RFC 8881, 18.10 to 18.12).
//!
//! One request for a lock of a file is on its way at a time, so that the record here follows the server. All
//! of them may be sent again: twice has the effect of once. The server splits and merges ranges.

use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::LockType;
use ivers_vfs::*;
use std::ops::Range;

use crate::data::LOSSES_MAX;
use crate::driver::Nfs;
use crate::file_locks::{kind, lock_op, newest, unlock_op, wire_owner, wire_range};
use crate::opens::is_lost;

/// Returns why a lock is refused.
fn refusal(status: NfsStat, place: &str) -> Error {
    match status {
        NfsStat::Denied | NfsStat::Deadlock => NameError::Busy.into(),
        NfsStat::BadRange | NfsStat::LockRange => NameError::Invalid.into(),
        NfsStat::LockNotsupp => NameError::NotSupported.into(),
        other => crate::status::error(other, place),
    }
}

impl LockOps for Nfs {
    fn lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<()> {
        let node = self.node(inode);
        let (file, place) = (&node.open, self.place(node));
        let access = if lock.exclusive { share::WRITE } else { share::READ };
        let _turn = file.lock_turn();
        for _ in 0..LOSSES_MAX {
            let held = file.with_locks(|locks| locks.of(lock.owner).cloned());
            if held.as_ref().is_some_and(|held| held.lost) {
                return Err(NameError::LockLost.into());
            }
            let open = self.opens.open_stateid(file, access).ok_or(NameError::Access)?;
            let held = held.and_then(|held| held.stateid);
            let ops = [Op::PutFh(node.handle.clone()), lock_op(lock, false, open, held)];
            let mut outcome = self.client.call(caller, &ops)?;
            match outcome.results.pop() {
                Some(OpResult::Lock(Locked::Ok(stateid))) => {
                    let (owner, range) = (lock.owner, lock.range.clone());
                    file.with_locks(|locks| locks.granted(owner, caller, stateid, range, lock.exclusive));
                    return Ok(());
                }
                Some(OpResult::Lock(_)) if is_lost(outcome.status) => {
                    self.opens.lost(file, held.unwrap_or(open), outcome.status);
                }
                _ => {
                    self.client.release_idle_owner();
                    return Err(refusal(outcome.status, &place));
                }
            }
        }
        Err(ServerError::StateLost.into())
    }

    fn test_lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<Option<LockConflict>> {
        let node = self.node(inode);
        let (offset, length) = wire_range(&lock.range);
        let (kind, owner) = (kind(lock.exclusive, false), wire_owner(lock.owner));
        let test = Op::LockT(LockTestArgs { kind, offset, length, owner });
        let mut outcome = self.client.call(caller, &[Op::PutFh(node.handle.clone()), test])?;
        match outcome.results.pop() {
            Some(OpResult::LockT(Locked::Ok(()))) => Ok(None),
            Some(OpResult::LockT(Locked::Denied(denied))) => {
                let range = denied.offset..denied.offset.saturating_add(denied.length);
                let exclusive = matches!(denied.kind, LockType::Write | LockType::WriteW);
                Ok(Some(LockConflict { range, exclusive }))
            }
            _ => Err(refusal(outcome.status, &self.place(node))),
        }
    }

    fn unlock(&self, caller: &Cred, inode: &Inode, owner: LockOwner, range: Range<u64>) -> Result<()> {
        let node = self.node(inode);
        let file = &node.open;
        let _turn = file.lock_turn();
        let Some(mut held) = file.with_locks(|locks| locks.of(owner).cloned()) else { return Ok(()) };
        let caller = if caller.system { &held.caller } else { caller };
        while let Some(stateid) = held.stateid {
            let mut ops = vec![Op::PutFh(node.handle.clone()), unlock_op(stateid, &range)];
            held.ranges.unlock(range.clone());
            if held.ranges.is_empty() {
                // It may fail: then the server keeps the stateid until CLOSE.
                ops.push(Op::FreeStateId(newest(stateid)));
            }
            let outcome = self.client.call(caller, &ops)?;
            if matches!(outcome.results.get(1), Some(OpResult::LockU(Ok(_)))) {
                break;
            }
            if !is_lost(outcome.status) {
                return Err(refusal(outcome.status, &self.place(node)));
            }
            // The locks may have another one since the server restarted.
            let now = file.with_locks(|locks| locks.of(owner).and_then(|locks| locks.stateid));
            if now == Some(stateid) {
                self.opens.lost(file, stateid, outcome.status);
            }
            held.stateid = now.filter(|now| *now != stateid);
        }
        file.with_locks(|locks| locks.unlocked(owner, range));
        self.client.release_idle_owner();
        Ok(())
    }

    fn holds_locks(&self, inode: &Inode, owner: LockOwner) -> bool {
        self.node(inode).open.with_locks(|locks| locks.of(owner).is_some())
    }
}
