use ivers_nfs4::ops::v40::{CallbackClient, ConfirmArgs, SetClientIdArgs};
use ivers_nfs4::types::NetAddr;

use super::*;

const F: FileId = FileId { export: 1, inode: 2, generation: 3 };

pub(super) fn set(name: &str, verifier: u8, ident: u32) -> SetClientIdArgs {
    SetClientIdArgs {
        client: ClientOwner { verifier: [verifier; 8], id: Opaque(name.into()) },
        callback: CallbackClient {
            program: ident,
            location: NetAddr { netid: b"tcp".to_vec(), addr: b"127.0.0.1.8.1".to_vec() },
        },
        callback_ident: ident,
    }
}

fn old_client(state: &mut StateManager, name: &str) -> ClientId {
    let confirm = state.set_client_id(T, HERE, &who(1), &set(name, 1, 1)).unwrap();
    state.set_client_id_confirm(T, &who(1), &confirm).unwrap();
    confirm.clientid
}

fn reply(text: &str) -> CachedReply {
    CachedReply { bytes: text.into(), file: Some(F) }
}

/// An OPEN with its OPEN_CONFIRM, if required.
fn open40(state: &mut StateManager, id: ClientId, owner: &str, seqid: u32, access: u32) -> Step<StateId> {
    let owner_request = state.begin_owner_request(T, &SeqidOwner::Open(id, owner.as_bytes()), seqid)?;
    let opened = match open(state, id, owner, F, access, 0) {
        Err(Stop::Wait(_)) => {
            settle(state);
            open(state, id, owner, F, access, 0)
        }
        other => other,
    };
    let status = opened.as_ref().err().map_or(NfsStat::Ok, |stop| match stop {
        Stop::Fail(status) => *status,
        other => panic!("{other:?}"),
    });
    state.end_owner_request(T, owner_request, status, reply("open"));
    let opened = opened?;
    if !opened.confirm {
        return Ok(opened.stateid);
    }
    let owner_request = state.begin_owner_request(T, &SeqidOwner::Stateid(&opened.stateid), seqid + 1)?;
    let stateid = state.open_confirm(F, &opened.stateid)?;
    state.end_owner_request(T, owner_request, NfsStat::Ok, reply("confirm"));
    Ok(stateid)
}

/// [RFC7530 16.33.5] [RFC7530 16.34.5] [RFC7530 9.1.1]
#[test]
fn setclientid_handles_all_cases() {
    let mut state = state();
    // Case 5: an unknown name. Case 4: an unconfirmed client.
    let first = state.set_client_id(T, HERE, &who(1), &set("a", 1, 1)).unwrap();
    let second = state.set_client_id(T, HERE, &who(1), &set("a", 1, 1)).unwrap();
    assert_ne!(first.clientid, second.clientid);
    assert_eq!(failed(state.set_client_id_confirm(T, &who(1), &first)), NfsStat::StaleClientid);
    let wrong = ConfirmArgs { confirm: [0; 8], ..second.clone() };
    assert_eq!(failed(state.set_client_id_confirm(T, &who(1), &wrong)), NfsStat::StaleClientid);
    assert_eq!(failed(state.set_client_id_confirm(T, &who(2), &second)), NfsStat::ClidInuse);
    state.set_client_id_confirm(T, &who(1), &second).unwrap();
    state.set_client_id_confirm(T, &who(1), &second).unwrap();
    // Case 1: a new callback address.
    let third = state.set_client_id(T, HERE, &who(1), &set("a", 1, 7)).unwrap();
    assert_eq!(third.clientid, second.clientid);
    assert_eq!(state.callback_address(third.clientid).unwrap().1, 1);
    state.set_client_id_confirm(T, &who(1), &third).unwrap();
    state.set_client_id_confirm(T, &who(1), &third).unwrap();
    assert_eq!(state.callback_address(third.clientid).unwrap().1, 7);
    // Cases 2 and 3: a restart, confirmed the second time.
    let id = third.clientid;
    open40(&mut state, id, "o", 1, share::READ).unwrap();
    let lost = state.set_client_id(T, HERE, &who(1), &set("a", 2, 1)).unwrap();
    let fourth = state.set_client_id(T, HERE, &who(1), &set("a", 2, 1)).unwrap();
    assert_eq!(failed(state.set_client_id_confirm(T, &who(1), &lost)), NfsStat::StaleClientid);
    assert_eq!(state.renew_client(T, id), Ok(()));
    assert_eq!(failed(state.set_client_id(T, HERE, &who(5), &set("a", 2, 1))), NfsStat::ClidInuse);
    state.set_client_id_confirm(T, &who(1), &fourth).unwrap();
    assert_eq!(failed(state.renew_client(T, id)), NfsStat::Expired);
    assert_eq!(failed(state.renew_client(T, 77)), NfsStat::StaleClientid);
    assert_eq!(state.renew_client(T, fourth.clientid), Ok(()));
    assert!(state.files.is_empty());
    state.check_invariants();
}

