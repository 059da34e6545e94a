//! A mounted driver in this process.

use crate::clients::Role;
use crate::op::*;
use crate::shared_inode::SharedInode;
use crate::subject::{Claims, Limits, Refused, Result, Seen, SharedFile, Subject};
use ivers_block::Budget;
use ivers_vfs::*;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A mount: the VFS, and the budget that its caches share.
pub type MountedVfs = (Arc<Vfs>, Arc<Budget>);

pub(crate) const TOP: &str = "contract";
/// The time of files created with explicit times; in the range of formats whose time begins at 1978 or 1980.
const BORN: i64 = 1_000_000_006;
const ACL: &str = "system.posix_acl_access";
/// How names begin that files of a server have which were removed while they are open.
pub(crate) const HIDDEN: &[u8] = b".nfs";
/// How files in slots are open.
const IN_SLOT: OpenMode = OpenMode::READ.union(OpenMode::WRITE);

/// A filesystem mounted in this process through [`Vfs`].
pub struct InProcess {
    name: String,
    /// `None` only during a remount.
    mounted: Option<MountedVfs>,
    open: [Option<InodeRef>; SLOTS as usize],
    /// Keeps queried inodes in memory, for formats that store no value: their values last only while the
    /// inode stays.
    held: Option<HashMap<Ino, InodeRef>>,
    remount: Option<Box<dyn FnMut() -> MountedVfs + Send>>,
    /// See [`Self::without_modes`].
    no_modes: bool,
    /// Whether other actors can change files while this one reads them.
    crowded: bool,
    /// See [`Self::of_server`].
    of_server: Option<(ServerValue, Role)>,
}

/// Which change attribute of a server's file the suite sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerValue {
    /// What the mount serves to programs.
    Served,
    /// What the server said, whatever it promises. Nothing is claimed.
    Said,
}

impl InProcess {
    /// Calls `mount` for the first mount and, if `remounts`, for each remount of the same filesystem. `hold`
    /// keeps every queried inode in memory.
    pub fn new(
        name: impl Into<String>,
        hold: bool,
        remounts: bool,
        mut mount: impl FnMut() -> MountedVfs + Send + 'static,
    ) -> Self {
        let (vfs, budget) = mount();
        let root = vfs.root().expect("the root");
        // Another client of a server may have made it.
        if vfs.lookup(&Cred::root(), &root, TOP.as_bytes()).is_err() {
            let spec = CreateSpec::directory(0o755);
            let made = match vfs.fs().subvolumes() {
                Some(_) => vfs.create_subvolume(&Cred::root(), &root, TOP.as_bytes(), &spec),
                None => vfs.create(&Cred::root(), &root, TOP.as_bytes(), &spec, false).map(drop),
            };
            made.expect("the top directory");
        }
        drop(root);
        let remount = remounts.then(|| Box::new(mount) as Box<dyn FnMut() -> MountedVfs + Send>);
        let held = hold.then(HashMap::new);
        let mounted = Some((vfs, budget));
        Self {
            name: name.into(),
            mounted,
            open: Default::default(),
            held,
            remount,
            no_modes: false,
            crowded: false,
            of_server: None,
        }
    }

    /// Uses a client of a server whose files other clients change too. Then contents are used at
    /// close-to-open points only: each write and each read opens the file and closes it afterwards, also that
    /// of a file in a slot. The server is asked for each directory of a path before a name is looked up
    /// in it. The mount ends with the subject.
    pub fn of_server(mut self, value: ServerValue, role: Role) -> Self {
        self.of_server = Some((value, role));
        self
    }

    /// Other actors can change files while this one reads them.
    pub fn crowded(mut self) -> Self {
        self.crowded = true;
        self
    }

    /// Excludes the operations that [`Op::needs_modes`] names.
    pub fn without_modes(mut self) -> Self {
        self.no_modes = true;
        self
    }

    /// Returns another user of the same mount, for [`Subject::another`].
    pub fn another(&self) -> Self {
        Self {
            name: self.name.clone(),
            mounted: self.mounted.clone(),
            open: Default::default(),
            held: self.held.is_some().then(HashMap::new),
            remount: None,
            no_modes: self.no_modes,
            crowded: true,
            of_server: self.of_server,
        }
    }

