//! What a session needs done by somebody who may open files, and the sockets over which it asks.
//!
//! The process that parses an image may be locked in: it cannot open the mounted files to sync them, nor look into /proc. So those things
//! are always done at the other end of a socket, by threads that [`attach`](crate::attach) started, in the same process or in another one.
//!
//! Each socket carries one question at a time. Whoever answers trusts nothing that he is asked: he opens only regular files
//! of this very mount, and tells no more than any user may read in /proc.

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Flushes that may be under way at once; each may take as long as the write-back of a whole file.
pub(crate) const FLUSHES_MAX: usize = 8;

/// What a session needs besides the [`Vfs`](ivers_vfs::Vfs): the device, and sockets to those who act for it outside.
#[derive(Debug)]
pub struct Connection {
    pub(crate) device: OwnedFd,
    pub(crate) attendant: OwnedFd,
    pub(crate) outside: Outside,
}

impl Connection {
    /// Apart, to be sent to another process: the descriptors, and numbers of threads.
    pub fn into_parts(self) -> (Vec<OwnedFd>, Vec<u32>) {
        let mut fds = vec![self.device, self.attendant, self.outside.groups.into_inner()];
        fds.extend(self.outside.flushes.into_iter().map(Mutex::into_inner));
        (fds, self.outside.thread_ids)
    }

    /// Together again. `None`: something is missing.
    pub fn from_parts(fds: Vec<OwnedFd>, thread_ids: Vec<u32>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (device, attendant, groups) = (fds.next()?, fds.next()?, Mutex::new(fds.next()?));
        let flushes: Vec<_> = fds.map(Mutex::new).collect();
        let outside = Outside { groups, flushes, thread_ids };
        (!outside.flushes.is_empty()).then_some(Self { device, attendant, outside })
    }
}

/// How to make the kernel hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Data and times of the file.
    File,
    /// Whatever is dirty in the mount: for callers that come with the kernel's lock of the inode held, which fsync would
    /// wait for.
    Mount,
}

/// The asking ends.
#[derive(Debug)]
pub(crate) struct Outside {
    /// Apart from the flushes: those wait for requests, and requests wait for this.
    groups: Mutex<OwnedFd>,
    flushes: Vec<Mutex<OwnedFd>>,
    thread_ids: Vec<u32>,
}

impl Outside {
    /// How many flushes can be under way at once.
    pub(crate) fn flush_count(&self) -> usize {
        self.flushes.len()
    }

    /// Open the file of this inode number by a path below the root of the mount, and flush. Waits until that is done.
    pub(crate) fn flush(&self, slot: usize, path: &[u8], id: u64, how: Flush) -> bool {
        let Some(socket) = self.flushes.get(slot) else { return false };
        let mut question = vec![u8::from(how == Flush::Mount)];
        question.extend_from_slice(&id.to_le_bytes());
        question.extend_from_slice(path);
        ask(&socket.lock(), &question, 1) == Some(vec![YES])
    }

    /// Whether a request comes from one of those who flush for us.
    pub(crate) fn is_ours(&self, thread_id: u32) -> bool {
        self.thread_ids.contains(&thread_id)
    }

    /// The supplementary groups of a process, which the protocol does not carry.
    pub(crate) fn groups_of(&self, pid: u32) -> Vec<u32> {
        let answer = ask(&self.groups.lock(), &pid.to_le_bytes(), ANSWER_MAX).unwrap_or_default();
        let groups = answer.get(1..).unwrap_or_default();
        groups.as_chunks().0.iter().map(|&group| u32::from_le_bytes(group)).collect()
    }
}

/// The kind of flush, an inode number, and PATH_MAX.
const QUESTION_MAX: usize = 1 + 8 + 4096;
/// 8192 groups; a process in more of them counts as in the first ones.
const ANSWER_MAX: usize = 1 + 8192 * 4;
/// What every answer begins with: done or not.
pub(crate) const NO: u8 = 0;
pub(crate) const YES: u8 = 1;

pub(crate) fn ask(socket: &OwnedFd, question: &[u8], answer_max: usize) -> Option<Vec<u8>> {
    // A dead peer is an error, not a signal.
    rustix::io::retry_on_intr(|| rustix::net::send(socket, question, SendFlags::NOSIGNAL)).ok()?;
    receive(socket, answer_max)
}

