//! Opens of files on the server (RFC 8881, 9 and 18.16).
//!
//! This client has one open-owner, so a file has at most one stateid (N12). One thread at a time sends OPEN
//! or CLOSE for a file; the others wait for it. The thread that reclaims opens in a new session waits for
//! nobody, because others may wait for the session.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, Opaque, OpenHow, Owner, StateId};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Cred, Result};

use crate::attributes::{self, FileAttributes};
use crate::callbacks::Callee;
use crate::client::{Client, Reclaim};
use crate::counters::Counters;
use crate::file_locks::unlock_op;
use crate::file_open::{Busy, Delegation, FileOpen, Hidden, note_open};
use crate::reply::take;
use crate::requests::Outcome;
use crate::returns::Returns;
use crate::unstable::Unstable;

/// The name of the open-owner.
const OWNER: &[u8] = b"ivers";
/// Created files that nobody has opened and that stay open on the server.
const UNCLAIMED_MAX: usize = 32;
/// Files that nobody here has open and that stay open on the server until their writes are committed.
const CROWD: usize = 4096;

/// What the cache has of files with write delegations.
pub trait CachedFiles: Send + Sync {
    /// Sends what is cached of a file: its bytes, then its attributes. Waits for locks of the VFS.
    fn write_back(&self, file: &FileHandle) -> Result<()>;
    /// Returns the change attribute and the size that programs of this client see. Does not block.
    fn query(&self, file: &FileHandle) -> Option<(u64, u64)>;
}

/// Is called with a file of which a lock may be free. Must not block.
pub type LockListener = Box<dyn Fn(&FileHandle) + Send + Sync>;

#[derive(Default)]
struct Table {
    open: HashMap<FileHandle, Arc<FileOpen>>,
    unclaimed: VecDeque<Arc<FileOpen>>,
    /// Their inodes have left memory.
    left: Vec<Arc<FileOpen>>,
}

/// The files that are open on the server, or delegated.
#[derive(Default)]
pub struct OpenTable {
    files: RankedMutex<rank::Driver<8>, Table>,
    pub(crate) returns: Returns,
}

impl OpenTable {
    /// Returns the state of a file on the server.
    pub fn find(&self, handle: &FileHandle) -> Arc<FileOpen> {
        self.files.lock().open.get(handle).cloned().unwrap_or_else(|| FileOpen::new(handle))
    }

    /// Returns a file, if it is in the table.
    pub(crate) fn known(&self, handle: &FileHandle) -> Option<Arc<FileOpen>> {
        self.files.lock().open.get(handle).cloned()
    }

    pub(crate) fn add(&self, file: &Arc<FileOpen>) {
        self.files.lock().open.insert(file.handle.clone(), file.clone());
    }

    /// Stores a delegation and adds its file, if `is_current` says that the server still has the state of
    /// this client. Returns the delegation that it replaces. `None`: the server has lost the state since it
    /// granted the delegation.
    ///
    /// A thread that reclaims notes the loss before it takes the lock of this table. So either that thread
    /// finds the delegation, or `is_current` is false.
    pub(crate) fn delegate(
        &self,
        file: &Arc<FileOpen>,
        delegation: Delegation,
        is_current: impl Fn() -> bool,
    ) -> Option<Option<Delegation>> {
        let mut table = self.files.lock();
        if !is_current() {
            return None;
        }
        table.open.insert(file.handle.clone(), file.clone());
        Some(file.state.lock().delegation.replace(delegation))
    }

    pub(crate) fn remove_if_closed(&self, file: &FileOpen) {
        let mut table = self.files.lock();
        let state = file.state.lock();
        // The table may have a newer one of this file.
        let is_it = table.open.get(&file.handle).is_some_and(|it| std::ptr::eq(&**it, file));
        if is_it && state.access == 0 && state.delegation.is_none() && state.local == 0 {
            table.open.remove(&file.handle);
        }
    }

    fn all(&self) -> Vec<Arc<FileOpen>> {
        self.files.lock().open.values().cloned().collect()
    }

