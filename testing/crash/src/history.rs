//! What a workload did, and what the filesystem showed after each of its steps.

use crate::ops::{Op, Workload};
use crate::watched::Watched;
use ivers_block::{Device, FaultDevice};
use ivers_vfs::{
    ChangeMode, CreateSpec, Cred, DirEntry, Error, FallocateMode, FileType, Ino, InodeRef, ManualClock,
    MountOptions, NameError, RenameFlags, SetAttr, TimeSet, Timestamp, Vfs, WriteFlags, XattrMode,
};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Workers that the prepared image has directories for.
pub const MAX_WORKERS: usize = 4;
/// Directories that were there once, with a block of attributes each.
const WORN_DIRECTORIES: usize = 60;

/// Which inode, and which life of it.
pub type Identity = (u64, u32);

/// One inode as it showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Which.
    pub id: Identity,
    /// What a journal keeps in order with the names.
    pub meta: Meta,
    /// mtime and ctime.
    pub times: (Timestamp, Timestamp),
    /// Access time. Nothing but a caller moves it here.
    pub atime: Timestamp,
    /// Contents of a regular file.
    pub data: Arc<[u8]>,
}

/// Attributes but times and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Names.
    pub nlink: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree as it showed: paths below a worker's directory.
pub type Tree = BTreeMap<String, Node>;

/// One step of a worker.
#[derive(Debug, Clone)]
pub struct Step {
    /// What was asked; `None` for the state before the first step and for the unmount.
    pub op: Option<Op>,
    /// Length of the record before the call.
    pub begun: usize,
    /// Length of the record after it.
    pub done: usize,
    /// Whether it succeeded.
    pub ok: bool,
    /// The inode it was about, if it was one that was there.
    pub about: Option<Identity>,
    /// A rename that replaced something.
    pub replaced: bool,
    /// The tree afterwards.
    pub tree: Arc<Tree>,
}

/// A change value that was handed out.
#[derive(Debug, Clone)]
pub struct Handed {
    /// Length of the record when the answer came.
    pub at: usize,
    /// The step, an index into the worker's steps.
    pub step: usize,
    /// Of which inode.
    pub id: Identity,
    /// The value.
    pub value: u64,
    /// What it vouches for.
    pub node: Node,
}

/// The history of one worker. Step 0 is the durable state that it began with.
#[derive(Debug, Clone, Default)]
pub struct Worker {
    /// Which worker.
    pub index: usize,
    /// What it did.
    pub steps: Vec<Step>,
    /// The values it was given.
    pub handed: Vec<Handed>,
    /// A promise that was broken without any crash.
    pub broken: Option<String>,
}

/// The directory of a worker.
pub fn directory(worker: usize) -> String {
    format!("w{worker}")
}

/// How the explorer mounts, for a workload or to look at what it left: no thread of its own, so that a workload with one worker writes the same every time.
pub fn mount_options(workload: Option<&Workload>) -> (MountOptions, Arc<ManualClock>) {
    let small_cache = workload.is_some_and(|workload| workload.small_cache);
    let clock = Arc::new(ManualClock::default());
    clock.set(at_step(0));
    let options = MountOptions {
        mode: ChangeMode::Lazy,
        lazyversion: workload.is_some_and(Workload::is_lazyversion),
        atime: ivers_vfs::AtimeMode::Never,
        background: false,
        dirty_bytes: if small_cache { 64 << 10 } else { 0 },
        cache_bytes: if small_cache { 1 << 20 } else { 32 << 20 },
        clock: Some(Box::new(clock.clone())),
        ..MountOptions::default()
    };
    (options, clock)
}

/// The clock's tick at a step: every third step begins a new one, so that changes fall into one tick and into several.
fn at_step(nth: usize) -> Timestamp {
    Timestamp { sec: 1_600_000_000 + nth as i64 / 3, nsec: 4_000_000 }
}

