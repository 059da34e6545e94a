//! Moves a serving thread to the processor of its caller and keeps background threads of its process off that
//! processor, for [`caller_affinity`](crate::caller_affinity).
//!
//! Background threads are those that commit and write back. If a processor runs only the serving thread, in
//! `SCHED_IDLE`, the kernel takes it for idle: it wakes background threads there although another processor
//! is idle. The serving thread and its caller would wait for them.
//!
//! This needs /proc and a right that the process which parses an image has given up. So a thread outside the
//! sandbox does it, on request over a socket. It moves only threads of the process that asks; the kernel says
//! which process that is (`SCM_CREDENTIALS`).
//!
//! An attacker who controls the worker learns on which processor any thread runs and can run there too,
//! nothing else.

use crate::privileged_helper::{NO, YES, pair};
use ivers_thread_sched::{Class, can_leave_idle, class, set_class};
use rustix::io::{IoSliceMut, retry_on_intr};
use rustix::net::sockopt::Timeout;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A question: the thread that asks and the caller to whose processor it wants to move, 4 bytes each.
const QUESTION: usize = 8;

/// In place of a caller: undo the last move.
pub(crate) const NOBODY: u32 = 0;
/// In place of a caller: move the thread out of `SCHED_IDLE`, which it may have entered unseen.
pub(crate) const WAKE_UP: u32 = u32::MAX;

/// How the names of background threads begin.
const BACKGROUND: &[u8; 6] = b"ivers-";

/// More than the length of `/proc/PID/stat`: 52 numbers and a name of 64 bytes at most.
const STAT_MAX: usize = 2048;

/// Receive timeout: a stopped helper must not stop the mount.
const LONGEST: Duration = Duration::from_secs(1);

/// Answer: the thread runs there already. The other answers are those of
/// [`privileged_helper`](crate::privileged_helper).
pub(crate) const THERE: u8 = 2;

pub(crate) fn question(thread: u32, caller: u32) -> [u8; QUESTION] {
    (u64::from(thread) | u64::from(caller) << 32).to_le_bytes()
}

/// Starts the helper. It ends when the returned socket is closed.
pub(crate) fn start() -> std::io::Result<OwnedFd> {
    let (ours, theirs) = pair()?;
    rustix::net::sockopt::set_socket_passcred(&theirs, true)?;
    rustix::net::sockopt::set_socket_timeout(&ours, Timeout::Recv, Some(LONGEST))?;
    std::thread::Builder::new().name("ivers-mover".into()).spawn(move || {
        let mut affinity_helper =
            AffinityHelper { can_leave_idle: can_leave_idle(), moved: None, caller: None };
        while let Some((process, thread, caller)) = receive(&theirs) {
            let answer = affinity_helper.answer(process, thread, caller).unwrap_or(NO);
            if retry_on_intr(|| rustix::net::send(&theirs, &[answer], SendFlags::NOSIGNAL)).is_err() {
                break;
            }
        }
        affinity_helper.undo();
    })?;
    Ok(ours)
}

/// Receives a question: the process that asks, its thread, the caller. `None`: the socket is closed.
fn receive(socket: &OwnedFd) -> Option<(Pid, u32, u32)> {
    let mut question = [0; QUESTION];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut question)],
            &mut ancillary,
            RecvFlags::empty(),
        )
    });
    if length.ok()?.bytes != QUESTION {
        return None;
    }
    let process = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
        _ => None,
    })?;
    let both = u64::from_le_bytes(question);
    Some((process, both as u32, (both >> 32) as u32))
}

/// A thread of a process. Thread numbers are reused, but this file of a thread that ended cannot be read.
struct Thread {
    number: u32,
    id: Pid,
    comm: File,
}

impl Thread {
    fn of(process: Pid, thread: u32) -> Option<Self> {
        let id = Pid::from_raw(thread.try_into().ok()?)?;
        let comm = File::open(format!("/proc/{process}/task/{thread}/comm")).ok()?;
        Some(Self { number: thread, id, comm })
    }

    fn background(process: Pid) -> Vec<Self> {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
        let numbers = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.filter_map(|number| Self::of(process, number)).filter(Self::is_background).collect()
    }

    fn is_background(&self) -> bool {
        let mut name = [0; BACKGROUND.len()];
        self.comm.read_exact_at(&mut name, 0).is_ok() && name == *BACKGROUND
    }

    fn is_there(&self) -> bool {
        self.comm.read_exact_at(&mut [0], 0).is_ok()
    }

    fn affinity(&self) -> Option<CpuSet> {
        self.is_there().then(|| sched_getaffinity(Some(self.id)).ok())?
    }