/// [RFC7530 9.1.7] [RFC7530 16.18.4] [RFC7530 16.18.5]
#[test]
fn an_owners_request_is_executed_once() {
    let mut state = state();
    let id = old_client(&mut state, "a");
    let of = SeqidOwner::Open(id, b"o");
    let owner_request = state.begin_owner_request(T, &of, 5).unwrap();
    assert_eq!(failed(state.begin_owner_request(T, &of, 5)), NfsStat::Delay);
    let opened = match open(&mut state, id, "o", F, share::READ, 0) {
        Err(Stop::Wait(_)) => {
            settle(&mut state);
            open(&mut state, id, "o", F, share::READ, 0).unwrap()
        }
        other => panic!("not durable: {other:?}"),
    };
    assert!(opened.confirm);
    state.end_owner_request(T, owner_request, NfsStat::Ok, reply("first"));
    state.check_invariants();
    let Err(Stop::Replay(again)) = state.begin_owner_request(T, &of, 5) else { panic!() };
    assert_eq!(*again, reply("first"));
    // Without confirmation the open is unusable, and another OPEN replaces it.
    assert_eq!(failed(state.permit(T, Caller::V40, F, &opened.stateid, Access::Read)), NfsStat::BadStateid);
    assert_eq!(
        failed(state.begin_owner_request(T, &SeqidOwner::Stateid(&opened.stateid), 9)),
        NfsStat::BadSeqid
    );
    let request = LockRequest {
        locker: Locker::New { open: opened.stateid, owner: b"l" },
        kind: LockType::Read,
        reclaim: false,
        offset: 0,
        length: 1,
    };
    assert_eq!(failed(state.lock(T, Caller::V40, F, &request)), NfsStat::BadStateid);
    let stateid = open40(&mut state, id, "o", 20, share::READ).unwrap();
    assert_eq!(failed(state.open_confirm(F, &stateid)), NfsStat::BadStateid);
    let permit = state.permit(T, Caller::V40, F, &stateid, Access::Read).unwrap();
    state.end_permit(T, permit);
    assert_eq!(failed(state.begin_owner_request(T, &of, 23)), NfsStat::BadSeqid);
    // An error that consumes no seqid, and one that does.
    let owner_request = state.begin_owner_request(T, &of, 22).unwrap();
    state.end_owner_request(T, owner_request, NfsStat::BadStateid, reply("no"));
    let owner_request = state.begin_owner_request(T, &of, 22).unwrap();
    state.end_owner_request(T, owner_request, NfsStat::Inval, reply("inval"));
    assert!(matches!(state.begin_owner_request(T, &of, 22), Err(Stop::Replay(_))));
    // CLOSE can be retried, although its stateid is gone.
    let owner_request = state.begin_owner_request(T, &SeqidOwner::Stateid(&stateid), 23).unwrap();
    state.close_v40(T, &owner_request, F, &stateid).unwrap();
    state.end_owner_request(T, owner_request, NfsStat::Ok, reply("closed"));
    assert!(matches!(state.begin_owner_request(T, &SeqidOwner::Stateid(&stateid), 23), Err(Stop::Replay(_))));
    state.check_invariants();
    open40(&mut state, id, "o", 24, share::READ).unwrap();
    assert_eq!(failed(state.begin_owner_request(T, &SeqidOwner::Stateid(&stateid), 23)), NfsStat::BadStateid);
    state.check_invariants();
}

