//! A filesystem in memory: the smallest complete driver, and the model for authors.
//!
//! It keeps files the way a device would: what the VFS has not written back or logged is not here, so that inodes and
//! pages may be evicted and loaded again. It has no journal and needs none, since nothing outlives the process.
//!
//! # The change attribute where nothing is stored
//!
//! Every inode is loaded as [`InitialCounter::NotStored`]: the VFS gives it a value above all that the number may have shown
//! before. So the attribute differs and grows (C1, C2) within a mount, rests while the inode stays cached (C3), and promises
//! nothing across mounts. A driver does three things for that: it makes each change visible, calls [`Inode::changed`],
//! and logs the inode if the answer says so.

use ivers_vfs::sync::atomic::{AtomicU64, Ordering::Relaxed};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::*;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

const PAGE64: u64 = 4096;
const ROOT: Ino = Ino(1);
/// Cursors: 0 is the start, 1 stands behind `.`, 2 behind `..`, names come after.
const FIRST_COOKIE: u64 = 3;

/// The filesystem, with blocks of a page.
pub type Mem = MemWithBlocks<4096>;

/// The filesystem, with blocks of `BLOCK` bytes: a power of two up to 1 MiB.
pub struct MemWithBlocks<const BLOCK: usize> {
    nodes: RankedMutex<rank::Driver<0>, HashMap<Ino, Arc<Node<BLOCK>>>>,
    next_ino: AtomicU64,
    capacity_blocks: u64,
    /// Blocks that hold data or are promised to dirty pages.
    taken_blocks: AtomicU64,
}

/// What is kept of one inode.
struct Node<const BLOCK: usize> {
    state: RankedMutex<rank::Driver<0>, State<BLOCK>>,
}

struct State<const BLOCK: usize> {
    /// As last logged; the size is that of the data here.
    attr: Attr,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
    /// Blocks promised to dirty pages.
    promised: BTreeSet<u64>,
    names: HashMap<Vec<u8>, u64>,
    entries: BTreeMap<u64, Entry>,
    next_cookie: u64,
    parent: Ino,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone)]
struct Entry {
    name: Vec<u8>,
    ino: Ino,
    kind: FileType,
}

impl<const BLOCK: usize> State<BLOCK> {
    const BLOCK64: u64 = BLOCK as u64;