    /// Threads that end meanwhile are skipped.
    fn change(&self, to: &CpuSet) {
        _ = sched_setaffinity(Some(self.id), to);
    }
}

/// A moved thread, and its affinity before.
struct Moved {
    process: Pid,
    thread: Thread,
    before: CpuSet,
    processor: usize,
    /// Background threads that were moved away. Threads that start later are not looked for: that takes
    /// longer than a request, and a caller can move a thousand times a second.
    away: Vec<Thread>,
    /// Background threads with an affinity that an administrator chose.
    left_alone: Vec<Pid>,
}

impl Moved {
    /// The processors of the background threads.
    fn rest(&self) -> CpuSet {
        let mut rest = self.before;
        rest.unset(self.processor);
        rest
    }

    fn keep_others_away(&mut self) {
        for thread in Thread::background(self.process) {
            if thread.affinity() == Some(self.before) {
                thread.change(&self.rest());
                self.away.push(thread);
            } else {
                self.left_alone.push(thread.id);
            }
        }
    }

    fn follow_to(&mut self, processor: usize) {
        let rest = self.rest();
        self.processor = processor;
        for thread in self.away.iter().filter(|thread| thread.affinity() == Some(rest)) {
            thread.change(&self.rest());
        }
    }

    /// Restores the affinity of the background threads. Those that have started since inherited one without a
    /// processor.
    fn let_others_back(&self) {
        let is_rest = |set: CpuSet| {
            let extra = (0..CpuSet::MAX_CPU).any(|at| set.is_set(at) && !self.before.is_set(at));
            !extra && set.count() + 1 == self.before.count()
        };
        for thread in Thread::background(self.process) {
            if !self.left_alone.contains(&thread.id) && thread.affinity().is_some_and(is_rest) {
                thread.change(&self.before);
            }
        }
    }
}

/// Moves one thread at a time.
struct AffinityHelper {
    can_leave_idle: bool,
    moved: Option<Moved>,
    /// The last caller and its `stat`.
    caller: Option<(u32, File)>,
}

impl AffinityHelper {
    fn answer(&mut self, process: Pid, thread: u32, caller: u32) -> Option<u8> {
        match caller {
            NOBODY => return self.undo(),
            WAKE_UP => {
                Thread::of(process, thread)?;
                return set_class(thread, Class::Normal).ok().map(|()| YES);
            }
            _ if !self.can_leave_idle => return None,
            _ => {}
        }
        let processor = self.processor_of(caller)?;
        let is_same = |moved: &Moved| moved.process == process && moved.thread.number == thread;
        if self.moved.as_ref().is_some_and(|moved| !is_same(moved) || !moved.thread.is_there()) {
            self.undo();
        }
        if let Some(moved) = &mut self.moved {
            if moved.processor == processor {
                return Some(THERE);
            }
            sched_setaffinity(Some(moved.thread.id), &only(processor, &moved.before)?).ok()?;
            moved.follow_to(processor);
            return Some(YES);
        }
        let thread = Thread::of(process, thread)?;
        if class(thread.number).ok()? != Some(Class::Normal) {
            return None;
        }
        let before = thread.affinity()?;
        sched_setaffinity(Some(thread.id), &only(processor, &before)?).ok()?;
        let moved = Moved { process, thread, before, processor, away: Vec::new(), left_alone: Vec::new() };
        self.moved.insert(moved).keep_others_away();
        Some(YES)
    }

    /// Undoes the move.
    fn undo(&mut self) -> Option<u8> {
        let moved = self.moved.take()?;
        moved.let_others_back();
        if !moved.thread.is_there() {
            return None;
        }
        let Thread { number, id, .. } = moved.thread;
        // The class first: in `SCHED_IDLE` the thread would wait for others.
        let back =
            set_class(number, Class::Normal).and_then(|()| Ok(sched_setaffinity(Some(id), &moved.before)?));
        match back {
            Ok(()) => Some(YES),
            Err(error) => {
                log::warn!("serving thread {number} cannot be moved back: {error}");
                None
            }
        }
    }

    /// Returns the processor on which a thread runs or last ran: field 39 of proc_pid_stat(5).
    fn processor_of(&mut self, caller: u32) -> Option<usize> {
        let last = self.caller.take().filter(|(last, _)| *last == caller);
        let file =
            last.map_or_else(|| File::open(format!("/proc/{caller}/stat")).ok(), |(_, file)| Some(file))?;
        let mut stat = [0; STAT_MAX];
        let length = file.read_at(&mut stat, 0).ok()?;
        self.caller = Some((caller, file));
        // The name, field 2, may contain any bytes.
        let end_of_name = stat[..length].iter().rposition(|&byte| byte == b')')?;
        let from_third = str::from_utf8(&stat[end_of_name + 1..length]).ok()?;
        from_third.split_whitespace().nth(39 - 3)?.parse().ok()
    }
}

