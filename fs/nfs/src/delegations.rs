//! Delegations (RFC 8881, 10.2 to 10.4): grant, recall, return, loss.
//!
//! Callbacks only mark a delegation and queue its file; the return thread returns it. This thread must not
//! wait for other threads: one may wait for an OPEN of the file, which the server answers only after the
//! return.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ivers_nfs4::ops::v40::{OpenDelegation, share};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, SpaceLimit, StateId};
use ivers_nfs4::xdr::{List, Xdr};
use ivers_vfs::sync::thread::Builder;
use ivers_vfs::{Cred, Error, Result};

use crate::background;
use crate::callbacks::Callee;
use crate::counters::Counters;
use crate::file_open::{Delegation, FileOpen, note_open};
use crate::opens::{Opens, Pace, is_lost};
use crate::reply::take;
use crate::returns::{Queue, Unknown};
use crate::together;

/// The most delegations that are kept.
const DELEGATIONS_MAX: usize = 1000;
/// The most delegations that one request returns.
const BATCH: usize = 64;
/// The most stateids that one request tests.
const TESTS: usize = 64;
/// The least time limit of a request of the return thread.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause before the return thread tries something again.
const PAUSE: Duration = Duration::from_millis(200);
/// The least time between two attempts to bind the connection for callbacks.
const BIND_PAUSE: Duration = Duration::from_secs(5);

/// Returns a file with the stateid of its delegation, if it has one.
fn with_stateid(file: Arc<FileOpen>) -> Option<(Arc<FileOpen>, StateId)> {
    let delegation = file.state.lock().delegation?;
    Some((file, delegation.stateid))
}

/// Returns up to which size a file is closed without sending what was written.
pub(crate) fn limit(limit: &SpaceLimit) -> u64 {
    match limit {
        SpaceLimit::Size(bytes) => *bytes,
        SpaceLimit::Blocks(blocks) => u64::from(blocks.blocks).saturating_mul(blocks.block_bytes.into()),
    }
}

impl Opens {
    /// Starts the thread that returns delegations.
    pub(crate) fn start_returns(self: &Arc<Self>) -> Result<()> {
        let (opens, table) = (Arc::downgrade(self), self.table.clone());
        let thread = Builder::new().name("ivers-nfs-delegations".into());
        let run = move || {
            background::enter();
            while let Some(work) = table.returns.next() {
                let Some(opens) = Weak::upgrade(&opens) else { break };
                opens.work(work);
            }
            table.returns.change(|queue| queue.ended = true);
        };
        thread.spawn(run).map(drop).map_err(Error::io)
    }

    /// Returns whether opens for reading ask for a delegation.
    pub(crate) fn takes_delegations(&self) -> bool {
        self.delegates && self.client.session().is_ok_and(|session| session.back.is_some())
    }

    /// Returns which delegation an open with this access asks for: a `WANT_` bit of [`share`].
    pub(crate) fn wanted(&self, access: u32) -> u32 {
        let writes = access & share::WRITE != 0;
        if !self.takes_delegations() || writes && !self.delegates_writes {
            share::WANT_NO_DELEG
        } else if writes {
            share::WANT_WRITE_DELEG
        } else {
            share::WANT_READ_DELEG
        }
    }

    /// Returns the time limit of a request of the return thread. It is longer than the time after which other
    /// requests on the same connection count the server as too slow.
    fn patience(&self) -> Duration {
        PATIENCE.max(self.client.patience.reply * 2)
    }

