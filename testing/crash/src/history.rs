//! The history of a workload: each operation and the tree after it.

use crate::observed_fs::ObservedFs;
use crate::ops::{Op, Workload};
use crate::remembered::Remembered;
use ivers_block::{ByteOffset, Device, FaultDevice};
use ivers_vfs::{
    ChangeMode, CreateSpec, Cred, DirEntry, Error, FallocateMode, FileType, Ino, InodeRef, ManualClock,
    MountOptions, NameError, RenameFlags, SetAttr, TimeSet, Timestamp, Vfs, WriteFlags, XattrMode,
};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// The number of workers for which the prepared image has directories.
pub const MAX_WORKERS: usize = 4;
/// The number of directories, each with a block of attributes, that are created and removed again.
const WORN_DIRECTORIES: usize = 60;

/// The name of the snapshot of [`Op::Snapshot`].
const SNAPSHOT: &str = "ivers-snapshot";

/// Inode number and generation.
pub type Identity = (u64, u32);

/// The state of one inode at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The identity of the inode.
    pub id: Identity,
    /// The attributes that a journal keeps in order with the names.
    pub meta: Meta,
    /// mtime and ctime.
    pub times: (Timestamp, Timestamp),
    /// Access time. In these tests only a caller changes it.
    pub atime: Timestamp,
    /// The contents of a regular file.
    pub data: Arc<[u8]>,
}

/// Attributes except times and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Link count.
    pub nlink: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The state of a tree: paths below a worker's directory.
pub type Tree = BTreeMap<String, Node>;

/// One step of a worker.
#[derive(Debug, Clone)]
pub struct Step {
    /// The operation; `None` for the state before the first operation and for the unmount.
    pub op: Option<Op>,
    /// Length of the record before the call.
    pub begin: usize,
    /// Length of the record after the call.
    pub end: usize,
    /// Whether the call succeeded.
    pub ok: bool,
    /// The inode that the call was about, if it existed.
    pub about: Option<Identity>,
    /// Whether a rename replaced a file.
    pub replaced: bool,
    /// The tree after the call.
    pub tree: Arc<Tree>,
}

/// A change attribute that an observer got.
#[derive(Debug, Clone)]
pub struct Handed {
    /// Length of the record when the query returned.
    pub at: usize,
    /// Index into the worker's steps.
    pub step: usize,
    /// The inode.
    pub id: Identity,
    /// The value.
    pub value: u64,
    /// The state of the inode that the value stands for.
    pub node: Node,
}

/// The history of one worker. Step 0 is the durable state at its start.
#[derive(Debug, Clone, Default)]
pub struct Worker {
    /// The worker's number.
    pub index: usize,
    /// The worker's steps.
    pub steps: Vec<Step>,
    /// The values that the worker got.
    pub handed: Vec<Handed>,
    /// A promise that was broken without a crash.
    pub broken: Option<String>,
}

/// Returns the directory of a worker.
pub fn directory(worker: usize) -> String {
    format!("w{worker}")
}

/// Returns the mount options for a workload, or for reading the result. There is no background thread, so
/// that a workload of one worker writes the same every time.
pub fn mount_options(workload: Option<&Workload>) -> (MountOptions, Arc<ManualClock>) {
    let small_cache = workload.is_some_and(|workload| workload.small_cache);
    let clock = Arc::new(ManualClock::default());
    clock.set(at_step(0));
    let options = MountOptions {
        mode: ChangeMode::Lazy,
        lazyversion: Some(workload.is_some_and(Workload::is_lazyversion)),
        atime: ivers_vfs::AtimeMode::Never,
        background: false,
        dirty_bytes: if small_cache { 64 << 10 } else { 0 },
        // The caches of the driver alone exceed the small one: every idle inode is evicted.
        cache_bytes: if small_cache { 64 << 10 } else { 32 << 20 },
        clock: Some(Box::new(clock.clone())),
        ..MountOptions::default()
    };
    (options, clock)
}

/// Returns the clock's tick at a step. Every third step begins a new tick, so that some changes share a tick
/// and others do not.
fn at_step(nth: usize) -> Timestamp {
    Timestamp { sec: 1_600_000_000 + nth as i64 / 3, nsec: 4_000_000 }
}