/// Leave remains in the log, in free blocks and in free inodes, as on a filesystem that has been in use: what is torn shows
/// them instead of zeros. Nothing that stays has these bytes.
fn wear(vfs: &Arc<Vfs>, root: &InodeRef) -> ivers_vfs::Result<()> {
    let cred = Cred::root();
    let names: Vec<String> = (0..WORN_DIRECTORIES).map(|nth| format!("worn{nth}")).collect();
    for _ in 0..2 {
        for name in &names {
            let (dir, _) = vfs.create(&cred, root, name.as_bytes(), &CreateSpec::directory(0o700), false)?;
            match vfs.set_xattr(&cred, &dir, b"user.worn", &[0xA6; 900], XattrMode::Any) {
                // Not every format keeps attributes.
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

/// The contents of the files that every workload finds in its directory.
const PREPARED: [(&str, &[u8]); 2] = [("a", &[b'A'; 9000]), ("d/a", &[b'S'; 700])];

/// Make the directories and files that every workload starts with, as far as the image came without them.
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

/// The same on the system, for tools that make an image of a directory.
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

/// Run a workload; returns each worker's history. `vfs` lies over `watched`, and that over `device`.
pub fn run(
    workload: &Workload,
    vfs: &Arc<Vfs>,
    watched: &Arc<Watched>,
    device: &Arc<FaultDevice>,
    clock: &ManualClock,
) -> anyhow::Result<Vec<Worker>> {
    // The counters are the whole mount's, and an inode that was evicted counts as looked at when it comes back.
    let counts_updates = workload.workers.len() == 1 && !workload.small_cache;
    std::thread::scope(|scope| {
        let threads: Vec<_> = workload
            .workers
            .iter()
            .enumerate()
            .map(|(worker, ops)| {
                let lazyversion = workload.is_lazyversion();
                let scene = Scene { vfs, watched, device, clock, counts_updates, lazyversion };
                scope.spawn(move || work(worker, ops, &scene))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
            .collect()
    })
}

/// What a worker works on.
struct Scene<'a> {
    vfs: &'a Arc<Vfs>,
    watched: &'a Arc<Watched>,
    device: &'a Arc<FaultDevice>,
    clock: &'a ManualClock,
    counts_updates: bool,
    lazyversion: bool,
}

impl Scene<'_> {
    /// What was done for the counters' sake alone.
    fn for_the_counters(&self) -> u64 {
        let stats = self.vfs.stats();
        if self.lazyversion { stats.bumps_put_off } else { stats.inode_updates_version }
    }
}

fn work(worker: usize, ops: &[Op], scene: &Scene<'_>) -> anyhow::Result<Worker> {
    let Scene { vfs, watched, device, .. } = *scene;
    let mut history = Worker { index: worker, ..Worker::default() };
    let tree = Arc::new(read_tree(vfs, worker)?);
    history.steps.push(Step { op: None, begun: 0, done: 0, ok: true, about: None, replaced: false, tree });
    let mut held = Vec::new();
    // Files that were written since somebody looked at them.
    let mut unseen: HashSet<Identity> = HashSet::new();
    for (nth, op) in ops.iter().enumerate() {
        scene.clock.set(at_step(nth));
        let caller = Caller { worker, vfs, watched, held: &mut held };
        let before = history.steps.last().map(|step| step.tree.clone()).unwrap_or_default();
        let before_it = scene.for_the_counters();
        let begun = device.len();
        let result = caller.perform(op, nth);
        let done = device.len();
        let (ok, about, value) = match result {
            Ok((about, value)) => (true, about, value),
            Err(Error::Name(_)) => (false, None, None),
            Err(error) => anyhow::bail!("{op}: {error}"),
        };
        if let Some(id) = about {
            if value.is_some() || watched.watches(id) {
                unseen.remove(&id);
            } else if matches!(op, Op::Write(..) | Op::Append(..))
                && !unseen.insert(id)
                && scene.counts_updates
                && scene.for_the_counters() > before_it
            {
                let text = format!(
                    "{op} (step {}) logged inode {}, or raised its number, for the counter's sake, and nobody had looked at it",
                    nth + 1,
                    id.0
                );
                history.broken.get_or_insert(text);
            }
        }
        let tree = Arc::new(read_tree(vfs, worker)?);
        let (was, is) = (about.and_then(|id| node_of(&before, id)), about.and_then(|id| node_of(&tree, id)));
        if let (Some(id), Some(was)) = (about, was) {
            looked_within(&mut history, scene, id, was, is, op)?;
        }
        if let (Some(id), Some(value), Some(node)) = (about, value, is) {
            let step = history.steps.len();
            // A number that is used again names a new file, which starts above all that the old one showed.
            if let Some(old) =
                history.handed.iter().find(|old| old.id.0 == id.0 && old.id.1 != id.1 && old.value >= value)
            {
                let text =
                    format!("inode {} shows {value} in a new life, and showed {} before", id.0, old.value);
                history.broken.get_or_insert(text);
            }
            history.handed.push(Handed { at: done, step, id, value, node: node.clone() });
        }
        // Two names of one inode: then a rename does nothing.
        let replaced = matches!(op, Op::Rename(_, to)
            if ok && before.get(*to).is_some_and(|target| Some(target.id) != about));
        history.steps.push(Step { op: Some(*op), begun, done, ok, about, replaced, tree });
    }
    Ok(history)
}

fn node_of(tree: &Tree, id: Identity) -> Option<&Node> {
    tree.values().find(|node| node.id == id)
}

/// C1 for those who looked while the call was under way: what they were told vouches for what showed before it.
fn looked_within(
    history: &mut Worker,
    scene: &Scene<'_>,
    id: Identity,
    was: &Node,
    is: Option<&Node>,
    op: &Op,
) -> anyhow::Result<()> {
    let looks = scene.watched.take_looks(id);
    let step = history.steps.len();
    for look in &looks {
        history.handed.push(Handed { at: look.at, step, id, value: look.value, node: was.clone() });
    }
    if let (Some(look), Some(is)) = (looks.last(), is)
        && is != was
    {
        let inode = scene.vfs.get_generation(Ino(id.0), id.1)?;
        if scene.vfs.change(&inode) == Some(look.value) {
            let text = format!(
                "{op} (step {step}): a look at inode {} in the midst of it was told {}, and so is one afterwards, though it changed",
                id.0, look.value
            );
            history.broken.get_or_insert(text);
        }
    }
    Ok(())
}

/// A file that is made with everything that can be said of it. What it does not get at once shows as something else.
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
    watched: &'a Watched,
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

    /// One operation. Answers with the inode that it was about, and the value that it was given.
    fn perform(self, op: &Op, nth: usize) -> ivers_vfs::Result<(Option<Identity>, Option<u64>)> {
        let cred = Cred::root();
        let vfs = self.vfs;
        // Bytes that tell this write from every other one.
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
                vfs.write(&cred, &file, at, &bytes(len), WriteFlags::empty())?;
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
            Op::Open(name) => {
                let file = self.find(name)?;
                self.held.push(file.clone());
                file
            }
            Op::Watch(name) => {
                let file = self.find(name)?;
                self.watched.watch(&file);
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

/// The tree of a worker as it shows now. Asks for no change attribute.
pub fn read_tree(vfs: &Arc<Vfs>, worker: usize) -> ivers_vfs::Result<Tree> {
    let top = vfs.resolve(&Cred::root(), format!("/{}", directory(worker)), false)?;
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), top)];
    while let Some((path, inode)) = todo.pop() {
        if inode.kind == FileType::Directory {
            let mut names = Vec::new();
            vfs.readdir(&inode, 0, &mut |entry: &DirEntry<'_>| {
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

/// One inode as it shows now.
pub fn read_node(vfs: &Arc<Vfs>, inode: &InodeRef) -> ivers_vfs::Result<Node> {
    let cred = Cred::root();
    let attr = vfs.stat(inode);
    let mut data = Vec::new();
    if attr.kind == FileType::Regular {
        data = vec![0; attr.size as usize];
        let got = vfs.read(inode, 0, &mut data)?;
        data.truncate(got);
    }
    let mut xattrs = BTreeMap::new();
    let kept = vfs.info().xattr_value_max > 0;
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

/// Bytes of a device, for tools that want a file.
pub fn bytes_of(device: &dyn Device) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(device.size_bytes())?];
    device.read_at(0, &mut bytes)?;
    Ok(bytes)
}
