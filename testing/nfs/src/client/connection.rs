//! A client with one connection and one session.

use super::{change_and_size, create_session, decoded, exchange};
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

/// A client of NFSv4.1 and NFSv4.2 with AUTH_SYS, as user 0 unless `user` says otherwise.
///
/// NFSv4.0 is possible through [`Client::compound`]. The client answers callbacks while it waits for a reply
/// or in [`Client::serve`]. It panics if the server violates the protocol.
pub struct Client {
    stream: TcpStream,
    records: Records,
    /// The read buffer; `buffer[consumed..filled]` is not decoded yet.
    buffer: Vec<u8>,
    consumed: usize,
    filled: usize,
    /// The read timeout that the socket has.
    timeout: Duration,
    xid: u32,
    /// The client ID that the server assigned.
    pub id: ClientId,
    /// The session ID.
    pub session: SessionId,
    /// The last sequence ID of each slot. Single requests use the first slot.
    slot_sequences: Vec<u32>,
    /// The CB_RECALL operations that were received.
    pub recalled: Vec<CbRecallArgs>,
    /// The number of CB_NOTIFY_LOCK operations that were received.
    pub notified: usize,
    /// The CB_OFFLOAD operations that were received.
    pub offloaded: Vec<CbOffloadArgs>,
    /// Change attribute and size for the reply to CB_GETATTR.
    pub delegated_attrs: Option<(u64, u64)>,
    name: String,
    /// The user ID in AUTH_SYS.
    pub user: u32,
    /// The minor version of requests in the session.
    minor: u32,
}

fn channel() -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        // One MiB of data plus headers.
        max_request: (1 << 20) + 4096,
        max_response: (1 << 20) + 4096,
        max_response_cached: 4096,
        // Enough to look up a path of many directories in one request.
        max_operations: 64,
        max_requests: 16,
        rdma_ird: List(Vec::new()),
    }
}

/// Returns the message that `put` writes, with a record mark before it.
fn record(put: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut message = Encoder::default();
    message.word(0);
    put(&mut message);
    let mut bytes = message.into_bytes();
    let marked = mark(bytes.len() - 4);
    bytes[..4].copy_from_slice(&marked);
    bytes
}

