//! Random changes through the VFS, and a model of what must be there. The tests of btrfs and UFS use this
//! file too.

use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

type Id = usize;
type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

const ROOT: Id = 0;
/// Largest file in bytes.
const FILE_MAX: usize = 3 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    File(Vec<u8>),
    Link(Vec<u8>),
    Dir(BTreeMap<String, Id>),
    Special,
}

#[derive(Debug, Clone)]
struct Node {
    body: Body,
    xattrs: Attributes,
    /// The directory that has it, of a directory.
    parent: Id,
    links: u32,
}

/// A mounted filesystem and its model.
pub struct Storm {
    vfs: Option<Arc<Vfs>>,
    nodes: BTreeMap<Id, Node>,
    rng: StdRng,
    next: usize,
    /// The prefixes of extended attributes that the format stores.
    prefixes: &'static [&'static str],
    /// Steps that the filesystem refused for lack of space.
    pub full: usize,
}

fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Name(NameError::NoSpace)))
}

impl Storm {
    pub fn new(vfs: Arc<Vfs>, seed: u64) -> Self {
        let root =
            Node { body: Body::Dir(BTreeMap::new()), xattrs: Attributes::new(), parent: ROOT, links: 2 };
        let nodes = BTreeMap::from([(ROOT, root)]);
        let prefixes: &[&str] = match vfs.info().fs_type {
            "ufs1" => &[],
            "ufs2" => &["user", "trusted"],
            _ => &["user", "trusted", "security"],
        };
        Self { vfs: Some(vfs), nodes, rng: StdRng::seed_from_u64(seed), next: 1, prefixes, full: 0 }
    }

    /// The model of a filesystem that has files already.
    pub fn of(vfs: Arc<Vfs>, seed: u64) -> Self {
        let mut storm = Self::new(vfs, seed);
        let mut known = BTreeMap::new();
        storm.adopt(ROOT, &storm.vfs().root().unwrap(), &mut known);
        storm
    }