    /// Returns the mount, to read its statistics.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.mounted.as_ref().expect("a failed remount ends the run").0
    }

    /// Returns the inode.
    pub fn inode(&mut self, on: On<'_>) -> Result<InodeRef> {
        let inode = match on {
            On::Open(slot) => self.open[usize::from(slot)].clone().ok_or_else(nothing_open)?,
            On::At(path) => self.find(path).map_err(refused)?,
        };
        if let Some(held) = &mut self.held {
            held.insert(inode.ino, inode.clone());
        }
        Ok(inode)
    }

    fn find(&self, path: &str) -> ivers_vfs::Result<InodeRef> {
        let vfs = self.vfs();
        if self.of_server.is_none() {
            return vfs.resolve(&Cred::root(), format!("/{TOP}/{path}").as_bytes(), false);
        }
        let mut at = vfs.root()?;
        for name in [TOP].into_iter().chain(path.split('/').filter(|name| !name.is_empty())) {
            vfs.get_attr(&Cred::system(), &at)?;
            at = vfs.lookup(&Cred::root(), &at, name.as_bytes())?;
        }
        Ok(at)
    }

    /// Returns the attributes; a server is asked for them.
    fn attr(&self, inode: &InodeRef) -> Result<Attr> {
        match self.of_server {
            Some(_) => self.vfs().get_attr(&Cred::system(), inode).map_err(refused),
            None => Ok(inode.attr()),
        }
    }

    /// Uses the contents of a file, at a close-to-open point if it is a server's.
    fn with_contents<T>(
        &self,
        inode: &InodeRef,
        mode: OpenMode,
        contents: impl FnOnce(&Vfs) -> Result<T>,
    ) -> Result<T> {
        let vfs = self.vfs();
        if self.of_server.is_none() || inode.kind != FileType::Regular {
            return contents(vfs);
        }
        vfs.open(&Cred::root(), inode, mode).map_err(refused)?;
        let done = contents(vfs);
        vfs.close(inode, mode);
        done
    }

    /// Whether files in slots are open on a server.
    fn keeps_open(&self) -> bool {
        self.of_server.is_some_and(|(_, role)| role == Role::Changes)
    }

    fn is_value_said(&self) -> bool {
        self.of_server.is_some_and(|(value, _)| value == ServerValue::Said)
    }

    /// Empties a slot.
    fn close(&mut self, slot: u8) {
        if let Some(inode) = self.open[usize::from(slot)].take()
            && self.keeps_open()
        {
            self.vfs().close(&inode, IN_SLOT);
        }
    }

    /// Splits a path into its directory and the last name.
    fn parent<'p>(&mut self, path: &'p str) -> Result<(InodeRef, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.inode(On::At(dir))?;
        // The caller looks the name up: a client may still believe that it is not there.
        self.attr(&dir)?;
        Ok((dir, name.as_bytes()))
    }

    fn remount(&mut self) -> Result<()> {
        if self.remount.is_none() {
            return Err(Refused::Unsupported);
        }
        (0..SLOTS).for_each(|slot| self.close(slot));
        let Some(mount) = &mut self.remount else { return Err(Refused::Unsupported) };
        if let Some(held) = &mut self.held {
            held.clear();
        }
        if let Some((vfs, _)) = self.mounted.take() {
            vfs.unmount().map_err(refused)?;
        }
        self.mounted = Some(mount());
        Ok(())
    }

    fn write(&mut self, on: On<'_>, at: u32, len: u32, byte: u8, how: How) -> Result<()> {
        let inode = self.inode(on)?;
        let flags = match how {
            How::Plain if byte.is_multiple_of(4) => WriteFlags::CACHED_BY_CALLER,
            How::Plain => WriteFlags::empty(),
            How::Append => WriteFlags::APPEND,
            How::Direct => WriteFlags::DIRECT,
            How::Sync => WriteFlags::SYNC,
        };
        let data = vec![byte; len as usize];
        let wrote = self.with_contents(&inode, OpenMode::WRITE, |vfs| {
            vfs.write(&Cred::root(), &inode, at.into(), &data, flags).map_err(refused)
        })?;
        if wrote == data.len() {
            Ok(())
        } else {
            Err(Refused::Error(format!("wrote {wrote} of {len} bytes")))
        }
    }

    fn set_attr(&mut self, on: On<'_>, set: SetAttr) -> Result<()> {
        let inode = self.inode(on)?;
        self.vfs().set_attr(&Cred::root(), &inode, &set).map(drop).map_err(refused)
    }

    fn set_times(&mut self, on: On<'_>, sec: Option<i64>) -> Result<()> {
        let inode = self.inode(on)?;
        let there = self.attr(&inode)?;
        let time = |old: Timestamp| Some(TimeSet::At(sec.map_or(old, |sec| Timestamp { sec, nsec: 0 })));
        let set = SetAttr { atime: time(there.atime), mtime: time(there.mtime), ..SetAttr::default() };
        self.set_attr(on, set)
    }

    fn set_xattr(&mut self, on: On<'_>, name: &str, value: &[u8], info: bool) -> Result<Vec<(u64, u64)>> {
        let inode = self.inode(on)?;
        let given = Some((value, XattrMode::Any));
        self.vfs().change_xattr(&Cred::root(), &inode, name, given, info).map(pairs).map_err(refused)
    }

    fn remove_xattr(&mut self, on: On<'_>, name: &str, info: bool) -> Result<Vec<(u64, u64)>> {
        let inode = self.inode(on)?;
        self.vfs().change_xattr(&Cred::root(), &inode, name, None, info).map(pairs).map_err(refused)
    }

    fn born(&mut self, path: &str, perm: u32, size: u32, info: bool) -> Result<Vec<(u64, u64)>> {
        let (dir, name) = self.parent(path)?;
        let at = Some(TimeSet::At(Timestamp { sec: BORN, nsec: 0 }));
        let spec = CreateSpec {
            uid: Some(70),
            gid: Some(71),
            atime: at,
            mtime: at,
            size: size.into(),
            ..CreateSpec::file(perm)
        };
        let (cred, mut claimed) = (Cred::root(), None);
        if self.of_server.is_some() {
            return self.vfs().create(&cred, &dir, name, &spec, info).map(|it| pairs(it.1)).map_err(refused);
        }
        let mut claim = |inode: &InodeRef| claimed = Some((inode.ino, inode.attr()));
        let made = self.vfs().create_with(&cred, &dir, name, &spec, info, &mut claim);
        let (inode, info) = made.map_err(refused)?;
        let (ino, attr) = claimed.ok_or_else(|| Refused::Error("the creator was not called back".into()))?;
        let now = inode.attr();
        let whole = (attr.uid, attr.gid, attr.size) == (70, 71, size.into())
            && [attr.atime.sec, attr.mtime.sec, now.mtime.sec] == [BORN; 3];
        if ino == inode.ino && whole && attr == now {
            Ok(pairs(info))
        } else {
            Err(Refused::Error(format!("the file was created with {attr:?}, but has {now:?}")))
        }
    }

    fn create(&mut self, path: &str, kind: Kind, info: bool) -> Result<Vec<(u64, u64)>> {
        let (dir, name) = self.parent(path)?;
        let spec = match kind {
            Kind::File => CreateSpec::file(0o644),
            Kind::Directory => CreateSpec::directory(0o755),
            Kind::Symlink => CreateSpec::symlink("nowhere"),
        };
        let (_, info) = self.vfs().create(&Cred::root(), &dir, name, &spec, info).map_err(refused)?;
        Ok(pairs(info))
    }

    fn remove(&mut self, path: &str, info: bool) -> Result<Vec<(u64, u64)>> {
        let is_dir = self.inode(On::At(path))?.kind == FileType::Directory;
        let (dir, name) = self.parent(path)?;
        let (vfs, cred) = (self.vfs(), Cred::root());
        let info = match vfs.lookup(&cred, &dir, name) {
            Ok(victim) if info && self.of_server.is_none() => vfs.remove(&cred, &dir, name, &victim, info),
            _ if is_dir => vfs.rmdir(&cred, &dir, name, info),
            _ => vfs.unlink(&cred, &dir, name, info),
        };
        self.let_go();
        info.map(pairs).map_err(refused)
    }

    fn rename(&mut self, from: &str, to: &str, over: Over, info: bool) -> Result<Vec<(u64, u64)>> {
        let ((old_dir, old_name), (new_dir, new_name)) = (self.parent(from)?, self.parent(to)?);
        let flags = match over {
            Over::Replace => RenameFlags::empty(),
            Over::Refuse => RenameFlags::NOREPLACE,
            Over::Exchange => RenameFlags::EXCHANGE,
        };
        let (vfs, cred) = (self.vfs(), Cred::root());
        let found = |dir: &InodeRef, name: &[u8]| vfs.lookup(&cred, dir, name).ok();
        let done = match found(&old_dir, old_name) {
            Some(moved) if info && over == Over::Replace && self.of_server.is_none() => {
                let replaced = found(&new_dir, new_name);
                let meant = Expected { moved: &moved, replaced: replaced.as_ref() };
                vfs.rename_expected(&cred, (&old_dir, old_name), (&new_dir, new_name), meant, info)
            }
            _ => vfs.rename(&cred, &old_dir, old_name, &new_dir, new_name, flags, info),
        };
        self.let_go();
        let infos = done.map_err(refused)?.into_iter().flat_map(|(old, new)| [old, new]);
        Ok(infos.map(|info| (info.before, info.after)).collect())
    }

    fn range(&mut self, on: On<'_>, space: Space, at: u32, len: u32) -> Result<()> {
        let inode = self.inode(on)?;
        let mode = match space {
            Space::Allocate => FallocateMode::empty(),
            Space::Keep => FallocateMode::KEEP_SIZE,
            Space::Punch => FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
            Space::Zero => FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE,
            Space::Collapse => FallocateMode::COLLAPSE_RANGE,
            Space::Insert => FallocateMode::INSERT_RANGE,
        };
        self.with_contents(&inode, OpenMode::WRITE, |vfs| {
            vfs.fallocate(&Cred::root(), &inode, mode, at.into(), len.into()).map_err(refused)
        })
    }

    fn contents(&self, vfs: &Vfs, inode: &InodeRef) -> Result<Vec<u8>> {
        let size = inode.size();
        // One byte more than the size: nothing may follow the end.
        let mut bytes = vec![0xEE; size as usize + 1];
        let got = vfs.read(&Cred::root(), inode, 0, &mut bytes).map_err(refused)?;
        bytes.truncate(got);
        if !self.crowded && in_pieces(vfs, inode, size)? != bytes {
            return Err(Refused::Error("a read in parts and a read of the whole differ".into()));
        }
        Ok(bytes)
    }

    /// Releases held inodes without a name, so that they can be deleted.
    fn let_go(&mut self) {
        if let Some(held) = &mut self.held {
            held.retain(|_, inode| inode.attr().nlink > 0);
        }
    }

    /// Makes the caches evict everything that they can.
    fn evict(&mut self) -> Result<()> {
        self.let_go();
        let top = self.inode(On::At(""))?;
        let Some((vfs, budget)) = &self.mounted else { return Err(nothing_open()) };
        let others = budget.limit().saturating_mul(2);
        budget.charge(others);
        // Every change of attributes checks memory first; this one sets nothing.
        let done = vfs.set_attr(&Cred::root(), &top, &SetAttr::default());
        budget.uncharge(others);
        done.map(drop).map_err(refused)
    }
}

