//! Copies on the server: COPY, CLONE (RFC 7862, 15.2, 15.13).
//!
//! What the server copied is not in the cache here, so nobody could send it again if the server lost it. So
//! the same request commits it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ivers_nfs4::ops::v40::{CommitArgs, share};
use ivers_nfs4::ops::v42::{CloneArgs, CopyArgs, CopyRes};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{StableHow, StateId};
use ivers_nfs4::xdr::List;
use ivers_vfs::*;

use crate::attributes;
use crate::data::LOSSES_MAX;
use crate::driver::{Changing, Nfs};
use crate::file_open::LockTurn;
use crate::nodes::Node;
use crate::opens::is_lost;
use crate::reply::take;
use crate::requests::Outcome;

/// How many operations stand before the one that copies.
const BEFORE: usize = 3;
/// How often a server may lose a copy before its COMMIT.
const RESTARTS_MAX: usize = 4;

/// Returns whether the server cannot make this copy. Then the VFS copies the bytes itself.
fn cannot(status: NfsStat) -> bool {
    matches!(
        status,
        NfsStat::Notsupp
            | NfsStat::Xdev
            | NfsStat::WrongType
            | NfsStat::PartnerNotsupp
            | NfsStat::PartnerNoAuth
            | NfsStat::OffloadDenied
            | NfsStat::OffloadNoReqs
            | NfsStat::WrongLfs
    )
}

/// As [`cannot`]. Also sets `missing` if the server does not have the operation.
fn is_refused(status: NfsStat, missing: &AtomicBool) -> bool {
    if status == NfsStat::Notsupp {
        missing.store(true, Relaxed);
    }
    cannot(status)
}

/// Takes the turns for locks of two files. In the order of their numbers, so that two threads with the same
/// files do not wait for each other.
fn lock_turns<'a>(one: &'a Node, other: &'a Node) -> (LockTurn<'a>, Option<LockTurn<'a>>) {
    let (first, second) = if one.ino <= other.ino { (one, other) } else { (other, one) };
    let turn = first.open.lock_turn();
    (turn, (first.ino != second.ino).then(|| second.open.lock_turn()))
}

impl Nfs {
    /// Sends an operation that takes the stateids of two files.
    fn between(
        &self,
        caller: &Cred,
        (from, to): (&Node, &Node),
        range: &std::ops::Range<u64>,
        op: impl Fn(StateId, StateId) -> Op,
    ) -> Result<Outcome> {
        let count = u32::try_from(range.end - range.start).unwrap_or(0);
        let mut turns = None;
        for _ in 0..LOSSES_MAX {
            let source = self.unlost_stateid(from, share::READ)?;
            let target = self.unlost_stateid(to, share::WRITE)?;
            let ops = [
                Op::PutFh(from.handle.clone()),
                Op::SaveFh(()),
                Op::PutFh(to.handle.clone()),
                op(source, target),
                Op::Commit(CommitArgs { offset: range.start, count }),
                Op::GetAttr(attributes::of_file()),
            ];
            let outcome = self.client.call(caller, &ops)?;
            if !is_lost(outcome.status) {
                return Ok(outcome);
            }
            // Locks of other threads may have ended the stateids. Now other threads wait to lock.
            turns.get_or_insert_with(|| lock_turns(from, to));
            for (node, stateid) in [(from, source), (to, target)] {
                if self.is_lost_on_server(stateid)? {
                    self.opens.lost(&node.open, stateid, outcome.status);
                }
            }
        }
        Err(ServerError::StateLost.into())
    }

    /// Asks the server whether it has lost a stateid.
    fn is_lost_on_server(&self, stateid: StateId) -> Result<bool> {
        let ops = [Op::TestStateId(List(vec![stateid]))];
        let (mut results, _) = self.client.call(&Cred::system(), &ops)?.ok(self.client.name())?;
        let states = take!(results, TestStateId)?;
        Ok(states.0.first().is_none_or(|status| *status != NfsStat::Ok as u32))
    }

    /// The bytes of a range are not those that this client wrote there.
    fn copied(
        &self,
        (node, changing): (&Node, Changing<'_>),
        range: std::ops::Range<u64>,
        outcome: Outcome,
    ) -> Result<()> {
        let (mut results, sent) = outcome.up_to(BEFORE + 2, &self.place(node))?;
        (0..BEFORE + 2).for_each(|_| results.skip());
        node.open.with_unstable(|unstable| unstable.forget(range));
        changing.learn_or_expire(&mut results, sent)
    }
}

impl CloneOps for Nfs {
    fn clone_range(
        &self,
        caller: &Cred,
        (source, source_offset): (&Inode, u64),
        (target, target_offset): (&Inode, u64),
        count: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        if self.missing.clone.load(Relaxed) {
            return Err(NameError::NotSupported.into());
        }
        let (from, to) = (self.node(source), self.node(target));
        let range = target_offset..target_offset.saturating_add(count);
        let op =
            |source, target| Op::Clone(CloneArgs { source, target, source_offset, target_offset, count });
        let changing = self.changing(to);
        let outcome = self.change(self.between(caller, (from, to), &range, op))?;
        let status = outcome.results.get(BEFORE).map_or(outcome.status, OpResult::status);
        // The server's blocks may be larger.
        if is_refused(status, &self.missing.clone) || status == NfsStat::Inval {
            return Err(NameError::NotSupported.into());
        }
        self.change(self.copied((to, changing), range, outcome))
    }

    fn copy_range(
        &self,
        caller: &Cred,
        (source, source_offset): (&Inode, u64),
        (target, target_offset): (&Inode, u64),
        count: u64,
        _pool: BlockPool,
    ) -> Result<u64> {
        if self.missing.copy.load(Relaxed) {
            return Err(NameError::NotSupported.into());
        }
        let (from, to) = (self.node(source), self.node(target));
        let range = target_offset..target_offset.saturating_add(count);
        let op = |source, target| {
            let source_server = List(Vec::new());
            let (consecutive, synchronous) = (true, true);
            Op::Copy(CopyArgs {
                source,
                target,
                source_offset,
                target_offset,
                count,
                consecutive,
                synchronous,
                source_server,
            })
        };
        for _ in 0..RESTARTS_MAX {
            let changing = self.changing(to);
            let outcome = self.change(self.between(caller, (from, to), &range, op))?;
            let copied = match outcome.results.get(BEFORE) {
                Some(OpResult::Copy(CopyRes::Ok(ok))) => ok.response.clone(),
                other => {
                    let status = other.map_or(outcome.status, OpResult::status);
                    if is_refused(status, &self.missing.copy) {
                        return Err(NameError::NotSupported.into());
                    }
                    return Err(crate::status::error(status, &self.place(to)));
                }
            };
            if copied.count == 0 || copied.count > count || !copied.callback.0.is_empty() {
                let place = self.place(to);
                log::error!("{place}: the server copied {} of {count} bytes", copied.count);
                return Err(ServerError::Failed.into());
            }
            let is_durable = match outcome.results.get(BEFORE + 1) {
                Some(OpResult::Commit(Ok(verifier))) => *verifier == copied.verifier,
                _ => false,
            };
            let is_executed = matches!(outcome.status, NfsStat::Ok | NfsStat::Delay);
            if !is_durable && copied.committed == StableHow::Unstable && is_executed {
                continue;
            }
            let done = target_offset..target_offset + copied.count;
            self.change(self.copied((to, changing), done, outcome))?;
            return Ok(copied.count);
        }
        Err(ServerError::StateLost.into())
    }
}
