use super::super::slot::SequenceOutcome;
use super::*;

const F: FileId = FileId { export: 1, inode: 2, generation: 3 };

/// [RFC8881 9.7]
#[test]
fn share_modes_are_enforced() {
    for access in 1..4 {
        for deny in 0..4 {
            for (other, its_deny) in (1..4).flat_map(|access| (0..4).map(move |deny| (access, deny))) {
                let mut state = state();
                let (a, _) = client(&mut state, T, "a", 1);
                let (b, _) = client(&mut state, T, "b", 2);
                open(&mut state, a, "o", F, access, deny).unwrap();
                let second = open(&mut state, b, "o", F, other, its_deny);
                let free = access & its_deny == 0 && other & deny == 0;
                assert_eq!(second.is_ok(), free);
                if !free {
                    assert_eq!(failed(second), NfsStat::ShareDenied);
                }
                state.check_invariants();
            }
        }
    }
}

/// [RFC7530 9.9] [RFC8881 9.7]
#[test]
fn an_owner_denies_itself_too() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let first = open(&mut state, a, "o", F, share::BOTH, share::WRITE).unwrap();
    assert_eq!(failed(open(&mut state, a, "o", F, share::WRITE, 0)), NfsStat::ShareDenied);
    assert_eq!(failed(open(&mut state, a, "o", F, share::READ, share::READ)), NfsStat::ShareDenied);
    let again = open(&mut state, a, "o", F, share::READ, 0).unwrap();
    assert_eq!((first.stateid.other, again.stateid.seqid), (again.stateid.other, 2));
}

#[test]
fn openers_are_remembered() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let opened = open(&mut state, a, "o", F, share::BOTH, 0).unwrap().stateid;
    state.opened_as(&opened, &who(1));
    let me = Caller::Client(a);
    let locker = Locker::New { open: opened, owner: b"l" };
    let request = LockRequest { locker, kind: LockType::Read, reclaim: false, offset: 0, length: 1 };
    let lock = state.lock(T, me, F, &request).unwrap();
    for stateid in [opened, lock] {
        assert!(state.is_opener(me, &stateid, &who(1)));
        assert!(!state.is_opener(me, &stateid, &who(2)));
        assert!(!state.is_opener(Caller::Client(b), &stateid, &who(1)));
    }
    assert!(!state.is_opener(me, &StateId::ANONYMOUS, &who(1)));
}

/// [RFC8881 18.18.3] [RFC8881 18.2.4] [RFC8881 8.2.2]
#[test]
fn opens_are_upgraded_and_downgraded() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let one = open(&mut state, a, "o", F, 1, 0).unwrap().stateid;
    let two = open(&mut state, a, "o", F, 2, 2).unwrap().stateid;
    assert_eq!((one.other, one.seqid, two.seqid), (two.other, 1, 2));
    let me = Caller::Client(a);
    let down = |state: &mut StateManager, stateid: &StateId, access, deny| {
        state.open_downgrade(T, me, F, stateid, access, deny)
    };
    assert_eq!(failed(down(&mut state, &one, 1, 0)), NfsStat::OldStateid);
    assert_eq!(failed(down(&mut state, &two, 1, 1)), NfsStat::Inval);
    assert_eq!(failed(down(&mut state, &two, 0, 0)), NfsStat::Inval);
    assert_eq!(failed(down(&mut state, &StateId { seqid: 9, ..two }, 1, 0)), NfsStat::BadStateid);
    let three = down(&mut state, &StateId { seqid: 0, ..two }, 1, 0).unwrap();
    assert_eq!(three.seqid, 3);
    assert_eq!(failed(down(&mut state, &three, 3, 0)), NfsStat::Inval);
    let (b, _) = client(&mut state, T, "b", 2);
    assert_eq!(failed(state.close(T, Caller::Client(b), F, &three)), NfsStat::BadStateid);
    let elsewhere = FileId { inode: 9, ..F };
    assert_eq!(failed(state.close(T, me, elsewhere, &three)), NfsStat::BadStateid);
    assert_eq!(state.close(T, me, F, &three), Ok(StateId::INVALID));
    assert_eq!(failed(state.close(T, me, F, &three)), NfsStat::BadStateid);
    assert!(state.files.is_empty() && state.owners.is_empty());
    state.check_invariants();
}

