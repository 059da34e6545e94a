//! A filesystem in memory: the smallest complete driver, and the model for authors of drivers. Read it beside
//! `docs/drivers.md`.
//!
//! The driver keeps files as a device would. It holds only what the VFS has logged or written back, so the
//! VFS may evict inodes and pages and load them again. There is no journal, because the files do not outlive
//! the process.
//!
//! # Change attribute
//!
//! The driver stores no change counter. It loads every inode with [`InitialCounter::NotStored`], and the VFS
//! starts the counter above all values that this inode number had before in this mount. Within a mount the
//! change attribute differs after each change (C1) and never decreases (C2). While the inode is cached, it
//! stays the same without a change (C3). Nothing is promised across mounts.
//!
//! For each change the driver does three things:
//!
//! 1. It makes the change visible.
//! 2. It calls [`Inode::changed`].
//! 3. It logs the inode if the answer requires it.
//!
//! # Locks
//!
//! `MemWithBlocks::inodes` and `MemInode::state` have the same rank: a thread holds at most one of them at a
//! time.

use ivers_vfs::sync::atomic::{AtomicU64, Ordering::Relaxed};
use ivers_vfs::sync::{RankedMutex, RankedMutexGuard, rank};
use ivers_vfs::*;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The size of a page of the VFS's page cache.
const PAGE64: u64 = 4096;
const ROOT: Ino = Ino(1);
/// The first cursor of a name in `readdir`. Cursor 0 is the start, 1 is after `.`, and 2 is after `..`.
const FIRST_CURSOR: u64 = 3;

/// The filesystem with blocks of 4 KiB, the size of a page.
pub type Mem = MemWithBlocks<4096>;

/// The filesystem with blocks of `BLOCK` bytes. `BLOCK` is a power of two, up to 1 MiB.
pub struct MemWithBlocks<const BLOCK: usize> {
    inodes: RankedMutex<rank::Driver<0>, HashMap<Ino, Arc<MemInode<BLOCK>>>>,
    next_ino: AtomicU64,
    capacity_blocks: u64,
    /// Blocks that hold data or are reserved for dirty pages.
    used_blocks: AtomicU64,
}

type StateGuard<'a, const BLOCK: usize> = RankedMutexGuard<'a, State<BLOCK>>;

/// A file of any type: [`Inode::private`] refers to it.
struct MemInode<const BLOCK: usize> {
    state: RankedMutex<rank::Driver<0>, State<BLOCK>>,
}

struct State<const BLOCK: usize> {
    /// The attributes as last logged, except the size: that of the data in `blocks`.
    attr: Attr,
    /// The data of a regular file by file block. An absent block is a hole.
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
    /// File blocks that are reserved for dirty pages. None of them is in `blocks`.
    reserved: BTreeSet<u64>,
    /// The cursor of each name of a directory.
    names: HashMap<Vec<u8>, u64>,
    /// The entries of a directory by cursor.
    entries: BTreeMap<u64, Entry>,
    next_cursor: u64,
    /// The parent of a directory.
    parent: Ino,
    /// The target of a symbolic link.
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A name in a directory.
#[derive(Clone)]
struct Entry {
    name: Vec<u8>,
    ino: Ino,
    kind: FileType,
}

impl<const BLOCK: usize> State<BLOCK> {
    const BLOCK64: u64 = BLOCK as u64;

    fn insert(&mut self, name: &[u8], ino: Ino, kind: FileType) {
        let cursor = self.next_cursor;
        self.next_cursor += 1;
        self.names.insert(name.to_vec(), cursor);
        self.entries.insert(cursor, Entry { name: name.to_vec(), ino, kind });
    }

    fn remove(&mut self, name: &[u8]) -> Result<()> {
        let cursor = self.names.remove(name).ok_or(NameError::NotFound)?;
        self.entries.remove(&cursor);
        Ok(())
    }

