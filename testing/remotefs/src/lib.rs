//! An example driver for a network filesystem. Its server is another [`Vfs`] of the same process, so that
//! tests can change files without the client, delay answers and count round trips.
//!
//! It shows what such a driver does with [`ServerOps`]:
//! - the change attribute is the server's; nothing here bumps it;
//! - a lookup returns the inode, and the driver keeps the filehandle as long as the inode number may come
//!   back;
//! - `revalidate` costs a round trip unless the server's grant for that inode still holds;
//! - a change of attributes goes to the server at once (`set_attr`), data at write-back;
//! - every request has a caller: the user who asks, the opener of a file for write-back, or the client's
//!   machine ([`Cred::system`]).
//!
//! There is no network in it: a real client adds the protocol, its sessions and its recovery.

#![forbid(unsafe_code)]

use ivers_vfs::access::{READ, WRITE};
use ivers_vfs::sync::{Condvar, RankedMutex, on_another_machine, rank};
use ivers_vfs::*;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Called before every round trip with the name of the operation, and after it with ` reply` added. An error
/// is the server's answer. Also called with `changed` after the driver has looked whether it has a
/// delegation.
pub type OnRoundTrip = Box<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// An unstable write of this client.
struct UnstableWrite {
    range: Range<u64>,
    /// From the server's reply.
    verifier: u64,
}

/// When the server answers.
#[derive(PartialEq)]
enum Answers {
    Now,
    /// Requests wait.
    Never,
    /// No request waits.
    GivenUp,
}

/// What the server had before an unstable write.
struct Overwritten {
    file: InodeRef,
    offset: u64,
    bytes: Vec<u8>,
    size: u64,
}

