//! Helpers of the tests on images: making them, and trees as text.

#![allow(dead_code)]

pub mod fill;
pub mod parents;
pub mod small;
pub mod storm;

use ivers_block::{Device, FileDevice, MemDevice, OpenMode};
use ivers_oracle::{LoopMount, have_programs};
use ivers_vfs::*;
use ivers_xfs::{OpenOptions, Xfs};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The smallest image that mkfs.xfs makes without a flag for testers, with some room.
pub const IMAGE_BYTES: u64 = 320 << 20;

/// What mkfs.xfs is asked for: a name and arguments.
pub type Kind = (&'static str, &'static [&'static str]);

/// Images of version 5, which the kernel of the machine can mount.
pub const V5: &[Kind] = &[
    ("default", &[]),
    ("all features of 6.1", &["-m", "rmapbt=1", "-i", "nrext64=1"]),
    ("rmapbt", &["-m", "rmapbt=1"]),
    ("nrext64", &["-i", "nrext64=1"]),
    ("crc alone", &["-m", "finobt=0,reflink=0,inobtcount=0,bigtime=0", "-i", "sparse=0"]),
    ("no finobt", &["-m", "finobt=0,inobtcount=0"]),
    ("no reflink", &["-m", "reflink=0"]),
    ("no bigtime", &["-m", "bigtime=0"]),
    ("no sparse inodes", &["-i", "sparse=0"]),
    ("blocks of 1 KiB", &["-b", "size=1024"]),
    ("blocks of 2 KiB", &["-b", "size=2048"]),
    ("blocks of 64 KiB", &["-b", "size=65536"]),
    ("sectors of 4096", &["-s", "size=4096"]),
    ("directory blocks of 64 KiB", &["-n", "size=65536"]),
    ("1 KiB and directory blocks of 8 KiB", &["-b", "size=1024", "-n", "size=8192"]),
    ("inodes of 2 KiB", &["-i", "size=2048"]),
    ("inodes of 1 KiB", &["-i", "size=1024"]),
    ("two groups", &["-d", "agcount=2"]),
    ("three groups", &["-d", "agcount=3"]),
    ("log records of 256 KiB", &["-l", "su=256k"]),
    ("a label", &["-L", "a label"]),
];

/// Images of version 4.
pub const V4: &[Kind] = &[
    ("version 4", &["-m", "crc=0"]),
    ("version 4, no ftype", &["-m", "crc=0", "-n", "ftype=0"]),
    ("version 4, inodes of 256 bytes", &["-m", "crc=0", "-i", "size=256"]),
    ("version 4, blocks of 512", &["-m", "crc=0", "-b", "size=512", "-i", "size=256"]),
    ("version 4, ascii-ci", &["-m", "crc=0", "-n", "version=ci"]),
    ("version 4, log of version 1", &["-m", "crc=0", "-l", "version=1"]),
];

/// Returns whether tests on images can run.
pub fn have_xfsprogs() -> bool {
    have_programs(&["mkfs.xfs", "xfs_db", "xfs_repair"])
}

/// Makes an image; with a tree if `proto` names a file.
pub fn mkfs(path: &Path, args: &[&str], proto: Option<&Path>) {
    std::fs::File::create(path).unwrap().set_len(IMAGE_BYTES).unwrap();
    let mut all = vec!["-q".as_ref(), "-f".as_ref(), "-K".as_ref()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    if let Some(proto) = proto {
        all.extend(["-p".as_ref(), proto.as_os_str()]);
    }
    all.push(path.as_os_str());
    ivers_oracle::run("mkfs.xfs", all).unwrap();
}

pub fn reading() -> OpenOptions {
    let common = DriverOptions { read_only: true, ..DriverOptions::default() };
    OpenOptions { common, ..OpenOptions::default() }
}

pub fn device(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, OpenMode::ReadOnly).unwrap())
}

pub fn mount_device(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Vfs>> {
    let options = MountOptions { background: false, read_only: true, ..MountOptions::default() };
    Vfs::mount(Xfs::open(device, reading())?, options)
}

pub fn mount(path: &Path) -> Arc<Vfs> {
    mount_device(device(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    Arc::new(MemDevice::from_bytes(bytes))
}

pub fn digest(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

/// What is compared of a file.
pub struct Seen<'a> {
    pub mode: u32,
    pub owner: (u32, u32),
    pub links: u64,
    pub size: u64,
    pub rdev: u64,
    /// Seconds and nanoseconds.
    pub times: Option<[(i64, u32); 3]>,
    pub content: &'a [u8],
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Path to what is compared.
pub type Tree = BTreeMap<String, String>;

impl Seen<'_> {
    pub fn line(self) -> String {
        let is_dir = self.mode & 0o170000 == 0o040000;
        let size = if is_dir { 0 } else { self.size };
        let mut line = format!("{:o} {:?} links={} size={size}", self.mode, self.owner, self.links);
        line += &format!(" rdev={:x} data={:x}", self.rdev, digest(self.content));
        if let Some(times) = self.times {
            line += &format!(" times={times:?}");
        }
        let mut xattrs = self.xattrs;
        xattrs.sort();
        for (name, value) in xattrs {
            line += &format!(" {}={}:{:x}", name.escape_ascii(), value.len(), digest(&value));
        }
        line
    }
}

/// The tree as ivers sees it.
pub fn our_tree(vfs: &Arc<Vfs>, with_times: bool) -> ivers_vfs::Result<Tree> {
    let mut tree = Tree::new();
    let mut dirs = vec![(vfs.root()?, String::new())];
    while let Some((dir, prefix)) = dirs.pop() {
        let mut names: Vec<(Vec<u8>, Option<FileType>, Ino)> = Vec::new();
        vfs.readdir(&Cred::root(), &dir, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.kind, entry.ino));
            ControlFlow::Continue(())
        })?;
        let dots = names.iter().filter(|(name, ..)| matches!(&name[..], b"." | b"..")).count();
        assert_eq!(dots, 2, "{prefix}/");
        for (name, kind, ino) in names.into_iter().filter(|(name, ..)| !matches!(&name[..], b"." | b"..")) {
            let path = format!("{prefix}/{}", name.escape_ascii());
            let inode = vfs.lookup(&Cred::root(), &dir, &name)?;
            assert_eq!(inode.ino, ino, "{path}");
            assert!(kind.is_none_or(|kind| kind == inode.kind), "{path}: {kind:?}");
            tree.insert(path.clone(), our_line(vfs, &inode, with_times)?);
            if inode.kind == FileType::Directory {
                dirs.push((inode, path));
            }
        }
    }
    Ok(tree)
}

fn our_line(vfs: &Arc<Vfs>, inode: &InodeRef, with_times: bool) -> ivers_vfs::Result<String> {
    let cred = Cred::root();
    let attr = vfs.stat(inode);
    let content = match attr.kind {
        FileType::Regular => read_all(vfs, inode)?,
        FileType::Symlink => vfs.read_link(&cred, inode)?,
        _ => Vec::new(),
    };
    let mut xattrs = Vec::new();
    for name in vfs.list_xattr(&cred, inode)? {
        let value = vfs.get_xattr(&cred, inode, &name)?;
        xattrs.push((name, value));
    }
    let time = |time: Timestamp| (time.sec, time.nsec);
    let seen = Seen {
        mode: attr.mode(),
        owner: (attr.uid, attr.gid),
        links: attr.nlink.into(),
        size: attr.size,
        rdev: attr.rdev.into(),
        times: with_times.then(|| [time(attr.atime), time(attr.mtime), time(attr.ctime)]),
        content: &content,
        xattrs,
    };
    Ok(seen.line())
}

pub fn read_all(vfs: &Arc<Vfs>, inode: &InodeRef) -> ivers_vfs::Result<Vec<u8>> {
    let mut data = vec![0; inode.size() as usize];
    let got = vfs.read(&Cred::root(), inode, 0, &mut data)?;
    assert_eq!(got, data.len());
    Ok(data)
}

/// The tree at a path of the system.
pub fn kernel_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![(root.to_owned(), String::new())];
    while let Some((dir, prefix)) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}/{}", entry.file_name().as_bytes().escape_ascii());
            let meta = entry.path().symlink_metadata().unwrap();
            let content = if meta.is_file() {
                std::fs::read(entry.path()).unwrap()
            } else if meta.is_symlink() {
                std::fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes()
            } else {
                Vec::new()
            };
            let names = xattr::list(entry.path()).unwrap();
            // The kernel shows access control lists twice.
            let shown = names.filter(|name| !name.as_bytes().starts_with(b"trusted.SGI_ACL"));
            let value = |name: &std::ffi::OsStr| xattr::get(entry.path(), name).unwrap().unwrap();
            let xattrs = shown.map(|name| (name.as_bytes().to_vec(), value(&name))).collect();
            let time = |sec, nsec: i64| (sec, nsec as u32);
            let seen = Seen {
                mode: meta.mode(),
                owner: (meta.uid(), meta.gid()),
                links: meta.nlink(),
                size: meta.len(),
                rdev: meta.rdev(),
                times: Some([
                    time(meta.atime(), meta.atime_nsec()),
                    time(meta.mtime(), meta.mtime_nsec()),
                    time(meta.ctime(), meta.ctime_nsec()),
                ]),
                content: &content,
                xattrs,
            };
            tree.insert(path.clone(), seen.line());
            if meta.is_dir() {
                dirs.push((entry.path(), path));
            }
        }
    }
    tree
}