    /// Returns whether so many files are open that closed ones must be committed at once.
    pub fn is_crowded(&self) -> bool {
        self.files.lock().open.len() > CROWD
    }

    /// The inode of a file leaves memory. Sends nothing.
    pub fn leave(&self, file: &Arc<FileOpen>) {
        let idle = {
            let mut state = file.state.lock();
            (state.unclaimed, state.unsent, state.cached) = (false, false, false);
            state.unstable = Unstable::default();
            state.access == 0 && state.hidden.is_empty()
        };
        // Nothing of the file is cached, so its delegation is of no use.
        if file.begin_return(None) == Some(true) {
            self.returns.push(file);
        }
        if !idle {
            self.files.lock().left.push(file.clone());
        }
    }
}

/// How long the requests of an open or close may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// As long as the requests of programs.
    Usual,
    /// At most this long.
    Within(Duration),
    /// At most this long. For the return thread: its requests may use the last slot, and it must not wait for
    /// other threads, because they may wait for the return.
    Urgent(Duration),
}

/// Opens and closes files.
pub struct Opens {
    /// The server.
    pub client: Arc<Client>,
    pub(crate) table: Arc<OpenTable>,
    /// Whether opens for reading ask for delegations.
    pub(crate) delegates: bool,
    /// Whether opens for writing do, too.
    pub(crate) delegates_writes: bool,
    pub(crate) lock_listener: OnceLock<LockListener>,
    pub(crate) cached: OnceLock<Box<dyn CachedFiles>>,
}

/// Returns the operation that opens a file and asks for no delegation.
pub fn open_op(access: u32, how: OpenHow, claim: OpenClaim) -> Op {
    open_op_wanting(share::WANT_NO_DELEG, access, how, claim)
}

/// Returns the operation that opens a file. `wants` has the `WANT_` bits of [`share`].
pub fn open_op_wanting(wants: u32, access: u32, how: OpenHow, claim: OpenClaim) -> Op {
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: access | wants,
        share_deny: 0,
        // The session says which client it is.
        owner: Owner { clientid: 0, owner: Opaque(OWNER.to_vec()) },
        how,
        claim,
    })
}

/// Returns whether a status means that the server does not have a stateid.
pub fn is_lost(status: NfsStat) -> bool {
    matches!(
        status,
        NfsStat::BadStateid
            | NfsStat::StaleStateid
            | NfsStat::OldStateid
            | NfsStat::Expired
            | NfsStat::AdminRevoked
            | NfsStat::DelegRevoked
    )
}

impl Opens {
    /// Nothing is open yet.
    pub fn new(
        client: Arc<Client>,
        table: Arc<OpenTable>,
        (delegates, delegates_writes): (bool, bool),
    ) -> Arc<Self> {
        let opens = Arc::new(Self {
            client,
            table,
            delegates,
            delegates_writes,
            lock_listener: OnceLock::new(),
            cached: OnceLock::new(),
        });
        let reclaim: Arc<dyn Reclaim> = opens.clone();
        opens.client.set_reclaim(Arc::downgrade(&reclaim));
        let callee: Arc<dyn Callee> = opens.clone();
        opens.client.set_callee(Arc::downgrade(&callee));
        opens
    }

    /// Opens a file for one more user, until [`Opens::close`]. Returns its attributes if the server was
    /// asked.
    pub fn open(
        &self,
        file: &Arc<FileOpen>,
        caller: &Cred,
        access: u32,
    ) -> Result<Option<(FileAttributes, u64)>> {
        self.close_left();
        {
            let mut state = file.at_rest();
            if access & share::WRITE != 0 {
                state.writer = Some(caller.clone());
            }
            if state.permits(access) {
                state.users += 1;
                state.unclaimed = false;
                return Ok(None);
            }
            if state.delegation.is_some_and(|it| it.permits(access) && self.is_usable(&it)) {
                Counters::count(&self.client.counters().local_opens);
                state.users += 1;
                state.local |= access;
                if state.access == 0 {
                    state.opener = Some(caller.clone());
                }
                let used = self.table.returns.use_now();
                state.delegation.iter_mut().for_each(|it| it.used = used);
                return Ok(None);
            }
            state.busy = true;
        }
        let busy = Busy(file);
        let (opened, attributes) = self.ask(file, caller, access)?;
        {
            let mut state = file.state.lock();
            note_open(&mut state, &opened, access, caller);
            state.users += 1;
            state.unclaimed = false;
        }
        self.table.add(file);
        drop(busy);
        Ok(attributes)
    }

