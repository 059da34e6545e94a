//! A driver wrapper that queries inodes during calls.
//!
//! Between two calls a change is complete or has not begun. C1 also covers the time during a call: a query
//! before the change completes gets a value that differs from the value after it. Racing threads would rarely
//! hit that moment. Here the VFS calls the driver at the right time: it reserves space before bytes become
//! visible, and the driver's own changes bump once they are visible. So a query at the start of these calls
//! precedes the bump.

use crate::history::Identity;
use ivers_block::FaultDevice;
use ivers_vfs::*;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// One query.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    /// Length of the record at the query.
    pub at: usize,
    /// The inode.
    pub id: Identity,
    /// The value that the query returned.
    pub value: u64,
}

#[derive(Default)]
struct State {
    observed: HashSet<Identity>,
    observations: Vec<Observation>,
}

/// Forwards every call to a driver, and queries observed inodes on the way.
pub struct ObservedFs {
    inner: Arc<dyn FileSystem>,
    device: Arc<FaultDevice>,
    vfs: OnceLock<Weak<Vfs>>,
    state: Mutex<State>,
}

fn identity(inode: &Inode) -> Identity {
    (inode.ino.0, inode.generation)
}

impl ObservedFs {
    /// Wraps `inner`, which lies on `device`. No inode is observed yet.
    pub fn new(inner: Arc<dyn FileSystem>, device: Arc<FaultDevice>) -> Arc<Self> {
        Arc::new(Self { inner, device, vfs: OnceLock::new(), state: Mutex::default() })
    }

    /// Sets the VFS to query through, once it is mounted.
    pub fn set_vfs(&self, vfs: &Arc<Vfs>) {
        self.vfs.get_or_init(|| Arc::downgrade(vfs));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes this inode from now on.
    pub fn observe(&self, inode: &Inode) {
        self.state().observed.insert(identity(inode));
    }

    /// Returns whether an inode is observed.
    pub fn observes(&self, id: Identity) -> bool {
        self.state().observed.contains(&id)
    }

    /// Takes the observations of an inode since the last call.
    pub fn take_observations(&self, id: Identity) -> Vec<Observation> {
        let mut state = self.state();
        let (taken, left) = state.observations.iter().partition(|seen| seen.id == id);
        state.observations = left;
        taken
    }

    fn query(&self, inode: &Inode) {
        let id = identity(inode);
        if !self.observes(id) {
            return;
        }
        if let Some(vfs) = self.vfs.get().and_then(Weak::upgrade)
            && let Some(value) = vfs.change(inode)
        {
            let at = self.device.len();
            self.state().observations.push(Observation { at, id, value });
        }
    }
}

impl FileSystem for ObservedFs {
    fn info(&self) -> FsInfo {
        self.inner.info()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn serves_change_attribute(&self) -> bool {
        self.inner.serves_change_attribute()
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.inner.stat_fs()
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn evict_blocks(&self, bytes: u64) {
        self.inner.evict_blocks(bytes);
    }

    fn reclaim_space(&self) -> Result<bool> {
        self.inner.reclaim_space()
    }

    fn abort(&self, why: &Error) {
        self.inner.abort(why);
    }

    fn unmount(&self) -> Result<()> {
        self.inner.unmount()
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        self.inner.xattrs().map(|_| self as &dyn XattrOps)
    }

    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        self.inner.unnamed_files()
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        self.inner.block_map()
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        self.inner.allocation().map(|_| self as &dyn AllocateOps)
    }

    fn clones(&self) -> Option<&dyn CloneOps> {
        self.inner.clones().map(|_| self as &dyn CloneOps)
    }

    fn ioctls(&self) -> Option<&dyn IoctlOps> {
        self.inner.ioctls()
    }

    fn epochs(&self) -> Option<&dyn EpochOps> {
        self.inner.epochs()
    }

    fn labels(&self) -> Option<&dyn LabelOps> {
        self.inner.labels()
    }

    fn journal(&self) -> Option<&dyn JournalOps> {
        self.inner.journal()
    }
}

impl InodeOps for ObservedFs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.inner.load_inode(ino)
    }

    fn prepare_setattr(&self, caller: &Cred, inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        self.inner.prepare_setattr(caller, inode, old, new)
    }

    fn stored_atime(&self, atime: Timestamp) -> Timestamp {
        self.inner.stored_atime(atime)
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.inner.log_inode(inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.inner.delete_inode(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        self.inner.evict_inode(inode);
    }

    fn release_ino(&self, ino: Ino) {
        self.inner.release_ino(ino);
    }

    fn fsync(&self, inode: &Inode, data_only: bool) -> Result<()> {
        self.inner.fsync(inode, data_only)
    }

    fn commit_inode(&self, inode: &Inode) -> Result<()> {
        self.inner.commit_inode(inode)
    }

    fn read_link(&self, caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.inner.read_link(caller, inode)
    }
}

impl DirectoryOps for ObservedFs {
    fn lookup(&self, caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        self.inner.lookup(caller, dir, name)
    }

    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        self.inner.same_name(a, b)
    }

    fn parent(&self, caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.inner.parent(caller, dir)
    }

    fn readdir(
        &self,
        caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.readdir(caller, dir, cursor, emit)
    }

    fn create(&self, caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.inner.create(caller, dir, name, new)
    }

    fn link(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.inner.link(caller, dir, name, inode)
    }

    fn unlink(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.inner.unlink(caller, dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.inner.rename(rename)
    }
}

impl FileOps for ObservedFs {
    fn read(&self, caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read(caller, inode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, pool: BlockPool) -> Result<()> {
        self.query(inode);
        self.inner.reserve(inode, offset, len, pool)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.inner.unreserve(inode, offset, len);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.inner.write_back(inode, offset, data)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.inner.blocks_512(inode)
    }

    fn truncate(&self, caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.query(inode);
        self.inner.truncate(caller, inode, size)
    }
}

impl ObservedFs {
    fn inner_xattrs(&self) -> &dyn XattrOps {
        self.inner.xattrs().expect("offered only if the inner driver has them")
    }
}

impl XattrOps for ObservedFs {
    fn value_max(&self) -> u32 {
        self.inner_xattrs().value_max()
    }

    fn get_xattr(&self, caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.inner_xattrs().get_xattr(caller, inode, name)
    }

    fn list_xattr(&self, caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.inner_xattrs().list_xattr(caller, inode)
    }

    fn set_xattr(
        &self,
        caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.query(inode);
        self.inner_xattrs().set_xattr(caller, inode, name, value, mode)
    }
}

impl AllocateOps for ObservedFs {
    fn fallocate(
        &self,
        caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        self.query(inode);
        let allocation = self.inner.allocation().expect("offered only if the inner driver has it");
        allocation.fallocate(caller, inode, mode, offset, len, pool)
    }
}

impl CloneOps for ObservedFs {
    fn clone_range(
        &self,
        caller: &Cred,
        from: (&Inode, u64),
        to: (&Inode, u64),
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        self.query(to.0);
        let clones = self.inner.clones().expect("offered only if the inner driver has it");
        clones.clone_range(caller, from, to, len, pool)
    }
}
