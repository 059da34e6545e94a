//! The state of a file on the server: an open, a delegation, locks, and writes that are not committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use ivers_nfs4::ops::v40::{Opened, share};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::types::{FileHandle, StateId};
use ivers_vfs::sync::{Condvar, RankedMutex, RankedMutexGuard, rank};
use ivers_vfs::{Attr, Cred, SetAttr};

use crate::deferred::Deferred;
use crate::file_locks::FileLocks;
use crate::file_names::FileNames;
use crate::unstable::{Snapshot, Unstable};

/// A delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delegation {
    /// Its stateid.
    pub stateid: StateId,
    /// For writing: up to this file size in bytes, a close need not send what was written.
    pub write: Option<u64>,
    /// The first number of requests that began after it was granted. Their replies are current under it.
    pub since: u64,
    /// The number of the OPEN that granted it. The reply to this OPEN is current, too. Replies to other
    /// requests before `since` may be older than the delegation.
    pub granted_by: u64,
    /// Whether it is being returned, so that nothing may rely on it (D1).
    pub returning: bool,
    /// The number of its last use. A later use has a larger number.
    pub used: u64,
}

impl Delegation {
    /// Returns whether programs may open the file for `access` without asking the server.
    pub fn permits(&self, access: u32) -> bool {
        self.write.is_some() || access == share::READ
    }

    /// Returns whether the server executed the request `sent` under this delegation.
    pub fn covers(&self, sent: u64) -> bool {
        sent >= self.since || sent == self.granted_by
    }
}

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
pub(crate) struct State {
    /// `None` with an `access`: the server lost the open.
    pub(crate) stateid: Option<StateId>,
    /// What the open permits: bits of [`share`](ivers_nfs4::ops::v40::share). 0: not open.
    pub(crate) access: u32,
    /// The caller whose OPEN it was.
    pub(crate) opener: Option<Cred>,
    /// The newest opener for writing.
    pub(crate) writer: Option<Cred>,
    /// The number of opens of this client's programs.
    pub(crate) users: u32,
    /// The file was created, and its creator has not opened it yet.
    pub(crate) unclaimed: bool,
    /// A thread sends OPEN or CLOSE.
    pub(crate) busy: bool,
    /// The access of opens under a delegation, which the server does not know. Bits as in `access`.
    pub(crate) local: u32,
    pub(crate) delegation: Option<Delegation>,
    pub(crate) unstable: Unstable,
    /// A thread sends COMMIT, for others too.
    committing: bool,
    /// How often such a COMMIT brought no answer.
    failed_commits: u64,
    /// The last write-back failed, and the bytes are still cached.
    pub(crate) unsent: bool,
    pub(crate) hidden: Vec<Hidden>,
    /// Bytes or attributes changed in the cache under a write delegation, and may not be sent yet.
    pub(crate) cached: bool,
    /// A close has left the file to the thread that sends it.
    pub(crate) queued: bool,
    /// That thread is at work, and will close the file on the server.
    pub(crate) sending: bool,
    pub(crate) deferred: Option<Deferred>,
    /// Whose credentials created the file. `None`: unknown, or the owner may have changed.
    pub(crate) creator: Option<AuthSys>,
    pub(crate) locks: FileLocks,
    /// A thread sends LOCK or LOCKU.
    pub(crate) locking: bool,
}

impl State {
    /// Marks the open as unused, and forgets the writes that are not committed.
    pub(crate) fn abandon(&mut self) {
        (self.users, self.local, self.unclaimed, self.unsent) = (0, 0, false, false);
        (self.cached, self.queued, self.sending, self.deferred) = (false, false, false, None);
        self.unstable = Unstable::default();
    }

    /// Marks the open and the locks under it as lost.
    pub(crate) fn lose(&mut self) {
        self.stateid = None;
        self.locks.lose_all();
    }

    /// Returns the caller whose OPEN it was.
    pub(crate) fn opener(&self) -> Cred {
        self.opener.clone().unwrap_or_else(Cred::system)
    }

    /// Returns whether nothing needs the open.
    pub(crate) fn is_idle(&self) -> bool {
        self.users == 0 && !self.unclaimed && !self.unsent && self.unstable.is_empty() && !self.owes()
    }

