//! A client of NFSv4 that does one thing at a time, and answers callbacks when it looks for them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ivers_nfs4::attr::{self, Attrs, Fattr};
use ivers_nfs4::callback::{CbCompoundArgs, CbCompoundRes, CbOp, CbRecallArgs, CbResult, CbSequenceOk};
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{AuthSys, CallHeader, Kind, OpaqueAuth, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};
use ivers_nfs4::{NFS_PROGRAM, NFS_V4, PROC_COMPOUND};

pub struct Client {
    stream: TcpStream,
    records: Records,
    pending: Vec<u8>,
    xid: u32,
    pub id: ClientId,
    pub session: SessionId,
    sequence: u32,
    /// What was recalled.
    pub recalled: Vec<CbRecallArgs>,
    /// Locks that may be free.
    pub notified: usize,
    /// In which minor version it speaks, and was called back last.
    pub minor: u32,
    pub called_in: Option<u32>,
    /// What CB_GETATTR is answered with.
    pub shows: Option<(u64, u64)>,
    name: String,
    verifier: [u8; 8],
}

fn channel() -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_response_cached: 4096,
        max_operations: 16,
        max_requests: 4,
        rdma_ird: List(Vec::new()),
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&mark(message.len())[..], message].concat()
}

impl Client {
    /// Connect, without a word.
    pub fn connect(address: SocketAddr, name: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            records: Records::new(4 << 20),
            pending: Vec::new(),
            xid: 1,
            id: 0,
            session: [0; 16],
            sequence: 0,
            recalled: Vec::new(),
            notified: 0,
            minor: 1,
            called_in: None,
            shows: None,
            name: name.to_owned(),
            verifier: [7; 8],
        }
    }

    /// With a session, and nothing to reclaim.
    pub fn new(address: SocketAddr, name: &str) -> Self {
        let mut client = Self::connect(address, name);
        client.make_session();
        assert_eq!(client.call(vec![Op::ReclaimComplete(false)]).0, NfsStat::Ok);
        client
    }

    /// As after a reboot: what it held is gone.
    pub fn make_session_anew(&mut self) {
        self.verifier = [8; 8];
        self.make_session();
    }

    pub fn make_session(&mut self) {
        let owner = ClientOwner { verifier: self.verifier, id: Opaque(self.name.as_bytes().to_vec()) };
        let exchange =
            ExchangeIdArgs { owner, flags: 0, protect: StateProtect::None, implementation: List(Vec::new()) };
        let (_, results) = self.compound(self.minor, vec![Op::ExchangeId(exchange)]);
        let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
        self.id = known.clientid;
        let create = CreateSessionArgs {
            clientid: self.id,
            sequence: known.sequenceid,
            flags: session_flags::CONN_BACK_CHAN,
            fore: channel(),
            back: channel(),
            callback_program: 0x4000_0000,
            security: List(vec![CallbackSecurity::None]),
        };
        let (_, results) = self.compound(self.minor, vec![Op::CreateSession(create)]);
        let Some(OpResult::CreateSession(Ok(made))) = results.last() else { panic!("{results:?}") };
        assert_eq!(made.flags, session_flags::CONN_BACK_CHAN);
        (self.session, self.sequence) = (made.sessionid, 0);
    }

    /// Send operations of a session.
    pub fn send(&mut self, ops: Vec<Op>) {
        self.sequence += 1;
        self.send_again(ops);
    }

    /// Send them under the last number once more.
    pub fn send_again(&mut self, ops: Vec<Op>) {
        let sequence = Op::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.sequence,
            slotid: 0,
            highest_slotid: 0,
            cache_this: true,
        });
        self.send_compound(self.minor, [vec![sequence], ops].concat());
    }

    fn send_compound(&mut self, minor: u32, ops: Vec<Op>) {
        let sys = AuthSys { stamp: 0, machine: b"test".to_vec(), uid: 0, gid: 0, gids: List(Vec::new()) };
        self.xid += 1;
        let mut message = Encoder::default();
        CallHeader {
            xid: self.xid,
            program: NFS_PROGRAM,
            version: NFS_V4,
            procedure: PROC_COMPOUND,
            cred: OpaqueAuth::sys(&sys),
            verf: OpaqueAuth::NONE,
        }
        .put(&mut message);
        let header = CompoundHeader { tag: b"t".to_vec(), minor_version: minor };
        CompoundArgs { header, ops }.put(&mut message);
        self.stream.write_all(&framed(message.as_bytes())).unwrap();
    }

    /// The next record; nothing if none comes in time.
    fn receive(&mut self, time: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + time;
        loop {
            let mut rest = &self.pending[..];
            let found = self.records.feed(&mut rest).unwrap();
            self.pending = rest.to_vec();
            if found.is_some() {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut bytes = vec![0; 64 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("the server has hung up"),
                Ok(len) => self.pending.extend(&bytes[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Answer callbacks for a while, until one has come.
    pub fn serve(&mut self, time: Duration) -> bool {
        match self.receive(time) {
            Some(message) => {
                assert!(matches!(Kind::of(&message), Ok(Kind::Call)), "a reply that nobody waits for");
                self.answer(&message);
                true
            }
            None => false,
        }
    }

    fn answer(&mut self, message: &[u8]) {
        let mut from = Decoder::new(message);
        let header = CallHeader::take(&mut from).unwrap();
        let args = CbCompoundArgs::take(&mut from).unwrap();
        self.called_in = Some(args.minor_version);
        let results = args.ops.0.into_iter().map(|op| match op {
            CbOp::Sequence(it) => CbResult::Sequence(Ok(CbSequenceOk {
                sessionid: it.sessionid,
                sequenceid: it.sequenceid,
                slotid: it.slotid,
                highest_slotid: it.highest_slotid,
                target_highest_slotid: it.highest_slotid,
            })),
            CbOp::Recall(recall) => {
                self.recalled.push(recall);
                CbResult::Recall(Ok(()))
            }
            CbOp::GetAttr(_) => {
                let (change, size) = self.shows.expect("asked about a delegation");
                let attrs = Attrs { change: Some(change), size: Some(size), ..Attrs::default() };
                CbResult::GetAttr(Ok(attrs.encode()))
            }
            CbOp::NotifyLock(_) => {
                self.notified += 1;
                CbResult::NotifyLock(Ok(()))
            }
            other => panic!("{other:?}"),
        });
        let res = CbCompoundRes { status: NfsStat::Ok, tag: args.tag, results: List(results.collect()) };
        let mut reply = Encoder::default();
        Reply::SUCCESS.put(header.xid, &mut reply);
        res.put(&mut reply);
        self.stream.write_all(&framed(reply.as_bytes())).unwrap();
    }

    /// The answer to what was sent; callbacks that come before it are answered.
    pub fn answered(&mut self) -> (NfsStat, Vec<OpResult>) {
        loop {
            let message = self.receive(Duration::from_secs(20)).expect("an answer");
            if matches!(Kind::of(&message), Ok(Kind::Call)) {
                self.answer(&message);
                continue;
            }
            let mut from = Decoder::new(&message);
            let (xid, reply) = Reply::take(&mut from).unwrap();
            assert_eq!((xid, reply), (self.xid, Reply::SUCCESS));
            let res = CompoundRes::take(&mut from).unwrap();
            return (res.status, res.results);
        }
    }

    /// Operations without a session.
    pub fn compound(&mut self, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        self.send_compound(minor, ops);
        self.answered()
    }

    /// Operations of a session; results without SEQUENCE's.
    pub fn call(&mut self, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        self.send(ops);
        let (status, mut results) = self.answered();
        (status, results.split_off(1.min(results.len())))
    }

    /// The same again until the server has time for it; meanwhile callbacks are answered.
    pub fn call_patiently(&mut self, ops: &[Op]) -> (NfsStat, Vec<OpResult>) {
        for _ in 0..100 {
            let answer = self.call(ops.to_vec());
            if answer.0 != NfsStat::Delay {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("delayed for ever");
    }

    /// Change attribute and size of a handle.
    pub fn attrs(&mut self, handle: &FileHandle) -> Attrs {
        let (status, results) = self.call(vec![Op::PutFh(handle.clone()), change_and_size()]);
        assert_eq!(status, NfsStat::Ok);
        decoded(results.last())
    }
}

pub fn change_and_size() -> Op {
    Op::GetAttr(Bitmap::of([attr::CHANGE, attr::SIZE]))
}

pub fn decoded(result: Option<&OpResult>) -> Attrs {
    let Some(OpResult::GetAttr(Ok(fattr))) = result else { panic!("{result:?}") };
    Attrs::decode(fattr).unwrap()
}

/// To the root of the export.
pub fn data() -> Vec<Op> {
    vec![Op::PutRootFh(()), Op::Lookup(b"data".to_vec())]
}

pub fn open(owner: &str, access: u32, how: OpenHow, claim: OpenClaim) -> Op {
    open_of(0, 0, owner, access, how, claim)
}

pub fn open_of(
    seqid: u32,
    clientid: ClientId,
    owner: &str,
    access: u32,
    how: OpenHow,
    claim: OpenClaim,
) -> Op {
    Op::Open(OpenArgs {
        seqid,
        share_access: access,
        share_deny: 0,
        owner: Owner { clientid, owner: Opaque(owner.as_bytes().to_vec()) },
        how,
        claim,
    })
}

pub fn guarded() -> OpenHow {
    let attrs = Attrs { mode: Some(0o640), ..Attrs::default() };
    OpenHow::Create(CreateHow::Guarded(attrs.encode()))
}

pub fn unchecked() -> OpenHow {
    OpenHow::Create(CreateHow::Unchecked(Fattr::default()))
}

pub fn named(name: &str) -> OpenClaim {
    OpenClaim::Null(name.as_bytes().to_vec())
}

/// What OPEN and GETFH behind it have said.
pub fn opened((status, results): &(NfsStat, Vec<OpResult>)) -> (Opened, FileHandle) {
    assert_eq!(*status, NfsStat::Ok, "{results:?}");
    let [.., OpResult::Open(Ok(opened)), OpResult::GetFh(Ok(handle))] = &results[..] else {
        panic!("{results:?}")
    };
    (opened.clone(), handle.clone())
}