    /// Makes an existing name refer to another inode. Its cursor stays the same.
    fn replace(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<()> {
        let cursor = self.names.get(name).ok_or(NameError::NotFound)?;
        let entry = self.entries.get_mut(cursor).ok_or(NameError::NotFound)?;
        (entry.ino, entry.kind) = (ino, kind);
        Ok(())
    }

    fn blocks_512(&self) -> u64 {
        self.blocks.len() as u64 * (Self::BLOCK64 / 512)
    }

    /// Fills the bytes from `offset` to `end` with zeros. Holes stay holes.
    fn zero(&mut self, offset: u64, end: u64) {
        for (at, block) in self.blocks.range_mut(offset / Self::BLOCK64..end.div_ceil(Self::BLOCK64)) {
            let from = offset.saturating_sub(at * Self::BLOCK64) as usize;
            let to = (end - at * Self::BLOCK64).min(Self::BLOCK64) as usize;
            Arc::make_mut(block)[from..to].fill(0);
        }
    }
}

impl<const BLOCK: usize> Default for MemWithBlocks<BLOCK> {
    fn default() -> Self {
        Self::new(1 << 40)
    }
}

impl<const BLOCK: usize> MemWithBlocks<BLOCK> {
    const BLOCK64: u64 = BLOCK as u64;
    /// [`FsInfo::io_unit`]: a block, or a page if blocks are smaller.
    const UNIT: u64 = if Self::BLOCK64 > PAGE64 { Self::BLOCK64 } else { PAGE64 };

    /// Locks the state of an inode.
    fn state(inode: &Inode) -> StateGuard<'_, BLOCK> {
        inode.private::<Arc<MemInode<BLOCK>>>().state.lock()
    }

    /// Creates an empty filesystem that holds up to `capacity_bytes` of file data.
    pub fn new(capacity_bytes: u64) -> Self {
        Self::with_root(capacity_bytes, (0, 0), Timestamp::default())
    }

    /// Creates a filesystem whose root directory has this owner (user and group) and this time.
    pub fn with_root(capacity_bytes: u64, owner: (u32, u32), time: Timestamp) -> Self {
        let mem = Self {
            inodes: RankedMutex::default(),
            next_ino: AtomicU64::new(ROOT.0),
            capacity_blocks: capacity_bytes / Self::BLOCK64,
            used_blocks: AtomicU64::new(0),
        };
        let (uid, gid) = owner;
        let root = NewInode { perm: 0o755, uid, gid, ..NewInode::new(FileType::Directory, time) };
        mem.new_inode(ROOT, &root, 2);
        mem
    }

    /// Returns a file, or `Stale` if it was deleted.
    fn get(&self, ino: Ino) -> Result<Arc<MemInode<BLOCK>>> {
        self.inodes.lock().get(&ino).cloned().ok_or(NameError::Stale.into())
    }

    /// Creates a file without a name. `parent` is the directory of the future name.
    fn new_inode(&self, parent: Ino, new: &NewInode, nlink: u32) -> (Ino, Arc<MemInode<BLOCK>>) {
        let ino = Ino(self.next_ino.fetch_add(1, Relaxed));
        let mut attr = new.attr(nlink);
        if new.kind == FileType::Symlink {
            attr.size = new.target.len() as u64;
        }
        let state = State {
            attr,
            blocks: BTreeMap::new(),
            reserved: BTreeSet::new(),
            names: HashMap::new(),
            entries: BTreeMap::new(),
            next_cursor: FIRST_CURSOR,
            parent,
            target: new.target.clone(),
            xattrs: new.xattrs.iter().cloned().collect(),
        };
        let file = Arc::new(MemInode { state: RankedMutex::new(state) });
        self.inodes.lock().insert(ino, file.clone());
        (ino, file)
    }

    /// Returns a file in the form that the VFS caches.
    fn loaded(ino: Ino, file: Arc<MemInode<BLOCK>>) -> LoadedInode {
        let attr = file.state.lock().attr.clone();
        LoadedInode {
            ino,
            // Inode numbers are never reused.
            generation: 1,
            attr,
            counter: InitialCounter::NotStored,
            private: Box::new(file) as Box<dyn Any + Send + Sync>,
        }
    }

