//! What a session needs done by somebody who may open files, and the sockets over which it asks.
//!
//! The process that parses an image may be locked in: it cannot open the mounted files to sync them, nor look into /proc. So those things
//! are always done at the other end of a socket, by threads that [`attach`](crate::attach) started, in the same process or in another one.
//!
//! Each socket carries one question at a time. Whoever answers trusts nothing that he is asked: he opens only regular files
//! and directories of this very mount, and tells no more than any user may read in /proc, and how large such a file is.

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Flushes that may be under way at once; each may take as long as the write-back of a whole file.
pub(crate) const FLUSHES_MAX: usize = 8;

/// How often who waits for a flush looks at who waits for him.
pub(crate) const WAITING: Duration = Duration::from_millis(100);

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
        let mut fds = vec![
            self.device,
            self.attendant,
            self.outside.groups.into_inner(),
            self.outside.sizes.into_inner(),
        ];
        fds.extend(self.outside.flushes.into_iter().map(Mutex::into_inner));
        (fds, self.outside.thread_ids)
    }

    /// Together again. `None`: something is missing.
    pub fn from_parts(fds: Vec<OwnedFd>, thread_ids: Vec<u32>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (device, attendant) = (fds.next()?, fds.next()?);
        let (groups, sizes) = (Mutex::new(fds.next()?), Mutex::new(fds.next()?));
        let flushes: Vec<_> = fds.map(Mutex::new).collect();
        let outside = Outside { groups, sizes, flushes, thread_ids };
        (!outside.flushes.is_empty()).then_some(Self { device, attendant, outside })
    }
}

/// The asking ends.
#[derive(Debug)]
pub(crate) struct Outside {
    /// Apart from the others: those wait for requests, and requests wait for this.
    groups: Mutex<OwnedFd>,
    /// Apart from the flushes: those wait for locks of the kernel's, and who holds one waits for this.
    sizes: Mutex<OwnedFd>,
    flushes: Vec<Mutex<OwnedFd>>,
    thread_ids: Vec<u32>,
}

impl Outside {
    /// How many flushes can be under way at once.
    pub(crate) fn flush_count(&self) -> usize {
        self.flushes.len()
    }

    /// Open the file or directory of this inode number by a path below the root of the mount, and fsync it: what the kernel holds back is
    /// handed over, and its lock of the inode was free. Waits until that is done, and does `meanwhile` every [`WAITING`].
    pub(crate) fn flush(&self, slot: usize, path: &[u8], id: u64, meanwhile: impl FnMut()) -> bool {
        let Some(socket) = self.flushes.get(slot) else { return false };
        ask_and(&socket.lock(), &which_file(id, path), 1, meanwhile) == Some(vec![YES])
    }

    /// The size that the kernel knows of the file of this inode number, if that is to be had without one of the kernel's locks. It may take a
    /// request, so no serving thread asks.
    pub(crate) fn size_of(&self, path: &[u8], id: u64) -> Option<u64> {
        let answer = ask(&self.sizes.lock(), &which_file(id, path), ANSWER_MAX)?;
        answer.strip_prefix(&[YES])?.try_into().map(u64::from_le_bytes).ok()
    }

    /// Whether a request comes from one of those who flush for us.
    pub(crate) fn is_ours(&self, thread_id: u32) -> bool {
        self.thread_ids.contains(&thread_id)
    }

    /// Whether a thread is no more, or has nothing left to do but to be gone.
    pub(crate) fn has_ended(&self, thread: u32) -> bool {
        thread != 0 && ask(&self.groups.lock(), &thread.to_le_bytes(), ANSWER_MAX) == Some(vec![NO])
    }

    /// The supplementary groups of a process, which the protocol does not carry.
    pub(crate) fn groups_of(&self, pid: u32) -> Vec<u32> {
        let answer = ask(&self.groups.lock(), &pid.to_le_bytes(), ANSWER_MAX).unwrap_or_default();
        let groups = answer.get(1..).unwrap_or_default();
        groups.as_chunks().0.iter().map(|&group| u32::from_le_bytes(group)).collect()
    }
}

/// An inode number, and PATH_MAX.
const QUESTION_MAX: usize = 8 + 4096;
/// 8192 groups; a process in more of them counts as in the first ones.
const ANSWER_MAX: usize = 1 + 8192 * 4;
/// What every answer begins with: done or not.
pub(crate) const NO: u8 = 0;
pub(crate) const YES: u8 = 1;

fn which_file(id: u64, path: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes(), path].concat()
}

pub(crate) fn ask(socket: &OwnedFd, question: &[u8], answer_max: usize) -> Option<Vec<u8>> {
    ask_and(socket, question, answer_max, || ())
}

/// And do something as often as the socket's time to wait is over.
fn ask_and(
    socket: &OwnedFd,
    question: &[u8],
    answer_max: usize,
    mut meanwhile: impl FnMut(),
) -> Option<Vec<u8>> {
    // A dead peer is an error, not a signal.
    rustix::io::retry_on_intr(|| rustix::net::send(socket, question, SendFlags::NOSIGNAL)).ok()?;
    loop {
        match receive(socket, answer_max) {
            Err(Errno::AGAIN) => meanwhile(),
            answer => return answer.ok().flatten(),
        }
    }
}

/// One message. `None`: the other end is closed. No message is empty.
fn receive(socket: &OwnedFd, max: usize) -> Result<Option<Vec<u8>>, Errno> {
    let mut message = vec![0; max];
    let (_, length) =
        rustix::io::retry_on_intr(|| rustix::net::recv(socket, message.as_mut_slice(), RecvFlags::empty()))?;
    message.truncate(length);
    Ok((length > 0).then_some(message))
}