    /// Stores the delegation that the reply to an OPEN granted. `wanted` is the `WANT_` bit of the OPEN,
    /// `sent` the number of its request, and `run` its [`Outcome::run`](crate::requests::Outcome::run).
    /// Returns the delegation to the server if this client did not ask for it.
    pub(crate) fn granted(
        &self,
        file: &Arc<FileOpen>,
        granted: &OpenDelegation,
        wanted: u32,
        (sent, run): (u64, u64),
    ) {
        let held = file.state.lock().delegation.map(|it| it.stateid);
        let repeats = |stateid: &StateId| held.is_some_and(|held| held.other == stateid.other);
        let (stateid, recall, write) = match granted {
            OpenDelegation::Read(read) if wanted == share::WANT_READ_DELEG => {
                (&read.stateid, &read.recall, None)
            }
            OpenDelegation::Write(write) if wanted == share::WANT_WRITE_DELEG => {
                (&write.stateid, &write.recall, Some(limit(&write.space_limit)))
            }
            // The server repeats the one that this client has.
            OpenDelegation::Read(read) if repeats(&read.stateid) => return,
            OpenDelegation::Write(write) if repeats(&write.stateid) => return,
            OpenDelegation::None | OpenDelegation::NoneExt(_) => return,
            OpenDelegation::Read(read) | OpenDelegation::ReadAttrs(read) => {
                return self.give_back(file, read.stateid);
            }
            OpenDelegation::Write(write) | OpenDelegation::WriteAttrs(write) => {
                return self.give_back(file, write.stateid);
            }
        };
        Counters::count(&self.client.counters().delegations);
        let returns = &self.table.returns;
        let delegation = Delegation {
            stateid: *stateid,
            write,
            // The reply has arrived, so the server executes later requests under the delegation.
            since: self.client.requests() + 1,
            granted_by: sent,
            returning: false,
            used: returns.use_now(),
        };
        let Some(replaced) = self.table.delegate(file, delegation, || self.client.runs() == run) else {
            log::info!("{}: a delegation was lost before it arrived", self.client.name());
            return;
        };
        returns.change(|queue| {
            queue.held += usize::from(replaced.is_none());
            if queue.held > DELEGATIONS_MAX {
                queue.keep = Some(DELEGATIONS_MAX - DELEGATIONS_MAX / 8);
            }
        });
        self.heed_early(file, *stateid, *recall);
    }

    /// Returns a delegation that was just stored, if the server has recalled it already.
    pub(crate) fn heed_early(&self, file: &Arc<FileOpen>, stateid: StateId, recall: bool) {
        let came_before = self.table.returns.was_recalled(stateid);
        if (recall || came_before) && file.begin_return(Some(stateid)) == Some(true) {
            Counters::count(&self.client.counters().recalls);
            self.table.returns.push(file);
        }
    }

    fn give_back(&self, file: &FileOpen, stateid: StateId) {
        let ops = [Op::PutFh(file.handle.clone()), Op::DelegReturn(stateid)];
        if let Err(error) = self.client.call_urgently(&Cred::system(), &ops, Some(self.patience())) {
            log::info!("{}: cannot return a delegation: {error}", self.client.name());
        }
    }

    /// Drops a delegation that the server no longer has. Returns whether the file had it.
    pub(crate) fn ended(&self, file: &FileOpen, stateid: StateId) -> bool {
        let ended = file.delegation_ended(stateid);
        if ended {
            file.void_before(self.client.requests() + 1);
            self.table.returns.lost_one();
        }
        ended
    }

    fn work(&self, work: Queue) {
        if work.bind {
            self.bind();
        }
        if work.test {
            self.search_revoked();
        }
        if let Some(keep) = work.keep {
            self.shrink(keep);
        }
        let left = self.return_files(work.files.into(), Instant::now() + self.patience());
        if !left.is_empty() {
            self.table.returns.rest(PAUSE);
            left.iter().for_each(|file| self.table.returns.push(file));
        }
    }

    fn bind(&self) {
        let (returns, now) = (&self.table.returns, Instant::now());
        let is_due = {
            let mut queue = returns.queue.lock();
            let is_due = queue.bound_at.is_none_or(|at| now.duration_since(at) >= BIND_PAUSE);
            if is_due {
                queue.bound_at = Some(now);
            }
            is_due
        };
        if is_due && let Err(error) = self.client.bind_again(self.patience()) {
            log::info!("{}: the server cannot send callbacks: {error}", self.client.name());
        }
    }