    fn adopt(&mut self, dir: Id, inode: &InodeRef, known: &mut BTreeMap<Ino, Id>) {
        let vfs = self.vfs().clone();
        let mut names = Vec::new();
        vfs.readdir(&Cred::root(), inode, 0, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
        for name in names.into_iter().filter(|name| name != "." && name != "..") {
            let child = vfs.lookup(&Cred::root(), inode, name.as_bytes()).unwrap();
            let id = match known.get(&child.ino) {
                Some(id) => *id,
                None => {
                    self.next += 1;
                    let body = match child.kind {
                        FileType::Regular => Body::File(super::read_all(&vfs, &child).unwrap()),
                        FileType::Symlink => Body::Link(vfs.read_link(&Cred::root(), &child).unwrap()),
                        FileType::Directory => Body::Dir(BTreeMap::new()),
                        _ => Body::Special,
                    };
                    let links = vfs.stat(&child).nlink;
                    let names = self.attributes(&child);
                    let value = |name: &Vec<u8>| vfs.get_xattr(&Cred::root(), &child, name).unwrap();
                    let xattrs = names.iter().map(|name| (name.clone(), value(name))).collect();
                    self.nodes.insert(self.next, Node { body, xattrs, parent: dir, links });
                    known.insert(child.ino, self.next);
                    self.next
                }
            };
            self.dir_mut(dir).insert(name, id);
            if child.kind == FileType::Directory {
                self.nodes.get_mut(&dir).unwrap().links += 1;
                self.nodes.get_mut(&id).unwrap().links = 2;
                self.adopt(id, &child, known);
            }
        }
    }

    pub fn vfs(&self) -> &Arc<Vfs> {
        self.vfs.as_ref().expect("it is mounted")
    }

    /// Unmounts the filesystem, and closes its image.
    pub fn unmount(&mut self) {
        self.vfs().unmount().unwrap();
        self.vfs = None;
    }

    pub fn mount(&mut self, vfs: Arc<Vfs>) {
        self.vfs = Some(vfs);
    }

    /// The names of the extended attributes of an inode.
    fn attributes(&self, inode: &InodeRef) -> Vec<Vec<u8>> {
        match self.vfs().list_xattr(&Cred::root(), inode) {
            Err(Error::Name(NameError::NotSupported)) => Vec::new(),
            names => names.unwrap(),
        }
    }

    fn dir(&self, id: Id) -> &BTreeMap<String, Id> {
        match &self.nodes[&id].body {
            Body::Dir(names) => names,
            other => panic!("no directory: {other:?}"),
        }
    }

    fn dir_mut(&mut self, id: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.nodes.get_mut(&id).unwrap().body {
            Body::Dir(names) => names,
            other => panic!("no directory: {other:?}"),
        }
    }

    fn path_of_dir(&self, id: Id) -> String {
        if id == ROOT {
            return String::new();
        }
        let parent = self.nodes[&id].parent;
        let name = self.dir(parent).iter().find(|(_, child)| **child == id).map(|(name, _)| name.clone());
        format!("{}/{}", self.path_of_dir(parent), name.expect("a directory has a name"))
    }

    fn at(&self, path: &str) -> InodeRef {
        let path = if path.is_empty() { "/" } else { path };
        self.vfs().resolve(&Cred::root(), path, false).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn at_dir(&self, id: Id) -> InodeRef {
        self.at(&self.path_of_dir(id))
    }

    fn pick_dir(&mut self) -> Id {
        let dirs: Vec<Id> = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(node.body, Body::Dir(_)))
            .map(|(id, _)| *id)
            .collect();
        // Some directories become large.
        let hot = dirs.len().min(3);
        if self.rng.random_bool(0.6) {
            dirs[self.rng.random_range(0..hot)]
        } else {
            dirs[self.rng.random_range(0..dirs.len())]
        }
    }

    /// Picks a name of a node that `want` accepts.
    fn pick(&mut self, want: impl Fn(&Body) -> bool) -> Option<(Id, String, Id)> {
        let start = self.pick_dir();
        let dirs: Vec<Id> =
            self.nodes.range(start..).chain(self.nodes.range(..start)).map(|(id, _)| *id).collect();
        for dir in dirs {
            let Body::Dir(names) = &self.nodes[&dir].body else { continue };
            let all: Vec<_> = names.iter().filter(|(_, id)| want(&self.nodes[id].body)).collect();
            if !all.is_empty() {
                let (name, id) = all[self.rng.random_range(0..all.len())];
                return Some((dir, name.clone(), *id));
            }
        }
        None
    }

    fn pick_file(&mut self) -> Option<(InodeRef, Id)> {
        let (dir, name, id) = self.pick(|body| matches!(body, Body::File(_)))?;
        Some((self.at(&format!("{}/{name}", self.path_of_dir(dir))), id))
    }

    fn fresh_name(&mut self) -> String {
        self.next += 1;
        let tail = match self.rng.random_range(0..10) {
            0 => self.rng.random_range(100..240),
            1..=4 => self.rng.random_range(0..50),
            _ => 0,
        };
        format!("{}{}", self.next, "n".repeat(tail))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let first: u8 = self.rng.random();
        (0..len).map(|at| first.wrapping_add((at / 7) as u8) | 1).collect()
    }

    fn file(&mut self, id: Id) -> &mut Vec<u8> {
        match &mut self.nodes.get_mut(&id).unwrap().body {
            Body::File(content) => content,
            other => panic!("no file: {other:?}"),
        }
    }

    fn create(&mut self) {
        let dir = self.pick_dir();
        let name = self.fresh_name();
        let (kind, target) = match self.rng.random_range(0..20) {
            0..=12 => (FileType::Regular, Vec::new()),
            13..=15 => (FileType::Directory, Vec::new()),
            16..=18 => {
                let len = self.rng.random_range(1..1000);
                (FileType::Symlink, self.bytes(len))
            }
            _ => (FileType::Fifo, Vec::new()),
        };
        let spec = CreateSpec { target: target.clone(), ..CreateSpec::of(kind, 0o755) };
        let made = self.vfs().create(&Cred::root(), &self.at_dir(dir), name.as_bytes(), &spec, false);
        if is_full(&made) {
            self.full += 1;
            return;
        }
        made.unwrap();
        let (body, links) = match kind {
            FileType::Directory => (Body::Dir(BTreeMap::new()), 2),
            FileType::Symlink => (Body::Link(target), 1),
            FileType::Regular => (Body::File(Vec::new()), 1),
            _ => (Body::Special, 1),
        };
        let id = self.next;
        self.nodes.insert(id, Node { body, xattrs: Attributes::new(), parent: dir, links });
        self.dir_mut(dir).insert(name, id);
        if kind == FileType::Directory {
            self.nodes.get_mut(&dir).unwrap().links += 1;
        }
    }

    fn drop_name(&mut self, dir: Id, name: &str) {
        let id = self.dir_mut(dir).remove(name).unwrap();
        let node = self.nodes.get_mut(&id).unwrap();
        if matches!(node.body, Body::Dir(_)) {
            self.nodes.remove(&id);
            self.nodes.get_mut(&dir).unwrap().links -= 1;
            return;
        }
        node.links -= 1;
        if node.links == 0 {
            self.nodes.remove(&id);
        }
    }

    fn write(&mut self) {
        let Some((inode, id)) = self.pick_file() else { return };
        let size = self.file(id).len();
        let len = match self.rng.random_range(0..10) {
            0 => self.rng.random_range(1..400_000usize),
            1..=4 => self.rng.random_range(1..20_000),
            _ => self.rng.random_range(1..600),
        };
        let offset = match self.rng.random_range(0..3) {
            0 => size,
            1 => self.rng.random_range(0..=size),
            _ => self.rng.random_range(0..size + 300_000),
        };
        let offset = offset.min(FILE_MAX - len);
        let data = self.bytes(len);
        let before = self.vfs().change(&inode);
        let written = self.vfs().write(&Cred::root(), &inode, offset as u64, &data, WriteFlags::empty());
        if is_full(&written) {
            self.full += 1;
            return;
        }
        let written = written.unwrap();
        assert!(before.is_none() || self.vfs().change(&inode) > before, "C1, C2");
        let content = self.file(id);
        if content.len() < offset + written {
            content.resize(offset + written, 0);
        }
        content[offset..offset + written].copy_from_slice(&data[..written]);
    }

    fn resize(&mut self) {
        let Some((inode, id)) = self.pick_file() else { return };
        let most = self.file(id).len() * 2 + 10_000;
        let size = self.rng.random_range(0..most).min(FILE_MAX);
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let done = self.vfs().set_attr(&Cred::root(), &inode, &set);
        if is_full(&done) {
            self.full += 1;
            return;
        }
        done.unwrap();
        self.file(id).resize(size, 0);
    }

    /// Whether `fallocate` has no other modes: a file of UFS has no blocks past its end.
    fn only_allocates(&self) -> bool {
        self.vfs().info().fs_type.starts_with("ufs")
    }

    fn allocate(&mut self) {
        if self.vfs().fs().allocation().is_none() {
            return self.write();
        }
        let Some((inode, id)) = self.pick_file() else { return };
        let size = self.file(id).len();
        let (offset, len) = (self.rng.random_range(0..size + 50_000), self.rng.random_range(1..200_000usize));
        let mode = match self.rng.random_range(0..4) {
            0 => FallocateMode::empty(),
            1 => FallocateMode::KEEP_SIZE,
            2 => FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
            _ => FallocateMode::ZERO_RANGE,
        };
        let done = self.vfs().fallocate(&Cred::root(), &inode, mode, offset as u64, len as u64);
        if is_full(&done) {
            // A part may be allocated.
            self.full += 1;
        } else if self.only_allocates() && !mode.is_empty() {
            let refused = matches!(done, Err(Error::Name(NameError::NotSupported)));
            return assert!(refused, "{mode:?} is not supported: {done:?}");
        } else if !(mode == FallocateMode::KEEP_SIZE && self.vfs().info().fs_type == "ocfs2") {
            // OCFS2 refuses space past the end.
            done.unwrap();
        }
        let shown = self.vfs().stat(&inode).size as usize;
        let content = self.file(id);
        content.resize(shown, 0);
        if mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE) {
            let end = (offset + len).min(content.len());
            content[offset.min(end)..end].fill(0);
        }
    }