/// Leaves remains in the log, in free blocks and in free inodes, as in a filesystem that has been used: a
/// torn state shows them instead of zeros. No data of a workload has these bytes.
fn wear(vfs: &Arc<Vfs>, root: &InodeRef) -> ivers_vfs::Result<()> {
    let cred = Cred::root();
    let names: Vec<String> = (0..WORN_DIRECTORIES).map(|nth| format!("worn{nth}")).collect();
    for _ in 0..2 {
        for name in &names {
            let (dir, _) = vfs.create(&cred, root, name.as_bytes(), &CreateSpec::directory(0o700), false)?;
            match vfs.set_xattr(&cred, &dir, b"user.worn", &[0xA6; 900], XattrMode::Any) {
                // Some formats store no attributes.
                Err(Error::Name(_)) => {}
                set => set?,
            }
        }
        vfs.sync()?;
        for name in &names {
            vfs.rmdir(&cred, root, name.as_bytes(), false)?;
        }
        vfs.sync()?;
    }
    Ok(())
}

/// The files that every workload finds in its directory, with their contents.
const PREPARED: [(&str, &[u8]); 2] = [("a", &[b'A'; 9000]), ("d/a", &[b'S'; 700])];

/// Creates the directories and files that every workload starts with, unless the image already has them.
pub fn prepare(vfs: &Arc<Vfs>, workers: usize) -> ivers_vfs::Result<()> {
    let cred = Cred::root();
    let root = vfs.root()?;
    wear(vfs, &root)?;
    let found_or_made =
        |dir: &InodeRef, name: &str, spec: CreateSpec| match vfs.lookup(&cred, dir, name.as_bytes()) {
            Err(Error::Name(NameError::NotFound)) => {
                Ok(vfs.create(&cred, dir, name.as_bytes(), &spec, false)?.0)
            }
            found => found,
        };
    for worker in 0..workers {
        let top = found_or_made(&root, &directory(worker), CreateSpec::directory(0o755))?;
        let sub = found_or_made(&top, "d", CreateSpec::directory(0o755))?;
        for (path, content) in PREPARED {
            let (dir, name) = path.strip_prefix("d/").map_or((&top, path), |name| (&sub, name));
            let file = found_or_made(dir, name, CreateSpec::file(0o644))?;
            if vfs.stat(&file).size == 0 {
                vfs.write(&cred, &file, 0, content, WriteFlags::empty())?;
            }
        }
    }
    vfs.sync()
}

/// Creates them in a host directory, for tools that make an image from one.
pub fn prepare_on_host(dir: &Path) -> std::io::Result<()> {
    for worker in 0..MAX_WORKERS {
        let top = dir.join(directory(worker));
        std::fs::create_dir_all(top.join("d"))?;
        for (path, content) in PREPARED {
            std::fs::write(top.join(path), content)?;
        }
    }
    Ok(())
}

/// Runs a workload and returns each worker's history. `vfs` is mounted on `observed`, which wraps the driver
/// on `device`.
pub fn run(
    workload: &Workload,
    vfs: &Arc<Vfs>,
    observed: &Arc<ObservedFs>,
    device: &Arc<FaultDevice>,
    clock: &ManualClock,
) -> anyhow::Result<Vec<Worker>> {
    // The statistics count the whole mount, and a reloaded inode counts as queried.
    let counts_updates = workload.workers.len() == 1 && !workload.small_cache;
    std::thread::scope(|scope| {
        let threads: Vec<_> = workload
            .workers
            .iter()
            .enumerate()
            .map(|(worker, ops)| {
                let lazyversion = workload.is_lazyversion();
                let remembers = workload.small_cache;
                let scene = Scene { vfs, observed, device, clock, counts_updates, lazyversion, remembers };
                scope.spawn(move || work(worker, ops, &scene))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
            .collect()
    })
}

/// The environment of a worker.
struct Scene<'a> {
    vfs: &'a Arc<Vfs>,
    observed: &'a Arc<ObservedFs>,
    device: &'a Arc<FaultDevice>,
    clock: &'a ManualClock,
    counts_updates: bool,
    lazyversion: bool,
    /// Whether workers remember inodes by number.
    remembers: bool,
}

impl Scene<'_> {
    /// Returns the number of updates made only because of a counter.
    fn counter_updates(&self) -> u64 {
        let stats = self.vfs.stats();
        if self.lazyversion { stats.bumps_deferred } else { stats.inode_updates_version }
    }
}

