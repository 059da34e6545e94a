//! Calls to clients, on connections that either side opened. No thread waits for a reply: a continuation
//! handles it.

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
use crate::net::fair_queue::Job;

/// Maximum number of unanswered calls per connection.
const MAX_CALLS_PER_CONNECTION: usize = 256;

/// The reason why a call to a client failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallbackError {
    /// The connection is closed. The client may have received the call.
    #[error("the connection was closed")]
    Closed,
    /// No reply in time. The client may have received the call.
    #[error("no reply in time")]
    TimedOut,
    /// Too many calls to this client are unanswered. This call was not sent.
    #[error("too many unanswered calls")]
    TooMany,
    /// The client refused the call.
    #[error("the call was refused: {0:?}")]
    Refused(Reply),
    /// The reply is malformed.
    #[error("malformed reply")]
    Malformed,
}

/// A successful reply.
#[derive(Debug)]
pub struct Answer {
    message: Vec<u8>,
    results_at: usize,
}

impl Answer {
    /// Creates a reply from its results, for a client without a connection.
    pub(crate) fn of(results: Vec<u8>) -> Self {
        Self { message: results, results_at: 0 }
    }

    /// Returns the encoded results.
    pub fn results(&self) -> &[u8] {
        &self.message[self.results_at..]
    }
}

/// The result of a call to a client.
pub type Outcome = Result<Answer, CallbackError>;

type Continuation = Box<dyn FnOnce(Outcome) + Send>;

/// A procedure of a client.
#[derive(Debug, Clone)]
pub struct Procedure {
    /// The program number that the client chose.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// The procedure number.
    pub procedure: u32,
    /// The server's credential.
    pub credential: OpaqueAuth,
}

struct Pending {
    deadline: Instant,
    then: Continuation,
}

/// All calls to clients that wait for a reply.
#[derive(Default)]
pub struct Callbacks {
    next: AtomicU32,
    /// By connection and xid, so that only a reply on the same connection counts.
    pending: Mutex<HashMap<u64, HashMap<u32, Pending>>>,
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callbacks")
    }
}

impl Callbacks {
    /// Creates an empty table.
    pub fn new() -> Arc<Self> {
        // A random start, so that a client does not take a call after a server restart for an earlier one.
        Arc::new(Self { next: AtomicU32::new(rand::random()), pending: Mutex::default() })
    }

    /// Calls a client. `then` runs on a thread of the server with the reply or the error: exactly once,
    /// unless the server ends first. It may run before this function returns.
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
            if own.len() < MAX_CALLS_PER_CONNECTION
                && let Some(then) = then.take()
            {
                own.insert(xid, Pending { deadline: Instant::now() + time, then });
            }
        }
        if let Some(then) = then {
            return continue_with(connection, then, Err(CallbackError::TooMany));
        }
        connection.shared().counters.callbacks.fetch_add(1, Ordering::Relaxed);
        let mut encoder = Encoder::with_capacity(128 + arguments.len());
        encoder.word(0);
        let Procedure { program, version, procedure, ref credential } = *procedure;
        let (cred, verf) = (credential.clone(), OpaqueAuth::NONE);
        CallHeader { xid, program, version, procedure, cred, verf }.put(&mut encoder);
        encoder.fixed(arguments);
        let len = encoder.len() - 4;
        encoder.patch_word(0, u32::from_be_bytes(mark(len)));
        connection.send(encoder.into_bytes());
        // If the connection was closed before the call was recorded, `closed` did not fail this call.
        if connection.is_closed() {
            self.closed(connection);
        }
    }

    /// Handles a reply. Returns the continuation if a call waits for it.
    pub(super) fn handle_reply(
        &self,
        connection: &Connection,
        xid: u32,
        message: Vec<u8>,
        is_complete: bool,
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
            Ok((_, Reply::Success { .. })) if is_complete => {
                let results_at = message.len() - from.remaining();
                Ok(Answer { message, results_at })
            }
            Ok((_, Reply::Success { .. })) | Err(_) => Err(CallbackError::Malformed),
            Ok((_, refused)) => Err(CallbackError::Refused(refused)),
        };
        Some(Box::new(move || (pending.then)(outcome)))
    }

    /// Fails all calls on a closed connection.
    pub(super) fn closed(&self, connection: &Connection) {
        let gone = self.pending.lock().remove(&connection.id());
        for pending in gone.into_iter().flat_map(HashMap::into_values) {
            continue_with(connection, pending.then, Err(CallbackError::Closed));
        }
    }

    /// Fails the calls whose time is over. Returns their number.
    pub(super) fn tick(&self, run: impl Fn(Job)) -> u64 {
        let now = Instant::now();
        let mut late = Vec::new();
        self.pending.lock().retain(|_, own| {
            late.extend(own.extract_if(|_, pending| pending.deadline <= now).map(|(_, pending)| pending));
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
    connection.shared().push_urgent(Box::new(move || then(outcome)));
}
