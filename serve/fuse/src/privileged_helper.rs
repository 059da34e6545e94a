//! Actions that a session cannot do itself, and the sockets over which it requests them.
//!
//! The process that parses an image may be sandboxed: it can open neither mounted files, to sync them, nor
//! files in /proc. So threads that [`attach`](crate::attach) starts, in the same process or in another one,
//! always do this.
//!
//! Each socket carries one question at a time. The answering side trusts nothing that it is asked. It opens
//! only regular files and directories of this mount. It reveals only what any user may read in /proc, and
//! file sizes.

use crate::mount::receive_file;
use crate::thread_status::{StatusFiles, ThreadStatus};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, IoSlice, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Flushes that may run at the same time. Each may take as long as the write-back of a whole file.
pub(crate) const FLUSHES_MAX: usize = 8;

/// Interval at which a thread that waits for a flush checks for threads that wait for it.
pub(crate) const WAITING: Duration = Duration::from_millis(100);

/// The descriptors that a session needs besides the [`Vfs`](ivers_vfs::Vfs): the device, and sockets to the
/// helpers.
#[derive(Debug)]
pub struct MountChannels {
    pub(crate) device: OwnedFd,
    pub(crate) affinity_helper: OwnedFd,
    pub(crate) helper: PrivilegedHelper,
}

impl MountChannels {
    /// Splits into descriptors and thread numbers, to be sent to another process.
    pub fn into_parts(self) -> (Vec<OwnedFd>, Vec<u32>) {
        let mut fds = vec![
            self.device,
            self.affinity_helper,
            self.helper.threads.into_inner(),
            self.helper.sizes.into_inner(),
        ];
        fds.extend(self.helper.flushes.into_iter().map(Mutex::into_inner));
        (fds, self.helper.thread_ids)
    }

    /// Joins what [`MountChannels::into_parts`] returned. `None`: a part is missing.
    pub fn from_parts(fds: Vec<OwnedFd>, thread_ids: Vec<u32>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (device, affinity_helper) = (fds.next()?, fds.next()?);
        let (threads, sizes) = (Mutex::new(fds.next()?), Mutex::new(fds.next()?));
        let flushes: Vec<_> = fds.map(Mutex::new).collect();
        let status_files = StatusFiles::default();
        let helper = PrivilegedHelper { threads, status_files, sizes, flushes, thread_ids };
        (!helper.flushes.is_empty()).then_some(Self { device, affinity_helper, helper })
    }
}

/// The session's ends of the sockets.
#[derive(Debug)]
pub(crate) struct PrivilegedHelper {
    /// Separate from the others: those wait for requests, and requests wait for this one.
    threads: Mutex<OwnedFd>,
    status_files: StatusFiles,
    /// Separate from the flushes: those wait for locks of the kernel, and the holder of such a lock waits for
    /// this one.
    sizes: Mutex<OwnedFd>,
    flushes: Vec<Mutex<OwnedFd>>,
    thread_ids: Vec<u32>,
}

impl PrivilegedHelper {
    /// Returns how many flushes can run at the same time.
    pub(crate) fn flush_count(&self) -> usize {
        self.flushes.len()
    }

    /// Opens the file or directory with inode number `id` by its path below the root of the mount, and syncs
    /// it. On success the kernel has handed over what it held back, and its lock of the inode was free.
    ///
    /// Waits for the answer, and calls `meanwhile` every [`WAITING`].
    pub(crate) fn flush(&self, slot: usize, path: &[u8], id: u64, meanwhile: impl FnMut()) -> bool {
        let Some(socket) = self.flushes.get(slot) else { return false };
        ask_and(&socket.lock(), &which_file(id, path), 1, meanwhile) == Some(vec![YES])
    }

    /// Returns the size that the kernel has for the file with inode number `id`, if the kernel needs no lock
    /// for it. May cause a request, so no serving thread may call it.
    pub(crate) fn size_of(&self, path: &[u8], id: u64) -> Option<u64> {
        let answer = ask(&self.sizes.lock(), &which_file(id, path), ANSWER_MAX)?;
        answer.strip_prefix(&[YES])?.try_into().map(u64::from_le_bytes).ok()
    }

    /// Returns whether a request comes from one of the threads that flush for this session.
    pub(crate) fn is_ours(&self, thread_id: u32) -> bool {
        self.thread_ids.contains(&thread_id)
    }

    /// Returns whether a thread has ended or is a zombie.
    pub(crate) fn has_ended(&self, thread: u32) -> bool {
        thread != 0 && ask(&self.threads.lock(), &about(thread, HAS_ENDED), ANSWER_MAX) == Some(vec![YES])
    }

    /// Returns whether a thread has a signal that it handles when its system call returns, or has ended.
    pub(crate) fn has_signal(&self, thread: u32) -> bool {
        ask(&self.threads.lock(), &about(thread, HAS_SIGNAL), ANSWER_MAX) == Some(vec![YES])
    }

