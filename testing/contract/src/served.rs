//! An export of an NFSv4 server, used by two clients: one changes files, the other reads and queries them.

use std::any::Any;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ivers_nfs_test::client::{Client, change_and_size, data, decoded, named, open};
use ivers_nfs4::attr::{self, Attrs, ChangeAttrType};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v42::*;
use ivers_nfs4::ops::{Op as Nfs, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;

use crate::op::*;
use crate::subject::{Claims, Limits, Refused, Result, Seen, SharedFile, Subject};

const TOP: &str = "contract";
const NOTE: &[u8] = b"note";

/// The size of a READ or WRITE in bytes.
const PIECE: usize = 256 << 10;

/// Restarts the server cleanly; returns its new address.
pub type Restart = Box<dyn FnMut() -> SocketAddr + Send>;

/// The export `/data` of an NFSv4.2 server. The changes and change info of one client are compared with what
/// another client sees.
pub struct Served {
    name: String,
    address: SocketAddr,
    claims: Claims,
    changes: Client,
    queries: Client,
    open: [Option<(StateId, FileHandle)>; SLOTS as usize],
    restart: Option<Restart>,
    /// The number of further users.
    others: u32,
    /// The server. It is the last field, so that the clients are dropped before it.
    _kept: Option<Box<dyn Any + Send>>,
}

impl Served {
    /// Uses a directory below the root of the export; creates it if necessary.
    pub fn new(name: impl Into<String>, address: SocketAddr, restart: Option<Restart>) -> Self {
        let (mut changes, mut queries) = (client(address, "changes"), client(address, "queries"));
        let make = CreateArgs { kind: CreateType::Dir, name: TOP.into(), attrs: mode(0o755) };
        let (status, _) = changes.call_with_retry(&[data(), vec![Nfs::Create(make)]].concat());
        assert!(matches!(status, NfsStat::Ok | NfsStat::Exist), "{status:?}");
        let claims = claims(&mut queries, restart.is_some());
        let (name, open) = (name.into(), Default::default());
        Self { name, address, claims, changes, queries, open, restart, others: 0, _kept: None }
    }

    /// Keeps the server alive as long as this subject.
    pub fn keeping(self, server: impl Any + Send) -> Self {
        Self { _kept: Some(Box::new(server)), ..self }
    }

    /// Returns the operations that set the current filehandle, as seen by the changing client.
    fn at(&self, on: On<'_>) -> Result<Vec<Nfs>> {
        match on {
            On::At(path) => Ok(walk(path)),
            On::Open(slot) => Ok(vec![Nfs::PutFh(self.slot(slot)?.1.clone())]),
        }
    }

    /// Returns the stateid for changing data.
    fn right(&self, on: On<'_>) -> Result<StateId> {
        match on {
            On::At(_) => Ok(StateId::ANONYMOUS),
            On::Open(slot) => Ok(self.slot(slot)?.0),
        }
    }

    fn slot(&self, slot: u8) -> Result<&(StateId, FileHandle)> {
        self.open[usize::from(slot)]
            .as_ref()
            .ok_or_else(|| Refused::Error("the slot has no open file".into()))
    }

    fn change(&mut self, on: On<'_>, op: Nfs) -> Result<OpResult> {
        let ops = [self.at(on)?, vec![op]].concat();
        last_result(&mut self.changes, &ops)
    }

    fn set(&mut self, on: On<'_>, attrs: Attrs) -> Result<()> {
        let right = if attrs.size.is_some() { self.right(on)? } else { StateId::ANONYMOUS };
        self.change(on, Nfs::SetAttr(SetAttrArgs { stateid: right, attrs: attrs.encode() })).map(drop)
    }

    fn create(&mut self, path: &str, kind: Kind) -> Result<Vec<ChangeInfo>> {
        let kind = match kind {
            Kind::File => return self.create_file(path, Attrs { mode: Some(0o644), ..Attrs::default() }),
            Kind::Directory => CreateType::Dir,
            Kind::Symlink => CreateType::Lnk("nowhere".into()),
        };
        let (dir, name) = parent(path);
        let make = CreateArgs { kind, name: name.into(), attrs: mode(0o755) };
        match last_result(&mut self.changes, &[walk(dir), vec![Nfs::Create(make)]].concat())? {
            OpResult::Create(Ok(made)) => Ok(vec![made.cinfo]),
            _ => Err(nonsense()),
        }
    }

    fn create_file(&mut self, path: &str, attrs: Attrs) -> Result<Vec<ChangeInfo>> {
        let (dir, name) = parent(path);
        let how = OpenHow::Create(CreateHow::Guarded(attrs.encode()));
        let make = open("changes", share::WRITE | share::WANT_NO_DELEG, how, named(name));
        let (status, results) =
            self.changes.call_with_retry(&[walk(dir), vec![make, Nfs::GetFh(())]].concat());
        refused(status)?;
        let [.., OpResult::Open(Ok(made)), OpResult::GetFh(Ok(handle))] = &results[..] else {
            return Err(nonsense());
        };
        self.close(made.stateid, vec![Nfs::PutFh(handle.clone())])?;
        Ok(vec![made.cinfo])
    }

    fn close(&mut self, stateid: StateId, at: Vec<Nfs>) -> Result<()> {
        let close = Nfs::Close(SeqState { seqid: 0, stateid });
        last_result(&mut self.changes, &[at, vec![close]].concat()).map(drop)
    }

    fn close_slot(&mut self, slot: u8) -> Result<()> {
        match self.open[usize::from(slot)].take() {
            Some((stateid, handle)) => self.close(stateid, vec![Nfs::PutFh(handle)]),
            None => Ok(()),
        }
    }

    fn open_slot(&mut self, slot: u8, path: &str) -> Result<()> {
        self.close_slot(slot)?;
        let (dir, name) = parent(path);
        // Each slot has an owner: several opens of a file by one owner are one open.
        let owner = format!("slot {slot}");
        let open = open(&owner, share::BOTH | share::WANT_NO_DELEG, OpenHow::NoCreate, named(name));
        let (status, results) =
            self.changes.call_with_retry(&[walk(dir), vec![open, Nfs::GetFh(())]].concat());
        refused(status)?;
        let [.., OpResult::Open(Ok(opened)), OpResult::GetFh(Ok(handle))] = &results[..] else {
            return Err(nonsense());
        };
        self.open[usize::from(slot)] = Some((opened.stateid, handle.clone()));
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<Vec<ChangeInfo>> {
        let (dir, name) = parent(path);
        match last_result(&mut self.changes, &[walk(dir), vec![Nfs::Remove(name.into())]].concat())? {
            OpResult::Remove(Ok(cinfo)) => Ok(vec![cinfo]),
            _ => Err(nonsense()),
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<Vec<ChangeInfo>> {
        let ((old_dir, old), (new_dir, new)) = (parent(from), parent(to));
        let rename = Nfs::Rename(RenameArgs { old: old.into(), new: new.into() });
        let ops = [walk(old_dir), vec![Nfs::SaveFh(())], walk(new_dir), vec![rename]].concat();
        match last_result(&mut self.changes, &ops)? {
            OpResult::Rename(Ok(renamed)) => Ok(vec![renamed.source, renamed.target]),
            _ => Err(nonsense()),
        }
    }

    fn link(&mut self, from: &str, to: &str) -> Result<Vec<ChangeInfo>> {
        let (dir, name) = parent(to);
        let ops = [walk(from), vec![Nfs::SaveFh(())], walk(dir), vec![Nfs::Link(name.into())]].concat();
        match last_result(&mut self.changes, &ops)? {
            OpResult::Link(Ok(cinfo)) => Ok(vec![cinfo]),
            _ => Err(nonsense()),
        }
    }

    fn write(&mut self, on: On<'_>, at: u32, bytes: &[u8], how: How) -> Result<()> {
        let (place, stateid) = (self.at(on)?, self.right(on)?);
        let offset = match how {
            How::Append => attrs(&mut self.changes, place.clone(), &[attr::SIZE])?.size.unwrap_or(0),
            _ => at.into(),
        };
        let stable = match how {
            How::Plain | How::Append => StableHow::Unstable,
            How::Direct => StableHow::DataSync,
            How::Sync => StableHow::FileSync,
        };
        write(&mut self.changes, &place, stateid, offset, bytes, stable)
    }

    fn change_xattr(&mut self, on: On<'_>, op: Nfs) -> Result<Vec<ChangeInfo>> {
        match self.change(on, op)? {
            OpResult::SetXattr(Ok(cinfo)) | OpResult::RemoveXattr(Ok(cinfo)) => Ok(vec![cinfo]),
            _ => Err(nonsense()),
        }
    }

    fn times(&mut self, on: On<'_>, sec: Option<i64>) -> Result<()> {
        let place = self.at(on)?;
        let there = attrs(&mut self.changes, place, &[attr::TIME_ACCESS, attr::TIME_MODIFY])?;
        let time = |old: Option<NfsTime>| {
            let new = sec.map(|seconds| NfsTime { seconds, nseconds: 0 });
            new.or(old).map(SetTime::Client)
        };
        let (time_access_set, time_modify_set) = (time(there.time_access), time(there.time_modify));
        self.set(on, Attrs { time_access_set, time_modify_set, ..Attrs::default() })
    }

    fn range(&mut self, on: On<'_>, space: Space, at: u32, len: u32) -> Result<()> {
        let range = RangeArgs { stateid: self.right(on)?, offset: at.into(), length: len.into() };
        let op = match space {
            Space::Allocate => Nfs::Allocate(range),
            Space::Punch => Nfs::Deallocate(range),
            Space::Keep | Space::Zero | Space::Collapse | Space::Insert => return Err(Refused::Unsupported),
        };
        self.change(on, op).map(drop)
    }

    /// Sends COMMIT for the data of a regular file. Names and attributes are durable when their call returns.
    fn sync(&mut self, on: On<'_>) -> Result<()> {
        let place = self.at(on)?;
        if attrs(&mut self.changes, place, &[attr::TYPE])?.kind == Some(Ftype::Reg) {
            self.change(on, Nfs::Commit(CommitArgs { offset: 0, count: 0 }))?;
        }
        Ok(())
    }

    fn remount(&mut self) -> Result<()> {
        for slot in 0..SLOTS {
            self.close_slot(slot)?;
        }
        let Some(restart) = &mut self.restart else { return Err(Refused::Unsupported) };
        self.address = restart();
        self.others = 0;
        (self.changes, self.queries) = (client(self.address, "changes"), client(self.address, "queries"));
        self.claims = claims(&mut self.queries, true);
        Ok(())
    }
}

impl Subject for Served {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn claims(&self) -> Claims {
        self.claims
    }

    fn limits(&self) -> Limits {
        Limits {
            times_are_ours: true,
            nameless_rest: true,
            unheld_rest: true,
            remounts: self.restart.is_some(),
            maps: false,
            appends: false,
            shares_pages: true,
            hides_names: false,
        }
    }

    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        match *op {
            Op::Create { path, kind, .. } => return Ok(pairs(&self.create(path, kind)?)),
            Op::Born { path, perm, size, .. } => {
                let attrs = Attrs { mode: Some(perm), size: Some(size.into()), ..Attrs::default() };
                return Ok(pairs(&self.create_file(path, attrs)?));
            }
            Op::Remove { path, .. } => return Ok(pairs(&self.remove(path)?)),
            Op::Rename { from, to, over: Over::Replace, .. } => return Ok(pairs(&self.rename(from, to)?)),
            Op::Link { from, to, .. } => return Ok(pairs(&self.link(from, to)?)),
            Op::SetXattr { on, nth, len, byte, .. } => {
                let (option, value) = (SetXattrOption::Either, vec![byte; len as usize]);
                let set = SetXattrArgs { option, name: short_name(nth), value };
                return Ok(pairs(&self.change_xattr(on, Nfs::SetXattr(set))?));
            }
            Op::RemoveXattr { on, nth, .. } => {
                return Ok(pairs(&self.change_xattr(on, Nfs::RemoveXattr(short_name(nth)))?));
            }
            Op::Open { slot, path } => self.open_slot(slot, path)?,
            Op::Close { slot } => self.close_slot(slot)?,
            Op::Write { on, at, len, byte, how } => self.write(on, at, &vec![byte; len as usize], how)?,
            Op::Truncate { on, size } => {
                self.set(on, Attrs { size: Some(size.into()), ..Attrs::default() })?
            }
            Op::Range { on, space, at, len } => self.range(on, space, at, len)?,
            Op::Chmod { on, perm } => self.set(on, Attrs { mode: Some(perm), ..Attrs::default() })?,
            Op::Chown { on, uid, gid } => {
                let id = |id: u32| Some(id.to_string().into_bytes());
                self.set(on, Attrs { owner: id(uid), owner_group: id(gid), ..Attrs::default() })?
            }
            Op::Times { on, sec } => self.times(on, sec)?,
            Op::Sync { on: Some(on) } => self.sync(on)?,
            Op::Remount => self.remount()?,
            Op::Look { on } => drop(self.look(on)?),
            Op::Query { on } => drop(self.query(on)?),
            Op::Rename { .. }
            | Op::Map { .. }
            | Op::Store { .. }
            | Op::Unmap { .. }
            | Op::SetAcl { .. }
            | Op::RemoveAcl { .. }
            | Op::Sync { on: None }
            | Op::Evict
            | Op::Snapshot { .. } => return Err(Refused::Unsupported),
        }
        Ok(Vec::new())
    }

    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        let place = self.at(on)?;
        Ok(attrs(&mut self.queries, place, &[attr::CHANGE])?.change)
    }

    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        let place = self.at(on)?;
        let there =
            attrs(&mut self.queries, place.clone(), &[attr::TYPE, attr::SIZE, attr::MODE, attr::NUMLINKS])?;
        let mut seen = Seen::default();
        match there.kind {
            Some(Ftype::Reg) => {
                seen.bytes = Some(read(&mut self.queries, &place, there.size.unwrap_or(0) as usize + 1)?);
            }
            Some(Ftype::Dir) => seen.names = Some(names(&mut self.queries, &place)?),
            _ => {}
        }
        seen.perm = there.mode.filter(|_| there.kind != Some(Ftype::Lnk));
        seen.nlink = there.numlinks.filter(|_| there.kind != Some(Ftype::Dir)).unwrap_or(0).into();
        for nth in 0..XATTRS {
            let ask = [place.clone(), vec![Nfs::GetXattr(short_name(nth))]].concat();
            if let Ok(OpResult::GetXattr(Ok(value))) = last_result(&mut self.queries, &ask) {
                seen.xattrs.push((nth, value));
            }
        }
        Ok(seen)
    }

    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        // The names are the same after a restart: the server waits for its earlier clients to reclaim.
        let nth = self.others;
        self.others += 1;
        Ok(Box::new(Self {
            name: self.name.clone(),
            address: self.address,
            claims: self.claims,
            changes: client(self.address, &format!("changes of {nth}")),
            queries: client(self.address, &format!("queries of {nth}")),
            open: Default::default(),
            restart: None,
            others: 0,
            _kept: None,
        }))
    }

    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>> {
        let how = OpenHow::Create(CreateHow::Guarded(mode(0o600)));
        let make = open("shared", share::BOTH | share::WANT_NO_DELEG, how, named(name));
        let (status, results) =
            self.changes.call_with_retry(&[walk(""), vec![make, Nfs::GetFh(())]].concat());
        refused(status)?;
        let Some(OpResult::GetFh(Ok(handle))) = results.last() else { return Err(nonsense()) };
        Ok(Arc::new(Shared {
            address: self.address,
            place: vec![Nfs::PutFh(handle.clone())],
            idle: Mutex::default(),
        }))
    }
}

