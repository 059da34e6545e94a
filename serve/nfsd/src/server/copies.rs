//! Copies that go on behind their reply: a thread of their own does them, a slice at a time. Clients take turns, and of one client his copies do; no thread that answers
//! requests is ever held by one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, StateId};
use parking_lot::{Condvar, Mutex};

use super::core::Core;
use super::outside::Crew;
use crate::compound::CopyOrder;
use crate::ops::status::status;
use crate::state::{CopyWanted, Running, Span, Step, Stop, Time};

/// Bytes of a slice: what a client waits for who wants back the file that is copied to.
const SLICE_BYTES: u64 = 4 << 20;
/// So many lease times a copy waits for somebody who has its file for himself. A delegation is out no longer behind its recall.
const PATIENCE_LEASES: u64 = 5;
/// So often the thread looks whether there is still a server.
const LOOK: Duration = Duration::from_millis(500);

/// A copy, and how far it has come.
struct Copying {
    client: ClientId,
    stateid: StateId,
    order: CopyOrder,
    done: u64,
    /// Since when it could not go on.
    stalled: Option<Time>,
}

#[derive(Default)]
struct Queue {
    turns: VecDeque<(ClientId, VecDeque<Copying>)>,
    /// Those that somebody else is in the way of, until the next tick.
    stalled: Vec<Copying>,
    /// The thread is there.
    thread: bool,
    /// It is at a slice.
    running: bool,
    closed: bool,
}

impl Queue {
    fn push(&mut self, copy: Copying) {
        match self.turns.iter_mut().find(|(client, _)| *client == copy.client) {
            Some((_, copies)) => copies.push_back(copy),
            None => self.turns.push_back((copy.client, VecDeque::from([copy]))),
        }
    }

