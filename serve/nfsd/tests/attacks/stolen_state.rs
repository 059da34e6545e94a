//! Use of other clients' state.

use ivers_nfs4::ops::v41::*;

use super::*;

/// Stateids, sessions and the name of another client.
pub fn steal(target: &Target) {
    let mut thief = Client::new(target.address, "thief");
    let put = || Op::PutFh(target.handle.clone());
    let Target { stateid, session, .. } = *target;
    let open_seqid = 0;
    let lock_owner = Owner { clientid: 0, owner: Opaque(b"l".to_vec()) };
    let new = OpenToLockOwner { open_seqid, open_stateid: stateid, lock_seqid: 0, lock_owner };
    let lock = LockArgs {
        kind: LockType::Write,
        reclaim: false,
        offset: 0,
        length: u64::MAX,
        locker: Locker::New(new),
    };
    let downgrade = DowngradeArgs { stateid, seqid: 0, share_access: share::READ, share_deny: 0 };
    let tries = [
        Op::Write(WriteArgs {
            stateid,
            offset: 0,
            stable: StableHow::Unstable,
            data: b"stolen".to_vec().into(),
        }),
        Op::Read(ReadArgs { stateid, offset: 0, count: 10 }),
        Op::Close(SeqState { seqid: 0, stateid }),
        Op::DelegReturn(stateid),
        Op::FreeStateId(stateid),
        Op::Lock(lock),
        Op::OpenDowngrade(downgrade),
        Op::LockU(UnlockArgs { kind: LockType::Write, seqid: 0, stateid, offset: 0, length: 1 }),
    ];
    for _ in 0..50 {
        for op in tries.clone() {
            assert_eq!(thief.call(vec![put(), op.clone()]).0, NfsStat::BadStateid, "{op:?}");
        }
        // Guessing fails, too.
        for index in 0..20 {
            let mut guess = stateid;
            guess.other[8..].copy_from_slice(&u32::to_be_bytes(index * 77));
            let close = Op::Close(SeqState { seqid: 0, stateid: guess });
            assert_eq!(thief.call(vec![put(), close]).0, NfsStat::BadStateid);
        }
        let sequence = |sequenceid| {
            Op::Sequence(SequenceArgs {
                sessionid: session,
                sequenceid,
                slotid: 0,
                highest_slotid: 0,
                cache_this: false,
            })
        };
        assert_eq!(thief.compound(1, vec![sequence(u32::MAX / 2), put()]).0, NfsStat::SeqMisordered);
        let destroyed = thief.compound(1, vec![Op::DestroySession(session)]).0;
        assert_eq!(destroyed, NfsStat::ConnNotBoundToSession);
    }
    // As another principal with the victim's name; and as the victim after a restart, without confirmation.
    thief.user = 1000;
    assert_eq!(thief.compound(1, vec![exchange([7; 8], "neighbour")]).0, NfsStat::ClidInuse);
    thief.user = 0;
    let (status, results) = thief.compound(1, vec![exchange([1; 8], "neighbour")]);
    let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{status:?}") };
    assert_ne!(known.clientid.to_be_bytes(), target.session[..8], "the session belongs to another client");
}
