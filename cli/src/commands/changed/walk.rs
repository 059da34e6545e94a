//! The walk over a tree in the order of a saved state: sorted by path.
//!
//! Paths are sorted by their bytes. Some bytes are lower than a slash: `a`, `a.txt`, `a/b` is the right
//! order. So the file `a.txt` comes before the contents of the directory `a`. The walk keeps the names in
//! each directory from the root to the current one.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ivers::state_format::{Header, Identity, Record, Writer, fnv1a};
use ivers_fuse::MOUNT;
use ivers_vfs::raises::{RAISED_BY, Raises};
use ivers_vfs::{FileType, InodeRef, ValidUntil, Vfs};

use crate::arguments::{image_path, join};
use crate::children::{self, Covered};
use crate::file_info;
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{child, names, resolve};
use crate::image::sorted_names::{SortedNames, Unsorted};
use crate::output::failure::{REFUSED, failure};
use crate::output::format::Shown;
use crate::output::progress::Progress;

/// What a walk found at a path.
pub enum Found {
    /// A file or directory.
    File(Record),
    /// This user may not read the attributes of the file, or not the names in the directory.
    Unreadable(anyhow::Error),
}

/// Receives what a walk finds, sorted by path. All unreadable files below a directory are one: the directory,
/// between its own record and what sorts behind its contents.
pub type Sink<'a> = dyn FnMut(&[u8], Found) -> Result<()> + 'a;

/// A tree that can be walked.
trait Tree {
    /// What is needed to read a directory.
    type Dir;

    /// What the names of a directory tell of its files.
    type Known;

    /// Reads the names in a directory, `depth` levels below the root. `None`: it is gone.
    fn names(
        &mut self,
        dir: &Self::Dir,
        path: &[u8],
        depth: usize,
    ) -> Result<Option<SortedNames<Self::Known>>>;

    /// Reads files of a directory, and opens those that are directories. Returns one result for each name.
    /// `path` is that of the directory.
    fn children(
        &self,
        dir: &Self::Dir,
        path: &[u8],
        names: &[(Vec<u8>, Self::Known)],
    ) -> Vec<Result<Child<Self::Dir>>>;

    /// The most names of one call of [`Tree::children`].
    const TOGETHER: usize;
}

/// A file of a tree, opened if it is a directory. `None` if it no longer exists.
type Child<Dir> = Option<(Record, Option<Dir>)>;

/// A name and its file.
type Next<Dir> = (Vec<u8>, Result<Child<Dir>>);

/// A directory that is being walked.
struct Level<T: Tree> {
    dir: T::Dir,
    path_len: usize,
    names: SortedNames<T::Known>,
    /// The next names with their files, as [`Tree::children`] read them.
    read: VecDeque<Next<T::Dir>>,
    /// Directories that are to be entered. Each name continues the one before, so the last is entered first.
    below: Vec<(Vec<u8>, T::Dir)>,
}

impl<T: Tree> Level<T> {
    fn new(dir: T::Dir, path: &[u8], names: SortedNames<T::Known>) -> Self {
        Self { dir, path_len: path.len(), names, read: VecDeque::new(), below: Vec::new() }
    }

    /// Returns the next name.
    fn first(&self) -> Option<&[u8]> {
        self.read.front().map(|(name, _)| name.as_slice()).or_else(|| self.names.first())
    }

    /// Takes the next name and its file. `path` is that of the directory.
    fn next(&mut self, tree: &T, path: &[u8]) -> Option<Next<T::Dir>> {
        if self.read.is_empty() {
            let mut together: Vec<(Vec<u8>, T::Known)> = Vec::new();
            while together.len() < T::TOGETHER
                && let Some(next) = self.names.remove_first_known()
            {
                // A damaged directory can have a name twice.
                if together.last().is_none_or(|(last, _)| *last != next.0) {
                    together.push(next);
                }
            }
            while let Some((last, _)) = together.last()
                && self.names.first() == Some(last)
            {
                self.names.remove_first_known();
            }
            if together.is_empty() {
                return None;
            }
            let found = tree.children(&self.dir, path, &together);
            self.read.extend(together.into_iter().map(|(name, _)| name).zip(found));
        }
        self.read.pop_front()
    }
}

/// Whether the contents of a directory come before a sibling of it.
fn contents_precede(dir: &[u8], sibling: &[u8]) -> bool {
    dir.iter().chain(b"/").lt(sibling)
}