/// [RFC7530 9.1.11] A reclaim cannot be an old retransmission.
#[test]
fn a_reclaim_needs_no_confirmation() {
    let record = ClientRecord {
        sessions: false,
        owner: "a".into(),
        verifier: [1; 8],
        principal: who(1),
        revoked: false,
    };
    let past = PreviousBoot { clients: vec![record], lease: Millis::seconds(60) };
    let mut state = StateManager::new(T, Config::default(), 2, past, Box::new(Seeded(1)));
    let id = old_client(&mut state, "a");
    let owner_request = state.begin_owner_request(T, &SeqidOwner::Open(id, b"o"), 1).unwrap();
    let opened = open_as(&mut state, T, id, "o", F, (share::BOTH, 0), 0, Claim::Previous(0)).unwrap();
    state.end_owner_request(T, owner_request, NfsStat::Ok, reply("claimed"));
    assert!(!opened.confirm);
    let permit = state.permit(T, Caller::V40, F, &opened.stateid, Access::Write).unwrap();
    state.end_permit(T, permit);
    state.check_invariants();
}

/// [RFC7530 16.37.4] [RFC7530 9.1.4.2]
#[test]
fn v40_lock_owners() {
    let mut state = state();
    let id = old_client(&mut state, "a");
    let opened = open40(&mut state, id, "o", 1, share::BOTH).unwrap();
    let open_turn = state.begin_owner_request(T, &SeqidOwner::Stateid(&opened), 3).unwrap();
    let lock_turn = state.begin_owner_request(T, &SeqidOwner::Lock(id, b"l"), 1).unwrap();
    let request = LockRequest {
        locker: Locker::New { open: opened, owner: b"l" },
        kind: LockType::WriteW,
        reclaim: false,
        offset: 0,
        length: 10,
    };
    let lock = state.lock(T, Caller::V40, F, &request).unwrap();
    state.end_owner_request(T, lock_turn, NfsStat::Ok, reply("lock"));
    state.end_owner_request(T, open_turn, NfsStat::Ok, reply("lock"));
    state.check_invariants();
    assert_eq!(failed(state.release_lock_owner(T, id, b"l")), NfsStat::LocksHeld);
    let owner_request = state.begin_owner_request(T, &SeqidOwner::Stateid(&lock), 2).unwrap();
    let unlocked = state.locku(T, Caller::V40, F, &lock, (0, 10)).unwrap();
    state.end_owner_request(T, owner_request, NfsStat::Ok, reply("unlocked"));
    // A retry, with the old seqid of the stateid.
    assert!(matches!(state.begin_owner_request(T, &SeqidOwner::Stateid(&lock), 2), Err(Stop::Replay(_))));
    assert_eq!(failed(state.locku(T, Caller::V40, F, &lock, (0, 10))), NfsStat::OldStateid);
    let stale = StateId { other: [9; 12], ..unlocked };
    assert_eq!(failed(state.locku(T, Caller::V40, F, &stale, (0, 10))), NfsStat::StaleStateid);
    state.release_lock_owner(T, id, b"l").unwrap();
    assert_eq!(failed(state.locku(T, Caller::V40, F, &unlocked, (0, 10))), NfsStat::BadStateid);
    state.check_invariants();
}

/// [RFC7530 9.1.4.4] [RFC7530 9.5] [RFC7530 16.28.3]
#[test]
fn v40_leases() {
    let mut state = state();
    let id = old_client(&mut state, "a");
    let stateid = open40(&mut state, id, "o", 1, share::BOTH).unwrap();
    state.set_callback_path(id, true);
    let other = FileId { inode: 5, ..F };
    let delegation =
        open_as(&mut state, T, id, "o", other, (share::READ, 0), 0, Claim::Null).unwrap().delegation;
    assert!(matches!(delegation, DelegationGrant::Read(_)));
    assert_eq!(
        open_as(&mut state, T, id, "o", FileId { inode: 6, ..F }, (3, 0), 0, Claim::Null).unwrap().delegation,
        DelegationGrant::None(WhyNoDelegation::Resource)
    );
    state.set_callback_path(id, false);
    assert_eq!(failed(state.renew_client(T, id)), NfsStat::CbPathDown);
    // Any use of a stateid renews the lease.
    let late = T + Millis(state.config.lease.0 * 3 / 4);
    let permit = state.permit(late, Caller::V40, F, &stateid, Access::Read).unwrap();
    state.end_permit(late, permit);
    let later = late + Millis(state.config.lease.0 * 3 / 4);
    assert!(!state.lease_expired(later, id));
    // The stateids of an expired client have their own error.
    let (b, _) = client(&mut state, later, "b", 1);
    let very_late = later + state.config.lease.times(2);
    let session = *state.clients[&b].sessions.first().unwrap();
    let SequenceOutcome::New(running, _) =
        state.sequence(very_late, ConnId(1), &request(1), &sequence_args(session, 0, 1)).unwrap()
    else {
        panic!()
    };
    assert!(matches!(open_at(&mut state, very_late, b, "x", F, 1, share::WRITE), Err(Stop::Wait(_))));
    settle(&mut state);
    open_at(&mut state, very_late, b, "x", F, 1, share::WRITE).unwrap();
    state.finish(very_late, running, b"");
    assert_eq!(failed(state.permit(very_late, Caller::V40, F, &stateid, Access::Read)), NfsStat::Expired);
    state.check_invariants();
}