#[test]
fn plans_conflict() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let plan = |state: &mut StateManager, id, access, deny| {
        let request = OpenRequest {
            client: id,
            owner: b"o",
            access,
            deny,
            wants: share::WANT_NO_DELEG,
            claim: Claim::Null,
            running: None,
        };
        state.open_plan(T, &request).unwrap()
    };
    let one = plan(&mut state, a, share::READ, share::WRITE);
    state.open_claim(T, &one, F, false).unwrap();
    let two = plan(&mut state, b, share::WRITE, 0);
    assert_eq!(failed(state.open_claim(T, &two, F, false)), NfsStat::Delay);
    assert_eq!(
        failed(state.permit(T, Caller::Client(b), F, &StateId::ANONYMOUS, Access::Write)),
        NfsStat::Delay
    );
    state.open_abort(T, one);
    state.open_claim(T, &two, F, false).unwrap();
    let opened = state.open_commit(T, two, F, false).unwrap();
    // A truncation is a write, whatever the access.
    let three = plan(&mut state, a, share::READ, share::WRITE);
    assert_eq!(failed(state.open_claim(T, &three, F, false)), NfsStat::ShareDenied);
    state.open_abort(T, three);
    state.close(T, Caller::Client(b), F, &opened.stateid).unwrap();
    let four = plan(&mut state, a, share::READ, 0);
    state.open_claim(T, &four, F, true).unwrap();
    let five = plan(&mut state, b, share::READ, share::WRITE);
    assert_eq!(failed(state.open_claim(T, &five, F, false)), NfsStat::Delay);
    // The name refers to another file meanwhile.
    let elsewhere = FileId { inode: 9, ..F };
    state.open_claim(T, &four, elsewhere, true).unwrap();
    state.open_claim(T, &five, F, false).unwrap();
    state.check_invariants();
    state.open_abort(T, four);
    // The commit claims the file and fails: the plan still exists.
    let six = plan(&mut state, a, share::WRITE, 0);
    let Err((six, Stop::Fail(NfsStat::Delay))) = state.open_commit(T, six, F, false) else { panic!() };
    state.open_abort(T, six);
    state.open_abort(T, five);
    assert!(state.files.is_empty() && state.in_flight.is_empty());
    state.check_invariants();
}

/// [RFC8881 18.32.3]
#[test]
fn permits_check_the_stateid() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let me = Caller::Client(a);
    let read = open(&mut state, a, "r", F, share::READ, 0).unwrap().stateid;
    let write = open(&mut state, a, "w", F, share::WRITE, 0).unwrap().stateid;
    assert_eq!(failed(state.permit(T, me, F, &read, Access::Write)), NfsStat::Openmode);
    assert_eq!(failed(state.permit(T, me, F, &read, Access::Resize)), NfsStat::Openmode);
    let permit = state.permit(T, me, F, &write, Access::Read).unwrap();
    state.end_permit(T, permit);
    assert_eq!(failed(state.permit(T, Caller::Client(b), F, &write, Access::Write)), NfsStat::BadStateid);
    state.close(T, me, F, &read).unwrap();
    let denying = open(&mut state, b, "d", F, share::READ, share::READ).unwrap().stateid;
    assert_eq!(failed(state.permit(T, me, F, &write, Access::Read)), NfsStat::Locked);
    assert_eq!(failed(state.permit(T, me, F, &StateId::ANONYMOUS, Access::Read)), NfsStat::Locked);
    let permit = state.permit(T, me, F, &StateId::READ_BYPASS, Access::Read).unwrap();
    state.end_permit(T, permit);
    // A permit for reading conflicts with an open that denies reading.
    state.close(T, Caller::Client(b), F, &denying).unwrap();
    let permit = state.permit(T, me, F, &StateId::ANONYMOUS, Access::Read).unwrap();
    assert_eq!(failed(open(&mut state, b, "d", F, share::READ, share::READ)), NfsStat::Delay);
    state.end_permit(T, permit);
    open(&mut state, b, "d", F, share::READ, share::READ).unwrap();
    state.check_invariants();
}

