use super::super::tables::slot::Slot;
use super::*;

/// [RFC8881 18.35.3] [RFC8881 18.35.4]
#[test]
fn exchange_id_handles_all_cases() {
    let mut state = state();
    // Case 7: an update of an unknown client.
    assert_eq!(
        failed(state.exchange_id(T, HERE, &who(1), &exchange("a", 1, exchgid::UPD_CONFIRMED_REC_A))),
        NfsStat::Noent
    );
    // Case 1: a new name.
    let first = state.exchange_id(T, HERE, &who(1), &exchange("a", 1, 0)).unwrap();
    assert_eq!(first.flags & exchgid::CONFIRMED_R, 0);
    // Case 4: replaces an unconfirmed client of any principal.
    let second = state.exchange_id(T, HERE, &who(2), &exchange("a", 1, 0)).unwrap();
    assert_ne!(first.clientid, second.clientid);
    assert_eq!(
        failed(state.create_session(T, ConnId(1), 1, &who(1), &create(first.clientid, first.sequenceid))),
        NfsStat::StaleClientid
    );
    // Only its principal can confirm a client. Others do not consume its sequence numbers.
    for sequence in [second.sequenceid - 1, second.sequenceid, second.sequenceid + 1] {
        assert_eq!(
            failed(state.create_session(T, ConnId(1), 1, &who(3), &create(second.clientid, sequence))),
            NfsStat::ClidInuse
        );
    }
    let session =
        state.create_session(T, ConnId(1), 1, &who(2), &create(second.clientid, second.sequenceid)).unwrap();
    // Case 2: the same client again.
    let again = state.exchange_id(T, HERE, &who(2), &exchange("a", 1, 0)).unwrap();
    assert_eq!((again.clientid, again.flags & exchgid::CONFIRMED_R), (second.clientid, exchgid::CONFIRMED_R));
    // Cases 6, 8 and 9: updates.
    let update = |state: &mut StateManager, user, verifier| {
        state.exchange_id(T, HERE, &who(user), &exchange("a", verifier, exchgid::UPD_CONFIRMED_REC_A))
    };
    assert_eq!(update(&mut state, 2, 1).unwrap().clientid, second.clientid);
    assert_eq!(failed(update(&mut state, 2, 9)), NfsStat::NotSame);
    assert_eq!(failed(update(&mut state, 3, 1)), NfsStat::Perm);
    // Case 5: a restart. The old client stays until the new one is confirmed.
    let restarted = state.exchange_id(T, HERE, &who(2), &exchange("a", 2, 0)).unwrap();
    assert!(state.sequence(T, ConnId(1), &request(1), &sequence_args(session.sessionid, 0, 1)).is_ok());
    // A running request keeps the old client. That error is not cached.
    let args = create(restarted.clientid, restarted.sequenceid);
    assert_eq!(failed(state.create_session(T, ConnId(1), 1, &who(2), &args)), NfsStat::Delay);
    let running = SessionRequest {
        client: second.clientid,
        session: session.sessionid,
        slot: 0,
        sequence: 1,
        keep: true,
        reply_bytes: 1,
    };
    state.finish(T, running, b"x");
    assert!(state.create_session(T, ConnId(1), 1, &who(2), &args).is_ok());
    assert_eq!(
        failed(state.sequence(T, ConnId(1), &request(1), &sequence_args(session.sessionid, 0, 2))),
        NfsStat::Badsession
    );
    // Case 3: another principal. The name is free, because the old client holds nothing.
    let stranger = state.exchange_id(T, HERE, &who(7), &exchange("a", 2, 0)).unwrap();
    assert_eq!(stranger.flags & exchgid::CONFIRMED_R, 0);
    assert_eq!(failed(state.exchange_id(T, HERE, &who(1), &exchange("b", 1, 0x10))), NfsStat::Inval);
}

