//! The model: names and contents, the value of each file's last query, and whether anything has happened
//! since.

use crate::op::*;
use crate::subject::{Limits, Seen};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The model's prediction for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Must succeed.
    Done,
    /// Must fail and change nothing.
    Fails,
    /// Has no meaning in this state (part of a shrunk script), or is not modelled.
    Skip,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touched {
    Data,
    Metadata,
    /// An operation had no visible effect: it can count as a change or not.
    Perhaps,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) perm: u32,
    pub(crate) xattrs: BTreeMap<u8, Vec<u8>>,
    acl: bool,
    pub(crate) names: u32,
    mtime: Option<i64>,
    /// The value of the last query, and what has happened since.
    pub(crate) last: Option<u64>,
    pub(crate) data: bool,
    pub(crate) metadata: bool,
    pub(crate) perhaps: bool,
    pub(crate) remounted: bool,
}

impl Node {
    fn new(kind: Kind) -> Self {
        let perm = if kind == Kind::Directory { 0o755 } else { 0o644 };
        Self {
            kind,
            bytes: Vec::new(),
            perm,
            xattrs: BTreeMap::new(),
            acl: false,
            names: 1,
            mtime: None,
            last: None,
            data: false,
            metadata: false,
            perhaps: false,
            remounted: false,
        }
    }

    pub(crate) fn record_value(&mut self, value: u64) {
        self.last = Some(value);
        (self.data, self.metadata, self.perhaps, self.remounted) = (false, false, false, false);
    }

    /// Forgets the value of the last query.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    pub(crate) fn touch(&mut self, touched: Touched) {
        match touched {
            Touched::Data => {
                self.data = true;
                self.mtime = None;
            }
            Touched::Metadata => self.metadata = true,
            Touched::Perhaps => self.perhaps = true,
        }
    }
}

pub(crate) type Id = usize;
pub(crate) const TOP: Id = 0;

/// The model; see the module.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<Id, Node>,
    /// The identifier of the next file.
    pub(crate) next: Id,
    pub(crate) paths: BTreeMap<String, Id>,
    /// Paths that no operation has named since the last remount, so that the kernel may not know them.
    unseen: BTreeSet<String>,
    pub(crate) open: [Option<Id>; SLOTS as usize],
    /// The mapped files, with the length of each mapping.
    pub(crate) maps: [Option<(Id, u32)>; SLOTS as usize],
    limits: Limits,
}

fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        let nodes = BTreeMap::from([(TOP, Node::new(Kind::Directory))]);
        let paths = BTreeMap::from([(String::new(), TOP)]);
        let (open, maps) = ([None; SLOTS as usize], [None; SLOTS as usize]);
        Self { nodes, next: TOP + 1, paths, unseen: BTreeSet::new(), open, maps, limits }
    }

    /// Whether a file is open, or mapped, and no operation has named any of its names since the last remount.
    pub(crate) fn is_held_without_name(&self, id: Id) -> bool {
        let is_seen = |(path, named): (&String, &Id)| *named == id && !self.unseen.contains(path);
        self.is_held(id) && !self.paths.iter().any(is_seen)
    }

    fn is_held(&self, id: Id) -> bool {
        self.open.contains(&Some(id)) || self.maps.iter().flatten().any(|(mapped, _)| *mapped == id)
    }

    pub(crate) fn id(&self, on: On<'_>) -> Option<Id> {
        match on {
            On::At(path) => self.paths.get(path).copied(),
            On::Open(slot) => self.open[usize::from(slot)],
        }
    }

    fn kind(&self, on: On<'_>) -> Option<Kind> {
        self.id(on).map(|id| self.nodes[&id].kind)
    }

    fn is_file(&self, on: On<'_>) -> bool {
        self.kind(on) == Some(Kind::File)
    }

    fn dir(&self, path: &str) -> Option<Id> {
        let parent = parent_of(path);
        (self.kind(On::At(parent)) == Some(Kind::Directory)).then(|| self.paths[parent])
    }

    fn is_empty(&self, dir: &str) -> bool {
        !self.paths.keys().any(|path| is_below(path, dir))
    }

    /// Returns the directories whose change info an operation can return, or the file whose attribute it
    /// changes.
    pub(crate) fn parents(&self, op: &Op) -> Vec<Id> {
        match op {
            Op::Create { path, .. } | Op::Born { path, .. } | Op::Remove { path, .. } => {
                self.dir(path).into_iter().collect()
            }
            Op::SetXattr { on, .. } | Op::RemoveXattr { on, .. } => self.id(*on).into_iter().collect(),
            Op::Link { to, .. } => self.dir(to).into_iter().collect(),
            Op::Rename { from, to, .. } => [self.dir(from), self.dir(to)].into_iter().flatten().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn judge(&self, op: &Op) -> Verdict {
        use Verdict::*;
        let when = |works: bool| if works { Done } else { Fails };
        let unless_missing = |on: On<'_>, works: bool| match self.id(on) {
            Some(_) => when(works),
            // An empty slot cannot be queried.
            None => {
                if matches!(on, On::At(_)) {
                    Fails
                } else {
                    Skip
                }
            }
        };
        let no_link = |on: On<'_>| self.kind(on) != Some(Kind::Symlink);
        match *op {
            Op::Create { path, .. } | Op::Born { path, .. } => {
                when(self.dir(path).is_some() && !self.paths.contains_key(path))
            }
            Op::Remove { path, .. } => match self.kind(On::At(path)) {
                Some(Kind::Directory) => when(self.is_empty(path)),
                found => when(found.is_some()),
            },
            Op::Rename { from, to, over, .. } => when(self.can_rename(from, to, over)),
            Op::Link { from, to, .. } => {
                let linkable = matches!(self.kind(On::At(from)), Some(Kind::File | Kind::Symlink));
                when(linkable && self.dir(to).is_some() && !self.paths.contains_key(to))
            }
            Op::Open { path, .. } => {
                if self.is_file(On::At(path)) {
                    Done
                } else {
                    Skip
                }
            }
            Op::Close { slot } => {
                if self.open[usize::from(slot)].is_some() {
                    Done
                } else {
                    Skip
                }
            }
            Op::Write { on, .. } | Op::Truncate { on, .. } => {
                if no_link(on) {
                    unless_missing(on, self.is_file(on))
                } else {
                    Skip
                }
            }
            Op::Range { on, space, at, len } => {
                if !self.is_file(on) {
                    return Skip;
                }
                let size = self.id(on).map_or(0, |id| self.nodes[&id].bytes.len()) as u32;
                match space {
                    Space::Collapse => when(at + len < size),
                    Space::Insert => when(at < size),
                    _ => Done,
                }
            }
            Op::Map { path, .. } => {
                let mappable = self.limits.maps && self.is_file(On::At(path));
                let empty = || self.nodes[&self.paths[path]].bytes.is_empty();
                if mappable && !empty() { Done } else { Skip }
            }
            // A store past the end raises a signal and returns no error.
            Op::Store { slot, at, .. } => match self.maps[usize::from(slot)] {
                Some((id, len)) if at < len && (at as usize) < self.nodes[&id].bytes.len() => Done,
                _ => Skip,
            },
            Op::Unmap { slot } => {
                if self.maps[usize::from(slot)].is_some() {
                    Done
                } else {
                    Skip
                }
            }
            Op::Chmod { on, .. } | Op::SetXattr { on, .. } | Op::SetAcl { on, .. } => {
                if no_link(on) {
                    unless_missing(on, true)
                } else {
                    Skip
                }
            }
            Op::Chown { on, .. } | Op::Times { on, .. } => unless_missing(on, true),
            Op::RemoveXattr { on, nth, .. } => {
                let there = self.id(on).is_some_and(|id| self.nodes[&id].xattrs.contains_key(&nth));
                if no_link(on) { unless_missing(on, there) } else { Skip }
            }
            // Removing a missing ACL succeeds on some filesystems and fails on others.
            Op::RemoveAcl { on } => {
                if self.id(on).is_some_and(|id| self.nodes[&id].acl) {
                    Done
                } else {
                    Skip
                }
            }
            Op::Sync { on: Some(on) } => {
                if self.kind(on).is_some() && no_link(on) {
                    Done
                } else {
                    Skip
                }
            }
            Op::Look { on } | Op::Query { on } => {
                if self.id(on).is_some() {
                    Done
                } else {
                    Skip
                }
            }
            Op::Remount => {
                if self.limits.remounts {
                    Done
                } else {
                    Skip
                }
            }
            Op::Sync { on: None } | Op::Evict | Op::Snapshot { .. } => Done,
        }
    }

    fn can_rename(&self, from: &str, to: &str, over: Over) -> bool {
        let (Some(kind), Some(_)) = (self.kind(On::At(from)), self.dir(to)) else { return false };
        let target = self.kind(On::At(to));
        if kind == Kind::Directory && is_below(to, from) {
            return false;
        }
        match (over, target) {
            (Over::Refuse, Some(_)) | (Over::Exchange, None) => false,
            (Over::Exchange, Some(_)) => !is_below(from, to),
            (_, None) => true,
            (_, Some(_)) if self.paths[from] == self.paths[to] => true,
            (_, Some(Kind::Directory)) => kind == Kind::Directory && self.is_empty(to),
            (_, Some(_)) => kind != Kind::Directory,
        }
    }

    /// Returns a hash of the state, without the values of queries.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.paths.hash(&mut hasher);
        for (id, node) in &self.nodes {
            (id, &node.bytes, node.perm, &node.xattrs, node.names).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn touch(&mut self, id: Id, touched: Touched) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.touch(touched);
        }
    }

    /// Handles a refused operation. A refused attribute can have lost its old value, and a kernel in between
    /// changes the times of a file before it knows whether fallocate works.
    pub(crate) fn refused(&mut self, op: &Op) {
        let on = match *op {
            Op::SetXattr { on, .. } | Op::SetAcl { on, .. } => on,
            Op::Range { on, .. } if !self.limits.times_are_ours => on,
            _ => return,
        };
        if let Some(id) = self.id(on) {
            self.touch(id, Touched::Perhaps);
        }
    }

    /// Applies an operation that was predicted to succeed.
    pub(crate) fn apply(&mut self, op: &Op) {
        use Touched::*;
        op.paths().into_iter().for_each(|path| self.see(On::At(path)));
        match *op {
            Op::Create { path, kind, .. } => {
                let (id, parent) = (self.next, self.dir(path));
                self.next += 1;
                self.nodes.insert(id, Node::new(kind));
                self.paths.insert(path.to_owned(), id);
                self.touch(parent.unwrap_or(TOP), Data);
            }
            Op::Born { path, perm, size, .. } => {
                self.apply(&Op::Create { path, kind: Kind::File, info: false });
                let born = self.paths.get(path).and_then(|id| self.nodes.get_mut(id)).expect("just made");
                (born.perm, born.bytes) = (perm, vec![0; size as usize]);
            }
            Op::Remove { path, .. } => {
                let parent = self.dir(path).unwrap_or(TOP);
                self.touch(parent, Data);
                self.lose(path);
            }
            Op::Rename { .. } if self.is_no_op(op) => {}
            Op::Rename { from, to, over, .. } => self.rename(from, to, over),
            Op::Link { from, to, .. } => {
                let (id, parent) = (self.paths[from], self.dir(to));
                self.paths.insert(to.to_owned(), id);
                self.nodes.get_mut(&id).expect("linked").names += 1;
                self.touch(id, Metadata);
                self.touch(parent.unwrap_or(TOP), Data);
            }
            Op::Open { slot, path } => {
                self.open[usize::from(slot)] = self.paths.get(path).copied();
                self.let_go();
            }
            Op::Close { slot } => {
                self.open[usize::from(slot)] = None;
                self.let_go();
            }
            Op::Map { slot, path } => {
                let id = self.paths[path];
                self.maps[usize::from(slot)] = Some((id, self.nodes[&id].bytes.len() as u32));
                self.reap();
            }
            Op::Store { slot, at, byte } => {
                let Some((id, _)) = self.maps[usize::from(slot)] else { return };
                self.nodes.get_mut(&id).expect("mapped").bytes[at as usize] = byte;
                self.touch(id, Data);
            }
            Op::Unmap { slot } => {
                self.maps[usize::from(slot)] = None;
                self.reap();
            }
            Op::Remount => {
                // After a mount without a value nobody knows what changed in it: see `Run::remounted`.
                (self.open, self.maps) = ([None; SLOTS as usize], [None; SLOTS as usize]);
                self.nodes.values_mut().for_each(|node| node.remounted = true);
                self.unseen = self.paths.keys().cloned().collect();
                self.let_go();
            }
            Op::Write { on, .. }
            | Op::Truncate { on, .. }
            | Op::Range { on, .. }
            | Op::Chmod { on, .. }
            | Op::Chown { on, .. }
            | Op::Times { on, .. }
            | Op::SetXattr { on, .. }
            | Op::RemoveXattr { on, .. }
            | Op::SetAcl { on, .. }
            | Op::RemoveAcl { on } => {
                let Some(id) = self.id(on) else { return };
                let rest = self.limits.times_are_ours;
                let node = self.nodes.get_mut(&id).expect("judged");
                if let Some(touched) = node.change(op, rest) {
                    node.touch(touched);
                }
                if let Op::Times { sec, .. } = *op {
                    node.mtime = sec.or(node.mtime);
                }
            }
            Op::Look { .. } | Op::Sync { .. } | Op::Evict | Op::Snapshot { .. } | Op::Query { .. } => {}
        }
    }

    /// An operation is about a file, perhaps by a path.
    pub(crate) fn see(&mut self, on: On<'_>) {
        if let On::At(path) = on {
            self.unseen.remove(path);
        }
    }

    fn lose(&mut self, path: &str) {
        if let Some(id) = self.paths.remove(path) {
            let node = self.nodes.get_mut(&id).expect("named");
            node.names -= 1;
            node.touch(Touched::Metadata);
            self.reap();
        }
    }

    /// Forgets files that are no longer open. Their hidden names are removed.
    fn let_go(&mut self) {
        let before = self.nodes.len();
        self.reap();
        if self.limits.hides_names && self.nodes.len() < before {
            let directories = self.nodes.values_mut().filter(|node| node.kind == Kind::Directory);
            directories.for_each(|node| node.touch(Touched::Perhaps));
        }
    }

    /// Forgets unreachable files.
    fn reap(&mut self) {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.retain(|id, node| node.names > 0 || self.is_held(*id));
        self.nodes = nodes;
    }

    /// Returns whether an operation is a rename between two names of one file, which does nothing.
    pub(crate) fn is_no_op(&self, op: &Op) -> bool {
        matches!(*op, Op::Rename { from, to, .. } if self.paths.get(from) == self.paths.get(to))
    }

    fn rename(&mut self, from: &str, to: &str, over: Over) {
        for dir in [self.dir(from), self.dir(to)].into_iter().flatten() {
            self.touch(dir, Touched::Data);
        }
        if over != Over::Exchange {
            self.lose(to);
        }
        let move_to = |path: &str| {
            let swap = |old: &str, new: &str| format!("{new}{}", &path[old.len()..]);
            if path == from || is_below(path, from) {
                swap(from, to)
            } else if path == to || is_below(path, to) {
                swap(to, from)
            } else {
                path.to_owned()
            }
        };
        self.paths =
            std::mem::take(&mut self.paths).into_iter().map(|(path, id)| (move_to(&path), id)).collect();
        self.unseen = std::mem::take(&mut self.unseen).iter().map(|path| move_to(path)).collect();
        for path in [from, to] {
            if let Some(&id) = self.paths.get(path) {
                self.touch(id, Touched::Metadata);
            }
        }
    }

    /// Returns what reading a file must show.
    pub(crate) fn expected(&self, on: On<'_>) -> Option<Seen> {
        let node = &self.nodes[&self.id(on)?];
        let names = match on {
            On::At(dir) if node.kind == Kind::Directory => {
                let below = |path: &String| {
                    let rest = if dir.is_empty() {
                        path.as_str()
                    } else {
                        path.strip_prefix(dir)?.strip_prefix('/')?
                    };
                    (!rest.is_empty() && !rest.contains('/')).then(|| rest.to_owned())
                };
                Some(self.paths.keys().filter_map(below).collect())
            }
            _ => None,
        };
        Some(Seen {
            bytes: (node.kind == Kind::File).then(|| node.bytes.clone()),
            names,
            perm: (node.kind != Kind::Symlink).then_some(node.perm),
            nlink: if node.kind == Kind::Directory { 0 } else { u64::from(node.names) },
            xattrs: node.xattrs.iter().map(|(nth, value)| (*nth, value.clone())).collect(),
        })
    }
}

