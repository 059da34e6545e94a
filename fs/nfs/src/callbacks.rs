//! Callbacks of the server: CB_COMPOUND (RFC 8881, 20), decoded step by step, executed and answered.
//!
//! The server may be hostile: sizes are bounded, and nothing here blocks.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::callback::{
    CALLBACK_PROGRAM, CbOp, CbResult, CbSequenceArgs, CbSequenceOk, PROC_CB_COMPOUND, PROC_CB_NULL,
    recall_any,
};
use ivers_nfs4::rpc::{BadCall, CallHeader, Reply, Versions};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, SessionId, StateId};
use ivers_nfs4::xdr::{Decoder, Encoder, Xdr, XdrError};
use ivers_vfs::sync::{RankedMutex, rank};

/// Callbacks that the server may have in flight.
pub const BACK_SLOTS: u32 = 4;
/// The longest callback, and the longest reply to one, in bytes.
pub const BACK_BYTES: u32 = 4096;
/// The most operations in a callback.
pub const BACK_OPERATIONS: u32 = 4;
/// The longest tag in bytes. A reply repeats the tag, and a slot keeps the reply.
const TAG_MAX: usize = 512;
/// The versions of the callback program: RFC 8881 requires 4, but servers send 1.
const VERSIONS: [u32; 2] = [1, 4];
/// `OP_CB_SEQUENCE`, and `OP_CB_ILLEGAL`, which stands for unknown operations.
const SEQUENCE: u32 = 11;
const ILLEGAL: u32 = 10_044;
/// The operations that the protocol knows.
const KNOWN: std::ops::RangeInclusive<u32> = 3..=15;

/// Acts on callbacks. The methods must not block or send requests.
pub trait Callee: Send + Sync {
    /// CB_RECALL: the delegation must be returned.
    fn recall(&self, file: &FileHandle, stateid: StateId) -> NfsStat;
    /// CB_GETATTR: returns the change attribute and the size of a file with a write delegation.
    fn attributes(&self, file: &FileHandle) -> Option<(u64, u64)>;
    /// CB_RECALL_ANY: the client may keep `keep` delegations, and must return the others.
    fn recall_any(&self, keep: usize);
    /// CB_NOTIFY_LOCK: a lock of the file may be free.
    fn lock_available(&self, file: &FileHandle);
    /// The server reports revoked state.
    fn state_revoked(&self);
    /// The server reports that it cannot send callbacks.
    fn path_down(&self);
    /// The connection for callbacks is lost.
    fn connection_lost(&self);
}

/// What a client keeps for its back channel.
#[derive(Default)]
pub(crate) struct BackState {
    pub(crate) callee: OnceLock<Weak<dyn Callee>>,
    /// How long the server keeps state without hearing of this client, in milliseconds; 0: unknown.
    pub(crate) lease_ms: AtomicU64,
    /// When the newest request that renewed the lease was sent, on the clock of leases.
    pub(crate) renewed_ms: AtomicU64,
    /// How often the server has said that it has revoked state, and how often that was when the state that it
    /// still has was found last.
    pub(crate) revocations: AtomicU64,
    pub(crate) searched: AtomicU64,
    /// Replies to requests before this number may lack a change of this client, because the outcome or the
    /// file of the change is unknown.
    pub(crate) void_before: AtomicU64,
    /// A change was given up, and the server may execute it at any time.
    pub(crate) pending_change: AtomicBool,
    /// The number of the first request after the server reported that it cannot send callbacks. 0: it can.
    pub(crate) path_down_at: AtomicU64,
    /// How often the server was found to have lost the state of this client.
    pub(crate) runs: AtomicU64,
}

#[derive(Default)]
struct BackSlot {
    /// The sequence ID of the last callback. 0: there was none.
    sequence: u32,
    /// The reply to it. `None` while it is executed.
    answer: Option<Vec<u8>>,
}

/// The slots of a session for callbacks. Each keeps its last reply (2.10.6.1).
pub struct BackSlots(RankedMutex<rank::Leaf, Vec<BackSlot>>);

impl Default for BackSlots {
    fn default() -> Self {
        let slots = (0..BACK_SLOTS).map(|_| BackSlot::default()).collect();
        Self(RankedMutex::new(slots))
    }
}