/// [RFC8881 15.1.10.3] [RFC8881 18.36.3] Only connections with a machine's certificate may act for it, as any
/// of its users.
#[test]
fn only_the_certificate_of_a_client_acts_for_it() {
    let mut state = state();
    let [me, friend, plain, thief] = [(1, Some("m")), (2, Some("m")), (1, None), (1, Some("t"))]
        .map(|(user, certificate)| Principal::of(Some(user), certificate.map(str::as_bytes)));
    let id = state.exchange_id(T, HERE, &me, &exchange("a", 1, 0)).unwrap();
    let make = |state: &mut StateManager, who: &Principal, sequence| {
        state.create_session(T, ConnId(1), 1, who, &create(id.clientid, sequence))
    };
    let session = make(&mut state, &me, id.sequenceid).unwrap().sessionid;
    let bind = BindConn { sessionid: session, direction: 3, rdma: false };
    let by = |principal: &Principal| RequestHeader { principal: principal.clone(), ..request(1) };
    let first = sequence_args(session, 0, 1);
    for stranger in [&plain, &thief] {
        assert_eq!(failed(make(&mut state, stranger, id.sequenceid + 1)), NfsStat::WrongCred);
        assert_eq!(failed(state.bind_conn_to_session(T, ConnId(2), stranger, &bind)), NfsStat::WrongCred);
        assert_eq!(failed(state.destroy_session(ConnId(1), stranger, None, &session)), NfsStat::WrongCred);
        assert_eq!(failed(state.destroy_clientid(stranger, None, id.clientid)), NfsStat::WrongCred);
        let refused = state.sequence(T, ConnId(2), &by(stranger), &first);
        assert_eq!(failed(refused), NfsStat::ConnNotBoundToSession);
    }
    let Ok(SequenceOutcome::New(running, _)) = state.sequence(T, ConnId(2), &by(&friend), &first) else {
        panic!()
    };
    state.finish(T, running, b"x");
    let second = make(&mut state, &friend, id.sequenceid + 1).unwrap().sessionid;
    state.bind_conn_to_session(T, ConnId(3), &friend, &bind).unwrap();
    for session in [session, second] {
        state.destroy_session(ConnId(1), &friend, None, &session).unwrap();
    }
    state.destroy_clientid(&friend, None, id.clientid).unwrap();
    // Without a certificate, any principal that has access may act for the client (section 2.10.8.3).
    let id = state.exchange_id(T, HERE, &plain, &exchange("b", 1, 0)).unwrap();
    state.create_session(T, ConnId(1), 1, &plain, &create(id.clientid, id.sequenceid)).unwrap();
    state.create_session(T, ConnId(1), 1, &friend, &create(id.clientid, id.sequenceid + 1)).unwrap();
    state.check_invariants();
}

/// Client IDs do not reveal the next client ID.
#[test]
fn client_ids_are_unpredictable() {
    let mut state = state();
    let ids = [1, 2, 3].map(|at: u8| {
        state.exchange_id(T, HERE, &who(1), &exchange(&at.to_string(), 1, 0)).unwrap().clientid
    });
    for pair in ids.windows(2) {
        assert_eq!(pair[0] >> 32, pair[1] >> 32, "of one boot");
        assert!(pair[0].abs_diff(pair[1]) > 1 << 16, "{ids:x?}");
    }
}