    /// Returns whether changes may stay in the cache: the file has a write delegation.
    fn keeps_changes(&self) -> bool {
        self.delegation.is_some_and(|it| it.write.is_some() && !it.returning)
    }

    /// Returns whether something is not sent that a close has left for later.
    pub(crate) fn owes(&self) -> bool {
        self.cached || self.queued || self.sending || self.deferred.is_some()
    }

    pub(crate) fn permits(&self, access: u32) -> bool {
        self.stateid.is_some() && self.access & access == access
    }
}

/// The state of a file on the server.
pub struct FileOpen {
    /// The file.
    pub handle: FileHandle,
    pub(crate) state: RankedMutex<rank::Driver<9>, State>,
    settled: Condvar,
    /// Replies to requests that were sent before this one are void: a delegation vouched for them.
    void_before: AtomicU64,
    /// NFSv4.0: names by which the file can be opened.
    names: RankedMutex<rank::Leaf, FileNames>,
}

impl FileOpen {
    pub(crate) fn new(handle: &FileHandle) -> Arc<Self> {
        let (state, settled) = (RankedMutex::default(), Condvar::new());
        let (void_before, names) = (AtomicU64::new(0), RankedMutex::default());
        Arc::new(Self { handle: handle.clone(), state, settled, void_before, names })
    }

    /// Calls `f` with the names by which NFSv4.0 can open the file.
    pub fn with_names<T>(&self, f: impl FnOnce(&mut FileNames) -> T) -> T {
        f(&mut self.names.lock())
    }

    /// A delegation ends before the request `sent`: what was known until then does not count any longer.
    pub fn void_before(&self, sent: u64) {
        self.void_before.fetch_max(sent, AcqRel);
    }

    /// Returns the first request whose reply can count.
    pub fn first_valid(&self) -> u64 {
        self.void_before.load(Acquire)
    }