/// A file that threads share, each through a separate client.
struct Shared {
    address: SocketAddr,
    place: Vec<Nfs>,
    idle: Mutex<Vec<Client>>,
}

/// Numbers the clients of threads, so that the server distinguishes them.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Shared {
    fn with<T>(&self, call: impl FnOnce(&mut Client) -> T) -> T {
        let idle = self.idle.lock().expect("no thread panicked").pop();
        let mut client = idle.unwrap_or_else(|| {
            client(self.address, &format!("thread {}", NEXT.fetch_add(1, Ordering::Relaxed)))
        });
        let answer = call(&mut client);
        self.idle.lock().expect("no thread panicked").push(client);
        answer
    }

    fn call(&self, op: Nfs) -> Result<OpResult> {
        self.with(|client| last_result(client, &[self.place.clone(), vec![op]].concat()))
    }
}

impl SharedFile for Shared {
    fn write(&self, data: &[u8]) -> Result<()> {
        self.with(|client| write(client, &self.place, StateId::ANONYMOUS, 0, data, StableHow::Unstable))
    }

    fn read(&self, buf: &mut [u8]) -> Result<usize> {
        let bytes = self.with(|client| read(client, &self.place, buf.len()))?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn set_note(&self, number: u64) -> Result<()> {
        let option = SetXattrOption::Either;
        let args = SetXattrArgs { option, name: NOTE.to_vec(), value: number.to_le_bytes().to_vec() };
        self.call(Nfs::SetXattr(args)).map(drop)
    }

    fn note(&self) -> Result<u64> {
        let OpResult::GetXattr(Ok(value)) = self.call(Nfs::GetXattr(NOTE.to_vec()))? else {
            return Err(nonsense());
        };
        let bytes = value.try_into().map_err(|_| Refused::Error("the note has a wrong length".into()))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn query(&self) -> Result<Option<u64>> {
        Ok(decoded(Some(&self.call(change_and_size())?)).change)
    }
}

fn client(address: SocketAddr, name: &str) -> Client {
    Client::with_minor(address, name, 2)
}

/// Returns the claims: the protocol only promises that values never decrease; the other promises hold for any
/// change attribute.
fn claims(client: &mut Client, restarts: bool) -> Claims {
    let attrs = attrs(client, data(), &[attr::CHANGE_ATTR_TYPE]).expect("attributes of the root");
    if attrs.change_attr_type != Some(ChangeAttrType::MonotonicIncr as u32) {
        return Claims::nothing();
    }
    let all = true;
    Claims {
        change_attribute: all,
        data: all,
        metadata: all,
        monotonic: all,
        rests: all,
        persistent: restarts,
        current: all,
    }
}

/// Returns the atomic change info; other change info promises nothing.
fn pairs(infos: &[ChangeInfo]) -> Vec<(u64, u64)> {
    infos.iter().filter(|info| info.atomic).map(|info| (info.before, info.after)).collect()
}

fn mode(mode: u32) -> attr::Fattr {
    Attrs { mode: Some(mode), ..Attrs::default() }.encode()
}

fn short_name(nth: u8) -> Vec<u8> {
    xattr_name(nth).trim_start_matches("user.").into()
}

/// Returns the operations from the root of the export to a path; links are not followed.
fn walk(path: &str) -> Vec<Nfs> {
    let names = path.split('/').filter(|name| !name.is_empty());
    let steps = [TOP].into_iter().chain(names).map(|name| Nfs::Lookup(name.into()));
    data().into_iter().chain(steps).collect()
}

/// Splits a path into its directory and the last name.
fn parent(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Runs a COMPOUND and returns the result of its last operation.
fn last_result(client: &mut Client, ops: &[Nfs]) -> Result<OpResult> {
    let (status, results) = client.call_with_retry(ops);
    refused(status)?;
    results.into_iter().last().ok_or_else(nonsense)
}

fn attrs(client: &mut Client, at: Vec<Nfs>, which: &[u32]) -> Result<Attrs> {
    let ask = Nfs::GetAttr(Bitmap::of(which.iter().copied()));
    Ok(decoded(Some(&last_result(client, &[at, vec![ask]].concat())?)))
}

fn write(
    client: &mut Client,
    at: &[Nfs],
    stateid: StateId,
    mut offset: u64,
    bytes: &[u8],
    stable: StableHow,
) -> Result<()> {
    // An empty write is a WRITE too.
    let pieces = bytes.chunks(PIECE).chain(bytes.is_empty().then_some(bytes));
    for piece in pieces {
        let args = WriteArgs { stateid, offset, stable, data: piece.to_vec().into() };
        let OpResult::Write(Ok(wrote)) = last_result(client, &[at, &[Nfs::Write(args)]].concat())? else {
            return Err(nonsense());
        };
        if wrote.count as usize != piece.len() || wrote.committed < stable {
            return Err(Refused::Error(format!("the server wrote {wrote:?} of {} bytes", piece.len())));
        }
        offset += piece.len() as u64;
    }
    Ok(())
}

/// Reads up to this number of bytes from the beginning.
fn read(client: &mut Client, at: &[Nfs], most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let args = ReadArgs {
            stateid: StateId::ANONYMOUS,
            offset: bytes.len() as u64,
            count: (most - bytes.len()).min(PIECE) as u32,
        };
        let OpResult::Read(Ok(piece)) = last_result(client, &[at, &[Nfs::Read(args)]].concat())? else {
            return Err(nonsense());
        };
        bytes.extend_from_slice(&piece.data);
        if piece.eof || piece.data.is_empty() {
            break;
        }
    }
    Ok(bytes)
}

fn names(client: &mut Client, at: &[Nfs]) -> Result<Vec<String>> {
    let (mut cookie, mut verifier, mut names) = (0, [0; 8], HashSet::new());
    loop {
        let (dircount, maxcount) = (512, 1024);
        let args = ReadDirArgs { cookie, verifier, dircount, maxcount, attrs: Bitmap::default() };
        let OpResult::ReadDir(Ok(page)) = last_result(client, &[at, &[Nfs::ReadDir(args)]].concat())? else {
            return Err(nonsense());
        };
        verifier = page.verifier;
        for entry in &page.entries {
            cookie = entry.cookie;
            if !names.insert(String::from_utf8_lossy(&entry.name).into_owned()) {
                return Err(Refused::Error(format!(
                    "the listing has {} twice",
                    String::from_utf8_lossy(&entry.name)
                )));
            }
        }
        if page.eof {
            let mut names: Vec<String> = names.into_iter().collect();
            names.sort();
            return Ok(names);
        }
    }
}

fn nonsense() -> Refused {
    Refused::Error("the reply is to another operation".into())
}

fn refused(status: NfsStat) -> Result<()> {
    match status {
        NfsStat::Ok => Ok(()),
        NfsStat::Notsupp | NfsStat::Attrnotsupp => Err(Refused::Unsupported),
        NfsStat::Nospc | NfsStat::Xattr2big => Err(Refused::NoSpace),
        status => Err(Refused::Error(format!("{status:?}"))),
    }
}
