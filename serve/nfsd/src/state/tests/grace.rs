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
fn without_a_past_there_is_no_grace() {
    assert!(!restarted(&[]).in_grace());
}

/// [RFC8881 8.4.2.1] [RFC8881 8.4.3] [RFC8881 18.51.3]
#[test]
fn in_grace_only_what_was_held_is_given() {
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
    // He is on record from before: nothing has to be written.
    state.reclaim_complete(T, a, false).unwrap();
    assert_eq!(failed(reclaim(&mut state, a, 1, 0, 0)), NfsStat::NoGrace);
    assert!(state.in_grace());
    state.reclaim_complete(T, b, false).unwrap();
    assert!(!state.in_grace());
    assert_eq!(wanted(&mut state), []);
    // The stranger has to say first that there is nothing to reclaim.
    assert_eq!(failed(open(&mut state, stranger, "o", F, 1, 0)), NfsStat::Grace);
    assert!(state.reclaim_complete(T, stranger, false).is_err());
    settle(&mut state);
    state.reclaim_complete(T, stranger, false).unwrap();
    open(&mut state, stranger, "o", F, 1, 0).unwrap();
    assert_eq!(failed(reclaim(&mut state, stranger, 1, 0, 0)), NfsStat::NoGrace);
    state.check_invariants();
}

#[test]
fn who_did_not_come_is_struck_out_first() {
    let mut state = restarted(&[record("a", 1), record("b", 1), record("d", 1)]);
    let a = back(&mut state, "a", 1);
    state.reclaim_complete(T, a, false).unwrap();
    let d = back(&mut state, "d", 1);
    reclaim(&mut state, d, share::READ, 0, 0).unwrap();
    // The old lease counts, and half of it more.
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
    // Who did not finish in time has to be written anew.
    assert!(matches!(state.reclaim_complete(end, d, false), Err(Stop::Wait(_))));
    let put = RecordChange::Put(record("d", 1));
    assert!(matches!(&wanted(&mut state)[..], [Effect::Persist { change, .. }] if *change == put));
    state.check_invariants();
}

#[test]
fn who_restarted_too_wants_nothing() {
    let mut state = restarted(&[record("a", 1)]);
    let a = back(&mut state, "a", 2);
    assert_eq!(failed(reclaim(&mut state, a, 1, 0, 0)), NfsStat::NoGrace);
    state.tick(T);
    // Nobody else is waited for; but the old one is struck out, and before that the new one is written.
    assert!(state.in_grace());
    let effects = settle(&mut state);
    assert!(matches!(&effects[..], [Effect::Persist { change: RecordChange::Remove(_), .. }]));
    assert!(!state.in_grace());
    state.check_invariants();
}

#[test]
fn a_stranger_of_that_name_reclaims_nothing() {
    let mut state = restarted(&[record("a", 1)]);
    let strange = |state: &mut StateManager| state.exchange_id(T, HERE, &who(9), &exchange("a", 1, 0));
    // [RFC8881 18.35.4] As long as he may claim it, what he held counts as held: before he is back, and before he has claimed all.
    assert_eq!(failed(strange(&mut state)), NfsStat::ClidInuse);
    let a = back(&mut state, "a", 1);
    assert_eq!(failed(strange(&mut state)), NfsStat::ClidInuse);
    reclaim(&mut state, a, share::READ, 0, 0).unwrap();
    state.reclaim_complete(T, a, false).unwrap();
    assert!(!state.in_grace());
    state.check_invariants();
    // Who says that it was all, and holds nothing, has no more claim to the name than at any other time.
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
fn a_name_of_old_is_kept_for_who_may_claim_too() {
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

/// Give up what a client has, and his number.
fn unmount(state: &mut StateManager, id: ClientId) {
    for session in state.clients[&id].sessions.clone() {
        state.destroy_session(ConnId(1), &who(1), None, &session).unwrap();
    }
    state.destroy_clientid(&who(1), None, id).unwrap();
}

/// Otherwise he would have nothing to claim after the next crash.
#[test]
fn who_unmounts_in_grace_is_written_down_again() {
    let put = RecordChange::Put(record("a", 1));
    let strike = RecordChange::Remove(vec![record("a", 1)]);
    let changes = |effects: Vec<Effect>| -> Vec<RecordChange> {
        let change = |effect| match effect {
            Effect::Persist { change, .. } => Some(change),
            _ => None,
        };
        effects.into_iter().filter_map(change).collect()
    };
    // He is back when he is struck out, or before.
    for settled in [true, false] {
        let mut state = restarted(&[record("a", 1), record("b", 1)]);
        let a = back(&mut state, "a", 1);
        state.reclaim_complete(T, a, false).unwrap();
        unmount(&mut state, a);
        if settled {
            assert_eq!(changes(settle(&mut state)), std::slice::from_ref(&strike));
        }
        let a = back(&mut state, "a", 1);
        // He gave it up.
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

/// He was one of those who are being struck out.
#[test]
fn who_comes_when_grace_ends_is_written_down_again() {
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

/// A claim that is under way when he says that it was all makes him no one who has not said so, and is struck out.
#[test]
fn who_has_claimed_all_stays_on_record() {
    let mut state = restarted(&[record("a", 1), record("b", 1)]);
    let a = back(&mut state, "a", 1);
    let claim = Claim::Previous(0);
    let request = OpenRequest {
        client: a,
        owner: b"o",
        access: 1,
        deny: 0,
        wants: 0,
        claim,
        running: None,
        turn: None,
    };
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
fn a_delegation_from_before_counts_as_written() {
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
    // He is being asked for it; it ends with a bump although nobody was shown anything.
    assert_eq!(failed(state.begin_getattr(T, Caller::Client(b), F)), NfsStat::Delay);
    state.deleg_return(T, Caller::Client(a), F, &held).unwrap();
    assert!(matches!(&settle(&mut state)[..], [Effect::Bump { .. }]));
    assert!(state.begin_getattr(T, Caller::Client(b), F).is_ok());
    state.check_invariants();
}

/// [RFC8881 8.4.3]
#[test]
fn what_was_revoked_is_not_claimed_again() {
    let mut state = restarted(&[ClientRecord { revoked: true, ..record("a", 1) }, record("b", 1)]);
    let a = back(&mut state, "a", 1);
    let opened = reclaim(&mut state, a, share::BOTH, 0, 2).unwrap();
    assert_eq!(opened.delegation, DelegationGrant::None(WhyNoDelegation::Contention));
    // Now he knows.
    state.reclaim_complete(T, a, false).unwrap();
    let put = RecordChange::Put(record("a", 1));
    assert!(matches!(&wanted(&mut state)[..], [Effect::Persist { change, .. }] if *change == put));
    state.check_invariants();
}

#[test]
fn who_holds_nothing_at_a_stop_is_not_waited_for() {
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
    assert_eq!(struck(&mut state), None, "he has not said that he has claimed all");
}