    fn insert(&mut self, name: &[u8], ino: Ino, kind: FileType) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), cookie);
        self.entries.insert(cookie, Entry { name: name.to_vec(), ino, kind });
    }

    fn remove(&mut self, name: &[u8]) -> Result<()> {
        let cookie = self.names.remove(name).ok_or(NameError::NotFound)?;
        self.entries.remove(&cookie);
        Ok(())
    }

    /// Let a name stand for something else in its old place.
    fn replace(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<()> {
        let cookie = self.names.get(name).ok_or(NameError::NotFound)?;
        let entry = self.entries.get_mut(cookie).ok_or(NameError::NotFound)?;
        (entry.ino, entry.kind) = (ino, kind);
        Ok(())
    }

    fn blocks_512(&self) -> u64 {
        self.blocks.len() as u64 * (Self::BLOCK64 / 512)
    }

    /// Zero what exists of a byte range.
    fn zero(&mut self, offset: u64, end: u64) {
        for (at, block) in self.blocks.range_mut(offset / Self::BLOCK64..end.div_ceil(Self::BLOCK64)) {
            let from = offset.saturating_sub(at * Self::BLOCK64) as usize;
            let to = (end - at * Self::BLOCK64).min(Self::BLOCK64) as usize;
            block[from..to].fill(0);
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
    /// Whole blocks, and whole pages where blocks are smaller.
    const UNIT: u64 = if Self::BLOCK64 > PAGE64 { Self::BLOCK64 } else { PAGE64 };

    fn node(inode: &Inode) -> &Node<BLOCK> {
        inode.private::<Arc<Node<BLOCK>>>()
    }

    /// An empty filesystem that holds up to `capacity_bytes` of file data.
    pub fn new(capacity_bytes: u64) -> Self {
        let mem = Self {
            nodes: RankedMutex::default(),
            next_ino: AtomicU64::new(ROOT.0),
            capacity_blocks: capacity_bytes / Self::BLOCK64,
            taken_blocks: AtomicU64::new(0),
        };
        let root = NewInode { perm: 0o755, ..NewInode::new(FileType::Directory, Timestamp::default()) };
        mem.make(ROOT, &root, 2);
        mem
    }

    fn get(&self, ino: Ino) -> Result<Arc<Node<BLOCK>>> {
        self.nodes.lock().get(&ino).cloned().ok_or(NameError::Stale.into())
    }

    fn make(&self, parent: Ino, new: &NewInode, nlink: u32) -> (Ino, Arc<Node<BLOCK>>) {
        let ino = Ino(self.next_ino.fetch_add(1, Relaxed));
        let mut attr = new.attr(nlink);
        if new.kind == FileType::Symlink {
            attr.size = new.target.len() as u64;
        }
        let state = State {
            attr,
            blocks: BTreeMap::new(),
            promised: BTreeSet::new(),
            names: HashMap::new(),
            entries: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
            parent,
            target: new.target.clone(),
            xattrs: new.xattrs.iter().cloned().collect(),
        };
        let node = Arc::new(Node { state: RankedMutex::new(state) });
        self.nodes.lock().insert(ino, node.clone());
        (ino, node)
    }

    fn loaded(ino: Ino, node: Arc<Node<BLOCK>>) -> LoadedInode {
        let attr = node.state.lock().attr.clone();
        LoadedInode {
            ino,
            // Numbers are never used again, so there is one life of each.
            generation: 1,
            attr,
            counter: InitialCounter::NotStored,
            private: Box::new(node) as Box<dyn Any + Send + Sync>,
        }
    }

    /// Take room for blocks, all or nothing.
    fn take(&self, blocks: u64) -> Result<()> {
        let room = |taken: u64| taken.checked_add(blocks).filter(|all| *all <= self.capacity_blocks);
        self.taken_blocks
            .fetch_update(Relaxed, Relaxed, room)
            .map(drop)
            .map_err(|_| NameError::NoSpace.into())
    }

    fn give_back(&self, blocks: u64) {
        self.taken_blocks.fetch_sub(blocks, Relaxed);
    }

    /// Drop the blocks `first..end` and their promises.
    fn free(&self, state: &mut State<BLOCK>, first: u64, end: u64) {
        let mut gone = state.blocks.split_off(&first);
        state.blocks.append(&mut gone.split_off(&end));
        let mut broken = state.promised.split_off(&first);
        state.promised.append(&mut broken.split_off(&end));
        self.give_back((gone.len() + broken.len()) as u64);
    }

    /// After a change is visible: the update path, and the log if it asks for that.
    fn changed(&self, inode: &Inode, touch: Touch, logged: Logged) -> Result<()> {
        if inode.changed(touch, logged).must_log() { self.log_inode(inode) } else { Ok(()) }
    }

    /// The number of names moved: that is always logged.
    fn relink(&self, inode: &Inode, by: i32) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = attr.nlink.saturating_add_signed(by));
        self.changed(inode, Touch::Metadata, Logged::Anyway)
    }

    /// The names in a directory moved, and `subdirectories` of them have come or gone.
    fn renamed_in(&self, dir: &Inode, subdirectories: i32) -> Result<()> {
        dir.with_attr(|attr| attr.nlink = attr.nlink.saturating_add_signed(subdirectories));
        let logged = if subdirectories != 0 { Logged::Anyway } else { Logged::IfNeeded };
        self.changed(dir, Touch::Data, logged)
    }

    /// What has lost its name: a directory has lost its `.` with it.
    fn orphan(&self, inode: &Inode) -> Result<()> {
        if inode.kind == FileType::Directory {
            inode.with_attr(|attr| attr.nlink = 0);
            self.changed(inode, Touch::Metadata, Logged::Anyway)
        } else {
            self.relink(inode, -1)
        }
    }

    fn check_empty(&self, inode: &Inode) -> Result<()> {
        if Self::node(inode).state.lock().entries.is_empty() {
            Ok(())
        } else {
            Err(NameError::NotEmpty.into())
        }
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
            projects: true,
            persistent_inos: false,
            names_alias: false,
            reserve_granularity: Self::BLOCK64,
            io_unit: Self::UNIT as u32,
            reserved: None,
        }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let free = self.capacity_blocks.saturating_sub(self.taken_blocks.load(Relaxed));
        let files = self.nodes.lock().len() as u64;
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
}

impl<const BLOCK: usize> InodeOps for MemWithBlocks<BLOCK> {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        Ok(Self::loaded(ino, self.get(ino)?))
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        let mut state = Self::node(inode).state.lock();
        // The size here follows the data (write_back, truncate), never the page cache.
        let size = state.attr.size;
        state.attr = Attr { size, ..inode.attr() };
        Ok(())
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.nodes.lock().remove(&inode.ino);
        self.free(&mut Self::node(inode).state.lock(), 0, u64::MAX);
        Ok(())
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        Ok(Self::node(inode).state.lock().target.clone())
    }
}