    fn pop(&mut self) -> Option<Copying> {
        let (client, mut copies) = self.turns.pop_front()?;
        let copy = copies.pop_front();
        if !copies.is_empty() {
            self.turns.push_back((client, copies));
        }
        copy
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Copies {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Copies {
    /// The next one; nothing: look whether there is still a server. `Err`: no more.
    fn next(&self) -> Result<Option<Copying>, ()> {
        let mut queue = self.queue.lock();
        if queue.turns.is_empty() && !queue.closed {
            self.changed.wait_for(&mut queue, LOOK);
        }
        if queue.closed {
            return Err(());
        }
        let next = queue.pop();
        queue.running = next.is_some();
        Ok(next)
    }

    fn rest(&self) {
        self.queue.lock().running = false;
        self.changed.notify_all();
    }

    /// Nothing is copied any more. What was under way is done when this returns.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        // Their files are let go while nothing is locked.
        let left = (std::mem::take(&mut queue.turns), std::mem::take(&mut queue.stalled));
        self.changed.notify_all();
        while queue.running {
            self.changed.wait(&mut queue);
        }
        drop(queue);
        drop(left);
    }

    fn work(&self, core: &Weak<Core>) {
        loop {
            match (self.next(), core.upgrade()) {
                (Ok(Some(copy)), Some(core)) => {
                    core.copy_slice(copy);
                    self.rest();
                }
                (Ok(None), Some(_)) => {}
                _ => return self.rest(),
            }
        }
    }
}

impl Core {
    /// Begin a copy; none if it is to be done before it is answered.
    pub fn copy(
        self: &Arc<Self>,
        client: ClientId,
        running: Option<&Running>,
        order: CopyOrder,
    ) -> Step<Option<StateId>> {
        let wanted = CopyWanted {
            source: (order.source.file(), order.read_by),
            target: (order.target.file(), order.write_by),
            verifier: order.verifier,
        };
        let Some(stateid) = self.with(|state, now| state.copy_begin(now, client, running, &wanted))? else {
            return Ok(None);
        };
        self.copies.queue.lock().push(Copying { client, stateid, order, done: 0, stalled: None });
        self.copy_on();
        Ok(Some(stateid))
    }

    /// There is something to copy.
    fn copy_on(self: &Arc<Self>) {
        match self.crew.get() {
            Some(Crew::Threads(_)) => {
                let mut queue = self.copies.queue.lock();
                if !queue.thread && !queue.closed {
                    let (copies, core) = (self.copies.clone(), Arc::downgrade(self));
                    let thread = std::thread::Builder::new().name("ivers-copies".into());
                    match thread.spawn(move || copies.work(&core)) {
                        Ok(_) => queue.thread = true,
                        // The next tick tries again.
                        Err(error) => log::error!("no thread for copies: {error}"),
                    }
                }
                drop(queue);
                self.copies.changed.notify_all();
            }
            Some(crew @ Crew::Caller { .. }) => {
                // One slice, and another one with each tick: whoever asks waits for it.
                let core = self.clone();
                crew.run(move || {
                    let next = core.copies.queue.lock().pop();
                    if let Some(copy) = next {
                        core.copy_slice(copy);
                    }
                });
            }
            None => {}
        }
    }

    /// Those that had to wait try again.
    pub fn copy_again(self: &Arc<Self>) {
        let mut queue = self.copies.queue.lock();
        let stalled = std::mem::take(&mut queue.stalled);
        stalled.into_iter().for_each(|copy| queue.push(copy));
        let some = !queue.turns.is_empty();
        drop(queue);
        if some {
            self.copy_on();
        }
    }

    fn copy_slice(self: &Arc<Self>, mut copy: Copying) {
        let stateid = copy.stateid;
        let leave = self.with(|state, now| state.copy_slice(now, &stateid));
        let leave = match leave {
            Ok((read, write)) => (self.hold(read), self.hold(write)),
            Err(Stop::Fail(NfsStat::Delay | NfsStat::Locked) | Stop::Gate(_) | Stop::Ask(_)) => {
                return self.copy_stalls(copy);
            }
            Err(Stop::Fail(status)) => {
                return self.with(|state, now| state.copy_ends(now, &stateid, status));
            }
            Err(Stop::Denied(_) | Stop::Replay(_)) => {
                return self.with(|state, now| state.copy_ends(now, &stateid, NfsStat::Serverfault));
            }
        };
        copy.stalled = None;
        let exported =
            self.service().is_some_and(|it| it.exports().export(copy.order.target.file().export).is_some());
        if !exported {
            drop(leave);
            return self.with(|state, now| state.copy_ends(now, &stateid, NfsStat::Stale));
        }
        let want = (copy.order.length - copy.done).min(SLICE_BYTES);
        let copied = catch_unwind(AssertUnwindSafe(|| copy.order.slice(copy.done, want)));
        drop(leave);
        let (bytes, end) = match copied {
            // The source has become shorter.
            Ok(Ok(0)) => (0, Some(NfsStat::Ok)),
            // Less than was wanted is no end: what was in the way comes again, and says what it is.
            Ok(Ok(bytes)) => (bytes, (copy.done + bytes == copy.order.length).then_some(NfsStat::Ok)),
            Ok(Err(error)) => (0, Some(status(&error))),
            Err(_) => (0, Some(NfsStat::Serverfault)),
        };
        copy.done += bytes;
        self.with(|state, now| state.copy_progress(now, &stateid, bytes, end));
        if end.is_none() {
            let mut queue = self.copies.queue.lock();
            if !queue.closed {
                queue.push(copy);
            }
        }
    }

    fn copy_stalls(self: &Arc<Self>, mut copy: Copying) {
        let now = self.now();
        let since = *copy.stalled.get_or_insert(now);
        if now.since(since) > Span(self.lease.0.saturating_mul(PATIENCE_LEASES)) {
            return self.with(|state, now| state.copy_ends(now, &copy.stateid, NfsStat::Delay));
        }
        let mut queue = self.copies.queue.lock();
        if !queue.closed {
            queue.stalled.push(copy);
        }
    }
}
