use super::*;

const F: FileId = FileId { export: 1, inode: 2, generation: 3 };

fn record(name: &str, verifier: u8) -> ClientRecord {
    ClientRecord {
        sessions: true,
        owner: name.into(),
        verifier: [verifier; 8],
        principal: who(1),
        revoked: false,
    }
}

fn restarted(records: &[ClientRecord]) -> StateManager {
    let past = PreviousBoot { clients: records.to_vec(), lease: Millis::seconds(60) };
    StateManager::new(T, Config::default(), 2, past, Box::new(Seeded(1)))
}

fn back(state: &mut StateManager, name: &str, verifier: u8) -> ClientId {
    let id = state.exchange_id(T, HERE, &who(1), &exchange(name, verifier, 0)).unwrap();
    state.create_session(T, ConnId(1), 1, &who(1), &create(id.clientid, id.sequenceid)).unwrap();
    id.clientid
}

fn reclaim(state: &mut StateManager, id: ClientId, access: u32, deny: u32, delegation: u32) -> Step<Opened> {
    open_as(state, T, id, "o", F, (access, deny), 0, Claim::Previous(delegation))
}

#[test]
fn without_records_there_is_no_grace_period() {
    assert!(!restarted(&[]).in_grace());
}

/// [RFC8881 8.4.2.1] [RFC8881 8.4.3] [RFC8881 18.51.3]
#[test]
fn in_grace_only_reclaims_succeed() {
    let mut state = restarted(&[record("a", 1), record("b", 1)]);
    let a = back(&mut state, "a", 1);
    let stranger = back(&mut state, "c", 1);
    assert_eq!(failed(open(&mut state, a, "o", F, 1, 0)), NfsStat::Grace);
    assert_eq!(failed(open(&mut state, stranger, "o", F, 1, 0)), NfsStat::Grace);
    assert_eq!(failed(reclaim(&mut state, stranger, 1, 0, 0)), NfsStat::NoGrace);
    for does in [Access::Read, Access::Write, Access::Metadata, Access::Namespace] {
        assert_eq!(failed(state.permit(T, Caller::Client(a), F, &StateId::ANONYMOUS, does)), NfsStat::Grace);
    }
    let opened = reclaim(&mut state, a, share::BOTH, share::WRITE, 0).unwrap();
    let permit = state.permit(T, Caller::Client(a), F, &opened.stateid, Access::Write).unwrap();
    state.end_permit(T, permit);
    let lock = |reclaim| LockRequest {
        locker: Locker::New { open: opened.stateid, owner: b"l" },
        kind: LockType::Write,
        reclaim,
        offset: 0,
        length: 1,
    };
    assert_eq!(failed(state.lock(T, Caller::Client(a), F, &lock(false))), NfsStat::Grace);
    state.lock(T, Caller::Client(a), F, &lock(true)).unwrap();
    let b = back(&mut state, "b", 1);
    assert_eq!(failed(reclaim(&mut state, b, share::WRITE, 0, 0)), NfsStat::ReclaimConflict);
    reclaim(&mut state, b, share::READ, 0, 0).unwrap();
    state.check_invariants();
    // The client is on record already, so nothing is written.
    state.reclaim_complete(T, a, false).unwrap();
    assert_eq!(failed(reclaim(&mut state, a, 1, 0, 0)), NfsStat::NoGrace);
    assert!(state.in_grace());
    state.reclaim_complete(T, b, false).unwrap();
    assert!(!state.in_grace());
    assert_eq!(wanted(&mut state), []);
    // The new client must send RECLAIM_COMPLETE first.
    assert_eq!(failed(open(&mut state, stranger, "o", F, 1, 0)), NfsStat::Grace);
    assert!(state.reclaim_complete(T, stranger, false).is_err());
    settle(&mut state);
    state.reclaim_complete(T, stranger, false).unwrap();
    open(&mut state, stranger, "o", F, 1, 0).unwrap();
    assert_eq!(failed(reclaim(&mut state, stranger, 1, 0, 0)), NfsStat::NoGrace);
    state.check_invariants();
}