    /// Queues returns until `keep` delegations are left: first those of files that no program has open, and
    /// of these the least recently used first.
    fn shrink(&self, keep: usize) {
        let mut all: Vec<_> = self
            .all()
            .into_iter()
            .filter_map(|file| {
                let it = file.delegation()?;
                Some((file.is_used(), it.used, file))
            })
            .collect();
        all.sort_by_key(|(is_open, used, _)| (*is_open, *used));
        let surplus = all.len().saturating_sub(keep);
        for (.., file) in all.into_iter().take(surplus) {
            if file.begin_return(None) == Some(true) {
                self.table.returns.push(&file);
            }
        }
    }

    /// Returns the delegations of files to the server. The result is the files for which that failed.
    fn return_files(&self, files: Vec<Arc<FileOpen>>, until: Instant) -> Vec<Arc<FileOpen>> {
        let (mut ready, mut left, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        for file in files {
            match self.send_cached(&file, until).and_then(|()| self.open_for_readers(&file, until)) {
                Ok(is_opened) => {
                    opened.extend(is_opened.then(|| file.clone()));
                    ready.push(file);
                }
                Err(error) => {
                    log::info!("{}: a delegation cannot be returned yet: {error}", self.client.name());
                    left.push(file);
                }
            }
        }
        while !ready.is_empty() {
            let most = self.client.pairs_max().min(BATCH);
            let some = ready.split_off(ready.len().saturating_sub(most));
            if let Err((error, unsent)) = self.return_some(some, until) {
                log::info!("{}: DELEGRETURN: {error}", self.client.name());
                left.extend(unsent);
                left.append(&mut ready);
            }
        }
        // The last program may have closed these files meanwhile.
        let time = until.saturating_duration_since(Instant::now());
        opened.iter().for_each(|file| self.settle_at(file, Pace::Urgent(time)));
        left
    }

    /// Returns the write delegations of files that nobody uses and that are sent: a server that asks for
    /// their attributes takes each change since the grant for one that is not sent, and moves their times.
    pub(crate) fn return_unused(&self, files: &[Arc<FileOpen>]) {
        let is_unused = |file: &&Arc<FileOpen>| {
            let mut state = file.state.lock();
            let is_idle = state.is_idle();
            let written = state.delegation.as_mut().filter(|it| it.write.is_some() && is_idle);
            written.is_some_and(|it| !std::mem::replace(&mut it.returning, true))
        };
        let unused: Vec<_> = files.iter().filter(is_unused).cloned().collect();
        let left = self.return_files(unused, Instant::now() + self.patience());
        left.iter().for_each(|file| self.table.returns.push(file));
    }

    /// Sends what programs changed under a write delegation (D9).
    fn send_cached(&self, file: &Arc<FileOpen>, until: Instant) -> Result<()> {
        let writes = file.state.lock().delegation.is_some_and(|it| it.write.is_some());
        let Some(cached) = self.cached.get().filter(|_| writes) else { return Ok(()) };
        let _urgently = together::urgently(until);
        match cached.write_back(&file.handle) {
            Err(error @ Error::Server(_)) => Err(error),
            Err(error) => {
                // The VFS reports it to the next fsync.
                log::warn!("{}: writes before DELEGRETURN: {error}", self.client.name());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Opens a file on the server if programs opened it under its delegation (D7). Returns whether the file
    /// is open afterwards.
    fn open_for_readers(&self, file: &Arc<FileOpen>, until: Instant) -> Result<bool> {
        let Some((access, caller)) = file.opened_locally() else { return Ok(false) };
        let time = until.saturating_duration_since(Instant::now());
        match self.ask_at(file, &caller, access, Pace::Urgent(time)) {
            Ok((opened, _)) => note_open(&mut file.state.lock(), &opened, access, &caller),
            Err(error @ Error::Server(_)) => return Err(error),
            // As with an open that the server lost: the next use asks for it again.
            Err(error) => log::warn!("{}: OPEN before DELEGRETURN: {error}", self.client.name()),
        }
        self.table.add(file);
        Ok(true)
    }

    /// Sends DELEGRETURN for several files. An error comes with the files whose delegations are
    /// left.
    fn return_some(
        &self,
        files: Vec<Arc<FileOpen>>,
        until: Instant,
    ) -> std::result::Result<(), (Error, Vec<Arc<FileOpen>>)> {
        let mut files: VecDeque<_> = files.into_iter().filter_map(with_stateid).collect();
        // Another client may change them as soon as the server has this request.
        files.iter().for_each(|(file, _)| file.void_before(self.client.requests() + 1));
        while !files.is_empty() {
            let each = |(file, stateid): &(Arc<FileOpen>, StateId)| {
                [Op::PutFh(file.handle.clone()), Op::DelegReturn(*stateid)]
            };
            let ops: Vec<Op> = files.iter().flat_map(each).collect();
            let time = until.saturating_duration_since(Instant::now());
            let outcome = match self.client.call_urgently(&Cred::system(), &ops, Some(time)) {
                Ok(outcome) => outcome,
                Err(error) => return Err((error, files.into_iter().map(|(file, _)| file).collect())),
            };
            let returned = |result: &&OpResult| matches!(result, OpResult::DelegReturn(Ok(())));
            let count = outcome.results.iter().filter(returned).count();
            for (file, stateid) in files.drain(..count.min(files.len())) {
                self.forget_delegation(&file, stateid);
            }
            match outcome.status {
                NfsStat::Ok => {}
                NfsStat::Delay | NfsStat::Grace => self.table.returns.rest(PAUSE),
                // The server has no such delegation, or no such file.
                status => {
                    if let Some((file, stateid)) = files.pop_front() {
                        log::info!("{}: DELEGRETURN: {}", self.client.name(), status.name());
                        self.free(stateid, status);
                        self.forget_delegation(&file, stateid);
                    }
                }
            }
            if until <= Instant::now() {
                let error = ivers_vfs::ServerError::Timeout.into();
                return Err((error, files.into_iter().map(|(file, _)| file).collect()));
            }
        }
        Ok(())
    }

    fn forget_delegation(&self, file: &FileOpen, stateid: StateId) {
        self.ended(file, stateid);
        self.table.remove_if_closed(file);
    }

    /// Frees a stateid if this status says that the server revoked it. Until then the server remembers it.
    pub(crate) fn free(&self, stateid: StateId, status: NfsStat) {
        let is_revoked = matches!(status, NfsStat::Expired | NfsStat::AdminRevoked | NfsStat::DelegRevoked);
        if is_revoked && !self.client.is_version_40() {
            let patience = Some(self.patience());
            let _ = self.client.call_urgently(&Cred::system(), &[Op::FreeStateId(stateid)], patience);
        }
    }

    /// Finds out which delegations are left after the server revoked state.
    fn search_revoked(&self) {
        let revocations = self.client.revocations();
        let all: Vec<_> = self.all().into_iter().filter_map(with_stateid).collect();
        for some in all.chunks(TESTS) {
            if let Err(error) = self.test(some) {
                log::info!("{}: TEST_STATEID: {error}", self.client.name());
                self.table.returns.rest(PAUSE);
                return self.state_revoked();
            }
        }
        self.client.state_was_searched(revocations);
        if self.client.revocations() != revocations {
            // The server has reported it again. If it never stops, pauses keep the thread from testing all
            // the time.
            self.table.returns.rest(PAUSE);
        }
    }

    fn test(&self, files: &[(Arc<FileOpen>, StateId)]) -> Result<()> {
        let stateids = files.iter().map(|(_, stateid)| *stateid).collect();
        let ops = [Op::TestStateId(List(stateids))];
        let outcome = self.client.call_urgently(&Cred::system(), &ops, Some(self.patience()))?;
        let states = take!(outcome.ok(self.client.name())?.0, TestStateId)?;
        for (nth, (file, stateid)) in files.iter().enumerate() {
            let status = states.0.get(nth).and_then(|status| NfsStat::from_bytes(&status.to_be_bytes()).ok());
            let status = status.unwrap_or(NfsStat::BadStateid);
            if status != NfsStat::Ok {
                log::warn!("{}: the server has ended a delegation: {}", self.client.name(), status.name());
                self.forget_delegation(file, *stateid);
                self.free(*stateid, status);
            }
        }
        Ok(())
    }

    /// Ends the thread and returns all delegations, within a time limit.
    pub(crate) fn return_all(&self, until: Instant) {
        let returns = &self.table.returns;
        returns.stop();
        returns.wait_for_end(until);
        let files = self.all().into_iter().filter(|file| file.begin_return(None).is_some()).collect();
        if !self.client.is_stopped() {
            self.return_files(files, until);
        }
    }

    /// Returns whether READ may use the delegation of a file.
    pub(crate) fn is_usable(&self, delegation: &Delegation) -> bool {
        !delegation.returning && self.client.vouches()
    }

    /// Drops a delegation that the server no longer has, if `used` is its stateid. Returns whether it is.
    pub(crate) fn lost_delegation(&self, file: &FileOpen, used: StateId, status: NfsStat) -> bool {
        let ended = self.ended(file, used);
        if ended {
            log::info!("{}: a delegation is lost: {}", self.client.name(), status.name());
            debug_assert!(is_lost(status));
        }
        ended
    }
}

impl Callee for Opens {
    fn recall(&self, file: &FileHandle, stateid: StateId) -> NfsStat {
        let returns = &self.table.returns;
        // Before the lookup: another thread may be handling the reply that grants the delegation.
        let unknown = returns.queue.lock().remember(stateid);
        let known = self.table.known(file);
        match known.as_ref().and_then(|file| file.begin_return(Some(stateid))) {
            Some(is_new) => {
                // The delegation is marked, so the recall is not early.
                returns.queue.lock().take_early(stateid);
                if let Some(file) = known.filter(|_| is_new) {
                    Counters::count(&self.client.counters().recalls);
                    returns.push(&file);
                }
                NfsStat::Ok
            }
            None => match unknown {
                Unknown::Remembered => NfsStat::Ok,
                Unknown::TooMany => NfsStat::Delay,
                Unknown::Invalid => NfsStat::BadStateid,
            },
        }
    }

    fn attributes(&self, file: &FileHandle) -> Option<(u64, u64)> {
        let known = self.table.known(file)?;
        let delegation = known.delegation()?;
        // If the lease may have expired, the server must recall it, and not count on this answer. So it must
        // if other attributes are deferred: it would tell the old ones to the client that asks.
        let is_usable = delegation.write.is_some() && self.is_usable(&delegation);
        let may_answer = is_usable && known.deferred().is_none();
        self.cached.get().filter(|_| may_answer)?.query(file)
    }

    fn recall_any(&self, keep: usize) {
        self.table.returns.change(|queue| queue.keep = Some(queue.keep.unwrap_or(keep).min(keep)));
    }

    fn lock_available(&self, file: &FileHandle) {
        if let Some(listener) = self.lock_listener.get() {
            listener(file);
        }
    }

    fn state_revoked(&self) {
        self.table.returns.change(|queue| queue.test = true);
    }

    fn path_down(&self) {
        self.table.returns.change(|queue| queue.bind = true);
    }

    /// Connects again at once, if there are delegations: a recall must not wait for the next request.
    fn connection_lost(&self) {
        self.table.returns.change(|queue| queue.bind |= queue.held > 0);
    }
}
