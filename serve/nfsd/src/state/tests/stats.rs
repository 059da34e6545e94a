use super::*;

const F: FileId = FileId { export: 1, inode: 2, generation: 3 };

#[test]
fn everything_is_counted_and_logged() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    assert_eq!((state.name_of(a), state.name_of(9)), (Some(&b"a"[..]), None));
    let opened = open_as(&mut state, T, a, "o", F, (share::BOTH, 0), 0, Claim::Null).unwrap();
    let DelegationGrant::Write(_) = opened.delegation else { panic!("{opened:?}") };
    let locker = Locker::New { open: opened.stateid, owner: b"l" };
    let request = LockRequest { locker, kind: LockType::Write, reclaim: false, offset: 0, length: 7 };
    state.lock(T, Caller::Client(a), F, &request).unwrap();
    let counts = StateCounts {
        clients: 2,
        sessions: 2,
        opens: 1,
        lock_owners: 1,
        locks: 1,
        delegations_write: 1,
        ..StateCounts::default()
    };
    assert_eq!(state.counts(), counts);
    assert_eq!(failed(open(&mut state, b, "o", F, share::READ, 0)), NfsStat::Delay);
    assert_eq!(state.counts(), StateCounts { recalls_pending: 1, ..counts });
    assert_eq!(state.take_log_events(), [LogEvent::Recalled(a, F)]);
    // The holder does not return it.
    settle(&mut state);
    let late = T + state.config.lease.times(2);
    assert!(matches!(open_at(&mut state, late, b, "o", F, share::READ, 0), Err(Stop::Wait(_))));
    settle(&mut state);
    open_at(&mut state, late, b, "o", F, share::READ, 0).unwrap();
    assert_eq!(state.take_log_events(), [LogEvent::Evicted(a)]);
    assert_eq!(state.counts(), StateCounts { clients: 1, sessions: 1, opens: 1, ..StateCounts::default() });
    let events = EventCounts { clients_confirmed: 2, clients_evicted: 1, recalls: 1, revocations: 0 };
    assert_eq!(state.events(), events);
}

#[test]
fn log_events_are_bounded() {
    let mut state = state();
    for _ in 0..1000 {
        state.note(LogEvent::Evicted(1));
    }
    assert_eq!((state.take_log_events().len(), state.events().clients_evicted), (256, 1000));
}