    /// Returns the supplementary groups of a thread; empty if it has ended, if /proc hides it, or for 0.
    pub(crate) fn groups_of(&self, thread: u32) -> Vec<u32> {
        // The kernel itself, or a thread in another PID namespace.
        if thread == 0 {
            return Vec::new();
        }
        let open = || {
            let socket = self.threads.lock();
            send(&socket, &about(thread, STATUS)).ok()?;
            receive_file(&*socket).map(File::from)
        };
        self.status_files.read(thread, open).map_or_else(Vec::new, |status| status.groups())
    }
}

/// An inode number and a path of PATH_MAX bytes.
const QUESTION_MAX: usize = 8 + 4096;
/// A byte and a file size.
const ANSWER_MAX: usize = 1 + 8;
/// The first byte of every answer: failure or success.
pub(crate) const NO: u8 = 0;
pub(crate) const YES: u8 = 1;

/// What a question about a thread asks, after the number of the thread. The answer to [`STATUS`] carries a
/// descriptor.
const HAS_ENDED: u8 = 0;
const HAS_SIGNAL: u8 = 1;
const STATUS: u8 = 2;
const THREAD_QUESTION: usize = 5;

fn about(thread: u32, what: u8) -> Vec<u8> {
    [&thread.to_le_bytes()[..], &[what]].concat()
}

fn which_file(id: u64, path: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes(), path].concat()
}

pub(crate) fn ask(socket: &OwnedFd, question: &[u8], answer_max: usize) -> Option<Vec<u8>> {
    ask_and(socket, question, answer_max, || ())
}

/// As [`ask`]; calls `meanwhile` each time the receive timeout of the socket expires.
fn ask_and(
    socket: &OwnedFd,
    question: &[u8],
    answer_max: usize,
    mut meanwhile: impl FnMut(),
) -> Option<Vec<u8>> {
    send(socket, question).ok()?;
    loop {
        match receive(socket, answer_max) {
            Err(Errno::AGAIN) => meanwhile(),
            answer => return answer.ok().flatten(),
        }
    }
}

fn send(socket: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
    // Without this flag, a dead peer causes a signal instead of an error.
    retry_on_intr(|| rustix::net::send(socket, message, SendFlags::NOSIGNAL)).map(drop)
}

/// Receives one message. `None`: the other end is closed, since no message is empty.
fn receive(socket: &OwnedFd, max: usize) -> Result<Option<Vec<u8>>, Errno> {
    let mut message = vec![0; max];
    let (_, length) =
        retry_on_intr(|| rustix::net::recv(socket, message.as_mut_slice(), RecvFlags::empty()))?;
    message.truncate(length);
    Ok((length > 0).then_some(message))
}

/// Starts the answering threads for the mount on `dir` with this device number. They end when the session's
/// ends are closed.
pub(crate) fn start(dir: &Path, device: Option<(u32, u32)>) -> std::io::Result<PrivilegedHelper> {
    let (threads, theirs) = pair()?;
    answerer("ivers-threads", theirs, THREAD_QUESTION, answer_about_thread)?;
    let (sizes, theirs) = pair()?;
    let mount = dir.to_owned();
    answerer("ivers-sizes", theirs, QUESTION_MAX, move |question| {
        let size = answer_size(&mount, device, question);
        Some(size.map_or_else(|| NO.into(), |size| [&[YES], &size.to_le_bytes()[..]].concat().into()))
    })?;
    let mut helper = PrivilegedHelper {
        threads: Mutex::new(threads),
        status_files: StatusFiles::default(),
        sizes: Mutex::new(sizes),
        flushes: Vec::new(),
        thread_ids: Vec::with_capacity(FLUSHES_MAX),
    };
    for _ in 0..FLUSHES_MAX {
        let (ours, theirs) = pair()?;
        set_socket_timeout(&ours, Timeout::Recv, Some(WAITING))?;
        let dir = dir.to_owned();
        let id = answerer("ivers-outside", theirs, QUESTION_MAX, move |question| {
            Some(yes_or_no(answer_flush(&dir, device, question).is_some()))
        })?;
        helper.flushes.push(Mutex::new(ours));
        helper.thread_ids.push(id);
    }
    Ok(helper)
}

/// A helper that never answers; one flush at a time. The test has the other end.
#[cfg(test)]
pub(crate) fn not_answering() -> (PrivilegedHelper, OwnedFd) {
    let (flushes, others) = pair().unwrap();
    set_socket_timeout(&flushes, Timeout::Recv, Some(WAITING)).unwrap();
    let closed = || Mutex::new(pair().unwrap().0);
    let helper = PrivilegedHelper {
        threads: closed(),
        status_files: StatusFiles::default(),
        sizes: closed(),
        flushes: vec![Mutex::new(flushes)],
        thread_ids: Vec::new(),
    };
    (helper, others)
}

/// Returns the ID of the calling thread, as FUSE requests carry it.
pub(crate) fn own_number() -> u32 {
    thread_local!(static OWN: u32 = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    OWN.with(|own| *own)
}

pub(crate) fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// An answer. It may carry a descriptor.
struct Answer(Vec<u8>, Option<File>);

impl From<u8> for Answer {
    fn from(byte: u8) -> Self {
        Self(vec![byte], None)
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes, None)
    }
}