impl Subject for InProcess {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn claims(&self) -> Claims {
        let (vfs, info) = (self.vfs(), self.vfs().info());
        if self.is_value_said() {
            return Claims::nothing();
        }
        let change_attribute = vfs.no_change_attribute().is_none();
        Claims::of(change_attribute, info.semantics)
    }

    fn limits(&self) -> Limits {
        let is_local = self.of_server.is_none();
        Limits {
            // A client does not know when another one has read a file.
            times_are_ours: is_local,
            nameless_rest: true,
            unheld_rest: self.held.is_some() || !is_local || self.vfs().info().semantics.persistent,
            remounts: self.remount.is_some(),
            maps: false,
            appends: is_local,
            shares_pages: is_local,
            hides_names: !is_local,
        }
    }

    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        if self.no_modes && op.needs_modes() {
            return Err(Refused::Unsupported);
        }
        match *op {
            Op::Create { path, kind, info } => return self.create(path, kind, info),
            Op::Born { path, perm, size, info } => return self.born(path, perm, size, info),
            Op::Remove { path, info } => return self.remove(path, info),
            Op::Rename { from, to, over, info } => return self.rename(from, to, over, info),
            Op::Link { from, to, info } => {
                let (inode, (dir, name)) = (self.inode(On::At(from))?, self.parent(to)?);
                let info = self.vfs().link(&Cred::root(), &inode, &dir, name, info).map_err(refused)?;
                return Ok(pairs(info));
            }
            Op::Open { slot, path } => {
                let inode = self.inode(On::At(path))?;
                if self.keeps_open() {
                    self.vfs().open(&Cred::root(), &inode, IN_SLOT).map_err(refused)?;
                }
                self.close(slot);
                self.open[usize::from(slot)] = Some(inode);
            }
            Op::Close { slot } => {
                self.close(slot);
                self.let_go();
            }
            Op::Write { on, at, len, byte, how } => self.write(on, at, len, byte, how)?,
            Op::Truncate { on, size } => {
                self.set_attr(on, SetAttr { size: Some(size.into()), ..SetAttr::default() })?
            }
            Op::Range { on, space, at, len } => self.range(on, space, at, len)?,
            Op::Map { .. } | Op::Store { .. } | Op::Unmap { .. } => return Err(Refused::Unsupported),
            Op::Chmod { on, perm } => {
                self.set_attr(on, SetAttr { perm: Some(perm), ..SetAttr::default() })?
            }
            Op::Chown { on, uid, gid } => {
                self.set_attr(on, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })?
            }
            Op::Times { on, sec } => self.set_times(on, sec)?,
            Op::SetXattr { on, nth, len, byte, info } => {
                return self.set_xattr(on, &xattr_name(nth), &vec![byte; len as usize], info);
            }
            Op::RemoveXattr { on, nth, info } => return self.remove_xattr(on, &xattr_name(nth), info),
            Op::SetAcl { on, mask } => drop(self.set_xattr(on, ACL, &acl_value(mask), false)?),
            Op::RemoveAcl { on } => drop(self.remove_xattr(on, ACL, false)?),
            Op::Sync { on: Some(on) } => {
                let inode = self.inode(on)?;
                self.vfs().fsync(&inode, false).map_err(refused)?;
            }
            Op::Sync { on: None } => self.vfs().sync().map_err(refused)?,
            Op::Evict => self.evict()?,
            Op::Remount => self.remount()?,
            Op::Snapshot { read_only } => self.snapshot(read_only)?,
            Op::Look { on } => drop(self.look(on)?),
            Op::Query { on } => drop(self.query(on)?),
        }
        Ok(Vec::new())
    }

    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        let inode = self.inode(on)?;
        if self.is_value_said() {
            self.attr(&inode)?;
            return Ok(inode.newest_of_server());
        }
        // Queried alone, or together with the attributes.
        Ok(match on {
            On::At(_) => self.vfs().observe(&inode).0,
            On::Open(_) => self.vfs().change(&inode),
        })
    }

    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        let inode = self.inode(on)?;
        let (vfs, attr) = (self.vfs(), self.attr(&inode)?);
        let mut seen = Seen::default();
        match inode.kind {
            FileType::Regular => {
                seen.bytes =
                    Some(self.with_contents(&inode, OpenMode::READ, |vfs| self.contents(vfs, &inode))?);
            }
            FileType::Directory => {
                let mut names = Vec::new();
                vfs.readdir(&Cred::root(), &inode, 0, &mut |entry| {
                    if !matches!(entry.name, b"." | b"..") && !entry.name.starts_with(HIDDEN) {
                        names.push(String::from_utf8_lossy(entry.name).into_owned());
                    }
                    ControlFlow::Continue(())
                })
                .map_err(refused)?;
                if !self.crowded && self.of_server.is_none() && listed(vfs, &inode)? != names {
                    return Err(Refused::Error("paged and complete listings differ".into()));
                }
                names.sort();
                seen.names = Some(names);
            }
            _ => {}
        }
        seen.perm = (inode.kind != FileType::Symlink).then_some(attr.perm);
        seen.nlink = if inode.kind == FileType::Directory { 0 } else { attr.nlink.into() };
        for nth in 0..XATTRS {
            if let Ok(value) = vfs.get_xattr(&Cred::root(), &inode, xattr_name(nth)) {
                seen.xattrs.push((nth, value));
            }
        }
        Ok(seen)
    }

    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        Ok(Box::new(InProcess::another(self)))
    }

    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>> {
        let dir = self.inode(On::At(""))?;
        let vfs = self.vfs().clone();
        let opens = self.of_server.is_some();
        if opens && let Ok(inode) = vfs.lookup(&Cred::root(), &dir, name.as_bytes()) {
            return Ok(Arc::new(SharedInode { inode, vfs, opens }));
        }
        let made = vfs.create(&Cred::root(), &dir, name.as_bytes(), &CreateSpec::file(0o600), false);
        Ok(Arc::new(SharedInode { inode: made.map_err(refused)?.0, vfs, opens }))
    }
}