/// [RFC8881 18.36.3] [RFC8881 18.36.4] [RFC8881 2.10.6.4]
#[test]
fn create_session_is_executed_once() {
    let mut state = state();
    let id = state.exchange_id(T, HERE, &who(1), &exchange("a", 1, 0)).unwrap();
    let args = create(id.clientid, id.sequenceid);
    assert_eq!(
        failed(state.create_session(T, ConnId(1), 1, &who(1), &create(id.clientid, id.sequenceid + 1))),
        NfsStat::SeqMisordered
    );
    assert_eq!(
        failed(state.create_session(T, ConnId(1), 1, &who(1), &create(id.clientid, id.sequenceid - 1))),
        NfsStat::SeqMisordered
    );
    let one = state.create_session(T, ConnId(1), 1, &who(1), &args).unwrap();
    assert_eq!(state.create_session(T, ConnId(1), 1, &who(1), &args).unwrap(), one);
    assert_eq!(state.sessions.len(), 1);
    let two =
        state.create_session(T, ConnId(1), 1, &who(1), &create(id.clientid, id.sequenceid + 1)).unwrap();
    assert_ne!(one.sessionid, two.sessionid);
    // Invalid channels consume no sequence number, whether or not callbacks are requested.
    let mut small = create(id.clientid, id.sequenceid + 2);
    small.fore.max_request = 10;
    assert_eq!(failed(state.create_session(T, ConnId(1), 1, &who(1), &small)), NfsStat::Toosmall);
    for spoil in [
        |args: &mut CreateSessionArgs| args.back.max_request = 10,
        |args: &mut CreateSessionArgs| args.back.max_response = 0,
        |args: &mut CreateSessionArgs| args.back.max_operations = 1,
    ] {
        let mut args = create(id.clientid, id.sequenceid + 2);
        args.flags = 0;
        spoil(&mut args);
        assert_eq!(failed(state.create_session(T, ConnId(1), 1, &who(1), &args)), NfsStat::Toosmall);
    }
    let mut modest = create(id.clientid, id.sequenceid + 2);
    modest.fore = ChannelAttrs { max_request: 400, max_response: 400, max_response_cached: 10, ..channel(4) };
    let modest = state.create_session(T, ConnId(1), 1, &who(1), &modest).unwrap();
    assert_eq!((modest.fore.max_request, modest.fore.max_response), (400, 400));
    // [RFC8881 2.10.6.4]
    let mut args = sequence_args(modest.sessionid, 0, 1);
    let mut alone = request(1);
    alone.operations = 1;
    assert_eq!(failed(state.sequence(T, ConnId(1), &alone, &args)), NfsStat::RepTooBigToCache);
    args.cache_this = false;
    assert!(state.sequence(T, ConnId(1), &alone, &args).is_ok());
}

/// [RFC8881 2.10.6.1] [RFC8881 2.10.6.2] [RFC8881 2.10.6.1.3.1] [RFC8881 18.46.3]
#[test]
fn a_slot_executes_once() {
    let mut state = state();
    let (_, session) = client(&mut state, T, "a", 1);
    let mut go = |slot, sequence, digest| {
        let args = sequence_args(session, slot, sequence);
        (state.sequence(T, ConnId(1), &request(digest), &args), args)
    };
    assert_eq!(failed(go(0, 0, 1).0), NfsStat::SeqMisordered);
    assert_eq!(failed(go(0, 2, 1).0), NfsStat::SeqMisordered);
    assert_eq!(failed(go(9, 1, 1).0), NfsStat::Badslot);
    let Ok(SequenceOutcome::New(running, ok)) = go(0, 1, 1).0 else { panic!() };
    assert_eq!((ok.highest_slotid, ok.target_highest_slotid), (3, 3));
    assert_eq!(failed(go(0, 1, 1).0), NfsStat::Delay);
    assert_eq!(failed(go(0, 2, 1).0), NfsStat::SeqMisordered);
    state.finish(T, running, b"reply");
    let mut go = |slot, sequence, digest, user| {
        let mut request = request(digest);
        request.principal = who(user);
        state.sequence(T, ConnId(1), &request, &sequence_args(session, slot, sequence))
    };
    assert!(matches!(go(0, 1, 1, 1), Ok(SequenceOutcome::Replay(reply)) if *reply == *b"reply"));
    assert_eq!(failed(go(0, 1, 2, 1)), NfsStat::SeqFalseRetry);
    assert_eq!(failed(go(0, 1, 1, 2)), NfsStat::SeqFalseRetry);
    assert_eq!(failed(go(0, 0, 1, 1)), NfsStat::SeqMisordered);

    let mut args = sequence_args(session, 1, 1);
    args.cache_this = false;
    let Ok(SequenceOutcome::New(running, _)) = state.sequence(T, ConnId(1), &request(1), &args) else {
        panic!()
    };
    state.finish(T, running, b"reply");
    assert!(matches!(state.sequence(T, ConnId(1), &request(1), &args), Ok(SequenceOutcome::Uncached(_))));
    let mut alone = request(4);
    alone.operations = 1;
    args.sequenceid = 2;
    let Ok(SequenceOutcome::New(running, _)) = state.sequence(T, ConnId(1), &alone, &args) else { panic!() };
    state.finish(T, running, b"alone");
    assert!(matches!(state.sequence(T, ConnId(1), &alone, &args), Ok(SequenceOutcome::Replay(_))));

    args.sequenceid = 3;
    args.highest_slotid = 4;
    assert_eq!(failed(state.sequence(T, ConnId(1), &request(1), &args)), NfsStat::BadHighSlot);
    args.highest_slotid = 1;
    let large = RequestHeader { bytes: 2 << 20, ..request(1) };
    assert_eq!(failed(state.sequence(T, ConnId(1), &large, &args)), NfsStat::ReqTooBig);
    let many = RequestHeader { operations: 17, ..request(1) };
    assert_eq!(failed(state.sequence(T, ConnId(1), &many, &args)), NfsStat::TooManyOps);
    assert!(state.sequence(T, ConnId(1), &request(1), &args).is_ok());
}