impl Answer {
    fn send(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let Self(bytes, file) = self;
        let Some(file) = file else { return send(socket, bytes) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        retry_on_intr(|| {
            rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
        })
        .map(drop)
    }
}

fn yes_or_no(yes: bool) -> Answer {
    if yes { YES.into() } else { NO.into() }
}

/// Starts a thread that answers questions until the socket closes or `answer` returns `None`. Returns its
/// thread number.
fn answerer(
    name: &str,
    socket: OwnedFd,
    question_max: usize,
    mut answer: impl FnMut(&[u8]) -> Option<Answer> + Send + 'static,
) -> std::io::Result<u32> {
    let (send_id, id) = mpsc::channel();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let _ = send_id.send(own_number());
        while let Ok(Some(question)) = receive(&socket, question_max) {
            let Some(answer) = answer(&question) else { break };
            if answer.send(&socket).is_err() {
                break;
            }
        }
    })?;
    id.recv().map_err(std::io::Error::other)
}

fn answer_flush(dir: &Path, device: Option<(u32, u32)>, question: &[u8]) -> Option<()> {
    let (id, path) = question.split_first_chunk()?;
    let id = u64::from_le_bytes(*id);
    let file = open(dir, device?, path, id)?;
    rustix::fs::fsync(&file).map_err(|error| log::debug!("flush of inode {id}: {error}")).ok()
}

/// Uses only names in the kernel's cache (`RESOLVE_CACHED`). A real lookup takes the lock of the directory,
/// which a removal may hold while it waits for the file's lock.
///
/// The kernel trusts the cached permissions of a directory only while its attributes are valid, so statx asks
/// for those first.
fn answer_size(dir: &Path, device: Option<(u32, u32)>, question: &[u8]) -> Option<u64> {
    let (id, path) = question.split_first_chunk()?;
    let mut at = root(dir, device?)?;
    for name in path.split(|&byte| byte == b'/') {
        rustix::fs::statx(&at, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
        at = step(&at, name, ResolveFlags::CACHED)?;
    }
    let stat = look(&at, u64::from_le_bytes(*id))?;
    (kind(&stat) == FileType::RegularFile).then_some(stat.stx_size)
}

/// Opens a regular file or a directory of the mount without following links or leaving the mount. An empty
/// path is the root.
fn open(dir: &Path, device: (u32, u32), path: &[u8], id: u64) -> Option<OwnedFd> {
    let mut found = root(dir, device)?;
    if !path.is_empty() {
        found = step(&found, path, ResolveFlags::empty())?;
        // Checked before the open: opening a device node has side effects, which no image may cause.
        look(&found, id).filter(|stat| matches!(kind(stat), FileType::RegularFile | FileType::Directory))?;
    }
    use std::os::fd::AsRawFd;
    let again = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(CWD, &again, flags, Mode::empty()))
        .map_err(|error: Errno| log::debug!("flush of inode {id}: {error}"))
        .ok()
}

/// Answered from the kernel's caches: no request comes to the session.
const KNOWN: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::STATX_DONT_SYNC);

/// Opens the root of the mount.
fn root(dir: &Path, device: (u32, u32)) -> Option<OwnedFd> {
    let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = crate::mountinfo::find(dir, device)?;
    let root = rustix::fs::openat(CWD, &dir, root_flags, Mode::empty()).ok()?;
    // Another filesystem may have been mounted over it since.
    let stat = rustix::fs::statx(&root, "", KNOWN, StatxFlags::TYPE).ok()?;
    ((stat.stx_dev_major, stat.stx_dev_minor) == device).then_some(root)
}

/// Opens a path below a directory, within the mount.
fn step(from: &OwnedFd, path: &[u8], how: ResolveFlags) -> Option<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV
        | how;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(from, path, flags, Mode::empty(), resolve).ok()
}

/// Returns the attributes of a file if its inode number is `id`.
fn look(file: &OwnedFd, id: u64) -> Option<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE;
    let stat = rustix::fs::statx(file, "", KNOWN, wanted).ok()?;
    (stat.stx_ino == id).then_some(stat)
}

fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// `None`: not a question.
fn answer_about_thread(question: &[u8]) -> Option<Answer> {
    let (thread, what) = question.split_first_chunk()?;
    let thread = u32::from_le_bytes(*thread);
    let file = ThreadStatus::open(thread);
    match what {
        [STATUS] => Some(file.map_or_else(|| NO.into(), |file| Answer(vec![YES], Some(file)))),
        [HAS_ENDED] => Some(yes_or_no(match file {
            Some(file) => ThreadStatus::read(&file).is_none(),
            None => ThreadStatus::is_unknown(thread),
        })),
        [HAS_SIGNAL] => Some(yes_or_no(match file {
            Some(file) => ThreadStatus::read(&file).is_none_or(|status| status.has_signal()),
            None => ThreadStatus::is_unknown(thread),
        })),
        _ => None,
    }
}