    /// A file was created, and is open for reading and writing. `wanted` and `of` are those of
    /// [`Opens::granted`].
    pub fn created(&self, file: &Arc<FileOpen>, opened: &Opened, caller: &Cred, wanted: u32, of: (u64, u64)) {
        {
            let mut state = file.state.lock();
            note_open(&mut state, opened, share::BOTH, caller);
            state.writer = Some(caller.clone());
            state.unclaimed = true;
            state.creator = Some(self.client.identity().auth(caller));
        }
        self.granted(file, &opened.delegation, wanted, of);
        self.table.add(file);
        let oldest = {
            let mut table = self.table.files.lock();
            table.unclaimed.push_back(file.clone());
            if table.unclaimed.len() > UNCLAIMED_MAX { table.unclaimed.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            oldest.state.lock().unclaimed = false;
            self.settle(&oldest);
        }
    }

    fn ask(
        &self,
        file: &Arc<FileOpen>,
        caller: &Cred,
        access: u32,
    ) -> Result<(Opened, Option<(FileAttributes, u64)>)> {
        self.ask_at(file, caller, access, Pace::Usual)
    }

    /// Sends OPEN.
    pub(crate) fn ask_at(
        &self,
        file: &Arc<FileOpen>,
        caller: &Cred,
        access: u32,
        pace: Pace,
    ) -> Result<(Opened, Option<(FileAttributes, u64)>)> {
        if self.client.is_version_40() {
            return self.ask_by_name(file, caller, access, pace);
        }
        let place = self.client.name();
        let asking = self.table.returns.ask();
        let (outcome, wants) = loop {
            let held = file.state.lock().delegation;
            let delegation = held.filter(|it| it.permits(access)).map(|it| it.stateid);
            let is_asked = held.is_none() && matches!(pace, Pace::Usual);
            let wants = if is_asked { self.wanted(access) } else { share::WANT_NO_DELEG };
            let claim = delegation.map_or(OpenClaim::Fh, OpenClaim::DelegCurFh);
            let ops = [
                Op::PutFh(file.handle.clone()),
                open_op_wanting(wants, access, OpenHow::NoCreate, claim),
                Op::GetAttr(attributes::of_file()),
            ];
            let outcome = self.call(caller, &ops, pace)?;
            match delegation {
                Some(stateid) if is_lost(outcome.status) => self.lost(file, stateid, outcome.status),
                _ => break (outcome, wants),
            }
        };
        let run = outcome.run;
        let (mut results, sent) = outcome.up_to(2, place)?;
        results.skip();
        let opened = take!(results, Open)?;
        self.granted(file, &opened.delegation, wants, (sent, run));
        drop(asking);
        let attributes = results.attributes(place)?.map(|attributes| (attributes, sent));
        Ok((opened, attributes))
    }

    /// Returns the stateid for reading or writing, and gets a lost open back. If all locks of the file have
    /// one owner, returns the stateid of the locks: the server may enforce them, and reports when it has lost
    /// them.
    pub fn stateid(&self, file: &Arc<FileOpen>, access: u32) -> StateId {
        let known = {
            let state = file.state.lock();
            let of_locks = state.locks.only_stateid().filter(|_| state.permits(access));
            of_locks.or_else(|| {
                // While the delegation is returned, the cached writes still need it.
                let delegation = state
                    .delegation
                    .filter(|it| it.permits(access) && (!it.returning || it.write.is_some()))?;
                (!state.permits(access)).then_some(delegation.stateid)
            })
        };
        let stateid = known.or_else(|| self.open_stateid(file, access));
        stateid.map_or(StateId::ANONYMOUS, |stateid| self.client.versioned(stateid))
    }

    /// Returns the stateid of the open, if it has this access, and gets a lost open back.
    pub fn open_stateid(&self, file: &Arc<FileOpen>, access: u32) -> Option<StateId> {
        let (caller, had) = {
            let mut state = file.state.lock();
            if let Some(stateid) = state.stateid.filter(|_| state.access & access == access) {
                return Some(stateid);
            }
            let wanted = state.access | state.local;
            let lacks_nothing = state.stateid.is_some() && state.local & !state.access == 0;
            if wanted & access != access || lacks_nothing || state.busy {
                return None;
            }
            state.busy = true;
            (state.opener(), wanted)
        };
        let busy = Busy(file);
        let asked = self.ask(file, &caller, had);
        let mut state = file.state.lock();
        match asked {
            Ok((opened, _)) => note_open(&mut state, &opened, had, &caller),
            Err(error) => {
                log::warn!("{}: an open that the server lost: {error}", self.client.name());
                state.local = 0;
                if state.stateid.is_none() {
                    state.access = 0;
                }
            }
        }
        let stateid = state.stateid.filter(|_| state.access & access == access);
        drop(state);
        drop(busy);
        self.table.remove_if_closed(file);
        stateid
    }

    /// Opens a file on the server if programs opened it under a delegation.
    pub fn open_for_programs(&self, file: &Arc<FileOpen>) {
        if let Some((access, _)) = file.opened_locally() {
            self.open_stateid(file, access);
        }
    }

    /// The server does not have a stateid that was used.
    pub fn lost(&self, file: &FileOpen, used: StateId, status: NfsStat) {
        if status == NfsStat::OldStateid && self.client.is_version_40() {
            // The next request uses the newest version of the stateid.
            return;
        }
        if !self.lost_delegation(file, used, status) {
            let mut state = file.state.lock();
            if state.stateid.is_some_and(|stateid| stateid.other == used.other) {
                log::info!("{}: an open is lost: {}", self.client.name(), status.name());
                state.lose();
            } else if state.locks.lose(used) {
                log::warn!("{}: locks of a file are lost: {}", self.client.name(), status.name());
            }
        }
        self.client.forget_stateid(used);
        self.free(used, status);
    }

    /// One user closes the file. If `is_left` to another thread, that one closes it on the server.
    pub fn close(&self, file: &Arc<FileOpen>, is_left: impl Fn(&Arc<FileOpen>) -> bool) {
        {
            let mut state = file.state.lock();
            state.users = state.users.saturating_sub(1);
            if state.users == 0 {
                state.local = 0;
            }
        }
        if !is_left(file) {
            self.settle(file);
        }
        self.close_left();
    }

    /// Nothing of the file is needed.
    pub fn forget(&self, file: &Arc<FileOpen>) {
        file.state.lock().abandon();
        self.settle(file);
    }

    /// Sends CLOSE, and removes the hidden name, if nobody needs them.
    pub fn settle(&self, file: &Arc<FileOpen>) {
        self.settle_at(file, Pace::Usual);
    }

    pub(crate) fn settle_at(&self, file: &Arc<FileOpen>, pace: Pace) {
        let hidden = {
            let mut state = file.state.lock();
            if matches!(pace, Pace::Urgent(_)) && (state.busy || !state.hidden.is_empty()) {
                drop(state);
                // The next open or close of any file settles this one.
                self.table.files.lock().left.push(file.clone());
                return;
            }
            if state.users == 0 && !state.unclaimed { std::mem::take(&mut state.hidden) } else { Vec::new() }
        };
        while self.close_once(file, pace) {}
        for Hidden { dir, name, caller } in hidden {
            // Nobody else has this name, so that removing it twice is harmless.
            let ops = [Op::PutFh(dir), Op::Remove(name)];
            let removed = self.call(&caller, &ops, pace).and_then(|outcome| outcome.ok(self.client.name()));
            if let Err(error) = removed {
                log::warn!("{}: a removed file keeps a hidden name: {error}", self.client.name());
            }
        }
    }

    pub(crate) fn call(&self, caller: &Cred, ops: &[Op], pace: Pace) -> Result<Outcome> {
        match pace {
            Pace::Usual => self.client.call(caller, ops),
            Pace::Within(time) => self.client.call_within(caller, ops, Some(time)),
            Pace::Urgent(time) => self.client.call_urgently(caller, ops, Some(time)),
        }
    }

    /// Sends one CLOSE. Returns whether another one is needed: the open was reclaimed meanwhile.
    fn close_once(&self, file: &Arc<FileOpen>, pace: Pace) -> bool {
        let (stateid, caller, locks) = {
            let mut state = match pace {
                Pace::Urgent(_) => file.state.lock(),
                Pace::Usual | Pace::Within(_) => file.at_rest(),
            };
            if state.busy {
                // The thread that sends OPEN or CLOSE settles the file, or the next open or close of any
                // file.
                drop(state);
                self.table.files.lock().left.push(file.clone());
                return false;
            }
            if !state.is_idle() {
                return false;
            }
            if state.access == 0 {
                drop(state);
                self.table.remove_if_closed(file);
                return false;
            }
            let Some(stateid) = state.stateid else {
                state.access = 0;
                drop(state);
                self.table.remove_if_closed(file);
                return false;
            };
            state.busy = true;
            let locks = state.locks.take();
            (stateid, state.opener(), locks)
        };
        let busy = Busy(file);
        // Some servers do not close a file that is locked (18.2).
        for held in locks.iter().filter_map(|locks| locks.stateid) {
            let mut ops = vec![Op::PutFh(file.handle.clone()), unlock_op(held, &(0..u64::MAX))];
            // CLOSE frees the stateid, but 4.0 keeps the lock-owner.
            ops.extend(self.client.is_version_40().then_some(Op::FreeStateId(held)));
            if let Err(error) = self.call(&caller, &ops, pace) {
                log::info!("{}: LOCKU: {error}", self.client.name());
            }
        }
        let ops = [Op::PutFh(file.handle.clone()), Op::Close(SeqState { seqid: 0, stateid })];
        let closed = self.call(&caller, &ops, pace).and_then(|outcome| outcome.ok(self.client.name()));
        if let Err(error) = closed {
            log::info!("{}: CLOSE: {error}", self.client.name());
            self.client.forget_stateid(stateid);
        }
        let again = {
            let mut state = file.state.lock();
            let again = state.stateid.is_some_and(|now| now != stateid);
            if !again {
                (state.stateid, state.access) = (None, 0);
            }
            again
        };
        drop(busy);
        self.table.remove_if_closed(file);
        again
    }

    /// Closes files whose inodes have left memory.
    fn close_left(&self) {
        let left = std::mem::take(&mut self.table.files.lock().left);
        left.iter().for_each(|file| self.settle(file));
    }

    /// Returns the files that are open on the server.
    pub fn all(&self) -> Vec<Arc<FileOpen>> {
        self.table.all()
    }

    /// Closes everything, until this time.
    pub fn close_all(&self, until: Instant) {
        let left = std::mem::take(&mut self.table.files.lock().left);
        for file in self.table.all().into_iter().chain(left) {
            file.state.lock().abandon();
            let time = until.saturating_duration_since(Instant::now());
            if time.is_zero() || self.client.is_stopped() {
                return;
            }
            self.settle_at(&file, Pace::Within(time));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_open::tests::opened;

    #[test]
    fn an_open_outlives_its_node() {
        let table = OpenTable::default();
        let handle: FileHandle = Opaque(b"f".to_vec());
        let file = table.find(&handle);
        assert!(!Arc::ptr_eq(&file, &table.find(&handle)), "nothing is on the server");
        note_open(&mut file.state.lock(), &opened(1, 1), share::BOTH, &Cred::root());
        table.add(&file);
        table.leave(&file);
        assert!(Arc::ptr_eq(&file, &table.find(&handle)));
        file.state.lock().access = 0;
        table.remove_if_closed(&file);
        assert!(!Arc::ptr_eq(&file, &table.find(&handle)));
    }
}
