//! Delegations, if events come in an unusual order. In each sequence a careless client relies on a delegation
//! that does not cover its attributes, misses a recall, or waits forever.

use super::callbacks::*;
use super::hostile::{asked, attrs, root_options, truth};
use super::recovery::READ_WRITE;
use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::Receiver;
use std::sync::{Condvar, Mutex};

use ivers_nfs4::attr::Attrs;
use ivers_nfs4::callback::CbCompoundRes;
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_vfs::OpenMode;

/// The ID of the second session.
const SECOND: SessionId = [10; 16];
/// The delegation that a server grants after a restart.
const RECLAIMED: StateId = StateId { seqid: 1, other: [8; 12] };

/// An event that threads wait for.
#[derive(Default)]
struct Event(Mutex<bool>, Condvar);

impl Event {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn happen(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self, what: &str) {
        let wait = self.1.wait_timeout_while(self.0.lock().unwrap(), SOON, |happened| !*happened);
        assert!(!wait.unwrap().1.timed_out(), "{what}");
    }
}

/// A time limit that no wait reaches if the test succeeds.
fn patient() -> NfsOptions {
    let patience = Patience { request: Some(SOON * 2), ..Patience::default() };
    NfsOptions { patience, ..root_options() }
}

/// Returns how many requests a query of the change attribute sends. The attribute timeout is 0.
fn cost_of_a_query(client: &Mounted, file: &InodeRef) -> u64 {
    let before = client.count("server_getattr");
    client.vfs.get_attr(&Cred::root(), file).unwrap();
    client.count("server_getattr") - before
}

/// Returns the answers of a server that makes a second session after it has `ended` the first one.
/// `confirmed` says whether it keeps the state of the client.
fn second_session(op: &Op, ended: &AtomicBool, confirmed: bool) -> Option<OpResult> {
    match (op, truth(op)) {
        (Op::Sequence(args), _) if args.sessionid == SESSION && ended.load(SeqCst) => {
            Some(OpResult::failure(number::SEQUENCE, NfsStat::Badsession))
        }
        (Op::ExchangeId(_), OpResult::ExchangeId(Ok(ok))) if ended.load(SeqCst) => {
            let (clientid, flags) = if confirmed { (1, exchgid::CONFIRMED_R) } else { (2, 0) };
            Some(OpResult::ExchangeId(Ok(ExchangeIdOk { clientid, flags, ..ok })))
        }
        (Op::CreateSession(_), OpResult::CreateSession(Ok(ok))) if ended.load(SeqCst) => {
            let flags = session_flags::CONN_BACK_CHAN;
            Some(OpResult::CreateSession(Ok(CreateSessionOk { sessionid: SECOND, flags, ..ok })))
        }
        _ => None,
    }
}

/// [`D2`] GETATTR is begun after an OPEN and executed before it. Another client changes the file in between.
#[test]
fn a_delegation_does_not_cover_what_was_executed_before_it() {
    let (opening, known) = (Event::new(), Event::new());
    let (their_opening, their_known) = (opening.clone(), known.clone());
    let change = AtomicU64::new(5);
    let (address, _replies) = start(Box::new(move |op, _| match op {
        Op::Open(_) => {
            their_opening.happen();
            their_known.wait("no GETATTR during OPEN");
            change.store(6, SeqCst);
            None
        }
        Op::GetAttr(wanted) if AT_FILE.get() => {
            let attrs = Attrs { change: Some(change.load(SeqCst)), ..attrs(2, Ftype::Reg) };
            Some(OpResult::GetAttr(Ok(asked(attrs, wanted))))
        }
        _ => None,
    }));
    let client = mount(address, &patient()).unwrap();
    let file = client.vfs.lookup(&Cred::root(), &client.vfs.root().unwrap(), b"f").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| client.vfs.open(&Cred::root(), &file, OpenMode::READ).unwrap());
        opening.wait("no OPEN");
        client.vfs.get_attr(&Cred::root(), &file).unwrap();
        known.happen();
    });
    assert_eq!(client.count("server_delegations"), 1);
    client.vfs.get_attr(&Cred::root(), &file).unwrap();
    assert_eq!(file.newest_of_server(), Some(6), "what is known is older than the delegation");
    assert_eq!(cost_of_a_query(&client, &file), 0);
    client.vfs.stop_waiting();
}

