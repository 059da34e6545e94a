use super::*;

const F: FileId = FileId { export: 1, inode: 2, generation: 3 };
const BASE: HolderAttrs = HolderAttrs { change: 10, size: 100 };

fn want(state: &mut StateManager, now: Time, id: ClientId, access: u32, wants: u32) -> DelegationGrant {
    open_as(state, now, id, "o", F, (access, 0), wants, Claim::Null).unwrap().delegation
}

fn writer(state: &mut StateManager, id: ClientId) -> StateId {
    let DelegationGrant::Write(stateid) = want(state, T, id, share::BOTH, 0) else { panic!() };
    state.set_granted_attrs(&stateid, BASE);
    stateid
}

fn two() -> (StateManager, ClientId, ClientId) {
    let mut state = state();
    let (a, _) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    (state, a, b)
}

/// Queries the attributes.
fn look(state: &mut StateManager, now: Time, caller: Caller) -> Step<()> {
    let permit = state.begin_getattr(now, caller, F)?;
    state.end_permit(now, permit);
    Ok(())
}

fn asked(state: &mut StateManager) -> Ticket {
    match &wanted(state)[..] {
        [Effect::Callback { call: Callback::GetAttr { ticket, .. }, .. }] => *ticket,
        other => panic!("{other:?}"),
    }
}

fn bumps(state: &mut StateManager) -> usize {
    settle(state).iter().filter(|effect| matches!(effect, Effect::Bump { .. })).count()
}

#[test]
fn delegations_are_granted_without_contention() {
    let (mut state, a, b) = two();
    assert_eq!(
        want(&mut state, T, a, share::READ, share::WANT_NO_DELEG),
        DelegationGrant::None(WhyNoDelegation::NotWanted)
    );
    assert!(matches!(want(&mut state, T, a, share::READ, 0), DelegationGrant::Read(_)));
    assert_eq!(want(&mut state, T, a, share::READ, 0), DelegationGrant::None(WhyNoDelegation::Contention));
    assert!(matches!(want(&mut state, T, b, share::READ, share::WANT_ANY_DELEG), DelegationGrant::Read(_)));
    state.check_invariants();
    let (mut state, a, b) = two();
    assert!(matches!(want(&mut state, T, b, share::READ, share::WANT_NO_DELEG), DelegationGrant::None(_)));
    assert_eq!(want(&mut state, T, a, share::WRITE, 0), DelegationGrant::None(WhyNoDelegation::Contention));
    assert_eq!(want(&mut state, T, b, share::READ, 0), DelegationGrant::None(WhyNoDelegation::Contention));
    let (mut state, a, _) = two();
    // Without a callback path there is no delegation.
    state.disconnected(ConnId(1));
    assert_eq!(want(&mut state, T, a, share::READ, 0), DelegationGrant::None(WhyNoDelegation::Resource));
    let (mut state, a, b) = two();
    let permit = state.permit(T, Caller::Client(b), F, &StateId::ANONYMOUS, Access::Read).unwrap();
    assert_eq!(want(&mut state, T, a, share::WRITE, 0), DelegationGrant::None(WhyNoDelegation::Contention));
    state.end_permit(T, permit);
    let permit = state.permit(T, Caller::Client(b), F, &StateId::ANONYMOUS, Access::Metadata).unwrap();
    open(&mut state, a, "p", F, share::READ, 0).unwrap();
    assert_eq!(
        want(&mut state, T, a, share::READ, share::WANT_READ_DELEG),
        DelegationGrant::None(WhyNoDelegation::Contention)
    );
    assert_eq!(
        want(&mut state, T, a, share::WRITE, share::WANT_READ_DELEG),
        DelegationGrant::None(WhyNoDelegation::NotWanted)
    );
    state.end_permit(T, permit);
    state.check_invariants();
}

