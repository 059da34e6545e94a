//! Calls to clients, over the connections that they made or over those that we make to them. Nobody waits for the answer: what is to be done with it is a continuation.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ivers_nfs4::record::mark;
use ivers_nfs4::rpc::{CallHeader, OpaqueAuth, Reply};
use ivers_nfs4::xdr::{Decoder, Encoder};
use parking_lot::Mutex;
use thiserror::Error;

use crate::net::connection::Connection;
use crate::net::pool::Job;

/// A client that answers nothing is not asked more than so many things at once.
const CONNECTION_CALLS_MAX: usize = 256;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallbackError {
    /// The connection has ended. The client may have got the call, or not.
    #[error("the connection ended")]
    Closed,
    /// Nothing came in time. It may still have got the call.
    #[error("no answer came in time")]
    TimedOut,
    /// Too many calls wait for this client's answers: this one was not sent.
    #[error("too many calls wait for an answer")]
    TooMany,
    /// He does not do that.
    #[error("the call was refused: {0:?}")]
    Refused(Reply),
    /// What came makes no sense.
    #[error("the answer makes no sense")]
    Garbled,
}

/// A successful answer.
#[derive(Debug)]
pub struct Answer {
    message: Vec<u8>,
    results_at: usize,
}

impl Answer {
    /// These results, from somebody who was not called over a connection.
    pub(crate) fn of(results: Vec<u8>) -> Self {
        Self { message: results, results_at: 0 }
    }

    /// The results, undecoded.
    pub fn results(&self) -> &[u8] {
        &self.message[self.results_at..]
    }
}

/// How a call to a client ended.
pub type Outcome = Result<Answer, CallbackError>;

type Continuation = Box<dyn FnOnce(Outcome) + Send>;

/// What to call.
#[derive(Debug, Clone)]
pub struct Procedure {
    /// The program: the client said which.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// What is called.
    pub procedure: u32,
    /// Who we are.
    pub credential: OpaqueAuth,
}

struct Pending {
    until: Instant,
    then: Continuation,
}

/// All calls that wait for answers.
#[derive(Default)]
pub struct Callbacks {
    next: AtomicU32,
    /// By connection and xid. Nobody else's answer counts.
    pending: Mutex<HashMap<u64, HashMap<u32, Pending>>>,
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callbacks")
    }
}

impl Callbacks {
    /// None wait.
    pub fn new() -> Arc<Self> {
        // From anywhere, so that a client that meets the server again after a restart takes no answer for another.
        Arc::new(Self { next: AtomicU32::new(rand::random()), pending: Mutex::default() })
    }

    /// Call a client. `then` runs on a thread of the server, exactly once unless the server ends before: with the answer, or with why there is none. It runs
    /// after this has returned, or before.
    pub fn call(
        &self,
        connection: &Arc<Connection>,
        procedure: &Procedure,
        arguments: &[u8],
        time: Duration,
        then: impl FnOnce(Outcome) + Send + 'static,
    ) {
        let xid = self.next.fetch_add(1, Ordering::Relaxed);
        let mut then: Option<Continuation> = Some(Box::new(then));
        {
            let mut pending = self.pending.lock();
            let own = pending.entry(connection.id()).or_default();
            if own.len() < CONNECTION_CALLS_MAX
                && let Some(then) = then.take()
            {
                own.insert(xid, Pending { until: Instant::now() + time, then });
            }
        }
        if let Some(then) = then {
            return continue_with(connection, then, Err(CallbackError::TooMany));
        }
        connection.hub().counters.callbacks.fetch_add(1, Ordering::Relaxed);
        let mut encoder = Encoder::with_capacity(128 + arguments.len());
        encoder.word(0);
        let Procedure { program, version, procedure, ref credential } = *procedure;
        let (cred, verf) = (credential.clone(), OpaqueAuth::NONE);
        CallHeader { xid, program, version, procedure, cred, verf }.put(&mut encoder);
        encoder.fixed(arguments);
        let len = encoder.len() - 4;
        encoder.patch_word(0, u32::from_be_bytes(mark(len)));
        connection.send(encoder.into_bytes());
        // Closed before it was booked, the connection told nobody about this one.
        if connection.is_closed() {
            self.closed(connection);
        }
    }

    /// An answer has come. What is to be done next, if anybody waits for it.
    pub(super) fn answered(
        &self,
        connection: &Connection,
        xid: u32,
        message: Vec<u8>,
        whole: bool,
    ) -> Option<Job> {
        let pending = {
            let mut all = self.pending.lock();
            let own = all.get_mut(&connection.id())?;
            let pending = own.remove(&xid)?;
            if own.is_empty() {
                all.remove(&connection.id());
            }
            pending
        };
        let mut from = Decoder::new(&message);
        let outcome = match Reply::take(&mut from) {
            Ok((_, Reply::Success { .. })) if whole => {
                let results_at = message.len() - from.remaining();
                Ok(Answer { message, results_at })
            }
            Ok((_, Reply::Success { .. })) | Err(_) => Err(CallbackError::Garbled),
            Ok((_, refused)) => Err(CallbackError::Refused(refused)),
        };
        Some(Box::new(move || (pending.then)(outcome)))
    }

    /// A connection has ended, and with it all calls over it.
    pub(super) fn closed(&self, connection: &Connection) {
        let gone = self.pending.lock().remove(&connection.id());
        for pending in gone.into_iter().flat_map(HashMap::into_values) {
            continue_with(connection, pending.then, Err(CallbackError::Closed));
        }
    }

    /// End the calls whose time is over.
    pub(super) fn tick(&self, run: impl Fn(Job)) -> u64 {
        let now = Instant::now();
        let mut late = Vec::new();
        self.pending.lock().retain(|_, own| {
            late.extend(own.extract_if(|_, pending| pending.until <= now).map(|(_, pending)| pending));
            !own.is_empty()
        });
        let count = late.len() as u64;
        for pending in late {
            run(Box::new(move || (pending.then)(Err(CallbackError::TimedOut))));
        }
        count
    }
}

fn continue_with(connection: &Connection, then: Continuation, outcome: Outcome) {
    connection.hub().push_urgent(Box::new(move || then(outcome)));
}