    /// Copies a part of a file to another, or within one. Most of it can be shared.
    fn copy(&mut self) {
        let (Some((from, source)), Some((to, target))) = (self.pick_file(), self.pick_file()) else { return };
        let block = self.vfs().info().block_size as usize;
        let (size, most) = (self.file(source).len(), self.file(target).len());
        let step = if self.rng.random_bool(0.2) { 1 } else { block };
        let mut place = |most: usize| self.rng.random_range(0..=most / step) * step;
        let (from_at, to_at) = (place(size / 2), place(most + 10_000));
        let len = if self.rng.random_bool(0.5) { size } else { self.rng.random_range(1..=size.max(1)) };
        let len = len.min(size - from_at).min(FILE_MAX.saturating_sub(to_at));
        let before = self.vfs().change(&to);
        let [from_place, to_place, bytes] = [from_at, to_at, len].map(|number| number as u64);
        let done = self.vfs().copy_range(&Cred::root(), &from, from_place, &to, to_place, bytes);
        let apart = from_at + len <= to_at || to_at + len <= from_at;
        if source == target && !apart && len > 0 {
            assert!(matches!(done, Err(Error::Name(NameError::Invalid))), "{done:?}");
            return;
        }
        if is_full(&done) {
            self.full += 1;
            return;
        }
        let done = done.unwrap() as usize;
        assert!(done <= len && (done > 0 || len == 0), "{done} of {len} bytes");
        assert!(before.is_none() || done == 0 || self.vfs().change(&to) > before, "C1, C2");
        let bytes = self.file(source)[from_at..from_at + done].to_vec();
        let content = self.file(target);
        if done > 0 {
            let size = content.len().max(to_at + done);
            content.resize(size, 0);
            content[to_at..to_at + done].copy_from_slice(&bytes);
        }
    }