    /// Counts blocks as used. Returns `NoSpace`, and counts none, if fewer are free.
    fn take_blocks(&self, blocks: u64) -> Result<()> {
        let sum = |used: u64| used.checked_add(blocks).filter(|sum| *sum <= self.capacity_blocks);
        self.used_blocks.fetch_update(Relaxed, Relaxed, sum).map(drop).map_err(|_| NameError::NoSpace.into())
    }

    /// Counts blocks as free.
    fn release_blocks(&self, blocks: u64) {
        self.used_blocks.fetch_sub(blocks, Relaxed);
    }

    /// Frees the file blocks from `first` to before `end`, and their reservations.
    fn free_range(&self, state: &mut State<BLOCK>, first: u64, end: u64) {
        let mut freed = state.blocks.split_off(&first);
        state.blocks.append(&mut freed.split_off(&end));
        let mut unreserved = state.reserved.split_off(&first);
        state.reserved.append(&mut unreserved.split_off(&end));
        self.release_blocks((freed.len() + unreserved.len()) as u64);
    }

    /// Calls [`Inode::changed`], and logs the inode if the answer requires it. Call it after the change is
    /// visible.
    fn changed(&self, inode: &Inode, touch: Touch, logged: Logged) -> Result<()> {
        if inode.changed(touch, logged).must_log() { self.log_inode(inode) } else { Ok(()) }
    }

    /// Changes the link count of an inode by `count`. This is always logged.
    fn add_links(&self, inode: &Inode, count: i32) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = attr.nlink.saturating_add_signed(count));
        self.changed(inode, Touch::Metadata, Logged::Anyway)
    }

    /// Updates a directory whose names changed. `subdirectories` is the number of subdirectories that it
    /// gained, negative if it lost some.
    fn names_changed(&self, dir: &Inode, subdirectories: i32) -> Result<()> {
        dir.with_attr(|attr| attr.nlink = attr.nlink.saturating_add_signed(subdirectories));
        let logged = if subdirectories != 0 { Logged::Anyway } else { Logged::IfNeeded };
        self.changed(dir, Touch::Data, logged)
    }

    /// Updates the link count of an inode after one of its names was removed. A directory has only one
    /// name.
    fn name_removed(&self, inode: &Inode) -> Result<()> {
        if inode.kind == FileType::Directory {
            inode.with_attr(|attr| attr.nlink = 0);
            self.changed(inode, Touch::Metadata, Logged::Anyway)
        } else {
            self.add_links(inode, -1)
        }
    }

    /// Returns `NotEmpty` if a directory has names.
    fn check_empty(&self, inode: &Inode) -> Result<()> {
        if Self::state(inode).entries.is_empty() { Ok(()) } else { Err(NameError::NotEmpty.into()) }
    }
}

