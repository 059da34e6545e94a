//! A server that recalls a delegation before it grants it, one that delays requests until a delegation is
//! returned, and one that revokes a delegation.

use super::hostile::{asked, attrs, execute, root_options, truth};
use super::*;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};

use ivers_nfs4::callback::*;
use ivers_nfs4::compound::CompoundArgs;
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{CallHeader, Kind, OpaqueAuth, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};
use ivers_vfs::OpenMode;

pub const SESSION: SessionId = [9; 16];
const OPEN: StateId = StateId { seqid: 1, other: [5; 12] };
pub const DELEGATION: StateId = StateId { seqid: 1, other: [7; 12] };
pub const SOON: Duration = Duration::from_secs(20);

thread_local! {
    /// Whether the current filehandle of a request is that of the file. Each request has its own thread.
    pub static AT_FILE: Cell<bool> = const { Cell::new(false) };
}

/// The connection to a client.
pub type Line = Arc<Mutex<TcpStream>>;

fn send(line: &Line, message: &[u8]) {
    let _ = line.lock().unwrap().write_all(&[&mark(message.len())[..], message].concat());
}

pub fn call(line: &Line, sequenceid: u32, op: CbOp) {
    call_in(line, SESSION, sequenceid, op);
}

pub fn call_in(line: &Line, sessionid: SessionId, sequenceid: u32, op: CbOp) {
    let sequence = CbSequenceArgs {
        sessionid,
        sequenceid,
        slotid: 0,
        highest_slotid: 0,
        cache_this: false,
        referring: List(Vec::new()),
    };
    let mut to = Encoder::default();
    let (program, version, procedure) = (CALLBACK_PROGRAM, CALLBACK_VERSION, PROC_CB_COMPOUND);
    let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    CallHeader { xid: 77, program, version, procedure, cred, verf }.put(&mut to);
    let ops = List(vec![CbOp::Sequence(sequence), op]);
    CbCompoundArgs { tag: Vec::new(), minor_version: 2, ident: 0, ops }.put(&mut to);
    send(line, &to.into_bytes());
}

fn recall() -> CbOp {
    recall_of(DELEGATION)
}

pub fn recall_of(stateid: StateId) -> CbOp {
    let file = Opaque(b"file".to_vec());
    CbOp::Recall(CbRecallArgs { stateid, truncate: false, file })
}

/// What the server answers. `None`: what an honest server with one file answers.
pub type Says = dyn Fn(&Op, &Line) -> Option<OpResult> + Send + Sync;

/// Starts a server. Returns its address, and a channel with the replies to its callbacks.
pub fn start(says: Box<Says>) -> (SocketAddr, Receiver<CbCompoundRes>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (to, replies) = channel();
    let says: Arc<Says> = says.into();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (says, to) = (says.clone(), to.clone());
            std::thread::spawn(move || serve(stream.unwrap(), &says, &to));
        }
    });
    (address, replies)
}

fn serve(mut stream: TcpStream, says: &Arc<Says>, replies: &Sender<CbCompoundRes>) {
    let line = Arc::new(Mutex::new(stream.try_clone().unwrap()));
    let (mut records, mut buffer) = (Records::new(1 << 20), vec![0; 64 << 10]);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        let mut bytes = &buffer[..len];
        while let Some(message) = records.feed(&mut bytes).unwrap() {
            let mut from = Decoder::new(&message);
            if matches!(Kind::of(&message), Ok(Kind::Reply(77))) {
                Reply::take(&mut from).unwrap();
                replies.send(CbCompoundRes::take(&mut from).unwrap()).unwrap();
                continue;
            }
            let xid = CallHeader::take(&mut from).unwrap().xid;
            let args = CompoundArgs::take(&mut from).unwrap();
            let (line, says) = (line.clone(), says.clone());
            std::thread::spawn(move || {
                let mut to = Encoder::default();
                Reply::SUCCESS.put(xid, &mut to);
                execute(args, &|op| says(op, &line).or_else(|| honest(op))).put(&mut to);
                send(&line, &to.into_bytes());
            });
        }
    }
}

