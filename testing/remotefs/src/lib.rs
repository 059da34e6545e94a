//! An example driver for a network filesystem. Its server is another [`Vfs`] of the same process, so that
//! tests can change files without the client, delay answers and count round trips.
//!
//! It shows what such a driver does with [`ServerOps`]:
//! - the change attribute is the server's; nothing here bumps it;
//! - a lookup returns the inode, and the driver keeps the filehandle as long as the inode number may come
//!   back;
//! - `revalidate` costs a round trip unless the server's grant for that inode still holds;
//! - a change of attributes goes to the server at once (`set_attr`), data at write-back.
//!
//! There is no network in it: a real client adds the protocol, its sessions and its recovery.

#![forbid(unsafe_code)]

use ivers_vfs::sync::{RankedMutex, on_another_machine, rank};
use ivers_vfs::*;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Called before every round trip with the name of the operation, and after it with ` reply` added. An error
/// is the server's answer.
pub type OnRoundTrip = Box<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// The driver.
pub struct RemoteFs {
    server: Arc<Vfs>,
    /// Added to the server's values, so that tests see all 64 bits in use.
    change_base: u64,
    /// Filehandles: they name inodes to the server, and outlive the inode cache.
    handles: RankedMutex<rank::Leaf, HashMap<Ino, InodeRef>>,
    /// Inodes that the server promised to report changes of (as with a delegation).
    granted: RankedMutex<rank::Leaf, HashSet<Ino>>,
    locks: RankedMutex<rank::Leaf, Vec<(Ino, LockRequest)>>,
    cache: OnceLock<CacheHandle>,
    round_trips: AtomicU64,
    /// Added to the generations in replies.
    restored: AtomicU32,
    on_round_trip: OnRoundTrip,
}

impl RemoteFs {
    /// A client of `server`.
    pub fn new(server: Arc<Vfs>, change_base: u64, on_round_trip: OnRoundTrip) -> Result<Self> {
        let root = server.root()?;
        Ok(Self {
            handles: RankedMutex::new(HashMap::from([(root.ino, root)])),
            server,
            change_base,
            granted: RankedMutex::default(),
            locks: RankedMutex::default(),
            cache: OnceLock::new(),
            round_trips: AtomicU64::new(0),
            restored: AtomicU32::new(0),
            on_round_trip,
        })
    }

    /// Round trips so far.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Relaxed)
    }

    /// The server grants the client a cache of this inode until [`RemoteFs::recall`].
    pub fn grant(&self, ino: Ino) {
        self.granted.lock().insert(ino);
    }

    /// Recalls a grant: the next use asks the server again.
    pub fn recall(&self, ino: Ino) {
        self.granted.lock().remove(&ino);
    }

    /// The server uses its inode numbers for other files from here on, as after a restored backup.
    pub fn restore_backup(&self) {
        self.restored.fetch_add(1, Relaxed);
    }

    /// A round trip: `call` runs on the server.
    fn ask<T>(&self, what: &str, call: impl FnOnce(&Vfs) -> Result<T>) -> Result<T> {
        self.round_trips.fetch_add(1, Relaxed);
        (self.on_round_trip)(what)?;
        let answer = on_another_machine(|| call(&self.server)).map_err(|error| match error {
            // What broke is the server's: this mount goes on.
            Error::Corrupt { .. } | Error::Io(_) | Error::FileData(_) => ServerError::Failed.into(),
            error => error,
        })?;
        (self.on_round_trip)(&format!("{what} reply"))?;
        Ok(answer)
    }

    fn handle(&self, ino: Ino) -> Result<InodeRef> {
        self.handles.lock().get(&ino).cloned().ok_or(NameError::Stale.into())
    }

    /// Keeps a filehandle. The server releases the one that it replaces, so not under the lock.
    fn remember(&self, inode: InodeRef) {
        let replaced = self.handles.lock().insert(inode.ino, inode);
        drop(replaced);
    }

    fn change_of(&self, inode: &InodeRef) -> Result<u64> {
        let change = self.server.change(inode).ok_or(Error::Server(ServerError::StateLost))?;
        Ok(change.wrapping_add(self.change_base))
    }

    fn loaded(&self, inode: InodeRef) -> Result<LoadedInode> {
        // Refreshes the inode if it is cached; otherwise the VFS takes what is returned.
        self.refresh(&inode)?;
        let loaded = LoadedInode {
            ino: inode.ino,
            generation: inode.generation + self.restored.load(Relaxed),
            counter: InitialCounter::Server(self.change_of(&inode)?),
            attr: self.server.stat(&inode),
            private: Box::new(()),
        };
        self.remember(inode);
        Ok(loaded)
    }

    /// Applies the attributes in a reply to the cached inode.
    fn refresh(&self, handle: &InodeRef) -> Result<()> {
        let change = self.change_of(handle)?;
        if let Some(cache) = self.cache.get() {
            cache.update(handle.ino, self.server.stat(handle), change);
        }
        Ok(())
    }
}

impl FileSystem for RemoteFs {
    fn info(&self) -> FsInfo {
        FsInfo { fs_type: "remote", persistent_inos: true, ..self.server.info().clone() }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.ask("statfs", |server| server.stat_fs())
    }

    fn sync(&self) -> Result<()> {
        self.ask("commit", |server| server.sync())
    }

    fn unmount(&self) -> Result<()> {
        let handles = std::mem::take(&mut *self.handles.lock());
        on_another_machine(|| drop(handles));
        self.ask("destroy session", |_| Ok(()))
    }