/// Walks a tree below its root.
fn walk<T: Tree>(tree: &mut T, root: T::Dir, sink: &mut Sink<'_>) -> Result<()> {
    let progress = Progress::unbounded();
    let mut path = Vec::new();
    let Some(names) = tree.names(&root, &path, 0)? else { return Ok(()) };
    let mut levels = vec![Level::new(root, &path, names)];
    while let Some(level) = levels.last_mut() {
        path.truncate(level.path_len);
        let next = level.first();
        let is_due = |dir: &(Vec<u8>, _)| next.is_none_or(|next| contents_precede(&dir.0, next));
        if level.below.last().is_some_and(is_due)
            && let Some((name, dir)) = level.below.pop()
        {
            path = join(&path, &name);
            match tree.names(&dir, &path, levels.len()) {
                Ok(Some(names)) => levels.push(Level::new(dir, &path, names)),
                Ok(None) => {}
                Err(error) => sink(&path, Found::Unreadable(error))?,
            }
            continue;
        }
        let Some((name, found)) = level.next(tree, &path) else {
            levels.pop();
            continue;
        };
        path = join(&path, &name);
        match found {
            Ok(Some((record, dir))) => {
                level.below.extend(dir.map(|dir| (name, dir)));
                sink(&path, Found::File(record))?;
                progress.step(1, |files| format!("{files} files"));
            }
            Ok(None) => {}
            Err(error) => sink(&path, Found::Unreadable(error))?,
        }
    }
    Ok(())
}

/// A tree of a mount, or another tree of the host.
pub struct Mounted<'a> {
    root: &'a Path,
    /// The same directory, without symbolic links.
    resolved: PathBuf,
    device: u64,
    has_change_attributes: bool,
    covered: Covered,
    raises: Raises,
}

/// How the instance of a tree without change attributes begins.
pub const INSTANCE_BY_TIMES: &str = "times-";

/// Time within which two changes of a file can have the same ctime: a tick of the kernel's clock.
const TICK: Duration = Duration::from_millis(20);
/// The same for a filesystem that stores seconds, such as FAT.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// Returns the identity of a file that has no change attribute. The kernel has a change cookie for its own
/// NFS server (STATX_CHANGE_COOKIE) and does not pass it on to programs. So the change is a hash of what
/// changes with every change: ctime, mtime and size. The generation is a hash of the time of birth. A file
/// that may change again at the same ctime has no change value: it counts as changed.
fn identity_by_times(meta: &Metadata) -> Identity {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ctime = Duration::new(meta.ctime().try_into().unwrap_or(0), meta.ctime_nsec() as u32);
    let tick = if meta.ctime_nsec() == 0 { COARSE_TICK } else { TICK };
    let numbers = [
        meta.ctime(),
        meta.ctime_nsec(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.size() as i64,
        i64::from(meta.mode()),
    ];
    let change = fnv1a(&numbers.map(i64::to_le_bytes).concat());
    let birth = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let generation = birth.map_or(0, |at| fnv1a(&at.as_nanos().to_le_bytes()) as u32);
    Identity { ino: meta.ino(), generation, change: (ctime + tick < now).then_some(change) }
}

/// A file that is removed during the walk is omitted.
fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

impl<'a> Mounted<'a> {
    /// Opens a tree. Returns also the header of its state.
    pub fn open(root: &'a Path) -> Result<(Self, Header)> {
        let mount = file_info::served_json_if_any(root, MOUNT)?;
        // If TREE is a symbolic link, the identity is that of the directory.
        let resolved = root.canonicalize().with_context(|| root.shown())?;
        let meta = std::fs::metadata(&resolved).with_context(|| root.shown())?;
        let raises = mount.as_ref().and_then(|mount| mount["details"][RAISED_BY].as_str()?.parse().ok());
        let has_change_attributes = mount.is_some();
        let raises = raises.unwrap_or_default();
        let one = Self {
            root,
            resolved,
            device: meta.dev(),
            has_change_attributes,
            covered: Covered::now(),
            raises,
        };
        let identity = one.identity(&one.resolved, &meta)?;
        let instance = match mount {
            Some(mount) => mount["instance"].as_str().unwrap_or_default().to_owned(),
            None => {
                let id = rustix::fs::statvfs(&one.resolved).map_or(0, |fs| fs.f_fsid);
                format!("{INSTANCE_BY_TIMES}{:x}", if id == 0 { meta.dev() } else { id })
            }
        };
        Ok((one, Header { instance, root: identity }))
    }

    /// Returns why the epoch of the filesystem rose. An older ivers does not tell.
    pub fn raises(&self) -> Raises {
        self.raises
    }

    /// Returns whether files have change attributes: the tree is on a mount of ivers.
    pub fn has_change_attributes(&self) -> bool {
        self.has_change_attributes
    }

    fn identity(&self, path: &Path, meta: &Metadata) -> Result<Identity> {
        if self.has_change_attributes {
            file_info::identity(path, meta.ino())
        } else {
            Ok(identity_by_times(meta))
        }
    }

    /// Walks the tree.
    pub fn walk(mut self, sink: &mut Sink<'_>) -> Result<()> {
        walk(&mut self, (), sink)
    }

    fn full(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path))
    }
}