#[test]
fn slot_sequence_numbers_wrap() {
    let mut state = state();
    let (_, session) = client(&mut state, T, "a", 1);
    let slot = &mut state.sessions.get_mut(&session).unwrap().slots[0];
    *slot = Slot::at(u32::MAX);
    assert!(matches!(
        state.sequence(T, ConnId(1), &request(1), &sequence_args(session, 0, 0)),
        Ok(SequenceOutcome::New(..))
    ));
}

/// [RFC8881 18.37.3] [RFC8881 18.50.3] [RFC8881 18.33.3]
#[test]
fn sessions_and_clients_are_destroyed() {
    let mut state = state();
    let (id, session) = client(&mut state, T, "a", 1);
    let Ok(SequenceOutcome::New(running, _)) =
        state.sequence(T, ConnId(1), &request(1), &sequence_args(session, 0, 1))
    else {
        panic!()
    };
    let none = BackchannelCtlArgs { program: 1, security: List(Vec::new()) };
    assert_eq!(failed(state.backchannel_ctl(&running, &none)), NfsStat::Noent);
    assert_eq!(
        failed(state.destroy_session(ConnId(9), &who(1), None, &session)),
        NfsStat::ConnNotBoundToSession
    );
    assert_eq!(failed(state.destroy_session(ConnId(1), &who(1), None, &session)), NfsStat::Delay);
    assert_eq!(failed(state.destroy_clientid(&who(1), None, id)), NfsStat::ClientidBusy);
    state.destroy_session(ConnId(1), &who(1), Some(&running), &session).unwrap();
    // A request that contains the client cannot destroy it, even after destroying its session.
    assert_eq!(failed(state.destroy_clientid(&who(1), Some(&running), id)), NfsStat::ClientidBusy);
    state.finish(T, running, b"x");
    assert_eq!(failed(state.destroy_session(ConnId(1), &who(1), None, &session)), NfsStat::Badsession);
    assert_eq!(state.reply_cache_bytes, 0);
    state.destroy_clientid(&who(1), None, id).unwrap();
    assert!(matches!(&wanted(&mut state)[..], [Effect::Persist { change: RecordChange::Remove(_), .. }]));
    assert_eq!(failed(state.destroy_clientid(&who(1), None, id)), NfsStat::StaleClientid);
    assert!(state.clients.is_empty() && state.incarnations.is_empty());
}

