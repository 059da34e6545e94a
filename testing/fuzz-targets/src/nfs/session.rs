//! Sequences of requests of several clients, with all the server's state about them: sessions, owners, opens,
//! locks, delegations.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | the initial clients: see [`Fixture::new`] |
//! | then, each step: 1 | flags: see [`Step`] |
//! | 1 | seconds before the step, if its flag is set |
//! | 2 | length of the request |
//! | length | the arguments of a COMPOUND |
//!
//! Clock and random numbers are deterministic, so that a recorded request contains the identifiers of the
//! requests before it.

use crate::input::Input;
use ivers_nfs_test::client::{change_and_size, data, guarded, named, open, open_v40, opened, unchecked};
use ivers_nfs_test::harness::{Server, mem};
use ivers_nfs_test::malformed::{restore_samples, sample_acl};
use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::callback::{CbCompoundArgs, CbCompoundRes, CbOp, CbResult, CbSequenceOk};
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::v42::{CopyArgs, CopyRes};
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{Decoder, List, Xdr};
use ivers_nfsd::compound::Origin;
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::server::{Peer, SimulatedServer, SimulatedSetup};
use ivers_nfsd::state::{ConnId, Limits, Millis, Rng};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// More steps make an input slow without covering more.
const MAX_STEPS: usize = 40;
const LEASE_SECONDS: u32 = 90;
/// Memory, if there is a place for it: durability is not tested here.
const SCRATCH: &str = "/dev/shm";

/// Flags of a step: the two lowest bits select one of four clients.
struct Step(u8);

impl Step {
    /// Keeps the sequence number of SEQUENCE; otherwise it is replaced by the expected one.
    const AS_IT_IS: u8 = 4;
    const TIME_PASSES: u8 = 8;
    /// The client's connection closes before the request, which uses a new one.
    const PARTS: u8 = 16;
    /// The replies to callbacks from this step on: see [`callback`].
    const ANSWERS: u8 = 0xe0;