impl<const BLOCK: usize> FileSystem for MemWithBlocks<BLOCK> {
    fn info(&self) -> FsInfo {
        FsInfo {
            fs_type: "mem",
            label: String::new(),
            uuid: [0; 16],
            block_size: BLOCK as u32,
            root: ROOT,
            name_max: 255,
            max_file_size: i64::MAX as u64,
            max_links: 1 << 30,
            time_granularity_ns: 1,
            semantics: ChangeSemantics::WITHIN_A_MOUNT,
            valid_until: ValidUntil::Unmount(None),
            projects: true,
            persistent_inos: false,
            names_alias: false,
            reserve_granularity: Self::BLOCK64,
            io_unit: Self::UNIT as u32,
            reserved: None,
        }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let free = self.capacity_blocks.saturating_sub(self.used_blocks.load(Relaxed));
        let files = self.inodes.lock().len() as u64;
        Ok(StatFs {
            block_size: BLOCK as u32,
            blocks: self.capacity_blocks,
            blocks_free: free,
            blocks_available: free,
            files: files + free,
            files_free: free,
            name_max: 255,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        Some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }

    fn clones(&self) -> Option<&dyn CloneOps> {
        Some(self)
    }
}

impl<const BLOCK: usize> InodeOps for MemWithBlocks<BLOCK> {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        Ok(Self::loaded(ino, self.get(ino)?))
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        let mut state = Self::state(inode);
        // `inode` has the size of the page cache. The stored size is that of the data, which `write_back` and
        // `truncate` change.
        let size = state.attr.size;
        state.attr = Attr { size, ..inode.attr() };
        Ok(())
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.inodes.lock().remove(&inode.ino);
        self.free_range(&mut Self::state(inode), 0, u64::MAX);
        Ok(())
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        Ok(Self::state(inode).target.clone())
    }
}

impl<const BLOCK: usize> DirectoryOps for MemWithBlocks<BLOCK> {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let state = Self::state(dir);
        Ok(state
            .names
            .get(name)
            .and_then(|cursor| state.entries.get(cursor))
            .map(|entry| Child::Number(entry.ino)))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        Ok(Self::state(dir).parent)
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let state = Self::state(dir);
        let dots: [(&[u8], Ino); 2] = [(b".", dir.ino), (b"..", state.parent)];
        for (next, (name, ino)) in (1..).zip(dots) {
            let entry = DirEntry { ino, name, kind: Some(FileType::Directory), next };
            if cursor < next && emit(&entry).is_break() {
                return Ok(());
            }
        }
        for (cursor, entry) in state.entries.range(cursor.saturating_add(1)..) {
            let entry = DirEntry { ino: entry.ino, name: &entry.name, kind: Some(entry.kind), next: *cursor };
            if emit(&entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let is_dir = new.kind == FileType::Directory;
        let (ino, inode) = self.new_inode(dir.ino, new, if is_dir { 2 } else { 1 });
        Self::state(dir).insert(name, ino, new.kind);
        self.names_changed(dir, i32::from(is_dir))?;
        Ok(Self::loaded(ino, inode))
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        Self::state(dir).insert(name, inode.ino, inode.kind);
        self.add_links(inode, 1)?;
        self.names_changed(dir, 0)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let is_dir = inode.kind == FileType::Directory;
        if is_dir {
            self.check_empty(inode)?;
        }
        Self::state(dir).remove(name)?;
        self.name_removed(inode)?;
        self.names_changed(dir, -i32::from(is_dir))
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = rename;
        let is_dir = |inode: &Inode| inode.kind == FileType::Directory;
        let replaced_dir = target.is_some_and(|target| is_dir(target) && !exchange);
        if let (Some(target), true) = (target, replaced_dir) {
            self.check_empty(target)?;
        }
        match target {
            Some(target) => {
                // Lock one directory at a time, because both may be the same.
                Self::state(new_dir).replace(new_name, inode.ino, inode.kind)?;
                let mut old = Self::state(old_dir);
                if exchange { old.replace(old_name, target.ino, target.kind)? } else { old.remove(old_name)? }
            }
            None => {
                Self::state(old_dir).remove(old_name)?;
                Self::state(new_dir).insert(new_name, inode.ino, inode.kind);
            }
        }
        // The inodes that moved, each with its new directory.
        let mut moves = vec![(inode, new_dir)];
        if let (Some(target), true) = (target, exchange) {
            moves.push((target, old_dir));
        }
        let crosses = old_dir.ino != new_dir.ino;
        // The subdirectories that each directory gains.
        let (mut old_gain, mut new_gain) = (0, -i32::from(replaced_dir));
        for (moved, to) in moves {
            if is_dir(moved) && crosses {
                Self::state(moved).parent = to.ino;
                let sign = if to.ino == new_dir.ino { 1 } else { -1 };
                (old_gain, new_gain) = (old_gain - sign, new_gain + sign);
            }
            self.changed(moved, Touch::Metadata, Logged::IfNeeded)?;
        }
        if let (Some(target), false) = (target, exchange) {
            self.name_removed(target)?;
        }
        if crosses {
            self.names_changed(old_dir, old_gain)?;
        }
        self.names_changed(new_dir, new_gain)
    }
}

impl<const BLOCK: usize> FileOps for MemWithBlocks<BLOCK> {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        debug_assert!(offset.is_multiple_of(Self::UNIT) && (buf.len() as u64).is_multiple_of(Self::UNIT));
        let state = Self::state(inode);
        for (at, piece) in (offset / Self::BLOCK64..).zip(buf.chunks_mut(BLOCK)) {
            match state.blocks.get(&at) {
                Some(block) => piece.copy_from_slice(&block[..piece.len()]),
                None => piece.fill(0),
            }
        }
        Ok(())
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        let mut state = Self::state(inode);
        // Reserve what write-back will write: whole pages, up to the end of the file.
        let end = offset.saturating_add(len);
        let end = inode.size().max(end).min(end.next_multiple_of(PAGE64));
        let first = offset / PAGE64 * PAGE64 / Self::BLOCK64;
        let missing: Vec<u64> = (first..end.div_ceil(Self::BLOCK64))
            .filter(|at| !state.blocks.contains_key(at) && !state.reserved.contains(at))
            .collect();
        self.take_blocks(missing.len() as u64)?;
        state.reserved.extend(missing);
        Ok(())
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let mut state = Self::state(inode);
        let (first, end) = (offset / Self::BLOCK64, offset.saturating_add(len).div_ceil(Self::BLOCK64));
        let mut unreserved = state.reserved.split_off(&first);
        state.reserved.append(&mut unreserved.split_off(&end));
        self.release_blocks(unreserved.len() as u64);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        let end = offset + data.len() as u64;
        debug_assert!(offset.is_multiple_of(Self::UNIT));
        let mut state = Self::state(inode);
        for (at, piece) in (offset / Self::BLOCK64..).zip(data.chunks(BLOCK)) {
            if !state.blocks.contains_key(&at) && !state.reserved.remove(&at) {
                self.take_blocks(1)?;
            }
            let block = Arc::make_mut(state.blocks.entry(at).or_insert_with(|| Arc::new([0; BLOCK])));
            block[..piece.len()].copy_from_slice(piece);
            block[piece.len()..].fill(0);
        }
        let blocks_512 = state.blocks_512();
        let size = inode.with_attr(|attr| {
            attr.blocks_512 = blocks_512;
            attr.size.min(end)
        });
        if size > state.attr.size || state.attr.blocks_512 != blocks_512 {
            state.attr.size = size.max(state.attr.size);
            state.attr.blocks_512 = blocks_512;
            inode.logged_in_background();
        }
        Ok(Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        let state = Self::state(inode);
        inode.with_attr(|attr| attr.blocks_512) + state.reserved.len() as u64 * (Self::BLOCK64 / 512)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        {
            let mut state = Self::state(inode);
            self.free_range(&mut state, size.div_ceil(Self::BLOCK64), u64::MAX);
            state.zero(size, size.div_ceil(Self::BLOCK64) * Self::BLOCK64);
            state.attr.size = size;
            let blocks_512 = state.blocks_512();
            inode.with_attr(|attr| attr.blocks_512 = blocks_512);
        }
        self.changed(inode, Touch::Data, Logged::Anyway)
    }
}

impl<const BLOCK: usize> XattrOps for MemWithBlocks<BLOCK> {
    fn value_max(&self) -> u32 {
        64 << 10
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        Self::state(inode).xattrs.get(name).cloned().ok_or(NameError::NoAttribute.into())
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        Ok(Self::state(inode).xattrs.keys().cloned().collect())
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        {
            let mut state = Self::state(inode);
            mode.check(state.xattrs.contains_key(name), value.is_none())?;
            match value {
                Some(value) => state.xattrs.insert(name.to_vec(), value.to_vec()),
                None => state.xattrs.remove(name),
            };
        }
        self.changed(inode, Touch::Metadata, Logged::Anyway)
    }
}

impl<const BLOCK: usize> UnnamedFileOps for MemWithBlocks<BLOCK> {
    fn create_unnamed(&self, _caller: &Cred, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        let (ino, inode) = self.new_inode(dir.ino, new, 0);
        Ok(Self::loaded(ino, inode))
    }
}

impl<const BLOCK: usize> BlockMapOps for MemWithBlocks<BLOCK> {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let state = Self::state(inode);
        let at = offset / Self::BLOCK64;
        let start = at * Self::BLOCK64;
        if state.blocks.contains_key(&at) {
            let run = (at..)
                .zip(state.blocks.range(at..))
                .take_while(|(expected, (at, _))| expected == *at)
                .count();
            return Ok(MappedRange { start, len: run as u64 * Self::BLOCK64, kind: RangeKind::Data });
        }
        let end = state.blocks.range(at..).next().map_or(u64::MAX, |(next, _)| next * Self::BLOCK64);
        Ok(MappedRange { start, len: end - start, kind: RangeKind::Hole })
    }
}

impl<const BLOCK: usize> AllocateOps for MemWithBlocks<BLOCK> {
    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        let (first, end_block) = (offset / Self::BLOCK64, end.div_ceil(Self::BLOCK64));
        let mut size = inode.size();
        {
            let mut state = Self::state(inode);
            let shift = (end - offset) / Self::BLOCK64;
            if mode.contains(FallocateMode::COLLAPSE_RANGE) {
                self.free_range(&mut state, first, end_block);
                let moved = state.blocks.split_off(&end_block);
                state.blocks.extend(moved.into_iter().map(|(at, block)| (at - shift, block)));
                size -= len;
            } else if mode.contains(FallocateMode::INSERT_RANGE) {
                let moved = state.blocks.split_off(&first);
                state.blocks.extend(moved.into_iter().map(|(at, block)| (at + shift, block)));
                size += len;
            } else if mode.contains(FallocateMode::PUNCH_HOLE) {
                self.free_range(&mut state, offset.div_ceil(Self::BLOCK64), end / Self::BLOCK64);
                state.zero(offset, end);
            } else {
                // Refuse before the missing blocks are listed, because there may be very many.
                if end_block - first > self.capacity_blocks {
                    return Err(NameError::NoSpace.into());
                }
                let missing: Vec<u64> = (first..end_block)
                    .filter(|at| !state.blocks.contains_key(at) && !state.reserved.contains(at))
                    .collect();
                self.take_blocks(missing.len() as u64)?;
                state.blocks.extend(missing.into_iter().map(|at| (at, Arc::new([0; BLOCK]))));
                if mode.contains(FallocateMode::ZERO_RANGE) {
                    state.zero(offset, end);
                }
                if !mode.contains(FallocateMode::KEEP_SIZE) {
                    size = size.max(end);
                }
            }
            state.attr.size = size;
            let blocks_512 = state.blocks_512();
            inode.with_attr(|attr| (attr.size, attr.blocks_512) = (size, blocks_512));
        }
        self.changed(inode, Touch::Data, Logged::Anyway)
    }
}

