//! Numbers and filehandles, and what is known of each file.
//!
//! A number is one filehandle as long as anyone can use it (N6). It is the file's `fileid` if no other
//! filehandle has that number, so that users see what they expect. Otherwise it is one above 2^63.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::types::{ChangeInfo, FileHandle, Fsid, Verifier};
use ivers_vfs::sync::{Condvar, RankedMutex, rank};
use ivers_vfs::{CacheHandle, Cause, FileType, Ino};

use crate::all_names::{AllNames, Edit};
use crate::attributes::FileAttributes;
use crate::file_open::{Delegation, FileOpen};
use crate::opens::OpenTable;
use crate::own_changes::OwnChanges;

/// The first number that the table assigns.
const ASSIGNED: u64 = 1 << 63;
/// Callers of whom a file's access is remembered.
const CALLERS_MAX: usize = 4;

/// What ACCESS granted.
struct Granted {
    caller: AuthSys,
    rights: u32,
    /// The number of the request.
    sent: u64,
    /// When it expires. Under a delegation it is valid for longer.
    until: Instant,
}

/// What the newest reply said.
#[derive(Default)]
struct Known {
    /// When its request was sent; 0 before the first.
    sent: u64,
    /// The change attribute.
    change: u64,
    /// The filesystem of the file, and its `fileid` there.
    place: Option<(Fsid, u64)>,
    /// The changes of the file by this client.
    changes: OwnChanges,
    /// The attributes count as current until then. `None`: they were changed, and no reply had the new ones.
    fresh_until: Option<Instant>,
    /// A thread passes a reply to the cache.
    applying: bool,
    /// What ACCESS granted, the newest caller last.
    access: Vec<Granted>,
    /// Who opened the file, the newest last.
    openers: Vec<AuthSys>,
    /// The cookie verifier of the newest READDIR.
    verifier: Verifier,
    /// This client has made the directory, and nobody has looked into it.
    is_new: bool,
    /// All names of a directory that this client has made.
    names: Option<AllNames>,
}

/// A file of the server.
pub struct Node {
    /// Its number in this mount.
    pub ino: Ino,
    /// Its filehandle.
    pub handle: FileHandle,
    /// A hash of the filehandle.
    pub generation: u32,
    /// The number of a directory's parent when it was last looked up; 0 if unknown. Only for `..` in
    /// listings.
    pub parent: AtomicU64,
    /// What it has on the server.
    pub open: Arc<FileOpen>,
    known: RankedMutex<rank::Driver<6>, Known>,
    applied: Condvar,
}

struct Row {
    node: Arc<Node>,
    /// The inodes in memory, and replies on their way to becoming one.
    users: usize,
}

#[derive(Default)]
struct Table {
    rows: HashMap<Ino, Row>,
    numbers: HashMap<FileHandle, Ino>,
    assigned: u64,
}

/// The files that the VFS knows by number.
#[derive(Default)]
pub struct Nodes {
    table: RankedMutex<rank::Driver<5>, Table>,
    /// The files that are open on the server. They outlive their nodes.
    pub opens: Arc<OpenTable>,
    /// The number of names in all [`AllNames`].
    pub names_kept: Arc<AtomicUsize>,
}

/// What an inode keeps: its file, which the table keeps too as long as this is not released.
pub struct Held {
    nodes: Arc<Nodes>,
    /// The file.
    pub node: Arc<Node>,
    counted: AtomicBool,
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

impl Table {
    fn number(&self, handle: &FileHandle, fileid: Option<u64>) -> Option<Ino> {
        let fileid = Ino(fileid.filter(|fileid| *fileid != 0)?);
        let is_free = self.rows.get(&fileid).is_none_or(|row| row.node.handle == *handle);
        is_free.then_some(fileid)
    }

