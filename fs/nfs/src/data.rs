//! The bytes of files: READ, WRITE, COMMIT.

use std::collections::VecDeque;

use ivers_nfs4::ops::v40::{CommitArgs, WriteArgs, share};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::shared::SharedBytes;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{StableHow, StateId};
use ivers_vfs::*;

use crate::attributes;
use crate::deferred::Deferred;
use crate::driver::{Nfs, REPLY_OVERHEAD};
use crate::nodes::Node;
use crate::opens::is_lost;
use crate::reply::take;
use crate::requests::Outcome;
use crate::together;

/// Bytes of a request beside its data.
const REQUEST_OVERHEAD: usize = 2048;
/// How often a request may find that the server has lost its stateid.
pub(crate) const LOSSES_MAX: usize = 8;

/// Operations of a request beside WRITE: SEQUENCE, PUTFH, SETATTR, COMMIT, GETATTR.
const OTHER_OPERATIONS: usize = 5;
/// Bytes of a WRITE beside its data, and of its result.
const WRITE_BYTES: usize = 64;
const WRITE_REPLY_BYTES: usize = 32;
/// Bytes of a reply that the server keeps, beside the results of WRITE.
const KEPT_OVERHEAD: usize = 1024;

/// Bytes of a file that one WRITE sends.
struct Piece {
    /// The position of its run.
    run: usize,
    offset: u64,
    data: SharedBytes,
}

/// How much a request can carry.
struct Room {
    /// Bytes of all WRITE operations.
    bytes: usize,
    /// Bytes of data of one WRITE.
    write_bytes: usize,
    /// How many WRITE operations.
    writes: usize,
}

impl Room {
    /// Returns how many of the first pieces fit.
    fn fitting(&self, pieces: &VecDeque<Piece>) -> usize {
        let mut bytes = 0;
        let fits = |piece: &&Piece| {
            bytes += piece.data.len() + WRITE_BYTES;
            bytes <= self.bytes
        };
        pieces.iter().take(self.writes).take_while(fits).count().max(1)
    }
}

fn cred_of(auth: AuthSys) -> Cred {
    Cred { uid: auth.uid, gid: auth.gid, groups: auth.gids.0, ..Cred::trusted() }
}

impl Nfs {
    /// Returns the stateid of a file for `access`, unless locks of it are lost: others may have changed what
    /// is about to be read or written.
    pub(crate) fn unlost_stateid(&self, node: &Node, access: u32) -> Result<ivers_nfs4::types::StateId> {
        if node.open.with_locks(|locks| locks.has_lost()) {
            return Err(NameError::LockLost.into());
        }
        Ok(self.opens.stateid(&node.open, access))
    }

    /// Sends operations that carry a stateid of the file for `access`. Repeats them if the server lost it.
    pub(crate) fn with_stateid(
        &self,
        caller: &Cred,
        node: &Node,
        access: u32,
        ops: impl Fn(ivers_nfs4::types::StateId) -> Vec<Op>,
    ) -> Result<Outcome> {
        let mut turn = None;
        for _ in 0..LOSSES_MAX {
            let stateid = self.unlost_stateid(node, access)?;
            let mut all = vec![Op::PutFh(node.handle.clone())];
            all.extend(ops(stateid));
            let outcome = self.client.call_in_manner(caller, all)?;
            if !is_lost(outcome.status) {
                return Ok(outcome);
            }
            // A lock of another thread may have ended the stateid. Now other threads wait to lock.
            turn.get_or_insert_with(|| node.open.lock_turn());
            self.opens.lost(&node.open, stateid, outcome.status);
        }
        Err(ServerError::StateLost.into())
    }

    /// Returns the most bytes that a READ can return.
    pub(crate) fn read_bytes_max(&self) -> Result<usize> {
        let most = (self.client.session()?.reply_bytes_max - REPLY_OVERHEAD) as u64;
        Ok(most.min(self.facts.read_bytes_max) as usize)
    }

    /// Sends runs of bytes of a file, which has this size, in as few requests as possible. Returns the
    /// results of the first runs, up to one that failed.
    fn send_runs(&self, node: &Node, runs: Vec<DirtyRun>, size: u64, next: Next) -> Vec<Result<Written>> {
        let room = match self.room() {
            Ok(room) => room,
            Err(error) => return vec![Err(error)],
        };
        let mut written = vec![Written::Durable; runs.len()];
        let mut pieces = VecDeque::new();
        for (run, (offset, data)) in runs.into_iter().enumerate() {
            let data = SharedBytes::from(data);
            let starts = (0..data.len()).step_by(room.write_bytes);
            let piece =
                |at| Piece { run, offset: offset + at as u64, data: data.part(at..at + room.write_bytes) };
            pieces.extend(starts.map(piece));
        }
        while let Some(first) = pieces.front() {
            let run = first.run;
            if let Err(error) = self.send_pieces(node, &room, &mut pieces, &mut written, (size, next)) {
                written.truncate(run);
                return written.into_iter().map(Ok).chain([Err(error)]).collect();
            }
        }
        written.into_iter().map(Ok).collect()
    }

