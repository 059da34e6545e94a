//! The loop over the operations of a request.

use std::sync::Arc;

use ivers_nfs4::compound::{CompoundHeader, Next};
use ivers_nfs4::ops::v40::Locked;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::{Decoder, Encoder, Xdr, XdrError};

use super::clients::{Answered, News};
use super::context::{Context, Origin};
use super::replies::{Key, Known, is_once};
use super::service::Service;
use crate::ops;
use crate::rpc::may_take_long;
use crate::state::{Stop, Ticket};

/// The last minor version that is spoken.
const LAST_MINOR: u32 = 2;
/// Bytes of the head of an RPC reply: replies are bounded with it.
const RPC_HEAD: usize = 24;
/// Bytes of a result that says no more than how it ended: its operation, and the status.
const BARE: usize = 8;

/// Operations that stand alone, without SEQUENCE before them (RFC 8881 section 2.10.2).
const WITHOUT_SESSION: [u32; 5] = [
    number::EXCHANGE_ID,
    number::CREATE_SESSION,
    number::BIND_CONN_TO_SESSION,
    number::DESTROY_SESSION,
    number::DESTROY_CLIENTID,
];

/// The arguments are no COMPOUND's: the RPC reply says GARBAGE_ARGS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswerable(pub XdrError);

/// How far a request has come.
pub enum Progress {
    /// To its end: the reply.
    Done(Encoder),
    /// It has to wait for a ticket of [`State`](crate::state::State).
    Waits(Ticket, Waiting),
}

/// A request that waits.
pub struct Waiting(Box<Compound>, Op);

impl Waiting {
    /// What it waited for has come, or not.
    pub fn go_on(self, news: News) -> Progress {
        let Self(mut compound, op) = self;
        match compound.context.hear(news) {
            Ok(()) => {
                if let Some(ended) = compound.perform(op) {
                    return ended.into_progress(compound);
                }
            }
            Err(stop) => compound.stopped(op.number(), stop),
        }
        compound.run()
    }
}

/// Operations that are answered out of memory. (A filehandle whose file nobody has used for long, or an ACL, may be one read from the device away.)
fn is_brief(number: u32) -> bool {
    matches!(
        number,
        number::SEQUENCE
            | number::PUTFH
            | number::PUTROOTFH
            | number::PUTPUBFH
            | number::GETFH
            | number::SAVEFH
            | number::RESTOREFH
            | number::GETATTR
            | number::ACCESS
            | number::RENEW
            | number::TEST_STATEID
    )
}

/// Why the loop is left.
enum Ended {
    Waits(Ticket, Op),
    Replayed(Arc<[u8]>),
}

impl Ended {
    fn into_progress(self, mut compound: Box<Compound>) -> Progress {
        match self {
            Self::Waits(ticket, op) => Progress::Waits(ticket, Waiting(compound, op)),
            Self::Replayed(bytes) => {
                let mut reply = std::mem::take(&mut compound.reply);
                reply.truncate(compound.base);
                reply.fixed(&bytes);
                Progress::Done(reply)
            }
        }
    }
}

/// A request under way.
pub struct Compound {
    context: Context,
    request: Box<dyn AsRef<[u8]> + Send>,
    /// Where the next operation begins.
    at: usize,
    left: u32,
    done: u32,
    status: NfsStat,
    reply: Encoder,
    /// Where the COMPOUND begins in the reply.
    base: usize,
    /// Where the number of results goes.
    count_at: usize,
    /// NFSv4.0: what is known of this request.
    known: Known,
    /// NFSv4.0: something was begun that must not be done twice.
    once: Option<Key>,
}

impl Compound {
    /// Begin: `reply` holds what goes before the results already.
    pub fn begin(
        service: Arc<Service>,
        origin: Origin,
        request: impl AsRef<[u8]> + Send + 'static,
        mut reply: Encoder,
    ) -> Result<Box<Self>, Unanswerable> {
        let bytes = request.as_ref();
        let mut from = Decoder::new(bytes);
        let header = CompoundHeader::take(&mut from).map_err(Unanswerable)?;
        let left = from.count(usize::MAX).map_err(Unanswerable)? as u32;
        let at = bytes.len() - from.remaining();
        let base = reply.len();
        reply.word(0);
        header.tag.put(&mut reply);
        let count_at = reply.len();
        reply.word(0);
        let digest = service.digest(bytes);
        let mut context = Context::new(service, origin, header.minor_version);
        context.digest = digest;
        // [RFC8881 18.36.3]
        context.request_bytes = context.origin.head_bytes + bytes.len();
        context.operations = left;
        let known = match header.minor_version {
            0 => context.service.replies.find(&Key::new(&context.origin, digest)),
            _ => Known::New,
        };
        let mut compound = Box::new(Self {
            context,
            request: Box::new(request),
            at,
            left,
            done: 0,
            status: NfsStat::Ok,
            reply,
            base,
            count_at,
            known,
            once: None,
        });
        if header.minor_version > LAST_MINOR {
            // [RFC8881 16.2.3] No operation is looked at, and none is answered.
            compound.status = NfsStat::MinorVersMismatch;
        }
        Ok(compound)
    }

