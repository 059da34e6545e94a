//! NFSv4.0: the sequence IDs of owners (RFC 7530, 9.1.7), and the versions of stateids.
//!
//! This client has one open-owner, and one lock-owner for each lock-owner of the VFS. A request that opens,
//! closes, locks or unlocks has the next sequence ID of its owner. One such request is in flight at a time.
//! So the server gets the IDs in order, and knows a repeated request by its ID (N17).
//!
//! The rest of the driver makes requests of NFSv4.1. [`OwnerSeqids::begin`] fills in what 4.0 needs: client
//! ID, sequence IDs, and the exact version of each stateid.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, FileHandle, Opaque, Owner, StateId, Verifier};
use ivers_vfs::sync::{Condvar, RankedMutex, rank};

/// The identifying part of a stateid.
type Other = [u8; 12];
/// A mark in the sequence ID of a CLOSE of the driver: close this version of the open, and no newer one.
pub const THIS_VERSION: u32 = 1;
/// How often a request with a sequence ID is sent again while the server still executes it.
pub const BUSY_MAX: u32 = 50;
/// The most lock-owners without locks that are kept, because they may ask for a lock again.
pub const IDLE_OWNERS_MAX: usize = 64;

/// The name of a lock-owner.
type Name = Vec<u8>;

/// The owner whose sequence ID an operation has.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Whose {
    OpenOwner,
    LockOwner(Name),
    /// Both, for the first lock of a lock-owner under an open.
    Both(Name),
}

/// A lock-owner that the server knows.
#[derive(Default)]
struct LockOwner {
    /// The last sequence ID that the server counted.
    seqid: u32,
    /// The number of its last use. A later use has a larger number.
    used: u64,
}

/// The locks that a stateid stands for.
struct LockState {
    owner: Name,
    /// The open that they belong to.
    open: Other,
}

#[derive(Default)]
struct Known {
    /// A request with sequence IDs is in flight.
    busy: bool,
    /// It is unknown which sequence ID comes next.
    lost: bool,
    /// The last sequence ID of the open-owner that the server counted.
    opens: u32,
    locks: HashMap<Name, LockOwner>,
    /// By stateid.
    lock_states: HashMap<Other, LockState>,
    /// The newest version of each stateid.
    versions: HashMap<Other, u32>,
    /// The number of uses of lock-owners so far.
    uses: u64,
}

/// The owners and stateids of a client ID.
pub struct OwnerSeqids {
    /// The client ID.
    pub client: ClientId,
    /// The verifier with which the client ID was made. A restarted server needs it to allow reclaims.
    pub verifier: Verifier,
    known: RankedMutex<rank::Leaf, Known>,
    freed: Condvar,
}

/// A request with everything that NFSv4.0 needs. If it was sent and is dropped before
/// [`Numbered::executed`], it is unknown which sequence IDs the server counted.
pub struct Numbered<'a> {
    seqids: &'a OwnerSeqids,
    /// The operations to send. `None`: those of the driver, unchanged.
    ops: Option<Vec<Op>>,
    whose: Vec<(usize, Whose)>,
    has_turn: bool,
    /// Whether the server may have executed it.
    pub sent: bool,
}

/// Returns whether an operation has a sequence ID, or frees a stateid or an owner.
fn takes_turn(op: &Op) -> bool {
    matches!(
        op.number(),
        number::OPEN
            | number::CLOSE
            | number::LOCK
            | number::LOCKU
            | number::OPEN_CONFIRM
            | number::FREE_STATEID
            | number::RELEASE_LOCKOWNER
    )
}

/// Returns whether the server counts the sequence ID of an operation with this status.
fn is_counted(status: NfsStat) -> bool {
    !matches!(
        status,
        NfsStat::StaleClientid
            | NfsStat::StaleStateid
            | NfsStat::BadStateid
            | NfsStat::BadSeqid
            | NfsStat::Badxdr
            | NfsStat::Resource
            | NfsStat::Nofilehandle
            | NfsStat::Moved
    )
}