/// [`D3`] The server restarts after it has granted a delegation. The reply arrives when everything has been
/// reclaimed.
#[test]
fn a_delegation_from_before_a_restart_is_not_stored() {
    let (opening, reclaimed, ended) = (Event::new(), Event::new(), Arc::new(AtomicBool::new(false)));
    let (their_opening, their_end) = (opening.clone(), ended.clone());
    let (address, _replies) = start(Box::new(move |op, _| match op {
        Op::Open(_) => {
            their_opening.happen();
            reclaimed.wait("no RECLAIM_COMPLETE");
            None
        }
        Op::ReclaimComplete(_) => {
            if their_end.load(SeqCst) {
                reclaimed.happen();
            }
            None
        }
        op => second_session(op, &their_end, false),
    }));
    let client = mount(address, &patient()).unwrap();
    let file = client.vfs.lookup(&Cred::root(), &client.vfs.root().unwrap(), b"f").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| client.vfs.open(&Cred::root(), &file, OpenMode::READ).unwrap());
        opening.wait("no OPEN");
        ended.store(true, SeqCst);
        client.vfs.stat_fs().unwrap();
    });
    assert_eq!(client.count("server_sessions"), 2);
    for _ in 0..3 {
        assert_eq!(cost_of_a_query(&client, &file), 1, "nothing is delegated");
    }
    client.vfs.stop_waiting();
}

/// The server restarts. The client answers a callback while it makes its second session.
fn restart_with_a_recall(
    client: &Mounted,
    ended: &AtomicBool,
    replies: &Receiver<CbCompoundRes>,
    answered: &Event,
) {
    ended.store(true, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| client.vfs.stat_fs().unwrap());
        assert_eq!(replies.recv_timeout(SOON).unwrap().status, NfsStat::Ok);
        answered.happen();
    });
}

/// [`D4`] The server recalls in a session before the client knows that the session exists, and waits for the
/// answer.
#[test]
fn a_recall_may_come_before_the_reply_that_makes_its_session() {
    let ended = Arc::new(AtomicBool::new(false));
    let (answered, returned) = (Event::new(), Event::new());
    let (their_end, their_answered, their_return) = (ended.clone(), answered.clone(), returned.clone());
    let (address, replies) = start(Box::new(move |op, line| {
        match op {
            Op::CreateSession(_) if their_end.load(SeqCst) => {
                call_in(line, SECOND, 1, recall_of(DELEGATION));
            }
            Op::ReclaimComplete(_) if their_end.load(SeqCst) => their_answered.wait("no answer"),
            Op::DelegReturn(stateid) => {
                assert_eq!(*stateid, DELEGATION);
                their_return.happen();
            }
            _ => {}
        }
        second_session(op, &their_end, true)
    }));
    let client = mount(address, &patient()).unwrap();
    let file = open(&client);
    assert_eq!(cost_of_a_query(&client, &file), 0);
    restart_with_a_recall(&client, &ended, &replies, &answered);
    returned.wait("no DELEGRETURN");
    client.vfs.stop_waiting();
}