/// [RFC8881 10.4.5] [RFC8881 10.4.4]
#[test]
fn conflicting_delegations_are_recalled() {
    let (mut state, a, b) = two();
    let DelegationGrant::Read(held) = want(&mut state, T, a, share::READ, 0) else { panic!() };
    let me = Caller::Client(a);
    let other = Caller::Client(b);
    let permit = state.permit(T, other, F, &StateId::ANONYMOUS, Access::Read).unwrap();
    state.end_permit(T, permit);
    // The holder does not conflict with itself.
    for does in [Access::Metadata, Access::Namespace, Access::Write] {
        let permit = state.permit(T, me, F, &StateId::ANONYMOUS, does).unwrap();
        state.end_permit(T, permit);
    }
    assert_eq!(wanted(&mut state), []);
    let claim = Claim::DelegateCur(held);
    assert_eq!(
        failed(open_as(&mut state, T, a, "x", F, (share::WRITE, 0), 0, claim.clone())),
        NfsStat::BadStateid
    );
    open_as(&mut state, T, a, "x", F, (share::READ, 0), 0, claim).unwrap();
    for does in [Access::Write, Access::Resize, Access::Metadata, Access::Namespace] {
        assert_eq!(failed(state.permit(T, other, F, &StateId::ANONYMOUS, does)), NfsStat::Delay);
    }
    assert_eq!(failed(open(&mut state, b, "o", F, share::WRITE, 0)), NfsStat::Delay);
    let recalls = wanted(&mut state);
    let call = Callback::Recall { stateid: held, file: F, truncate: false };
    assert_eq!(recalls, [Effect::Callback { client: a, call }]);
    state.check_invariants();
    state.deleg_return(T, me, F, &held).unwrap();
    assert_eq!(failed(state.deleg_return(T, me, F, &held)), NfsStat::BadStateid);
    let permit = state.permit(T, other, F, &StateId::ANONYMOUS, Access::Namespace).unwrap();
    state.end_permit(T, permit);
    // No new delegation so soon after a conflict.
    assert_eq!(want(&mut state, T, a, share::READ, 0), DelegationGrant::None(WhyNoDelegation::Contention));
    let late = T + state.config.lease + Millis(1);
    assert!(matches!(want(&mut state, late, a, share::READ, 0), DelegationGrant::Read(_)));
    state.check_invariants();
}

/// [RFC8881 10.4.6] [RFC8881 18.46.3]
#[test]
fn overdue_delegations_are_revoked() {
    let (mut state, a, b) = two();
    let held = writer(&mut state, a);
    let (me, other) = (Caller::Client(a), Caller::Client(b));
    assert_eq!(failed(state.permit(T, other, F, &StateId::ANONYMOUS, Access::Read)), NfsStat::Delay);
    let lease = state.config.lease;
    // The holder writes back, which extends the time.
    let middle = T + Millis(lease.0 / 2);
    let permit = state.permit(middle, me, F, &held, Access::Write).unwrap();
    let late = T + lease + Millis(1);
    state.tick(late);
    state.end_permit(late, permit);
    assert_eq!(failed(state.permit(late, other, F, &StateId::ANONYMOUS, Access::Read)), NfsStat::Delay);
    // But not forever.
    let mut now = late;
    while now < T + lease.times(4) {
        now = now + Millis(lease.0 / 2);
        if let Ok(permit) = state.permit(now, me, F, &held, Access::Write) {
            state.end_permit(now, permit);
        }
        state.tick(now);
        state.check_invariants();
    }
    // The revocation becomes durable first: otherwise the client could reclaim after a restart.
    let effects = wanted(&mut state);
    let Some(Effect::Persist { ticket, change: RecordChange::Put(record) }) = effects.last() else {
        panic!()
    };
    assert!(record.revoked);
    assert_eq!(state.permit(now, other, F, &StateId::ANONYMOUS, Access::Metadata), Err(Stop::Wait(*ticket)));
    state.effect_done(*ticket);
    state.tick(now + Millis::seconds(2));
    assert_eq!(failed(state.permit(now, me, F, &held, Access::Write)), NfsStat::DelegRevoked);
    let permit = state.permit(now, other, F, &StateId::ANONYMOUS, Access::Metadata).unwrap();
    state.end_permit(now, permit);
    assert_eq!(state.test_stateid(a, &[held]), [NfsStat::DelegRevoked]);
    let session = *state.clients[&a].sessions.first().unwrap();
    let flags = |state: &mut StateManager, sequence| {
        let args = sequence_args(session, 0, sequence);
        let SequenceOutcome::New(running, ok) = state.sequence(now, ConnId(1), &request(1), &args).unwrap()
        else {
            panic!()
        };
        state.finish(now, running, b"");
        ok.status_flags & seq4_status::RECALLABLE_STATE_REVOKED
    };
    assert_ne!(flags(&mut state, 1), 0);
    state.free_stateid(a, &held).unwrap();
    let effects = wanted(&mut state);
    let Some(Effect::Persist { change: RecordChange::Put(record), .. }) = effects.last() else { panic!() };
    assert!(!record.revoked);
    assert_eq!(flags(&mut state, 2), 0);
    assert_eq!(state.test_stateid(a, &[held]), [NfsStat::BadStateid]);
    state.check_invariants();
}

