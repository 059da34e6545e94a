//! The bytes of files: READ, WRITE, COMMIT.

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{CommitArgs, WriteArgs, share};
use ivers_nfs4::rpc::AuthSys;
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

    /// Sends bytes. Returns whether the server made all of them durable.
    fn send(&self, node: &Node, offset: u64, data: &[u8], size: u64) -> Result<Written> {
        let session = self.client.session()?;
        let most = session.request_bytes_max.saturating_sub(REQUEST_OVERHEAD);
        let most = most.min(usize::try_from(self.facts.write_bytes_max).unwrap_or(usize::MAX)).max(1);
        let (place, writer) = (self.place(node), node.open.writer());
        let (mut done, mut written) = (0, Written::Durable);
        while done < data.len() {
            let part = &data[done..data.len().min(done + most)];
            let at = offset + done as u64;
            // All of a closed file: the same request makes it durable.
            let whole = at == 0 && part.len() as u64 >= size && !node.open.is_used();
            let identity = self.client.identity();
            let is_writers = |it: &Deferred| identity.auth(&it.caller) == identity.auth(&writer);
            let deferred = if whole { node.open.deferred().filter(is_writers) } else { None };
            let ops = |stateid| {
                let (stable, data) = (StableHow::Unstable, part.to_vec());
                let mut ops = vec![Op::Write(WriteArgs { stateid, offset: at, stable, data })];
                ops.extend(deferred.as_ref().map(|it| it.op(StateId::ANONYMOUS)));
                ops.extend(whole.then_some(Op::Commit(CommitArgs { offset: 0, count: 0 })));
                ops.push(Op::GetAttr(attributes::of_file()));
                ops
            };
            let changing = self.sending(node);
            let outcome = self.with_stateid(&writer, node, share::WRITE, ops)?;
            let (mut results, sent) = outcome.up_to(2, &place)?;
            results.skip();
            let ok = take!(results, Write)?;
            let is_set = deferred.is_some() && results.0.next().is_some_and(|it| it.status() == NfsStat::Ok);
            let committed = if whole { take!(results, Commit).ok() } else { None };
            let count = ok.count as usize;
            if count == 0 || count > part.len() {
                log::error!("{place}: the server wrote {count} of {} bytes", part.len());
                return Err(ServerError::Failed.into());
            }
            let is_durable = ok.committed != StableHow::Unstable || committed == Some(ok.verifier);
            let verifier = (!is_durable).then_some(ok.verifier);
            if verifier.is_some() {
                written = Written::Unstable;
            }
            node.open.with_unstable(|unstable| unstable.note(at..at + count as u64, verifier));
            // Bytes that the server loses are sent again, and then move the times.
            if let Some(deferred) = deferred.as_ref().filter(|_| is_set && is_durable) {
                node.open.no_longer_deferred(deferred);
            }
            changing.learn_or_expire(&mut results, sent)?;
            done += count;
        }
        Ok(written)
    }

    /// Makes the writes of a file durable that the server has. Those that it lost are cached again.
    pub(crate) fn commit(&self, node: &Node) -> Result<()> {
        if node.open.with_unstable(|unstable| unstable.is_empty()) {
            return Ok(());
        }
        self.commit_in_manner(node)?;
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
        let node = self.node(inode);
        let sent = self.send(node, offset, data, inode.size());
        node.open.note_unsent(sent.is_err());
        match sent {
            // A refusal is final: these bytes would wait for ever.
            Err(Error::Name(refused)) => {
                node.open.note_unsent(false);
                let range = offset..offset + data.len() as u64;
                node.open.with_unstable(|unstable| unstable.forget(range));
                Err(Error::DataRefused(refused))
            }
            other => self.change(other),
        }
    }

    /// The size goes to the server with the other attributes.
    fn truncate(&self, _: &Cred, _: &Inode, _: u64) -> Result<()> {
        Err(NameError::NotSupported.into())
    }
}