impl Known {
    fn exact(&self, stateid: StateId) -> StateId {
        self.versions.get(&stateid.other).map_or(stateid, |seqid| StateId { seqid: *seqid, ..stateid })
    }

    fn count(&mut self, whose: &Whose) {
        let (opens, lock) = match whose {
            Whose::OpenOwner => (true, None),
            Whose::LockOwner(name) => (false, Some(name)),
            Whose::Both(name) => (true, Some(name)),
        };
        if opens {
            self.opens = self.opens.wrapping_add(1);
        }
        if let Some(name) = lock {
            self.uses += 1;
            let owner = self.locks.entry(name.clone()).or_default();
            (owner.seqid, owner.used) = (owner.seqid.wrapping_add(1), self.uses);
        }
    }

    fn next_lock(&self, name: &Name) -> u32 {
        self.locks.get(name).map_or(0, |owner| owner.seqid).wrapping_add(1)
    }

    fn owner_of(&self, stateid: StateId) -> Name {
        self.lock_states.get(&stateid.other).map(|state| state.owner.clone()).unwrap_or_default()
    }

    fn forget(&mut self, stateid: &Other) {
        self.versions.remove(stateid);
        self.forget_lock_states(|other, locks| other == stateid || locks.open == *stateid);
    }

    fn forget_owner(&mut self, name: &Name) {
        self.locks.remove(name);
        self.forget_lock_states(|_, locks| locks.owner == *name);
    }

    fn forget_lock_states(&mut self, is_gone: impl Fn(&Other, &LockState) -> bool) {
        let Self { lock_states, versions, .. } = self;
        lock_states.retain(|other, locks| {
            let is_gone = is_gone(other, locks);
            if is_gone {
                versions.remove(other);
            }
            !is_gone
        });
    }
}

impl OwnerSeqids {
    /// Begins with a new client ID, which has no opens or locks.
    pub fn new(client: ClientId, verifier: Verifier) -> Self {
        Self { client, verifier, known: RankedMutex::default(), freed: Condvar::new() }
    }

    /// Returns whether it is unknown which sequence IDs the server expects.
    pub fn is_lost(&self) -> bool {
        self.known.lock().lost
    }

    /// Notes that the server expects other sequence IDs than this client sends.
    pub fn lose(&self) {
        self.known.lock().lost = true;
    }

    /// Notes that the server no longer has a stateid, and the stateids of locks under it.
    pub fn forget(&self, stateid: StateId) {
        self.known.lock().forget(&stateid.other);
    }

    /// Returns the least recently used lock-owner without locks, if there are too many of them. It counts as
    /// used now: if the server refuses to release it, the next call returns another one.
    pub fn surplus_owner(&self) -> Option<Owner> {
        let mut known = self.known.lock();
        let Known { locks, lock_states, uses, .. } = &mut *known;
        if locks.len() <= IDLE_OWNERS_MAX {
            return None;
        }
        let with_locks: HashSet<&Name> = lock_states.values().map(|locks| &locks.owner).collect();
        let idle = || locks.iter().filter(|(name, _)| !with_locks.contains(name));
        if idle().count() <= IDLE_OWNERS_MAX {
            return None;
        }
        let oldest = idle().min_by_key(|(_, owner)| owner.used).map(|(name, _)| name.clone())?;
        *uses += 1;
        if let Some(owner) = locks.get_mut(&oldest) {
            owner.used = *uses;
        }
        Some(Owner { clientid: self.client, owner: Opaque(oldest) })
    }

    /// Returns the newest version of a stateid.
    pub fn exact(&self, stateid: StateId) -> StateId {
        self.known.lock().exact(stateid)
    }

