//! The inodes that the kernel references: counted by its lookups, dropped when it forgets them.
//!
//! The VFS counts the lookups ([`Vfs::remember`]); a [`Node`] has the state that a request needs besides.
//! Nodes without state are dropped, the oldest first, and made again at the next request. So what the kernel
//! merely remembers can leave memory. A node stays while one of these holds:
//!
//! - a handle is open;
//! - a failed write must be reported, or the kernel shows data that was not stored;
//! - the kernel may not show a change yet;
//! - a request uses the node.
//!
//! Nodes are added and removed under the lock of their shard, together with their count in the VFS: a request
//! never finds two nodes of one inode, nor one that was forgotten.

use crate::inflight_changes::{Callers, InflightChanges};
use crate::kept_places::{KeptPlaces, PLACES_MAX, Place};
use fuser::FileAttr;
use ivers_vfs::{Error, FileType, Ino, InodeRef, NameError, Result, Vfs};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::SystemTime;

/// The node number of the root in FUSE, whatever the format calls it.
pub(crate) const ROOT: u64 = 1;

const SHARDS: usize = 32;
/// Nodes that a shard keeps although they have no state. Each keeps its inode in memory, and with it a page
/// of the allocator. Few in debug builds, so that tests drop them all the time.
const IDLE_MAX: usize = if cfg!(debug_assertions) { 2 } else { 32 };
/// Nodes that are looked at for each new node of a full shard.
const SWEEP: usize = 8;

/// The state of an inode that the kernel references.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) inode: InodeRef,
    /// Open handles.
    handles: AtomicU32,
    /// Used since the sweep last looked at it.
    recent: AtomicBool,
    /// Handles through which the kernel may hold dirty data, from OPEN or CREATE to RELEASE.
    writers: AtomicU32,
    /// The errno of the last failed write from the kernel's cache, until the next write(2) returns it; 0:
    /// none.
    failed_write: AtomicI32,
    /// The kernel shows data that could not be written. It will show other data when it drops those pages,
    /// without notice.
    diverged: AtomicBool,
    /// For the file of a server: the state of the kernel's pages, which may also be newer. `None`: there are
    /// no pages.
    pages_of: Mutex<Option<Shown>>,
    /// For a directory: it was listed, and the kernel may have cached the listing.
    listed: AtomicBool,
    /// Changes that the kernel may not show yet.
    pub(crate) changes: InflightChanges,
    /// Directories and names where it was seen, the latest last. A flusher opens it through the mount by
    /// these. They are hints, verified at use.
    places: Mutex<Vec<Place>>,
}

/// What the kernel knows of a file of a server.
struct Shown {
    /// The change attribute in the last reply to GETATTR.
    newest: u64,
    size: u64,
    mtime: SystemTime,
}

impl Node {
    /// `listed`: the kernel may have a cached listing of this directory.
    fn new(id: u64, inode: InodeRef, listed: bool) -> Self {
        Self {
            id,
            inode,
            handles: AtomicU32::new(0),
            recent: AtomicBool::new(false),
            writers: AtomicU32::new(0),
            failed_write: AtomicI32::new(0),
            diverged: AtomicBool::new(false),
            pages_of: Mutex::default(),
            listed: AtomicBool::new(listed),
            changes: InflightChanges::default(),
            places: Mutex::default(),
        }
    }

    /// Whether dropping the node loses nothing.
    fn is_idle(&self, callers: &Callers) -> bool {
        !self.has_handles()
            && !self.has_failed_write()
            && !self.has_diverged()
            && self.changes.is_over(callers)
    }