fn work(worker: usize, ops: &[Op], scene: &Scene<'_>) -> anyhow::Result<Worker> {
    let Scene { vfs, observed, device, .. } = *scene;
    let mut history = Worker { index: worker, ..Worker::default() };
    let tree = Arc::new(read_tree(vfs, worker)?);
    history.steps.push(Step { op: None, begin: 0, end: 0, ok: true, about: None, replaced: false, tree });
    let mut held = Vec::new();
    let mut remembered = Remembered::new(vfs);
    // Files that were written since their last query.
    let mut unseen: HashSet<Identity> = HashSet::new();
    for (nth, op) in ops.iter().enumerate() {
        scene.clock.set(at_step(nth));
        let caller = Caller { worker, vfs, observed, held: &mut held };
        let before = history.steps.last().map(|step| step.tree.clone()).unwrap_or_default();
        let updates_before = scene.counter_updates();
        let begin = device.len();
        let result = caller.perform(op, nth);
        let end = device.len();
        let (ok, about, value) = match result {
            Ok((about, value)) => (true, about, value),
            Err(Error::Name(_)) => (false, None, None),
            Err(error) => anyhow::bail!("{op}: {error}"),
        };
        if let Some(id) = about {
            if value.is_some() || observed.hooks().observes(id) {
                unseen.remove(&id);
            } else if matches!(op, Op::Write(..) | Op::Append(..))
                && !unseen.insert(id)
                && scene.counts_updates
                && scene.counter_updates() > updates_before
            {
                let text = format!(
                    "{op} (step {}) logged inode {} or bumped its counter, although nothing had queried it",
                    nth + 1,
                    id.0
                );
                history.broken.get_or_insert(text);
            }
        }
        let tree = Arc::new(read_tree(vfs, worker)?);
        let (was, is) = (about.and_then(|id| node_of(&before, id)), about.and_then(|id| node_of(&tree, id)));
        if let (Some(id), Some(was)) = (about, was) {
            check_during_call(&mut history, scene, id, was, is, op)?;
        }
        if scene.remembers {
            if let Some(id) = about.filter(|_| is.is_some()) {
                remembered.remember(id)?;
            }
            if let Some(text) = remembered.check().or_else(|| remembered.note(op, about, value, is)) {
                history.broken.get_or_insert(format!("{op} (step {}): {text}", nth + 1));
            }
        }
        if let (Some(id), Some(value), Some(node)) = (about, value, is) {
            let step = history.steps.len();
            // A reused inode number is a new file: its value must be above all values of the old one.
            if let Some(old) =
                history.handed.iter().find(|old| old.id.0 == id.0 && old.id.1 != id.1 && old.value >= value)
            {
                let text = format!(
                    "inode {} was reused and has value {value}, not above {} of the old file",
                    id.0, old.value
                );
                history.broken.get_or_insert(text);
            }
            history.handed.push(Handed { at: end, step, id, value, node: node.clone() });
        }
        // If both names refer to one inode, a rename does nothing.
        let replaced = matches!(op, Op::Rename(_, to)
            if ok && before.get(*to).is_some_and(|target| Some(target.id) != about));
        history.steps.push(Step { op: Some(*op), begin, end, ok, about, replaced, tree });
    }
    Ok(history)
}

fn node_of(tree: &Tree, id: Identity) -> Option<&Node> {
    tree.values().find(|node| node.id == id)
}

/// Checks C1 for queries during the call: the value that they got stands for the state before the call.
fn check_during_call(
    history: &mut Worker,
    scene: &Scene<'_>,
    id: Identity,
    was: &Node,
    is: Option<&Node>,
    op: &Op,
) -> anyhow::Result<()> {
    let observations = scene.observed.hooks().take_observations(id);
    let step = history.steps.len();
    for seen in &observations {
        history.handed.push(Handed { at: seen.at, step, id, value: seen.value, node: was.clone() });
    }
    if let (Some(seen), Some(is)) = (observations.last(), is)
        && is != was
    {
        let inode = scene.vfs.get_generation(Ino(id.0), id.1)?;
        if scene.vfs.change(&inode) == Some(seen.value) {
            let text = format!(
                "{op} (step {step}): a query of inode {} during the call returned {}, as does a query \
                    afterwards, although it changed",
                id.0, seen.value
            );
            history.broken.get_or_insert(text);
        }
    }
    Ok(())
}

/// Returns the attributes of a file that is created with all attributes set, to values that differ from every
/// default.
pub fn whole() -> CreateSpec {
    let at = |sec| Some(TimeSet::At(Timestamp { sec, nsec: 0 }));
    CreateSpec {
        uid: Some(70),
        gid: Some(71),
        atime: at(1_111),
        mtime: at(2_222),
        size: 5000,
        ..CreateSpec::file(0o4751)
    }
}

