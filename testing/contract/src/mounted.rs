//! A mounted directory, used through the kernel as any program would.

use crate::clients::Role;
use crate::inprocess::HIDDEN;
use crate::op::*;
use crate::subject::*;
use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, Timespec, Timestamps};
use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use xattr::FileExt as _;

/// How to read the change attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeSource {
    /// From `system.ivers.change`, a decimal number; `system.ivers.semantics` has its promises.
    Ivers,
    /// From the change time in nanoseconds, without any promise.
    Ctime,
}

const CHANGE: &str = "system.ivers.change";
const SEMANTICS: &str = "system.ivers.semantics";
const STATS: &str = "system.ivers.stats";
const ACL: &str = "system.posix_acl_access";
const NOTE: &str = "user.note";

/// Numbers the users of shared directories.
static NEXT_USER: AtomicUsize = AtomicUsize::new(1);

/// A directory of a mounted filesystem.
pub struct Mounted {
    name: String,
    dir: PathBuf,
    source: ChangeSource,
    claims: Claims,
    open: [Option<File>; SLOTS as usize],
    /// A process for mappings, shared by all users of the directory: starting it takes longer than most
    /// operations.
    mapper: Arc<Mutex<Option<Mapper>>>,
    /// Distinguishes the mappings of the users.
    user: usize,
    remount: Option<Remount>,
    /// See [`Self::without_modes`].
    no_modes: bool,
    /// See [`Self::of_server`].
    of_server: Option<Role>,
    /// The filesystem below the directory. It is the last field, so that files are closed before it is
    /// dropped.
    _kept: Option<Box<dyn Any + Send>>,
}

/// Unmounts and mounts again; returns the directory.
pub type Remount = Box<dyn FnMut() -> PathBuf + Send>;