/// What CB_SEQUENCE asks for.
enum Turn {
    /// Execute the callback.
    New,
    /// Repeat this reply: the callback was executed before.
    Again(Vec<u8>),
}

impl BackSlots {
    fn begin(&self, args: &CbSequenceArgs) -> Result<Turn, NfsStat> {
        let mut slots = self.0.lock();
        let slot = slots.get_mut(args.slotid as usize).ok_or(NfsStat::Badslot)?;
        if args.sequenceid == slot.sequence.wrapping_add(1) {
            (slot.sequence, slot.answer) = (args.sequenceid, None);
            return Ok(Turn::New);
        }
        if args.sequenceid != slot.sequence || slot.sequence == 0 {
            return Err(NfsStat::SeqMisordered);
        }
        slot.answer.clone().map(Turn::Again).ok_or(NfsStat::Delay)
    }

    fn end(&self, slot: u32, answer: &[u8]) {
        if let Some(slot) = self.0.lock().get_mut(slot as usize) {
            slot.answer = Some(answer.to_vec());
        }
    }
}

/// The sessions of a client, for callbacks.
pub struct BackChannel<'a> {
    /// The minor version of the sessions.
    pub minor: u32,
    /// Returns the slots of a session for callbacks, or `None` if this client does not have the session.
    pub slots: &'a dyn Fn(&SessionId) -> Option<Arc<BackSlots>>,
}

/// Executes a callback. Returns the record of the reply, with four free bytes for the record mark. Fails if
/// the message has no valid header, so that no reply is possible.
pub fn answer(
    message: &[u8],
    channel: &BackChannel<'_>,
    callee: Option<&dyn Callee>,
) -> Result<Vec<u8>, String> {
    let mut from = Decoder::new(message);
    let mut to = Encoder::with_capacity(256);
    to.word(0);
    let header = match CallHeader::take(&mut from) {
        Ok(header) => header,
        Err(BadCall::Unanswerable(why)) => return Err(format!("a call that cannot be decoded: {why}")),
        Err(BadCall::RpcVersion { xid }) => {
            Reply::RpcMismatch(Versions { low: 2, high: 2 }).put(xid, &mut to);
            return Ok(to.into_bytes());
        }
        Err(BadCall::Auth { xid, why }) => {
            Reply::AuthError(why).put(xid, &mut to);
            return Ok(to.into_bytes());
        }
    };
    let refused = if header.program != CALLBACK_PROGRAM {
        Some(Reply::ProgramUnavailable)
    } else if !VERSIONS.contains(&header.version) {
        Some(Reply::ProgramMismatch(Versions { low: VERSIONS[0], high: VERSIONS[1] }))
    } else if !matches!(header.procedure, PROC_CB_NULL | PROC_CB_COMPOUND) {
        Some(Reply::ProcedureUnavailable)
    } else {
        None
    };
    if let Some(refused) = refused {
        refused.put(header.xid, &mut to);
        return Ok(to.into_bytes());
    }
    if header.procedure == PROC_CB_NULL {
        Reply::SUCCESS.put(header.xid, &mut to);
        return Ok(to.into_bytes());
    }
    match compound(&mut from, channel, callee) {
        Ok(results) => {
            Reply::SUCCESS.put(header.xid, &mut to);
            to.fixed(&results);
        }
        Err(_) => Reply::GarbageArgs.put(header.xid, &mut to),
    }
    Ok(to.into_bytes())
}