    fn assign(&mut self) -> Ino {
        loop {
            let ino = Ino(ASSIGNED | self.assigned);
            self.assigned = self.assigned.wrapping_add(1) & !ASSIGNED;
            if !self.rows.contains_key(&ino) {
                return ino;
            }
        }
    }
}

impl Nodes {
    /// Returns the file with this filehandle, and keeps it.
    pub fn hold(self: &Arc<Self>, handle: &FileHandle, fileid: Option<u64>) -> Held {
        let mut table = self.table.lock();
        let known = table.numbers.get(handle).copied();
        let ino = known.or_else(|| table.number(handle, fileid)).unwrap_or_else(|| table.assign());
        if known.is_none() {
            table.numbers.insert(handle.clone(), ino);
        }
        let row = table
            .rows
            .entry(ino)
            .or_insert_with(|| Row { node: Node::new(ino, handle, self.opens.find(handle)), users: 0 });
        row.users += 1;
        Held { nodes: self.clone(), node: row.node.clone(), counted: AtomicBool::new(true) }
    }

    /// Returns the file with this number, and keeps it.
    pub fn hold_number(self: &Arc<Self>, ino: Ino) -> Option<Held> {
        let mut table = self.table.lock();
        let row = table.rows.get_mut(&ino)?;
        row.users += 1;
        Some(Held { nodes: self.clone(), node: row.node.clone(), counted: AtomicBool::new(true) })
    }

    /// Returns the file with this filehandle, if the table has it.
    pub fn find(&self, handle: &FileHandle) -> Option<Arc<Node>> {
        let table = self.table.lock();
        let ino = table.numbers.get(handle)?;
        table.rows.get(ino).map(|row| row.node.clone())
    }

    /// Returns the file with this number, if the table has it.
    pub fn find_number(&self, ino: Ino) -> Option<Arc<Node>> {
        self.table.lock().rows.get(&ino).map(|row| row.node.clone())
    }

    /// The VFS uses the number no more. Nothing happens if another reply has brought the file back meanwhile.
    pub fn release(&self, ino: Ino) {
        let mut table = self.table.lock();
        if table.rows.get(&ino).is_some_and(|row| row.users == 0)
            && let Some(row) = table.rows.remove(&ino)
        {
            table.numbers.remove(&row.node.handle);
        }
    }

    /// Returns the number of files in the table.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.table.lock().rows.len()
    }
}

