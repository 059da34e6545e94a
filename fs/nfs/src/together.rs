//! Requests of several threads in one COMPOUND.
//!
//! Each thread of a group sends something for its own file, and its operations can be executed twice with the
//! effect of once. When all threads of the group wait, the last one sends everything. The server stops at the
//! first operation that fails. Its thread gets that error, and the next request continues with the thread
//! after it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::status::NfsStat;
use ivers_vfs::sync::{Condvar, RankedMutex, rank};
use ivers_vfs::{Cred, Error, Result, ServerError};

use crate::client::Client;
use crate::counters::Counters;
use crate::requests::Outcome;

/// Bytes of a request beside the operations of the threads: credentials, SEQUENCE.
const REQUEST_OVERHEAD: usize = 2048;
/// The bytes that the operations of a thread take besides data.
const REQUEST_BYTES: usize = 512;
/// The bytes of a reply beside the results of the threads.
const REPLY_OVERHEAD: usize = 512;
/// The bytes that the results of a thread take. If a server sends more, each thread sends its own request.
const REPLY_BYTES: usize = 448;

/// How a thread sends the requests that carry data.
#[derive(Clone)]
enum Manner {
    /// Until this time; it may use the last slot.
    Urgent(Instant),
    /// With the other threads of its group.
    Together(Arc<Group>),
}

thread_local! {
    static MANNER: RefCell<Option<Manner>> = const { RefCell::new(None) };
}

/// Resets how the requests of a thread are sent.
pub struct Entered(Option<Arc<Group>>);

impl Drop for Entered {
    fn drop(&mut self) {
        MANNER.set(None);
        if let Some(group) = self.0.take() {
            group.leave();
        }
    }
}

/// Sends the requests with data of this thread urgently, until this time.
pub fn urgently(until: Instant) -> Entered {
    MANNER.set(Some(Manner::Urgent(until)));
    Entered(None)
}

/// Returns whether this thread sends its requests as usual: at once, and alone.
pub(crate) fn has_no_manner() -> bool {
    MANNER.with_borrow(Option::is_none)
}

/// Operations of a thread that waits.
struct Part {
    thread: u64,
    caller: Cred,
    auth: AuthSys,
    ops: Vec<Op>,
}

impl Part {
    fn bytes(&self) -> usize {
        let data = |op: &Op| if let Op::Write(write) = op { write.data.len() } else { 0 };
        self.ops.iter().map(data).sum::<usize>() + REQUEST_BYTES
    }
}

#[derive(Default)]
struct Inner {
    /// The threads that do not wait.
    running: usize,
    waiting: Vec<Part>,
    answers: HashMap<u64, Result<Outcome>>,
    next: u64,
}

/// Threads that send together.
pub struct Group {
    client: Arc<Client>,
    inner: RankedMutex<rank::Leaf, Inner>,
    answered: Condvar,
}

impl Group {
    /// A group of this many threads. Each must call [`Group::enter`].
    pub fn new(client: &Arc<Client>, threads: usize) -> Arc<Self> {
        let inner = Inner { running: threads, ..Inner::default() };
        Arc::new(Self { client: client.clone(), inner: RankedMutex::new(inner), answered: Condvar::new() })
    }

    /// This thread is one of the group, until the result is dropped.
    pub fn enter(self: &Arc<Self>) -> Entered {
        MANNER.set(Some(Manner::Together(self.clone())));
        Entered(Some(self.clone()))
    }

    fn leave(&self) {
        let mut inner = self.inner.lock();
        inner.running -= 1;
        let last = if inner.running == 0 { std::mem::take(&mut inner.waiting) } else { Vec::new() };
        drop(inner);
        if !last.is_empty() {
            self.send(last);
        }
    }

    fn call(&self, caller: &Cred, ops: Vec<Op>) -> Result<Outcome> {
        let auth = self.client.identity().auth(caller);
        let mut inner = self.inner.lock();
        let thread = inner.next;
        inner.next += 1;
        inner.waiting.push(Part { thread, caller: caller.clone(), auth, ops });
        inner.running -= 1;
        if inner.running == 0 {
            let all = std::mem::take(&mut inner.waiting);
            drop(inner);
            self.send(all);
            inner = self.inner.lock();
        }
        loop {
            if let Some(answer) = inner.answers.remove(&thread) {
                return answer;
            }
            inner.wait(&self.answered);
        }
    }