pub fn honest(op: &Op) -> Option<OpResult> {
    let file: FileHandle = Opaque(b"file".to_vec());
    match op {
        Op::PutFh(handle) => AT_FILE.set(*handle == file),
        Op::PutRootFh(()) => AT_FILE.set(false),
        Op::Lookup(_) => AT_FILE.set(true),
        _ => {}
    }
    Some(match op {
        Op::CreateSession(_) => match truth(op) {
            OpResult::CreateSession(Ok(granted)) => {
                let flags = session_flags::CONN_BACK_CHAN;
                OpResult::CreateSession(Ok(CreateSessionOk { flags, ..granted }))
            }
            other => other,
        },
        Op::GetFh(()) if AT_FILE.get() => OpResult::GetFh(Ok(file)),
        Op::GetAttr(wanted) if AT_FILE.get() => OpResult::GetAttr(Ok(asked(attrs(2, Ftype::Reg), wanted))),
        Op::Open(_) => OpResult::Open(Ok(Opened {
            stateid: OPEN,
            cinfo: ChangeInfo { atomic: true, before: 5, after: 5 },
            rflags: 0,
            attrset: Bitmap::default(),
            delegation: OpenDelegation::Read(ReadDelegation {
                stateid: DELEGATION,
                recall: false,
                permissions: Ace { kind: 0, flags: 0, mask: 0, who: b"EVERYONE@".to_vec() },
            }),
        })),
        Op::Close(_) => OpResult::Close(Ok(OPEN)),
        Op::DelegReturn(_) => OpResult::DelegReturn(Ok(())),
        _ => return None,
    })
}

pub fn open(client: &Mounted) -> InodeRef {
    let root = client.vfs.root().unwrap();
    let file = client.vfs.lookup(&Cred::root(), &root, b"f").unwrap();
    client.vfs.open(&Cred::root(), &file, OpenMode::READ).unwrap();
    file
}

/// [`D4`] The recall is answered while the OPEN waits, and the delegation is returned as soon as it arrives.
#[test]
fn a_recall_before_its_delegation() {
    let (returned, returns) = channel();
    let (opened, answered) = (AtomicBool::new(false), Mutex::new(None));
    let answered: Arc<Mutex<Option<Receiver<CbCompoundRes>>>> = Arc::new(answered);
    let theirs = answered.clone();
    let (address, replies) = start(Box::new(move |op, line| {
        match op {
            Op::Open(_) if !opened.swap(true, Relaxed) => {
                call(line, 1, recall());
                let replies = theirs.lock().unwrap();
                let answer = replies.as_ref().unwrap().recv_timeout(SOON).unwrap();
                assert_eq!((answer.status, answer.results.0.len()), (NfsStat::Ok, 2));
            }
            Op::DelegReturn(stateid) => {
                returned.send(*stateid).unwrap();
                // Recalls a delegation that no longer exists.
                call(line, 2, recall());
            }
            _ => {}
        }
        None
    }));
    *answered.lock().unwrap() = Some(replies);
    let client = mount(address, &NfsOptions { patience: Patience::default(), ..root_options() }).unwrap();
    let file = open(&client);
    assert_eq!(returns.recv_timeout(SOON), Ok(DELEGATION));
    let answer = answered.lock().unwrap().as_ref().unwrap().recv_timeout(SOON).unwrap();
    // The client may not have handled the reply to DELEGRETURN yet.
    assert!(matches!(answer.status, NfsStat::BadStateid | NfsStat::Ok), "{answer:?}");
    assert_eq!(client.count("server_callbacks"), 2);
    client.vfs.close(&file, OpenMode::READ);
    client.vfs.stop_waiting();
}