impl Held {
    /// The inode leaves memory.
    pub fn let_go(&self) {
        if self.counted.swap(false, Relaxed)
            && let Some(row) = self.nodes.table.lock().rows.get_mut(&self.node.ino)
        {
            row.users -= 1;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Node {
    fn new(ino: Ino, handle: &FileHandle, open: Arc<FileOpen>) -> Arc<Self> {
        Arc::new(Self {
            ino,
            handle: handle.clone(),
            generation: hash(&handle.0),
            parent: AtomicU64::new(0),
            open,
            known: RankedMutex::default(),
            applied: Condvar::new(),
        })
    }

    /// Takes over a reply, unless one whose request was sent later came first (N5). Returns whether the
    /// change attribute moved.
    pub fn apply(
        &self,
        file: &FileAttributes,
        sent: u64,
        timeout: Duration,
        cache: Option<&CacheHandle>,
    ) -> bool {
        let mut known = self.known.lock();
        // One thread at a time, or the older reply could reach the cache last. No lock is held meanwhile.
        while known.applying {
            known.wait(&self.applied);
        }
        if sent <= known.sent {
            return false;
        }
        let moved = known.sent != 0 && known.change != file.change;
        if moved {
            known.access.clear();
            if file.attr.kind == FileType::Directory {
                // It may have another parent now.
                self.parent.store(0, Relaxed);
            }
        }
        (known.sent, known.change, known.applying) = (sent, file.change, true);
        known.place = file.fsid.zip(file.fileid);
        drop(known);
        if let Some(cache) = cache {
            let mut attr = file.attr.clone();
            let hidden = self.open.hidden_names();
            if hidden > 0 {
                attr.nlink = file.names.saturating_sub(hidden);
            }
            self.open.show_deferred(&mut attr);
            cache.update(self.ino, attr, file.change, Cause::Unknown);
        }
        let mut known = self.known.lock();
        // After the cache has it: until then another thread must not count on it.
        known.fresh_until = Instant::now().checked_add(timeout);
        known.applying = false;
        self.applied.notify_all();
        moved
    }

    /// This client has just made this directory.
    pub fn note_new_directory(&self) {
        self.known.lock().is_new = true;
    }

    /// Returns whether this client has made this directory, and nobody has looked into it. Only once.
    pub fn take_new(&self) -> bool {
        std::mem::take(&mut self.known.lock().is_new)
    }

    /// The directory was empty when it had this change attribute, or it has another one since.
    pub fn note_empty(&self, change: u64, kept: &Arc<AtomicUsize>) {
        self.known.lock().names = Some(AllNames::of_new(change, kept.clone()));
    }

    /// Returns whether the directory certainly lacks a name, if its attributes are current.
    pub fn lacks(&self, name: &[u8]) -> bool {
        let known = self.known.lock();
        known.names.as_ref().is_some_and(|names| names.lack(name, known.change))
    }

    /// A request of this client changed the names of this directory by `edits`. `info` is from its reply, and
    /// so are the attributes of the directory, unless the server did not get that far.
    pub fn names_changed(
        &self,
        (info, edits): (ChangeInfo, &[Edit<'_>]),
        file: Option<&FileAttributes>,
        sent: u64,
        timeout: Duration,
        cache: Option<&CacheHandle>,
    ) {
        let mut known = self.known.lock();
        while known.applying {
            known.wait(&self.applied);
        }
        let after = file.map(|file| file.change);
        known.names = known.names.take().and_then(|names| names.edited(&info, after, edits));
        // What is known is from a later request: nobody can say which names it includes.
        if sent <= known.sent {
            drop(known);
            if let Some(cache) = cache {
                cache.invalidate(self.ino);
            }
            return;
        }
        let change = file.map_or(info.after, |file| file.change);
        if !info.atomic || info.before != known.change {
            known.access.clear();
        }
        (known.sent, known.change, known.applying, known.fresh_until) = (sent, change, true, None);
        drop(known);
        if let Some(cache) = cache {
            let ChangeInfo { atomic, before, after } = info;
            cache.names_changed(self.ino, ivers_vfs::ChangeInfo { before, after }, atomic);
            if let Some(file) = file {
                cache.update(self.ino, file.attr.clone(), file.change, Cause::Unknown);
            }
        }
        let mut known = self.known.lock();
        known.fresh_until = file.and_then(|_| Instant::now().checked_add(timeout));
        known.applying = false;
        self.applied.notify_all();
    }

    /// The attributes changed, and no reply said how. Replies to requests before number `next` may be older.
    pub fn expire(&self, next: u64) {
        self.open.void_before(next);
        self.known.lock().fresh_until = None;
    }

    /// Returns whether the attributes count as current.
    pub fn is_fresh(&self) -> bool {
        let known = self.known.lock();
        known.sent >= self.open.first_valid() && known.fresh_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns the change attribute of the newest reply.
    pub fn change(&self) -> u64 {
        self.known.lock().change
    }

    /// As [`Node::change`], once the cache has that reply too.
    pub fn change_in_cache(&self) -> u64 {
        let mut known = self.known.lock();
        while known.applying {
            known.wait(&self.applied);
        }
        known.change
    }

    /// Returns the filesystem of the file and its `fileid` there, if the server reports them.
    pub fn place(&self) -> Option<(Fsid, u64)> {
        self.known.lock().place
    }

    /// Takes over a change attribute that the server sent alone. If it is the known one, the attributes are
    /// current. Returns whether it is.
    pub fn confirm(&self, change: u64, sent: u64, timeout: Duration) -> bool {
        let mut known = self.known.lock();
        let same =
            sent >= self.open.first_valid() && known.sent != 0 && !known.applying && known.change == change;
        if same {
            known.fresh_until = Instant::now().checked_add(timeout);
        }
        same
    }

    /// Returns what ACCESS granted this caller, if that is still valid. `covered` is the delegation under
    /// which the attributes are current.
    pub fn access_of(&self, caller: &AuthSys, covered: Option<&Delegation>) -> Option<u32> {
        let known = self.known.lock();
        let found = known.access.iter().find(|granted| granted.caller == *caller)?;
        let is_fresh = Instant::now() < found.until && found.sent >= self.open.first_valid();
        let counts = is_fresh || covered.is_some_and(|it| it.covers(found.sent));
        counts.then_some(found.rights)
    }

    /// Remembers what ACCESS granted. `change` is the change attribute in the same reply, and `sent` the
    /// number of the request.
    pub fn note_access(&self, caller: AuthSys, rights: u32, (change, sent): (u64, u64), timeout: Duration) {
        let mut known = self.known.lock();
        let Some(until) = Instant::now().checked_add(timeout).filter(|_| known.change == change) else {
            return;
        };
        known.access.retain(|granted| granted.caller != caller);
        if known.access.len() == CALLERS_MAX {
            known.access.remove(0);
        }
        known.access.push(Granted { caller, rights, sent, until });
    }

    /// Returns whether the attributes are current under a delegation (D2). Replies to requests before the
    /// number `void_before` may lack a change of this client.
    pub fn is_covered(&self, delegation: &Delegation, void_before: u64) -> bool {
        let known = self.known.lock();
        !known.applying
            && delegation.covers(known.sent)
            && known.sent >= void_before
            && known.changes.are_included(known.sent)
            && known.fresh_until.is_some()
    }

    /// Notes a change by this client: see [`OwnChanges::begin`].
    pub fn change_begins(&self) {
        self.known.lock().changes.begin();
    }

    /// Notes the end of a change by this client: see [`OwnChanges::end`].
    pub fn change_ended(&self, next: u64, reply: Option<u64>) {
        self.known.lock().changes.end(next, reply);
    }

    /// Remembers who opened the file: reads through an open come without the opener's groups.
    pub fn note_opener(&self, opener: AuthSys) {
        let mut known = self.known.lock();
        known.openers.retain(|who| who.uid != opener.uid);
        if known.openers.len() == CALLERS_MAX {
            known.openers.remove(0);
        }
        known.openers.push(opener);
    }

    /// Returns the credentials with which this user opened the file.
    pub fn opener(&self, uid: u32) -> Option<AuthSys> {
        self.known.lock().openers.iter().find(|who| who.uid == uid).cloned()
    }

    /// Returns the cookie verifier of the newest READDIR.
    pub fn verifier(&self) -> Verifier {
        self.known.lock().verifier
    }

    /// Remembers the cookie verifier of a READDIR.
    pub fn note_verifier(&self, verifier: Verifier) {
        self.known.lock().verifier = verifier;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use ivers_nfs4::types::StateId;
    use ivers_vfs::{Cred, NewInode, Timestamp};

    fn handle(name: &str) -> FileHandle {
        ivers_nfs4::types::Opaque(name.as_bytes().to_vec())
    }

    fn file(change: u64) -> FileAttributes {
        let attr = NewInode::new(FileType::Regular, Timestamp::default()).attr(1);
        FileAttributes { attr, change, fsid: None, fileid: None, names: 1, owners: [None, None] }
    }

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_number_is_one_filehandle_as_long_as_it_is_used() {
        let nodes = Arc::new(Nodes::default());
        let first = nodes.hold(&handle("a"), Some(7));
        assert_eq!(first.node.ino, Ino(7));
        let reused = nodes.hold(&handle("b"), Some(7));
        assert!(reused.node.ino.0 >= ASSIGNED && reused.node.generation != first.node.generation);
        assert!(nodes.hold(&handle("c"), None).node.ino != reused.node.ino);
        assert!(nodes.hold(&handle("d"), Some(0)).node.ino.0 >= ASSIGNED);
        let again = nodes.hold(&handle("a"), Some(7));
        assert!(Arc::ptr_eq(&again.node, &first.node));

        // An inode leaves memory while a reply brings its file back.
        first.let_go();
        nodes.release(Ino(7));
        assert!(nodes.hold_number(Ino(7)).is_some());
        drop((first, again));
        nodes.release(Ino(7));
        assert!(nodes.hold_number(Ino(7)).is_none() && nodes.find(&handle("a")).is_none());
        assert_eq!(nodes.hold(&handle("e"), Some(7)).node.ino, Ino(7));
        assert_eq!(nodes.len(), 4);
    }

    #[test]
    fn a_reply_to_an_earlier_request_does_not_count() {
        let nodes = Arc::new(Nodes::default());
        let node = nodes.hold(&handle("a"), Some(1)).node.clone();
        assert!(!node.is_fresh());
        assert!(!node.apply(&file(5), 2, LONG, None), "nothing was known");
        assert!(!node.apply(&file(4), 1, LONG, None) && node.change() == 5);
        assert!(node.apply(&file(6), 3, Duration::ZERO, None) && node.change() == 6);
        assert!(!node.is_fresh());
    }

    #[test]
    fn what_a_caller_may_do_is_known_until_the_file_changes() {
        let nodes = Arc::new(Nodes::default());
        let node = nodes.hold(&handle("a"), Some(1)).node.clone();
        let caller = |uid| Identity::of(Cred::user(uid, uid)).auth(&Cred::system());
        node.apply(&file(5), 1, LONG, None);
        (0..6).for_each(|uid| node.note_access(caller(uid), uid, (5, 1), LONG));
        assert_eq!(node.access_of(&caller(1), None), None, "too many callers");
        assert_eq!(node.access_of(&caller(5), None), Some(5));
        node.note_access(caller(9), 1, (4, 1), LONG);
        assert_eq!(node.access_of(&caller(9), None), None, "of an older file");
        node.note_access(caller(9), 1, (5, 7), Duration::ZERO);
        assert_eq!(node.access_of(&caller(9), None), None, "too old");
        let under = |since, own| node.access_of(&caller(9), Some(&delegation(since, own)));
        assert_eq!((under(8, 6), under(7, 5), under(9, 7)), (None, Some(1), Some(1)));
        node.apply(&file(6), 2, LONG, None);
        assert_eq!(node.access_of(&caller(5), Some(&delegation(0, 0))), None);
    }

    fn delegation(since: u64, granted_by: u64) -> Delegation {
        let stateid = StateId { seqid: 1, other: [7; 12] };
        Delegation { stateid, write: None, since, granted_by, returning: false, used: 0 }
    }

    /// [`D2`]
    #[test]
    fn attributes_from_before_a_delegation_do_not_count() {
        let nodes = Arc::new(Nodes::default());
        let node = nodes.hold(&handle("a"), Some(1)).node.clone();
        let covered = |since, own, void| node.is_covered(&delegation(since, own), void);
        assert!(!covered(0, 0, 0), "nothing is known");
        node.apply(&file(5), 4, Duration::ZERO, None);
        assert!(covered(4, 3, 0) && covered(6, 4, 0), "begun after the reply to OPEN, or the OPEN itself");
        assert!(!covered(6, 3, 0) && !covered(6, 5, 0), "the server may have executed it before OPEN");
        assert!(!covered(4, 3, 5), "a change has an unknown outcome");
        node.expire(5);
        assert!(!covered(4, 3, 0), "a change brought no attributes");
        node.apply(&file(5), 6, Duration::ZERO, None);
        assert!(covered(4, 3, 0));
    }

    /// [`D2`] The reply to a request from before a change of this client arrives first, and is stored last.
    #[test]
    fn attributes_from_before_an_own_change_do_not_count() {
        let nodes = Arc::new(Nodes::default());
        let node = nodes.hold(&handle("a"), Some(1)).node.clone();
        let covered = || node.is_covered(&delegation(2, 1), 0);
        node.change_begins();
        node.change_ended(7, None);
        assert!(node.apply(&file(5), 6, LONG, None) || node.change() == 5);
        assert!(!covered(), "its request was begun before the change ended");
        node.apply(&file(6), 7, LONG, None);
        assert!(covered());
        // The change has number 8. The reply to request 9, which the server executed first, is stored first.
        node.change_begins();
        node.apply(&file(6), 9, LONG, None);
        node.apply(&file(7), 8, LONG, None);
        node.change_ended(10, Some(8));
        assert!(!covered(), "what is known lacks the change");
    }
}