    /// Prepares a request. `None`: another thread has the turn, and did not end it in time.
    pub fn begin(&self, ops: &[Op], wait: Duration) -> Option<Numbered<'_>> {
        let mut request =
            Numbered { seqids: self, ops: None, whose: Vec::new(), has_turn: false, sent: false };
        if ops.is_empty() {
            request.ops = Some(vec![Op::Renew(self.client)]);
            return Some(request);
        }
        let mut known = self.known.lock();
        if ops.iter().any(takes_turn) {
            if known.busy {
                known.wait_for(&self.freed, wait);
            }
            if known.busy {
                return None;
            }
            (known.busy, request.has_turn) = (true, true);
        }
        let is_rewritten = |op: &Op| takes_turn(op) || op.number() == number::LOCKT;
        if ops.iter().any(is_rewritten) {
            let mut all = Vec::with_capacity(ops.len() + 1);
            for op in ops {
                self.add(&known, op, &mut all, &mut request.whose);
            }
            request.ops = Some(all);
        }
        drop(known);
        Some(request)
    }

    /// Continues a request with the same sequence IDs. `None`: another request has the turn. Then it is
    /// unknown which sequence IDs come next.
    pub fn resume(&self, unanswered: Unanswered) -> Option<Numbered<'_>> {
        let mut known = self.known.lock();
        if std::mem::replace(&mut known.busy, true) {
            known.lost = true;
            return None;
        }
        let Unanswered { ops, whose } = unanswered;
        Some(Numbered { seqids: self, ops, whose, has_turn: true, sent: true })
    }

    /// Adds the operation of 4.0 for an operation of 4.1. A request has at most one sequence ID of each
    /// owner.
    fn add(&self, known: &Known, op: &Op, all: &mut Vec<Op>, whose: &mut Vec<(usize, Whose)>) {
        let at = all.len();
        let mine = |owner: &Owner| Owner { clientid: self.client, owner: owner.owner.clone() };
        let next_open = known.opens.wrapping_add(1);
        match op {
            Op::Open(args) => {
                let share_access = args.share_access & share::BOTH;
                let owner = mine(&args.owner);
                all.push(Op::Open(OpenArgs { seqid: next_open, share_access, owner, ..args.clone() }));
                whose.push((at, Whose::OpenOwner));
            }
            Op::OpenConfirm(args) => {
                all.push(Op::OpenConfirm(OpenConfirmArgs { seqid: next_open, ..args.clone() }));
                whose.push((at, Whose::OpenOwner));
            }
            Op::Close(args) => {
                let is_exact = args.seqid == THIS_VERSION;
                let stateid = if is_exact { args.stateid } else { known.exact(args.stateid) };
                all.push(Op::Close(SeqState { seqid: next_open, stateid }));
                whose.push((at, Whose::OpenOwner));
            }
            Op::Lock(args) => {
                let (locker, who) = match &args.locker {
                    Locker::Known(held) => {
                        let name = known.owner_of(held.stateid);
                        let (stateid, seqid) = (known.exact(held.stateid), known.next_lock(&name));
                        (Locker::Known(ExistLockOwner { stateid, seqid }), Whose::LockOwner(name))
                    }
                    Locker::New(new) => {
                        let name = new.lock_owner.owner.0.clone();
                        let locker = OpenToLockOwner {
                            open_seqid: next_open,
                            open_stateid: known.exact(new.open_stateid),
                            lock_seqid: known.next_lock(&name),
                            lock_owner: mine(&new.lock_owner),
                        };
                        (Locker::New(locker), Whose::Both(name))
                    }
                };
                all.push(Op::Lock(LockArgs { locker, ..args.clone() }));
                whose.push((at, who));
            }
            Op::LockU(args) => {
                let name = known.owner_of(args.stateid);
                let (stateid, seqid) = (known.exact(args.stateid), known.next_lock(&name));
                all.push(Op::LockU(UnlockArgs { seqid, stateid, ..args.clone() }));
                whose.push((at, Whose::LockOwner(name)));
            }
            Op::LockT(args) => {
                all.push(Op::LockT(LockTestArgs { owner: mine(&args.owner), ..args.clone() }));
            }
            // The owner has no more locks on this file. If it has locks on other files, the server refuses
            // this.
            Op::FreeStateId(stateid) => {
                if let Some(locks) = known.lock_states.get(&stateid.other) {
                    let owner = Opaque(locks.owner.clone());
                    all.push(Op::ReleaseLockOwner(Owner { clientid: self.client, owner }));
                }
            }
            Op::ReleaseLockOwner(owner) => all.push(Op::ReleaseLockOwner(mine(owner))),
            other => all.push(other.clone()),
        }
    }
}

