//! Outside: says on which processor a serving thread runs, for [`company`](crate::company).
//!
//! It takes a look into /proc and a right that the process which parses an image has given up. So this is done by a thread outside, which
//! is asked over a socket and moves nothing but threads of the process that asks: the kernel says which that is.
//! Whoever has taken the server over learns from it on which processor any thread runs, and can run there too; nothing else.

use crate::outside::{NO, YES, pair};
use ivers_sched::{Class, class, may_come_back, set_class};
use rustix::io::{IoSliceMut, retry_on_intr};
use rustix::net::sockopt::Timeout;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The thread that asks, and the one whose processor it is to share.
const QUESTION: usize = 8;

/// In place of a caller: whoever was moved is to be as it was before.
pub(crate) const NOBODY: u32 = 0;
/// In place of a caller: the thread is to come back from `SCHED_IDLE`, into which it may have gone unseen.
pub(crate) const WAKE_UP: u32 = u32::MAX;

/// A process outside that is stopped must not stop the mount.
const LONGEST: Duration = Duration::from_secs(1);

/// It runs there already; the other answers are those of [`outside`](crate::outside).
pub(crate) const THERE: u8 = 2;

pub(crate) fn question(thread: u32, caller: u32) -> [u8; QUESTION] {
    (u64::from(thread) | u64::from(caller) << 32).to_le_bytes()
}

/// Start it. It ends when the asking end, which is returned, is closed.
pub(crate) fn start() -> std::io::Result<OwnedFd> {
    let (ours, theirs) = pair()?;
    rustix::net::sockopt::set_socket_passcred(&theirs, true)?;
    rustix::net::sockopt::set_socket_timeout(&ours, Timeout::Recv, Some(LONGEST))?;
    std::thread::Builder::new().name("ivers-attendant".into()).spawn(move || {
        let mut attendant = Attendant { may_come_back: may_come_back(), moved: None };
        while let Some((process, thread, caller)) = receive(&theirs) {
            let answer = attendant.answer(process, thread, caller).unwrap_or(NO);
            if retry_on_intr(|| rustix::net::send(&theirs, &[answer], SendFlags::NOSIGNAL)).is_err() {
                break;
            }
        }
        attendant.dismiss();
    })?;
    Ok(ours)
}

/// Who asks, and what. `None`: nobody does any more.
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

/// Who was moved, and where it ran before.
struct Moved {
    process: Pid,
    thread: u32,
    /// Numbers of threads are used again.
    born: u64,
    before: CpuSet,
}

impl Moved {
    fn is_there(&self) -> bool {
        born(self.process, self.thread) == Some(self.born)
    }
}

/// One thread at a time is moved.
struct Attendant {
    may_come_back: bool,
    moved: Option<Moved>,
}

impl Attendant {
    fn answer(&mut self, process: Pid, thread: u32, caller: u32) -> Option<u8> {
        match caller {
            NOBODY => return self.dismiss(),
            WAKE_UP => {
                born(process, thread)?;
                return set_class(thread, Class::Normal).ok().map(|()| YES);
            }
            _ if !self.may_come_back => return None,
            _ => {}
        }
        let (id, born) = (Pid::from_raw(thread.try_into().ok()?)?, born(process, thread)?);
        let processor = processor_of(caller)?;
        if self.moved.as_ref().is_some_and(|moved| moved.born != born || moved.thread != thread) {
            self.dismiss();
        }
        let before = match &self.moved {
            Some(moved) => moved.before,
            None if class(thread).ok()? == Some(Class::Normal) => sched_getaffinity(Some(id)).ok()?,
            None => return None,
        };
        // Whoever keeps the server off that processor has a reason to.
        if processor >= CpuSet::MAX_CPU || !before.is_set(processor) || before.count() < 2 {
            return None;
        }
        let mut there = CpuSet::new();
        there.set(processor);
        if sched_getaffinity(Some(id)).ok()? == there {
            return Some(THERE);
        }
        sched_setaffinity(Some(id), &there).ok()?;
        self.moved = Some(Moved { process, thread, born, before });
        Some(YES)
    }

    /// As it was before.
    fn dismiss(&mut self) -> Option<u8> {
        let moved = self.moved.take()?;
        let id = Pid::from_raw(moved.thread.try_into().ok()?)?;
        if !moved.is_there() {
            return None;
        }
        // First what would make it wait for others.
        let back = set_class(moved.thread, Class::Normal)
            .and_then(|()| Ok(sched_setaffinity(Some(id), &moved.before)?));
        match back {
            Ok(()) => Some(YES),
            Err(error) => {
                log::warn!("serving thread {} stays on its processor: {error}", moved.thread);
                None
            }
        }
    }
}

/// When a thread of a process was started: field 22 of proc_pid_stat(5). `None`: it has no such thread.
fn born(process: Pid, thread: u32) -> Option<u64> {
    field(&format!("/proc/{process}/task/{thread}/stat"), 22)
}

/// Where a thread runs, or ran last: field 39.
fn processor_of(thread: u32) -> Option<usize> {
    field(&format!("/proc/{thread}/stat"), 39)
}

fn field<T: std::str::FromStr>(file: &str, number: usize) -> Option<T> {
    let stat = std::fs::read_to_string(file).ok()?;
    // The name, field 2, may have spaces and parentheses.
    let (_, from_third) = stat.rsplit_once(')')?;
    from_third.split_whitespace().nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::own_number as me;

    fn ask(socket: &OwnedFd, thread: u32, caller: u32) -> bool {
        crate::outside::ask(socket, &question(thread, caller), 1) != Some(vec![NO])
    }

    /// With the right to come back, and a choice of processors.
    fn can_be_moved() -> bool {
        may_come_back() && sched_getaffinity(None).unwrap().count() > 1
    }

    #[test]
    fn a_thread_goes_to_its_caller_and_comes_back() {
        let socket = start().unwrap();
        // In a thread of its own: this one may stay where it is.
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
                    // Once more, as to a caller that has moved on: what was before is not forgotten.
                    assert!(ask(&socket, me(), me()));
                    assert!(ask(&socket, me(), 0));
                }
                assert!(!ask(&socket, me(), 0), "there is nobody to dismiss");
                assert_eq!(class(me()).unwrap(), Some(Class::Normal));
                assert_eq!(sched_getaffinity(None).unwrap(), before);
            });
        });
    }

    #[test]
    fn the_end_of_the_asker_dismisses() {
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
        let socket = start().unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for thread in [other.id(), 1, 0, u32::MAX] {
            for about in [me(), WAKE_UP] {
                assert!(!ask(&socket, thread, about), "{thread}");
            }
        }
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!ask(&socket, me(), i32::MAX.unsigned_abs()), "a caller that is not there");
        assert!(!ask(&socket, me(), other.id()), "a caller that is not there any more");
    }
}