    fn rename(&mut self) {
        let Some((old_dir, old_name, id)) = self.pick(|_| true) else { return };
        let is_dir = matches!(self.nodes[&id].body, Body::Dir(_));
        let new_dir = self.pick_dir();
        if is_dir
            && format!("{}/", self.path_of_dir(new_dir)).starts_with(&format!("{}/", self.path_of_dir(id)))
        {
            return;
        }
        let target = match self.rng.random_range(0..3) {
            0 => self.dir(new_dir).iter().next().map(|(name, id)| (name.clone(), *id)),
            _ => None,
        };
        let (new_name, exchange) = match &target {
            None => (self.fresh_name(), false),
            Some((name, target)) if *target != id => {
                let target_dir = matches!(self.nodes[target].body, Body::Dir(_));
                let inside = format!("{}/", self.path_of_dir(old_dir));
                let cycle = target_dir && inside.starts_with(&format!("{}/", self.path_of_dir(*target)));
                let exchange = self.rng.random_bool(0.4) && !cycle;
                let fits = is_dir == target_dir && (!is_dir || self.dir(*target).is_empty());
                if cycle || (!exchange && !fits) {
                    return;
                }
                (name.clone(), exchange)
            }
            Some(_) => return,
        };
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        let (from, to) = (self.at_dir(old_dir), self.at_dir(new_dir));
        let (old, new) = (old_name.as_bytes(), new_name.as_bytes());
        let done = self.vfs().rename(&Cred::root(), &from, old, &to, new, flags, false);
        if is_full(&done) {
            self.full += 1;
            return;
        }
        if exchange && matches!(done, Err(Error::Name(NameError::NotSupported))) {
            return;
        }
        done.unwrap();
        if exchange {
            let (_, target) = target.unwrap();
            let target_dir = matches!(self.nodes[&target].body, Body::Dir(_));
            self.dir_mut(new_dir).insert(new_name, id);
            self.dir_mut(old_dir).insert(old_name, target);
            self.nodes.get_mut(&target).unwrap().parent = old_dir;
            if target_dir {
                self.nodes.get_mut(&new_dir).unwrap().links -= 1;
                self.nodes.get_mut(&old_dir).unwrap().links += 1;
            }
        } else {
            if target.is_some() {
                self.drop_name(new_dir, &new_name);
            }
            self.dir_mut(old_dir).remove(&old_name);
            self.dir_mut(new_dir).insert(new_name, id);
        }
        self.nodes.get_mut(&id).unwrap().parent = new_dir;
        if is_dir {
            self.nodes.get_mut(&old_dir).unwrap().links -= 1;
            self.nodes.get_mut(&new_dir).unwrap().links += 1;
        }
    }

