use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::ops::v42::OffloadStatusOk;
use ivers_nfs4::types::StateId;

use super::*;

const FROM: FileId = FileId { export: 1, inode: 2, generation: 3 };
const TO: FileId = FileId { export: 1, inode: 4, generation: 3 };

/// A client with two open files and a running copy between them.
struct Begun {
    state: StateManager,
    a: ClientId,
    session: SessionId,
    wanted: CopyRequest,
    copy: StateId,
}

fn begin(config: Config) -> Begun {
    let mut state = StateManager::new(Time(0), config, 1, PreviousBoot::default(), Box::new(Seeded(7)));
    let (a, session) = client(&mut state, T, "a", 1);
    let source = open(&mut state, a, "o", FROM, share::READ, 0).unwrap().stateid;
    let target = open(&mut state, a, "o", TO, share::BOTH, 0).unwrap().stateid;
    let wanted = CopyRequest { source: (FROM, source), target: (TO, target), verifier: [9; 8] };
    let copy = state.copy_begin(T, a, None, &wanted).unwrap().unwrap();
    settle(&mut state);
    Begun { state, a, session, wanted, copy }
}

fn slice(state: &mut StateManager, now: Time, copy: &StateId, bytes: u64, end: Option<NfsStat>) {
    let (read, write) = state.copy_slice(now, copy).unwrap();
    state.check_invariants();
    state.end_permit(now, read);
    state.end_permit(now, write);
    state.copy_progress(now, copy, bytes, end);
    state.check_invariants();
}

/// Returns the results that were sent to the client.
fn told(state: &mut StateManager) -> Vec<OffloadInfo> {
    let ends = |effect: Effect| match effect {
        Effect::Callback { call: Callback::Offload { info, file, .. }, .. } => {
            assert_eq!(file, TO);
            Some(info)
        }
        _ => None,
    };
    state.take_effects().into_iter().filter_map(ends).collect()
}

/// [RFC7862 15.9.3] [RFC7862 16.1.3] [RFC7862 4.8]
#[test]
fn a_copy_reports_progress_and_result() {
    let Begun { mut state, a, copy, .. } = begin(Config::default());
    assert_eq!(state.counts().copies, 1);
    let status = |state: &StateManager| state.copy_status(a, TO, &copy).unwrap();
    slice(&mut state, T, &copy, 10, None);
    assert_eq!(status(&state), OffloadStatusOk { count: 10, complete: List(vec![]) });
    slice(&mut state, T, &copy, 5, Some(NfsStat::Ok));
    assert_eq!(status(&state), OffloadStatusOk { count: 15, complete: List(vec![NfsStat::Ok]) });
    let [OffloadInfo::Ok(response)] = &told(&mut state)[..] else { panic!() };
    assert_eq!((response.count, response.verifier), (15, [9; 8]));
    assert_eq!(failed(state.copy_slice(T, &copy)), NfsStat::BadStateid, "there is no more to do");
    // The result is kept until the client acknowledges it: by seqid, file and client.
    assert_eq!(failed(state.copy_status(a, TO, &StateId { seqid: 0, ..copy })), NfsStat::BadStateid);
    assert_eq!(failed(state.copy_status(a, FROM, &copy)), NfsStat::BadStateid);
    let (b, _) = client(&mut state, T, "b", 2);
    assert_eq!(failed(state.copy_status(b, TO, &copy)), NfsStat::BadStateid);
    assert_eq!(failed(state.copy_cancel(b, TO, &copy)), NfsStat::BadStateid);
    assert_eq!(state.test_stateid(a, &[copy]), [NfsStat::Ok]);
    assert_eq!(failed(state.destroy_clientid(&who(1), None, a)), NfsStat::ClientidBusy);
    state.copy_acknowledged(&copy);
    assert_eq!(failed(state.copy_status(a, TO, &copy)), NfsStat::BadStateid);
    state.check_invariants();
}

/// The stateid of a copy is not valid for reading, closing or locking.
#[test]
fn a_copy_is_not_an_open() {
    let Begun { mut state, a, copy, .. } = begin(Config::default());
    let me = Caller::Client(a);
    assert_eq!(failed(state.permit(T, me, TO, &copy, Access::Write)), NfsStat::BadStateid);
    assert_eq!(failed(state.close(T, me, TO, &copy)), NfsStat::BadStateid);
    assert_eq!(failed(state.deleg_return(T, me, TO, &copy)), NfsStat::BadStateid);
    assert_eq!(failed(state.free_stateid(a, &copy)), NfsStat::LocksHeld);
    let request = LockRequest {
        locker: Locker::Existing(copy),
        kind: ivers_nfs4::types::LockType::Read,
        reclaim: false,
        offset: 0,
        length: 1,
    };
    assert_eq!(failed(state.lock(T, me, TO, &request)), NfsStat::BadStateid);
    state.check_invariants();
}

/// [RFC7862 15.8.3]
#[test]
fn a_cancelled_copy_has_stopped_before_the_reply() {
    let Begun { mut state, a, copy, wanted, .. } = begin(Config::default());
    state.copy_cancel(a, TO, &copy).unwrap();
    assert_eq!(failed(state.copy_slice(T, &copy)), NfsStat::BadStateid);
    let copy = state.copy_begin(T, a, None, &wanted).unwrap().unwrap();
    let (read, write) = state.copy_slice(T, &copy).unwrap();
    let Err(Stop::Wait(ticket)) = state.copy_cancel(a, TO, &copy) else { panic!("a slice is under way") };
    assert_eq!(state.copy_cancel(a, TO, &copy), Err(Stop::Wait(ticket)));
    assert!(state.is_pending(ticket));
    state.end_permit(T, read);
    state.end_permit(T, write);
    state.copy_progress(T, &copy, 7, None);
    assert_eq!(wanted_of(&mut state), [Effect::Wake { ticket }], "no result is sent");
    assert_eq!(failed(state.copy_slice(T, &copy)), NfsStat::BadStateid);
    state.copy_cancel(a, TO, &copy).unwrap();
    assert_eq!(failed(state.copy_cancel(a, TO, &copy)), NfsStat::BadStateid);
    state.check_invariants();
}