/// [RFC8881 18.38.3]
#[test]
fn stateids_are_tested_and_freed() {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let opened = open(&mut state, a, "o", F, share::BOTH, 0).unwrap().stateid;
    let old = StateId { seqid: 7, ..opened };
    let none = StateId { seqid: 1, other: [3; 12] };
    assert_eq!(
        state.test_stateid(a, &[opened, old, none, StateId::ANONYMOUS]),
        [NfsStat::Ok, NfsStat::BadStateid, NfsStat::BadStateid, NfsStat::BadStateid]
    );
    assert_eq!(failed(state.free_stateid(a, &opened)), NfsStat::LocksHeld);
    let request = LockRequest {
        locker: Locker::New { open: opened, owner: b"l" },
        kind: LockType::Write,
        reclaim: false,
        offset: 0,
        length: 10,
    };
    let lock = state.lock(T, Caller::Client(a), F, &request).unwrap();
    assert_eq!(failed(state.free_stateid(a, &lock)), NfsStat::LocksHeld);
    let lock = state.locku(T, Caller::Client(a), F, &lock, (0, u64::MAX)).unwrap();
    state.free_stateid(a, &lock).unwrap();
    assert_eq!(failed(state.free_stateid(a, &lock)), NfsStat::BadStateid);
    state.check_invariants();
}

#[test]
fn an_expired_client_is_tolerated_until_a_conflict() {
    let mut state = state();
    let (a, session) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    open(&mut state, a, "o", F, share::READ, share::WRITE).unwrap();
    let late = T + state.config.lease + Millis(1);
    assert!(state.tick(late) > late && state.clients.contains_key(&a));
    let elsewhere = FileId { inode: 9, ..F };
    open_at(&mut state, late, b, "o", elsewhere, share::WRITE, 0).unwrap();
    // The conflicting open waits until the old client's record is durably removed.
    let Err(Stop::Wait(ticket)) = open_at(&mut state, late, b, "o", F, share::WRITE, 0) else { panic!() };
    assert_eq!(open_at(&mut state, late, b, "o", F, share::WRITE, 0), Err(Stop::Wait(ticket)));
    let args = sequence_args(session, 0, 1);
    assert_eq!(failed(state.sequence(late, ConnId(1), &request(1), &args)), NfsStat::Delay);
    state.check_invariants();
    // If the removal fails, the client stays.
    state.effect_failed(ticket);
    wanted(&mut state);
    let SequenceOutcome::New(running, _) = state.sequence(late, ConnId(1), &request(1), &args).unwrap()
    else {
        panic!()
    };
    assert_eq!(failed(open_at(&mut state, late, b, "o", F, share::WRITE, 0)), NfsStat::ShareDenied);
    state.finish(late, running, b"");
    let later = late + state.config.lease + Millis(1);
    assert!(matches!(open_at(&mut state, later, b, "o", F, share::WRITE, 0), Err(Stop::Wait(_))));
    settle(&mut state);
    open_at(&mut state, later, b, "o", F, share::WRITE, 0).unwrap();
    assert_eq!(failed(state.sequence(later, ConnId(1), &request(1), &args)), NfsStat::Badsession);
    state.check_invariants();
}

#[test]
fn a_busy_client_does_not_expire() {
    let mut state = state();
    let (a, session) = client(&mut state, T, "a", 1);
    let stateid = open(&mut state, a, "o", F, share::BOTH, share::BOTH).unwrap().stateid;
    let late = T + state.config.courtesy + Millis(1);
    let permit = state.permit(T, Caller::Client(a), F, &stateid, Access::Write).unwrap();
    state.tick(late);
    settle(&mut state);
    let (b, _) = client(&mut state, late, "b", 2);
    assert_eq!(failed(open_at(&mut state, late, b, "o", F, share::READ, 0)), NfsStat::ShareDenied);
    state.end_permit(late, permit);
    let SequenceOutcome::New(running, _) =
        state.sequence(late, ConnId(1), &request(1), &sequence_args(session, 0, 1)).unwrap()
    else {
        panic!()
    };
    let very_late = late + state.config.courtesy + Millis(1);
    state.tick(very_late);
    let (b, _) = client(&mut state, very_late, "c", 3);
    assert_eq!(failed(open_at(&mut state, very_late, b, "o", F, share::READ, 0)), NfsStat::ShareDenied);
    let SessionRequest { .. } = &running;
    state.finish(very_late, running, b"");
    state.check_invariants();
}

#[test]
fn limits_are_enforced() {
    let mut state = state();
    state.config.limits.stateids = (3, 5);
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let mut got = [0, 0];
    for inode in 0..9 {
        for (at, id) in [a, b].into_iter().enumerate() {
            match open(&mut state, id, "o", FileId { inode, ..F }, 1, 0) {
                Ok(_) => got[at] += 1,
                Err(stop) => assert_eq!(stop, Stop::Fail(NfsStat::Delay)),
            }
        }
    }
    assert_eq!(got, [3, 2]);
    state.check_invariants();
}