    fn is(&self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// A generator of consecutive numbers: they must differ, but need not be random.
struct Counted(u64);

impl Rng for Counted {
    fn next_u64(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Returns a client's reply to a callback.
fn callback(how: u8, arguments: &[u8]) -> Option<Vec<u8>> {
    if arguments.is_empty() {
        return (how != 0).then(Vec::new);
    }
    let args = CbCompoundArgs::from_bytes(arguments).expect("the server's own callbacks decode");
    let results = args.ops.0.into_iter().map(|op| match op {
        CbOp::Sequence(it) if how != 4 => CbResult::Sequence(Ok(CbSequenceOk {
            sessionid: it.sessionid,
            sequenceid: it.sequenceid,
            slotid: it.slotid,
            highest_slotid: it.highest_slotid,
            target_highest_slotid: it.highest_slotid,
        })),
        CbOp::GetAttr(_) if how < 4 => {
            let attrs =
                Attrs { change: Some(u64::from(how)), size: Some(u64::from(how) << 20), ..Attrs::default() };
            CbResult::GetAttr(Ok(attrs.encode()))
        }
        CbOp::Recall(_) if how < 4 => CbResult::Recall(Ok(())),
        CbOp::NotifyLock(_) if how < 4 => CbResult::NotifyLock(Ok(())),
        CbOp::Offload(_) if how < 4 => CbResult::Offload(Ok(())),
        other => CbResult::Failed { op: other.number(), status: NfsStat::Delay },
    });
    let status = if how < 4 { NfsStat::Ok } else { NfsStat::Delay };
    let results = CbCompoundRes { status, tag: args.tag, results: List(results.collect()) }.to_bytes();
    match how {
        0 => None,
        5 => Some(results[..results.len() / 2].to_vec()),
        _ => Some(results),
    }
}

/// Returns a server with sample files in `/data`, and its state directory, which must outlive it.
pub fn simulated(limits: Limits, peer: Peer) -> (SimulatedServer, tempfile::TempDir) {
    let scratch = Path::new(SCRATCH);
    let dir = if scratch.is_dir() { tempfile::tempdir_in(scratch) } else { tempfile::tempdir() };
    let dir = dir.expect("there is a place for temporary files");
    let vfs = mem();
    restore_samples(&vfs);
    let config = ExportConfig::from_flag("image,name=/data,no_root_squash").expect("an export's flags");
    let server = SimulatedServer::start(SimulatedSetup {
        state: dir.path(),
        lease_seconds: LEASE_SECONDS,
        secret: [7; 16],
        limits,
        rng: Box::new(Counted(0)),
        exports: vec![(config, vfs)],
        peer,
    });
    (server.expect("a server in an empty directory"), dir)
}

struct Fixture {
    server: SimulatedServer,
    answers: Arc<AtomicU8>,
    /// The connection of each client.
    conns: [u64; 4],
    /// The last sequence number of each slot.
    last: HashMap<(SessionId, u32), u32>,
    /// Files that outlive the server: it is the last field.
    _dir: tempfile::TempDir,
}

impl Fixture {
    /// Creates the initial clients. Bit 0: two clients with sessions. Bit 1: one of NFSv4.0. Bit 2: small
    /// limits.
    fn new(flags: u8) -> Self {
        let answers = Arc::new(AtomicU8::new(0));
        let how = answers.clone();
        let narrow = Limits {
            clients: 4,
            sessions: 2,
            slots: 2,
            stateids: (6, 9),
            delegations: (2, 3),
            ranges: (4, 6),
            waiters: (1, 2),
            copies: (1, 2),
            owners: (5, 8),
            ..Limits::default()
        };
        let limits = if flags & 4 == 0 { Limits::default() } else { narrow };
        let peer = Box::new(move |arguments: &[u8]| callback(how.load(Ordering::Relaxed), arguments));
        let (server, dir) = simulated(limits, peer);
        let mut fixture = Self { server, answers, conns: [1, 2, 3, 4], last: HashMap::new(), _dir: dir };
        if flags & 1 != 0 {
            for who in 0..2 {
                fixture.introduce(who);
            }
        }
        if flags & 2 != 0 {
            fixture.introduce_v40_client();
        }
        fixture
    }

    fn step(&mut self, rest: &mut Input<'_>) {
        let step = Step(rest.byte());
        let who = usize::from(step.0 & 3);
        self.answers.store((step.0 & Step::ANSWERS) >> 5, Ordering::Relaxed);
        if step.is(Step::TIME_PASSES) {
            self.server.advance(Millis::seconds(u64::from(rest.byte())));
        }
        if step.is(Step::PARTS) {
            self.server.disconnect(ConnId(self.conns[who]));
            self.conns[who] += 4;
        }
        let len = usize::from(rest.word());
        self.ask(who, !step.is(Step::AS_IT_IS), rest.bytes(len).to_vec());
    }

    /// Executes a request; the reply must decode, and the state's invariants must hold.
    fn ask(&mut self, who: usize, count: bool, mut request: Vec<u8>) -> Option<CompoundRes> {
        if count {
            self.make_due(&mut request);
        }
        let origin = Origin { conn: ConnId(self.conns[who]), ..Server::origin(0, 0) };
        let reply = self.server.call(origin, request);
        self.server.check_invariants();
        let res = CompoundRes::from_bytes(&reply.ok()?).expect("a reply that can be read");
        let last = res.results.last().map_or(res.status, OpResult::status);
        assert_eq!(res.status, last, "the status is that of the last operation");
        let failed = res.results.iter().position(|result| result.status() != NfsStat::Ok);
        assert!(failed.is_none_or(|at| at + 1 == res.results.len()), "the request continued after a failure");
        if let Some(OpResult::Sequence(Ok(it))) = res.results.first() {
            self.last.insert((it.sessionid, it.slotid), it.sequenceid);
        }
        Some(res)
    }

    /// Writes the expected sequence number of the slot into SEQUENCE.
    fn make_due(&self, request: &mut [u8]) {
        let mut from = Decoder::new(request);
        let head = CompoundHeader::take(&mut from).and_then(|_| Ok((from.word()?, from.word()?)));
        let at = request.len() - from.remaining();
        let Ok((1.., number::SEQUENCE)) = head else { return };
        let Ok(args) = SequenceArgs::take(&mut from) else { return };
        let due = self.last.get(&(args.sessionid, args.slotid)).map_or(1, |last| last.wrapping_add(1));
        request[at + 16..at + 20].copy_from_slice(&due.to_be_bytes());
    }

    // ---- recorded requests ----

    fn call(&mut self, who: usize, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let res = self.ask(who, true, encoded(minor, ops)).expect("what was encoded decodes");
        (res.status, res.results)
    }

    fn introduce(&mut self, who: usize) -> SessionId {
        let (_, results) = self.call(who, 1, vec![exchange(who)]);
        let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
        let create = create_session(known.clientid, known.sequenceid);
        let (_, results) = self.call(who, 1, vec![create]);
        let Some(OpResult::CreateSession(Ok(made))) = results.last() else { panic!("{results:?}") };
        let session = made.sessionid;
        self.call(who, 1, vec![sequence(session), Op::ReclaimComplete(false)]);
        session
    }

    fn introduce_v40_client(&mut self) -> ClientId {
        let (_, results) = self.call(2, 0, vec![set_client_id()]);
        let Some(OpResult::SetClientId(SetClientIdRes::Ok(known))) = results.last() else {
            panic!("{results:?}")
        };
        self.call(2, 0, vec![Op::SetClientIdConfirm(known.clone())]);
        known.clientid
    }
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let mut fixture = Fixture::new(rest.byte());
    for _ in 0..MAX_STEPS {
        if rest.is_empty() {
            break;
        }
        fixture.step(&mut rest);
    }
    // Long after all leases have expired.
    for _ in 0..4 {
        fixture.server.advance(Millis::seconds(u64::from(LEASE_SECONDS) * 1000));
        fixture.server.check_invariants();
    }
}

// ---- fuzz inputs ----------------------------------------------------------------------------------------

fn encoded(minor: u32, ops: Vec<Op>) -> Vec<u8> {
    CompoundArgs { header: CompoundHeader { tag: Vec::new(), minor_version: minor }, ops }.to_bytes()
}

fn exchange(who: usize) -> Op {
    ivers_nfs_test::client::exchange([7; 8], &format!("client {who}"))
}

fn create_session(clientid: ClientId, sequence: u32) -> Op {
    let channel = ChannelAttrs {
        header_pad_size: 0,
        max_request: 8192,
        max_response: 8192,
        max_response_cached: 2048,
        max_operations: 16,
        max_requests: 4,
        rdma_ird: List(Vec::new()),
    };
    ivers_nfs_test::client::create_session(clientid, sequence, channel)
}

fn sequence(sessionid: SessionId) -> Op {
    Op::Sequence(SequenceArgs { sessionid, sequenceid: 1, slotid: 0, highest_slotid: 0, cache_this: true })
}

fn set_client_id() -> Op {
    Op::SetClientId(SetClientIdArgs {
        client: ClientOwner { verifier: [8; 8], id: Opaque(b"of old".to_vec()) },
        callback: CallbackClient {
            program: 0x4000_0000,
            location: NetAddr { netid: b"tcp".to_vec(), addr: b"127.0.0.1.3.232".to_vec() },
        },
        callback_ident: 1,
    })
}

/// A consistent sequence of requests, recorded as an input.
struct Recorder {
    fixture: Fixture,
    input: Vec<u8>,
}

impl Recorder {
    fn new(flags: u8) -> Self {
        Self { fixture: Fixture::new(flags), input: vec![flags] }
    }

    fn call(&mut self, flags: u8, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let request = encoded(minor, ops);
        self.input.push(flags);
        if flags & Step::TIME_PASSES != 0 {
            self.input.push(60);
            self.fixture.server.advance(Millis::seconds(60));
        }
        self.input.extend_from_slice(&(request.len() as u16).to_le_bytes());
        self.input.extend_from_slice(&request);
        self.fixture.answers.store((flags & Step::ANSWERS) >> 5, Ordering::Relaxed);
        let res = self.fixture.ask(usize::from(flags & 3), true, request).expect("what was encoded decodes");
        (res.status, res.results)
    }

    fn session(&self, who: u8) -> SessionId {
        let mut sessions: Vec<SessionId> = self.fixture.last.keys().map(|(session, _)| *session).collect();
        sessions.sort_unstable();
        sessions[usize::from(who)]
    }

    /// Executes operations in a client's session; returns their results without SEQUENCE's.
    fn inside(&mut self, flags: u8, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let session = self.session(flags & 3);
        let (status, results) = self.call(flags, 1, [vec![sequence(session)], ops].concat());
        (status, results.into_iter().skip(1).collect())
    }
}

fn lock(stateid: StateId, kind: LockType, (clientid, open_seqid): (ClientId, u32)) -> Op {
    let lock_owner = Owner { clientid, owner: Opaque(b"l".to_vec()) };
    let new = OpenToLockOwner { open_seqid, open_stateid: stateid, lock_seqid: 0, lock_owner };
    Op::Lock(LockArgs { kind, reclaim: false, offset: 0, length: 10, locker: Locker::New(new) })
}

/// Returns an input with a delegation that is granted, recalled and returned.
fn delegation() -> Vec<u8> {
    let mut it = Recorder::new(1);
    let make = open("o", share::BOTH, guarded(), named("new"));
    let (made, handle) = opened(&it.inside(0, [data(), vec![make, Op::GetFh(())]].concat()));
    let put = Op::PutFh(handle);
    it.inside(1 | 2 << 5, vec![put.clone(), change_and_size()]);
    let theirs = open("o", share::READ, OpenHow::NoCreate, named("new"));
    it.inside(1 | 1 << 5, [data(), vec![theirs.clone()]].concat());
    if let OpenDelegation::Write(delegation) = made.delegation {
        it.inside(0, vec![put.clone(), Op::DelegReturn(delegation.stateid)]);
    }
    it.inside(1, [data(), vec![theirs, Op::GetFh(())]].concat());
    it.inside(1 | Step::TIME_PASSES, vec![put.clone(), change_and_size()]);
    it.inside(0, vec![put, Op::Close(SeqState { seqid: 0, stateid: made.stateid })]);
    it.input
}

/// Opens and locks of two clients.
fn locked() -> Vec<u8> {
    let mut it = Recorder::new(5);
    let how = |name| open("o", share::BOTH | share::WANT_NO_DELEG, unchecked(), named(name));
    let (mine, handle) = opened(&it.inside(0, [data(), vec![how("f"), Op::GetFh(())]].concat()));
    let (theirs, _) = opened(&it.inside(1, [data(), vec![how("f"), Op::GetFh(())]].concat()));
    let put = Op::PutFh(handle);
    let (_, results) = it.inside(0, vec![put.clone(), lock(mine.stateid, LockType::Write, (0, 0))]);
    it.inside(1, vec![put.clone(), lock(theirs.stateid, LockType::WriteW, (0, 0))]);
    if let Some(OpResult::Lock(Locked::Ok(stateid))) = results.last() {
        let unlock = UnlockArgs { kind: LockType::Write, seqid: 0, stateid: *stateid, offset: 2, length: 3 };
        it.inside(1 << 5, vec![put.clone(), Op::LockU(unlock)]);
        it.inside(0, vec![Op::TestStateId(List(vec![*stateid])), Op::FreeStateId(*stateid)]);
    }
    let write =
        WriteArgs { stateid: mine.stateid, offset: 0, stable: StableHow::Unstable, data: vec![1; 9].into() };
    it.inside(0, vec![put.clone(), Op::Write(write), change_and_size()]);
    it.inside(0, vec![put, Op::Close(SeqState { seqid: 0, stateid: mine.stateid })]);
    it.input
}

/// Returns an input with the life of a client with sessions.
fn client_with_sessions() -> Vec<u8> {
    let mut it = Recorder::new(0);
    let (_, results) = it.call(3, 1, vec![exchange(3)]);
    let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
    let (clientid, number) = (known.clientid, known.sequenceid);
    let (_, results) = it.call(3, 1, vec![create_session(clientid, number)]);
    let Some(OpResult::CreateSession(Ok(made))) = results.last() else { panic!("{results:?}") };
    let session = made.sessionid;
    it.call(3, 1, vec![sequence(session), Op::ReclaimComplete(false)]);
    let bind = BindConn { sessionid: session, direction: 3, rdma: false };
    it.call(3 | Step::PARTS, 1, vec![Op::BindConnToSession(bind)]);
    it.call(3, 1, vec![sequence(session), Op::PutRootFh(()), Op::GetFh(())]);
    it.call(3, 1, vec![create_session(clientid, number + 1)]);
    it.call(3, 1, vec![Op::DestroySession(session)]);
    it.call(3, 1, vec![Op::DestroyClientId(clientid)]);
    it.input
}

/// Returns an input with a client of NFSv4.0.
fn v40_client() -> Vec<u8> {
    let mut it = Recorder::new(0);
    let (_, results) = it.call(2, 0, vec![set_client_id()]);
    let Some(OpResult::SetClientId(SetClientIdRes::Ok(known))) = results.last() else {
        panic!("{results:?}")
    };
    let clientid = known.clientid;
    it.call(2, 0, vec![Op::SetClientIdConfirm(known.clone())]);
    let open = open_v40(1, clientid, "o", share::BOTH, unchecked(), named("f"));
    let (opened, handle) = opened(&it.call(2, 0, [data(), vec![open, Op::GetFh(())]].concat()));
    let put = Op::PutFh(handle);
    let confirm = SeqState { seqid: 2, stateid: opened.stateid };
    let (_, results) = it.call(
        2,
        0,
        vec![put.clone(), Op::OpenConfirm(OpenConfirmArgs { stateid: confirm.stateid, seqid: 2 })],
    );
    let Some(OpResult::OpenConfirm(Ok(stateid))) = results.last() else { panic!("{results:?}") };
    let stateid = *stateid;
    let (_, results) = it.call(2, 0, vec![put.clone(), lock(stateid, LockType::Read, (clientid, 3))]);
    if let Some(OpResult::Lock(Locked::Ok(held))) = results.last() {
        let unlock = UnlockArgs { kind: LockType::Read, seqid: 1, stateid: *held, offset: 0, length: 10 };
        it.call(2, 0, vec![put.clone(), Op::LockU(unlock)]);
    }
    it.call(2 | Step::TIME_PASSES, 0, vec![Op::Renew(clientid)]);
    it.call(2, 0, vec![put, Op::Close(SeqState { seqid: 4, stateid })]);
    let owner = Owner { clientid, owner: Opaque(b"l".to_vec()) };
    it.call(2, 0, vec![Op::ReleaseLockOwner(owner)]);
    it.input
}

/// Returns an input with a client of NFSv4.0 that has a callback. It holds a delegation of a file that
/// another client opens for writing.
fn v40_delegation() -> Vec<u8> {
    let mut it = Recorder::new(1);
    let (_, results) = it.call(2 | 1 << 5, 0, vec![set_client_id()]);
    let Some(OpResult::SetClientId(SetClientIdRes::Ok(known))) = results.last() else {
        panic!("{results:?}")
    };
    let clientid = known.clientid;
    it.call(2 | 1 << 5, 0, vec![Op::SetClientIdConfirm(known.clone())]);
    let open_read = |seqid| open_v40(seqid, clientid, "o", share::READ, OpenHow::NoCreate, named("f"));
    let (first, handle) = opened(&it.call(2, 0, [data(), vec![open_read(1), Op::GetFh(())]].concat()));
    let put = Op::PutFh(handle);
    it.call(2, 0, vec![put.clone(), Op::OpenConfirm(OpenConfirmArgs { stateid: first.stateid, seqid: 2 })]);
    let (again, _) = opened(&it.call(2, 0, [data(), vec![open_read(3), Op::GetFh(())]].concat()));
    let OpenDelegation::Read(delegation) = again.delegation else { panic!("{again:?}") };
    let theirs = open("o", share::BOTH, OpenHow::NoCreate, named("f"));
    it.inside(1 << 5, [data(), vec![theirs.clone()]].concat());
    it.call(2, 0, vec![Op::Renew(clientid)]);
    it.call(2, 0, vec![put, Op::DelegReturn(delegation.stateid)]);
    it.inside(1, [data(), vec![theirs]].concat());
    it.input
}

/// Returns an input with a copy that continues after its reply and is queried, and another one that is
/// cancelled.
fn background_copy() -> Vec<u8> {
    let mut it = Recorder::new(1);
    let how = |name| open("o", share::BOTH | share::WANT_NO_DELEG, unchecked(), named(name));
    let (from, source) = opened(&it.inside(0, [data(), vec![how("from"), Op::GetFh(())]].concat()));
    let (to, target) = opened(&it.inside(0, [data(), vec![how("to"), Op::GetFh(())]].concat()));
    let (source, target) = (Op::PutFh(source), Op::PutFh(target));
    let attrs = Attrs { size: Some(9 << 20), ..Attrs::default() }.encode();
    it.inside(0, vec![source.clone(), Op::SetAttr(SetAttrArgs { stateid: from.stateid, attrs })]);
    let copy = Op::Copy(CopyArgs {
        source: from.stateid,
        target: to.stateid,
        source_offset: 0,
        target_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: false,
        source_server: List(Vec::new()),
    });
    let session = it.session(0);
    let whole = vec![sequence(session), source, Op::SaveFh(()), target.clone(), copy];
    for last in [Op::OffloadStatus as fn(StateId) -> Op, Op::OffloadCancel] {
        // The server reports the end of the copy. The client replies at once, or never.
        let (_, results) = it.call(0, 2, whole.clone());
        let Some(OpResult::Copy(CopyRes::Ok(ok))) = results.last() else { panic!("{results:?}") };
        let Some(begun) = ok.response.callback.0.first().copied() else { panic!("{ok:?}") };
        it.call(0, 2, vec![sequence(session), target.clone(), last(begun)]);
    }
    it.call(Step::TIME_PASSES | 2 << 5, 2, vec![sequence(session)]);
    it.call(Step::TIME_PASSES | 1 << 5, 2, vec![sequence(session)]);
    it.input
}

/// Returns an input with ACLs that are set, read, and set together with a size.
fn acls() -> Vec<u8> {
    let mut it = Recorder::new(1);
    let how = open("o", share::BOTH | share::WANT_NO_DELEG, unchecked(), named("f"));
    let (mine, handle) = opened(&it.inside(0, [data(), vec![how, Op::GetFh(())]].concat()));
    let put = Op::PutFh(handle);
    let set = |acl, size| {
        let attrs = Attrs { acl, size, ..Attrs::default() }.encode();
        Op::SetAttr(SetAttrArgs { stateid: mine.stateid, attrs })
    };
    let get = Op::GetAttr(Bitmap::of([attr::ACL, attr::MODE, attr::CHANGE]));
    it.inside(0, vec![put.clone(), set(Some(sample_acl()), None), get.clone()]);
    it.inside(0, vec![put, set(Some(sample_acl()), Some(5)), get.clone()]);
    let mut dir = data();
    dir.extend([Op::Lookup(b"d".to_vec()), set(Some(sample_acl()), None), get]);
    it.inside(0, dir);
    it.input
}

/// Returns the fuzz inputs.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = vec![
        delegation(),
        locked(),
        client_with_sessions(),
        v40_client(),
        v40_delegation(),
        background_copy(),
        acls(),
    ];
    // The same inputs with small limits.
    let narrow: Vec<_> = inputs.iter().map(|input| [&[input[0] | 4][..], &input[1..]].concat()).collect();
    inputs.extend(narrow);
    inputs
}
