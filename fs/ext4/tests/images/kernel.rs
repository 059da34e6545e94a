//! Trees that the kernel wrote and ivers reads, and the reverse. Needs root and loop devices; without them,
//! prints a note and passes.

use crate::common::{fsck, mkfs, mount};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SHAPES: &[(&str, &[&str])] = &[
    ("ext4", &["-t", "ext4"]),
    ("ext4 4k", &["-t", "ext4", "-b", "4096"]),
    ("ext2 4k", &["-t", "ext2", "-b", "4096", "-g", "4096"]),
    ("ext4 1k", &["-t", "ext4", "-b", "1024"]),
    ("ext3", &["-t", "ext3"]),
    ("ext2", &["-t", "ext2"]),
    ("inline", &["-t", "ext4", "-O", "inline_data"]),
    ("ea_inode", &["-t", "ext4", "-O", "ea_inode"]),
    ("small inodes", &["-t", "ext4", "-I", "128"]),
    ("orphan file", &["-t", "ext4", "-O", "orphan_file"]),
];

/// Path to kind, mode, owner, size, links, times and contents.
type Tree = BTreeMap<String, String>;

fn line(mode: u32, uid: u32, gid: u32, nlink: u64, size: u64, mtime: (i64, i64), content: &[u8]) -> String {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for &byte in content {
        sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{mode:o} {uid}:{gid} {nlink} {size} {}.{:09} {sum:x}", mtime.0, mtime.1)
}

fn kernel_tree(at: &Path, prefix: &str, tree: &mut Tree) {
    for entry in std::fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        let meta = entry.path().symlink_metadata().unwrap();
        let content = if meta.is_file() {
            std::fs::read(entry.path()).unwrap()
        } else if meta.is_symlink() {
            std::fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        let size = if meta.is_dir() { 0 } else { meta.len() };
        let times = (meta.mtime(), meta.mtime_nsec());
        tree.insert(
            path.clone(),
            line(meta.mode(), meta.uid(), meta.gid(), meta.nlink(), size, times, &content),
        );
        if meta.is_dir() {
            kernel_tree(&entry.path(), &path, tree);
        }
    }
}

fn our_tree(vfs: &Arc<Vfs>, dir: &InodeRef, prefix: &str, tree: &mut Tree) {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
        let path = format!("{prefix}/{}", String::from_utf8_lossy(name));
        let inode = vfs.lookup(&Cred::root(), dir, name).unwrap();
        let attr = vfs.stat(&inode);
        let content = match attr.kind {
            FileType::Regular => {
                let mut out = vec![0; attr.size as usize];
                let got = vfs.read(&Cred::root(), &inode, 0, &mut out).unwrap();
                assert_eq!(got, out.len(), "{path}");
                out
            }
            FileType::Symlink => vfs.read_link(&Cred::root(), &inode).unwrap(),
            _ => Vec::new(),
        };
        let is_dir = attr.kind == FileType::Directory;
        let size = if is_dir { 0 } else { attr.size };
        let times = (attr.mtime.sec, i64::from(attr.mtime.nsec));
        tree.insert(
            path.clone(),
            line(attr.mode(), attr.uid, attr.gid, u64::from(attr.nlink), size, times, &content),
        );
        if is_dir {
            our_tree(vfs, &inode, &path, tree);
        }
    }
}

fn assert_same(ours: &Tree, kernel: &Tree, what: &str) {
    for (path, line) in kernel {
        assert_eq!(ours.get(path), Some(line), "{what}: {path}");
    }
    assert_eq!(ours.len(), kernel.len(), "{what}");
}