impl<const BLOCK: usize> DirectoryOps for MemWithBlocks<BLOCK> {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let state = Self::node(dir).state.lock();
        Ok(state
            .names
            .get(name)
            .and_then(|cookie| state.entries.get(cookie))
            .map(|entry| Child::Number(entry.ino)))
    }

    fn parent(&self, dir: &Inode) -> Result<Ino> {
        Ok(Self::node(dir).state.lock().parent)
    }

    fn readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let state = Self::node(dir).state.lock();
        let dots: [(&[u8], Ino); 2] = [(b".", dir.ino), (b"..", state.parent)];
        for (next, (name, ino)) in (1..).zip(dots) {
            let entry = DirEntry { ino, name, kind: Some(FileType::Directory), next };
            if cursor < next && emit(&entry).is_break() {
                return Ok(());
            }
        }
        for (cookie, entry) in state.entries.range(cursor.saturating_add(1)..) {
            let entry = DirEntry { ino: entry.ino, name: &entry.name, kind: Some(entry.kind), next: *cookie };
            if emit(&entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let is_dir = new.kind == FileType::Directory;
        let (ino, made) = self.make(dir.ino, new, if is_dir { 2 } else { 1 });
        Self::node(dir).state.lock().insert(name, ino, new.kind);
        self.renamed_in(dir, i32::from(is_dir))?;
        Ok(Self::loaded(ino, made))
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        Self::node(dir).state.lock().insert(name, inode.ino, inode.kind);
        self.relink(inode, 1)?;
        self.renamed_in(dir, 0)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let is_dir = inode.kind == FileType::Directory;
        if is_dir {
            self.check_empty(inode)?;
        }
        Self::node(dir).state.lock().remove(name)?;
        self.orphan(inode)?;
        self.renamed_in(dir, -i32::from(is_dir))
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
                // One lock at a time: the two directories may be one.
                Self::node(new_dir).state.lock().replace(new_name, inode.ino, inode.kind)?;
                let mut old = Self::node(old_dir).state.lock();
                if exchange { old.replace(old_name, target.ino, target.kind)? } else { old.remove(old_name)? }
            }
            None => {
                Self::node(old_dir).state.lock().remove(old_name)?;
                Self::node(new_dir).state.lock().insert(new_name, inode.ino, inode.kind);
            }
        }
        let mut moves = vec![(inode, new_dir)];
        if let (Some(target), true) = (target, exchange) {
            moves.push((target, old_dir));
        }
        let crosses = old_dir.ino != new_dir.ino;
        let (mut old_change, mut new_change) = (0, -i32::from(replaced_dir));
        for (moved, to) in moves {
            if is_dir(moved) && crosses {
                Self::node(moved).state.lock().parent = to.ino;
                let sign = if to.ino == new_dir.ino { 1 } else { -1 };
                (old_change, new_change) = (old_change - sign, new_change + sign);
            }
            self.changed(moved, Touch::Metadata, Logged::IfNeeded)?;
        }
        if let (Some(target), false) = (target, exchange) {
            self.orphan(target)?;
        }
        if crosses {
            self.renamed_in(old_dir, old_change)?;
        }
        self.renamed_in(new_dir, new_change)
    }
}

