//! Programs that wait for a byte-range lock which others have.
//!
//! The owner of a server's lock ([`LockOps`](ivers_vfs::LockOps)) may be on another machine, and a server
//! need not report when the lock is free. So one thread asks again, with growing pauses. It asks at once when
//! a program of this mount unlocks a part of the file, or the server reports that a lock may be free.
//! Programs that wait for one file are tried in the order in which they came.
//!
//! FUSE interrupt requests do not arrive here. Instead, the thread checks whether the waiting thread has a
//! pending signal. Another thread of the process may handle the signal, and then the call must not end. So a
//! signal counts only if it is still pending at the next check.

use crate::connection::Connection;
use crate::errno::errno;
use crate::nodes::Node;
use fuser::{Errno, ReplyEmpty};
use ivers_vfs::{Cred, Error, LockRequest, NameError};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The time between two looks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// A program that waits.
pub(crate) struct Wait {
    pub(crate) node: Arc<Node>,
    pub(crate) cred: Cred,
    pub(crate) lock: LockRequest,
    /// The waiting thread.
    pub(crate) thread: u32,
    pub(crate) reply: ReplyEmpty,
    tried: Instant,
    pause: Duration,
    /// It had a signal at the last look.
    signalled: bool,
}

impl Wait {
    /// A wait for a lock that was refused a moment ago. `lock` says that its owner waits.
    pub(crate) fn new(
        node: Arc<Node>,
        cred: Cred,
        lock: LockRequest,
        thread: u32,
        reply: ReplyEmpty,
    ) -> Self {
        let (tried, pause) = (Instant::now(), PAUSES.0);
        Self { node, cred, lock, thread, reply, tried, pause, signalled: false }
    }
}

#[derive(Default)]
struct State {
    waits: Vec<Wait>,
    /// Files of which something was unlocked.
    unlocked: Vec<u64>,
    closed: bool,
}

/// All who wait in this mount.
#[derive(Default)]
pub(crate) struct LockWaits {
    state: Mutex<State>,
    wake: Condvar,
}

impl LockWaits {
    /// Adds one who waits.
    pub(crate) fn add(&self, wait: Wait) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return wait.reply.error(Errno::EIO);
        }
        state.waits.push(wait);
        self.wake.notify_one();
    }

    /// Notes that a lock of a file may be free: a program of this mount unlocked a range, or the server
    /// reports it.
    pub(crate) fn unlocked(&self, id: u64) {
        let mut state = self.state.lock();
        // Also if nobody is here: the thread may be asking for one at this moment.
        if !state.unlocked.contains(&id) {
            state.unlocked.push(id);
        }
        self.wake.notify_one();
    }

    /// Ends the thread. Programs that still wait get an error.
    pub(crate) fn close(&self) {
        let waits = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waits)
        };
        self.wake.notify_one();
        waits.into_iter().for_each(|wait| wait.reply.error(Errno::EIO));
    }

    /// The work of the thread.
    pub(crate) fn run(&self, connection: &Arc<Connection>) {
        loop {
            let (waits, unlocked) = {
                let mut state = self.state.lock();
                if !state.closed && state.unlocked.is_empty() {
                    match state.waits.is_empty() {
                        true => self.wake.wait(&mut state),
                        false => drop(self.wake.wait_for(&mut state, LOOK)),
                    }
                }
                if state.closed {
                    return;
                }
                (std::mem::take(&mut state.waits), std::mem::take(&mut state.unlocked))
            };
            let go_on = |wait| look_after(connection, wait, &unlocked);
            let mut left: Vec<Wait> = waits.into_iter().filter_map(go_on).collect();
            let mut state = self.state.lock();
            left.append(&mut state.waits);
            state.waits = left;
            if state.closed {
                let waits = std::mem::take(&mut state.waits);
                drop(state);
                waits.into_iter().for_each(|wait| wait.reply.error(Errno::EIO));
                return;
            }
        }
    }
}

/// Tries again for one who waits, if it is time. Returns it if it still waits.
fn look_after(connection: &Arc<Connection>, mut wait: Wait, unlocked: &[u64]) -> Option<Wait> {
    let signalled = connection.flusher.helper().has_signal(wait.thread);
    if signalled && wait.signalled {
        wait.reply.error(Errno::EINTR);
        return None;
    }
    wait.signalled = signalled;
    if !unlocked.contains(&wait.node.id) && wait.tried.elapsed() < wait.pause {
        return Some(wait);
    }
    match connection.vfs.lock(&wait.cred, &wait.node.inode, &wait.lock) {
        Ok(()) => {
            connection.locked(wait.node, wait.reply);
            None
        }
        Err(Error::Name(NameError::Busy)) => {
            (wait.tried, wait.pause) = (Instant::now(), (wait.pause * 2).min(PAUSES.1));
            Some(wait)
        }
        Err(error) => {
            wait.reply.error(errno(error));
            None
        }
    }
}