/// A request whose reply is lost, with its sequence IDs.
#[derive(Debug)]
pub struct Unanswered {
    ops: Option<Vec<Op>>,
    whose: Vec<(usize, Whose)>,
}

impl<'a> Numbered<'a> {
    /// Returns the owners whose sequence IDs the request has.
    pub fn seqids(&self) -> &'a OwnerSeqids {
        self.seqids
    }

    /// Gives the turn up, although the server may have executed the request. Only
    /// [`OwnerSeqids::resume`] may follow.
    pub fn suspend(mut self) -> Unanswered {
        self.sent = false;
        Unanswered { ops: self.ops.take(), whose: std::mem::take(&mut self.whose) }
    }
}

impl Numbered<'_> {
    /// Returns the operations to send, for the operations of the driver.
    pub fn ops<'a>(&'a self, ops: &'a [Op]) -> &'a [Op] {
        self.ops.as_deref().unwrap_or(ops)
    }

    /// Returns whether the server recognizes a repetition by its sequence ID.
    pub fn is_numbered(&self) -> bool {
        !self.whose.is_empty()
    }

    /// Returns whether the operation that failed has a sequence ID.
    pub fn has_failed(&self, results: &[OpResult]) -> bool {
        self.whose.iter().any(|(at, _)| at + 1 == results.len())
    }

    /// Notes the results of [`Numbered::ops`].
    pub fn executed(&mut self, results: &[OpResult]) {
        let Some(ops) = &self.ops else { return };
        let mut known = self.seqids.known.lock();
        for (at, whose) in &self.whose {
            if results.get(*at).is_some_and(|result| is_counted(result.status())) {
                known.count(whose);
            }
        }
        for (op, result) in ops.iter().zip(results) {
            note(&mut known, op, result);
        }
        // Only requests that are sent from here on can be lost.
        self.sent = false;
    }

    /// Returns the filehandle and the stateid of an open that the client must confirm.
    pub fn to_confirm(&self, results: &[OpResult]) -> Option<(FileHandle, StateId)> {
        let opened = results.iter().position(|result| matches!(result, OpResult::Open(Ok(_))))?;
        let Some(OpResult::Open(Ok(Opened { stateid, rflags, .. }))) = results.get(opened) else {
            return None;
        };
        if rflags & ivers_nfs4::ops::v40::rflags::CONFIRM == 0 {
            return None;
        }
        let found = results.iter().skip(opened).find_map(|result| match result {
            OpResult::GetFh(Ok(handle)) => Some(handle.clone()),
            _ => None,
        });
        let put = self.ops.iter().flatten().take(opened).filter_map(|op| match op {
            Op::PutFh(handle) => Some(handle.clone()),
            _ => None,
        });
        Some((found.or_else(|| put.last())?, *stateid))
    }

    /// Turns this into the request that confirms an open.
    pub fn confirm(&mut self, handle: FileHandle, stateid: StateId) {
        let known = self.seqids.known.lock();
        let (mut all, mut whose) = (Vec::new(), Vec::new());
        let ops = [Op::PutFh(handle), Op::OpenConfirm(OpenConfirmArgs { stateid, seqid: 0 })];
        ops.iter().for_each(|op| self.seqids.add(&known, op, &mut all, &mut whose));
        drop(known);
        (self.ops, self.whose) = (Some(all), whose);
    }
}

/// Puts the stateid in the results of OPEN_CONFIRM into the results of OPEN.
pub fn confirmed(opened: &mut [OpResult], confirmation: &[OpResult]) {
    let Some(OpResult::OpenConfirm(Ok(stateid))) = confirmation.last() else { return };
    for result in opened {
        if let OpResult::Open(Ok(open)) = result {
            open.stateid = *stateid;
        }
    }
}