    /// Waits until no thread sends OPEN or CLOSE.
    pub(crate) fn at_rest(&self) -> RankedMutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.busy {
            state.wait(&self.settled);
        }
        state
    }

    /// Returns whether a program of this client has the file open, or has created it and may open it next.
    pub fn is_used(&self) -> bool {
        let state = self.state.lock();
        state.users > 0 || state.unclaimed
    }

    /// Returns whether nothing needs the open of the file.
    pub fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    /// Returns whether a program of this client has opened the file and not closed it.
    pub fn has_users(&self) -> bool {
        self.state.lock().users > 0
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

    /// Returns the access of opens under a delegation that the open on the server lacks, and the opener.
    pub fn opened_locally(&self) -> Option<(u32, Cred)> {
        let state = self.state.lock();
        let local = state.local & !state.access;
        (state.users > 0 && local != 0).then(|| (local, state.opener()))
    }

    /// Returns the delegation, unless it is being returned.
    pub fn delegation(&self) -> Option<Delegation> {
        self.state.lock().delegation.filter(|it| !it.returning)
    }

    /// Marks the delegation as being returned, if it has this stateid or none is given. Returns whether it
    /// was not marked before, or `None` if there is no such delegation.
    pub fn begin_return(&self, stateid: Option<StateId>) -> Option<bool> {
        let mut state = self.state.lock();
        let wanted = |it: &&mut Delegation| stateid.is_none_or(|stateid| it.stateid.other == stateid.other);
        state.delegation.as_mut().filter(wanted).map(|it| !std::mem::replace(&mut it.returning, true))
    }

    /// Drops a delegation that the server no longer has. Returns whether the file had it.
    pub fn delegation_ended(&self, stateid: StateId) -> bool {
        let mut state = self.state.lock();
        state.delegation.take_if(|it| it.stateid.other == stateid.other).is_some()
    }

    /// Replaces the delegation by the one that the server granted after a restart. Drops it if there is none.
    pub fn delegation_reclaimed(&self, old: StateId, new: Option<(StateId, Option<u64>, u64)>) {
        let mut state = self.state.lock();
        if let Some(delegation) = state.delegation.take_if(|it| it.stateid == old) {
            // Attributes that were read before the restart may be out of date.
            let renewed = |(stateid, write, since)| Delegation {
                stateid,
                write,
                since,
                granted_by: since,
                ..delegation
            };
            state.delegation = new.map(renewed);
        }
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

    /// Returns the caller whose credentials writes carry.
    pub fn writer(&self) -> Cred {
        self.state.lock().writer.clone().unwrap_or_else(Cred::system)
    }

    /// Calls `f` with the writes that the server may lose.
    pub fn with_unstable<T>(&self, f: impl FnOnce(&mut Unstable) -> T) -> T {
        f(&mut self.state.lock().unstable)
    }

    /// Waits while another thread sends COMMIT. Returns the right to send one, or `None` if the other one
    /// made these writes durable. After a COMMIT without an answer, all who waited send their own: each may
    /// give up after its own time.
    pub(crate) fn commit_turn(&self, writes: Snapshot) -> Option<CommitTurn<'_>> {
        let mut state = self.state.lock();
        let failed = state.failed_commits;
        while state.committing && state.failed_commits == failed && !state.unstable.all(writes).is_empty() {
            state.wait(&self.settled);
        }
        if state.unstable.all(writes).is_empty() {
            return None;
        }
        let is_first = !std::mem::replace(&mut state.committing, true);
        Some(CommitTurn { file: self, is_first, answered: false })
    }

    /// Notes whether the newest write-back left bytes in the cache.
    pub fn note_unsent(&self, unsent: bool) {
        self.state.lock().unsent = unsent;
    }

    /// Notes a change in the cache. Returns whether it may stay there.
    pub fn note_cached(&self, is_data: bool) -> bool {
        let mut state = self.state.lock();
        let may_stay = state.keeps_changes();
        if may_stay {
            state.cached = true;
            if is_data {
                state.deferred.take_if(|deferred| !deferred.written());
            }
        }
        may_stay
    }

    /// Defers attributes that the creator of the file sets under a write delegation. Returns whether it did.
    pub fn defer(&self, caller: &Cred, auth: &AuthSys, set: &SetAttr) -> bool {
        let mut state = self.state.lock();
        if !state.keeps_changes() || state.creator.as_ref() != Some(auth) {
            return false;
        }
        state.cached = true;
        if set.perm.is_some() || set.atime.is_some() || set.mtime.is_some() {
            state.deferred = Some(Deferred::add(state.deferred.take(), set, caller));
        }
        true
    }

    /// Returns the deferred mode.
    pub fn deferred_mode(&self) -> Option<Deferred> {
        self.state.lock().deferred.as_ref().and_then(Deferred::only_mode)
    }

    /// Returns the deferred attributes.
    pub fn deferred(&self) -> Option<Deferred> {
        self.state.lock().deferred.clone()
    }

    /// These deferred attributes need not be sent any longer. Newer ones stay.
    pub fn no_longer_deferred(&self, sent: &Deferred) {
        self.state.lock().deferred.take_if(|now| now == sent);
    }

    /// The mode among these deferred attributes need not be sent any longer.
    pub fn mode_is_sent(&self, sent: &Deferred) {
        self.state.lock().deferred.take_if(|now| !now.mode_is_sent(sent));
    }

    /// Returns whether a close may leave what is cached for later: no lock or hidden name depends on it.
    pub fn may_wait(&self) -> bool {
        let state = self.state.lock();
        state.hidden.is_empty() && !state.locks.any() && !state.unsent
    }

    /// Attributes are set by a request of their own.
    pub fn set_by_request(&self, set: &SetAttr) {
        let mut state = self.state.lock();
        state.deferred.take_if(|deferred| !deferred.forget(set));
        if set.uid.is_some() || set.gid.is_some() {
            state.creator = None;
        }
    }

    /// Puts deferred attributes over those that the server sent.
    pub fn show_deferred(&self, attr: &mut Attr) {
        if let Some(deferred) = &self.state.lock().deferred {
            deferred.show_in(attr);
        }
    }

    /// Leaves the file to the thread that sends it, unless that is done. Returns whether it is new there.
    pub fn queue(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().queued, true)
    }

    /// The thread that sends files begins with this one: what is cached later is sent later.
    pub fn begin_sending(&self) {
        let mut state = self.state.lock();
        (state.queued, state.cached, state.sending) = (false, false, true);
    }

    /// What was cached could not be sent.
    pub fn not_sent(&self) {
        self.state.lock().cached = true;
    }

    /// Returns whether a close has left something that is not sent.
    pub fn owes(&self) -> bool {
        self.state.lock().owes()
    }

    /// Notes a hidden name, which the file keeps until it is closed.
    pub fn hide(&self, name: Hidden) {
        self.state.lock().hidden.push(name);
    }

    /// Returns how many of the file's names are hidden.
    pub fn hidden_names(&self) -> u32 {
        self.state.lock().hidden.len() as u32
    }
}