impl Mounted {
    /// Uses `dir`, which must be empty.
    pub fn new(name: impl Into<String>, dir: &Path, source: ChangeSource, remount: Option<Remount>) -> Self {
        let claims = claims(dir, source);
        // An existing directory can have any mode; the model assumes this one. To set it is a change, which
        // other users would see.
        let mode = fs::metadata(dir).expect("the top directory").permissions().mode() & 0o7777;
        if mode != 0o755 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("the top directory is ours");
        }
        let (open, mapper, dir, _kept) = (Default::default(), Arc::default(), dir.to_owned(), None);
        let (name, no_modes, of_server) = (name.into(), false, None);
        Self { name, dir, source, claims, open, mapper, user: 0, remount, no_modes, of_server, _kept }
    }

    /// Uses the mount of a server at close-to-open points only, as [`InProcess::of_server`] does.
    ///
    /// [`InProcess::of_server`]: crate::InProcess::of_server
    pub fn of_server(self, role: Role) -> Self {
        Self { of_server: Some(role), ..self }
    }

    /// Excludes the operations that [`Op::needs_modes`] names.
    pub fn without_modes(self) -> Self {
        Self { no_modes: true, ..self }
    }

    /// Keeps the filesystem below the directory alive as long as this subject.
    pub fn keeping(self, mount: impl Any + Send) -> Self {
        Self { _kept: Some(Box::new(mount)), ..self }
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.dir.clone() } else { self.dir.join(path) }
    }

    fn slot(&self, slot: u8) -> Result<&File> {
        self.open[usize::from(slot)]
            .as_ref()
            .ok_or_else(|| Refused::Error("the slot has no open file".into()))
    }

    /// Opens a file for writing.
    fn file(&self, on: On<'_>, options: &OpenOptions) -> Result<File> {
        match on {
            On::At(path) => options.open(self.path(path)).map_err(refused),
            On::Open(slot) if self.of_server.is_some() => options.open(self.opened(slot)?).map_err(refused),
            On::Open(slot) => self.slot(slot)?.try_clone().map_err(refused),
        }
    }

    /// Returns a path by which the file in a slot can be opened once more.
    fn opened(&self, slot: u8) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/self/fd/{}", self.slot(slot)?.as_raw_fd())))
    }

    fn metadata(&self, on: On<'_>) -> Result<fs::Metadata> {
        match on {
            On::At(path) => fs::symlink_metadata(self.path(path)).map_err(refused),
            On::Open(slot) => self.slot(slot)?.metadata().map_err(refused),
        }
    }

    fn write(&self, on: On<'_>, at: u32, len: u32, byte: u8, how: How) -> Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).append(how == How::Append);
        if how == How::Sync {
            options.custom_flags(rustix::fs::OFlags::SYNC.bits() as i32);
        }
        let file = self.file(on, &options)?;
        let bytes = vec![byte; len as usize];
        match (how, on) {
            (How::Append, On::At(_)) => (&file).write_all(&bytes),
            (How::Append, On::Open(_)) => {
                file.metadata().and_then(|there| file.write_all_at(&bytes, there.len()))
            }
            _ => file.write_all_at(&bytes, at.into()),
        }
        .map_err(refused)
    }

    fn set_times(&self, on: On<'_>, sec: Option<i64>) -> Result<()> {
        let there = self.metadata(on)?;
        let time = |old: i64, nsec: i64| match sec {
            Some(tv_sec) => Timespec { tv_sec, tv_nsec: 0 },
            None => Timespec { tv_sec: old, tv_nsec: nsec as _ },
        };
        let times = Timestamps {
            last_access: time(there.atime(), there.atime_nsec()),
            last_modification: time(there.mtime(), there.mtime_nsec()),
        };
        match on {
            On::At(path) => rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::SYMLINK_NOFOLLOW),
            On::Open(slot) => rustix::fs::futimens(self.slot(slot)?, &times),
        }
        .map_err(|errno| refused(errno.into()))
    }

    fn range(&self, on: On<'_>, space: Space, at: u32, len: u32) -> Result<()> {
        let flags = match space {
            Space::Allocate => FallocateFlags::empty(),
            Space::Keep => FallocateFlags::KEEP_SIZE,
            Space::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Space::Zero => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            Space::Collapse => FallocateFlags::COLLAPSE_RANGE,
            Space::Insert => FallocateFlags::INSERT_RANGE,
        };
        let file = self.file(on, OpenOptions::new().read(true).write(true))?;
        rustix::fs::fallocate(&file, flags, at.into(), len.into()).map_err(|errno| refused(errno.into()))
    }

    fn rename(&self, from: &str, to: &str, over: Over) -> Result<()> {
        let flags = match over {
            Over::Replace => RenameFlags::empty(),
            Over::Refuse => RenameFlags::NOREPLACE,
            Over::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)
            .map_err(|errno| refused(errno.into()))
    }

    fn set_xattr(&self, on: On<'_>, name: &str, value: &[u8]) -> Result<()> {
        match on {
            On::At(path) => xattr::set(self.path(path), name, value).map_err(refused),
            On::Open(slot) => self.slot(slot)?.set_xattr(name, value).map_err(refused),
        }
    }

    fn get_xattr(&self, on: On<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
        match on {
            On::At(path) => xattr::get(self.path(path), name),
            On::Open(slot) if self.of_server.is_some() => {
                self.opened(slot).map_or(Ok(None), |path| xattr::get_deref(path, name))
            }
            On::Open(slot) => match &self.open[usize::from(slot)] {
                Some(file) => file.get_xattr(name),
                None => Ok(None),
            },
        }
    }

    fn remove_xattr(&self, on: On<'_>, name: &str) -> Result<()> {
        match on {
            On::At(path) => xattr::remove(self.path(path), name).map_err(refused),
            On::Open(slot) => self.slot(slot)?.remove_xattr(name).map_err(refused),
        }
    }

    fn mapping(&self, what: &str, slot: u8, rest: &str) -> Result<()> {
        let mut mapper = self.mapper.lock().expect("no actor panicked");
        let mapper = match &mut *mapper {
            Some(mapper) => mapper,
            none => none.insert(Mapper::start().map_err(refused)?),
        };
        mapper.ask(&format!("{what} {}.{slot} {rest}", self.user))
    }

    fn sync(&self, on: Option<On<'_>>) -> Result<()> {
        let file = match on {
            Some(on) => self.file(on, OpenOptions::new().read(true))?,
            None => File::open(&self.dir).map_err(refused)?,
        };
        let done = if on.is_some() { rustix::fs::fsync(&file) } else { rustix::fs::syncfs(&file) };
        done.map_err(|errno| refused(errno.into()))
    }

    /// Drops the clean pages of every file in the top directory, except files that another actor removes
    /// meanwhile.
    fn evict(&self) -> Result<()> {
        let drop_pages = |path: &Path| {
            if fs::symlink_metadata(path)?.is_file() {
                rustix::fs::fadvise(File::open(path)?, 0, None, rustix::fs::Advice::DontNeed)?;
            }
            Ok::<_, std::io::Error>(())
        };
        for entry in fs::read_dir(&self.dir).map_err(refused)? {
            match drop_pages(&entry.map_err(refused)?.path()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                done => done.map_err(refused)?,
            }
        }
        Ok(())
    }

    fn remount(&mut self) -> Result<()> {
        if self.remount.is_none() {
            return Err(Refused::Unsupported);
        }
        self.open = Default::default();
        *self.mapper.lock().expect("no actor panicked") = None;
        if let Some(remount) = &mut self.remount {
            self.dir = remount();
        }
        self.claims = claims(&self.dir, self.source);
        Ok(())
    }
}