    /// Sends all parts, in as few requests as possible, and hands the answers over.
    fn send(&self, parts: Vec<Part>) {
        let mut left = VecDeque::from(parts);
        let mut alone = false;
        while !left.is_empty() {
            let count = if alone { 1 } else { self.fitting(left.make_contiguous()) };
            let ops: Vec<Op> = left.iter().take(count).flat_map(|part| part.ops.iter().cloned()).collect();
            let caller = left[0].caller.clone();
            match self.client.call(&caller, &ops) {
                Ok(outcome) => {
                    if count > 1 {
                        Counters::count(&self.client.counters().together);
                    }
                    self.hand_over(&mut left, count, outcome);
                }
                // Each further request would wait as long as this one did.
                Err(Error::Server(ServerError::Timeout)) => {
                    for part in left.drain(..) {
                        self.answer(part.thread, Err(ServerError::Timeout.into()));
                    }
                }
                Err(error) if count == 1 => {
                    if let Some(part) = left.pop_front() {
                        self.answer(part.thread, Err(error));
                    }
                }
                // The reply may have been too long.
                Err(_) => alone = true,
            }
        }
    }

    /// Returns how many of the first parts fit into one request of one caller.
    fn fitting(&self, parts: &[Part]) -> usize {
        let Ok(session) = self.client.session() else { return 1 };
        let (mut ops, mut bytes, mut replies) = (1, REQUEST_OVERHEAD, REPLY_OVERHEAD);
        let fits = |part: &&Part| {
            ops += part.ops.len();
            bytes += part.bytes();
            replies += REPLY_BYTES;
            part.auth == parts[0].auth
                && ops <= session.operations_max
                && bytes <= session.request_bytes_max
                && replies <= session.kept_bytes_max
        };
        parts.iter().take_while(fits).count().max(1)
    }

    /// Hands the results of a request for the first `count` parts over, up to and including one that failed.
    fn hand_over(&self, left: &mut VecDeque<Part>, count: usize, outcome: Outcome) {
        let Outcome { status, results, sent, run } = outcome;
        let mut results = results.into_iter();
        for nth in 0..count {
            let Some(len) = left.front().map(|part| part.ops.len()) else { return };
            let own: Vec<OpResult> = results.by_ref().take(len).collect();
            let done = own.len() == len && own.iter().all(|result| result.status() == NfsStat::Ok);
            // The request of this part alone is repeated after a pause, or fits.
            let again = matches!(
                status,
                NfsStat::Delay | NfsStat::Grace | NfsStat::RepTooBig | NfsStat::RepTooBigToCache
            );
            let has_begun = own
                .iter()
                .any(|result| result.status() == NfsStat::Ok && !matches!(result.number(), number::PUTFH));
            if nth > 0 && !done && (own.is_empty() || again && !has_begun) {
                return;
            }
            let Some(part) = left.pop_front() else { return };
            let status = if done { NfsStat::Ok } else { status };
            self.answer(part.thread, Ok(Outcome { status, results: own, sent, run }));
            if !done {
                return;
            }
        }
    }

    fn answer(&self, thread: u64, answer: Result<Outcome>) {
        let mut inner = self.inner.lock();
        inner.answers.insert(thread, answer);
        // It runs again.
        inner.running += 1;
        self.answered.notify_all();
    }
}

impl Client {
    /// Sends a request with data in the manner of this thread.
    pub(crate) fn call_in_manner(&self, caller: &Cred, ops: Vec<Op>) -> Result<Outcome> {
        match MANNER.with_borrow(Clone::clone) {
            None => self.call(caller, &ops),
            Some(Manner::Urgent(until)) => {
                let time = until.saturating_duration_since(Instant::now());
                self.call_urgently(caller, &ops, Some(time))
            }
            Some(Manner::Together(group)) => group.call(caller, ops),
        }
    }
}
