//! A random mix of all VFS operations on images of many kinds, checked against a model in memory,
//! after a remount, and by e2fsck.

mod common;

use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn mount(image: &Path) -> Arc<Vfs> {
    Vfs::mount(common::open(image, false), MountOptions::default()).unwrap()
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    File(Vec<u8>),
    Link(Vec<u8>),
    Dir,
}

/// A path and its parent's path: names never hold a slash.
fn parent(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

struct Day {
    vfs: Arc<Vfs>,
    cred: Cred,
    model: BTreeMap<String, Node>,
    xattrs: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    rng: StdRng,
    next: u32,
}

impl Day {
    fn at(&self, path: &str) -> InodeRef {
        self.vfs.resolve(&self.cred, path, false).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn pick(&mut self, want: impl Fn(&Node) -> bool) -> Option<String> {
        let all: Vec<_> =
            self.model.iter().filter(|(_, node)| want(node)).map(|(path, _)| path.clone()).collect();
        (!all.is_empty()).then(|| all[self.rng.random_range(0..all.len())].clone())
    }

    fn fresh_name(&mut self) -> String {
        let dir = if self.rng.random_bool(0.3) {
            String::new()
        } else {
            self.pick(|n| *n == Node::Dir).unwrap_or_default()
        };
        self.next += 1;
        let tail = "x".repeat(self.rng.random_range(0..60));
        if dir.is_empty() { format!("n{}{tail}", self.next) } else { format!("{dir}/n{}{tail}", self.next) }
    }

    fn create(&mut self, kind: FileType, target: &[u8]) {
        let path = self.fresh_name();
        let (dir, name) = parent(&path);
        let spec = CreateSpec { target: target.to_vec(), umask: 0o022, ..CreateSpec::of(kind, 0o755) };
        self.vfs.create(&self.cred, &self.at(dir), name.as_bytes(), &spec, false).unwrap();
        let node = match kind {
            FileType::Directory => Node::Dir,
            FileType::Symlink => Node::Link(target.to_vec()),
            _ => Node::File(Vec::new()),
        };
        self.model.insert(path, node);
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..=24 => self.create(FileType::Regular, b""),
            25..=31 => self.create(FileType::Directory, b""),
            32..=35 => {
                let len = self.rng.random_range(1..300);
                self.create(FileType::Symlink, &vec![b't'; len]);
            }
            36..=64 => {
                let Some(path) = self.pick(|n| matches!(n, Node::File(_))) else { return };
                let offset = self.rng.random_range(0..200_000usize);
                let len = self.rng.random_range(1..40_000usize);
                let data: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
                let inode = self.at(&path);
                let flags = if self.rng.random_bool(0.1) { WriteFlags::SYNC } else { WriteFlags::empty() };
                let before = self.vfs.change(&inode);
                assert_eq!(self.vfs.write(&self.cred, &inode, offset as u64, &data, flags).unwrap(), len);
                let after = self.vfs.change(&inode);
                assert!(after > before, "C1, C2: {before:?} {after:?}");
                let Some(Node::File(content)) = self.model.get_mut(&path) else { unreachable!() };
                if content.len() < offset + len {
                    content.resize(offset + len, 0);
                }
                content[offset..offset + len].copy_from_slice(&data);
            }
            65..=70 => {
                let Some(path) = self.pick(|n| matches!(n, Node::File(_))) else { return };
                let size = self.rng.random_range(0..250_000usize);
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                self.vfs.set_attr(&self.cred, &self.at(&path), &set).unwrap();
                let Some(Node::File(content)) = self.model.get_mut(&path) else { unreachable!() };
                content.resize(size, 0);
            }
            71..=76 => {
                let Some(path) = self.pick(|n| matches!(n, Node::File(_))) else { return };
                let (offset, len) =
                    (self.rng.random_range(0..150_000usize), self.rng.random_range(1..60_000usize));
                let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                let inode = self.at(&path);
                self.vfs.fallocate(&self.cred, &inode, punch, offset as u64, len as u64).unwrap();
                let Some(Node::File(content)) = self.model.get_mut(&path) else { unreachable!() };
                let end = (offset + len).min(content.len());
                if offset < end {
                    content[offset..end].fill(0);
                }
            }
            77..=84 => {
                let Some(path) = self.pick(|n| !matches!(n, Node::Dir)) else { return };
                let (dir, name) = parent(&path);
                self.vfs.unlink(&self.cred, &self.at(dir), name.as_bytes(), false).unwrap();
                self.model.remove(&path);
                self.xattrs.remove(&path);
            }
            85..=90 => {
                let Some(old) = self.pick(|n| !matches!(n, Node::Dir)) else { return };
                let replace = self.rng.random_bool(0.5);
                let target = if replace { self.pick(|n| !matches!(n, Node::Dir)) } else { None };
                let new = match target {
                    Some(new) if new != old => new,
                    _ => self.fresh_name(),
                };
                let ((old_dir, old_name), (new_dir, new_name)) = (parent(&old), parent(&new));
                let (from, to) = (self.at(old_dir), self.at(new_dir));
                let (old_name, new_name) = (old_name.as_bytes(), new_name.as_bytes());
                self.vfs
                    .rename(&self.cred, &from, old_name, &to, new_name, RenameFlags::empty(), false)
                    .unwrap();
                let node = self.model.remove(&old).unwrap();
                self.model.insert(new.clone(), node);
                self.xattrs.remove(&new);
                if let Some(attributes) = self.xattrs.remove(&old) {
                    self.xattrs.insert(new, attributes);
                }
            }
            91..=96 => {
                let Some(path) = self.pick(|n| matches!(n, Node::File(_))) else { return };
                let name = format!("user.a{}", self.rng.random_range(0..4)).into_bytes();
                let value = vec![self.rng.random(); self.rng.random_range(0..200)];
                self.vfs.set_xattr(&self.cred, &self.at(&path), &name, &value, XattrMode::Any).unwrap();
                self.xattrs.entry(path).or_default().insert(name, value);
            }
            97 => {
                let Some(path) = self.pick(|n| *n == Node::Dir) else { return };
                let (dir, name) = parent(&path);
                let empty = !self.model.keys().any(|other| other.starts_with(&format!("{path}/")));
                let result = self.vfs.rmdir(&self.cred, &self.at(dir), name.as_bytes(), false);
                assert_eq!(result.is_ok(), empty, "rmdir {path}: {result:?}");
                if empty {
                    self.model.remove(&path);
                }
            }
            98 => self.vfs.sync().unwrap(),
            _ => {
                let Some(path) = self.pick(|n| matches!(n, Node::File(_))) else { return };
                self.vfs.fsync(&self.at(&path), false).unwrap();
            }
        }
    }

    fn check(&self, kind: &str) {
        let mut seen = BTreeMap::new();
        self.walk("", &mut seen);
        let names = |map: &BTreeMap<String, Node>| map.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&seen), names(&self.model), "{kind}: other names");
        for (path, node) in &self.model {
            assert!(seen[path] == *node, "{kind}: {path} holds something else");
        }
        for (path, attributes) in &self.xattrs {
            for (name, value) in attributes {
                let found = self.vfs.get_xattr(&self.cred, &self.at(path), name);
                assert_eq!(found.as_ref().ok(), Some(value), "{kind}: attribute of {path}");
            }
        }
    }

    fn walk(&self, dir: &str, seen: &mut BTreeMap<String, Node>) {
        let inode = self.at(dir);
        let mut names = Vec::new();
        self.vfs
            .readdir(&Cred::root(), &inode, 0, &mut |entry| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                ControlFlow::Continue(())
            })
            .unwrap();
        for name in names.into_iter().filter(|name| name != "." && name != ".." && name != "lost+found") {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let inode = self.at(&path);
            let node = match inode.kind {
                FileType::Directory => {
                    self.walk(&path, seen);
                    Node::Dir
                }
                FileType::Symlink => Node::Link(self.vfs.read_link(&Cred::root(), &inode).unwrap()),
                _ => {
                    let mut content = vec![0; self.vfs.stat(&inode).size as usize];
                    assert_eq!(self.vfs.read(&Cred::root(), &inode, 0, &mut content).unwrap(), content.len());
                    Node::File(content)
                }
            };
            assert!(seen.insert(path, node).is_none(), "a name twice");
        }
    }
}