#[test]
fn records_of_absent_clients_are_removed_first() {
    let mut state = restarted(&[record("a", 1), record("b", 1), record("d", 1)]);
    let a = back(&mut state, "a", 1);
    state.reclaim_complete(T, a, false).unwrap();
    let d = back(&mut state, "d", 1);
    reclaim(&mut state, d, share::READ, 0, 0).unwrap();
    // The old lease counts, plus one half.
    let end = T + Millis::seconds(90);
    assert_eq!(state.tick(Time(end.0 - 1)), end);
    assert!(wanted(&mut state).is_empty());
    state.tick(end);
    let effects = wanted(&mut state);
    let [Effect::Persist { ticket, change: RecordChange::Remove(struck) }] = &effects[..] else { panic!() };
    assert_eq!(*struck, [record("b", 1), record("d", 1)]);
    assert_eq!(failed(open_at(&mut state, end, a, "o", F, 2, 0)), NfsStat::Grace);
    assert_eq!(failed(reclaim(&mut state, d, share::READ, 0, 0)), NfsStat::NoGrace);
    state.effect_failed(*ticket);
    assert_eq!(failed(open_at(&mut state, end, a, "o", F, 2, 0)), NfsStat::Grace);
    assert_eq!(failed(reclaim(&mut state, d, share::READ, 0, 0)), NfsStat::NoGrace);
    state.tick(end);
    settle(&mut state);
    open_at(&mut state, end, a, "o", F, 2, 0).unwrap();
    // A client that did not finish in time needs a new record.
    assert!(matches!(state.reclaim_complete(end, d, false), Err(Stop::Wait(_))));
    let put = RecordChange::Put(record("d", 1));
    assert!(matches!(&wanted(&mut state)[..], [Effect::Persist { change, .. }] if *change == put));
    state.check_invariants();
}

#[test]
fn a_restarted_client_does_not_reclaim() {
    let mut state = restarted(&[record("a", 1)]);
    let a = back(&mut state, "a", 2);
    assert_eq!(failed(reclaim(&mut state, a, 1, 0, 0)), NfsStat::NoGrace);
    state.tick(T);
    // No other client is expected. The old record is removed, and before that the new one is written.
    assert!(state.in_grace());
    let effects = settle(&mut state);
    assert!(matches!(&effects[..], [Effect::Persist { change: RecordChange::Remove(_), .. }]));
    assert!(!state.in_grace());
    state.check_invariants();
}

#[test]
fn another_principal_of_that_name_reclaims_nothing() {
    let mut state = restarted(&[record("a", 1)]);
    let strange = |state: &mut StateManager| state.exchange_id(T, HERE, &who(9), &exchange("a", 1, 0));
    // [RFC8881 18.35.4] The name stays reserved until the client returns, and until it has reclaimed
    // everything.
    assert_eq!(failed(strange(&mut state)), NfsStat::ClidInuse);
    let a = back(&mut state, "a", 1);
    assert_eq!(failed(strange(&mut state)), NfsStat::ClidInuse);
    reclaim(&mut state, a, share::READ, 0, 0).unwrap();
    state.reclaim_complete(T, a, false).unwrap();
    assert!(!state.in_grace());
    state.check_invariants();
    // After RECLAIM_COMPLETE, a client without state has no more claim to its name than at any other time.
    let mut state = restarted(&[record("a", 1), record("b", 1)]);
    let a = back(&mut state, "a", 1);
    state.reclaim_complete(T, a, false).unwrap();
    assert!(matches!(strange(&mut state), Err(Stop::Wait(_))));
    settle(&mut state);
    let id = strange(&mut state).unwrap();
    state.create_session(T, ConnId(1), 1, &who(9), &create(id.clientid, id.sequenceid)).unwrap();
    assert_eq!(failed(reclaim(&mut state, id.clientid, 1, 0, 0)), NfsStat::NoGrace);
    state.tick(T);
    assert!(state.in_grace() && wanted(&mut state).is_empty());
    state.check_invariants();
}

