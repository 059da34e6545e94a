//! Everything that a user sees of a filesystem, except inode numbers.

use ivers_vfs::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Path to everything about it.
pub type Tree = BTreeMap<String, String>;

fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Reads contents, attributes, extended attributes and hard links.
pub fn tree(vfs: &Arc<Vfs>) -> Tree {
    let mut tree = Tree::new();
    let mut links = BTreeMap::new();
    let root = vfs.root().unwrap();
    tree.insert("/".to_owned(), describe(vfs, &root));
    walk(vfs, &root, "", &mut tree, &mut links);
    tree
}

fn describe(vfs: &Arc<Vfs>, inode: &InodeRef) -> String {
    let cred = Cred::root();
    let attr = vfs.stat(inode);
    let content = match attr.kind {
        FileType::Regular => {
            let mut bytes = vec![0; attr.size as usize];
            assert_eq!(vfs.read(&cred, inode, 0, &mut bytes).unwrap(), bytes.len());
            bytes
        }
        FileType::Symlink => vfs.read_link(&cred, inode).unwrap(),
        _ => Vec::new(),
    };
    let mut names = vfs.list_xattr(&cred, inode).unwrap();
    names.sort();
    let attributes: Vec<String> = names
        .iter()
        .map(|name| {
            let value = vfs.get_xattr(&cred, inode, name).unwrap();
            format!("{} {:x}", String::from_utf8_lossy(name), digest(&value))
        })
        .collect();
    let time = |time: Timestamp| format!("{}.{:09}", time.sec, time.nsec);
    format!(
        "{:o} {}:{} links {} size {} rdev {} times {} {} {} {:?} flags {:x} {attributes:?} {:x}",
        attr.mode(),
        attr.uid,
        attr.gid,
        attr.nlink,
        if attr.kind == FileType::Directory { 0 } else { attr.size },
        attr.rdev,
        time(attr.atime),
        time(attr.mtime),
        time(attr.ctime),
        attr.btime.map(time),
        attr.flags.bits() & 0xFF,
        digest(&content)
    )
}

fn walk(vfs: &Arc<Vfs>, dir: &InodeRef, prefix: &str, tree: &mut Tree, links: &mut BTreeMap<u64, String>) {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        ControlFlow::Continue(())
    })
    .unwrap();
    names.sort();
    for (name, listed) in &names {
        if name == b"." {
            assert_eq!(*listed, dir.ino, "{prefix}/.");
            continue;
        }
        if name == b".." {
            continue;
        }
        let path = format!("{prefix}/{}", String::from_utf8_lossy(name));
        let inode = vfs.lookup(&Cred::root(), dir, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(*listed, inode.ino, "{path}");
        let mut line = describe(vfs, &inode);
        if inode.kind == FileType::Directory {
            let parent = vfs.lookup(&Cred::root(), &inode, b"..").unwrap();
            assert_eq!(parent.ino, dir.ino, "{path}/..");
        } else if vfs.stat(&inode).nlink > 1 {
            let first = links.entry(inode.ino.0).or_insert_with(|| path.clone());
            line = format!("{line} is {first}");
        }
        tree.insert(path.clone(), line);
        if inode.kind == FileType::Directory {
            walk(vfs, &inode, &path, tree, links);
        }
    }
}