impl Subject for Mounted {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn claims(&self) -> Claims {
        self.claims
    }

    fn limits(&self) -> Limits {
        Limits {
            times_are_ours: false,
            nameless_rest: self.source == ChangeSource::Ctime,
            // The kernel holds a reference to every inode that it knows.
            unheld_rest: true,
            remounts: self.remount.is_some(),
            // A store is no close-to-open point.
            maps: self.of_server.is_none(),
            appends: self.of_server.is_none(),
            shares_pages: self.of_server.is_none(),
            hides_names: self.of_server.is_some(),
        }
    }

    fn forced_bumps(&self) -> u64 {
        let Ok(Some(stats)) = xattr::get(&self.dir, STATS) else { return 0 };
        let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap_or_default();
        stats["bumps_forced"].as_u64().unwrap_or_default()
    }

    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        if self.no_modes && op.needs_modes() {
            return Err(Refused::Unsupported);
        }
        match *op {
            Op::Create { path, kind, .. } => match kind {
                Kind::File => {
                    let made = OpenOptions::new().write(true).create_new(true).open(self.path(path));
                    made.and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o644)))
                }
                Kind::Directory => {
                    let path = self.path(path);
                    fs::create_dir(&path)
                        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                }
                Kind::Symlink => std::os::unix::fs::symlink("nowhere", self.path(path)),
            }
            .map_err(refused)?,
            Op::Remove { path, .. } => {
                let is_dir = self.metadata(On::At(path))?.is_dir();
                let path = self.path(path);
                if is_dir { fs::remove_dir(path) } else { fs::remove_file(path) }.map_err(refused)?;
            }
            Op::Rename { from, to, over, .. } => self.rename(from, to, over)?,
            Op::Link { from, to, .. } => fs::hard_link(self.path(from), self.path(to)).map_err(refused)?,
            Op::Open { slot, path } => {
                let mut options = OpenOptions::new();
                match self.of_server {
                    // The server hears nothing of it.
                    Some(Role::Observes) => {
                        options.read(true).custom_flags(rustix::fs::OFlags::PATH.bits() as i32)
                    }
                    _ => options.read(true).write(true),
                };
                let file = options.open(self.path(path)).map_err(refused)?;
                self.open[usize::from(slot)] = Some(file);
            }
            Op::Close { slot } => self.open[usize::from(slot)] = None,
            Op::Write { on, at, len, byte, how } => self.write(on, at, len, byte, how)?,
            Op::Truncate { on, size } => {
                self.file(on, OpenOptions::new().write(true))?.set_len(size.into()).map_err(refused)?
            }
            Op::Range { on, space, at, len } => self.range(on, space, at, len)?,
            Op::Map { slot, path } => {
                self.mapping("map", slot, &self.path(path).display().to_string())?;
            }
            Op::Store { slot, at, byte } => self.mapping("store", slot, &format!("{at} {byte}"))?,
            Op::Unmap { slot } => self.mapping("unmap", slot, "")?,
            Op::Chmod { on, perm } => {
                let perm = fs::Permissions::from_mode(perm);
                match on {
                    On::At(path) => fs::set_permissions(self.path(path), perm),
                    On::Open(slot) => self.slot(slot)?.set_permissions(perm),
                }
                .map_err(refused)?;
            }
            Op::Chown { on, uid, gid } => match on {
                On::At(path) => std::os::unix::fs::lchown(self.path(path), Some(uid), Some(gid)),
                On::Open(slot) => std::os::unix::fs::fchown(self.slot(slot)?, Some(uid), Some(gid)),
            }
            .map_err(refused)?,
            Op::Times { on, sec } => self.set_times(on, sec)?,
            // The kernel needs one call to create a file and another to set its attributes.
            Op::Born { .. } => return Err(Refused::Unsupported),
            Op::SetXattr { on, nth, len, byte, .. } => {
                self.set_xattr(on, &xattr_name(nth), &vec![byte; len as usize])?
            }
            Op::RemoveXattr { on, nth, .. } => self.remove_xattr(on, &xattr_name(nth))?,
            Op::SetAcl { on, mask } => self.set_xattr(on, ACL, &acl_value(mask))?,
            Op::RemoveAcl { on } => self.remove_xattr(on, ACL)?,
            Op::Sync { on } => self.sync(on)?,
            Op::Evict => self.evict()?,
            Op::Remount => self.remount()?,
            Op::Snapshot { .. } => return Err(Refused::Unsupported),
            Op::Look { on } => drop(self.look(on)?),
            Op::Query { on } => drop(self.query(on)?),
        }
        Ok(Vec::new())
    }

    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        match self.source {
            ChangeSource::Ctime => Ok(Some(ctime(&self.metadata(on)?))),
            ChangeSource::Ivers => parse(self.get_xattr(on, CHANGE).map_err(refused)?),
        }
    }

    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        let metadata = self.metadata(on)?;
        let mut seen = Seen::default();
        if metadata.is_file() {
            let mut bytes = vec![0xEE; metadata.len() as usize + 1];
            let file = self.file(on, OpenOptions::new().read(true))?;
            let mut got = 0;
            loop {
                match file.read_at(&mut bytes[got..], got as u64).map_err(refused)? {
                    0 => break,
                    some => got += some,
                }
            }
            bytes.truncate(got);
            seen.bytes = Some(bytes);
        } else if let (true, On::At(path)) = (metadata.is_dir(), on) {
            let name =
                |entry: io::Result<fs::DirEntry>| entry.map(|e| e.file_name().to_string_lossy().into_owned());
            let names: io::Result<Vec<_>> =
                fs::read_dir(self.path(path)).and_then(|entries| entries.map(name).collect());
            let mut names = names.map_err(refused)?;
            names.retain(|name| self.of_server.is_none() || !name.as_bytes().starts_with(HIDDEN));
            names.sort();
            seen.names = Some(names);
        }
        if !metadata.is_symlink() {
            seen.perm = Some(metadata.mode() & 0o7777);
            for nth in 0..XATTRS {
                if let Ok(Some(value)) = self.get_xattr(on, &xattr_name(nth)) {
                    seen.xattrs.push((nth, value));
                }
            }
        }
        seen.nlink = if metadata.is_dir() { 0 } else { metadata.nlink() };
        Ok(seen)
    }

    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        Ok(Box::new(Self {
            name: self.name.clone(),
            dir: self.dir.clone(),
            source: self.source,
            claims: self.claims,
            open: Default::default(),
            mapper: self.mapper.clone(),
            user: NEXT_USER.fetch_add(1, Ordering::Relaxed),
            remount: None,
            no_modes: self.no_modes,
            of_server: self.of_server,
            _kept: None,
        }))
    }

    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name));
        Ok(Arc::new(SharedFd { file: file.map_err(refused)?, source: self.source }))
    }
}