#[test]
fn connections_are_bound() {
    let mut state = state();
    let (_, session) = client(&mut state, T, "a", 1);
    let bind = |direction| BindConn { sessionid: session, direction, rdma: false };
    let flags = |state: &mut StateManager, sequence| {
        let Ok(SequenceOutcome::New(running, ok)) =
            state.sequence(T, ConnId(5), &request(1), &sequence_args(session, 0, sequence))
        else {
            panic!()
        };
        state.finish(T, running, b"");
        ok.status_flags
    };
    assert_eq!(flags(&mut state, 1), 0);
    state.disconnected(ConnId(1));
    // [RFC8881 18.46.3]
    assert_eq!(flags(&mut state, 2), seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION);
    assert_eq!(state.bind_conn_to_session(T, ConnId(2), &who(1), &bind(7)).unwrap().direction, 3);
    assert_eq!(state.bind_conn_to_session(T, ConnId(3), &who(1), &bind(1)).unwrap().direction, 1);
    assert_eq!(failed(state.bind_conn_to_session(T, ConnId(3), &who(1), &bind(4))), NfsStat::Inval);
    assert_eq!(flags(&mut state, 3), 0);
    for conn in 10..100 {
        let _ = state.bind_conn_to_session(T, ConnId(conn), &who(1), &bind(3));
    }
    assert_eq!(state.sessions[&session].connections.len(), state.config.limits.connections);
}

/// [RFC8881 18.51.3]
#[test]
fn reclaim_complete_waits_for_a_durable_record() {
    let mut state = state();
    let id = state.exchange_id(T, HERE, &who(1), &exchange("a", 1, 0)).unwrap();
    state.create_session(T, ConnId(1), 1, &who(1), &create(id.clientid, id.sequenceid)).unwrap();
    let Err(Stop::Wait(ticket)) = state.reclaim_complete(T, id.clientid, false) else { panic!() };
    assert_eq!(state.reclaim_complete(T, id.clientid, false), Err(Stop::Wait(ticket)));
    assert_eq!(wanted(&mut state).len(), 1);
    // A failed write is tried again.
    assert!(state.effect_failed(ticket));
    let Err(Stop::Wait(again)) = state.reclaim_complete(T, id.clientid, false) else { panic!() };
    assert_ne!(ticket, again);
    assert!(state.effect_done(again) && !state.effect_done(again));
    assert_eq!(state.reclaim_complete(T, id.clientid, true), Ok(()));
    assert_eq!(state.reclaim_complete(T, id.clientid, false), Ok(()));
    assert_eq!(failed(state.reclaim_complete(T, id.clientid, false)), NfsStat::CompleteAlready);
}

#[test]
fn expired_clients_are_evicted_in_slices() {
    let mut state = state();
    state.config.limits.clients = 300;
    for number in 0..200 {
        state.exchange_id(T, HERE, &who(1), &exchange(&format!("{number}"), 1, 0)).unwrap();
    }
    let (kept, session) = client(&mut state, T, "kept", 1);
    let late = T + state.config.lease + Millis(1);
    let mut rounds = 1;
    while state.tick(late) == late {
        rounds += 1;
    }
    assert_eq!(rounds, 4);
    // A confirmed client is tolerated, and its next request renews its lease.
    assert_eq!(state.clients.keys().copied().collect::<Vec<_>>(), [kept]);
    assert!(state.lease_expired(late, kept));
    let very_late = T + state.config.courtesy + Millis(1);
    state.tick(very_late);
    let [Effect::Persist { ticket, change: RecordChange::Remove(_) }] = wanted(&mut state)[..] else {
        panic!()
    };
    assert_eq!(
        failed(state.sequence(very_late, ConnId(1), &request(1), &sequence_args(session, 0, 1))),
        NfsStat::Delay
    );
    state.effect_done(ticket);
    assert_eq!(
        failed(state.sequence(very_late, ConnId(1), &request(1), &sequence_args(session, 0, 1))),
        NfsStat::Badsession
    );
}