    fn link(&mut self) {
        let Some((dir, name, id)) = self.pick(|body| !matches!(body, Body::Dir(_))) else { return };
        let inode = self.at(&format!("{}/{name}", self.path_of_dir(dir)));
        let (to, name) = (self.pick_dir(), self.fresh_name());
        let done = self.vfs().link(&Cred::root(), &inode, &self.at_dir(to), name.as_bytes(), false);
        if is_full(&done) {
            self.full += 1;
            return;
        }
        done.unwrap();
        self.dir_mut(to).insert(name, id);
        self.nodes.get_mut(&id).unwrap().links += 1;
    }

    fn set_xattr(&mut self) {
        if self.prefixes.is_empty() {
            return self.write();
        }
        let Some((dir, name, id)) = self.pick(|body| matches!(body, Body::File(_) | Body::Dir(_))) else {
            return;
        };
        let inode = self.at(&format!("{}/{name}", self.path_of_dir(dir)));
        let prefix = self.prefixes[self.rng.random_range(0..self.prefixes.len())];
        let tail = "a".repeat(self.rng.random_range(0..40));
        let name = format!("{prefix}.{}{tail}", self.rng.random_range(0..12)).into_bytes();
        let had = self.nodes[&id].xattrs.contains_key(&name);
        if had && self.rng.random_bool(0.5) {
            self.vfs().remove_xattr(&Cred::root(), &inode, &name).unwrap();
            self.nodes.get_mut(&id).unwrap().xattrs.remove(&name);
            return;
        }
        let len = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(0..=65536usize),
            1..=3 => self.rng.random_range(0..5000),
            _ => self.rng.random_range(0..200),
        };
        let value = self.bytes(len.min(self.vfs().xattr_value_max() as usize / 3 * 2));
        let done = self.vfs().set_xattr(&Cred::root(), &inode, &name, &value, XattrMode::Any);
        if is_full(&done) {
            self.full += 1;
            return;
        }
        done.unwrap();
        self.nodes.get_mut(&id).unwrap().xattrs.insert(name, value);
    }

    fn set_attr(&mut self) {
        let Some((dir, name, _)) = self.pick(|_| true) else { return };
        let inode = self.at(&format!("{}/{name}", self.path_of_dir(dir)));
        let set = SetAttr {
            perm: Some(self.rng.random_range(0..0o1000)),
            uid: Some(self.rng.random_range(0..70_000)),
            mtime: Some(TimeSet::At(Timestamp { sec: self.rng.random_range(1..2_000_000_000), nsec: 7 })),
            ..SetAttr::default()
        };
        self.vfs().set_attr(&Cred::root(), &inode, &set).unwrap();
    }

    /// A step that changes the contents of a file.
    pub fn step_in_file(&mut self) {
        match self.rng.random_range(0..10) {
            0..=3 => self.write(),
            4..=5 => self.copy(),
            6 => self.resize(),
            7 => self.allocate(),
            8 => {
                let Some((inode, _)) = self.pick_file() else { return };
                self.vfs().fsync(&inode, false).unwrap();
            }
            _ => self.step(),
        }
    }

    pub fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..=25 => self.create(),
            26..=29 => self.copy(),
            30..=51 => self.write(),
            52..=55 => self.resize(),
            56..=59 => self.allocate(),
            60..=73 => {
                let Some((dir, name, id)) = self.pick(|_| true) else { return };
                let parent = self.at_dir(dir);
                match &self.nodes[&id].body {
                    Body::Dir(names) => {
                        let empty = names.is_empty();
                        let done = self.vfs().rmdir(&Cred::root(), &parent, name.as_bytes(), false);
                        assert_eq!(done.is_ok(), empty, "rmdir {name}: {done:?}");
                        if !empty {
                            return;
                        }
                    }
                    _ => drop(self.vfs().unlink(&Cred::root(), &parent, name.as_bytes(), false).unwrap()),
                }
                self.drop_name(dir, &name);
            }
            74..=81 => self.rename(),
            82..=85 => self.link(),
            86..=93 => self.set_xattr(),
            94..=97 => self.set_attr(),
            98 => self.vfs().sync().unwrap(),
            _ => {
                let Some((inode, _)) = self.pick_file() else { return };
                self.vfs().fsync(&inode, false).unwrap();
            }
        }
    }

    /// Compares the mounted filesystem with the model.
    pub fn check(&self, what: &str) {
        let mut seen = BTreeMap::new();
        self.check_dir(ROOT, &self.vfs().root().unwrap(), "", &mut seen, what);
        assert_eq!(seen.len() + 1, self.nodes.len(), "{what}: inodes");
    }

    fn check_dir(&self, id: Id, dir: &InodeRef, path: &str, seen: &mut BTreeMap<Id, Ino>, what: &str) {
        let mut names = Vec::new();
        self.vfs()
            .readdir(&Cred::root(), dir, 0, &mut |entry| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                ControlFlow::Continue(())
            })
            .unwrap();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        let expected: Vec<_> = self.dir(id).keys().cloned().collect();
        assert_eq!(names, expected, "{what}: names of {path}/");
        for (name, child) in self.dir(id) {
            let path = format!("{path}/{name}");
            let inode = self.vfs().lookup(&Cred::root(), dir, name.as_bytes());
            let inode = inode.unwrap_or_else(|error| panic!("{what}: {path}: {error}"));
            let first = *seen.entry(*child).or_insert(inode.ino);
            assert_eq!(first, inode.ino, "{what}: {path}: a hard link");
            self.check_node(*child, &inode, &path, what);
            if matches!(self.nodes[child].body, Body::Dir(_)) {
                self.check_dir(*child, &inode, &path, seen, what);
            }
        }
    }

    fn check_node(&self, id: Id, inode: &InodeRef, path: &str, what: &str) {
        let node = &self.nodes[&id];
        let attr = self.vfs().stat(inode);
        // Some formats count no links of directories.
        let counts = inode.kind != FileType::Directory || self.vfs().stat(&self.at("")).nlink > 1;
        assert_eq!(attr.nlink, if counts { node.links } else { 1 }, "{what}: {path}: links");
        match &node.body {
            Body::File(content) => {
                let found = super::read_all(self.vfs(), inode).unwrap();
                assert_eq!(found.len(), content.len(), "{what}: {path}: size");
                let differs = (0..found.len()).find(|at| found[*at] != content[*at]);
                assert_eq!(differs, None, "{what}: {path}: contents of {} bytes", found.len());
            }
            Body::Link(target) => {
                assert_eq!(self.vfs().read_link(&Cred::root(), inode).unwrap(), *target, "{what}: {path}");
            }
            _ => {}
        }
        let names = self.attributes(inode);
        let mut names: Vec<_> = names.into_iter().filter(|name| name != b"security.capability").collect();
        names.sort();
        assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>(), "{what}: {path}: attributes");
        for (name, value) in &node.xattrs {
            let found = self.vfs().get_xattr(&Cred::root(), inode, name).unwrap();
            assert!(found == *value, "{what}: {path}: {}", name.escape_ascii());
        }
    }

    /// The change attributes of all inodes, to compare them across a remount.
    pub fn values(&self) -> BTreeMap<String, Option<u64>> {
        let mut values = BTreeMap::new();
        for (id, node) in &self.nodes {
            let Body::Dir(names) = &node.body else { continue };
            let path = self.path_of_dir(*id);
            for name in names.keys() {
                let path = format!("{path}/{name}");
                values.insert(path.clone(), self.vfs().change(&self.at(&path)));
            }
        }
        values
    }
}
