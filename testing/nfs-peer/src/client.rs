//! One connection, one session, one request at a time.

use crate::{change_and_size, create_session, decoded, exchange};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::callback::{
    CbCompoundArgs, CbCompoundRes, CbOffloadArgs, CbOp, CbRecallArgs, CbResult, CbSequenceOk,
};
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes};
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{AuthSys, CallHeader, Kind, OpaqueAuth, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};
use ivers_nfs4::{NFS_PROGRAM, NFS_V4, PROC_COMPOUND};

/// A client of NFSv4.1 and 4.2 (of 4.0 by [`Client::compound`]), by AUTH_SYS as user 0. It does one thing at a time, and answers
/// callbacks when it looks for them. Whatever a right server does not do is a panic.
pub struct Client {
    stream: TcpStream,
    records: Records,
    /// What was read, and which part of it is still to be taken.
    read: Vec<u8>,
    taken: usize,
    filled: usize,
    /// The time limit that the socket has.
    patience: Duration,
    xid: u32,
    /// The server's number for it.
    pub id: ClientId,
    /// Its session.
    pub session: SessionId,
    /// The last sequence number of each slot; requests one at a time go by the first.
    slots: Vec<u32>,
    /// What was recalled.
    pub recalled: Vec<CbRecallArgs>,
    /// Locks that may be free.
    pub notified: usize,
    /// Copies that have ended.
    pub offloaded: Vec<CbOffloadArgs>,
    /// What CB_GETATTR is answered with.
    pub shows: Option<(u64, u64)>,
    name: String,
    /// Who it says it is.
    pub user: u32,
    /// Of the requests in its session.
    minor: u32,
}

fn channel() -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        // A MiB of data, and what is around it.
        max_request: (1 << 20) + 4096,
        max_response: (1 << 20) + 4096,
        max_response_cached: 4096,
        // A path of many directories is looked up in one request.
        max_operations: 64,
        max_requests: 16,
        rdma_ird: List(Vec::new()),
    }
}

/// A message that `put` appends, as a record.
fn record(put: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut message = Encoder::default();
    message.word(0);
    put(&mut message);
    let mut bytes = message.into_bytes();
    let marked = mark(bytes.len() - 4);
    bytes[..4].copy_from_slice(&marked);
    bytes
}

/// A call of COMPOUND with these arguments, whatever they are, as a record.
pub fn request(xid: u32, user: u32, arguments: &[u8]) -> Vec<u8> {
    let sys = AuthSys { stamp: 0, machine: b"test".to_vec(), uid: user, gid: 0, gids: List(Vec::new()) };
    let call = CallHeader {
        xid,
        program: NFS_PROGRAM,
        version: NFS_V4,
        procedure: PROC_COMPOUND,
        cred: OpaqueAuth::sys(&sys),
        verf: OpaqueAuth::NONE,
    };
    record(|to| {
        call.put(to);
        to.fixed(arguments);
    })
}

impl Client {
    /// Connect, without a word.
    pub fn connect(address: SocketAddr, name: &str) -> Self {
        Self::over(TcpStream::connect(address).unwrap(), name)
    }

