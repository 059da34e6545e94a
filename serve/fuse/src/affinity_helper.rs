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
use std::fs::DirEntry;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A question: the thread that asks and the caller to whose processor it wants to move, 4 bytes each.
const QUESTION: usize = 8;

/// In place of a caller: undo the last move.
pub(crate) const NOBODY: u32 = 0;
/// In place of a caller: move the thread out of `SCHED_IDLE`, which it may have entered unseen.
pub(crate) const WAKE_UP: u32 = u32::MAX;

/// How the names of background threads begin.
const BACKGROUND: &str = "ivers-";

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
        let mut affinity_helper = AffinityHelper { can_leave_idle: can_leave_idle(), moved: None };
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

/// A moved thread, and its affinity before.
struct Moved {
    process: Pid,
    thread: u32,
    /// Thread numbers are reused, start times are not.
    born: u64,
    before: CpuSet,
    processor: usize,
}

impl Moved {
    fn is_there(&self) -> bool {
        born(self.process, self.thread) == Some(self.born)
    }

    /// The processors of the background threads.
    fn rest(&self) -> CpuSet {
        let mut rest = self.before;
        rest.unset(self.processor);
        rest
    }

    /// Changes the affinity of the background threads that have the affinity `from`. An administrator's own
    /// choice for a thread stays. Threads that end meanwhile are skipped.
    fn change_others(&self, from: &CpuSet, to: &CpuSet) {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.process)) else { return };
        let is_background = |thread: &DirEntry| {
            std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.starts_with(BACKGROUND))
        };
        let background = threads.filter_map(Result::ok).filter(is_background);
        let number = |thread: DirEntry| thread.file_name().to_str()?.parse().ok();
        for id in background.filter_map(number).filter_map(Pid::from_raw) {
            if sched_getaffinity(Some(id)).is_ok_and(|set| set == *from) {
                _ = sched_setaffinity(Some(id), to);
            }
        }
    }

    fn keep_others_away(&self) {
        self.change_others(&self.before, &self.rest());
    }

    fn let_others_back(&self) {
        self.change_others(&self.rest(), &self.before);
    }
}

/// Moves one thread at a time.
struct AffinityHelper {
    can_leave_idle: bool,
    moved: Option<Moved>,
}

impl AffinityHelper {
    fn answer(&mut self, process: Pid, thread: u32, caller: u32) -> Option<u8> {
        match caller {
            NOBODY => return self.undo(),
            WAKE_UP => {
                born(process, thread)?;
                return set_class(thread, Class::Normal).ok().map(|()| YES);
            }
            _ if !self.can_leave_idle => return None,
            _ => {}
        }
        let (id, born) = (Pid::from_raw(thread.try_into().ok()?)?, born(process, thread)?);
        let processor = processor_of(caller)?;
        if self.moved.as_ref().is_some_and(|moved| moved.born != born || moved.thread != thread) {
            self.undo();
        }
        let before = match &self.moved {
            Some(moved) => moved.before,
            None if class(thread).ok()? == Some(Class::Normal) => sched_getaffinity(Some(id)).ok()?,
            None => return None,
        };
        // Respects an affinity that an administrator gave the server.
        if processor >= CpuSet::MAX_CPU || !before.is_set(processor) || before.count() < 2 {
            return None;
        }
        let mut there = CpuSet::new();
        there.set(processor);
        if sched_getaffinity(Some(id)).ok()? == there {
            return Some(THERE);
        }
        sched_setaffinity(Some(id), &there).ok()?;
        if let Some(moved) = &self.moved {
            moved.let_others_back();
        }
        let moved = self.moved.insert(Moved { process, thread, born, before, processor });
        moved.keep_others_away();
        Some(YES)
    }

    /// Undoes the move.
    fn undo(&mut self) -> Option<u8> {
        let moved = self.moved.take()?;
        let id = Pid::from_raw(moved.thread.try_into().ok()?)?;
        moved.let_others_back();
        if !moved.is_there() {
            return None;
        }
        // The class first: in `SCHED_IDLE` the thread would wait for others.
        let back = set_class(moved.thread, Class::Normal)
            .and_then(|()| Ok(sched_setaffinity(Some(id), &moved.before)?));
        match back {
            Ok(()) => Some(YES),
            Err(error) => {
                log::warn!("serving thread {} cannot be moved back: {error}", moved.thread);
                None
            }
        }
    }
}

/// Returns when a thread of a process started: field 22 of proc_pid_stat(5). `None`: the process has no such
/// thread.
fn born(process: Pid, thread: u32) -> Option<u64> {
    field(&format!("/proc/{process}/task/{thread}/stat"), 22)
}

/// Returns the processor on which a thread runs or last ran: field 39.
fn processor_of(thread: u32) -> Option<usize> {
    field(&format!("/proc/{thread}/stat"), 39)
}

fn field<T: std::str::FromStr>(file: &str, number: usize) -> Option<T> {
    let stat = std::fs::read_to_string(file).ok()?;
    // The name, field 2, may contain spaces and parentheses.
    let (_, from_third) = stat.rsplit_once(')')?;
    from_third.split_whitespace().nth(number - 3)?.parse().ok()
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
            let background = std::thread::Builder::new().name(format!("{BACKGROUND}test"));
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