/// Notes stateids, their versions and their owners.
fn note(known: &mut Known, op: &Op, result: &OpResult) {
    let newest = match (op, result) {
        (_, OpResult::Open(Ok(opened))) => opened.stateid,
        (_, OpResult::OpenConfirm(Ok(stateid)) | OpResult::LockU(Ok(stateid))) => *stateid,
        (Op::Lock(args), OpResult::Lock(Locked::Ok(stateid))) => {
            if let Locker::New(new) = &args.locker {
                let (owner, open) = (new.lock_owner.owner.0.clone(), new.open_stateid.other);
                known.lock_states.insert(stateid.other, LockState { owner, open });
            }
            *stateid
        }
        (Op::Close(args), OpResult::Close(Ok(_))) => {
            known.forget(&args.stateid.other);
            return;
        }
        (Op::ReleaseLockOwner(owner), OpResult::ReleaseLockOwner(Ok(()))) => {
            known.forget_owner(&owner.owner.0);
            return;
        }
        _ => return,
    };
    known.versions.insert(newest.other, newest.seqid);
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        if !self.has_turn {
            return;
        }
        {
            let mut known = self.seqids.known.lock();
            known.busy = false;
            known.lost |= self.sent && !self.whose.is_empty();
        }
        self.seqids.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_locks::{lock_op, unlock_op};
    use crate::opens::open_op;
    use ivers_nfs4::types::{Bitmap, ChangeInfo, OpenHow};
    use ivers_vfs::{LockOwner, LockRequest};

    const NOW: Duration = Duration::ZERO;

    fn stateid(other: u8, seqid: u32) -> StateId {
        StateId { seqid, other: [other; 12] }
    }

    fn opened(stateid: StateId, rflags: u32) -> OpResult {
        let cinfo = ChangeInfo { atomic: false, before: 0, after: 0 };
        let (attrset, delegation) = (Bitmap::default(), OpenDelegation::None);
        OpResult::Open(Ok(Opened { stateid, cinfo, rflags, attrset, delegation }))
    }

    fn open() -> [Op; 2] {
        let handle = Opaque(b"dir".to_vec());
        [Op::PutFh(handle), open_op(share::READ, OpenHow::NoCreate, OpenClaim::Null(b"f".to_vec()))]
    }

    fn put() -> OpResult {
        OpResult::PutFh(Ok(()))
    }

    fn seqid_of(request: &Numbered<'_>) -> u32 {
        match &request.ops(&[])[1] {
            Op::Open(args) => args.seqid,
            Op::OpenConfirm(args) => args.seqid,
            Op::Close(args) => args.seqid,
            Op::LockU(args) => args.seqid,
            Op::Lock(LockArgs { locker: Locker::New(new), .. }) => new.lock_seqid,
            Op::Lock(LockArgs { locker: Locker::Known(held), .. }) => held.seqid,
            other => panic!("{other:?}"),
        }
    }

    /// [`N17`]
    #[test]
    fn a_sequence_id_counts_what_the_server_counted() {
        let seqids = OwnerSeqids::new(7, Verifier::default());
        let mut request = seqids.begin(&open(), NOW).unwrap();
        assert!(seqids.begin(&open(), NOW).is_none(), "one at a time");
        assert!(seqids.begin(&[Op::GetFh(())], NOW).is_some(), "others do not wait");
        let Op::Open(args) = &request.ops(&[])[1] else { panic!() };
        assert_eq!((args.owner.clientid, args.share_access, args.seqid), (7, share::READ, 1));
        request.executed(&[put(), OpResult::Open(Err(NfsStat::Noent))]);
        drop(request);
        let mut request = seqids.begin(&open(), NOW).unwrap();
        assert_eq!(seqid_of(&request), 2, "an error is counted");
        request.executed(&[put(), OpResult::Open(Err(NfsStat::StaleClientid))]);
        drop(request);
        let mut request = seqids.begin(&open(), NOW).unwrap();
        assert_eq!(seqid_of(&request), 2, "some errors are not");
        request.executed(&[OpResult::PutFh(Err(NfsStat::Stale))]);
        drop(request);
        assert_eq!(seqid_of(&seqids.begin(&open(), NOW).unwrap()), 2, "it was not reached");
        assert!(!seqids.is_lost());
        let mut request = seqids.begin(&open(), NOW).unwrap();
        request.sent = true;
        drop(request);
        assert!(seqids.is_lost(), "nobody knows");
    }

    #[test]
    fn an_open_is_confirmed_and_versions_are_exact() {
        let seqids = OwnerSeqids::new(7, Verifier::default());
        let mut request = seqids.begin(&open(), NOW).unwrap();
        let file: FileHandle = Opaque(b"file".to_vec());
        let results = [put(), opened(stateid(1, 1), rflags::CONFIRM), OpResult::GetFh(Ok(file.clone()))];
        request.executed(&results);
        assert_eq!(request.to_confirm(&results[..2]).unwrap().0, Opaque(b"dir".to_vec()));
        let (handle, unconfirmed) = request.to_confirm(&results).unwrap();
        assert_eq!((&handle, unconfirmed), (&file, stateid(1, 1)));
        request.confirm(handle, unconfirmed);
        assert_eq!(seqid_of(&request), 2);
        request.executed(&[put(), OpResult::OpenConfirm(Ok(stateid(1, 2)))]);
        drop(request);
        assert_eq!(seqids.exact(stateid(1, 0)), stateid(1, 2));
        assert_eq!(seqids.exact(StateId::ANONYMOUS), StateId::ANONYMOUS);
        let close = [Op::PutFh(file), Op::Close(SeqState { seqid: 0, stateid: stateid(1, 1) })];
        let mut request = seqids.begin(&close, NOW).unwrap();
        assert_eq!(seqid_of(&request), 3);
        assert!(matches!(&request.ops(&[])[1], Op::Close(args) if args.stateid == stateid(1, 2)));
        request.executed(&[put(), OpResult::Close(Ok(stateid(1, 3)))]);
        assert_eq!(seqids.exact(stateid(1, 0)), stateid(1, 0), "it is closed");
    }

    #[test]
    fn locks_have_sequence_ids_of_their_own() {
        let seqids = OwnerSeqids::new(7, Verifier::default());
        let file: FileHandle = Opaque(b"file".to_vec());
        let lock = LockRequest { owner: LockOwner(3), range: 0..10, exclusive: true, waits: false };
        let locking = |held| [Op::PutFh(file.clone()), lock_op(&lock, false, stateid(1, 4), held)];
        let granted = |seqid| [put(), OpResult::Lock(Locked::Ok(stateid(2, seqid)))];
        let mut request = seqids.begin(&locking(None), NOW).unwrap();
        assert_eq!(seqid_of(&request), 1);
        request.executed(&granted(1));
        drop(request);
        let mut request = seqids.begin(&locking(Some(stateid(2, 1))), NOW).unwrap();
        assert_eq!(seqid_of(&request), 2);
        request.executed(&granted(2));
        drop(request);
        let unlock =
            [Op::PutFh(file.clone()), unlock_op(stateid(2, 1), &(0..10)), Op::FreeStateId(stateid(2, 0))];
        let mut request = seqids.begin(&unlock, NOW).unwrap();
        assert_eq!(seqid_of(&request), 3);
        let ops = request.ops(&[]).to_vec();
        assert!(matches!(&ops[1], Op::LockU(args) if args.stateid == stateid(2, 2)));
        assert!(matches!(&ops[2], Op::ReleaseLockOwner(owner) if owner.clientid == 7));
        request.executed(&[put(), OpResult::LockU(Ok(stateid(2, 3))), OpResult::ReleaseLockOwner(Ok(()))]);
        drop(request);
        assert_eq!(seqid_of(&seqids.begin(&locking(None), NOW).unwrap()), 1, "the owner is a new one");
        // The open-owner counted the first lock.
        assert_eq!(seqid_of(&seqids.begin(&open(), NOW).unwrap()), 2);
    }

    /// Sends the first LOCK of an owner on a file, and takes the reply.
    fn lock(seqids: &OwnerSeqids, owner: u64, file: u8, granted: bool) {
        let request = LockRequest { owner: LockOwner(owner), range: 0..10, exclusive: true, waits: false };
        let ops = [Op::PutFh(Opaque(vec![file])), lock_op(&request, false, stateid(file, 1), None)];
        let mut request = seqids.begin(&ops, NOW).unwrap();
        let denied = LockDenied {
            offset: 0,
            length: 1,
            kind: ivers_nfs4::types::LockType::Write,
            owner: Owner { clientid: 1, owner: Opaque(Vec::new()) },
        };
        let locked = if granted { Locked::Ok(stateid(100 + file, 1)) } else { Locked::Denied(denied) };
        request.executed(&[put(), OpResult::Lock(locked)]);
    }

    /// What is known does not grow with the number of owners, opens and locks so far.
    #[test]
    fn owners_and_stateids_are_forgotten() {
        let seqids = OwnerSeqids::new(7, Verifier::default());
        let known = || {
            let known = seqids.known.lock();
            (known.locks.len(), known.lock_states.len(), known.versions.len())
        };
        lock(&seqids, 0, 1, true);
        for owner in 1..=IDLE_OWNERS_MAX as u64 {
            lock(&seqids, owner, 1, false);
            assert_eq!(seqids.surplus_owner(), None);
        }
        lock(&seqids, 1000, 1, false);
        lock(&seqids, 1, 1, false);
        let surplus = seqids.surplus_owner().unwrap();
        assert_eq!(surplus.owner, crate::file_locks::wire_owner(LockOwner(2)).owner, "the oldest one");
        let release = [Op::ReleaseLockOwner(Owner { clientid: 0, ..surplus.clone() })];
        let mut request = seqids.begin(&release, NOW).unwrap();
        assert!(matches!(request.ops(&[]), [Op::ReleaseLockOwner(owner)] if owner.clientid == 7));
        request.executed(&[OpResult::ReleaseLockOwner(Err(NfsStat::LocksHeld))]);
        drop(request);
        assert_ne!(seqids.surplus_owner(), Some(surplus), "the server refused it");
        let mut request = seqids.begin(&release, NOW).unwrap();
        request.executed(&[OpResult::ReleaseLockOwner(Ok(()))]);
        drop(request);
        assert_eq!(seqids.surplus_owner(), None);
        assert_eq!(known(), (IDLE_OWNERS_MAX + 1, 1, 1));

        // An owner with locks of several files. A CLOSE, or a server that lost an open, ends those under it.
        lock(&seqids, 0, 2, true);
        lock(&seqids, 0, 3, true);
        assert_eq!(known(), (IDLE_OWNERS_MAX + 1, 3, 3));
        let close = [Op::PutFh(Opaque(vec![2])), Op::Close(SeqState { seqid: 0, stateid: stateid(2, 1) })];
        let mut request = seqids.begin(&close, NOW).unwrap();
        request.executed(&[put(), OpResult::Close(Ok(stateid(2, 2)))]);
        drop(request);
        assert_eq!(known(), (IDLE_OWNERS_MAX + 1, 2, 2));
        seqids.forget(stateid(3, 9));
        seqids.forget(stateid(101, 9));
        assert_eq!(known(), (IDLE_OWNERS_MAX + 1, 0, 0));
    }

    /// A request whose reply is lost is sent again with its sequence IDs, also by another thread.
    #[test]
    fn an_unanswered_request_keeps_its_sequence_id() {
        let seqids = OwnerSeqids::new(7, Verifier::default());
        let mut request = seqids.begin(&open(), NOW).unwrap();
        request.sent = true;
        let unanswered = request.suspend();
        assert!(!seqids.is_lost());
        let mut request = seqids.resume(unanswered).unwrap();
        assert!(seqids.begin(&open(), NOW).is_none(), "it has the turn");
        assert_eq!(seqid_of(&request), 1);
        request.executed(&[put(), opened(stateid(1, 1), 0)]);
        drop(request);
        assert_eq!(seqid_of(&seqids.begin(&open(), NOW).unwrap()), 2);
        assert!(!seqids.is_lost());
    }
}
