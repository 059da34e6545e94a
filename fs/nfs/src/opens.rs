//! Opens of files on the server (RFC 8881, 9 and 18.16).
//!
//! This client has one open-owner, so a file has at most one stateid (N12). One thread at a time sends OPEN
//! or CLOSE for a file; the others wait for it. The thread that reclaims opens in a new session waits for
//! nobody, because others may wait for the session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, Opaque, OpenHow, Owner, StateId};
use ivers_vfs::sync::{Condvar, RankedMutex, RankedMutexGuard, rank};
use ivers_vfs::{Cred, Result};

use crate::attributes::{self, FileAttributes};
use crate::client::{Client, Reclaim};
use crate::file_locks::{FileLocks, unlock_op};
use crate::reply::take;
use crate::unstable::Unstable;

/// The name of the open-owner.
const OWNER: &[u8] = b"ivers";
/// Created files that nobody has opened and that stay open on the server.
const UNCLAIMED_MAX: usize = 32;
/// Files that nobody here has open and that stay open on the server until their writes are committed.
const CROWD: usize = 4096;
/// The name of a removed file that is still open.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// The directory.
    pub dir: FileHandle,
    /// The name.
    pub name: Vec<u8>,
    /// Who removed the file.
    pub caller: Cred,
}

#[derive(Default)]
struct State {
    /// `None` with an `access`: the server lost the open.
    stateid: Option<StateId>,
    /// What the open permits: bits of [`share`]. 0: not open.
    access: u32,
    /// Whose OPEN it was.
    opener: Option<Cred>,
    /// The newest opener for writing.
    writer: Option<Cred>,
    /// Users of this client that have the file open.
    users: u32,
    /// The file was created, and its creator has not opened it yet.
    unclaimed: bool,
    /// A thread sends OPEN or CLOSE.
    busy: bool,
    unstable: Unstable,
    /// The last write-back failed, and the bytes are still cached.
    unsent: bool,
    hidden: Vec<Hidden>,
    locks: FileLocks,
    /// A thread sends LOCK or LOCKU.
    locking: bool,
}

impl State {
    /// Marks the open as unused, and forgets the writes that are not committed.
    fn abandon(&mut self) {
        (self.users, self.unclaimed, self.unsent) = (0, false, false);
        self.unstable = Unstable::default();
    }

    /// Marks the open and the locks under it as lost.
    fn lose(&mut self) {
        self.stateid = None;
        self.locks.lose_all();
    }

    /// Nobody needs the open.
    fn is_idle(&self) -> bool {
        self.users == 0 && !self.unclaimed && !self.unsent && self.unstable.is_empty()
    }

    fn permits(&self, access: u32) -> bool {
        self.stateid.is_some() && self.access & access == access
    }
}

/// What a file has on the server: an open, and writes that are not committed.
pub struct FileOpen {
    /// The file.
    pub handle: FileHandle,
    state: RankedMutex<rank::Driver<9>, State>,
    settled: Condvar,
}

impl FileOpen {
    fn new(handle: &FileHandle) -> Arc<Self> {
        let (state, settled) = (RankedMutex::default(), Condvar::new());
        Arc::new(Self { handle: handle.clone(), state, settled })
    }

    /// Waits until no thread sends OPEN or CLOSE.
    fn at_rest(&self) -> RankedMutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.busy {
            state.wait(&self.settled);
        }
        state
    }

    /// Returns whether someone here has the file open.
    pub fn is_used(&self) -> bool {
        let state = self.state.lock();
        state.users > 0 || state.unclaimed
    }

    /// Returns whether the file was created, and its creator has not opened it yet.
    pub fn is_unclaimed(&self) -> bool {
        self.state.lock().unclaimed
    }

    /// Waits until no other thread sends LOCK or LOCKU, and keeps them waiting.
    pub fn lock_turn(&self) -> LockTurn<'_> {
        let mut state = self.state.lock();
        while state.locking {
            state.wait(&self.settled);
        }
        state.locking = true;
        LockTurn(self)
    }

    /// Calls `f` with the byte-range locks of the file.
    pub fn with_locks<T>(&self, f: impl FnOnce(&mut FileLocks) -> T) -> T {
        f(&mut self.state.lock().locks)
    }

    /// Returns the stateid of the open, its access, and whose OPEN it was.
    pub fn held(&self) -> Option<(StateId, u32, Cred)> {
        let state = self.state.lock();
        Some((state.stateid?, state.access, state.opener.clone().unwrap_or_else(Cred::system)))
    }

    /// Stores the stateid of the open after a restart of the server, or marks the open and its locks as lost.
    /// Does nothing if another thread has stored a stateid in between.
    pub fn reclaimed(&self, old: StateId, new: Option<StateId>) {
        let mut state = self.state.lock();
        match new {
            _ if state.stateid != Some(old) => {}
            Some(_) => state.stateid = new,
            None => state.lose(),
        }
    }

    /// Returns whose credentials writes have.
    pub fn writer(&self) -> Cred {
        self.state.lock().writer.clone().unwrap_or_else(Cred::system)
    }

    /// Returns the writes that may be lost.
    pub fn with_unstable<T>(&self, f: impl FnOnce(&mut Unstable) -> T) -> T {
        f(&mut self.state.lock().unstable)
    }

    /// Notes whether the newest write-back left bytes in the cache.
    pub fn note_unsent(&self, unsent: bool) {
        self.state.lock().unsent = unsent;
    }

    /// The file has this name until nobody has it open.
    pub fn hide(&self, name: Hidden) {
        self.state.lock().hidden.push(name);
    }

    /// Returns how many of the file's names are hidden.
    pub fn hidden_names(&self) -> u32 {
        self.state.lock().hidden.len() as u32
    }
}