/// Start those who answer, for the mount on `dir` whose device number is `device`. They end when the asking ends are closed.
pub(crate) fn start(dir: &Path, device: Option<(u32, u32)>) -> std::io::Result<Outside> {
    let (groups, theirs) = pair()?;
    answerer("ivers-groups", theirs, 4, |question| {
        let pid = question.try_into().map(u32::from_le_bytes).ok()?;
        let Some(groups) = groups_of(pid) else { return Some(vec![NO]) };
        let mut answer = vec![YES];
        answer.extend(groups.into_iter().flat_map(u32::to_le_bytes));
        answer.truncate(ANSWER_MAX);
        Some(answer)
    })?;
    let (sizes, theirs) = pair()?;
    let mount = dir.to_owned();
    answerer("ivers-sizes", theirs, QUESTION_MAX, move |question| {
        let size = answer_size(&mount, device, question);
        Some(size.map_or_else(|| vec![NO], |size| [&[YES], &size.to_le_bytes()[..]].concat()))
    })?;
    let mut outside = Outside {
        groups: Mutex::new(groups),
        sizes: Mutex::new(sizes),
        flushes: Vec::new(),
        thread_ids: Vec::with_capacity(FLUSHES_MAX),
    };
    for _ in 0..FLUSHES_MAX {
        let (ours, theirs) = pair()?;
        set_socket_timeout(&ours, Timeout::Recv, Some(WAITING))?;
        let dir = dir.to_owned();
        let id = answerer("ivers-outside", theirs, QUESTION_MAX, move |question| {
            Some(vec![if answer_flush(&dir, device, question).is_some() { YES } else { NO }])
        })?;
        outside.flushes.push(Mutex::new(ours));
        outside.thread_ids.push(id);
    }
    Ok(outside)
}

/// Of whom nothing is heard but what is sent through the other end: one who flushes.
#[cfg(test)]
pub(crate) fn not_answering() -> (Outside, OwnedFd) {
    let (flushes, others) = pair().unwrap();
    set_socket_timeout(&flushes, Timeout::Recv, Some(WAITING)).unwrap();
    let closed = || Mutex::new(pair().unwrap().0);
    let outside = Outside {
        groups: closed(),
        sizes: closed(),
        flushes: vec![Mutex::new(flushes)],
        thread_ids: Vec::new(),
    };
    (outside, others)
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
        while let Ok(Some(question)) = receive(&socket, question_max) {
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
    let (id, path) = question.split_first_chunk()?;
    let id = u64::from_le_bytes(*id);
    let file = open(dir, device?, path, id)?;
    rustix::fs::fsync(&file).map_err(|error| log::debug!("flush of inode {id}: {error}")).ok()
}

/// By names that the kernel knows by heart: to look one up again takes the lock of its directory, for which a removal may wait that waits for the
/// file's. It takes a directory's word for who may search it only while it trusts its attributes, so those are asked for first.
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

/// Open a regular file or a directory of the mount, without following anything and without leaving it. No path: the root.
fn open(dir: &Path, device: (u32, u32), path: &[u8], id: u64) -> Option<OwnedFd> {
    let mut found = root(dir, device)?;
    if !path.is_empty() {
        found = step(&found, path, ResolveFlags::empty())?;
        // Looked at before it is opened: opening a device would have effects that no image may cause.
        look(&found, id).filter(|stat| matches!(kind(stat), FileType::RegularFile | FileType::Directory))?;
    }
    use std::os::fd::AsRawFd;
    let again = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, &again, flags, Mode::empty()))
        .map_err(|error: Errno| log::debug!("flush of inode {id}: {error}"))
        .ok()
}

/// Of what the kernel knows: nothing is asked of us.
const KNOWN: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::STATX_DONT_SYNC);

/// The root of the mount.
fn root(dir: &Path, device: (u32, u32)) -> Option<OwnedFd> {
    let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = crate::mounts::find(dir, device)?;
    let root = rustix::fs::openat(CWD, &dir, root_flags, Mode::empty()).ok()?;
    // Something else may have been mounted over it since.
    let stat = rustix::fs::statx(&root, "", KNOWN, StatxFlags::TYPE).ok()?;
    ((stat.stx_dev_major, stat.stx_dev_minor) == device).then_some(root)
}

/// Go on from a directory of the mount, within the mount.
fn step(from: &OwnedFd, path: &[u8], how: ResolveFlags) -> Option<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV
        | how;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(from, path, flags, Mode::empty(), resolve).ok()
}

/// What is known of a file, if it has this number.
fn look(file: &OwnedFd, id: u64) -> Option<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE;
    let stat = rustix::fs::statx(file, "", KNOWN, wanted).ok()?;
    (stat.stx_ino == id).then_some(stat)
}

fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// The supplementary groups of a thread. `None`: it has ended.
fn groups_of(thread: u32) -> Option<Vec<u32>> {
    // What /proc does not show may be there all the same (proc(5), hidepid).
    let number = rustix::process::Pid::from_raw(i32::try_from(thread).ok()?)?;
    if rustix::process::test_kill_process(number) == Err(Errno::SRCH) {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim_start();
    // Of a zombie there is nothing left but its number.
    if field("State:").starts_with(['Z', 'X']) {
        return None;
    }
    Some(field("Groups:").split_whitespace().filter_map(|group| group.parse().ok()).collect())
}