/// [RFC8881 10.4.3]
#[test]
fn each_reply_of_the_holder_bumps_once() {
    let (mut state, a, b) = two();
    let DelegationGrant::Write(held) = want(&mut state, T, a, share::BOTH, 0) else { panic!() };
    let (me, other) = (Caller::Client(a), Caller::Client(b));
    look(&mut state, T, me).unwrap();
    // The grant is not complete yet.
    assert_eq!(failed(state.begin_getattr(T, other, F)), NfsStat::Delay);
    state.set_granted_attrs(&held, BASE);
    let Err(Stop::AskHolder(ticket)) = state.begin_getattr(T, other, F) else { panic!() };
    assert_eq!(state.begin_getattr(T, other, F), Err(Stop::AskHolder(ticket)));
    assert_eq!(state.begin_getattr(T, Caller::V40, F), Err(Stop::AskHolder(ticket)));
    assert_eq!(asked(&mut state), ticket);
    let Ok(GetattrOutcome::Unmodified(permit)) = state.getattr_reply(T, ticket, Some(BASE)) else { panic!() };
    state.end_permit(T, permit);
    wanted(&mut state);
    for answer in [
        HolderAttrs { change: 11, ..BASE },
        HolderAttrs { size: 5, ..BASE },
        HolderAttrs { change: 11, ..BASE },
    ] {
        let Err(Stop::AskHolder(ticket)) = state.begin_getattr(T, other, F) else { panic!() };
        assert_eq!(asked(&mut state), ticket);
        let GetattrOutcome::Modified { size, permit } = state.getattr_reply(T, ticket, Some(answer)).unwrap()
        else {
            panic!()
        };
        assert_eq!(size, answer.size);
        // The reply stays valid until it is passed on.
        let Err(Stop::Wait(gate)) = state.deleg_return(T, me, F, &held) else { panic!() };
        assert_eq!(state.begin_getattr(T, other, F), Err(Stop::Wait(gate)));
        state.check_invariants();
        state.end_permit(T, permit);
        assert_eq!(wanted(&mut state), [Effect::Wake { ticket: gate }]);
    }
    // The change was reported: the delegation ends with one more bump, and queries wait for it.
    state.deleg_return(T, me, F, &held).unwrap();
    assert!(matches!(state.begin_getattr(T, other, F), Err(Stop::Wait(_))));
    assert!(matches!(open(&mut state, b, "o", F, share::READ, 0), Err(Stop::Wait(_))));
    assert!(matches!(state.permit(T, other, F, &StateId::ANONYMOUS, Access::Read), Err(Stop::Wait(_))));
    state.check_invariants();
    assert_eq!(bumps(&mut state), 1);
    look(&mut state, T, other).unwrap();
    state.check_invariants();
}

