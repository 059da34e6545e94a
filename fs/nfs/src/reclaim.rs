//! Getting opens and byte-range locks back from a server that restarted (RFC 8881, 8.4.2).

use std::sync::Arc;
use std::time::Duration;

use ivers_nfs4::ops::v40::{Locked, OpenClaim, OpenDelegation, share};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{OpenHow, StateId};
use ivers_vfs::{Cred, LockRequest};

use crate::client::Reclaim;
use crate::delegations::limit;
use crate::exchange::{SendOnce, Tried};
use crate::file_locks::lock_op;
use crate::file_open::{Delegation, FileOpen, note_open};
use crate::opens::{Opens, open_op_wanting};
use crate::reply::Compound;

/// How often a server may ask for a pause before a reclaim counts as refused, and the pause.
const DELAYS: (u32, Duration) = (50, Duration::from_millis(100));

/// Values of `open_delegation_type4`.
const NO_DELEGATION: u32 = 0;
const READ_DELEGATION: u32 = 1;
const WRITE_DELEGATION: u32 = 2;

impl Reclaim for Opens {
    fn reclaim(&self, send: &SendOnce<'_>) -> Tried<()> {
        // A recall may come before the reply that grants its delegation again.
        let _asking = self.table.returns.ask();
        for file in self.all() {
            let delegation = file.state.lock().delegation;
            let local = || file.opened_locally().map(|(access, caller)| (None, access, caller));
            let held = file.held().map(|(old, access, caller)| (Some(old), access, caller));
            // A close has left something to send, and only the delegation permits it.
            let owed = || file.owes().then(|| (None, share::BOTH, file.writer()));
            let Some((old, access, caller)) = held.or_else(local).or_else(owed) else {
                // No program has it open: the delegation is not worth a request.
                self.reclaimed_delegation(&file, delegation, None);
                continue;
            };
            let kind = match delegation {
                None => NO_DELEGATION,
                Some(Delegation { write: None, .. }) => READ_DELEGATION,
                Some(Delegation { write: Some(_), .. }) => WRITE_DELEGATION,
            };
            let (claim, how) = (OpenClaim::Previous(kind), OpenHow::NoCreate);
            let ops = [Op::PutFh(file.handle.clone()), open_op_wanting(0, access, how, claim)];
            let mut compound = self.patiently(send, &caller, &ops)?;
            let status = compound.status;
            let opened = match compound.results.pop() {
                Some(OpResult::Open(Ok(opened))) if status == NfsStat::Ok => Some(opened),
                _ => None,
            };
            if opened.is_none() {
                log::info!("{}: an open cannot be reclaimed: {}", self.client.name(), status.name());
            }
            let new = opened.as_ref().map(|opened| opened.stateid);
            match (old, &opened) {
                (Some(old), _) => file.reclaimed(old, new),
                (None, Some(opened)) => note_open(&mut file.state.lock(), opened, access, &caller),
                // The next use asks for it.
                (None, None) => {}
            }
            self.reclaimed_delegation(&file, delegation, opened.as_ref().map(|opened| &opened.delegation));
            if let Some(open) = new {
                self.reclaim_locks(send, &file, open)?;
            }
        }
        Ok(())
    }
}

impl Opens {
    /// Stores the delegation that a restarted server granted, if any, in place of the old one.
    fn reclaimed_delegation(
        &self,
        file: &Arc<FileOpen>,
        old: Option<Delegation>,
        new: Option<&OpenDelegation>,
    ) {
        let Some(old) = old else { return };
        let new = match new {
            Some(OpenDelegation::Read(read)) if old.write.is_none() => {
                Some((read.stateid, None, read.recall))
            }
            Some(OpenDelegation::Write(write)) if old.write.is_some() => {
                Some((write.stateid, Some(limit(&write.space_limit)), write.recall))
            }
            _ => None,
        };
        // Attributes from before the restart may be out of date.
        let since = self.client.requests() + 1;
        file.void_before(since);
        file.delegation_reclaimed(old.stateid, new.map(|(stateid, write, _)| (stateid, write, since)));
        match new {
            None => {
                self.table.returns.lost_one();
                self.table.remove_if_closed(file);
            }
            Some((stateid, _, recall)) => self.heed_early(file, stateid, recall),
        }
    }

    /// Sends a request, and again if the server asks for a pause.
    fn patiently(&self, send: &SendOnce<'_>, caller: &Cred, ops: &[Op]) -> Tried<Compound> {
        let mut compound = send(caller, ops)?;
        for _ in 0..DELAYS.0 {
            if compound.status != NfsStat::Delay || self.client.is_stopped() {
                break;
            }
            std::thread::sleep(DELAYS.1);
            compound = send(caller, ops)?;
        }
        Ok(compound)
    }

    /// Reclaims the locks under an open. An owner gets all of its locks back, or has lost them.
    fn reclaim_locks(&self, send: &SendOnce<'_>, file: &Arc<FileOpen>, open: StateId) -> Tried<()> {
        let owners = file.with_locks(|locks| locks.all().to_vec());
        for held in owners.into_iter().filter(|held| !held.lost) {
            let (mut stateid, mut lost) = (None, false);
            for (range, exclusive) in held.ranges.iter() {
                let lock = LockRequest { owner: held.owner, range, exclusive, waits: false };
                let ops = [Op::PutFh(file.handle.clone()), lock_op(&lock, true, open, stateid)];
                let mut compound = self.patiently(send, &held.caller, &ops)?;
                match compound.results.pop() {
                    Some(OpResult::Lock(Locked::Ok(granted))) => stateid = Some(granted),
                    _ => {
                        let status = compound.status.name();
                        log::warn!("{}: locks of a file are lost: {status}", self.client.name());
                        lost = true;
                        break;
                    }
                }
            }
            file.with_locks(|locks| locks.reclaimed(held.owner, stateid, lost));
        }
        Ok(())
    }
}