    /// Do operations until one fails, none is left, or one must wait.
    pub fn run(mut self: Box<Self>) -> Progress {
        if let Known::Done(reply) = &self.known {
            return Ended::Replayed(reply.clone()).into_progress(self);
        }
        while self.status == NfsStat::Ok && self.left > 0 {
            self.left -= 1;
            let next = self.decode();
            let number = match &next {
                Next::Op(op) => op.number(),
                Next::BadXdr(number) => *number,
                Next::Illegal => number::ILLEGAL,
            };
            let out_of_place = self.out_of_place(number);
            let op = match next {
                // [RFC8881 16.2.3] An operation nobody knows is answered as ILLEGAL.
                Next::Illegal => {
                    self.failed(number, NfsStat::OpIllegal);
                    break;
                }
                _ if out_of_place.is_some() => {
                    self.failed(number, out_of_place.unwrap_or(NfsStat::Serverfault));
                    break;
                }
                Next::BadXdr(number) => {
                    self.failed(number, NfsStat::Badxdr);
                    break;
                }
                Next::Op(op) => op,
            };
            self.context.next = self.peek();
            if let Some(ended) = self.perform(op) {
                return ended.into_progress(self);
            }
        }
        self.complete()
    }

    fn decode(&mut self) -> Next {
        let bytes = (*self.request).as_ref();
        let mut from = Decoder::new(&bytes[self.at..]);
        // Without even a number it is nobody's operation.
        let Ok(number) = from.word() else { return Next::Illegal };
        let next = match Op::take_body(self.context.minor, number, &mut from) {
            Ok(Some(op)) => Next::Op(op),
            Ok(None) => Next::Illegal,
            Err(_) => Next::BadXdr(number),
        };
        self.at = bytes.len() - from.remaining();
        next
    }

    fn peek(&self) -> Option<u32> {
        let bytes = (*self.request).as_ref();
        if self.left == 0 { None } else { Decoder::new(&bytes[self.at..]).word().ok() }
    }

    /// What is wrong with an operation's place in the request.
    fn out_of_place(&self, number: u32) -> Option<NfsStat> {
        let first = self.done == 0;
        if self.context.minor == 0 {
            if self.known == Known::UnderWay {
                return Some(NfsStat::Delay);
            }
            return (self.context.operations > self.context.service.bounds.operations)
                .then_some(NfsStat::Resource);
        }
        let alone = self.context.operations == 1;
        match number {
            // [RFC8881 18.46.3]
            number::SEQUENCE => (!first).then_some(NfsStat::SequencePos),
            // [RFC8881 18.34.3]
            number::BIND_CONN_TO_SESSION => (!alone).then_some(NfsStat::NotOnlyOp),
            // [RFC8881 2.10.2]
            _ if first && WITHOUT_SESSION.contains(&number) => (!alone).then_some(NfsStat::NotOnlyOp),
            _ if first => Some(NfsStat::OpNotInSession),
            // [RFC8881 2.10.6.1.3]
            _ if self.context.uncached => Some(NfsStat::RetryUncachedRep),
            _ => None,
        }
    }