/// A set with this processor alone. `None`: the server has no choice of processors, or an administrator
/// gave it others.
fn only(processor: usize, of: &CpuSet) -> Option<CpuSet> {
    if processor >= CpuSet::MAX_CPU || !of.is_set(processor) || of.count() < 2 {
        return None;
    }
    let mut only = CpuSet::new();
    only.set(processor);
    Some(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileged_helper::own_number as me;
    use parking_lot::Mutex;

    fn ask(socket: &OwnedFd, thread: u32, caller: u32) -> bool {
        crate::privileged_helper::ask(socket, &question(thread, caller), 1) != Some(vec![NO])
    }

    /// Held by a test while it moves threads: the others are threads of the same process.
    static TURN: Mutex<()> = Mutex::new(());

    /// Whether this process can leave `SCHED_IDLE` and has several processors.
    fn can_be_moved() -> bool {
        can_leave_idle() && sched_getaffinity(None).unwrap().count() > 1
    }

    #[test]
    fn a_thread_moves_to_its_caller_and_back() {
        let (_turn, socket) = (TURN.lock(), start().unwrap());
        // In a separate thread: the tested thread may stay on its processor.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (before, possible) = (sched_getaffinity(None).unwrap(), can_be_moved());
                let went = ask(&socket, me(), std::process::id());
                assert_eq!(went, possible);
                if went {
                    set_class(me(), Class::Idle).unwrap();
                    assert!(ask(&socket, me(), WAKE_UP));
                    assert_eq!(class(me()).unwrap(), Some(Class::Normal));
                    set_class(me(), Class::Idle).unwrap();
                    assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
                    // Again, for a caller that has moved: the original affinity is kept.
                    assert!(ask(&socket, me(), me()));
                    assert!(ask(&socket, me(), 0));
                }
                assert!(!ask(&socket, me(), 0), "nothing to undo");
                assert_eq!(class(me()).unwrap(), Some(Class::Normal));
                assert_eq!(sched_getaffinity(None).unwrap(), before);
            });
        });
    }

    #[test]
    fn background_threads_of_the_process_stay_away_meanwhile() {
        let (_turn, socket) = (TURN.lock(), start().unwrap());
        if !can_be_moved() {
            return assert!(!ask(&socket, me(), me()));
        }
        let (number, end) = (std::sync::OnceLock::new(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let background = std::thread::Builder::new().name("ivers-test".into());
            let wait = || {
                number.set(me()).unwrap();
                end.wait();
            };
            background.spawn_scoped(scope, wait).unwrap();
            scope.spawn(|| {
                let other = Pid::from_raw(number.wait().cast_signed());
                let before = sched_getaffinity(other).unwrap();
                for _ in 0..2 {
                    assert!(ask(&socket, me(), std::process::id()));
                    let (mine, others) =
                        (sched_getaffinity(None).unwrap(), sched_getaffinity(other).unwrap());
                    assert_eq!((mine.count(), others.count()), (1, before.count() - 1));
                    assert!((0..CpuSet::MAX_CPU).all(|at| !(mine.is_set(at) && others.is_set(at))));
                }
                assert!(ask(&socket, me(), NOBODY));
                assert_eq!(sched_getaffinity(other).unwrap(), before);
                end.wait();
            });
        });
    }

    #[test]
    fn a_closed_socket_undoes_the_move() {
        let _turn = TURN.lock();
        if !can_be_moved() {
            return assert!(!ask(&start().unwrap(), me(), me()));
        }
        let socket = start().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = sched_getaffinity(None).unwrap();
                assert!(ask(&socket, me(), me()));
                drop(socket);
                let begin = std::time::Instant::now();
                while sched_getaffinity(None).unwrap() != before {
                    assert!(begin.elapsed() < Duration::from_secs(60));
                    std::thread::yield_now();
                }
            });
        });
    }

    #[test]
    fn threads_of_others_are_left_alone() {
        let (_turn, socket) = (TURN.lock(), start().unwrap());
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for thread in [other.id(), 1, 0, u32::MAX] {
            for about in [me(), WAKE_UP] {
                assert!(!ask(&socket, thread, about), "{thread}");
            }
        }
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!ask(&socket, me(), i32::MAX.unsigned_abs()), "a caller that does not exist");
        assert!(!ask(&socket, me(), other.id()), "a caller that has ended");
    }
}