fn mixed_workload(kind: &str, mkfs: &[&str]) {
    let seed = std::env::var("IVERS_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(7);
    let steps: u32 = std::env::var("IVERS_STEPS").ok().and_then(|v| v.parse().ok()).unwrap_or(400);
    println!("{kind}: IVERS_SEED={seed} IVERS_STEPS={steps}");
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(96 << 20).unwrap();
    let status =
        Command::new("mke2fs").arg("-q").args(mkfs).arg(&image).status().expect("mke2fs is installed");
    assert!(status.success());
    let mut day = Day {
        vfs: mount(&image),
        cred: Cred::root(),
        model: BTreeMap::new(),
        xattrs: BTreeMap::new(),
        rng: StdRng::seed_from_u64(seed),
        next: 0,
    };
    for _round in 0..3 {
        for _ in 0..steps {
            day.step();
        }
        day.check(kind);
        let paths: Vec<String> = day.model.keys().cloned().collect();
        let before: Vec<_> = paths.iter().map(|path| day.vfs.change(&day.at(path))).collect();
        day.vfs.unmount().unwrap();
        common::fsck(&image, kind);
        drop(day.vfs);
        day = Day { vfs: mount(&image), ..day };
        let after: Vec<_> = paths.iter().map(|path| day.vfs.change(&day.at(path))).collect();
        assert_eq!(before, after, "{kind}: C3 across a clean remount");
        day.check(kind);
    }
    day.vfs.unmount().unwrap();
    common::fsck(&image, kind);
}

macro_rules! days {
    ($($name:ident: $($arg:literal)*;)*) => {
        $(#[test] fn $name() { mixed_workload(stringify!($name), &[$($arg),*]); })*
    };
}

days! {
    ext4_defaults: "-t" "ext4" "-b" "4096";
    ext4_1k_blocks: "-t" "ext4" "-b" "1024";
    ext4_2k_blocks: "-t" "ext4" "-b" "2048";
    ext4_small_inodes: "-t" "ext4" "-I" "128";
    ext4_without_journal: "-t" "ext4" "-O" "^has_journal";
    ext4_meta_bg: "-t" "ext4" "-b" "1024" "-O" "meta_bg,^resize_inode";
    ext4_sparse_super2: "-t" "ext4" "-O" "sparse_super2";
    ext4_uninit_bg: "-t" "ext4" "-O" "^metadata_csum,uninit_bg";
    ext4_seed_large_dir_project: "-t" "ext4" "-O" "metadata_csum_seed,large_dir,project";
    ext4_inline_data: "-t" "ext4" "-O" "inline_data";
    ext4_ea_inode: "-t" "ext4" "-O" "ea_inode";
    ext4_orphan_file: "-t" "ext4" "-O" "orphan_file";
    ext3: "-t" "ext3";
    ext2: "-t" "ext2" "-b" "1024";
}
