//! A filesystem under somebody who looks in the midst of calls.
//!
//! Between two calls a change is complete or has not begun. What a counter promises of the time between (C1: a look before a
//! change completes does not outlive it) shows only to a look while the call is under way. Threads that race for it
//! would find it now and then; here the VFS calls the driver, which is the moment: room is reserved before bytes become visible, and the
//! driver's own changes bump when they are visible. So a look at the start of these calls comes before the bump.

use crate::history::Identity;
use ivers_block::FaultDevice;
use ivers_vfs::{
    DirEntry, FallocateMode, FileSystem, FsInfo, Ino, Inode, LoadedInode, MappedRange, NewInode, Rename,
    Result, Room, StatFs, Vfs, XattrMode,
};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// One look.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Length of the record then.
    pub at: usize,
    /// At which inode.
    pub id: Identity,
    /// What it was told.
    pub value: u64,
}

#[derive(Default)]
struct State {
    watched: HashSet<Identity>,
    looks: Vec<Look>,
}

/// Hands everything on to a driver, and looks at watched inodes on the way.
pub struct Watched {
    inner: Arc<dyn FileSystem>,
    device: Arc<FaultDevice>,
    vfs: OnceLock<Weak<Vfs>>,
    state: Mutex<State>,
}

fn identity(inode: &Inode) -> Identity {
    (inode.ino.0, inode.generation)
}

impl Watched {
    /// Nothing is watched yet. `device` is the one that `inner` lies on.
    pub fn new(inner: Arc<dyn FileSystem>, device: Arc<FaultDevice>) -> Arc<Self> {
        Arc::new(Self { inner, device, vfs: OnceLock::new(), state: Mutex::default() })
    }

    /// Through what to look, once it is mounted.
    pub fn set_vfs(&self, vfs: &Arc<Vfs>) {
        self.vfs.get_or_init(|| Arc::downgrade(vfs));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at this inode from now on.
    pub fn watch(&self, inode: &Inode) {
        self.state().watched.insert(identity(inode));
    }

    /// Whether an inode is watched.
    pub fn watches(&self, id: Identity) -> bool {
        self.state().watched.contains(&id)
    }

    /// The looks at an inode since the last time this was asked.
    pub fn take_looks(&self, id: Identity) -> Vec<Look> {
        let mut state = self.state();
        let (taken, left) = state.looks.iter().partition(|look| look.id == id);
        state.looks = left;
        taken
    }

    fn look(&self, inode: &Inode) {
        let id = identity(inode);
        if !self.watches(id) {
            return;
        }
        if let Some(vfs) = self.vfs.get().and_then(Weak::upgrade)
            && let Some(value) = vfs.change(inode)
        {
            let at = self.device.len();
            self.state().looks.push(Look { at, id, value });
        }
    }
}

impl FileSystem for Watched {
    fn reserve(&self, inode: &Inode, offset: u64, len: u64, room: Room) -> Result<()> {
        self.look(inode);
        self.inner.reserve(inode, offset, len, room)
    }

    fn truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        self.look(inode);
        self.inner.truncate(inode, size)
    }

    fn fallocate(&self, inode: &Inode, mode: FallocateMode, offset: u64, len: u64, room: Room) -> Result<()> {
        self.look(inode);
        self.inner.fallocate(inode, mode, offset, len, room)
    }

    fn set_xattr(&self, inode: &Inode, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        self.look(inode);
        self.inner.set_xattr(inode, name, value, mode)
    }

    fn info(&self) -> FsInfo {
        self.inner.info()
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.inner.stat_fs()
    }

    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.inner.load_inode(ino)
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.inner.log_inode(inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.inner.delete_inode(inode)
    }

    fn forget_inode(&self, inode: &Inode) {
        self.inner.forget_inode(inode);
    }

    fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        self.inner.lookup(dir, name)
    }

    fn parent(&self, dir: &Inode) -> Result<Ino> {
        self.inner.parent(dir)
    }

    fn readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.readdir(dir, cursor, emit)
    }

    fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.inner.create(dir, name, new)
    }

    fn create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        self.inner.create_unnamed(dir, new)
    }

    fn link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.inner.link(dir, name, inode)
    }

    fn unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.inner.unlink(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.inner.rename(rename)
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.inner.read_link(inode)
    }

    fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read(inode, offset, buf)
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_back(inode, offset, data)
    }

    fn room_step(&self) -> u64 {
        self.inner.room_step()
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.inner.blocks_512(inode)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.inner.unreserve(inode, offset, len);
    }

    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.inner.map(inode, offset)
    }

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.get_xattr(inode, name)
    }

    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.inner.list_xattr(inode)
    }

    fn fsync(&self, inode: &Inode, data_only: bool) -> Result<()> {
        self.inner.fsync(inode, data_only)
    }

    fn commit(&self, inode: &Inode) -> Result<()> {
        self.inner.commit(inode)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn unmount(&self) -> Result<()> {
        self.inner.unmount()
    }

    fn has_call(&self, number: u32) -> bool {
        self.inner.has_call(number)
    }

    fn call(&self, inode: &Inode, number: u32) -> Result<()> {
        self.inner.call(inode, number)
    }

    fn version_base(&self) -> u64 {
        self.inner.version_base()
    }

    fn serves_cookie(&self) -> bool {
        self.inner.serves_cookie()
    }

    fn raise_epoch(&self) -> Result<()> {
        self.inner.raise_epoch()
    }

    fn journal_stats(&self) -> (u64, u64) {
        self.inner.journal_stats()
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}