/// The right to send LOCK or LOCKU.
pub struct LockTurn<'a>(&'a FileOpen);

impl Drop for LockTurn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().locking = false;
        self.0.settled.notify_all();
    }
}

/// Ends the time in which other threads wait.
struct Busy<'a>(&'a FileOpen);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.settled.notify_all();
    }
}

#[derive(Default)]
struct Table {
    open: HashMap<FileHandle, Arc<FileOpen>>,
    unclaimed: VecDeque<Arc<FileOpen>>,
    /// Their inodes have left memory.
    left: Vec<Arc<FileOpen>>,
}

/// The files that are open on the server.
#[derive(Default)]
pub struct OpenTable(RankedMutex<rank::Driver<8>, Table>);

impl OpenTable {
    /// Returns what a file has on the server.
    pub fn find(&self, handle: &FileHandle) -> Arc<FileOpen> {
        self.0.lock().open.get(handle).cloned().unwrap_or_else(|| FileOpen::new(handle))
    }

    fn add(&self, file: &Arc<FileOpen>) {
        self.0.lock().open.insert(file.handle.clone(), file.clone());
    }

    fn remove_if_closed(&self, file: &FileOpen) {
        let mut table = self.0.lock();
        if file.state.lock().access == 0 {
            table.open.remove(&file.handle);
        }
    }

    fn all(&self) -> Vec<Arc<FileOpen>> {
        self.0.lock().open.values().cloned().collect()
    }

    /// Returns whether so many files are open that closed ones must be committed at once.
    pub fn is_crowded(&self) -> bool {
        self.0.lock().open.len() > CROWD
    }

    /// The inode of a file leaves memory. Sends nothing.
    pub fn leave(&self, file: &Arc<FileOpen>) {
        let idle = {
            let mut state = file.state.lock();
            (state.unclaimed, state.unsent) = (false, false);
            state.unstable = Unstable::default();
            state.access == 0 && state.hidden.is_empty()
        };
        if !idle {
            self.0.lock().left.push(file.clone());
        }
    }
}

/// Opens and closes files.
pub struct Opens {
    /// The server.
    pub client: Arc<Client>,
    table: Arc<OpenTable>,
}

/// Returns the operation that opens a file.
pub fn open_op(access: u32, how: OpenHow, claim: OpenClaim) -> Op {
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: access | share::WANT_NO_DELEG,
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
    )
}