    /// The same over a connection that is there.
    pub fn over(stream: TcpStream, name: &str) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            records: Records::new(4 << 20),
            read: vec![0; 256 << 10],
            taken: 0,
            filled: 0,
            patience: Duration::ZERO,
            xid: 1,
            id: 0,
            session: [0; 16],
            slots: vec![0],
            recalled: Vec::new(),
            notified: 0,
            offloaded: Vec::new(),
            shows: None,
            name: name.to_owned(),
            user: 0,
            minor: 1,
        }
    }

    /// With a session, and nothing to reclaim.
    pub fn new(address: SocketAddr, name: &str) -> Self {
        Self::of_minor(address, name, 1)
    }

    /// The same, of a minor version.
    pub fn of_minor(address: SocketAddr, name: &str, minor: u32) -> Self {
        let mut client = Self::connect(address, name);
        client.minor = minor;
        client.begin();
        client
    }

    /// Make a session; there is nothing to reclaim.
    pub fn begin(&mut self) {
        self.make_session();
        assert_eq!(self.call(vec![Op::ReclaimComplete(false)]).0, NfsStat::Ok);
    }

    /// EXCHANGE_ID and CREATE_SESSION, with callbacks on this connection.
    pub fn make_session(&mut self) {
        let (_, results) = self.compound(self.minor, vec![exchange([7; 8], &self.name)]);
        let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
        self.id = known.clientid;
        let create = create_session(self.id, known.sequenceid, channel());
        let (_, results) = self.compound(self.minor, vec![create]);
        let Some(OpResult::CreateSession(Ok(made))) = results.last() else { panic!("{results:?}") };
        assert_eq!(made.flags, session_flags::CONN_BACK_CHAN);
        self.session = made.sessionid;
        self.slots = vec![0; made.fore.max_requests as usize];
    }

    /// Send operations of a session.
    pub fn send(&mut self, ops: Vec<Op>) {
        self.slots[0] += 1;
        self.send_again(ops);
    }

    /// Send them under the last number once more.
    pub fn send_again(&mut self, ops: Vec<Op>) {
        // What only reads can be done again, and its answer is too large to be kept.
        let reads = |op: &Op| matches!(op, Op::Read(_) | Op::ReadDir(_) | Op::GetXattr(_));
        self.send_by(0, !ops.iter().any(reads), ops);
    }

    fn send_by(&mut self, slot: usize, cache_this: bool, ops: Vec<Op>) {
        let sequence = Op::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.slots[slot],
            slotid: slot as u32,
            highest_slotid: self.slots.len() as u32 - 1,
            cache_this,
        });
        self.send_compound(self.minor, [vec![sequence], ops].concat());
    }

    /// `total` requests, `depth` of them under way at a time (fewer if the session has fewer slots), with replies that need not be kept.
    /// `make` gets the number of each, `check` each answer without SEQUENCE's.
    pub fn stream(
        &mut self,
        depth: usize,
        total: u64,
        mut make: impl FnMut(u64) -> Vec<Op>,
        mut check: impl FnMut(NfsStat, &[OpResult]),
    ) {
        let mut idle: Vec<usize> = (0..depth.min(self.slots.len())).collect();
        let mut under_way = HashMap::new();
        let mut sent = 0;
        while sent < total || !under_way.is_empty() {
            while sent < total
                && let Some(slot) = idle.pop()
            {
                self.slots[slot] += 1;
                self.send_by(slot, false, make(sent));
                under_way.insert(self.xid, slot);
                sent += 1;
            }
            let (xid, res) = self.next_answer();
            idle.push(under_way.remove(&xid).expect("an answer to what was asked"));
            check(res.status, res.results.get(1..).unwrap_or_default());
        }
    }

    fn send_compound(&mut self, minor: u32, ops: Vec<Op>) {
        self.xid += 1;
        let header = CompoundHeader { tag: b"t".to_vec(), minor_version: minor };
        let arguments = CompoundArgs { header, ops }.to_bytes();
        self.stream.write_all(&request(self.xid, self.user, &arguments)).unwrap();
    }

    /// The next record; nothing if none comes in time.
    fn receive(&mut self, time: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + time;
        loop {
            let mut rest = &self.read[self.taken..self.filled];
            let found = self.records.feed(&mut rest).unwrap();
            self.taken = self.filled - rest.len();
            if found.is_some() {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if self.patience != time {
                self.stream.set_read_timeout(Some(time)).unwrap();
                self.patience = time;
            }
            match self.stream.read(&mut self.read) {
                Ok(0) => panic!("the server has hung up"),
                Ok(len) => (self.taken, self.filled) = (0, len),
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
        assert_eq!(args.minor_version, self.minor, "Linux knows no session of another version");
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
            CbOp::Offload(ended) => {
                self.offloaded.push(ended);
                CbResult::Offload(Ok(()))
            }
            other => panic!("{other:?}"),
        });
        let res = CbCompoundRes { status: NfsStat::Ok, tag: args.tag, results: List(results.collect()) };
        let reply = record(|to| {
            Reply::SUCCESS.put(header.xid, to);
            res.put(to);
        });
        self.stream.write_all(&reply).unwrap();
    }

    fn next_answer(&mut self) -> (u32, CompoundRes) {
        loop {
            let message = self.receive(Duration::from_secs(20)).expect("an answer");
            if matches!(Kind::of(&message), Ok(Kind::Call)) {
                self.answer(&message);
                continue;
            }
            let mut from = Decoder::new(&message);
            let (xid, reply) = Reply::take(&mut from).unwrap();
            assert_eq!(reply, Reply::SUCCESS);
            return (xid, CompoundRes::take(&mut from).unwrap());
        }
    }

    /// The answer to what was sent; callbacks that come before it are answered.
    pub fn answered(&mut self) -> (NfsStat, Vec<OpResult>) {
        let (xid, res) = self.next_answer();
        assert_eq!(xid, self.xid);
        (res.status, res.results)
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