impl Tree for Mounted<'_> {
    type Dir = ();

    /// The identity of the file, if the mount told it with the name.
    type Known = Option<Record>;

    fn names(&mut self, (): &(), path: &[u8], depth: usize) -> Result<Option<SortedNames<Option<Record>>>> {
        let full = self.full(path);
        // The change attribute of the directory was read before its names: the next run reports a name that
        // is added in between.
        let read = || -> std::io::Result<SortedNames<Option<Record>>> {
            if let Some(names) = self.known_children(path) {
                return Ok(names.sort());
            }
            let mut names = Unsorted::default();
            for entry in std::fs::read_dir(&full)? {
                names.push_known(entry?.file_name().as_bytes(), None);
            }
            Ok(names.sort())
        };
        match read() {
            Ok(names) => Ok(Some(names)),
            Err(error) if depth == 0 => Err(error).with_context(|| full.shown()),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn children(&self, (): &(), path: &[u8], names: &[(Vec<u8>, Option<Record>)]) -> Vec<Result<Child<()>>> {
        let child = |(name, known): &(Vec<u8>, Option<Record>)| match known {
            Some(record) => Ok(Some((*record, record.is_dir.then_some(())))),
            None => self.child(&join(path, name)),
        };
        names.iter().map(child).collect()
    }

    /// One at a time, so that each file is reported as soon as it is read.
    const TOGETHER: usize = 1;
}

/// Returns the record of a file that a mount listed. `None` if the mount gave no change attribute: then the
/// file is queried alone.
fn record(child: &ivers_fuse::Child) -> Option<Record> {
    let identity = Identity { ino: child.ino, generation: child.generation, change: Some(child.change?) };
    Some(Record { identity, is_dir: FileType::from_mode(child.mode) == Some(FileType::Directory) })
}

impl Mounted<'_> {
    /// Returns the files of a directory as the mount tells them together. `None` if each must be asked for.
    fn known_children(&self, path: &[u8]) -> Option<Unsorted<Option<Record>>> {
        if !self.has_change_attributes {
            return None;
        }
        let dir = self.resolved.join(OsStr::from_bytes(path));
        let mut names = Unsorted::default();
        children::of(&dir, self.device, &self.covered, &mut |child| {
            names.push_known(&child.name, record(&child));
        })?;
        Some(names)
    }

    fn child(&self, path: &[u8]) -> Result<Child<()>> {
        let full = self.full(path);
        let read = || -> Result<Child<()>> {
            let meta = match std::fs::symlink_metadata(&full) {
                Ok(meta) if meta.dev() == self.device => meta,
                Ok(_) => return Ok(None),
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let record = Record { identity: self.identity(&full, &meta)?, is_dir: meta.is_dir() };
            Ok(Some((record, meta.is_dir().then_some(()))))
        };
        match read() {
            Err(_) if std::fs::symlink_metadata(&full).is_err_and(|error| is_gone(&error)) => Ok(None),
            result => result,
        }
    }
}

/// A tree of an image.
struct InImage<'a> {
    vfs: &'a Vfs,
    image: &'a Path,
    entered: CycleGuard<u64>,
}

fn identity(inode: &InodeRef, change: Option<u64>) -> Identity {
    Identity { ino: inode.ino.0, generation: inode.generation, change }
}