#[test]
fn owners_are_forgotten_after_a_while() {
    let mut state = state();
    let id = old_client(&mut state, "a");
    let stateid = open40(&mut state, id, "o", 1, share::BOTH).unwrap();
    let owner_request = state.begin_owner_request(T, &SeqidOwner::Stateid(&stateid), 3).unwrap();
    state.close_v40(T, &owner_request, F, &stateid).unwrap();
    state.end_owner_request(T, owner_request, NfsStat::Ok, reply("closed"));
    state.tick(T);
    assert_eq!((state.owners.len(), state.closed.len()), (1, 1));
    let late = T + state.config.lease + Millis(1);
    state.tick(late);
    assert_eq!((state.owners.len(), state.closed.len()), (0, 0));
    state.check_invariants();
}

/// A request of an owner, and its reply.
struct Asked {
    seqid: u32,
    open: bool,
    executed: u32,
    reply: Vec<u8>,
}

/// Owners retry requests whose replies were lost: each request is executed once, and all its replies are
/// equal. S5
#[test]
fn owners_retry_requests() {
    let (mut replays, mut executed) = (0, 0);
    for seed in 0..200 {
        let mut rng = Seeded(seed);
        let mut state = state();
        let id = old_client(&mut state, "a");
        let mut next = rng.next_u64() as u32;
        let stateid = open40(&mut state, id, "o", next, share::BOTH).unwrap();
        next = next.wrapping_add(2);
        let mut held = stateid;
        let mut last: Option<Asked> = None;
        for round in 0..100u64 {
            let repeat = last.is_some() && rng.next_u64().is_multiple_of(2);
            if !repeat {
                let open = rng.next_u64().is_multiple_of(2);
                last = Some(Asked { seqid: next, open, executed: 0, reply: round.to_be_bytes().to_vec() });
                next = next.wrapping_add(1);
            }
            let Some(asked) = &mut last else { continue };
            let of = if asked.open { SeqidOwner::Open(id, b"o") } else { SeqidOwner::Stateid(&stateid) };
            match state.begin_owner_request(T, &of, asked.seqid) {
                Ok(owner_request) => {
                    asked.executed += 1;
                    assert_eq!(asked.executed, 1, "seed {seed}: executed twice");
                    executed += 1;
                    if asked.open {
                        held = open(&mut state, id, "o", F, share::READ, 0).unwrap().stateid;
                    } else {
                        held = state.open_downgrade(T, Caller::V40, F, &held, share::BOTH, 0).unwrap();
                    }
                    // Other requests wait while it runs.
                    assert_eq!(failed(state.begin_owner_request(T, &of, asked.seqid)), NfsStat::Delay);
                    let reply = CachedReply { bytes: asked.reply.clone(), file: Some(F) };
                    state.end_owner_request(T, owner_request, NfsStat::Ok, reply);
                }
                Err(Stop::Replay(reply)) => {
                    assert!(repeat, "seed {seed}");
                    assert_eq!(reply.bytes, asked.reply);
                    replays += 1;
                }
                other => panic!("seed {seed}: {other:?}"),
            }
            let wrong = asked.seqid.wrapping_add(2 + rng.next_u64() as u32 % 1000);
            assert_eq!(failed(state.begin_owner_request(T, &of, wrong)), NfsStat::BadSeqid);
            state.check_invariants();
        }
    }
    assert!(replays > 1000 && executed > 1000);
}