impl<const BLOCK: usize> FileOps for MemWithBlocks<BLOCK> {
    fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        debug_assert!(offset.is_multiple_of(Self::UNIT) && (buf.len() as u64).is_multiple_of(Self::UNIT));
        let state = Self::node(inode).state.lock();
        for (at, piece) in (offset / Self::BLOCK64..).zip(buf.chunks_mut(BLOCK)) {
            match state.blocks.get(&at) {
                Some(block) => piece.copy_from_slice(&block[..piece.len()]),
                None => piece.fill(0),
            }
        }
        Ok(())
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        let mut state = Self::node(inode).state.lock();
        // Write-back writes whole pages, up to the end of the file.
        let end = offset.saturating_add(len);
        let end = inode.size().max(end).min(end.next_multiple_of(PAGE64));
        let first = offset / PAGE64 * PAGE64 / Self::BLOCK64;
        let missing: Vec<u64> = (first..end.div_ceil(Self::BLOCK64))
            .filter(|at| !state.blocks.contains_key(at) && !state.promised.contains(at))
            .collect();
        self.take(missing.len() as u64)?;
        state.promised.extend(missing);
        Ok(())
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let mut state = Self::node(inode).state.lock();
        let mut broken = state.promised.split_off(&(offset / Self::BLOCK64));
        state.promised.append(&mut broken.split_off(&offset.saturating_add(len).div_ceil(Self::BLOCK64)));
        self.give_back(broken.len() as u64);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let reached = offset + data.len() as u64;
        debug_assert!(offset.is_multiple_of(Self::UNIT));
        let mut state = Self::node(inode).state.lock();
        for (at, piece) in (offset / Self::BLOCK64..).zip(data.chunks(BLOCK)) {
            if !state.blocks.contains_key(&at) && !state.promised.remove(&at) {
                self.take(1)?;
            }
            let block = state.blocks.entry(at).or_insert_with(|| Box::new([0; BLOCK]));
            block[..piece.len()].copy_from_slice(piece);
            block[piece.len()..].fill(0);
        }
        let blocks_512 = state.blocks_512();
        let size = inode.with_attr(|attr| {
            attr.blocks_512 = blocks_512;
            attr.size.min(reached)
        });
        if size > state.attr.size || state.attr.blocks_512 != blocks_512 {
            state.attr.size = size.max(state.attr.size);
            state.attr.blocks_512 = blocks_512;
            inode.logged_in_background();
        }
        Ok(())
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        let state = Self::node(inode).state.lock();
        inode.with_attr(|attr| attr.blocks_512) + state.promised.len() as u64 * (Self::BLOCK64 / 512)
    }

    fn truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        {
            let mut state = Self::node(inode).state.lock();
            self.free(&mut state, size.div_ceil(Self::BLOCK64), u64::MAX);
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

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        Self::node(inode).state.lock().xattrs.get(name).cloned().ok_or(NameError::NoAttribute.into())
    }

    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        Ok(Self::node(inode).state.lock().xattrs.keys().cloned().collect())
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
            let mut state = Self::node(inode).state.lock();
            let there = state.xattrs.contains_key(name);
            match (value, mode) {
                (Some(_), XattrMode::Create) if there => return Err(NameError::Exists.into()),
                (Some(_), XattrMode::Replace) | (None, _) if !there => {
                    return Err(NameError::NoAttribute.into());
                }
                (Some(value), _) => state.xattrs.insert(name.to_vec(), value.to_vec()),
                (None, _) => state.xattrs.remove(name),
            };
        }
        self.changed(inode, Touch::Metadata, Logged::Anyway)
    }
}

impl<const BLOCK: usize> UnnamedFileOps for MemWithBlocks<BLOCK> {
    fn create_unnamed(&self, _caller: &Cred, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        let (ino, made) = self.make(dir.ino, new, 0);
        Ok(Self::loaded(ino, made))
    }
}

impl<const BLOCK: usize> BlockMapOps for MemWithBlocks<BLOCK> {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let state = Self::node(inode).state.lock();
        let at = offset / Self::BLOCK64;
        let start = at * Self::BLOCK64;
        if state.blocks.contains_key(&at) {
            let run =
                (at..).zip(state.blocks.range(at..)).take_while(|(want, (have, _))| want == *have).count();
            return Ok(MappedRange { start, len: run as u64 * Self::BLOCK64, kind: RangeKind::Data });
        }
        let end = state.blocks.range(at..).next().map_or(u64::MAX, |(next, _)| next * Self::BLOCK64);
        Ok(MappedRange { start, len: end - start, kind: RangeKind::Hole })
    }
}

impl<const BLOCK: usize> AllocateOps for MemWithBlocks<BLOCK> {
    fn fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        let (first, behind) = (offset / Self::BLOCK64, end.div_ceil(Self::BLOCK64));
        let mut size = inode.size();
        {
            let mut state = Self::node(inode).state.lock();
            let shift = (end - offset) / Self::BLOCK64;
            if mode.contains(FallocateMode::COLLAPSE_RANGE) {
                self.free(&mut state, first, behind);
                let moved = state.blocks.split_off(&behind);
                state.blocks.extend(moved.into_iter().map(|(at, block)| (at - shift, block)));
                size -= len;
            } else if mode.contains(FallocateMode::INSERT_RANGE) {
                let moved = state.blocks.split_off(&first);
                state.blocks.extend(moved.into_iter().map(|(at, block)| (at + shift, block)));
                size += len;
            } else if mode.contains(FallocateMode::PUNCH_HOLE) {
                self.free(&mut state, offset.div_ceil(Self::BLOCK64), end / Self::BLOCK64);
                state.zero(offset, end);
            } else {
                // Before they are counted one by one.
                if behind - first > self.capacity_blocks {
                    return Err(NameError::NoSpace.into());
                }
                let missing: Vec<u64> = (first..behind)
                    .filter(|at| !state.blocks.contains_key(at) && !state.promised.contains(at))
                    .collect();
                self.take(missing.len() as u64)?;
                state.blocks.extend(missing.into_iter().map(|at| (at, Box::new([0; BLOCK]))));
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