#[test]
fn unconfirmed_and_expired_clients_make_room() {
    let mut state = state();
    state.config.limits.clients = 2;
    let (old, _) = client(&mut state, T, "old", 1);
    state.exchange_id(T, HERE, &who(1), &exchange("b", 1, 0)).unwrap();
    let third = state.exchange_id(T, HERE, &who(1), &exchange("c", 1, 0)).unwrap();
    assert_eq!(state.clients.keys().copied().collect::<Vec<_>>(), [old, third.clientid]);
    state.create_session(T, ConnId(1), 1, &who(1), &create(third.clientid, third.sequenceid)).unwrap();
    assert_eq!(failed(state.exchange_id(T, HERE, &who(1), &exchange("d", 1, 0))), NfsStat::Delay);
    let late = T + state.config.lease + Millis(1);
    assert!(matches!(state.exchange_id(late, HERE, &who(1), &exchange("d", 1, 0)), Err(Stop::Wait(_))));
    settle(&mut state);
    state.exchange_id(late, HERE, &who(1), &exchange("d", 1, 0)).unwrap();
}

#[test]
fn one_host_does_not_keep_the_others_out() {
    let there = |n: u8| ClientHost(std::net::IpAddr::from([192, 0, 2, n]));
    let mut state = state();
    state.config.limits.clients = 16;
    for number in 0..16 {
        client(&mut state, T, &format!("{number}"), 1);
    }
    assert_eq!(failed(state.exchange_id(T, HERE, &who(1), &exchange("more", 1, 0))), NfsStat::Delay);
    // Two clients that come at the same time do not remove each other, nor does a host that has had its
    // share.
    let first = state.exchange_id(T, there(1), &who(1), &exchange("first", 1, 0)).unwrap();
    let second = state.exchange_id(T, there(2), &who(1), &exchange("second", 1, 0)).unwrap();
    assert_eq!(failed(state.exchange_id(T, HERE, &who(1), &exchange("more", 1, 0))), NfsStat::Delay);
    for id in [first, second] {
        state.create_session(T, ConnId(2), 1, &who(1), &create(id.clientid, id.sequenceid)).unwrap();
    }
    // The share has a limit.
    let mut room = 0;
    for n in 1..=200 {
        for number in 0..4 {
            let name = format!("{n} {number}");
            let Ok(id) = state.exchange_id(T, there(n), &who(1), &exchange(&name, 1, 0)) else { continue };
            state.create_session(T, ConnId(2), 1, &who(1), &create(id.clientid, id.sequenceid)).unwrap();
            room += 1;
        }
    }
    assert!((2..=6).contains(&room), "{room}");
    assert!(state.clients.len() <= 24);
}

#[test]
fn sessions_shrink_when_memory_is_short() {
    let mut state = state();
    state.config.limits.reply_cache_bytes = (1 << 20, 5 * 4096);
    let bytes = |state: &StateManager| state.reply_cache_bytes / 4096;
    let (_, session) = client(&mut state, T, "a", 1);
    let go = |state: &mut StateManager, sequence, highest| {
        let args = SequenceArgs { highest_slotid: highest, ..sequence_args(session, 0, sequence) };
        let Ok(SequenceOutcome::New(running, ok)) = state.sequence(T, ConnId(1), &request(1), &args) else {
            panic!()
        };
        state.finish(T, running, b"");
        (ok.highest_slotid, ok.target_highest_slotid)
    };
    let other = |state: &mut StateManager, slot, sequence| {
        let sequenced = state.sequence(T, ConnId(1), &request(1), &sequence_args(session, slot, sequence))?;
        let SequenceOutcome::New(running, _) = sequenced else { panic!() };
        state.finish(T, running, b"");
        Ok(())
    };
    for slot in [2, 2, 3] {
        let sequence = state.sessions[&session].slots[slot as usize].next();
        other(&mut state, slot, sequence).unwrap();
    }
    state.tick(T);
    assert_eq!(go(&mut state, 1, 3), (3, 1));
    assert_eq!(go(&mut state, 2, 3), (3, 1));
    assert_eq!(go(&mut state, 3, 1), (1, 1));
    assert_eq!(bytes(&state), 2);
    state.check_invariants();
    // Memory is free again: the slots come back, and the client may continue its sequence numbers or restart
    // them.
    assert_eq!(failed(other(&mut state, 2, 3)), NfsStat::Badslot);
    let scarce = std::mem::replace(&mut state.config.limits.reply_cache_bytes.1, 1 << 20);
    assert_eq!(go(&mut state, 4, 1), (1, 1));
    state.tick(T);
    assert_eq!(go(&mut state, 5, 1), (3, 3));
    assert_eq!(bytes(&state), 4);
    assert_eq!(failed(other(&mut state, 2, 2)), NfsStat::SeqMisordered);
    other(&mut state, 2, 3).unwrap();
    assert_eq!(failed(other(&mut state, 2, 1)), NfsStat::SeqMisordered);
    other(&mut state, 3, 1).unwrap();
    other(&mut state, 3, 2).unwrap();
    // Once more.
    state.config.limits.reply_cache_bytes.1 = scarce;
    state.tick(T);
    assert_eq!(go(&mut state, 6, 1), (3, 1), "an old target does not count");
    assert_eq!(go(&mut state, 7, 1), (1, 1));
    state.check_invariants();
    // The rest is shared.
    let id = state.exchange_id(T, HERE, &who(1), &exchange("b", 1, 0)).unwrap();
    let created =
        state.create_session(T, ConnId(1), 1, &who(1), &create(id.clientid, id.sequenceid)).unwrap();
    assert_eq!(created.fore.max_requests, 3);
}

