//! The loop over the operations of a COMPOUND.
//!
//! [`Executor::begin`] takes the arguments of a call, [`Compound::run`] runs the operations and decodes each
//! when its turn comes. An operation may have to wait: for stable storage, or for the holder of a delegation.
//! Then the request becomes a [`Suspended`], which is data: no thread waits. [`Suspended::resume`] runs that
//! operation again.

use std::sync::Arc;

use ivers_nfs4::compound::{CompoundHeader, Next};
use ivers_nfs4::ops::v40::Locked;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::{Decoder, Encoder, Xdr, XdrError};

use crate::compound::reply_cache::{CacheState, RequestKey, is_non_idempotent};
use crate::compound::{Context, Origin, Service, WakeReason};
use crate::ops;
use crate::state::{SessionRequest, Step, Stop, Ticket};

/// The highest supported minor version.
const LAST_MINOR: u32 = 2;
/// Bytes of the header of an RPC reply. Limits of replies include it.
const RPC_HEAD_BYTES: usize = 24;
/// Bytes of a result without content: operation and status.
const STATUS_BYTES: usize = 8;

/// Operations that a request may contain alone, without SEQUENCE (RFC 8881 section 2.10.2).
const WITHOUT_SESSION: [u32; 5] = [
    number::EXCHANGE_ID,
    number::CREATE_SESSION,
    number::BIND_CONN_TO_SESSION,
    number::DESTROY_SESSION,
    number::DESTROY_CLIENTID,
];

/// The arguments are no COMPOUND. The RPC reply is GARBAGE_ARGS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageArgs(pub XdrError);

/// The outcome of running a request.
pub enum Progress {
    /// Complete. Contains the reply.
    Done(Encoder),
    /// Suspended until the event of the ticket.
    Waits(Ticket, Suspended),
}

/// A suspended request.
pub struct Suspended(Box<Compound>, Op);

impl Suspended {
    /// Continues the request.
    pub fn resume(self, reason: WakeReason) -> Progress {
        let Self(mut compound, op) = self;
        match compound.context.wake(reason) {
            Ok(()) => {
                if let Some(exit) = compound.perform(op) {
                    return exit.into_progress(compound);
                }
            }
            Err(stop) => compound.stop(op.number(), stop),
        }
        compound.run()
    }
}

/// Why the loop ends before the request is complete.
enum LoopExit {
    Waits(Ticket, Op),
    Replayed(Arc<[u8]>),
}

impl LoopExit {
    fn into_progress(self, mut compound: Box<Compound>) -> Progress {
        match self {
            Self::Waits(ticket, op) => Progress::Waits(ticket, Suspended(compound, op)),
            Self::Replayed(bytes) => {
                let mut reply = std::mem::take(&mut compound.reply);
                reply.truncate(compound.base);
                reply.fixed(&bytes);
                Progress::Done(reply)
            }
        }
    }
}

/// The reply to an operation on clients' state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateReply {
    /// The result.
    Result(Box<OpResult>),
    /// The whole request is a repetition, and these results were its reply (RFC 8881 section 2.10.6.1).
    Replay(Arc<[u8]>),
}

/// Operations on clients, sessions, opens, locks and delegations.
pub trait StateOps: Send + Sync {
    /// Performs one operation. SEQUENCE also sets the fields of the context that depend on the session.
    fn operate(&self, context: &mut Context, op: &Op) -> Step<StateReply>;

    /// Ends the request of a session. `reply` contains its results. `None`: the thread that ran it has
    /// panicked; a repetition of the request gets NFS4ERR_SERVERFAULT.
    fn finish(&self, session: SessionRequest, reply: Option<&[u8]>);
}

/// Executes COMPOUND requests.
pub struct Executor {
    /// What all requests share.
    pub service: Arc<Service>,
    state_ops: Arc<dyn StateOps>,
    before_blocking: fn(),
}

impl Executor {
    /// An executor. It calls `before_blocking` before each operation that may wait for a device or another
    /// client.
    pub fn new(service: Arc<Service>, state_ops: Arc<dyn StateOps>, before_blocking: fn()) -> Arc<Self> {
        Arc::new(Self { service, state_ops, before_blocking })
    }

    /// Decodes the header of a request. `reply` already contains everything before the results.
    pub fn begin(
        self: &Arc<Self>,
        origin: Origin,
        request: impl AsRef<[u8]> + Send + 'static,
        mut reply: Encoder,
    ) -> Result<Box<Compound>, GarbageArgs> {
        let bytes = request.as_ref();
        let mut from = Decoder::new(bytes);
        let header = CompoundHeader::take(&mut from).map_err(GarbageArgs)?;
        let left = from.count(usize::MAX).map_err(GarbageArgs)? as u32;
        let at = bytes.len() - from.remaining();
        let base = reply.len();
        reply.word(0);
        header.tag.put(&mut reply);
        let count_at = reply.len();
        reply.word(0);
        let digest = self.service.digest(bytes);
        let mut context = Context::new(self.service.clone(), origin, header.minor_version);
        context.digest = digest;
        // [RFC8881 18.36.3]
        context.request_bytes = context.origin.head_bytes + bytes.len();
        context.op_count = left;
        let cached = match header.minor_version {
            0 => context.service.reply_cache.find(&RequestKey::new(&context.origin, digest)),
            _ => CacheState::New,
        };
        let mut compound = Box::new(Compound {
            executor: self.clone(),
            context,
            request: Box::new(request),
            position: at,
            left,
            done: 0,
            status: NfsStat::Ok,
            reply,
            base,
            count_at,
            cached,
            cache_key: None,
        });
        if header.minor_version > LAST_MINOR {
            // [RFC8881 16.2.3] No operation is decoded or answered.
            compound.status = NfsStat::MinorVersMismatch;
        }
        Ok(compound)
    }
}