/// [RFC7530 16.33.5]
#[test]
fn a_v40_name_is_reserved_while_reclaim_is_possible() {
    let mut state = restarted(&[ClientRecord { sessions: false, ..record("a", 1) }]);
    let strange = super::v40::set("a", 1, 1);
    assert_eq!(failed(state.set_client_id(T, HERE, &who(9), &strange)), NfsStat::ClidInuse);
    let confirm = state.set_client_id(T, HERE, &who(1), &strange).unwrap();
    state.set_client_id_confirm(T, &who(1), &confirm).unwrap();
    assert_eq!(failed(state.set_client_id(T, HERE, &who(9), &strange)), NfsStat::ClidInuse);
    let end = T + Millis::seconds(90);
    state.tick(end);
    settle(&mut state);
    state.set_client_id(end, HERE, &who(9), &strange).unwrap();
    state.check_invariants();
}

/// Destroys a client with its session.
fn unmount(state: &mut StateManager, id: ClientId) {
    for session in state.clients[&id].sessions.clone() {
        state.destroy_session(ConnId(1), &who(1), None, &session).unwrap();
    }
    state.destroy_clientid(&who(1), None, id).unwrap();
}

/// Otherwise the client could not reclaim after the next crash.
#[test]
fn a_client_destroyed_in_grace_gets_a_new_record() {
    let put = RecordChange::Put(record("a", 1));
    let strike = RecordChange::Remove(vec![record("a", 1)]);
    let changes = |effects: Vec<Effect>| -> Vec<RecordChange> {
        let change = |effect| match effect {
            Effect::Persist { change, .. } => Some(change),
            _ => None,
        };
        effects.into_iter().filter_map(change).collect()
    };
    // The client returns before or after the removal of its record.
    for settled in [true, false] {
        let mut state = restarted(&[record("a", 1), record("b", 1)]);
        let a = back(&mut state, "a", 1);
        state.reclaim_complete(T, a, false).unwrap();
        unmount(&mut state, a);
        if settled {
            assert_eq!(changes(settle(&mut state)), std::slice::from_ref(&strike));
        }
        let a = back(&mut state, "a", 1);
        // The client was destroyed.
        assert_eq!(failed(reclaim(&mut state, a, 1, 0, 0)), NfsStat::NoGrace);
        assert!(matches!(state.reclaim_complete(T, a, false), Err(Stop::Wait(_))));
        if !settled {
            assert_eq!(changes(settle(&mut state)), std::slice::from_ref(&strike));
            assert!(matches!(state.reclaim_complete(T, a, false), Err(Stop::Wait(_))));
        }
        assert_eq!(changes(settle(&mut state)), std::slice::from_ref(&put));
        state.reclaim_complete(T, a, false).unwrap();
        let b = back(&mut state, "b", 1);
        state.reclaim_complete(T, b, false).unwrap();
        assert!(!state.in_grace() && wanted(&mut state).is_empty());
        open(&mut state, a, "o", F, share::BOTH, share::WRITE).unwrap();
        state.check_invariants();
    }
}

/// The client's record is among those being removed.
#[test]
fn a_client_that_returns_when_grace_ends_gets_a_new_record() {
    let mut state = restarted(&[record("a", 1)]);
    let end = T + Millis::seconds(90);
    state.tick(end);
    assert!(state.in_grace());
    let a = back(&mut state, "a", 1);
    assert!(matches!(state.reclaim_complete(end, a, false), Err(Stop::Wait(_))));
    settle(&mut state);
    assert!(!state.in_grace());
    assert!(matches!(state.reclaim_complete(end, a, false), Err(Stop::Wait(_))));
    let put = RecordChange::Put(record("a", 1));
    assert!(matches!(&settle(&mut state)[..], [Effect::Persist { change, .. }] if *change == put));
    state.reclaim_complete(end, a, false).unwrap();
    state.check_invariants();
}