/// One message. `None`: the other end is closed. No message is empty.
fn receive(socket: &OwnedFd, max: usize) -> Option<Vec<u8>> {
    let mut message = vec![0; max];
    let (_, length) =
        rustix::io::retry_on_intr(|| rustix::net::recv(socket, message.as_mut_slice(), RecvFlags::empty()))
            .ok()?;
    message.truncate(length);
    (length > 0).then_some(message)
}

/// Start those who answer, for the mount on `dir` whose device number is `device`. They end when the asking ends are closed.
pub(crate) fn start(dir: &Path, device: Option<(u32, u32)>) -> std::io::Result<Outside> {
    let (groups, theirs) = pair()?;
    answerer("ivers-groups", theirs, 4, |question| {
        let pid = question.try_into().map(u32::from_le_bytes).ok()?;
        let mut answer = vec![YES];
        answer.extend(groups_of(pid).into_iter().flat_map(u32::to_le_bytes));
        answer.truncate(ANSWER_MAX);
        Some(answer)
    })?;
    let mut outside = Outside {
        groups: Mutex::new(groups),
        flushes: Vec::new(),
        thread_ids: Vec::with_capacity(FLUSHES_MAX),
    };
    for _ in 0..FLUSHES_MAX {
        let (ours, theirs) = pair()?;
        let dir = dir.to_owned();
        let id = answerer("ivers-outside", theirs, QUESTION_MAX, move |question| {
            Some(vec![if answer_flush(&dir, device, question).is_some() { YES } else { NO }])
        })?;
        outside.flushes.push(Mutex::new(ours));
        outside.thread_ids.push(id);
    }
    Ok(outside)
}

/// The number of the thread that calls, as requests name their callers.
pub(crate) fn own_number() -> u32 {
    thread_local!(static OWN: u32 = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    OWN.with(|own| *own)
}

pub(crate) fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A thread that answers until nobody asks any more, or until it cannot; its number.
fn answerer(
    name: &str,
    socket: OwnedFd,
    question_max: usize,
    mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> std::io::Result<u32> {
    let (send_id, id) = mpsc::channel();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let _ = send_id.send(own_number());
        while let Some(question) = receive(&socket, question_max) {
            let Some(answer) = answer(&question) else { break };
            if rustix::io::retry_on_intr(|| rustix::net::send(&socket, &answer, SendFlags::NOSIGNAL)).is_err()
            {
                break;
            }
        }
    })?;
    id.recv().map_err(std::io::Error::other)
}

fn answer_flush(dir: &Path, device: Option<(u32, u32)>, question: &[u8]) -> Option<()> {
    let (&how, rest) = question.split_first()?;
    let (id, path) = rest.split_first_chunk()?;
    let file = open(dir, device?, path, u64::from_le_bytes(*id))?;
    let done = if how == 0 { rustix::fs::fsync(&file) } else { rustix::fs::syncfs(&file) };
    done.map_err(|error| log::debug!("flush of inode {}: {error}", u64::from_le_bytes(*id))).ok()
}

/// Open a regular file of the mount, without following anything and without leaving it.
fn open(dir: &Path, device: (u32, u32), path: &[u8], id: u64) -> Option<OwnedFd> {
    let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = crate::mounts::find(dir, device)?;
    let root = rustix::fs::openat(CWD, &dir, root_flags, Mode::empty()).ok()?;
    // Something else may have been mounted over it since.
    let stat = rustix::fs::statx(&root, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
        .ok()?;
    if (stat.stx_dev_major, stat.stx_dev_minor) != device {
        return None;
    }
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let found = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(&root, path, found, Mode::empty(), resolve).ok()?;
    // Looked at before it is opened: opening a device would have effects that no image may cause.
    let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&found, "", known, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    if stat.stx_ino != id || FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return None;
    }
    use std::os::fd::AsRawFd;
    let again = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, &again, flags, Mode::empty()))
        .map_err(|error: Errno| log::debug!("flush of inode {id}: {error}"))
        .ok()
}

fn groups_of(pid: u32) -> Vec<u32> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return Vec::new() };
    status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .map(|groups| groups.split_whitespace().filter_map(|group| group.parse().ok()).collect())
        .unwrap_or_default()
}