    /// Returns how much a request with WRITE can carry.
    fn room(&self) -> Result<Room> {
        let session = self.client.session()?;
        let bytes = session.request_bytes_max.saturating_sub(REQUEST_OVERHEAD);
        let write_bytes = bytes.min(usize::try_from(self.facts.write_bytes_max).unwrap_or(usize::MAX)).max(1);
        let by_reply = session.kept_bytes_max.saturating_sub(KEPT_OVERHEAD) / WRITE_REPLY_BYTES;
        let writes = session.operations_max.saturating_sub(OTHER_OPERATIONS).min(by_reply).max(1);
        // A request of several threads has its own limits. A server of NFSv4.0 does not say what it takes.
        let is_one = !together::has_no_manner() || self.client.is_version_40();
        Ok(Room { bytes, write_bytes, writes: if is_one { 1 } else { writes } })
    }

    /// Sends the first pieces in one request, and removes those that were written. Notes in `written` which
    /// runs the server may lose. If the request has all pieces that are left, it also does what is `next`.
    fn send_pieces(
        &self,
        node: &Node,
        room: &Room,
        pieces: &mut VecDeque<Piece>,
        written: &mut [Written],
        (size, next): (u64, Next),
    ) -> Result<()> {
        let now: Vec<_> = pieces.drain(..room.fitting(pieces)).collect();
        let (place, writer) = (self.place(node), node.open.writer());
        let finishes = next != Next::Nothing && pieces.is_empty();
        // All of a closed file: the same request makes it durable.
        let whole = !node.open.is_used()
            && matches!(&now[..], [piece] if piece.offset == 0 && piece.data.len() as u64 >= size);
        let identity = self.client.identity();
        let is_writers = |it: &Deferred| identity.auth(&it.caller) == identity.auth(&writer);
        let deferred = if whole { node.open.deferred().filter(is_writers) } else { None };
        let earlier = node.open.with_unstable(|unstable| (!unstable.is_empty()).then(|| unstable.snapshot()));
        let stable = match next {
            _ if !finishes || now.len() > 1 || earlier.is_some() || deferred.is_some() => StableHow::Unstable,
            Next::SyncData => StableHow::DataSync,
            Next::Sync | Next::Nothing => StableHow::FileSync,
        };
        let commits = (whole || finishes) && stable == StableHow::Unstable;
        let ops = |stateid| {
            let write =
                |piece: &Piece| WriteArgs { stateid, offset: piece.offset, stable, data: piece.data.clone() };
            let mut ops: Vec<_> = now.iter().map(|piece| Op::Write(write(piece))).collect();
            ops.extend(deferred.as_ref().map(|it| it.op(StateId::ANONYMOUS)));
            ops.extend(commits.then_some(Op::Commit(CommitArgs { offset: 0, count: 0 })));
            ops.push(Op::GetAttr(attributes::of_file()));
            ops
        };
        let changing = self.sending(node);
        let outcome = self.with_stateid(&writer, node, share::WRITE, ops)?;
        let (mut results, sent) = outcome.up_to(2, &place)?;
        results.skip();
        let mut done = Vec::new();
        while let Some(OpResult::Write(Ok(_))) = results.0.as_slice().first() {
            done.push(take!(results, Write)?);
        }
        let is_set = deferred.is_some() && results.0.next().is_some_and(|it| it.status() == NfsStat::Ok);
        let committed = if commits { take!(results, Commit).ok() } else { None };
        // The next request sends what was not written. If the error is permanent, that request has it.
        let mut again = Vec::new();
        let mut done = done.into_iter();
        for Piece { run, offset, data } in now {
            let Some(ok) = done.next() else {
                again.push(Piece { run, offset, data });
                continue;
            };
            let count = ok.count as usize;
            if count == 0 || count > data.len() {
                log::error!("{place}: the server wrote {count} of {} bytes", data.len());
                return Err(ServerError::Failed.into());
            }
            let is_durable = ok.committed != StableHow::Unstable || committed == Some(ok.verifier);
            if !is_durable {
                written[run] = Written::Unstable;
            }
            let (end, verifier) = (offset + count as u64, (!is_durable).then_some(ok.verifier));
            node.open.with_unstable(|unstable| unstable.note(offset..end, verifier));
            // Bytes that the server loses are sent again, and then move the times.
            if let Some(deferred) = deferred.as_ref().filter(|_| is_set && is_durable) {
                node.open.no_longer_deferred(deferred);
            }
            if count < data.len() {
                again.push(Piece { run, offset: end, data: data.part(count..data.len()) });
            }
        }
        again.into_iter().rev().for_each(|piece| pieces.push_front(piece));
        changing.learn_or_expire(&mut results, sent)?;
        if let (Some(earlier), Some(verifier)) = (earlier, committed) {
            let lost = node.open.with_unstable(|unstable| unstable.committed(earlier, verifier));
            self.cache_again(node, lost);
        }
        Ok(())
    }

