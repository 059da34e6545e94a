//! Trees as text, as ivers and as the kernel see them. The tests of btrfs and UFS use this file too.

use ivers_vfs::*;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

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
    let has_xattrs = vfs.xattr_value_max() > 0;
    for name in if has_xattrs { vfs.list_xattr(&cred, inode)? } else { Vec::new() } {
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
            // XFS shows access control lists twice.
            let hidden = |name: &[u8]| name.starts_with(b"trusted.SGI_ACL");
            let shown = names.filter(|name| !hidden(name.as_bytes()));
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

/// Does everything that reads, whatever fails.
pub fn walk_all(vfs: &Arc<Vfs>) {
    let cred = Cred::root();
    let Ok(root) = vfs.root() else { return };
    let (mut dirs, mut seen) = (vec![root], BTreeSet::new());
    while let Some(dir) = dirs.pop() {
        if !seen.insert(dir.ino) {
            continue;
        }
        let mut names = Vec::new();
        let _ = vfs.readdir(&cred, &dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            if names.len() > 5000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        for name in names {
            let Ok(inode) = vfs.lookup(&cred, &dir, &name) else { continue };
            let attr = vfs.stat(&inode);
            for at in [0, attr.size / 2, attr.size.saturating_sub(9000)] {
                let _ = vfs.read(&cred, &inode, at, &mut [0; 9000]);
            }
            let _ = vfs.read_link(&cred, &inode);
            let _ = vfs.seek_data(&inode, 0).and_then(|at| vfs.seek_hole(&inode, at));
            for name in vfs.list_xattr(&cred, &inode).unwrap_or_default() {
                let _ = vfs.get_xattr(&cred, &inode, &name);
            }
            if inode.kind == FileType::Directory {
                dirs.push(inode);
            }
        }
    }
}
