use super::*;

const F: FileId = FileId { export: 1, inode: 2, generation: 3 };

fn lock(
    state: &mut StateManager,
    id: ClientId,
    open: StateId,
    owner: &str,
    kind: LockType,
    range: (u64, u64),
) -> Step<StateId> {
    let request = LockRequest {
        locker: Locker::New { open, owner: owner.as_bytes() },
        kind,
        reclaim: false,
        offset: range.0,
        length: range.1,
    };
    state.lock(T, Caller::Client(id), F, &request)
}

/// [RFC8881 18.10.3] [RFC8881 18.10.4]
#[test]
fn locks_exclude_each_other() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let of_a = open(&mut state, a, "o", F, share::BOTH, 0).unwrap().stateid;
    let of_b = open(&mut state, b, "o", F, share::READ, 0).unwrap().stateid;
    lock(&mut state, a, of_a, "l", LockType::Read, (0, 100)).unwrap();
    lock(&mut state, b, of_b, "l", LockType::Read, (50, 100)).unwrap();
    assert_eq!(failed(lock(&mut state, b, of_b, "l", LockType::Write, (500, 1))), NfsStat::Openmode);
    assert_eq!(failed(lock(&mut state, b, of_b, "l", LockType::Read, (500, 0))), NfsStat::Inval);
    let Err(Stop::Denied(denied)) = lock(&mut state, a, of_a, "l", LockType::Write, (0, u64::MAX)) else {
        panic!()
    };
    assert_eq!((denied.offset, denied.length, denied.kind), (50, 100, LockType::Read));
    assert_eq!((denied.owner.clientid, &denied.owner.owner.0[..]), (b, &b"l"[..]));
    lock(&mut state, a, of_a, "l", LockType::Write, (0, 50)).unwrap();
    let other = b"other";
    assert!(state.lockt(T, b, F, other, LockType::Read, (50, 10)).is_ok());
    assert!(matches!(state.lockt(T, b, F, other, LockType::Read, (49, 10)), Err(Stop::Denied(_))));
    assert!(state.lockt(T, a, F, b"l", LockType::Write, (0, 50)).is_ok());
    state.check_invariants();
    // CLOSE releases the locks.
    state.close(T, Caller::Client(a), F, &of_a).unwrap();
    assert!(state.lockt(T, b, F, other, LockType::Write, (0, 50)).is_ok());
    assert_eq!(state.ranges, 1);
    state.check_invariants();
}

/// [RFC8881 20.11]
#[test]
fn waiters_are_notified() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let of_a = open(&mut state, a, "o", F, share::BOTH, 0).unwrap().stateid;
    let of_b = open(&mut state, b, "o", F, share::BOTH, 0).unwrap().stateid;
    let held = lock(&mut state, a, of_a, "l", LockType::Write, (0, 100)).unwrap();
    for kind in [LockType::WriteW, LockType::WriteW, LockType::Write] {
        assert!(matches!(lock(&mut state, b, of_b, "l", kind, (10, 10)), Err(Stop::Denied(_))));
    }
    assert_eq!(state.waiters, 1);
    let held = state.locku(T, Caller::Client(a), F, &held, (0, 10)).unwrap();
    assert_eq!(wanted(&mut state), []);
    state.locku(T, Caller::Client(a), F, &held, (5, 40)).unwrap();
    let call = Callback::NotifyLock { file: F, owner: b"l".to_vec() };
    assert_eq!(wanted(&mut state), [Effect::Callback { client: b, call }]);
    // The lock is not reserved for the waiter.
    lock(&mut state, a, of_a, "l", LockType::Write, (10, 1)).unwrap();
    assert!(matches!(lock(&mut state, b, of_b, "l", LockType::WriteW, (10, 10)), Err(Stop::Denied(_))));
    state.config.limits.waiters = (1, 1);
    assert!(matches!(lock(&mut state, b, of_b, "l2", LockType::WriteW, (10, 10)), Err(Stop::Denied(_))));
    assert_eq!(state.waiters, 1);
    state.check_invariants();
    let late = T + state.config.lease + Millis(1);
    state.tick(late);
    assert_eq!(state.waiters, 0);
    state.check_invariants();
}

#[test]
fn ranges_are_counted() {
    let mut state = state();
    state.config.limits.ranges = (5, 100);
    let (a, _) = client(&mut state, T, "a", 1);
    let open = open(&mut state, a, "o", F, share::BOTH, 0).unwrap().stateid;
    let mut held = lock(&mut state, a, open, "l", LockType::Write, (0, 1000)).unwrap();
    for at in 1..5 {
        held = state.locku(T, Caller::Client(a), F, &held, (at * 10, 1)).unwrap();
    }
    assert_eq!(failed(state.locku(T, Caller::Client(a), F, &held, (500, 1))), NfsStat::LockRange);
    assert_eq!(failed(lock(&mut state, a, open, "l", LockType::Write, (5000, 1))), NfsStat::Delay);
    state.locku(T, Caller::Client(a), F, &held, (0, u64::MAX)).unwrap();
    assert_eq!(state.ranges, 0);
    state.check_invariants();
}