/// Returns the record of a COMPOUND call. `arguments` can be invalid.
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
    /// Connects and sends nothing.
    pub fn connect(address: SocketAddr, name: &str) -> Self {
        Self::over(TcpStream::connect(address).unwrap(), name)
    }

    /// Creates a client on an existing connection and sends nothing.
    pub fn over(stream: TcpStream, name: &str) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            records: Records::new(4 << 20),
            buffer: vec![0; 256 << 10],
            consumed: 0,
            filled: 0,
            timeout: Duration::ZERO,
            xid: 1,
            id: 0,
            session: [0; 16],
            slot_sequences: vec![0],
            recalled: Vec::new(),
            notified: 0,
            offloaded: Vec::new(),
            delegated_attrs: None,
            name: name.to_owned(),
            user: 0,
            minor: 1,
        }
    }

    /// Connects, creates an NFSv4.1 session and ends reclaim.
    pub fn new(address: SocketAddr, name: &str) -> Self {
        Self::with_minor(address, name, 1)
    }

    /// Connects, creates a session of this minor version and ends reclaim.
    pub fn with_minor(address: SocketAddr, name: &str, minor: u32) -> Self {
        let mut client = Self::connect(address, name);
        client.minor = minor;
        client.start_session();
        client
    }

    /// Creates a session and sends RECLAIM_COMPLETE.
    pub fn start_session(&mut self) {
        self.create_session();
        assert_eq!(self.call(vec![Op::ReclaimComplete(false)]).0, NfsStat::Ok);
    }

    /// Sends EXCHANGE_ID and CREATE_SESSION, with callbacks on this connection.
    pub fn create_session(&mut self) {
        let (_, results) = self.compound(self.minor, vec![exchange([7; 8], &self.name)]);
        let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
        self.id = known.clientid;
        let create = create_session(self.id, known.sequenceid, channel());
        let (_, results) = self.compound(self.minor, vec![create]);
        let Some(OpResult::CreateSession(Ok(made))) = results.last() else { panic!("{results:?}") };
        assert_eq!(made.flags, session_flags::CONN_BACK_CHAN);
        self.session = made.sessionid;
        self.slot_sequences = vec![0; made.fore.max_requests as usize];
    }

    /// Sends operations in the session, without waiting for the reply.
    pub fn send(&mut self, ops: Vec<Op>) {
        self.slot_sequences[0] += 1;
        self.resend(ops);
    }

    /// Sends operations with the sequence ID of the previous request.
    pub fn resend(&mut self, ops: Vec<Op>) {
        // Requests that only read can be executed again, and their replies are too large for the reply cache.
        let reads = |op: &Op| matches!(op, Op::Read(_) | Op::ReadDir(_) | Op::GetXattr(_));
        self.send_on_slot(0, !ops.iter().any(reads), ops);
    }

    fn send_on_slot(&mut self, slot: usize, cache_this: bool, ops: Vec<Op>) {
        let sequence = Op::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.slot_sequences[slot],
            slotid: slot as u32,
            highest_slotid: self.slot_sequences.len() as u32 - 1,
            cache_this,
        });
        self.send_compound(self.minor, [vec![sequence], ops].concat());
    }

    /// Sends `total` requests, up to `depth` of them in flight, and without asking the server to cache
    /// replies.
    ///
    /// The session's number of slots limits `depth`. `make` builds the request with a given number. `check`
    /// gets each reply without the result of SEQUENCE.
    pub fn stream(
        &mut self,
        depth: usize,
        total: u64,
        mut make: impl FnMut(u64) -> Vec<Op>,
        mut check: impl FnMut(NfsStat, &[OpResult]),
    ) {
        let mut idle: Vec<usize> = (0..depth.min(self.slot_sequences.len())).collect();
        let mut in_flight = HashMap::new();
        let mut sent = 0;
        while sent < total || !in_flight.is_empty() {
            while sent < total
                && let Some(slot) = idle.pop()
            {
                self.slot_sequences[slot] += 1;
                self.send_on_slot(slot, false, make(sent));
                in_flight.insert(self.xid, slot);
                sent += 1;
            }
            let (xid, res) = self.next_reply();
            idle.push(in_flight.remove(&xid).expect("a reply to a request in flight"));
            check(res.status, res.results.get(1..).unwrap_or_default());
        }
    }

    fn send_compound(&mut self, minor: u32, ops: Vec<Op>) {
        self.xid += 1;
        let header = CompoundHeader { tag: b"t".to_vec(), minor_version: minor };
        let arguments = CompoundArgs { header, ops }.to_bytes();
        self.stream.write_all(&request(self.xid, self.user, &arguments)).unwrap();
    }

    /// Returns the next record, or `None` after `timeout`.
    fn receive(&mut self, timeout: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut rest = &self.buffer[self.consumed..self.filled];
            let found = self.records.feed(&mut rest).unwrap();
            self.consumed = self.filled - rest.len();
            if found.is_some() {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if self.timeout != timeout {
                self.stream.set_read_timeout(Some(timeout)).unwrap();
                self.timeout = timeout;
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => panic!("the server closed the connection"),
                Ok(len) => (self.consumed, self.filled) = (0, len),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits for one callback and sends the reply. Returns false after `timeout`.
    pub fn serve(&mut self, timeout: Duration) -> bool {
        match self.receive(timeout) {
            Some(message) => {
                assert!(matches!(Kind::of(&message), Ok(Kind::Call)), "a reply to no request");
                self.answer_callback(&message);
                true
            }
            None => false,
        }
    }

    fn answer_callback(&mut self, message: &[u8]) {
        let mut from = Decoder::new(message);
        let header = CallHeader::take(&mut from).unwrap();
        let args = CbCompoundArgs::take(&mut from).unwrap();
        assert_eq!(args.minor_version, self.minor, "Linux finds a session by its minor version too");
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
                let (change, size) = self.delegated_attrs.expect("CB_GETATTR without a delegation");
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

    fn next_reply(&mut self) -> (u32, CompoundRes) {
        loop {
            let message = self.receive(Duration::from_secs(20)).expect("a reply within 20 s");
            if matches!(Kind::of(&message), Ok(Kind::Call)) {
                self.answer_callback(&message);
                continue;
            }
            let mut from = Decoder::new(&message);
            let (xid, reply) = Reply::take(&mut from).unwrap();
            assert_eq!(reply, Reply::SUCCESS);
            return (xid, CompoundRes::take(&mut from).unwrap());
        }
    }

    /// Waits for the reply to the last request. Answers callbacks that arrive first.
    pub fn reply(&mut self) -> (NfsStat, Vec<OpResult>) {
        let (xid, res) = self.next_reply();
        assert_eq!(xid, self.xid);
        (res.status, res.results)
    }

    /// Sends operations outside the session and waits for the reply.
    pub fn compound(&mut self, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        self.send_compound(minor, ops);
        self.reply()
    }

    /// Sends operations in the session and waits for the reply. Leaves out the result of SEQUENCE.
    pub fn call(&mut self, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        self.send(ops);
        let (status, mut results) = self.reply();
        (status, results.split_off(1.min(results.len())))
    }

    /// Sends operations in the session until the reply is not NFS4ERR_DELAY.
    pub fn call_with_retry(&mut self, ops: &[Op]) -> (NfsStat, Vec<OpResult>) {
        for _ in 0..100 {
            let reply = self.call(ops.to_vec());
            if reply.0 != NfsStat::Delay {
                return reply;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("NFS4ERR_DELAY for 2 s");
    }

    /// Returns the change attribute and the size of a file.
    pub fn attrs(&mut self, handle: &FileHandle) -> Attrs {
        let (status, results) = self.call(vec![Op::PutFh(handle.clone()), change_and_size()]);
        assert_eq!(status, NfsStat::Ok);
        decoded(results.last())
    }
}