    pub(crate) fn handle_opens(&self) {
        self.handles.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn handle_closes(&self) {
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn has_handles(&self) -> bool {
        self.handles.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn note_listed(&self) {
        self.listed.store(true, Ordering::SeqCst);
    }

    /// Returns whether it was listed since the previous call.
    pub(crate) fn take_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed) && self.listed.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn writer_opens(&self) {
        self.writers.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn writer_closes(&self) {
        if self.writers.fetch_sub(1, Ordering::SeqCst) == 1 {
            // The kernel reported the error at close(2); the next open starts without it.
            self.failed_write.store(0, Ordering::Release);
        }
    }

    /// Returns whether the kernel may hold newer data or times of this file.
    pub(crate) fn is_held_back(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// Remembers that data of a completed write(2) was not stored.
    pub(crate) fn note_failed_write(&self, errno: i32) {
        self.failed_write.store(errno, Ordering::Release);
    }

    pub(crate) fn has_failed_write(&self) -> bool {
        self.failed_write.load(Ordering::Acquire) != 0
    }

    /// Takes the error to report, which is reported once.
    pub(crate) fn take_failed_write(&self) -> Option<i32> {
        Some(self.failed_write.swap(0, Ordering::AcqRel)).filter(|&errno| errno != 0)
    }

    /// The kernel shows data that was not stored.
    pub(crate) fn diverges(&self) {
        self.diverged.store(true, Ordering::Release);
    }

    /// The kernel no longer shows such data.
    pub(crate) fn agrees_again(&self) {
        self.diverged.store(false, Ordering::Release);
    }

    /// Whether the kernel shows data that the filesystem does not have: never stored, or lost at write-back.
    pub(crate) fn has_diverged(&self) -> bool {
        self.diverged.load(Ordering::Acquire) || self.inode.has_lost_data()
    }

    /// Returns whether the kernel must be told to drop its pages: the server's file has changed since the
    /// previous call, and the kernel does not see that in these attributes. If size or modification time
    /// differ, the kernel drops the pages itself. It must not be told then, because it would ignore the
    /// attributes of this reply, and a read would end at the old size. A file that is not open has no pages,
    /// and an open drops them.
    pub(crate) fn pages_are_old(&self, attr: &FileAttr) -> bool {
        let Some(newest) = self.inode.newest_of_server() else { return false };
        let (size, mtime) = (attr.size, attr.mtime);
        let before = self.pages_of.lock().replace(Shown { newest, size, mtime });
        before.is_some_and(|it| it.newest != newest && (it.size, it.mtime) == (size, mtime))
    }

    /// Notes the size and modification time of a reply to another request than that of
    /// [`Node::pages_are_old`].
    pub(crate) fn note_shown(&self, attr: &FileAttr) {
        if let Some(shown) = &mut *self.pages_of.lock() {
            (shown.size, shown.mtime) = (attr.size, attr.mtime);
        }
    }

    /// Notes that the kernel wrote up to this offset: from then on it uses that size.
    pub(crate) fn note_written(&self, end: u64) {
        if let Some(shown) = &mut *self.pages_of.lock() {
            shown.size = shown.size.max(end);
        }
    }

    /// Returns where to look for it, the likeliest place last.
    fn places(&self) -> Vec<Place> {
        self.places.lock().clone()
    }

    /// Returns the name under which it was last seen.
    pub(crate) fn last_name(&self) -> Option<Box<[u8]>> {
        self.places.lock().last().map(|(_, name)| name.clone())
    }

    /// Returns that name for messages; empty if there is none.
    pub(crate) fn shown_name(&self) -> String {
        String::from_utf8_lossy(&self.last_name().unwrap_or_default()).into_owned()
    }

    /// Returns where a directory was last seen. A directory has one place at a time.
    fn place(&self) -> Option<Place> {
        self.places.lock().last().cloned()
    }

    /// Removes a name.
    pub(crate) fn leave_place(&self, parent: u64, name: &[u8]) {
        let mut places = self.places.lock();
        // The latest place is the new one.
        if let [before @ .., _] = &places[..]
            && let Some(at) = before.iter().position(|(dir, known)| *dir == parent && **known == *name)
        {
            places.remove(at);
        }
    }

    pub(crate) fn set_place(&self, parent: u64, name: &[u8]) {
        let mut places = self.places.lock();
        match places.iter().position(|(dir, known)| *dir == parent && **known == *name) {
            Some(at) => places[at..].rotate_left(1),
            None => {
                if places.len() == PLACES_MAX {
                    places.remove(0);
                }
                places.push((parent, name.into()));
            }
        }
    }
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    /// In order of arrival, for second-chance eviction. May have entries of nodes that are gone.
    queue: VecDeque<u64>,
    /// Names of files without a node.
    kept: KeptPlaces,
}

impl Shard {
    /// Returns the node of an inode, which the kernel references. Nodes that had to go are added to
    /// `dropped`, for the caller to drop without the lock.
    fn node(&mut self, new: Node, callers: &Callers, dropped: &mut Vec<Arc<Node>>) -> Arc<Node> {
        if let Some(node) = self.nodes.get(&new.id) {
            return node.clone();
        }
        self.sweep(callers, dropped);
        *new.places.lock() = self.kept.take(new.id);
        let node = Arc::new(new);
        self.nodes.insert(node.id, node.clone());
        self.queue.push_back(node.id);
        node
    }

    fn sweep(&mut self, callers: &Callers, dropped: &mut Vec<Arc<Node>>) {
        for _ in 0..SWEEP {
            if self.queue.len() < IDLE_MAX {
                break;
            }
            let Some(id) = self.queue.pop_front() else { break };
            let Entry::Occupied(slot) = self.nodes.entry(id) else { continue };
            let node = slot.get();
            if node.recent.swap(false, Ordering::Relaxed)
                || Arc::strong_count(node) > 1
                || !node.is_idle(callers)
            {
                self.queue.push_back(id);
            } else {
                let node = slot.remove();
                if has_other_names(&node.inode) {
                    self.kept.keep(id, node.places());
                }
                dropped.push(node);
            }
        }
    }
}

/// Whether one name is not enough to find a file again: see [`KeptPlaces`].
fn has_other_names(inode: &InodeRef) -> bool {
    inode.kind != FileType::Directory && inode.attr().nlink > 1
}

/// All nodes of a mount.
pub(crate) struct Nodes {
    vfs: Arc<Vfs>,
    /// The threads that make requests.
    pub(crate) callers: Callers,
    root: Mutex<Option<Arc<Node>>>,
    root_ino: u64,
    shards: [Mutex<Shard>; SHARDS],
}

impl Nodes {
    pub(crate) fn new(vfs: Arc<Vfs>) -> Result<Self> {
        let root = vfs.root()?;
        let root_ino = root.ino.0;
        Ok(Self {
            vfs,
            callers: Callers::new(),
            root: Mutex::new(Some(Arc::new(Node::new(ROOT, root, false)))),
            root_ino,
            shards: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Returns the node number of an inode: its inode number. The root has node number 1; if another inode
    /// has number 1, it gets that of the root.
    pub(crate) fn id(&self, ino: u64) -> u64 {
        match ino {
            ino if ino == self.root_ino => ROOT,
            ROOT => self.root_ino,
            ino => ino,
        }
    }

    /// Returns the inode number of a node number.
    pub(crate) fn ino(&self, id: u64) -> u64 {
        self.id(id)
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[(id % SHARDS as u64) as usize]
    }

    /// Returns the node of a number if it has one now. Where there is none, there is no state either.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Node>> {
        if id == ROOT {
            return self.root.lock().clone();
        }
        let node = self.shard(id).lock().nodes.get(&id).cloned()?;
        node.recent.store(true, Ordering::Relaxed);
        Some(node)
    }

    /// Returns all nodes but the root that `is_wanted` accepts. A file without a node has no state.
    pub(crate) fn all(&self, is_wanted: impl Fn(&Node) -> bool) -> Vec<Arc<Node>> {
        let of_shard = |shard: &Mutex<Shard>| -> Vec<_> {
            let shard = shard.lock();
            shard.nodes.values().filter(|node| is_wanted(node)).cloned().collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Returns the node of a number that the kernel references, and loads its inode if it has left memory.
    pub(crate) fn find(&self, id: u64) -> Result<Arc<Node>> {
        match self.get(id) {
            Some(node) => Ok(node),
            None => {
                let inode = self.vfs.recall(Ino(self.ino(id)))?;
                self.known(inode).ok_or(Error::from(NameError::Stale))
            }
        }
    }

    /// Returns the node of an inode, if the kernel references it.
    pub(crate) fn known(&self, inode: InodeRef) -> Option<Arc<Node>> {
        let (ino, id) = (inode.ino, self.id(inode.ino.0));
        if id == ROOT {
            return self.get(ROOT);
        }
        let mut dropped = Vec::new();
        let mut shard = self.shard(id).lock();
        // The kernel may forget it concurrently.
        let is_known = self.vfs.is_remembered(ino);
        let node = is_known.then(|| shard.node(Node::new(id, inode, true), &self.callers, &mut dropped));
        drop(shard);
        node
    }

    /// Returns the paths below the root by which a file may be found, the likeliest first. The path of the
    /// root is empty. They are hints, verified at use.
    pub(crate) fn paths<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = Vec<u8>> + 'a {
        let root = (node.id == ROOT).then(Vec::new);
        let noted = node.places().into_iter().rev();
        // The node was made after the name was found.
        let searched = std::iter::once_with(|| self.search(node)).flatten();
        root.into_iter().chain(noted.chain(searched).filter_map(|place| self.path(place)))
    }

    /// Reads the directory in which a file was last found, for its name.
    fn search(&self, node: &Node) -> Option<Place> {
        if node.id == ROOT {
            return None;
        }
        let ino = node.inode.ino;
        let (dir, name) = if node.inode.kind == FileType::Directory {
            self.vfs.place_of_dir(ino)?
        } else {
            let dir = self.vfs.seen_in(ino)?;
            (dir, self.vfs.name_in(&self.vfs.get(dir).ok()?, ino)?)
        };
        let place: Place = (self.id(dir.0), (*name).into());
        let is_new = !node.places().contains(&place);
        is_new.then(|| {
            node.set_place(place.0, &place.1);
            place
        })
    }

    fn path(&self, mut place: Place) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut length = 0;
        loop {
            length += place.1.len() + 1;
            // PATH_MAX. The limit also ends a loop of outdated hints.
            if length > 4095 {
                return None;
            }
            names.push(place.1);
            if place.0 == ROOT {
                break;
            }
            place = self.place_of_dir(place.0)?;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    fn place_of_dir(&self, id: u64) -> Option<Place> {
        let node = self.get(id);
        if let Some(place) = node.as_ref().and_then(|node| node.place()) {
            return Some(place);
        }
        let (dir, name) = self.vfs.place_of_dir(Ino(self.ino(id)))?;
        let place: Place = (self.id(dir.0), (*name).into());
        if let Some(node) = node {
            node.set_place(place.0, &place.1);
        }
        Some(place)
    }

    /// Counts one lookup of an inode that the kernel is about to be told of.
    pub(crate) fn remember(&self, inode: InodeRef, parent: u64, name: &[u8]) -> Option<Arc<Node>> {
        let id = self.id(inode.ino.0);
        if id == ROOT {
            return self.get(ROOT);
        }
        let is_name = name != b"." && name != b"..";
        let seen_in = if is_name { Ino(self.ino(parent)) } else { inode.ino };
        let mut dropped = Vec::new();
        let node = {
            let mut shard = self.shard(id).lock();
            let is_first = self.vfs.remember(&inode, seen_in);
            // A node that was dropped does not say whether it was listed.
            shard.node(Node::new(id, inode, !is_first), &self.callers, &mut dropped)
        };
        drop(dropped);
        if is_name {
            node.set_place(parent, name);
        }
        Some(node)
    }

    /// As [`Nodes::remember`], for an inode of a listing: its node is made when a request needs it.
    pub(crate) fn remember_listed(&self, inode: &InodeRef, parent: u64, name: &[u8]) {
        let id = self.id(inode.ino.0);
        if id == ROOT {
            return;
        }
        let mut shard = self.shard(id).lock();
        self.vfs.remember(inode, Ino(self.ino(parent)));
        if has_other_names(inode) {
            match shard.nodes.get(&id) {
                Some(node) => node.set_place(parent, name),
                None => shard.kept.keep(id, [(parent, name.into())]),
            }
        }
    }

    /// Notes the new name of a renamed file.
    pub(crate) fn moved(&self, node: &Node, parent: u64, name: &[u8]) {
        node.set_place(parent, name);
        self.vfs.note_moved(node.inode.ino, Ino(self.ino(parent)));
    }

    /// Handles a FORGET of some lookups. The last reference is dropped outside the lock of the shard, since
    /// that may delete the inode, which is I/O.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        if id == ROOT {
            return;
        }
        let ino = Ino(self.ino(id));
        let gone = {
            let mut shard = self.shard(id).lock();
            if !self.vfs.forget(ino, lookups) {
                return;
            }
            shard.kept.take(id);
            shard.nodes.remove(&id)
        };
        drop(gone);
        self.vfs.release_forgotten(ino);
    }

    /// Drops all nodes at the end of the session: the kernel sends no more FORGETs.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
        let root = self.root.lock().take();
        drop(root);
        self.vfs.forget_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_vfs::{CreateSpec, Cred, MountOptions};

    fn nodes() -> (Arc<Vfs>, Nodes) {
        let vfs = Vfs::mount(Arc::new(ivers_mem::Mem::new(1 << 20)), MountOptions::default()).unwrap();
        (vfs.clone(), Nodes::new(vfs).unwrap())
    }

    fn create(vfs: &Vfs, dir: &InodeRef, name: &[u8], spec: &CreateSpec) -> InodeRef {
        vfs.create(&Cred::root(), dir, name, spec, false).unwrap().0
    }

    /// Makes enough nodes to drop the idle ones.
    fn crowd_out(vfs: &Vfs, nodes: &Nodes) {
        let root = vfs.root().unwrap();
        for i in 0..3 * IDLE_MAX * SHARDS {
            let name = format!("other{i}").into_bytes();
            let file = create(vfs, &root, &name, &CreateSpec::file(0o644));
            let id = nodes.remember(file, ROOT, &name).unwrap().id;
            nodes.forget(id, 0);
        }
    }

    #[test]
    fn a_file_is_found_through_a_directory_that_the_kernel_has_forgotten() {
        let (vfs, nodes) = nodes();
        let root = vfs.root().unwrap();
        let dir = create(&vfs, &root, b"dir", &CreateSpec::directory(0o755));
        let file = create(&vfs, &dir, b"file", &CreateSpec::file(0o644));
        let id = nodes.remember(dir.clone(), ROOT, b"dir").unwrap().id;
        let node = nodes.remember(file, id, b"file").unwrap();
        let found = || nodes.paths(&node).collect::<Vec<_>>();
        assert_eq!(found(), [b"dir/file"]);
        nodes.forget(id, 1);
        assert!(nodes.get(id).is_none());
        assert_eq!(found(), [b"dir/file"]);
    }

    #[test]
    fn an_idle_node_is_dropped_and_made_again() {
        let (vfs, nodes) = nodes();
        let root = vfs.root().unwrap();
        let dir = create(&vfs, &root, b"dir", &CreateSpec::directory(0o755));
        let file = create(&vfs, &dir, b"file", &CreateSpec::file(0o644));
        let dir_id = nodes.remember(dir, ROOT, b"dir").unwrap().id;
        let id = nodes.remember(file, dir_id, b"file").unwrap().id;
        let held = nodes.remember(create(&vfs, &root, b"open", &CreateSpec::file(0o644)), ROOT, b"open");
        let held_id = held.unwrap().id;
        nodes.find(held_id).unwrap().handle_opens();
        crowd_out(&vfs, &nodes);
        assert!(nodes.get(id).is_none() && nodes.get(dir_id).is_none(), "idle nodes are dropped");
        assert!(nodes.get(held_id).is_some(), "a node with an open handle stays");
        let node = nodes.find(id).unwrap();
        // Its name comes from the directory where it was seen.
        assert_eq!(nodes.paths(&node).collect::<Vec<_>>(), [b"dir/file"]);
        // Nobody knows whether it was listed.
        assert!(nodes.find(dir_id).unwrap().take_listed());
        nodes.forget(id, 1);
        assert!(nodes.find(id).is_err(), "a forgotten number is stale");
    }

    #[test]
    fn names_of_a_hard_link_outlive_its_node() {
        let (vfs, nodes) = nodes();
        let root = vfs.root().unwrap();
        let dir = create(&vfs, &root, b"dir", &CreateSpec::directory(0o755));
        let file = create(&vfs, &root, b"one", &CreateSpec::file(0o644));
        for name in [&b"two"[..], b"three"] {
            vfs.link(&Cred::root(), &file, &dir, name, false).unwrap();
        }
        let dir_id = nodes.remember(dir.clone(), ROOT, b"dir").unwrap().id;
        let id = nodes.remember(file.clone(), ROOT, b"one").unwrap().id;
        nodes.remember_listed(&file, dir_id, b"three");
        crowd_out(&vfs, &nodes);
        nodes.remember_listed(&file, dir_id, b"two");
        nodes.remember(file, ROOT, b"one").unwrap();
        let node = nodes.find(id).unwrap();
        let expected = [&b"one"[..], b"dir/two", b"dir/three"];
        assert_eq!(nodes.paths(&node).take(3).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_orphan_is_deleted_when_the_kernel_forgets_it() {
        let (vfs, nodes) = nodes();
        let root = vfs.root().unwrap();
        let file = create(&vfs, &root, b"file", &CreateSpec::file(0o644));
        let (ino, id) = (file.ino, nodes.remember(file, ROOT, b"file").unwrap().id);
        crowd_out(&vfs, &nodes);
        vfs.unlink(&Cred::root(), &root, b"file", false).unwrap();
        assert_eq!(nodes.find(id).unwrap().inode.attr().nlink, 0);
        nodes.forget(id, 1);
        assert!(vfs.get(ino).is_err(), "deleted");
    }
}