struct Caller<'a> {
    worker: usize,
    vfs: &'a Arc<Vfs>,
    observed: &'a ObservedFs,
    held: &'a mut Vec<InodeRef>,
}

impl Caller<'_> {
    fn find(&self, name: &str) -> ivers_vfs::Result<InodeRef> {
        self.vfs.resolve(&Cred::root(), format!("/{}/{name}", directory(self.worker)), false)
    }

    fn parent<'n>(&self, name: &'n str) -> ivers_vfs::Result<(InodeRef, &'n [u8])> {
        let (dir, last) = name.rsplit_once('/').unwrap_or(("", name));
        Ok((self.find(dir)?, last.as_bytes()))
    }

    /// Performs one operation. Returns the inode that it was about, and the value if it was a query.
    fn perform(self, op: &Op, nth: usize) -> ivers_vfs::Result<(Option<Identity>, Option<u64>)> {
        let cred = Cred::root();
        let vfs = self.vfs;
        // Bytes that differ from those of every other write.
        let bytes =
            |len: usize| -> Vec<u8> { (0..len).map(|at| (nth * 37 + at / 64 + 1) as u8 | 1).collect() };
        let inode = match *op {
            Op::Create(name) => {
                let (dir, name) = self.parent(name)?;
                vfs.create(&cred, &dir, name, &CreateSpec::file(0o644), false)?.0
            }
            Op::Born(name) => {
                let (dir, name) = self.parent(name)?;
                vfs.create(&cred, &dir, name, &whole(), false)?.0
            }
            Op::Write(name, at, len) => {
                let file = self.find(name)?;
                let aligned = at.is_multiple_of(4096);
                let flags = if aligned { WriteFlags::CACHED_BY_CALLER } else { WriteFlags::empty() };
                vfs.write(&cred, &file, at, &bytes(len), flags)?;
                file
            }
            Op::Append(name, len) => {
                let file = self.find(name)?;
                vfs.write(&cred, &file, 0, &bytes(len), WriteFlags::APPEND)?;
                file
            }
            Op::Truncate(name, size) => {
                let file = self.find(name)?;
                if file.kind != FileType::Regular {
                    return Err(NameError::IsDirectory.into());
                }
                vfs.set_attr(&cred, &file, &SetAttr { size: Some(size), ..SetAttr::default() })?;
                file
            }
            Op::Punch(name, at, len) => {
                let file = self.find(name)?;
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                vfs.fallocate(&cred, &file, mode, at, len)?;
                file
            }
            Op::Copy((from, at), (to, to_at), len) => {
                let (from, to) = (self.find(from)?, self.find(to)?);
                vfs.copy_range(&cred, &from, at, &to, to_at, len)?;
                to
            }
            Op::Rename(from, to) => self.rename(from, to, RenameFlags::empty())?,
            Op::Exchange(from, to) => self.rename(from, to, RenameFlags::EXCHANGE)?,
            Op::Link(from, to) => {
                let file = self.find(from)?;
                let (dir, name) = self.parent(to)?;
                vfs.link(&cred, &file, &dir, name, false)?;
                file
            }
            Op::Unlink(name) => {
                let (dir, name) = self.parent(name)?;
                vfs.unlink(&cred, &dir, name, false)?;
                return Ok((None, None));
            }
            Op::Mkdir(name) => {
                let (dir, name) = self.parent(name)?;
                vfs.create(&cred, &dir, name, &CreateSpec::directory(0o755), false)?.0
            }
            Op::Rmdir(name) => {
                let (dir, name) = self.parent(name)?;
                vfs.rmdir(&cred, &dir, name, false)?;
                return Ok((None, None));
            }
            Op::SetXattr(name, len) => {
                let file = self.find(name)?;
                vfs.set_xattr(&cred, &file, b"user.x", &bytes(len), XattrMode::Any)?;
                file
            }
            Op::RemoveXattr(name) => {
                let file = self.find(name)?;
                vfs.remove_xattr(&cred, &file, b"user.x")?;
                file
            }
            Op::Chmod(name, perm) => {
                let file = self.find(name)?;
                vfs.set_attr(&cred, &file, &SetAttr { perm: Some(perm), ..SetAttr::default() })?;
                file
            }
            Op::Fsync(name) => {
                let file = self.find(name)?;
                vfs.fsync(&file, false)?;
                file
            }
            Op::Fdatasync(name) => {
                let file = self.find(name)?;
                vfs.fsync(&file, true)?;
                file
            }
            Op::Sync => {
                vfs.sync()?;
                return Ok((None, None));
            }
            Op::Snapshot => {
                let root = vfs.root()?;
                match vfs.delete_subvolume(&cred, &root, SNAPSHOT.as_bytes()) {
                    Err(Error::Name(NameError::NotFound)) => {}
                    deleted => deleted?,
                }
                vfs.snapshot_subvolume(&cred, &root, &root, SNAPSHOT.as_bytes(), false)?;
                return Ok((None, None));
            }
            Op::Open(name) => {
                let file = self.find(name)?;
                self.held.push(file.clone());
                file
            }
            Op::Observe(name) => {
                let file = self.find(name)?;
                self.observed.hooks().observe(&file);
                file
            }
            Op::Query(name) => {
                let file = self.find(name)?;
                let value = vfs.change(&file);
                return Ok((Some((file.ino.0, file.generation)), value));
            }
        };
        Ok((Some((inode.ino.0, inode.generation)), None))
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> ivers_vfs::Result<InodeRef> {
        let moved = self.find(from)?;
        let (old_dir, old_name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        self.vfs.rename(&Cred::root(), &old_dir, old_name, &new_dir, new_name, flags, false)?;
        Ok(moved)
    }
}

/// Reads the current tree of a worker without querying a change attribute.
pub fn read_tree(vfs: &Arc<Vfs>, worker: usize) -> ivers_vfs::Result<Tree> {
    read_below(vfs, &format!("/{}", directory(worker)))
}

/// As [`read_tree`], in the snapshot. `None`: there is no snapshot.
pub fn read_snapshot(vfs: &Arc<Vfs>, worker: usize) -> ivers_vfs::Result<Option<Tree>> {
    match vfs.resolve(&Cred::root(), format!("/{SNAPSHOT}"), false) {
        Err(Error::Name(NameError::NotFound)) => Ok(None),
        found => {
            found?;
            read_below(vfs, &format!("/{SNAPSHOT}/{}", directory(worker))).map(Some)
        }
    }
}

fn read_below(vfs: &Arc<Vfs>, path: &str) -> ivers_vfs::Result<Tree> {
    let top = vfs.resolve(&Cred::root(), path, false)?;
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), top)];
    while let Some((path, inode)) = todo.pop() {
        if inode.kind == FileType::Directory {
            let mut names = Vec::new();
            vfs.readdir(&Cred::root(), &inode, 0, &mut |entry: &DirEntry<'_>| {
                if entry.name != b"." && entry.name != b".." {
                    names.push(entry.name.to_vec());
                }
                ControlFlow::Continue(())
            })?;
            for name in names {
                let child = vfs.lookup(&Cred::root(), &inode, &name)?;
                let name = String::from_utf8_lossy(&name).into_owned();
                todo.push((if path.is_empty() { name } else { format!("{path}/{name}") }, child));
            }
        }
        tree.insert(path, read_node(vfs, &inode)?);
    }
    Ok(tree)
}