impl<const BLOCK: usize> CloneOps for MemWithBlocks<BLOCK> {
    /// A shared block counts for each file, so that a later write to one of them never lacks space.
    fn clone_range(
        &self,
        _caller: &Cred,
        (source, source_offset): (&Inode, u64),
        (target, target_offset): (&Inode, u64),
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let (first, target_first) = (source_offset / Self::BLOCK64, target_offset / Self::BLOCK64);
        let count = len.div_ceil(Self::BLOCK64);
        let shared: Vec<_> = {
            let state = Self::state(source);
            let blocks = state.blocks.range(first..first + count);
            blocks.map(|(at, block)| (at - first + target_first, block.clone())).collect()
        };
        {
            let mut state = Self::state(target);
            let range = target_first..target_first + count;
            let had = state.blocks.range(range.clone()).count() + state.reserved.range(range).count();
            // What it had is given back, and is enough for as many.
            let missing = shared.len().saturating_sub(had);
            self.take_blocks(missing as u64)?;
            self.used_blocks.fetch_add((shared.len() - missing) as u64, Relaxed);
            self.free_range(&mut state, target_first, target_first + count);
            state.blocks.extend(shared);
            state.attr.size = state.attr.size.max(target_offset + len);
            let blocks_512 = state.blocks_512();
            target.with_attr(|attr| {
                attr.size = attr.size.max(target_offset + len);
                attr.blocks_512 = blocks_512;
            });
        }
        self.changed(target, Touch::Data, Logged::Anyway)
    }
}
