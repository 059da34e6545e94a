//! Random operations beside a model.

use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const NAMES: u32 = 12;
const LARGEST: u64 = 64 << 10;

/// What to run.
pub struct Plan<'a> {
    /// Replays a run.
    pub seed: u64,
    /// How many operations.
    pub operations: u32,
    /// Unmounts cleanly and mounts again, where values must outlive that (`ChangeSemantics::persistent`).
    #[allow(clippy::type_complexity)]
    pub remount: Option<&'a dyn Fn(Arc<Vfs>) -> Arc<Vfs>>,
}

/// What was done.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Operations that succeeded.
    pub done: u32,
    /// Values compared after a change.
    pub differed: u32,
    /// Values compared after none.
    pub rested: u32,
    /// Remounts.
    pub remounts: u32,
}

struct Known {
    /// Kept, so that the inode stays in memory where values are stored nowhere.
    inode: Option<InodeRef>,
    contents: Option<Vec<u8>>,
    xattrs: BTreeMap<String, Vec<u8>>,
    perm: u32,
    nlink: u32,
    last: Option<u64>,
    changed: bool,
}

struct Run<'a> {
    vfs: Arc<Vfs>,
    rng: StdRng,
    seed: u64,
    step: u32,
    inodes: BTreeMap<Ino, Known>,
    /// (directory, name) -> inode.
    names: BTreeMap<(Ino, String), Ino>,
    report: Report,
    plan: &'a Plan<'a>,
}

/// Run the plan; panics with the seed at the first broken promise. Leaves what it made below a new directory `contract`.
pub fn run(vfs: Arc<Vfs>, plan: &Plan<'_>) -> (Arc<Vfs>, Report) {
    eprintln!("contract: seed {}", plan.seed);
    let root = vfs.root().expect("the root");
    let top = vfs
        .create(&Cred::root(), &root, b"contract", &CreateSpec::directory(0o755), false)
        .expect("a directory")
        .0;
    drop(root);
    let mut run = Run {
        vfs,
        rng: StdRng::seed_from_u64(plan.seed),
        seed: plan.seed,
        step: 0,
        inodes: BTreeMap::new(),
        names: BTreeMap::new(),
        report: Report::default(),
        plan,
    };
    let nlink = top.attr().nlink;
    run.know(top, nlink);
    for step in 0..plan.operations {
        run.step = step;
        run.operate();
    }
    run.check_all();
    run.inodes.clear();
    (run.vfs, run.report)
}