/// No delegation is granted during a query: its contents and its change attribute could differ.
#[test]
fn no_delegation_is_granted_during_a_query() {
    let (mut state, a, b) = two();
    let permit = state.begin_getattr(T, Caller::Client(b), F).unwrap();
    assert_eq!(want(&mut state, T, a, share::BOTH, 0), DelegationGrant::None(WhyNoDelegation::Contention));
    state.end_permit(T, permit);
    assert!(matches!(want(&mut state, T, a, share::BOTH, 0), DelegationGrant::Write(_)));
    state.check_invariants();
}

#[test]
fn unreported_changes_end_without_a_bump() {
    let (mut state, a, b) = two();
    let held = writer(&mut state, a);
    let Err(Stop::AskHolder(ticket)) = state.begin_getattr(T, Caller::Client(b), F) else { panic!() };
    assert_eq!(asked(&mut state), ticket);
    let Ok(GetattrOutcome::Unmodified(permit)) = state.getattr_reply(T, ticket, Some(BASE)) else { panic!() };
    state.end_permit(T, permit);
    state.deleg_return(T, Caller::Client(a), F, &held).unwrap();
    assert_eq!(bumps(&mut state), 0);
    assert_eq!(failed(state.getattr_reply(T, ticket, Some(BASE))), NfsStat::Delay);
}

#[test]
fn a_silent_holder_is_recalled() {
    let (mut state, a, b) = two();
    let held = writer(&mut state, a);
    let other = Caller::Client(b);
    let Err(Stop::AskHolder(ticket)) = state.begin_getattr(T, other, F) else { panic!() };
    asked(&mut state);
    assert_eq!(failed(state.getattr_reply(T, ticket, None)), NfsStat::Delay);
    assert!(matches!(&wanted(&mut state)[..], [Effect::Callback { call: Callback::Recall { .. }, .. }]));
    assert_eq!(failed(state.begin_getattr(T, other, F)), NfsStat::Delay);
    state.deleg_return(T, Caller::Client(a), F, &held).unwrap();
    look(&mut state, T, other).unwrap();
    // A reply after the end of the delegation is ignored.
    let late = T + state.config.lease + Millis(1);
    let DelegationGrant::Write(held) =
        open_as(&mut state, late, a, "o", F, (3, 0), 0, Claim::Null).unwrap().delegation
    else {
        panic!()
    };
    state.set_granted_attrs(&held, BASE);
    let Err(Stop::AskHolder(ticket)) = state.begin_getattr(late, other, F) else { panic!() };
    state.deleg_return(late, Caller::Client(a), F, &held).unwrap();
    assert_eq!(failed(state.getattr_reply(late, ticket, Some(BASE))), NfsStat::Delay);
    state.check_invariants();
}

#[test]
fn reported_changes_of_a_lost_client_end_with_a_bump() {
    let (mut state, a, b) = two();
    writer(&mut state, a);
    let other = Caller::Client(b);
    let Err(Stop::AskHolder(ticket)) = state.begin_getattr(T, other, F) else { panic!() };
    asked(&mut state);
    let told = state.getattr_reply(T, ticket, Some(HolderAttrs { change: 11, ..BASE })).unwrap();
    let GetattrOutcome::Modified { permit, .. } = told else { panic!() };
    let late = T + state.config.lease + Millis(1);
    // The reply is being passed on: the client cannot be evicted yet.
    assert_eq!(failed(state.permit(late, other, F, &StateId::ANONYMOUS, Access::Read)), NfsStat::Delay);
    state.end_permit(late, permit);
    let late = late + state.config.lease.times(4);
    assert!(matches!(state.permit(late, other, F, &StateId::ANONYMOUS, Access::Read), Err(Stop::Wait(_))));
    settle(&mut state);
    assert!(!state.clients.contains_key(&a));
    assert!(matches!(state.permit(late, other, F, &StateId::ANONYMOUS, Access::Read), Err(Stop::Wait(_))));
    assert_eq!(bumps(&mut state), 1);
    let permit = state.permit(late, other, F, &StateId::ANONYMOUS, Access::Read).unwrap();
    state.end_permit(late, permit);
    state.check_invariants();
}

