//! Getting opens and byte-range locks back from a server that restarted (RFC 8881, 8.4.2).

use std::sync::Arc;
use std::time::Duration;

use ivers_nfs4::ops::v40::{Locked, OpenClaim};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{OpenHow, StateId};
use ivers_vfs::{Cred, LockRequest};

use crate::client::Reclaim;
use crate::exchange::{SendOnce, Tried};
use crate::file_locks::lock_op;
use crate::opens::{FileOpen, Opens, open_op};
use crate::reply::Compound;

/// How often a server may ask for a pause before a reclaim counts as refused, and the pause.
const DELAYS: (u32, Duration) = (50, Duration::from_millis(100));

impl Reclaim for Opens {
    fn reclaim(&self, send: &SendOnce<'_>) -> Tried<()> {
        for file in self.all() {
            let Some((old, access, caller)) = file.held() else { continue };
            let claim = OpenClaim::Previous(0);
            let ops = [Op::PutFh(file.handle.clone()), open_op(access, OpenHow::NoCreate, claim)];
            let mut compound = self.patiently(send, &caller, &ops)?;
            let status = compound.status;
            let new = match compound.results.pop() {
                Some(OpResult::Open(Ok(opened))) if status == NfsStat::Ok => Some(opened.stateid),
                _ => None,
            };
            if new.is_none() {
                log::info!("{}: an open cannot be reclaimed: {}", self.client.name(), status.name());
            }
            file.reclaimed(old, new);
            if let Some(open) = new {
                self.reclaim_locks(send, &file, open)?;
            }
        }
        Ok(())
    }
}

impl Opens {
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