    fn server(&self) -> Option<&dyn ServerOps> {
        Some(self)
    }

    fn mounted(&self, cache: CacheHandle) {
        let _ = self.cache.set(cache);
    }
}

impl InodeOps for RemoteFs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        let handle = self.handle(ino)?;
        self.ask("getattr", |_| self.loaded(handle))
    }

    fn log_inode(&self, _inode: &Inode) -> Result<()> {
        Ok(())
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        let handle = self.handles.lock().remove(&inode.ino);
        on_another_machine(|| drop(handle));
        Ok(())
    }

    fn fsync(&self, inode: &Inode, data_only: bool) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        self.ask("commit", |server| server.fsync(&handle, data_only))
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        let handle = self.handle(inode.ino)?;
        self.ask("readlink", |server| server.read_link(&handle))
    }
}

impl DirectoryOps for RemoteFs {
    fn lookup(&self, caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let handle = self.handle(dir.ino)?;
        self.ask("lookup", |server| match server.lookup(caller, &handle, name) {
            Ok(child) => self.loaded(child).map(|loaded| Some(Child::Inode(loaded))),
            Err(Error::Name(NameError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn parent(&self, dir: &Inode) -> Result<Ino> {
        let handle = self.handle(dir.ino)?;
        self.ask("lookupp", |server| {
            let parent = server.lookup(&Cred::root(), &handle, b"..")?;
            let ino = parent.ino;
            self.remember(parent);
            Ok(ino)
        })
    }

    fn readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let handle = self.handle(dir.ino)?;
        self.ask("readdir", |server| server.readdir(&handle, cursor, emit))
    }

    fn create(&self, caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let handle = self.handle(dir.ino)?;
        let mut spec = CreateSpec::of(new.kind, new.perm);
        spec.target = new.target.clone();
        spec.rdev = new.rdev;
        self.ask("create", |server| {
            let (made, _) = server.create(caller, &handle, name, &spec, false)?;
            self.refresh(&handle)?;
            self.loaded(made)
        })
    }

    fn link(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let (handle, file) = (self.handle(dir.ino)?, self.handle(inode.ino)?);
        self.ask("link", |server| {
            server.link(caller, &file, &handle, name, false)?;
            self.refresh(&handle)?;
            self.refresh(&file)
        })
    }

    fn unlink(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let (handle, file) = (self.handle(dir.ino)?, self.handle(inode.ino)?);
        self.ask("remove", |server| {
            server.remove(caller, &handle, name, &file, false)?;
            self.refresh(&handle)?;
            self.refresh(&file)
        })
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        let (from, to) = (self.handle(rename.old_dir.ino)?, self.handle(rename.new_dir.ino)?);
        let flags = if rename.exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        self.ask("rename", |server| {
            server.rename(rename.caller, &from, rename.old_name, &to, rename.new_name, flags, false)?;
            self.refresh(&from)?;
            self.refresh(&to)
        })
    }
}

impl FileOps for RemoteFs {
    fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        let read = self.ask("read", |server| server.read(&handle, offset, buf))?;
        buf[read..].fill(0);
        Ok(())
    }

    fn reserve(&self, _inode: &Inode, _offset: u64, _len: u64, _pool: BlockPool) -> Result<()> {
        Ok(())
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        let wrote = self.ask("write", |server| {
            // With the credentials of the open: a write-back has no caller.
            server.write(&Cred::trusted(), &handle, offset, data, WriteFlags::empty())?;
            self.refresh(&handle)
        });
        match wrote {
            // A refusal is final: these bytes would wait for ever.
            Err(Error::Name(refused)) => Err(Error::DataRefused(refused)),
            other => other,
        }
    }

    /// The size goes to the server with the other attributes.
    fn truncate(&self, _inode: &Inode, _size: u64) -> Result<()> {
        Err(NameError::NotSupported.into())
    }
}

impl ServerOps for RemoteFs {
    fn revalidate(&self, _caller: &Cred, inode: &Inode) -> Result<()> {
        if self.granted.lock().contains(&inode.ino) {
            return Ok(());
        }
        let handle = self.handle(inode.ino)?;
        self.ask("getattr", |_| self.refresh(&handle))
    }

    fn permission(&self, caller: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        self.ask("access", |server| server.access(caller, &handle, mask))
    }

    fn set_attr(&self, caller: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        self.ask("setattr", |server| {
            server.set_attr(caller, &handle, set)?;
            self.refresh(&handle)
        })
    }

    fn lock(&self, inode: &Inode, lock: &LockRequest) -> Result<()> {
        self.ask("lock", |_| Ok(()))?;
        let mut locks = self.locks.lock();
        let conflicts = |held: &LockRequest| {
            held.owner != lock.owner
                && (held.exclusive || lock.exclusive)
                && held.range.start < lock.range.end
                && lock.range.start < held.range.end
        };
        if locks.iter().any(|(ino, held)| *ino == inode.ino && conflicts(held)) {
            return Err(NameError::Busy.into());
        }
        locks.push((inode.ino, lock.clone()));
        Ok(())
    }

    /// Whole locks only: a range that cuts one is refused.
    fn unlock(&self, inode: &Inode, owner: LockOwner, range: Range<u64>) -> Result<()> {
        self.ask("unlock", |_| Ok(()))?;
        let mut locks = self.locks.lock();
        let before = locks.len();
        locks.retain(|(ino, held)| (*ino, held.owner) != (inode.ino, owner) || held.range != range);
        if locks.len() == before { Err(NameError::Invalid.into()) } else { Ok(()) }
    }
}