impl Node {
    /// Applies a change that concerns one file only.
    fn change(&mut self, op: &Op, times_are_ours: bool) -> Option<Touched> {
        use Touched::*;
        Some(match *op {
            Op::Write { at, len, byte, how, .. } => {
                let at = if how == How::Append { self.bytes.len() } else { at as usize };
                let end = at + len as usize;
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[at..end].fill(byte);
                Data
            }
            Op::Truncate { size, .. } => {
                let same = self.bytes.len() == size as usize;
                self.bytes.resize(size as usize, 0);
                if same { Perhaps } else { Data }
            }
            Op::Range { space, at, len, .. } => {
                let old = self.bytes.clone();
                self.arrange(space, at as usize, len as usize);
                if old == self.bytes { Perhaps } else { Data }
            }
            Op::Chmod { perm, .. } => {
                self.perm = perm;
                Metadata
            }
            Op::Chown { .. } => Metadata,
            Op::Times { sec, .. } if sec.is_none() || sec == self.mtime => {
                if times_are_ours && sec.is_none() {
                    return None;
                }
                Perhaps
            }
            Op::Times { .. } => Metadata,
            Op::SetXattr { nth, len, byte, .. } => {
                let value = vec![byte; len as usize];
                if self.xattrs.insert(nth, value.clone()) == Some(value) { Perhaps } else { Metadata }
            }
            Op::RemoveXattr { nth, .. } => {
                self.xattrs.remove(&nth);
                Metadata
            }
            Op::SetAcl { mask, .. } => {
                (self.perm, self.acl) = (self.perm & 0o7000 | 0o700 | mask << 3, true);
                Metadata
            }
            Op::RemoveAcl { .. } => {
                self.acl = false;
                Metadata
            }
            _ => return None,
        })
    }

    fn arrange(&mut self, space: Space, at: usize, len: usize) {
        let size = self.bytes.len();
        let end = (at + len).min(size);
        match space {
            Space::Allocate => self.bytes.resize(size.max(at + len), 0),
            Space::Keep => {}
            Space::Punch | Space::Zero if at < end => self.bytes[at..end].fill(0),
            Space::Punch | Space::Zero => {}
            Space::Collapse => drop(self.bytes.drain(at..end)),
            Space::Insert => drop(self.bytes.splice(at..at, std::iter::repeat_n(0, len))),
        }
    }
}