/// Executes CB_COMPOUND. Returns `CB_COMPOUND4res`.
fn compound(
    from: &mut Decoder<'_>,
    channel: &BackChannel<'_>,
    callee: Option<&dyn Callee>,
) -> Result<Vec<u8>, XdrError> {
    let tag = from.opaque(TAG_MAX)?.to_vec();
    let (minor, _ident) = (from.word()?, from.word()?);
    let count = from.count(usize::MAX)?;
    let failed = |op: u32, status: NfsStat| vec![CbResult::Failed { op, status }];
    if minor != channel.minor {
        return Ok(encode(NfsStat::MinorVersMismatch, &tag, &[]));
    }
    if count == 0 {
        return Ok(encode(NfsStat::Ok, &tag, &[]));
    }
    let args = match operation(from)? {
        Ok(CbOp::Sequence(args)) => args,
        Ok(other) => {
            let status = NfsStat::OpNotInSession;
            return Ok(encode(status, &tag, &failed(other.number(), status)));
        }
        Err((op, _)) => {
            let status = NfsStat::OpNotInSession;
            return Ok(encode(status, &tag, &failed(op, status)));
        }
    };
    let refused = |status| Ok(encode(status, &tag, &failed(SEQUENCE, status)));
    let Some(slots) = (channel.slots)(&args.sessionid) else { return refused(NfsStat::Badsession) };
    if count > BACK_OPERATIONS as usize {
        return refused(NfsStat::TooManyOps);
    }
    match slots.begin(&args) {
        Ok(Turn::New) => {}
        Ok(Turn::Again(answer)) => return Ok(answer),
        Err(status) => return refused(status),
    }
    let mut results = vec![CbResult::Sequence(Ok(CbSequenceOk {
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid: BACK_SLOTS - 1,
        target_highest_slotid: BACK_SLOTS - 1,
    }))];
    let mut status = NfsStat::Ok;
    for _ in 1..count {
        let result = match operation(from) {
            Ok(Ok(op)) => execute(&op, callee),
            Ok(Err((op, status))) => CbResult::Failed { op, status },
            // The slot has begun this callback, so it must keep a reply.
            Err(_) => CbResult::Failed { op: ILLEGAL, status: NfsStat::Badxdr },
        };
        status = result.status();
        results.push(result);
        if status != NfsStat::Ok {
            break;
        }
    }
    let answer = encode(status, &tag, &results);
    slots.end(args.slotid, &answer);
    Ok(answer)
}

/// Decodes an operation. If this client does not know it, the end of its arguments is unknown: returns the
/// operation number and the status for its result.
fn operation(from: &mut Decoder<'_>) -> Result<Result<CbOp, (u32, NfsStat)>, XdrError> {
    let at = from.clone();
    let number = from.word()?;
    let mut again = at;
    match CbOp::take(&mut again) {
        Ok(op) => {
            *from = again;
            Ok(Ok(op))
        }
        Err(XdrError::BadValue(value)) if value == number && !KNOWN.contains(&number) => {
            Ok(Err((ILLEGAL, NfsStat::OpIllegal)))
        }
        Err(XdrError::BadValue(value)) if value == number => Ok(Err((number, NfsStat::Notsupp))),
        Err(error) => Err(error),
    }
}

fn execute(op: &CbOp, callee: Option<&dyn Callee>) -> CbResult {
    let failed = |status| CbResult::Failed { op: op.number(), status };
    let Some(callee) = callee else { return failed(NfsStat::Delay) };
    match op {
        CbOp::Recall(args) => match callee.recall(&args.file, args.stateid) {
            NfsStat::Ok => CbResult::Recall(Ok(())),
            status => failed(status),
        },
        CbOp::RecallAny(args) => {
            if [recall_any::READ_DELEG, recall_any::WRITE_DELEG].iter().any(|it| args.types.contains(*it)) {
                callee.recall_any(args.keep as usize);
            }
            CbResult::RecallAny(Ok(()))
        }
        CbOp::NotifyLock(args) => {
            callee.lock_available(&args.file);
            CbResult::NotifyLock(Ok(()))
        }
        CbOp::GetAttr(args) => match callee.attributes(&args.file) {
            Some((change, size)) => {
                let wants = |attribute| args.attrs.contains(attribute);
                let change = wants(attr::CHANGE).then_some(change);
                let size = wants(attr::SIZE).then_some(size);
                CbResult::GetAttr(Ok(Attrs { change, size, ..Attrs::default() }.encode()))
            }
            // The server then recalls the delegation.
            None => failed(NfsStat::Badhandle),
        },
        // The reply to the next request tells how many slots to use.
        CbOp::RecallSlot(_) => CbResult::RecallSlot(Ok(())),
        CbOp::Sequence(_) => failed(NfsStat::SequencePos),
        CbOp::Offload(_) => failed(NfsStat::Notsupp),
    }
}

