//! What a workload did, and what the filesystem showed after each of its steps.

use crate::ops::{Op, Workload};
use ivers_block::{Device, FaultDevice};
use ivers_vfs::{
    ChangeMode, CreateSpec, Cred, DirEntry, Error, FallocateMode, FileType, InodeRef, ManualClock,
    MountOptions, NameError, RenameFlags, SetAttr, Timestamp, Vfs, WriteFlags, XattrMode,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

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

/// How the explorer mounts: no thread of its own, so that a workload with one worker writes the same every time.
pub fn mount_options(small_cache: bool) -> (MountOptions, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    clock.set(at_step(0));
    let options = MountOptions {
        mode: ChangeMode::Lazy,
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

/// Make the directories and files that every workload starts with.
pub fn prepare(vfs: &Arc<Vfs>, workers: usize) -> ivers_vfs::Result<()> {
    let cred = Cred::root();
    let root = vfs.root()?;
    for worker in 0..workers {
        let name = directory(worker);
        let (dir, _) = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::directory(0o755), false)?;
        let (sub, _) = vfs.create(&cred, &dir, b"d", &CreateSpec::directory(0o755), false)?;
        let (a, _) = vfs.create(&cred, &dir, b"a", &CreateSpec::file(0o644), false)?;
        vfs.write(&cred, &a, 0, &[b'A'; 9000], WriteFlags::empty())?;
        let (short, _) = vfs.create(&cred, &sub, b"a", &CreateSpec::file(0o644), false)?;
        vfs.write(&cred, &short, 0, &[b'S'; 700], WriteFlags::empty())?;
    }
    vfs.sync()
}

/// Run a workload; returns each worker's history. `vfs` lies over `device`.
pub fn run(
    workload: &Workload,
    vfs: &Arc<Vfs>,
    device: &Arc<FaultDevice>,
    clock: &ManualClock,
) -> anyhow::Result<Vec<Worker>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = workload
            .workers
            .iter()
            .enumerate()
            .map(|(worker, ops)| scope.spawn(move || work(worker, ops, vfs, device, clock)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
            .collect()
    })
}

fn work(
    worker: usize,
    ops: &[Op],
    vfs: &Arc<Vfs>,
    device: &Arc<FaultDevice>,
    clock: &ManualClock,
) -> anyhow::Result<Worker> {
    let mut history = Worker { index: worker, ..Worker::default() };
    let tree = Arc::new(read_tree(vfs, worker)?);
    history.steps.push(Step { op: None, begun: 0, done: 0, ok: true, about: None, replaced: false, tree });
    let mut held = Vec::new();
    for (nth, op) in ops.iter().enumerate() {
        clock.set(at_step(nth));
        let caller = Caller { worker, vfs, held: &mut held };
        let before = history.steps.last().map(|step| step.tree.clone()).unwrap_or_default();
        let begun = device.len();
        let result = caller.perform(op, nth);
        let done = device.len();
        let (ok, about, value) = match result {
            Ok((about, value)) => (true, about, value),
            Err(Error::Name(_)) => (false, None, None),
            Err(error) => anyhow::bail!("{op}: {error}"),
        };
        let tree = Arc::new(read_tree(vfs, worker)?);
        if let (Some(id), Some(value)) = (about, value)
            && let Some(node) = tree.values().find(|node| node.id == id)
        {
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

struct Caller<'a> {
    worker: usize,
    vfs: &'a Arc<Vfs>,
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
    for name in vfs.list_xattr(&cred, inode)? {
        let value = vfs.get_xattr(&cred, inode, &name)?;
        xattrs.insert(name, value);
    }
    Ok(Node {
        id: (inode.ino.0, inode.generation),
        meta: Meta { mode: attr.mode(), owner: (attr.uid, attr.gid), nlink: attr.nlink, xattrs },
        times: (attr.mtime, attr.ctime),
        data: data.into(),
    })
}

/// Bytes of a device, for tools that want a file.
pub fn bytes_of(device: &dyn Device) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(device.size_bytes())?];
    device.read_at(0, &mut bytes)?;
    Ok(bytes)
}