/// A running request.
pub struct Compound {
    executor: Arc<Executor>,
    context: Context,
    request: Box<dyn AsRef<[u8]> + Send>,
    /// The offset of the next operation in the request.
    position: usize,
    left: u32,
    done: u32,
    status: NfsStat,
    reply: Encoder,
    /// The offset of the results in the reply.
    base: usize,
    /// The offset of the number of results.
    count_at: usize,
    /// NFSv4.0: what the reply cache knows about the request.
    cached: CacheState,
    /// NFSv4.0: set after a non-idempotent operation was begun.
    cache_key: Option<RequestKey>,
}

impl Compound {
    /// Runs operations until one fails, none is left or one must wait.
    pub fn run(mut self: Box<Self>) -> Progress {
        if let CacheState::Done(reply) = &self.cached {
            return LoopExit::Replayed(reply.clone()).into_progress(self);
        }
        while self.status == NfsStat::Ok && self.left > 0 {
            self.left -= 1;
            let next = self.decode();
            let number = match &next {
                Next::Op(op) => op.number(),
                Next::BadXdr(number) => *number,
                Next::Illegal => number::ILLEGAL,
            };
            let misplaced = self.misplaced(number);
            let op = match next {
                // [RFC8881 16.2.3] The result of an unknown operation has the number ILLEGAL.
                Next::Illegal => {
                    self.fail(number, NfsStat::OpIllegal);
                    break;
                }
                _ if misplaced.is_some() => {
                    self.fail(number, misplaced.unwrap_or(NfsStat::Serverfault));
                    break;
                }
                Next::BadXdr(number) => {
                    self.fail(number, NfsStat::Badxdr);
                    break;
                }
                Next::Op(op) => op,
            };
            self.context.next_op = self.peek();
            if let Some(exit) = self.perform(op) {
                return exit.into_progress(self);
            }
        }
        self.complete()
    }

    fn decode(&mut self) -> Next {
        let bytes = (*self.request).as_ref();
        let mut from = Decoder::new(&bytes[self.position..]);
        // The request ends where the number of an operation is expected.
        let Ok(number) = from.word() else { return Next::Illegal };
        let next = match Op::take_body(self.context.minor, number, &mut from) {
            Ok(Some(op)) => Next::Op(op),
            Ok(None) => Next::Illegal,
            Err(_) => Next::BadXdr(number),
        };
        self.position = bytes.len() - from.remaining();
        next
    }

    fn peek(&self) -> Option<u32> {
        let bytes = (*self.request).as_ref();
        if self.left == 0 { None } else { Decoder::new(&bytes[self.position..]).word().ok() }
    }

    /// The error if an operation is not allowed at its position in the request.
    fn misplaced(&self, number: u32) -> Option<NfsStat> {
        let first = self.done == 0;
        if self.context.minor == 0 {
            if self.cached == CacheState::InProgress {
                return Some(NfsStat::Delay);
            }
            return (self.context.op_count > self.context.service.limits.operations_max)
                .then_some(NfsStat::Resource);
        }
        let alone = self.context.op_count == 1;
        match number {
            // [RFC8881 18.46.3]
            number::SEQUENCE => (!first).then_some(NfsStat::SequencePos),
            // [RFC8881 18.34.3]
            number::BIND_CONN_TO_SESSION => (!alone).then_some(NfsStat::NotOnlyOp),
            // [RFC8881 2.10.2]
            _ if first && WITHOUT_SESSION.contains(&number) => (!alone).then_some(NfsStat::NotOnlyOp),
            _ if first => Some(NfsStat::OpNotInSession),
            // [RFC8881 2.10.6.1.3]
            _ if self.context.retry_uncached => Some(NfsStat::RetryUncachedRep),
            _ => None,
        }
    }