    /// Do one operation and put down its result; or why the loop is left.
    fn perform(&mut self, op: Op) -> Option<Ended> {
        let start = self.reply.len();
        // Whatever else there is to do must at least be able to say that it does not fit.
        let tail = if self.left > 0 { BARE } else { 0 };
        let limit = self.limit().saturating_sub(tail);
        self.context.room = limit.saturating_sub(start);
        let number = op.number();
        // [RFC8881 2.10.6.4] What changes something is not done if its result might not fit.
        if ops::least_room(&op) > self.context.room {
            self.failed(number, self.too_big());
            return None;
        }
        if self.context.minor == 0 && is_once(number) && self.once.is_none() {
            let key = Key::new(&self.context.origin, self.context.digest);
            self.context.service.replies.begin(&key);
            self.once = Some(key);
        }
        if !is_brief(number) {
            may_take_long();
        }
        self.reply.word(number);
        let result = ops::perform(&mut self.context, &op, &mut self.reply);
        match result {
            Ok(ops::Put::Result) => {}
            Ok(ops::Put::Answered(Answered::Result(result))) => {
                self.reply.truncate(start);
                result.put(&mut self.reply);
            }
            Ok(ops::Put::Answered(Answered::Replay(bytes))) => return Some(Ended::Replayed(bytes)),
            Err(Stop::Gate(ticket) | Stop::Ask(ticket)) => {
                self.reply.truncate(start);
                return Some(Ended::Waits(ticket, op));
            }
            Err(stop) => {
                self.reply.truncate(start);
                self.stopped(number, stop);
                return None;
            }
        }
        // SEQUENCE may have said how large it may be.
        let over = self.reply.len() > self.limit().saturating_sub(tail) && number != number::SEQUENCE;
        if over {
            self.reply.truncate(start);
            self.failed(number, self.too_big());
            return None;
        }
        self.ended(number, self.status_at(start));
        None
    }

    /// The status of the result that was put down there.
    fn status_at(&self, start: usize) -> NfsStat {
        let mut from = Decoder::new(&self.reply.as_bytes()[start + 4..]);
        NfsStat::take(&mut from).unwrap_or(NfsStat::Serverfault)
    }

    /// Where the reply must end.
    fn limit(&self) -> usize {
        self.base + self.context.reply_bytes.saturating_sub(RPC_HEAD)
    }

    fn too_big(&self) -> NfsStat {
        match (self.context.minor, self.context.keep) {
            (0, _) => NfsStat::Resource,
            (_, false) => NfsStat::RepTooBig,
            // [RFC8881 2.10.6.4]
            (_, true) => NfsStat::RepTooBigToCache,
        }
    }

    fn stopped(&mut self, number: u32, stop: Stop) {
        match stop {
            Stop::Fail(status) => return self.failed(number, status),
            Stop::Denied(lock) if number == number::LOCK => {
                OpResult::Lock(Locked::Denied(*lock)).put(&mut self.reply);
            }
            Stop::Denied(lock) if number == number::LOCKT => {
                OpResult::LockT(Locked::Denied(*lock)).put(&mut self.reply);
            }
            Stop::Replay(reply) => {
                let start = self.reply.len();
                self.reply.fixed(&reply.bytes);
                self.ended(number, self.status_at(start));
                // [RFC7530 9.1.7] What comes behind the repetition is about the file that the first one left behind.
                if let Some(place) = reply.file.and_then(|file| ops::handle::find(&self.context, file).ok()) {
                    self.context.go(place);
                }
                return;
            }
            // Nothing that waits comes here.
            Stop::Denied(_) | Stop::Gate(_) | Stop::Ask(_) => {
                return self.failed(number, NfsStat::Serverfault);
            }
        }
        self.ended(number, NfsStat::Denied);
    }

    fn failed(&mut self, number: u32, status: NfsStat) {
        let result = OpResult::failure(number, status);
        debug_assert_eq!(result.status(), status);
        result.put(&mut self.reply);
        self.ended(number, status);
    }

    /// An operation has its result.
    fn ended(&mut self, number: u32, status: NfsStat) {
        self.context.next_operation();
        self.done += 1;
        self.status = status;
        self.context.service.tally.count(number, status);
    }

    fn complete(mut self: Box<Self>) -> Progress {
        let mut reply = std::mem::take(&mut self.reply);
        reply.patch_word(self.base, self.status.number());
        reply.patch_word(self.count_at, self.done);
        if let Some(session) = self.context.session.take() {
            self.context.service.clients.finish(session, Some(&reply.as_bytes()[self.base..]));
        }
        if let Some(key) = self.once.take() {
            // Who was told to come again comes with another number.
            let kept = (self.status != NfsStat::Delay).then(|| &reply.as_bytes()[self.base..]);
            self.context.service.replies.end(&key, kept);
        }
        Progress::Done(reply)
    }
}

impl Drop for Compound {
    fn drop(&mut self) {
        // Whoever worked on it has died: the slot must not stay busy for ever.
        if let Some(session) = self.context.session.take() {
            self.context.service.clients.finish(session, None);
        }
        if let Some(key) = self.once.take() {
            self.context.service.replies.end(&key, None);
        }
    }
}