#[test]
fn the_kernel_and_ivers_see_the_same_tree() {
    if !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in SHAPES {
        let image = dir.path().join("image");
        mkfs(&image, args, 96 << 20);
        let mounted = LoopMount::new(&image, "").unwrap();
        let script = "mkdir -p d/e/f; for i in $(seq 1 1500); \
            do echo $i > d/file-with-a-rather-long-name-$i; done; \
            dd if=/dev/urandom of=big bs=64k count=100 2>/dev/null; truncate -s 5M sparse; \
            dd if=/dev/urandom of=sparse bs=1k count=3 seek=3000 conv=notrunc 2>/dev/null; ln big d/hard; \
            ln -s short s1; ln -s $(printf 'x%.0s' $(seq 1 200)) s2; mkfifo fifo; \
            mknod null c 1 3; chown 70000:80000 s1 -h; \
            setfattr -n user.a -v b d/e 2>/dev/null; echo tiny > d/e/tiny; \
            rm d/file-with-a-rather-long-name-7*";
        let done = Command::new("sh").args(["-c", script]).current_dir(mounted.path()).status().unwrap();
        assert!(done.success());
        let mut kernel = Tree::new();
        kernel_tree(mounted.path(), "", &mut kernel);
        mounted.unmount().unwrap();

        let vfs = mount(&image);
        let mut ours = Tree::new();
        our_tree(&vfs, &vfs.root().unwrap(), "", &mut ours);
        assert_same(&ours, &kernel, name);
        // Now ivers changes everything a little.
        let cred = Cred::root();
        let d = vfs.resolve(&cred, b"/d", true).unwrap();
        for i in (1..1500).filter(|i| !i.to_string().starts_with('7')) {
            let old = format!("file-with-a-rather-long-name-{i}");
            match i % 4 {
                0 => drop(vfs.unlink(&cred, &d, old.as_bytes(), false).unwrap()),
                1 => {
                    let new = format!("renamed-{i}");
                    vfs.rename(&cred, &d, old.as_bytes(), &d, new.as_bytes(), RenameFlags::empty(), false)
                        .unwrap();
                }
                2 => {
                    let file = vfs.lookup(&cred, &d, old.as_bytes()).unwrap();
                    vfs.write(&cred, &file, 100 * i, b"more of it", WriteFlags::empty()).unwrap();
                }
                _ => {
                    let new = format!("new-{i}");
                    let (file, _) =
                        vfs.create(&cred, &d, new.as_bytes(), &CreateSpec::file(0o600), false).unwrap();
                    vfs.write(&cred, &file, 0, &vec![i as u8; (i * 13) as usize], WriteFlags::empty())
                        .unwrap();
                }
            }
        }
        let big = vfs.resolve(&cred, b"/big", true).unwrap();
        vfs.fallocate(&cred, &big, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 100_000, 300_000)
            .or_else(|error| if *name == "ext2" || *name == "ext3" { Ok(()) } else { Err(error) })
            .unwrap();
        vfs.write(&cred, &big, 7 << 20, &[9; 70_000], WriteFlags::empty()).unwrap();
        drop((big, d));
        vfs.sync().unwrap();
        let mut ours = Tree::new();
        our_tree(&vfs, &vfs.root().unwrap(), "", &mut ours);
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&image, name);
        let mounted = LoopMount::new(&image, "").unwrap();
        let mut kernel = Tree::new();
        kernel_tree(mounted.path(), "", &mut kernel);
        mounted.unmount().unwrap();
        assert_same(&ours, &kernel, name);
        fsck(&image, name);
    }
}

#[test]
fn the_journal_of_the_kernel_is_replayed() {
    if !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [image, copy] = ["image", "copy"].map(|name| dir.path().join(name));
    for (name, args) in [("ext4", &["-t", "ext4", "-b", "4096"][..]), ("ext3", &["-t", "ext3"])] {
        mkfs(&image, args, 64 << 20);
        let mounted = LoopMount::new(&image, "").unwrap();
        let script =
            "mkdir d; for i in $(seq 1 300); do echo $i > d/f$i; done; rm d/f1*; ln d/f2 hard; sync -f .";
        assert!(
            Command::new("sh").args(["-c", script]).current_dir(mounted.path()).status().unwrap().success()
        );
        let mut kernel = Tree::new();
        kernel_tree(mounted.path(), "", &mut kernel);
        std::fs::copy(&image, &copy).unwrap();
        mounted.unmount().unwrap();
        let vfs = mount(&copy);
        let mut ours = Tree::new();
        our_tree(&vfs, &vfs.root().unwrap(), "", &mut ours);
        assert_same(&ours, &kernel, name);
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&copy, name);
    }
}