    /// Runs one operation and appends its result. Returns why the loop must end, if it must.
    fn perform(&mut self, op: Op) -> Option<LoopExit> {
        let start = self.reply.len();
        // A further operation needs room for a result that says that it does not fit.
        let tail = if self.left > 0 { STATUS_BYTES } else { 0 };
        let limit = self.limit().saturating_sub(tail);
        self.context.result_bytes_max = limit.saturating_sub(start);
        let number = op.number();
        // [RFC8881 2.10.6.4] An operation that changes something does not run if its result may not fit.
        if ops::result_bytes_min(&op) > self.context.result_bytes_max {
            self.fail(number, self.too_big());
            return None;
        }
        if self.context.minor == 0 && is_non_idempotent(number) && self.cache_key.is_none() {
            let key = RequestKey::new(&self.context.origin, self.context.digest);
            self.context.service.reply_cache.begin(&key);
            self.cache_key = Some(key);
        }
        if !ops::answers_from_memory(number) {
            (self.executor.before_blocking)();
        }
        self.reply.word(number);
        let answered = match ops::perform(&mut self.context, &op, &mut self.reply) {
            Ok(ops::Outcome::Written) => Ok(None),
            Ok(ops::Outcome::Result(result)) => Ok(Some(StateReply::Result(result))),
            Ok(ops::Outcome::OfState) => self.executor.state_ops.operate(&mut self.context, &op).map(Some),
            Err(stop) => Err(stop),
        };
        match answered {
            Ok(None) => {}
            Ok(Some(StateReply::Result(result))) => {
                self.reply.truncate(start);
                result.put(&mut self.reply);
            }
            Ok(Some(StateReply::Replay(bytes))) => return Some(LoopExit::Replayed(bytes)),
            Err(Stop::Wait(ticket) | Stop::AskHolder(ticket)) => {
                self.reply.truncate(start);
                return Some(LoopExit::Waits(ticket, op));
            }
            Err(stop) => {
                self.reply.truncate(start);
                self.stop(number, stop);
                return None;
            }
        }
        // SEQUENCE may have changed the limit.
        let over = self.reply.len() > self.limit().saturating_sub(tail) && number != number::SEQUENCE;
        if over {
            self.reply.truncate(start);
            self.fail(number, self.too_big());
            return None;
        }
        self.record(number, self.status_at(start));
        None
    }

    /// The status of the result at this offset.
    fn status_at(&self, start: usize) -> NfsStat {
        let mut from = Decoder::new(&self.reply.as_bytes()[start + 4..]);
        NfsStat::take(&mut from).unwrap_or(NfsStat::Serverfault)
    }

    /// The largest offset at which the reply may end.
    fn limit(&self) -> usize {
        self.base + self.context.reply_bytes.saturating_sub(RPC_HEAD_BYTES)
    }

    fn too_big(&self) -> NfsStat {
        match (self.context.minor, self.context.cache_reply) {
            (0, _) => NfsStat::Resource,
            (_, false) => NfsStat::RepTooBig,
            // [RFC8881 2.10.6.4]
            (_, true) => NfsStat::RepTooBigToCache,
        }
    }

    fn stop(&mut self, number: u32, stop: Stop) {
        match stop {
            Stop::Fail(status) => return self.fail(number, status),
            Stop::Denied(lock) if number == number::LOCK => {
                OpResult::Lock(Locked::Denied(*lock)).put(&mut self.reply);
            }
            Stop::Denied(lock) if number == number::LOCKT => {
                OpResult::LockT(Locked::Denied(*lock)).put(&mut self.reply);
            }
            Stop::Replay(reply) => {
                let start = self.reply.len();
                self.reply.fixed(&reply.bytes);
                self.record(number, self.status_at(start));
                // [RFC7530 9.1.7] Operations after the repeated one work on the file that the original one
                // left current.
                if let Some(fh) = reply.file.and_then(|file| ops::filehandle::find(&self.context, file).ok())
                {
                    self.context.set_current_fh(fh);
                }
                return;
            }
            // The caller has handled those that wait.
            Stop::Denied(_) | Stop::Wait(_) | Stop::AskHolder(_) => {
                return self.fail(number, NfsStat::Serverfault);
            }
        }
        self.record(number, NfsStat::Denied);
    }

    fn fail(&mut self, number: u32, status: NfsStat) {
        let result = OpResult::failure(number, status);
        debug_assert_eq!(result.status(), status);
        result.put(&mut self.reply);
        self.record(number, status);
    }

    /// Records the status of an operation that has its result.
    fn record(&mut self, number: u32, status: NfsStat) {
        self.context.next_operation();
        self.done += 1;
        self.status = status;
        self.context.service.op_stats.record(number, status);
    }

    fn complete(mut self: Box<Self>) -> Progress {
        let mut reply = std::mem::take(&mut self.reply);
        reply.patch_word(self.base, self.status.number());
        reply.patch_word(self.count_at, self.done);
        if let Some(session) = self.context.session.take() {
            self.executor.state_ops.finish(session, Some(&reply.as_bytes()[self.base..]));
        }
        if let Some(key) = self.cache_key.take() {
            // After NFS4ERR_DELAY the client sends a new request.
            let kept = (self.status != NfsStat::Delay).then(|| &reply.as_bytes()[self.base..]);
            self.context.service.reply_cache.end(&key, kept);
        }
        Progress::Done(reply)
    }
}

impl Drop for Compound {
    fn drop(&mut self) {
        // The thread has panicked: free the slot of the session.
        if let Some(session) = self.context.session.take() {
            self.executor.state_ops.finish(session, None);
        }
        if let Some(key) = self.cache_key.take() {
            self.context.service.reply_cache.end(&key, None);
        }
    }
}
