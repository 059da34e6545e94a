//! A driver wrapper that calls back around changes and stores of inodes.

use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What a [`HookedFs`] calls.
pub trait Hooks: Send + Sync + 'static {
    /// Comes before a call that makes a change of an inode visible.
    fn changes(&self, _inode: &Inode) {}
    /// Comes after a call in which the driver stores an inode, unless it fails before.
    fn stored(&self, _inode: &Inode) {}
}

/// Forwards every call to a driver, and calls hooks on the way.
pub struct HookedFs<H> {
    inner: Arc<dyn FileSystem>,
    hooks: H,
}

impl<H: Hooks> HookedFs<H> {
    /// Wraps a driver.
    pub fn with(inner: Arc<dyn FileSystem>, hooks: H) -> Arc<Self> {
        Arc::new(Self { inner, hooks })
    }

    /// Returns the hooks.
    pub fn hooks(&self) -> &H {
        &self.hooks
    }
}

impl<H: Hooks> FileSystem for HookedFs<H> {
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

    fn subvolumes(&self) -> Option<&dyn SubvolumeOps> {
        self.inner.subvolumes()
    }

    fn journal(&self) -> Option<&dyn JournalOps> {
        self.inner.journal()
    }
}

impl<H: Hooks> InodeOps for HookedFs<H> {
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
        let done = self.inner.log_inode(inode);
        self.hooks.stored(inode);
        done
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

impl<H: Hooks> DirectoryOps for HookedFs<H> {
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

impl<H: Hooks> FileOps for HookedFs<H> {
    fn read(&self, caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read(caller, inode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, pool: BlockPool) -> Result<()> {
        self.hooks.changes(inode);
        self.inner.reserve(inode, offset, len, pool)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.inner.unreserve(inode, offset, len);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        let done = self.inner.write_back(inode, offset, data);
        self.hooks.stored(inode);
        done
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.inner.blocks_512(inode)
    }

    fn truncate(&self, caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.hooks.changes(inode);
        let done = self.inner.truncate(caller, inode, size);
        self.hooks.stored(inode);
        done
    }
}

impl<H: Hooks> HookedFs<H> {
    fn inner_xattrs(&self) -> &dyn XattrOps {
        self.inner.xattrs().expect("offered only if the inner driver has them")
    }
}

impl<H: Hooks> XattrOps for HookedFs<H> {
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
        self.hooks.changes(inode);
        let done = self.inner_xattrs().set_xattr(caller, inode, name, value, mode);
        self.hooks.stored(inode);
        done
    }
}

impl<H: Hooks> AllocateOps for HookedFs<H> {
    fn fallocate(
        &self,
        caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        self.hooks.changes(inode);
        let allocation = self.inner.allocation().expect("offered only if the inner driver has it");
        let done = allocation.fallocate(caller, inode, mode, offset, len, pool);
        self.hooks.stored(inode);
        done
    }
}

impl<H: Hooks> CloneOps for HookedFs<H> {
    fn clone_range(
        &self,
        caller: &Cred,
        from: (&Inode, u64),
        to: (&Inode, u64),
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        self.hooks.changes(to.0);
        let clones = self.inner.clones().expect("offered only if the inner driver has it");
        let done = clones.clone_range(caller, from, to, len, pool);
        self.hooks.stored(to.0);
        done
    }
}