#[test]
fn a_stop_ends_delegations_with_reported_changes() {
    let (mut state, a, b) = two();
    writer(&mut state, a);
    let Err(Stop::AskHolder(ticket)) = state.begin_getattr(T, Caller::Client(b), F) else { panic!() };
    asked(&mut state);
    let told = state.getattr_reply(T, ticket, Some(HolderAttrs { change: 11, ..BASE })).unwrap();
    let GetattrOutcome::Modified { permit, .. } = told else { panic!() };
    state.end_permit(T, permit);
    state.shut_down();
    assert_eq!(bumps(&mut state), 1);
    state.check_invariants();
}

/// [RFC8881 2.10.6.3]
#[test]
fn callbacks_refer_to_requests() {
    let mut state = state();
    let (a, session) = client(&mut state, T, "a", 1);
    let (b, _) = client(&mut state, T, "b", 2);
    let args = sequence_args(session, 2, 1);
    let SequenceOutcome::New(running, _) = state.sequence(T, ConnId(1), &request(1), &args).unwrap() else {
        panic!()
    };
    let asks = OpenRequest {
        client: a,
        owner: b"o",
        access: share::READ,
        deny: 0,
        wants: 0,
        claim: Claim::Null,
        running: Some(&running),
    };
    let plan = state.open_plan(T, &asks).unwrap();
    let DelegationGrant::Read(held) = state.open_commit(T, plan, F, true).unwrap().delegation else {
        panic!()
    };
    state.finish(T, running, b"");
    let _ = open(&mut state, b, "o", F, share::WRITE, 0);
    let [Effect::Callback { call, .. }] = &wanted(&mut state)[..] else { panic!() };
    let channel = state.begin_callback(a, call).unwrap();
    let CallbackPath::Session { conn, sequence, .. } = &channel else { panic!() };
    assert_eq!((*conn, sequence.sequenceid, sequence.referring.0.len()), (ConnId(1), 1, 1));
    let referring = &sequence.referring.0[0].calls.0[0];
    assert_eq!((referring.slotid, referring.sequenceid), (2, 1));
    // The connection breaks. The same callback uses the same sequence number.
    state.disconnected(ConnId(1));
    state.end_callback(a, call, &channel, false);
    assert_eq!(state.begin_callback(a, call), Err(NoCallbackPath::Down));
    let bind = BindConn { sessionid: session, direction: 3, rdma: false };
    state.bind_conn_to_session(T, ConnId(5), &who(1), &bind).unwrap();
    let [Effect::Callback { call, .. }] = &wanted(&mut state)[..] else { panic!() };
    let other = Callback::NotifyLock { file: F, owner: Vec::new() };
    let elsewhere = state.begin_callback(a, &other).unwrap();
    let again = state.begin_callback(a, call).unwrap();
    let CallbackPath::Session { sequence: first, .. } = &channel else { panic!() };
    let CallbackPath::Session { sequence: second, conn, .. } = &again else { panic!() };
    assert_eq!((first.slotid, first.sequenceid, *conn), (second.slotid, second.sequenceid, ConnId(5)));
    assert_eq!(state.begin_callback(a, &other), Err(NoCallbackPath::Busy));
    state.end_callback(a, call, &again, true);
    state.end_callback(a, &other, &elsewhere, true);
    // The recall is acknowledged and not repeated. The client's next request in that slot shows that it has
    // seen the reply.
    state.bind_conn_to_session(T, ConnId(6), &who(1), &bind).unwrap();
    assert_eq!(wanted(&mut state), []);
    let args = sequence_args(session, 2, 2);
    let SequenceOutcome::New(running, _) = state.sequence(T, ConnId(1), &request(2), &args).unwrap() else {
        panic!()
    };
    state.finish(T, running, b"");
    let call = Callback::Recall { stateid: held, file: F, truncate: false };
    let Ok(CallbackPath::Session { sequence, .. }) = state.begin_callback(a, &call) else { panic!() };
    assert!(sequence.referring.0.is_empty());
    state.check_invariants();
}