/// Ends the mount of a client: otherwise the server keeps what it has open.
impl Drop for InProcess {
    fn drop(&mut self) {
        if self.of_server.is_none() || self.mounted.is_none() {
            return;
        }
        (0..SLOTS).for_each(|slot| self.close(slot));
        if let Some((vfs, _)) = self.mounted.take()
            && let Err(error) = vfs.unmount()
            && !std::thread::panicking()
        {
            panic!("{}: {error}", self.name);
        }
    }
}

/// Reads a file by its data and holes.
fn in_pieces(vfs: &Vfs, inode: &InodeRef, size: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let (pieces, end) = vfs
            .read_pieces(&Cred::root(), inode, bytes.len() as u64..u64::MAX, 3, 1 << 20)
            .map_err(refused)?;
        if end != size || pieces.is_empty() {
            return Err(Refused::Error(format!(
                "data and holes have {} of {size} bytes, and end at {end}",
                bytes.len()
            )));
        }
        for piece in pieces {
            match piece {
                Piece::Hole(range) => bytes.resize(range.end as usize, 0),
                Piece::Data(at, data) if at == bytes.len() as u64 => bytes.extend(data),
                Piece::Data(..) => return Err(Refused::Error("data and holes are not adjacent".into())),
            }
        }
    }
    Ok(bytes)
}

/// Lists a directory in small replies and looks up each name.
fn listed(vfs: &Vfs, dir: &InodeRef) -> Result<Vec<String>> {
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let entries = vfs.list(&Cred::root(), dir, cursor, 3).map_err(refused)?;
        let Some(last) = entries.last() else { return Ok(names) };
        cursor = last.next;
        for entry in entries {
            let there = vfs.lookup(&Cred::root(), dir, &entry.name).map_err(refused)?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if entry.inode.map_err(refused)?.ino != there.ino {
                return Err(Refused::Error(format!(
                    "the listing and a lookup of {name} show different files"
                )));
            }
            names.push(name);
        }
    }
}

fn pairs(info: Option<ChangeInfo>) -> Vec<(u64, u64)> {
    info.map(|info| (info.before, info.after)).into_iter().collect()
}

fn nothing_open() -> Refused {
    Refused::Error("the slot has no open file".into())
}

pub(crate) fn refused(error: Error) -> Refused {
    match error {
        Error::Name(NameError::NotSupported) => Refused::Unsupported,
        Error::Name(NameError::NoSpace | NameError::AttributeTooLarge) => Refused::NoSpace,
        error => Refused::Error(error.to_string()),
    }
}