/// Reads the current state of one inode.
pub fn read_node(vfs: &Arc<Vfs>, inode: &InodeRef) -> ivers_vfs::Result<Node> {
    let cred = Cred::root();
    let attr = vfs.stat(inode);
    let mut data = Vec::new();
    if attr.kind == FileType::Regular {
        data = vec![0; attr.size as usize];
        let got = vfs.read(&Cred::root(), inode, 0, &mut data)?;
        data.truncate(got);
    }
    let mut xattrs = BTreeMap::new();
    let kept = vfs.xattr_value_max() > 0;
    for name in if kept { vfs.list_xattr(&cred, inode)? } else { Vec::new() } {
        let value = vfs.get_xattr(&cred, inode, &name)?;
        xattrs.insert(name, value);
    }
    Ok(Node {
        id: (inode.ino.0, inode.generation),
        meta: Meta { mode: attr.mode(), owner: (attr.uid, attr.gid), nlink: attr.nlink, xattrs },
        times: (attr.mtime, attr.ctime),
        atime: attr.atime,
        data: data.into(),
    })
}

/// Reads all bytes of a device, for tools that need a file.
pub fn bytes_of(device: &dyn Device) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(device.size_bytes())?];
    device.read_at(ByteOffset(0), &mut bytes)?;
    Ok(bytes)
}