pub fn assert_same(ours: &Tree, theirs: &Tree, what: &str) {
    for (path, line) in theirs {
        assert_eq!(ours.get(path), Some(line), "{what}: {path}");
    }
    let extra: Vec<_> = ours.keys().filter(|path| !theirs.contains_key(*path)).take(5).collect();
    assert!(extra.is_empty(), "{what}: {extra:?}");
}

/// Opens an image for writing and mounts it.
pub fn mount_writable(path: &Path) -> Arc<Vfs> {
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap());
    let fs = Xfs::open(device, OpenOptions::default()).unwrap_or_else(|error| panic!("open: {error}"));
    Vfs::mount(fs, MountOptions::default()).unwrap_or_else(|error| panic!("mount: {error}"))
}

pub fn copy_image(from: &Path, to: &Path) {
    ivers_oracle::run("cp", ["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()]).unwrap();
}

/// xfs_repair reports nothing.
pub fn repair_finds_nothing(path: &Path, what: &str) {
    ivers_oracle::xfs::judge(path).unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// Our checker reports nothing.
pub fn assert_clean(path: &Path, what: &str) {
    let device = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
    let found =
        ivers_xfs::check::check(Arc::new(device), ivers_vfs::check::Memory::unlimited(), "image").unwrap();
    let lines: Vec<_> = found.kept().iter().take(20).map(|found| format!("{found:?}")).collect();
    assert!(found.is_clean(), "{what}: {}\n{:?}", lines.join("\n"), found.notes());
}

/// Extents of a file: runs of the block map that nothing interrupts.
pub fn extents(image: &Path, name: &str) -> usize {
    let mounted = LoopMount::new(image, "ro").unwrap();
    let path = mounted.path().join(name);
    let words = ["-r".as_ref(), "-c".as_ref(), "fiemap".as_ref(), path.as_os_str()];
    let output = ivers_oracle::run("xfs_io", words).unwrap();
    let lines =
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.contains("hole")).count();
    mounted.unmount().unwrap();
    lines - 1
}