    /// Makes the writes of a file durable that the server has. Those that it lost are cached again.
    pub(crate) fn commit(&self, node: &Node) -> Result<()> {
        if !node.open.with_unstable(|unstable| unstable.is_empty()) {
            self.commit_in_manner(node)?;
        } else if !node.open.is_idle() {
            return Ok(());
        }
        self.opens.settle(&node.open);
        Ok(())
    }

    /// As [`Nfs::commit`], in the manner of this thread, and without CLOSE. Returns whether nothing was lost.
    /// Threads that wait at the same time share a COMMIT.
    pub(crate) fn commit_in_manner(&self, node: &Node) -> Result<bool> {
        let snapshot =
            || node.open.with_unstable(|unstable| (!unstable.is_empty()).then(|| unstable.snapshot()));
        let Some(mut sent) = snapshot() else { return Ok(true) };
        // A thread that returns a delegation, or sends with others, waits for no other one here.
        let mut turn = None;
        if together::has_no_manner() {
            let Some(taken) = node.open.commit_turn(sent) else { return Ok(true) };
            turn = Some(taken);
            // Also what others have written meanwhile: they wait.
            let Some(now) = snapshot() else { return Ok(true) };
            sent = now;
        }
        let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
        let ops = vec![Op::PutFh(node.handle.clone()), commit, Op::GetAttr(attributes::of_file())];
        let outcome = self.client.call_in_manner(&node.open.writer(), ops)?;
        if let Some(turn) = &mut turn {
            turn.answered();
        }
        let (mut results, sent_at) = match outcome.up_to(2, self.client.name()) {
            // The bytes are sent again. An error that stays comes back with them, and is kept for `fsync`.
            Err(Error::Name(refused)) => {
                log::warn!("{}: COMMIT: {refused}", self.place(node));
                self.cache_again(node, node.open.with_unstable(|unstable| unstable.all(sent)));
                return Ok(false);
            }
            other => other?,
        };
        results.skip();
        let verifier = take!(results, Commit)?;
        if let Some(file) = results.attributes(&self.place(node))? {
            self.learn(node, &file, sent_at);
        }
        let lost = node.open.with_unstable(|unstable| unstable.committed(sent, verifier));
        let is_durable = lost.is_empty();
        self.cache_again(node, lost);
        Ok(is_durable)
    }

    /// The server does not have these bytes.
    fn cache_again(&self, node: &Node, ranges: Vec<std::ops::Range<u64>>) {
        if let Some(cache) = self.cache() {
            ranges.into_iter().for_each(|range| cache.redirty(node.ino, range));
        }
    }
}

impl FileOps for Nfs {
    fn read(&self, caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let node = self.node(inode);
        // Reads through an open come without the groups of its opener.
        let opener = node.opener(caller.uid).filter(|_| caller.access_checked && !caller.system);
        let caller = opener.map_or_else(|| caller.clone(), cred_of);
        if self.read_kept(&caller, node, offset, buf)? {
            return Ok(());
        }
        self.read_sent(&caller, node, offset, buf)
    }

    /// The server reserves nothing.
    fn reserve(&self, _: &Inode, _: u64, _: u64, _: BlockPool) -> Result<()> {
        Ok(())
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        let results = self.write_back_runs(inode, vec![(offset, data.to_vec())], Next::Nothing);
        results.into_iter().next().unwrap_or(Err(ServerError::Failed.into()))
    }

    fn write_back_runs(&self, inode: &Inode, runs: Vec<DirtyRun>, next: Next) -> Vec<Result<Written>> {
        let node = self.node(inode);
        let ranges: Vec<_> = runs.iter().map(|(start, data)| *start..start + data.len() as u64).collect();
        let mut results = self.send_runs(node, runs, inode.size(), next);
        let failed = results.pop_if(|last| last.is_err());
        node.open.note_unsent(matches!(&failed, Some(Err(error)) if !matches!(error, Error::Name(_))));
        let Some(failed) = failed else { return results };
        results.push(match failed {
            // A refusal is final: these bytes would wait for ever.
            Err(Error::Name(refused)) => {
                if let Some(range) = ranges.get(results.len()) {
                    node.open.with_unstable(|unstable| unstable.forget(range.clone()));
                }
                Err(Error::DataRefused(refused))
            }
            other => self.change(other),
        });
        results
    }

    /// The size goes to the server with the other attributes.
    fn truncate(&self, _: &Cred, _: &Inode, _: u64) -> Result<()> {
        Err(NameError::NotSupported.into())
    }
}