impl Run<'_> {
    #[track_caller]
    fn broken(&self, what: String) -> ! {
        panic!("contract broken at operation {} of seed {}: {what}", self.step, self.seed);
    }

    fn know(&mut self, inode: InodeRef, nlink: u32) {
        let contents = (inode.kind == FileType::Regular).then(Vec::new);
        let perm = inode.attr().perm;
        let known = Known {
            contents,
            xattrs: BTreeMap::new(),
            perm,
            nlink,
            last: None,
            changed: false,
            inode: Some(inode.clone()),
        };
        self.inodes.insert(inode.ino, known);
    }

    fn inode(&self, ino: Ino) -> InodeRef {
        match self.inodes.get(&ino).and_then(|known| known.inode.clone()) {
            Some(inode) => inode,
            None => self.ok("get", self.vfs.get(ino)),
        }
    }

    #[track_caller]
    fn ok<T>(&self, what: &str, result: Result<T>) -> T {
        result.unwrap_or_else(|error| self.broken(format!("{what}: {error}")))
    }

    fn changed(&mut self, ino: Ino) {
        self.report.done += 1;
        if let Some(known) = self.inodes.get_mut(&ino) {
            known.changed = true;
        }
    }

    fn pick(&mut self, wanted: impl Fn(&Known) -> bool) -> Option<Ino> {
        let all: Vec<Ino> =
            self.inodes.iter().filter(|(_, known)| wanted(known)).map(|(ino, _)| *ino).collect();
        (!all.is_empty()).then(|| all[self.rng.random_range(0..all.len())])
    }

    fn file(&mut self) -> Option<Ino> {
        self.pick(|known| known.contents.is_some())
    }

    fn dir(&mut self) -> Ino {
        self.pick(|known| known.contents.is_none() && known.nlink > 0).expect("the top directory stays")
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.random_range(0..NAMES))
    }

    fn operate(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => self.write(),
            25..30 => self.set_size(),
            30..36 => self.chmod(),
            36..42 => self.xattr(),
            42..52 => self.create(),
            52..57 => self.link(),
            57..65 => self.remove(),
            65..73 => self.rename(),
            73..78 => self.look_without_change(),
            78..80 => self.sync(),
            80..82 => self.range(),
            99 if self.rng.random_range(0..20) == 0 => self.remount(),
            _ => {
                if let Some(ino) = self.pick(|_| true) {
                    self.query(ino);
                }
            }
        }
    }

    fn query(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        let Some(value) = self.vfs.change(&inode) else { self.broken(format!("inode {ino} has no cookie")) };
        let known = &self.inodes[&ino];
        let (last, changed) = (known.last, known.changed);
        match last {
            Some(last) if changed && (value.wrapping_sub(last) << 1) as i64 <= 0 => {
                self.broken(format!("C1/C2: inode {ino} changed, and its value went from {last} to {value}"))
            }
            Some(last) if !changed && value != last => self.broken(format!(
                "C3: nothing changed inode {ino}, and its value went from {last} to {value}"
            )),
            Some(_) if changed => self.report.differed += 1,
            Some(_) => self.report.rested += 1,
            None => {}
        }
        let known = self.inodes.get_mut(&ino).expect("it was there");
        (known.last, known.changed) = (Some(value), false);
    }

    fn check_all(&mut self) {
        for ino in self.inodes.keys().copied().collect::<Vec<_>>() {
            self.query(ino);
            self.check(ino);
        }
    }

    /// The filesystem agrees with the model.
    fn check(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        let attr = self.vfs.stat(&inode);
        let known = &self.inodes[&ino];
        if (attr.perm, attr.nlink) != (known.perm, known.nlink) {
            self.broken(format!(
                "inode {ino}: mode {:o} and {} names, expected {:o} and {}",
                attr.perm, attr.nlink, known.perm, known.nlink
            ));
        }
        if let Some(contents) = &known.contents {
            let mut buf = vec![0xEE; contents.len() + 1];
            let got = self.ok("read", self.vfs.read(&inode, 0, &mut buf));
            if buf[..got] != contents[..] {
                self.broken(format!(
                    "inode {ino}: contents differ ({got} bytes, expected {})",
                    contents.len()
                ));
            }
        } else {
            let mut names = Vec::new();
            let listed = self.vfs.readdir(&inode, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    names.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
                }
                ControlFlow::Continue(())
            });
            self.ok("readdir", listed);
            names.sort();
            let mut want: Vec<_> = self
                .names
                .iter()
                .filter(|((dir, _), _)| *dir == ino)
                .map(|((_, name), ino)| (name.clone(), *ino))
                .collect();
            want.sort();
            if names != want {
                self.broken(format!("directory {ino}: {names:?}, expected {want:?}"));
            }
        }
        for (name, value) in &self.inodes[&ino].xattrs {
            if self.vfs.get_xattr(&Cred::root(), &inode, name).ok().as_ref() != Some(value) {
                self.broken(format!("inode {ino}: attribute {name} differs"));
            }
        }
    }

    fn write(&mut self) {
        let Some(ino) = self.file() else { return };
        let inode = self.inode(ino);
        let offset = self.rng.random_range(0..LARGEST) as usize;
        let len = if self.rng.random_bool(0.5) { 1 } else { self.rng.random_range(1..9000) };
        let byte: u8 = self.rng.random();
        let flags = match self.rng.random_range(0..20) {
            0 => WriteFlags::DIRECT,
            1 => WriteFlags::SYNC,
            2 => WriteFlags::APPEND,
            _ => WriteFlags::empty(),
        };
        let wrote =
            self.ok("write", self.vfs.write(&Cred::root(), &inode, offset as u64, &vec![byte; len], flags));
        let contents = self.inodes.get_mut(&ino).and_then(|known| known.contents.as_mut()).expect("a file");
        let offset = if flags.contains(WriteFlags::APPEND) { contents.len() } else { offset };
        contents.resize(contents.len().max(offset + wrote), 0);
        contents[offset..offset + wrote].fill(byte);
        self.changed(ino);
    }

    fn set_size(&mut self) {
        let Some(ino) = self.file() else { return };
        let inode = self.inode(ino);
        let size = self.rng.random_range(0..LARGEST);
        self.ok(
            "truncate",
            self.vfs.set_attr(&Cred::root(), &inode, &SetAttr { size: Some(size), ..SetAttr::default() }),
        );
        let contents = self.inodes.get_mut(&ino).and_then(|known| known.contents.as_mut()).expect("a file");
        contents.resize(size as usize, 0);
        self.changed(ino);
    }

    fn range(&mut self) {
        let Some(ino) = self.file() else { return };
        let inode = self.inode(ino);
        let (offset, len) = (self.rng.random_range(0..LARGEST), self.rng.random_range(1..20_000));
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        match self.vfs.fallocate(&Cred::root(), &inode, punch, offset, len) {
            Err(Error::Name(NameError::NotSupported)) => return,
            other => self.ok("punch", other),
        }
        let contents = self.inodes.get_mut(&ino).and_then(|known| known.contents.as_mut()).expect("a file");
        let end = ((offset + len) as usize).min(contents.len());
        if (offset as usize) < end {
            contents[offset as usize..end].fill(0);
        }
        self.changed(ino);
    }

    fn chmod(&mut self) {
        let Some(ino) = self.pick(|_| true) else { return };
        let inode = self.inode(ino);
        let perm = self.rng.random_range(0..0o1000);
        self.ok(
            "chmod",
            self.vfs.set_attr(&Cred::root(), &inode, &SetAttr { perm: Some(perm), ..SetAttr::default() }),
        );
        self.inodes.get_mut(&ino).expect("known").perm = perm;
        self.changed(ino);
    }

    fn xattr(&mut self) {
        if self.vfs.info().xattr_value_max == 0 {
            return;
        }
        let Some(ino) = self.pick(|_| true) else { return };
        let inode = self.inode(ino);
        let name = format!("user.x{}", self.rng.random_range(0..3));
        if self.inodes[&ino].xattrs.contains_key(&name) && self.rng.random_bool(0.3) {
            self.ok("remove xattr", self.vfs.remove_xattr(&Cred::root(), &inode, &name));
            self.inodes.get_mut(&ino).expect("known").xattrs.remove(&name);
        } else {
            let value = vec![self.rng.random(); self.rng.random_range(1..200)];
            match self.vfs.set_xattr(&Cred::root(), &inode, &name, &value, XattrMode::Any) {
                Err(Error::Name(NameError::NoSpace | NameError::AttributeTooLarge)) => return,
                other => self.ok("set xattr", other),
            }
            self.inodes.get_mut(&ino).expect("known").xattrs.insert(name, value);
        }
        self.changed(ino);
    }

    fn check_info(&mut self, info: Option<ChangeInfo>, dir: Ino) {
        let Some(info) = info else { return };
        if info.after <= info.before {
            self.broken(format!("change info of directory {dir}: {info:?}"));
        }
        let known = self.inodes.get_mut(&dir).expect("known");
        let (last, changed) = (known.last, known.changed);
        (known.last, known.changed) = (Some(info.after), false);
        if !changed && last.is_some_and(|last| last != info.before) {
            self.broken(format!("C3: directory {dir} rested at {last:?} and says {info:?}"));
        }
    }

    fn create(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let parent = self.inode(dir);
        let is_dir = self.rng.random_bool(0.25);
        let spec = if is_dir { CreateSpec::directory(0o755) } else { CreateSpec::file(0o644) };
        let want_info = self.rng.random_bool(0.5);
        let result = self.vfs.create(&Cred::root(), &parent, name.as_bytes(), &spec, want_info);
        if self.names.contains_key(&(dir, name.clone())) {
            match result {
                Err(Error::Name(NameError::Exists)) => return,
                other => self.broken(format!("create over a name: {other:?}")),
            }
        }
        let (inode, info) = self.ok("create", result);
        self.check_info(info, dir);
        let ino = inode.ino;
        self.know(inode, if is_dir { 2 } else { 1 });
        self.names.insert((dir, name), ino);
        if info.is_none() {
            self.changed(dir);
        }
        if is_dir {
            self.inodes.get_mut(&dir).expect("known").nlink += 1;
        }
        // Its own life begins: whatever is seen first counts.
        self.query(ino);
    }

    fn link(&mut self) {
        let Some(ino) = self.pick(|known| known.contents.is_some() && known.nlink > 0) else { return };
        let (dir, name) = (self.dir(), self.name());
        if self.names.contains_key(&(dir, name.clone())) {
            return;
        }
        let (inode, parent) = (self.inode(ino), self.inode(dir));
        self.ok("link", self.vfs.link(&Cred::root(), &inode, &parent, name.as_bytes(), false));
        self.names.insert((dir, name), ino);
        self.inodes.get_mut(&ino).expect("known").nlink += 1;
        self.changed(ino);
        self.changed(dir);
    }

    fn any_name(&mut self) -> Option<(Ino, String, Ino)> {
        if self.names.is_empty() {
            return None;
        }
        let nth = self.rng.random_range(0..self.names.len());
        self.names.iter().nth(nth).map(|((dir, name), ino)| (*dir, name.clone(), *ino))
    }

    /// The name is gone from the model: so may be the inode.
    fn lost_name(&mut self, dir: Ino, ino: Ino) {
        let is_dir = self.inodes[&ino].contents.is_none();
        let known = self.inodes.get_mut(&ino).expect("known");
        known.nlink = if is_dir { 0 } else { known.nlink - 1 };
        known.changed = true;
        if known.nlink == 0 {
            // Deleted files stay for a last look now and then; directories go.
            self.query(ino);
            self.inodes.remove(&ino);
        }
        if is_dir {
            self.inodes.get_mut(&dir).expect("known").nlink -= 1;
        }
    }

    fn remove(&mut self) {
        let Some((dir, name, ino)) = self.any_name() else { return };
        let parent = self.inode(dir);
        let want_info = self.rng.random_bool(0.5);
        let is_dir = self.inodes[&ino].contents.is_none();
        let result = if is_dir {
            self.vfs.rmdir(&Cred::root(), &parent, name.as_bytes(), want_info)
        } else {
            self.vfs.unlink(&Cred::root(), &parent, name.as_bytes(), want_info)
        };
        if self.names.keys().any(|(dir, _)| *dir == ino) {
            match result {
                Err(Error::Name(NameError::NotEmpty)) => return,
                other => self.broken(format!("rmdir of a full directory: {other:?}")),
            }
        }
        let info = self.ok("unlink", result);
        self.check_info(info, dir);
        if info.is_none() {
            self.changed(dir);
        }
        self.names.remove(&(dir, name));
        self.lost_name(dir, ino);
    }

    fn rename(&mut self) {
        let Some((old_dir, old_name, ino)) = self.any_name() else { return };
        let (new_dir, new_name) = (self.dir(), self.name());
        let target = self.names.get(&(new_dir, new_name.clone())).copied();
        let (from, to) = (self.inode(old_dir), self.inode(new_dir));
        let result = self.vfs.rename(
            &Cred::root(),
            &from,
            old_name.as_bytes(),
            &to,
            new_name.as_bytes(),
            RenameFlags::empty(),
            false,
        );
        match result {
            Ok(_) => {}
            Err(Error::Name(
                NameError::Invalid | NameError::NotEmpty | NameError::IsDirectory | NameError::NotDirectory,
            )) => return,
            Err(error) => self.broken(format!("rename: {error}")),
        }
        if target == Some(ino) {
            return;
        }
        let is_dir = self.inodes[&ino].contents.is_none();
        self.names.remove(&(old_dir, old_name));
        self.names.insert((new_dir, new_name), ino);
        self.changed(old_dir);
        self.changed(new_dir);
        self.changed(ino);
        if is_dir && old_dir != new_dir {
            self.inodes.get_mut(&old_dir).expect("known").nlink -= 1;
            self.inodes.get_mut(&new_dir).expect("known").nlink += 1;
        }
        if let Some(target) = target {
            self.lost_name(new_dir, target);
        }
    }

    /// Reading, listing and asking change nothing.
    fn look_without_change(&mut self) {
        if let Some(ino) = self.pick(|_| true) {
            self.check(ino);
        }
        if let Some((dir, name, ino)) = self.any_name() {
            let parent = self.inode(dir);
            let found = self.ok("lookup", self.vfs.lookup(&Cred::root(), &parent, name.as_bytes()));
            if found.ino != ino {
                self.broken(format!("{name} in {dir} is inode {}, expected {ino}", found.ino));
            }
        }
    }

    /// Background work changes nothing.
    fn sync(&mut self) {
        if self.rng.random_bool(0.5) {
            self.ok("sync", self.vfs.sync());
        } else if let Some(ino) = self.pick(|_| true) {
            let inode = self.inode(ino);
            self.ok("fsync", self.vfs.fsync(&inode, false));
        }
    }

    fn remount(&mut self) {
        let Some(remount) = self.plan.remount else { return };
        let persistent = self.vfs.info().semantics.persistent;
        for known in self.inodes.values_mut() {
            known.inode = None;
            if !persistent {
                known.last = None;
            }
        }
        self.vfs = remount(self.vfs.clone());
        for ino in self.inodes.keys().copied().collect::<Vec<_>>() {
            let inode = self.ok("get after a remount", self.vfs.get(ino));
            self.inodes.get_mut(&ino).expect("known").inode = Some(inode);
        }
        self.report.remounts += 1;
    }
}