/// The driver.
pub struct RemoteFs {
    server: Arc<Vfs>,
    /// Added to the server's values, so that tests see all 64 bits in use.
    change_base: u64,
    /// Filehandles: they name inodes to the server, and outlive the inode cache.
    handles: RankedMutex<rank::Leaf, HashMap<Ino, InodeRef>>,
    /// Inodes that the server promised to report changes of (as with a delegation).
    granted: RankedMutex<rank::Leaf, HashSet<Ino>>,
    /// The user of the newest open for writing: write-back is done for it.
    writers: RankedMutex<rank::Leaf, HashMap<Ino, Cred>>,
    /// The caller of the newest request of each kind.
    callers: RankedMutex<rank::Leaf, HashMap<String, Cred>>,
    /// Files with a write delegation: no other client changes them.
    delegated: RankedMutex<rank::Leaf, HashSet<Ino>>,
    /// Whether the server keeps written bytes in its memory until a commit.
    unstable: AtomicBool,
    /// The server's verifier: another one after each restart.
    verifier: AtomicU64,
    /// What the server loses if it restarts: the newest write last.
    volatile: RankedMutex<rank::Leaf, Vec<Overwritten>>,
    /// Unstable writes of this client.
    uncommitted: RankedMutex<rank::Leaf, HashMap<Ino, Vec<UnstableWrite>>>,
    locks: RankedMutex<rank::Leaf, HashMap<(Ino, LockOwner), LockedRanges>>,
    cache: OnceLock<CacheHandle>,
    round_trips: AtomicU64,
    /// Added to the generations in replies.
    restored: AtomicU32,
    answers: RankedMutex<rank::Leaf, Answers>,
    answers_again: Condvar,
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
            writers: RankedMutex::default(),
            callers: RankedMutex::default(),
            delegated: RankedMutex::default(),
            unstable: AtomicBool::new(false),
            verifier: AtomicU64::new(1),
            volatile: RankedMutex::default(),
            uncommitted: RankedMutex::default(),
            locks: RankedMutex::default(),
            cache: OnceLock::new(),
            round_trips: AtomicU64::new(0),
            restored: AtomicU32::new(0),
            answers: RankedMutex::new(Answers::Now),
            answers_again: Condvar::new(),
            on_round_trip,
        })
    }

    /// Round trips so far.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Relaxed)
    }

    /// The caller of the newest request of this kind.
    pub fn last_caller(&self, what: &str) -> Option<Cred> {
        self.callers.lock().get(what).cloned()
    }

    /// The server grants the client a cache of this inode until [`RemoteFs::recall`].
    pub fn grant(&self, ino: Ino) {
        self.granted.lock().insert(ino);
    }

    /// The client is told that its cache of an inode is outdated.
    pub fn invalidate(&self, ino: Ino) {
        if let Some(cache) = self.cache.get() {
            cache.invalidate(ino);
        }
    }

    /// The server delegates a file to this client, which alone changes it until [`RemoteFs::recall`].
    pub fn delegate(&self, ino: Ino) {
        self.grant(ino);
        self.delegated.lock().insert(ino);
    }

    /// Recalls a grant or a delegation: cached writes are sent, and the next use asks the server again.
    pub fn recall(&self, ino: Ino) -> Result<()> {
        // First the answer to `changed`, so that no later write counts on the delegation.
        let delegated = self.delegated.lock().remove(&ino);
        if let Some(cache) = self.cache.get().filter(|_| delegated) {
            cache.write_back(ino)?;
        }
        self.granted.lock().remove(&ino);
        Ok(())
    }

    /// From here on the server keeps written bytes in its memory until a commit.
    pub fn write_unstably(&self) {
        self.unstable.store(true, Relaxed);
    }

    /// The server restarts: what was not committed is lost, and its verifier changes.
    pub fn restart_server(&self) -> Result<()> {
        let lost = std::mem::take(&mut *self.volatile.lock());
        for Overwritten { file, offset, bytes, size } in lost.into_iter().rev() {
            self.server.write(&Cred::trusted(), &file, offset, &bytes, WriteFlags::empty())?;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.server.set_attr(&Cred::trusted(), &file, &set)?;
        }
        self.verifier.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The server uses its inode numbers for other files from here on, as after a restored backup.
    pub fn restore_backup(&self) {
        self.restored.fetch_add(1, Relaxed);
    }

    /// From here on the server does not answer.
    pub fn hang_server(&self) {
        *self.answers.lock() = Answers::Never;
    }

    fn wait_for_server(&self) -> Result<()> {
        let mut answers = self.answers.lock();
        while *answers == Answers::Never {
            answers.wait(&self.answers_again);
        }
        if *answers == Answers::GivenUp { Err(ServerError::Timeout.into()) } else { Ok(()) }
    }

    /// A round trip on behalf of `caller`: `call` runs on the server.
    fn ask<T>(&self, what: &str, caller: &Cred, call: impl FnOnce(&Vfs) -> Result<T>) -> Result<T> {
        self.round_trips.fetch_add(1, Relaxed);
        self.callers.lock().insert(what.to_owned(), caller.clone());
        (self.on_round_trip)(what)?;
        self.wait_for_server()?;
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

    /// A change of this client moved the names of a directory. `info` is from the server's reply.
    fn names_changed(&self, dir: &InodeRef, info: Option<ChangeInfo>) -> Result<()> {
        if let (Some(cache), Some(info)) = (self.cache.get(), info) {
            let here = |change: u64| change.wrapping_add(self.change_base);
            let info = ChangeInfo { before: here(info.before), after: here(info.after) };
            cache.names_changed(dir.ino, info, true);
        }
        self.refresh(dir)
    }

    /// Remembers what an unstable write overwrites.
    fn note_volatile(&self, server: &Vfs, file: &InodeRef, offset: u64, len: usize) -> Result<()> {
        let mut bytes = vec![0; len];
        let there = server.read(&Cred::trusted(), file, offset, &mut bytes)?;
        bytes.truncate(there);
        let old = Overwritten { file: file.clone(), offset, bytes, size: file.size() };
        self.volatile.lock().push(old);
        Ok(())
    }

    /// Applies the attributes in a reply to the cached inode.
    fn refresh(&self, handle: &InodeRef) -> Result<()> {
        let change = self.change_of(handle)?;
        if let Some(cache) = self.cache.get() {
            let alone = self.granted.lock().contains(&handle.ino);
            let cause = if alone { Cause::Own } else { Cause::Unknown };
            cache.update(handle.ino, self.server.stat(handle), change, cause);
        }
        Ok(())
    }

    /// As [`RemoteFs::refresh`], after a request that changed the inode.
    fn refresh_changed(&self, handle: &InodeRef) -> Result<()> {
        self.refresh(handle)?;
        if let Some(cache) = self.cache.get() {
            cache.changed_by_request(handle.ino);
        }
        Ok(())
    }
}

impl FileSystem for RemoteFs {
    fn info(&self) -> FsInfo {
        FsInfo { fs_type: "remote", persistent_inos: true, ..self.server.info().clone() }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.ask("statfs", &Cred::system(), |server| server.stat_fs())
    }

    fn sync(&self) -> Result<()> {
        self.ask("commit", &Cred::system(), |server| server.sync())
    }

    fn unmount(&self) -> Result<()> {
        let volatile = std::mem::take(&mut *self.volatile.lock());
        let handles = std::mem::take(&mut *self.handles.lock());
        on_another_machine(|| drop((volatile, handles)));
        self.ask("destroy session", &Cred::system(), |_| Ok(()))
    }

    fn stop_waiting(&self) {
        *self.answers.lock() = Answers::GivenUp;
        self.answers_again.notify_all();
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }

    fn clones(&self) -> Option<&dyn CloneOps> {
        Some(self)
    }

    fn server(&self) -> Option<&dyn ServerOps> {
        Some(self)
    }

    fn locks(&self) -> Option<&dyn LockOps> {
        Some(self)
    }

    fn mounted(&self, cache: CacheHandle) {
        let _ = self.cache.set(cache);
    }
}

impl InodeOps for RemoteFs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        let handle = self.handle(ino)?;
        self.ask("getattr", &Cred::system(), |_| self.loaded(handle))
    }

    fn log_inode(&self, _inode: &Inode) -> Result<()> {
        Ok(())
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        let handle = self.handles.lock().remove(&inode.ino);
        on_another_machine(|| drop(handle));
        Ok(())
    }

    fn evict_inode(&self, inode: &Inode) {
        self.writers.lock().remove(&inode.ino);
        self.uncommitted.lock().remove(&inode.ino);
    }

    fn fsync(&self, inode: &Inode, data_only: bool) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        let sent = self.uncommitted.lock().get(&inode.ino).map_or(0, Vec::len);
        let verifier = self.ask("commit", &Cred::system(), |server| {
            server.fsync(&handle, data_only)?;
            // Dropped after the lock is released.
            let _committed: Vec<_> =
                self.volatile.lock().extract_if(.., |write| write.file.ino == inode.ino).collect();
            Ok(self.verifier.load(Relaxed))
        })?;
        let mut committed = match self.uncommitted.lock().get_mut(&inode.ino) {
            Some(writes) => writes.drain(..sent).collect(),
            None => Vec::new(),
        };
        // The server has restarted since these were written.
        committed.retain(|write: &UnstableWrite| write.verifier != verifier);
        if let Some(cache) = self.cache.get() {
            committed.into_iter().for_each(|write| cache.redirty(inode.ino, write.range));
        }
        Ok(())
    }

    fn read_link(&self, caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        let handle = self.handle(inode.ino)?;
        self.ask("readlink", caller, |server| server.read_link(caller, &handle))
    }
}