struct SharedFd {
    file: File,
    source: ChangeSource,
}

impl SharedFile for SharedFd {
    fn write(&self, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, 0).map_err(refused)
    }

    fn read(&self, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at(buf, 0).map_err(refused)
    }

    fn set_note(&self, number: u64) -> Result<()> {
        self.file.set_xattr(NOTE, &number.to_le_bytes()).map_err(refused)
    }

    fn note(&self) -> Result<u64> {
        let value = self.file.get_xattr(NOTE).map_err(refused)?.unwrap_or_default();
        let bytes = value.try_into().map_err(|_| Refused::Error("the note has a wrong length".into()))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn query(&self) -> Result<Option<u64>> {
        match self.source {
            ChangeSource::Ctime => Ok(Some(ctime(&self.file.metadata().map_err(refused)?))),
            ChangeSource::Ivers => parse(self.file.get_xattr(CHANGE).map_err(refused)?),
        }
    }
}

fn claims(dir: &Path, source: ChangeSource) -> Claims {
    if source == ChangeSource::Ctime {
        return Claims::nothing();
    }
    let text = xattr::get(dir, SEMANTICS).expect("the mount answers").expect("the mount has semantics");
    let said: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let says = |name: &str| said[name].as_bool().unwrap_or_else(|| panic!("{name} is missing in {said}"));
    let (data, metadata, monotonic) = (says("data"), says("metadata"), says("monotonic"));
    let (persistent, crash_safe) = (says("persistent"), says("crash_safe"));
    let semantics = ivers_vfs::ChangeSemantics { data, metadata, monotonic, persistent, crash_safe };
    Claims::of(says("change_attribute"), semantics)
}