/// [`D5`] The server answers no READ until the delegation is returned.
#[test]
fn recalls_are_answered_while_all_slots_wait() {
    const READERS: usize = 6;
    let (reads, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new((Mutex::new(false), Condvar::new())));
    let (theirs, their_gate) = (reads.clone(), gate.clone());
    let (address, replies) = start(Box::new(move |op, line| match op {
        Op::CreateSession(_) => match honest(op) {
            Some(OpResult::CreateSession(Ok(mut granted))) => {
                granted.fore.max_requests = 3;
                Some(OpResult::CreateSession(Ok(granted)))
            }
            other => other,
        },
        Op::Read(_) => {
            // The second READ takes the second of three slots: the last slot is reserved for returns.
            if theirs.fetch_add(1, Relaxed) == 1 {
                call(line, 1, recall());
            }
            let (returned, changed) = &*their_gate;
            let wait = changed.wait_timeout_while(returned.lock().unwrap(), SOON, |returned| !*returned);
            assert!(!wait.unwrap().1.timed_out(), "no DELEGRETURN while all slots wait");
            None
        }
        Op::DelegReturn(_) => {
            *their_gate.0.lock().unwrap() = true;
            their_gate.1.notify_all();
            None
        }
        _ => None,
    }));
    let client = mount(address, &NfsOptions { patience: Patience::default(), ..root_options() }).unwrap();
    let file = open(&client);
    std::thread::scope(|scope| {
        for nth in 0..READERS as u64 {
            let (client, file) = (&client, &file);
            scope.spawn(move || {
                let _ = client.vfs.read(&Cred::root(), file, nth * 8192, &mut [0; 100]);
            });
        }
    });
    assert!(*gate.0.lock().unwrap() && reads.load(Relaxed) >= 2);
    assert_eq!(replies.recv_timeout(SOON).unwrap().status, NfsStat::Ok);
    client.vfs.stop_waiting();
}

/// The client finds and frees a revoked delegation, and does not rely on it.
#[test]
fn a_revoked_delegation_is_found_and_freed() {
    let (revoked, freed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (theirs, theirs_freed) = (revoked.clone(), freed.clone());
    let (address, _replies) = start(Box::new(move |op, _| match op {
        Op::Sequence(_) => match truth(op) {
            OpResult::Sequence(Ok(ok)) if theirs.load(Relaxed) => {
                let status_flags = seq4_status::RECALLABLE_STATE_REVOKED;
                Some(OpResult::Sequence(Ok(SequenceOk { status_flags, ..ok })))
            }
            other => Some(other),
        },
        Op::TestStateId(stateids) => {
            let status = if theirs.load(Relaxed) { NfsStat::DelegRevoked } else { NfsStat::Ok };
            let states = stateids.0.iter().map(|_| status as u32).collect();
            Some(OpResult::TestStateId(Ok(List(states))))
        }
        Op::FreeStateId(stateid) => {
            assert_eq!(*stateid, DELEGATION);
            theirs.store(false, Relaxed);
            theirs_freed.store(true, Relaxed);
            Some(OpResult::FreeStateId(Ok(())))
        }
        _ => None,
    }));
    let client = mount(address, &NfsOptions { patience: Patience::default(), ..root_options() }).unwrap();
    let file = open(&client);
    let before = client.nfs.requests();
    client.vfs.get_attr(&Cred::root(), &file).unwrap();
    assert_eq!(client.nfs.requests(), before, "delegated");
    revoked.store(true, Relaxed);
    client.vfs.stat_fs().unwrap();
    let attributes = client.count("server_getattr");
    client.vfs.get_attr(&Cred::root(), &file).unwrap();
    assert_eq!(client.count("server_getattr"), attributes + 1, "no longer relied on");
    let start = std::time::Instant::now();
    while !freed.load(Relaxed) {
        assert!(start.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(5));
    }
    let attributes = client.count("server_getattr");
    client.vfs.get_attr(&Cred::root(), &file).unwrap();
    assert_eq!(client.count("server_getattr"), attributes + 1);
    client.vfs.stop_waiting();
}