impl DirectoryOps for RemoteFs {
    fn lookup(&self, caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let handle = self.handle(dir.ino)?;
        self.ask("lookup", caller, |server| match server.lookup(caller, &handle, name) {
            Ok(child) => self.loaded(child).map(|loaded| Some(Child::Inode(loaded))),
            Err(Error::Name(NameError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn parent(&self, caller: &Cred, dir: &Inode) -> Result<Ino> {
        let handle = self.handle(dir.ino)?;
        self.ask("lookupp", caller, |server| {
            let parent = server.lookup(caller, &handle, b"..")?;
            let ino = parent.ino;
            self.remember(parent);
            Ok(ino)
        })
    }

    fn readdir(
        &self,
        caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let handle = self.handle(dir.ino)?;
        self.ask("readdir", caller, |server| server.readdir(caller, &handle, cursor, emit))
    }

    fn create(&self, caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let handle = self.handle(dir.ino)?;
        let mut spec = CreateSpec::of(new.kind, new.perm);
        spec.target = new.target.clone();
        spec.rdev = new.rdev;
        self.ask("create", caller, |server| {
            let (made, info) = server.create(caller, &handle, name, &spec, true)?;
            self.names_changed(&handle, info)?;
            self.loaded(made)
        })
    }

    fn link(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let (handle, file) = (self.handle(dir.ino)?, self.handle(inode.ino)?);
        self.ask("link", caller, |server| {
            let info = server.link(caller, &file, &handle, name, true)?;
            self.names_changed(&handle, info)?;
            self.refresh_changed(&file)
        })
    }

    fn unlink(&self, caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let (handle, file) = (self.handle(dir.ino)?, self.handle(inode.ino)?);
        self.ask("remove", caller, |server| {
            let info = server.remove(caller, &handle, name, &file, true)?;
            self.names_changed(&handle, info)?;
            self.refresh_changed(&file)
        })
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        let (from, to) = (self.handle(rename.old_dir.ino)?, self.handle(rename.new_dir.ino)?);
        let flags = if rename.exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        self.ask("rename", rename.caller, |server| {
            let (old, new) = (rename.old_name, rename.new_name);
            let info = server.rename(rename.caller, &from, old, &to, new, flags, true)?;
            self.names_changed(&from, info.map(|(from, _)| from))?;
            if from.ino == to.ino {
                return Ok(());
            }
            self.names_changed(&to, info.map(|(_, to)| to))
        })
    }
}

impl FileOps for RemoteFs {
    fn read(&self, caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        let read = self.ask("read", caller, |server| {
            server.access(caller, &handle, READ)?;
            server.read(caller, &handle, offset, buf)
        })?;
        buf[read..].fill(0);
        Ok(())
    }

    fn reserve(&self, _inode: &Inode, _offset: u64, _len: u64, _pool: BlockPool) -> Result<()> {
        Ok(())
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        let handle = self.handle(inode.ino)?;
        let writer = self.writers.lock().get(&inode.ino).cloned().unwrap_or_else(Cred::system);
        let unstable = self.unstable.load(Relaxed);
        let wrote = self.ask("write", &writer, |server| {
            server.access(&writer, &handle, WRITE)?;
            if unstable {
                self.note_volatile(server, &handle, offset, data.len())?;
            }
            server.write(&writer, &handle, offset, data, WriteFlags::empty())?;
            self.refresh(&handle)?;
            Ok(self.verifier.load(Relaxed))
        });
        match wrote {
            Ok(verifier) if unstable => {
                let range = offset..offset + data.len() as u64;
                self.uncommitted.lock().entry(inode.ino).or_default().push(UnstableWrite { range, verifier });
                Ok(Written::Unstable)
            }
            Ok(_) => Ok(Written::Durable),
            // A refusal is final: these bytes would wait for ever.
            Err(Error::Name(refused)) => Err(Error::DataRefused(refused)),
            Err(error) => Err(error),
        }
    }

    /// The size goes to the server with the other attributes.
    fn truncate(&self, _caller: &Cred, _inode: &Inode, _size: u64) -> Result<()> {
        Err(NameError::NotSupported.into())
    }
}

/// The server has `user.*` alone (RFC 8276): others do not exist, and nobody asks for them.
fn is_remote(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

impl XattrOps for RemoteFs {
    fn value_max(&self) -> u32 {
        self.server.xattr_value_max()
    }

    fn get_xattr(&self, caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        if !is_remote(name) {
            return Err(NameError::NoAttribute.into());
        }
        let handle = self.handle(inode.ino)?;
        self.ask("getxattr", caller, |server| server.get_xattr(caller, &handle, name))
    }

    fn list_xattr(&self, caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let handle = self.handle(inode.ino)?;
        let mut names = self.ask("listxattrs", caller, |server| server.list_xattr(caller, &handle))?;
        names.retain(|name| is_remote(name));
        Ok(names)
    }

    fn set_xattr(
        &self,
        caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        if !is_remote(name) {
            return Err(if value.is_some() { NameError::NotSupported } else { NameError::NoAttribute }.into());
        }
        let handle = self.handle(inode.ino)?;
        self.ask("setxattr", caller, |server| {
            match value {
                Some(value) => server.set_xattr(caller, &handle, name, value, mode)?,
                None => server.remove_xattr(caller, &handle, name)?,
            }
            self.refresh_changed(&handle)
        })
    }
}

impl AllocateOps for RemoteFs {
    fn fallocate(
        &self,
        caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        self.ask("allocate", caller, |server| {
            server.access(caller, &handle, WRITE)?;
            server.fallocate(caller, &handle, mode, offset, len)?;
            self.refresh_changed(&handle)
        })
    }
}

impl CloneOps for RemoteFs {
    fn clone_range(
        &self,
        caller: &Cred,
        (source, source_offset): (&Inode, u64),
        (target, target_offset): (&Inode, u64),
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let (from, to) = (self.handle(source.ino)?, self.handle(target.ino)?);
        self.ask("clone", caller, |server| {
            server.clone_range(caller, &from, source_offset, &to, target_offset, len)?;
            self.refresh_changed(&to)
        })
    }

    fn copy_range(
        &self,
        caller: &Cred,
        (source, source_offset): (&Inode, u64),
        (target, target_offset): (&Inode, u64),
        len: u64,
        _pool: BlockPool,
    ) -> Result<u64> {
        let (from, to) = (self.handle(source.ino)?, self.handle(target.ino)?);
        self.ask("copy", caller, |server| {
            let copied = server.copy_range(caller, &from, source_offset, &to, target_offset, len)?;
            self.refresh_changed(&to)?;
            Ok(copied)
        })
    }
}

impl ServerOps for RemoteFs {
    fn revalidate(&self, caller: &Cred, inode: &Inode) -> Result<()> {
        if self.granted.lock().contains(&inode.ino) {
            return Ok(());
        }
        let handle = self.handle(inode.ino)?;
        self.ask("getattr", caller, |_| self.refresh(&handle))
    }

    fn permission(&self, caller: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        self.ask("access", caller, |server| server.access(caller, &handle, mask))
    }

    fn open(&self, caller: &Cred, inode: &Inode, mode: OpenMode) -> Result<()> {
        if mode.intersects(OpenMode::WRITE | OpenMode::APPEND) {
            self.writers.lock().insert(inode.ino, caller.clone());
        }
        self.ask("open", caller, |_| Ok(()))
    }

    fn set_attr(&self, caller: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        self.ask("setattr", caller, |server| {
            server.set_attr(caller, &handle, set)?;
            self.refresh_changed(&handle)
        })
    }

    fn changed(&self, inode: &Inode, _touch: Touch) -> bool {
        let delegated = self.delegated.lock().contains(&inode.ino);
        // No round trip: tests interrupt here.
        (self.on_round_trip)("changed").is_ok() && delegated
    }

    fn catch_up(&self, inode: &Inode, value: u64) -> Result<()> {
        let handle = self.handle(inode.ino)?;
        while self.change_of(&handle)? < value {
            // Setting the mode is a change, also to the same one.
            self.ask("setattr", &Cred::system(), |server| {
                let set = SetAttr { perm: Some(server.stat(&handle).perm), ..SetAttr::default() };
                server.set_attr(&Cred::system(), &handle, &set)
            })?;
        }
        self.refresh(&handle)
    }
}

impl LockOps for RemoteFs {
    fn lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<()> {
        self.ask("lock", caller, |_| Ok(()))?;
        if self.conflict(inode, lock).is_some() {
            return Err(NameError::Busy.into());
        }
        let mut locks = self.locks.lock();
        locks.entry((inode.ino, lock.owner)).or_default().lock(lock.range.clone(), lock.exclusive);
        Ok(())
    }

    fn test_lock(&self, caller: &Cred, inode: &Inode, lock: &LockRequest) -> Result<Option<LockConflict>> {
        self.ask("test lock", caller, |_| Ok(()))?;
        Ok(self.conflict(inode, lock))
    }

    fn unlock(&self, caller: &Cred, inode: &Inode, owner: LockOwner, range: Range<u64>) -> Result<()> {
        self.ask("unlock", caller, |_| Ok(()))?;
        let mut locks = self.locks.lock();
        locks.entry((inode.ino, owner)).or_default().unlock(range);
        locks.retain(|_, held| !held.is_empty());
        Ok(())
    }

    fn holds_locks(&self, inode: &Inode, owner: LockOwner) -> bool {
        self.locks.lock().contains_key(&(inode.ino, owner))
    }
}

impl RemoteFs {
    fn conflict(&self, inode: &Inode, lock: &LockRequest) -> Option<LockConflict> {
        let locks = self.locks.lock();
        let others = locks.iter().filter(|((ino, owner), _)| *ino == inode.ino && *owner != lock.owner);
        let mut conflicts = others.filter_map(|(_, held)| held.conflict(&lock.range, lock.exclusive));
        conflicts.next().map(|(range, exclusive)| LockConflict { range, exclusive })
    }
}