fn ctime(metadata: &fs::Metadata) -> u64 {
    (metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec()) as u64
}

fn parse(value: Option<Vec<u8>>) -> Result<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Refused::Error(format!("the change attribute is not a decimal number: {value:?}")))
}

fn refused(error: io::Error) -> Refused {
    match error.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied => Refused::Unsupported,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Refused::NoSpace,
        // E2BIG: the value of an attribute.
        io::ErrorKind::ArgumentListTooLong => Refused::NoSpace,
        _ => Refused::Error(error.to_string()),
    }
}

/// A process that holds mappings: this crate forbids unsafe code.
struct Mapper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const MAPPER: &str = "import mmap,os,sys
maps={}
for line in sys.stdin:
  what,slot,*rest=line.rstrip('\\n').split(' ',2)
  try:
    if what=='map':
      fd=os.open(rest[0],os.O_RDWR)
      maps[slot]=mmap.mmap(fd,os.fstat(fd).st_size)
      os.close(fd)
    elif what=='store':
      at,byte=rest[0].split()
      maps[slot][int(at)]=int(byte)
    else:
      maps.pop(slot).close()
    print('done',flush=True)
  except Exception as error:
    print(error,flush=True)
";

impl Mapper {
    fn start() -> io::Result<Self> {
        let mut child = Command::new("python3")
            // Skips what the script does not need, so that it starts faster.
            .args(["-I", "-S", "-c", MAPPER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipe"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, what: &str) -> Result<()> {
        writeln!(self.input, "{what}").map_err(refused)?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(refused)?;
        if answer.trim() == "done" { Ok(()) } else { Err(Refused::Error(answer)) }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // A kill loses nothing: dirty pages belong to the kernel.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