/// [`D4`] A server that restarted recalls a delegation before the reply that grants it again.
#[test]
fn a_recall_may_come_before_its_delegation_is_reclaimed() {
    let ended = Arc::new(AtomicBool::new(false));
    let (answered, returned) = (Event::new(), Event::new());
    let (their_end, their_answered, their_return) = (ended.clone(), answered.clone(), returned.clone());
    let reclaims = |args: &OpenArgs| matches!(args.claim, OpenClaim::Previous(1));
    let (address, replies) = start(Box::new(move |op, line| match (op, honest(op)) {
        (Op::Open(args), Some(OpResult::Open(Ok(opened)))) if reclaims(args) => {
            call_in(line, SECOND, 1, recall_of(RECLAIMED));
            their_answered.wait("no answer");
            let OpenDelegation::Read(read) = opened.delegation else { panic!("no delegation") };
            let delegation = OpenDelegation::Read(ReadDelegation { stateid: RECLAIMED, ..read });
            Some(OpResult::Open(Ok(Opened { delegation, ..opened })))
        }
        (Op::DelegReturn(stateid), _) => {
            assert_eq!(*stateid, RECLAIMED);
            their_return.happen();
            None
        }
        _ => second_session(op, &their_end, false),
    }));
    let client = mount(address, &patient()).unwrap();
    let file = open(&client);
    restart_with_a_recall(&client, &ended, &replies, &answered);
    returned.wait("no DELEGRETURN");
    client.vfs.close(&file, OpenMode::READ);
    client.vfs.stop_waiting();
}

/// [`D5`] An OPEN of another thread waits for the return of the delegation of the same file.
#[test]
fn a_return_does_not_wait_for_an_open_of_another_thread() {
    let (returning, writing, returned) = (Event::new(), Event::new(), Event::new());
    let (their_returning, their_return) = (returning.clone(), returned.clone());
    let line: Arc<Mutex<Option<Line>>> = Arc::default();
    let their_line = line.clone();
    let (address, _replies) = start(Box::new(move |op, line| {
        match op {
            Op::Open(args) if matches!(args.claim, OpenClaim::DelegCurFh(_)) => {
                their_returning.happen();
                writing.wait("no OPEN for writing");
            }
            Op::Open(args) if args.share_access & share::WRITE != 0 => {
                writing.happen();
                their_return.wait("the return waits for this OPEN");
            }
            Op::Open(_) => *their_line.lock().unwrap() = Some(line.clone()),
            Op::DelegReturn(_) => their_return.happen(),
            _ => {}
        }
        None
    }));
    let client = mount(address, &patient()).unwrap();
    let file = open(&client);
    client.vfs.close(&file, OpenMode::READ);
    client.vfs.open(&Cred::root(), &file, OpenMode::READ).unwrap();
    assert_eq!(client.count("server_local_opens"), 1);
    call(line.lock().unwrap().as_ref().unwrap(), 1, recall_of(DELEGATION));
    returning.wait("no OPEN before DELEGRETURN");
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    returned.wait("no DELEGRETURN");
    client.vfs.close(&file, READ_WRITE);
    client.vfs.close(&file, OpenMode::READ);
    client.vfs.stop_waiting();
}

/// [`D3`] While recalls cannot arrive, nothing relies on a delegation.
#[test]
fn a_client_that_no_recall_reaches_does_not_count_on_delegations() {
    let (down, binds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (their_down, their_binds) = (down.clone(), binds.clone());
    let (address, _replies) = start(Box::new(move |op, _| match (op, truth(op)) {
        (Op::Sequence(_), OpResult::Sequence(Ok(ok))) if their_down.load(SeqCst) => {
            let status_flags = seq4_status::CB_PATH_DOWN;
            Some(OpResult::Sequence(Ok(SequenceOk { status_flags, ..ok })))
        }
        (Op::BindConnToSession(bind), _) => {
            their_binds.fetch_add(1, SeqCst);
            Some(OpResult::BindConnToSession(Ok(bind.clone())))
        }
        _ => None,
    }));
    let client = mount(address, &patient()).unwrap();
    let file = open(&client);
    assert_eq!(cost_of_a_query(&client, &file), 0);
    down.store(true, SeqCst);
    client.vfs.stat_fs().unwrap();
    assert_eq!([cost_of_a_query(&client, &file), cost_of_a_query(&client, &file)], [1, 1]);
    let start = std::time::Instant::now();
    while binds.load(SeqCst) == 0 {
        assert!(start.elapsed() < SOON, "the connection is not bound again");
        std::thread::sleep(Duration::from_millis(5));
    }
    down.store(false, SeqCst);
    client.vfs.stat_fs().unwrap();
    assert_eq!(cost_of_a_query(&client, &file), 0);
    client.vfs.stop_waiting();
}