/// A reclaim in progress during RECLAIM_COMPLETE must not make the client one whose record is removed.
#[test]
fn a_client_that_reclaimed_everything_stays_on_record() {
    let mut state = restarted(&[record("a", 1), record("b", 1)]);
    let a = back(&mut state, "a", 1);
    let claim = Claim::Previous(0);
    let request = OpenRequest { client: a, owner: b"o", access: 1, deny: 0, wants: 0, claim, running: None };
    let plan = state.open_plan(T, &request).unwrap();
    state.reclaim_complete(T, a, false).unwrap();
    state.open_commit(T, plan, F, false).unwrap();
    state.tick(T + Millis::seconds(90));
    let effects = settle(&mut state);
    let [Effect::Persist { change: RecordChange::Remove(struck), .. }] = &effects[..] else { panic!() };
    assert_eq!(*struck, [record("b", 1)]);
    state.check_invariants();
}

#[test]
fn a_reclaimed_delegation_counts_as_modified() {
    let mut state = restarted(&[record("a", 1), record("b", 1)]);
    let a = back(&mut state, "a", 1);
    let b = back(&mut state, "b", 1);
    let DelegationGrant::Write(held) = reclaim(&mut state, a, share::BOTH, 0, 2).unwrap().delegation else {
        panic!()
    };
    assert_eq!(failed(reclaim(&mut state, b, share::READ, 0, 0)), NfsStat::Delay);
    wanted(&mut state);
    for id in [a, b] {
        state.reclaim_complete(T, id, false).unwrap();
    }
    // The holder is asked to return it. It ends with a bump, although nothing was reported.
    assert_eq!(failed(state.begin_getattr(T, Caller::Client(b), F)), NfsStat::Delay);
    state.deleg_return(T, Caller::Client(a), F, &held).unwrap();
    assert!(matches!(&settle(&mut state)[..], [Effect::Bump { .. }]));
    assert!(state.begin_getattr(T, Caller::Client(b), F).is_ok());
    state.check_invariants();
}

/// [RFC8881 8.4.3]
#[test]
fn revoked_delegations_are_not_reclaimed() {
    let mut state = restarted(&[ClientRecord { revoked: true, ..record("a", 1) }, record("b", 1)]);
    let a = back(&mut state, "a", 1);
    let opened = reclaim(&mut state, a, share::BOTH, 0, 2).unwrap();
    assert_eq!(opened.delegation, DelegationGrant::None(WhyNoDelegation::Contention));
    // The client acknowledges the revocation.
    state.reclaim_complete(T, a, false).unwrap();
    let put = RecordChange::Put(record("a", 1));
    assert!(matches!(&wanted(&mut state)[..], [Effect::Persist { change, .. }] if *change == put));
    state.check_invariants();
}

#[test]
fn clients_without_state_at_a_stop_are_not_waited_for() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    client(&mut state, T, "b", 2);
    let opened = open(&mut state, a, "o", F, share::READ, 0).unwrap();
    state.remove_idle_records();
    let struck = |state: &mut StateManager| {
        settle(state).into_iter().find_map(|effect| match effect {
            Effect::Persist { change: RecordChange::Remove(records), .. } => Some(records),
            _ => None,
        })
    };
    let names = |records: Vec<ClientRecord>| records.into_iter().map(|it| it.owner).collect::<Vec<_>>();
    assert_eq!(struck(&mut state).map(names), Some(vec![b"b".to_vec()]));
    state.remove_idle_records();
    assert_eq!(struck(&mut state), None, "once");
    state.close(T, Caller::Client(a), F, &opened.stateid).unwrap();
    state.remove_idle_records();
    assert_eq!(struck(&mut state).map(names), Some(vec![b"a".to_vec()]));
    state.check_invariants();
    let mut state = restarted(&[record("a", 1)]);
    back(&mut state, "a", 1);
    state.remove_idle_records();
    assert_eq!(struck(&mut state), None, "the client has not sent RECLAIM_COMPLETE");
}