/// The right to send COMMIT.
pub(crate) struct CommitTurn<'a> {
    file: &'a FileOpen,
    /// No other thread sends one.
    is_first: bool,
    answered: bool,
}

impl CommitTurn<'_> {
    pub(crate) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for CommitTurn<'_> {
    fn drop(&mut self) {
        if self.is_first {
            let mut state = self.file.state.lock();
            state.committing = false;
            state.failed_commits += u64::from(!self.answered);
            self.file.settled.notify_all();
        }
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

/// Held while a thread sends OPEN or CLOSE; other threads wait.
pub(crate) struct Busy<'a>(pub(crate) &'a FileOpen);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.settled.notify_all();
    }
}

/// Notes what OPEN returned.
pub(crate) fn note_open(state: &mut State, opened: &Opened, access: u32, caller: &Cred) {
    let same = state.stateid.filter(|stateid| stateid.other == opened.stateid.other);
    state.access = if same.is_some() { state.access | access } else { access };
    state.local &= !state.access;
    // While a delegation is returned, two OPENs may be in flight, and their replies come in any order.
    let is_older = |now: StateId| (opened.stateid.seqid.wrapping_sub(now.seqid) as i32) < 0;
    state.stateid = Some(same.filter(|now| is_older(*now)).unwrap_or(opened.stateid));
    state.opener = Some(caller.clone());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ivers_nfs4::ops::v40::{OpenDelegation, share};
    use ivers_nfs4::types::{Bitmap, ChangeInfo, Opaque};

    /// Returns what OPEN returns.
    pub(crate) fn opened(other: u8, seqid: u32) -> Opened {
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
        note_open(&mut state, &opened(1, 1), share::READ, &user);
        assert!(state.stateid.is_some_and(|stateid| stateid.seqid == 2), "an older reply that came later");
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

    /// [`N11`] A thread that waits for a COMMIT of another one returns when its own writes are durable.
    #[test]
    fn threads_share_a_commit() {
        let file = FileOpen::new(&Opaque(vec![1]));
        let write = |at: u64| {
            file.with_unstable(|unstable| unstable.note(at..at + 1, Some([1; 8])));
            file.with_unstable(|unstable| unstable.snapshot())
        };
        let first = write(0);
        let mut turn = file.commit_turn(first).unwrap();
        let second = write(5);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| file.commit_turn(first).is_none());
            let sends = threads.spawn(|| file.commit_turn(second).is_some_and(|turn| turn.is_first));
            file.with_unstable(|unstable| unstable.committed(first, [1; 8]));
            turn.answered();
            drop(turn);
            assert!(waits.join().unwrap() && sends.join().unwrap());
        });
        // Lost writes are still to be written: nobody returns without a COMMIT of its own.
        file.with_unstable(|unstable| unstable.committed(second, [2; 8]));
        assert!(file.commit_turn(second).is_some());
        file.with_unstable(|unstable| unstable.forget(0..u64::MAX));
        assert!(file.commit_turn(second).is_none());
    }

    #[test]
    fn after_a_commit_without_an_answer_all_send_their_own() {
        let file = FileOpen::new(&Opaque(vec![1]));
        file.with_unstable(|unstable| unstable.note(0..1, Some([1; 8])));
        let writes = file.with_unstable(|unstable| unstable.snapshot());
        let turn = file.commit_turn(writes).unwrap();
        std::thread::scope(|threads| {
            let others: Vec<_> =
                (0..3).map(|_| threads.spawn(|| drop(file.commit_turn(writes).unwrap()))).collect();
            drop(turn);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert!(!file.state.lock().committing);
    }
}