impl Tree for InImage<'_> {
    type Dir = InodeRef;
    type Known = ();

    fn names(&mut self, dir: &InodeRef, path: &[u8], depth: usize) -> Result<Option<SortedNames>> {
        let location = || format!("{}, inode {}", image_path(self.image, path), dir.ino.0);
        self.entered.enter(dir.ino.0, depth, path.len(), location)?;
        names(self.vfs, dir).map(Some)
    }

    fn children(&self, dir: &InodeRef, _: &[u8], names: &[(Vec<u8>, ())]) -> Vec<Result<Child<InodeRef>>> {
        let found: Vec<_> = names.iter().map(|(name, ())| child(self.vfs, dir, name)).collect();
        let inodes: Vec<_> = found.iter().flatten().cloned().collect();
        let mut changes = self.vfs.changes(&inodes).into_iter();
        let mut record = |inode: InodeRef| {
            let is_dir = inode.kind == FileType::Directory;
            let identity = identity(&inode, changes.next().flatten());
            Some((Record { identity, is_dir }, is_dir.then_some(inode)))
        };
        found.into_iter().map(|inode| inode.map(&mut record)).collect()
    }

    const TOGETHER: usize = 256;
}

/// Writes the state of a tree of an image. Runs in the image process. A file that cannot be read is an error.
pub fn write_state(vfs: &Vfs, image: &Path, path: &[u8], out: impl Write) -> Result<()> {
    if let (false, ValidUntil::Unmount(why)) = (vfs.info().semantics.persistent, vfs.info().valid_until) {
        let image = image.shown();
        let why = match why {
            None => format!(
                "{image}: {} does not store change attributes, so no state of the image can be compared \
                 with a later one; mount it, and name the directory",
                vfs.info().fs_type
            ),
            Some(why) => format!(
                "{image}: {why}, so its change attributes cannot be compared; mount it once for writing and \
                 unmount it (ivers mount {image} DIR; ivers unmount DIR)"
            ),
        };
        return Err(failure(REFUSED, why));
    }
    let mut tree = InImage { vfs, image, entered: CycleGuard::default() };
    let root = resolve(vfs, image, path, true)?;
    let header = Header { instance: file_info::instance(vfs), root: identity(&root, vfs.change(&root)) };
    let mut state = Writer::new(BufWriter::with_capacity(64 << 10, out), &header)?;
    walk(&mut tree, root, &mut |path, found| match found {
        Found::File(record) => Ok(state.put(path, &record)?),
        Found::Unreadable(error) => Err(error.context(image_path(image, path))),
    })
    .with_context(|| image_path(image, path))?;
    Ok(state.finish()?.0.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of these paths. A path is a directory if another one continues it.
    struct Listed(Vec<&'static str>);

    impl Tree for Listed {
        type Dir = String;
        type Known = ();

        fn names(&mut self, dir: &String, _: &[u8], _: usize) -> Result<Option<SortedNames>> {
            let below = |path: &&'static str| {
                let name = path.strip_prefix(dir.as_str())?;
                (!name.contains('/')).then_some(name.as_bytes())
            };
            let mut names = Unsorted::default();
            self.0.iter().filter_map(below).for_each(|name| names.push(name));
            Ok(Some(names.sort()))
        }

        fn children(&self, dir: &String, path: &[u8], names: &[(Vec<u8>, ())]) -> Vec<Result<Child<String>>> {
            assert!((1..=Self::TOGETHER).contains(&names.len()));
            let read = |(name, ()): &(Vec<u8>, ())| {
                let full = format!("{dir}{}", std::str::from_utf8(name).unwrap());
                assert_eq!(full.as_bytes(), join(path, name));
                let below = format!("{full}/");
                let is_dir = self.0.iter().any(|path| path.starts_with(&below));
                Ok(Some((Record { identity: Identity::default(), is_dir }, is_dir.then_some(below))))
            };
            names.iter().map(read).collect()
        }

        const TOGETHER: usize = 3;
    }

    #[test]
    fn paths_are_found_in_the_order_of_their_bytes() {
        let mut paths = vec![
            "a", "a/b", "a/z", "a.txt", "a-", "a-/x", "a!", "a!/q", "a!/q/r", "a!!", "a!!/s", "a0", "b",
            "b/c", "b/c/d", "b/c.d", "bc", "~", "~/~",
        ];
        let mut found = Vec::new();
        let mut sink = |path: &[u8], _| {
            found.push(String::from_utf8(path.to_vec()).unwrap());
            Ok(())
        };
        walk(&mut Listed(paths.clone()), String::new(), &mut sink).unwrap();
        paths.sort_unstable();
        assert_eq!(found, paths);
    }
}
