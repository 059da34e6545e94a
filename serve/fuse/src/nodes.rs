//! The inodes that the kernel references: counted by its lookups, dropped when it forgets them.

use crate::inflight_changes::InflightChanges;
use ivers_vfs::{FileType, InodeRef};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// The node number of the root in FUSE, whatever the format calls it.
pub(crate) const ROOT: u64 = 1;

const SHARDS: usize = 32;

/// An inode that the kernel references. Until it is forgotten, its number cannot be reused.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) inode: InodeRef,
    /// Handles through which the kernel may hold dirty data, from OPEN or CREATE to RELEASE.
    writers: AtomicU32,
    /// The errno of the last failed write from the kernel's cache, until the next write(2) returns it; 0:
    /// none.
    failed_write: AtomicI32,
    /// The kernel shows data that could not be written. It will show other data when it drops those pages,
    /// without notice.
    diverged: AtomicBool,
    /// For a directory: it was listed, and the kernel may have cached the listing.
    listed: AtomicBool,
    /// Changes that the kernel may not show yet.
    pub(crate) changes: InflightChanges,
    /// Directories and names where it was seen, the latest last. A flusher opens it through the mount by
    /// these. They are hints, verified at use.
    places: Mutex<Vec<Place>>,
}

/// A name in a directory.
type Place = (u64, Box<[u8]>);

/// Names kept for one file, enough for a file with some links. A removed name does not say which file it had.
/// One kept name must still exist: otherwise a file that is open for writing is not found, and counts as
/// changed at each query.
const PLACES_MAX: usize = 16;

impl Node {
    fn new(id: u64, inode: InodeRef) -> Self {
        Self {
            id,
            inode,
            writers: AtomicU32::new(0),
            failed_write: AtomicI32::new(0),
            diverged: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            changes: InflightChanges::default(),
            places: Mutex::default(),
        }
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

    /// Returns where to look for it, the likeliest place last.
    fn places(&self) -> Vec<Place> {
        self.places.lock().clone()
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

/// Places kept for directories that the kernel has forgotten.
const FORGOTTEN_MAX: usize = 16 << 10;

/// The places of directories that the kernel has forgotten. A file below such a directory may still be open
/// under a removed name, and have another name that leads through the directory. The oldest places are
/// dropped first.
#[derive(Default)]
struct Forgotten {
    places: HashMap<u64, Place>,
    order: VecDeque<u64>,
}

impl Forgotten {
    fn keep(&mut self, id: u64, place: Place) {
        if self.places.insert(id, place).is_some() {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > FORGOTTEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
    }
}

type Shard = Mutex<HashMap<u64, (Arc<Node>, u64)>>;

/// All nodes of a mount.
pub(crate) struct Nodes {
    root: Mutex<Option<Arc<Node>>>,
    root_ino: u64,
    shards: [Shard; SHARDS],
    forgotten: Mutex<Forgotten>,
}

impl Nodes {
    pub(crate) fn new(root: InodeRef) -> Self {
        let root_ino = root.ino.0;
        Self {
            root: Mutex::new(Some(Arc::new(Node::new(ROOT, root)))),
            root_ino,
            shards: std::array::from_fn(|_| Mutex::default()),
            forgotten: Mutex::default(),
        }
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

    fn shard(&self, id: u64) -> &Shard {
        &self.shards[(id % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Node>> {
        if id == ROOT {
            return self.root.lock().clone();
        }
        self.shard(id).lock().get(&id).map(|(node, _)| node.clone())
    }

    /// Returns the paths below the root by which a file may be found, the likeliest first. The path of the
    /// root is empty. They are hints, verified at use.
    pub(crate) fn paths(&self, node: &Node) -> impl Iterator<Item = Vec<u8>> {
        let root = (node.id == ROOT).then(Vec::new);
        root.into_iter().chain(node.places().into_iter().rev().filter_map(|place| self.path(place)))
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
            place = match self.get(place.0) {
                Some(dir) => dir.place()?,
                None => self.forgotten.lock().places.get(&place.0)?.clone(),
            };
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Counts one lookup of an inode that the kernel is about to be told of.
    pub(crate) fn remember(&self, inode: InodeRef, parent: u64, name: &[u8]) -> Option<Arc<Node>> {
        let id = self.id(inode.ino.0);
        if id == ROOT {
            return self.root.lock().clone();
        }
        let node = match self.shard(id).lock().entry(id) {
            Entry::Occupied(mut slot) => {
                slot.get_mut().1 += 1;
                slot.get().0.clone()
            }
            Entry::Vacant(slot) => slot.insert((Arc::new(Node::new(id, inode)), 1)).0.clone(),
        };
        if name != b"." && name != b".." {
            node.set_place(parent, name);
        }
        Some(node)
    }

    /// Handles a FORGET of some lookups. The last reference is dropped outside the lock of the shard, since
    /// that may delete the inode, which is I/O.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        if id == ROOT {
            return;
        }
        let gone = match self.shard(id).lock().entry(id) {
            Entry::Occupied(mut slot) => {
                let count = &mut slot.get_mut().1;
                *count = count.saturating_sub(lookups);
                (*count == 0).then(|| slot.remove())
            }
            Entry::Vacant(_) => None,
        };
        if let Some((dir, _)) = &gone
            && dir.inode.kind == FileType::Directory
            && let Some(place) = dir.place()
        {
            self.forgotten.lock().keep(id, place);
        }
        drop(gone);
    }

    /// Drops all nodes at the end of the session: the kernel sends no more FORGETs.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
        let root = self.root.lock().take();
        drop(root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_vfs::{CreateSpec, Cred, MountOptions, Vfs};

    #[test]
    fn a_file_is_found_through_a_directory_that_the_kernel_has_forgotten() {
        let vfs = Vfs::mount(Arc::new(ivers_mem::Mem::new(1 << 20)), MountOptions::default()).unwrap();
        let (root, cred) = (vfs.root().unwrap(), Cred::root());
        let nodes = Nodes::new(root.clone());
        let (dir, _) = vfs.create(&cred, &root, b"dir", &CreateSpec::directory(0o755), false).unwrap();
        let (file, _) = vfs.create(&cred, &dir, b"file", &CreateSpec::file(0o644), false).unwrap();
        let id = nodes.remember(dir.clone(), ROOT, b"dir").unwrap().id;
        let node = nodes.remember(file, id, b"file").unwrap();
        let found = || nodes.paths(&node).collect::<Vec<_>>();
        assert_eq!(found(), [b"dir/file"]);
        nodes.forget(id, 1);
        assert!(nodes.get(id).is_none());
        assert_eq!(found(), [b"dir/file"]);
        // Known again under another name.
        nodes.remember(dir, ROOT, b"moved");
        assert_eq!(found(), [b"moved/file"]);
        // The oldest are dropped.
        nodes.forget(id, 1);
        for other in 0..FORGOTTEN_MAX as u64 {
            nodes.forgotten.lock().keep(id + 1 + other, (ROOT, b"other"[..].into()));
        }
        assert!(found().is_empty());
        let forgotten = nodes.forgotten.lock();
        assert_eq!((forgotten.places.len(), forgotten.order.len()), (FORGOTTEN_MAX, FORGOTTEN_MAX));
    }
}