fn encode(status: NfsStat, tag: &[u8], results: &[CbResult]) -> Vec<u8> {
    let mut to = Encoder::with_capacity(128);
    status.put(&mut to);
    to.opaque(tag);
    to.word(results.len() as u32);
    results.iter().for_each(|result| result.put(&mut to));
    to.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_nfs4::callback::{
        CALLBACK_VERSION, CbCompoundArgs, CbCompoundRes, CbGetAttrArgs, CbNotifyLockArgs, CbRecallAnyArgs,
        CbRecallArgs,
    };
    use ivers_nfs4::rpc::OpaqueAuth;
    use ivers_nfs4::types::{Bitmap, Opaque, Owner};
    use ivers_nfs4::xdr::List;
    use std::sync::Mutex;

    const SESSION: SessionId = [3; 16];
    const STATEID: StateId = StateId { seqid: 1, other: [7; 12] };

    #[derive(Default)]
    struct Noted(Mutex<Vec<String>>);

    impl Callee for Noted {
        fn recall(&self, _: &FileHandle, stateid: StateId) -> NfsStat {
            self.0.lock().unwrap().push("recall".into());
            if stateid == STATEID { NfsStat::Ok } else { NfsStat::BadStateid }
        }
        fn attributes(&self, file: &FileHandle) -> Option<(u64, u64)> {
            (file.0 == b"written").then_some((7, 9))
        }
        fn recall_any(&self, keep: usize) {
            self.0.lock().unwrap().push(format!("keep {keep}"));
        }
        fn lock_available(&self, _: &FileHandle) {
            self.0.lock().unwrap().push("lock".into());
        }
        fn state_revoked(&self) {}
        fn path_down(&self) {}
        fn connection_lost(&self) {}
    }

    struct Test {
        slots: Arc<BackSlots>,
        noted: Noted,
    }

    fn handle() -> FileHandle {
        Opaque(b"f".to_vec())
    }

    fn sequence(slotid: u32, sequenceid: u32) -> CbOp {
        CbOp::Sequence(CbSequenceArgs {
            sessionid: SESSION,
            sequenceid,
            slotid,
            highest_slotid: 0,
            cache_this: false,
            referring: List(Vec::new()),
        })
    }

    fn recall(stateid: StateId) -> CbOp {
        CbOp::Recall(CbRecallArgs { stateid, truncate: false, file: handle() })
    }

    fn call(body: &[u8]) -> Vec<u8> {
        let mut to = Encoder::default();
        let (program, version, procedure) = (CALLBACK_PROGRAM, CALLBACK_VERSION, PROC_CB_COMPOUND);
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        CallHeader { xid: 9, program, version, procedure, cred, verf }.put(&mut to);
        to.fixed(body);
        to.into_bytes()
    }

    fn arguments(minor_version: u32, ops: Vec<CbOp>) -> Vec<u8> {
        CbCompoundArgs { tag: b"t".to_vec(), minor_version, ident: 0, ops: List(ops) }.to_bytes()
    }

    impl Test {
        fn new() -> Self {
            Self { slots: Arc::default(), noted: Noted::default() }
        }

        fn raw(&self, message: &[u8]) -> Result<Vec<u8>, String> {
            let slots = |session: &SessionId| (*session == SESSION).then(|| self.slots.clone());
            answer(message, &BackChannel { minor: 2, slots: &slots }, Some(&self.noted))
        }

        fn results(&self, message: &[u8]) -> CbCompoundRes {
            let record = self.raw(message).unwrap();
            let mut from = Decoder::new(&record[4..]);
            assert!(matches!(Reply::take(&mut from), Ok((9, Reply::Success { .. }))));
            CbCompoundRes::take(&mut from).unwrap()
        }

        fn run(&self, ops: Vec<CbOp>) -> (NfsStat, usize) {
            let res = self.results(&call(&arguments(2, ops)));
            assert_eq!(res.tag, b"t");
            (res.status, res.results.0.len())
        }

        fn noted(&self) -> Vec<String> {
            std::mem::take(&mut *self.noted.0.lock().unwrap())
        }
    }

    #[test]
    fn a_callback_is_executed_once() {
        let test = Test::new();
        assert_eq!(test.run(vec![sequence(0, 0), recall(STATEID)]), (NfsStat::SeqMisordered, 1));
        for _ in 0..3 {
            assert_eq!(test.run(vec![sequence(0, 1), recall(STATEID)]), (NfsStat::Ok, 2));
        }
        assert_eq!(test.noted(), ["recall"], "the last reply is kept");
        assert_eq!(test.run(vec![sequence(0, 3), recall(STATEID)]), (NfsStat::SeqMisordered, 1));
        let other = StateId { seqid: 1, other: [8; 12] };
        assert_eq!(test.run(vec![sequence(0, 2), recall(other), recall(STATEID)]), (NfsStat::BadStateid, 2));
        assert_eq!(test.run(vec![sequence(BACK_SLOTS, 1)]), (NfsStat::Badslot, 1));
        assert_eq!(test.run(vec![sequence(BACK_SLOTS - 1, 1)]), (NfsStat::Ok, 1));
    }

    #[test]
    fn each_operation_has_its_answer() {
        let test = Test::new();
        let any = |bit| CbOp::RecallAny(CbRecallAnyArgs { keep: 5, types: Bitmap::of([bit]) });
        let owner = Owner { clientid: 1, owner: Opaque(b"o".to_vec()) };
        let lock = CbOp::NotifyLock(CbNotifyLockArgs { file: handle(), owner });
        assert_eq!(test.run(vec![sequence(0, 1), any(0), any(1), lock]), (NfsStat::Ok, 4));
        assert_eq!(test.noted(), ["keep 5", "keep 5", "lock"]);
        let attrs = CbOp::GetAttr(CbGetAttrArgs { file: handle(), attrs: Bitmap::default() });
        assert_eq!(test.run(vec![sequence(0, 2), attrs]), (NfsStat::Badhandle, 2));
        let asked = Bitmap::of([attr::CHANGE, attr::SIZE]);
        let written = CbGetAttrArgs { file: Opaque(b"written".to_vec()), attrs: asked };
        let res = test.results(&call(&arguments(2, vec![sequence(1, 1), CbOp::GetAttr(written)])));
        let Some(CbResult::GetAttr(Ok(fattr))) = res.results.0.last() else { panic!("{res:?}") };
        let attrs = Attrs::decode(fattr).unwrap();
        assert_eq!((attrs.change, attrs.size), (Some(7), Some(9)));
        assert_eq!(test.run(vec![sequence(0, 3), sequence(0, 3)]), (NfsStat::SequencePos, 2));
        assert_eq!(test.run(vec![recall(STATEID)]), (NfsStat::OpNotInSession, 1));
        let many = std::iter::once(sequence(0, 4)).chain((0..BACK_OPERATIONS).map(|_| recall(STATEID)));
        assert_eq!(test.run(many.collect()), (NfsStat::TooManyOps, 1));
        assert_eq!(test.run(Vec::new()), (NfsStat::Ok, 0));
        let res = test.results(&call(&arguments(1, vec![sequence(0, 4)])));
        assert_eq!(res.status, NfsStat::MinorVersMismatch);
        // Operations that this client does not know.
        for (sequenceid, number, expected) in [(4, 5, NfsStat::Notsupp), (5, 77, NfsStat::OpIllegal)] {
            let mut body = arguments(2, vec![sequence(0, sequenceid), CbOp::RecallSlot(1)]);
            let at = body.len() - 8;
            body[at..at + 4].copy_from_slice(&u32::to_be_bytes(number));
            let res = test.results(&call(&body));
            assert_eq!((res.status, res.results.0.len()), (expected, 2));
        }
        assert!(test.noted().is_empty());
    }

    #[test]
    fn damaged_callbacks_are_answered_or_refused() {
        let ops = vec![sequence(0, 1), recall(STATEID), recall(STATEID)];
        let whole = call(&arguments(2, ops));
        for at in 0..whole.len() {
            let test = Test::new();
            let _ = test.raw(&whole[..at]);
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                if let Ok(record) = test.raw(&damaged) {
                    assert!(record.len() <= 4 + BACK_BYTES as usize);
                }
            }
        }
        let channel = BackChannel { minor: 2, slots: &|_| None };
        assert!(answer(&whole, &channel, None).is_ok(), "without a session");
    }
}