fn wanted_of(state: &mut StateManager) -> Vec<Effect> {
    super::wanted(state)
}

/// [RFC7862 4.8] The copies of a client end with its lease, and do not renew it.
#[test]
fn copies_go_with_the_lease() {
    let Begun { mut state, a, copy, .. } = begin(Config::default());
    let lease = Config::default().lease;
    let late = T + Millis(lease.0 - 10);
    slice(&mut state, late, &copy, 10, None);
    assert!(state.lease_expired(T + Millis(lease.0 + 1), a), "a slice renews nothing");
    assert_eq!(failed(state.copy_slice(T + Millis(lease.0 + 1), &copy)), NfsStat::BadStateid);
    assert_eq!(state.counts().copies, 0);
    assert!(told(&mut state).is_empty());
    state.check_invariants();

    // The client expires during a copy, and loses everything.
    let Begun { mut state, a, session, wanted, copy } = begin(Config::default());
    let (read, write) = state.copy_slice(T, &copy).unwrap();
    assert_eq!(state.evict(a), Err(Stop::Fail(NfsStat::Delay)), "a slice is running");
    state.end_permit(T, read);
    state.end_permit(T, write);
    state.destroy_session(ConnId(1), &who(1), None, &session).unwrap();
    assert_eq!(state.copy_begin(T, a, None, &wanted), Ok(None), "callbacks are impossible");
    state.remove_client(a);
    state.copy_progress(T, &copy, 1, Some(NfsStat::Ok));
    assert!(told(&mut state).is_empty() && state.counts().copies == 0);
    state.check_invariants();
}

#[test]
fn a_copy_ends_with_its_open() {
    let Begun { mut state, a, copy, wanted, .. } = begin(Config::default());
    slice(&mut state, T, &copy, 10, None);
    // Another seqid of the open is valid, too.
    open(&mut state, a, "o", FROM, share::BOTH, 0).unwrap();
    slice(&mut state, T, &copy, 10, None);
    let newest = StateId { seqid: 0, ..wanted.source.1 };
    state.close(T, Caller::Client(a), FROM, &newest).unwrap();
    let status = failed(state.copy_slice(T, &copy));
    assert_eq!(status, NfsStat::BadStateid);
    state.finish_copy(T, &copy, status);
    assert_eq!(told(&mut state), [OffloadInfo::Failed(NfsStat::BadStateid, 20)]);
    state.finish_copy(T, &copy, NfsStat::Io);
    assert!(told(&mut state).is_empty(), "it ends once");
    state.check_invariants();
}

/// A copy waits for conflicting delegations at each slice.
#[test]
fn a_copy_waits_for_delegations() {
    let Begun { mut state, copy, .. } = begin(Config::default());
    let (b, _) = client(&mut state, T, "b", 2);
    let read = open_as(&mut state, T, b, "o", FROM, (share::READ, 0), share::WANT_READ_DELEG, Claim::Null);
    let DelegationGrant::Read(_) = read.unwrap().delegation else { panic!() };
    slice(&mut state, T, &copy, 10, None);
    assert!(settle(&mut state).is_empty(), "reading does not conflict");
    let permit = state.permit(T, Caller::Client(b), TO, &StateId::ANONYMOUS, Access::Read).unwrap();
    slice(&mut state, T, &copy, 10, None);
    state.end_permit(T, permit);
    state.check_invariants();
}

#[test]
fn results_are_sent_again_for_a_while() {
    let Begun { mut state, a, session, copy, .. } = begin(Config::default());
    slice(&mut state, T, &copy, 10, Some(NfsStat::Nospc));
    assert_eq!(told(&mut state), [OffloadInfo::Failed(NfsStat::Nospc, 10)]);
    let bind = ivers_nfs4::ops::v41::BindConn { sessionid: session, direction: 3, rdma: false };
    state.bind_conn_to_session(T, ConnId(5), &who(1), &bind).unwrap();
    assert_eq!(told(&mut state).len(), 1, "over the new connection");
    state.tick(T + Millis::seconds(100));
    assert!(state.copy_status(a, TO, &copy).is_ok());
    state.tick(T + Millis::seconds(200));
    assert_eq!(failed(state.copy_status(a, TO, &copy)), NfsStat::BadStateid);
    state.check_invariants();
}

#[test]
fn copies_are_limited() {
    let limits = Limits { copies: (2, 3), ..Limits::default() };
    let Begun { mut state, a, wanted, .. } = begin(Config { limits, ..Config::default() });
    assert!(state.copy_begin(T, a, None, &wanted).unwrap().is_some());
    assert_eq!(state.copy_begin(T, a, None, &wanted), Ok(None));
    let (b, _) = client(&mut state, T, "b", 2);
    let mine =
        |state: &mut StateManager, file| (file, open(state, b, "o", file, share::BOTH, 0).unwrap().stateid);
    let his = CopyRequest { source: mine(&mut state, FROM), target: mine(&mut state, TO), ..wanted };
    let special = CopyRequest { source: (FROM, StateId::ANONYMOUS), ..his };
    assert_eq!(state.copy_begin(T, b, None, &special), Ok(None));
    assert!(state.copy_begin(T, b, None, &his).unwrap().is_some());
    assert_eq!(state.copy_begin(T, b, None, &his), Ok(None), "in all");
    state.check_invariants();
}