impl Opens {
    /// Nothing is open yet.
    pub fn new(client: Arc<Client>, table: Arc<OpenTable>) -> Arc<Self> {
        let opens = Arc::new(Self { client, table });
        let reclaim: Arc<dyn Reclaim> = opens.clone();
        opens.client.set_reclaim(Arc::downgrade(&reclaim));
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

    /// A file was created, and is open for reading and writing.
    pub fn created(&self, file: &Arc<FileOpen>, opened: &Opened, caller: &Cred) {
        {
            let mut state = file.state.lock();
            note_open(&mut state, opened, share::BOTH, caller);
            state.writer = Some(caller.clone());
            state.unclaimed = true;
        }
        self.return_delegation(file, &opened.delegation);
        self.table.add(file);
        let oldest = {
            let mut table = self.table.0.lock();
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
        file: &FileOpen,
        caller: &Cred,
        access: u32,
    ) -> Result<(Opened, Option<(FileAttributes, u64)>)> {
        let place = self.client.name();
        let ops = [
            Op::PutFh(file.handle.clone()),
            open_op(access, OpenHow::NoCreate, OpenClaim::Fh),
            Op::GetAttr(attributes::of_file()),
        ];
        let (mut results, sent) = self.client.call(caller, &ops)?.up_to(2, place)?;
        results.skip();
        let opened = take!(results, Open)?;
        self.return_delegation(file, &opened.delegation);
        let attributes = results.attributes(place)?.map(|attributes| (attributes, sent));
        Ok((opened, attributes))
    }

    /// This client has no backchannel, and asks for no delegation. A server that gives one all the same gets
    /// it back.
    fn return_delegation(&self, file: &FileOpen, delegation: &OpenDelegation) {
        let stateid = match delegation {
            OpenDelegation::None | OpenDelegation::NoneExt(_) => return,
            OpenDelegation::Read(read) | OpenDelegation::ReadAttrs(read) => read.stateid,
            OpenDelegation::Write(write) | OpenDelegation::WriteAttrs(write) => write.stateid,
        };
        let ops = [Op::PutFh(file.handle.clone()), Op::DelegReturn(stateid)];
        if let Err(error) = self.client.call(&Cred::system(), &ops) {
            log::info!("{}: cannot return a delegation: {error}", self.client.name());
        }
    }

    /// Returns the stateid for reading or writing, and gets a lost open back. If all locks of the file have
    /// one owner, returns the stateid of the locks: the server may enforce them, and reports when it has lost
    /// them.
    pub fn stateid(&self, file: &Arc<FileOpen>, access: u32) -> StateId {
        let of_locks = {
            let state = file.state.lock();
            state.locks.only_stateid().filter(|_| state.permits(access))
        };
        let stateid = of_locks.or_else(|| self.open_stateid(file, access));
        stateid.map_or(StateId::ANONYMOUS, |stateid| StateId { seqid: 0, ..stateid })
    }

    /// Returns the stateid of the open, if it has this access, and gets a lost open back.
    pub fn open_stateid(&self, file: &Arc<FileOpen>, access: u32) -> Option<StateId> {
        let (caller, had) = {
            let mut state = file.state.lock();
            if let Some(stateid) = state.stateid.filter(|_| state.access & access == access) {
                return Some(stateid);
            }
            if state.access & access != access || state.stateid.is_some() || state.busy {
                return None;
            }
            state.busy = true;
            (state.opener.clone().unwrap_or_else(Cred::system), state.access)
        };
        let busy = Busy(file);
        let asked = self.ask(file, &caller, had);
        let mut state = file.state.lock();
        match asked {
            Ok((opened, _)) => note_open(&mut state, &opened, had, &caller),
            Err(error) => {
                log::warn!("{}: an open that the server lost: {error}", self.client.name());
                state.access = 0;
            }
        }
        let stateid = state.stateid.filter(|_| state.access & access == access);
        drop(state);
        drop(busy);
        self.table.remove_if_closed(file);
        stateid
    }

    /// The server does not have a stateid that was used.
    pub fn lost(&self, file: &FileOpen, used: StateId, status: NfsStat) {
        {
            let mut state = file.state.lock();
            if state.stateid.is_some_and(|stateid| stateid.other == used.other) {
                log::info!("{}: an open is lost: {}", self.client.name(), status.name());
                state.lose();
            } else if state.locks.lose(used) {
                log::warn!("{}: locks of a file are lost: {}", self.client.name(), status.name());
            }
        }
        if matches!(status, NfsStat::Expired | NfsStat::AdminRevoked) {
            // The server keeps it until then, to be able to say so.
            let _ = self.client.call(&Cred::system(), &[Op::FreeStateId(used)]);
        }
    }

    /// One user closes the file.
    pub fn close(&self, file: &Arc<FileOpen>) {
        {
            let mut state = file.state.lock();
            state.users = state.users.saturating_sub(1);
        }
        self.settle(file);
        self.close_left();
    }

    /// Nothing of the file is needed.
    pub fn forget(&self, file: &Arc<FileOpen>) {
        file.state.lock().abandon();
        self.settle(file);
    }

    /// Sends CLOSE, and removes the hidden name, if nobody needs them.
    pub fn settle(&self, file: &Arc<FileOpen>) {
        self.settle_within(file, None);
    }

    fn settle_within(&self, file: &Arc<FileOpen>, time: Option<Duration>) {
        let hidden = {
            let mut state = file.state.lock();
            if state.users == 0 && !state.unclaimed { std::mem::take(&mut state.hidden) } else { Vec::new() }
        };
        while self.close_once(file, time) {}
        for Hidden { dir, name, caller } in hidden {
            // Nobody else has this name, so that removing it twice is harmless.
            let ops = [Op::PutFh(dir), Op::Remove(name)];
            let removed = self.call(&caller, &ops, time).and_then(|outcome| outcome.ok(self.client.name()));
            if let Err(error) = removed {
                log::warn!("{}: a removed file keeps a hidden name: {error}", self.client.name());
            }
        }
    }

    fn call(&self, caller: &Cred, ops: &[Op], time: Option<Duration>) -> Result<crate::client::Outcome> {
        match time {
            Some(_) => self.client.call_within(caller, ops, time),
            None => self.client.call(caller, ops),
        }
    }

    /// Sends one CLOSE. Returns whether another one is needed: the open was reclaimed meanwhile.
    fn close_once(&self, file: &Arc<FileOpen>, time: Option<Duration>) -> bool {
        let (stateid, caller, locks) = {
            let mut state = file.at_rest();
            if !state.is_idle() || state.access == 0 {
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
            (stateid, state.opener.clone().unwrap_or_else(Cred::system), locks)
        };
        let busy = Busy(file);
        // Some servers do not close a file that is locked (18.2).
        for held in locks.iter().filter_map(|locks| locks.stateid) {
            let ops = [Op::PutFh(file.handle.clone()), unlock_op(held, &(0..u64::MAX))];
            if let Err(error) = self.call(&caller, &ops, time) {
                log::info!("{}: LOCKU: {error}", self.client.name());
            }
        }
        let ops = [Op::PutFh(file.handle.clone()), Op::Close(SeqState { seqid: 0, stateid })];
        let closed = self.call(&caller, &ops, time).and_then(|outcome| outcome.ok(self.client.name()));
        if let Err(error) = closed {
            log::info!("{}: CLOSE: {error}", self.client.name());
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
        let left = std::mem::take(&mut self.table.0.lock().left);
        left.iter().for_each(|file| self.settle(file));
    }

    /// Returns the files that are open on the server.
    pub fn all(&self) -> Vec<Arc<FileOpen>> {
        self.table.all()
    }

    /// Closes everything, until this time.
    pub fn close_all(&self, until: Instant) {
        let left = std::mem::take(&mut self.table.0.lock().left);
        for file in self.table.all().into_iter().chain(left) {
            file.state.lock().abandon();
            let time = until.saturating_duration_since(Instant::now());
            if time.is_zero() || self.client.is_stopped() {
                return;
            }
            self.settle_within(&file, Some(time));
        }
    }
}

/// Notes what OPEN returned.
fn note_open(state: &mut State, opened: &Opened, access: u32, caller: &Cred) {
    let same = state.stateid.is_some_and(|stateid| stateid.other == opened.stateid.other);
    state.access = if same { state.access | access } else { access };
    state.stateid = Some(opened.stateid);
    state.opener = Some(caller.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_nfs4::types::{Bitmap, ChangeInfo};

    fn opened(other: u8, seqid: u32) -> Opened {
        Opened {
            stateid: StateId { seqid, other: [other; 12] },
            cinfo: ChangeInfo { atomic: false, before: 0, after: 0 },
            rflags: 0,
            attrset: Bitmap::default(),
            delegation: OpenDelegation::None,
        }
    }

    /// [`N12`]
    #[test]
    fn a_file_has_one_stateid_with_all_access() {
        let mut state = State::default();
        let user = Cred::user(1, 1);
        note_open(&mut state, &opened(1, 1), share::READ, &user);
        assert!(state.permits(share::READ) && !state.permits(share::BOTH));
        note_open(&mut state, &opened(1, 2), share::WRITE, &user);
        assert!(state.permits(share::BOTH) && state.stateid.is_some_and(|stateid| stateid.seqid == 2));
        // The server had lost the first one.
        note_open(&mut state, &opened(2, 1), share::READ, &user);
        assert!(state.permits(share::READ) && !state.permits(share::WRITE));
    }

    #[test]
    fn an_open_stays_as_long_as_anything_needs_it() {
        let mut state = State::default();
        assert!(state.is_idle());
        state.users = 1;
        assert!(!state.is_idle());
        state.users = 0;
        state.unstable.note(0..10, Some([1; 8]));
        assert!(!state.is_idle(), "its writes may have to be sent again");
        state.unstable.forget(0..10);
        state.unclaimed = true;
        assert!(!state.is_idle());
    }

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