/// A client with a valid lease gives up no slot for expired ones, nor for those that hold more.
#[test]
fn expired_clients_give_up_memory_first() {
    let there = ClientHost(std::net::IpAddr::from([192, 0, 2, 1]));
    let mut state = state();
    state.config.limits.reply_cache_bytes = (1 << 20, 24 * 4096);
    let bytes = |state: &StateManager| state.reply_cache_bytes / 4096;
    let (_, mine) = client(&mut state, T, "mine", 1);
    // The second client has the oldest lease.
    let theirs: Vec<_> = (0..4)
        .map(|number| (number, T + Millis(u64::from(number != 1))))
        .map(|(number, now)| client_at(&mut state, there, now, &format!("{number}"), 2).1)
        .collect();
    let go = |state: &mut StateManager, now, session, sequence, highest| {
        let args = SequenceArgs { highest_slotid: highest, ..sequence_args(session, 0, sequence) };
        let Ok(SequenceOutcome::New(running, ok)) = state.sequence(now, ConnId(1), &request(1), &args) else {
            panic!()
        };
        state.finish(now, running, b"");
        (ok.highest_slotid, ok.target_highest_slotid)
    };
    assert_eq!(bytes(&state), 20);
    let late = T + state.config.lease + Millis(10);
    assert_eq!(go(&mut state, late, mine, 1, 3), (3, 3));
    assert_eq!(go(&mut state, late, theirs[0], 1, 3), (3, 3));
    state.tick(late);
    // One eviction suffices, even while its record is still being removed.
    assert_eq!(go(&mut state, late, theirs[0], 2, 3), (3, 3));
    let struck = settle(&mut state);
    assert!(matches!(&struck[..], [Effect::Persist { change: RecordChange::Remove(_), .. }]), "{struck:?}");
    assert_eq!(bytes(&state), 16);
    state.tick(late);
    assert!(wanted(&mut state).is_empty(), "the others are tolerated");
    // No other client is expired.
    for session in &theirs[2..] {
        assert_eq!(go(&mut state, late, *session, 1, 3), (3, 3));
    }
    client_at(&mut state, there, late, "one more", 2);
    state.tick(late);
    assert_eq!(go(&mut state, late, mine, 2, 3), (3, 3));
    assert_eq!(go(&mut state, late, theirs[0], 3, 3), (3, 1));
    assert_eq!(go(&mut state, late, theirs[0], 4, 1), (1, 1));
    assert_eq!(bytes(&state), 18);
    state.tick(late);
    assert_eq!(go(&mut state, late, theirs[2], 2, 3), (3, 3), "that was enough");
    state.check_invariants();
}
