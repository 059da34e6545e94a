//! The maximum of everything, and more.

use ivers_nfs4::ops::SetClientIdRes;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::xdr::List;

use super::*;

fn create(clientid: ClientId, sequence: u32, count: u32) -> Op {
    let channel = ChannelAttrs {
        header_pad_size: u32::MAX,
        max_request: u32::MAX,
        max_response: u32::MAX,
        max_response_cached: count,
        max_operations: u32::MAX,
        max_requests: count,
        rdma_ird: List(Vec::new()),
    };
    create_session(clientid, sequence, channel)
}

/// Far more names than the limit of clients; none is confirmed.
pub fn names(target: &Target) {
    let mut client = Client::connect(target.address, "names");
    for number in 0..6000 {
        let name = format!("{number} {}", "x".repeat(900));
        let (status, _) = client.compound(1, vec![exchange([3; 8], &name)]);
        assert_eq!(status, NfsStat::Ok, "an unconfirmed client makes room");
        let args = SetClientIdArgs {
            client: ClientOwner { verifier: [4; 8], id: Opaque(name.into_bytes()) },
            callback: CallbackClient {
                program: 1,
                location: NetAddr { netid: b"tcp".to_vec(), addr: b"192.0.2.1.1.1".to_vec() },
            },
            callback_ident: 1,
        };
        let (_, results) = client.compound(0, vec![Op::SetClientId(args)]);
        assert!(matches!(results.last(), Some(OpResult::SetClientId(SetClientIdRes::Ok(_)))), "{results:?}");
    }
    newcomer(target.address, "among the names");
}

/// More sessions than a client may have, of the maximum size; then more clients than the limit.
pub fn sessions(target: &Target) {
    let mut client = Client::connect(target.address, "sessions");
    let (_, results) = client.compound(1, vec![exchange([3; 8], "sessions")]);
    let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
    let mut made = 0;
    for sequence in known.sequenceid.. {
        let (status, results) = client.compound(1, vec![create(known.clientid, sequence, u32::MAX)]);
        let Some(OpResult::CreateSession(Ok(session))) = results.last() else {
            assert_eq!(status, NfsStat::Delay);
            break;
        };
        made += 1;
        assert!(session.fore.max_requests <= 64 && session.fore.max_response_cached <= 8192);
    }
    assert!((1..=16).contains(&made), "{made} sessions");
    assert_eq!(client.compound(1, vec![create(known.clientid + 1_000_000, 1, 1)]).0, NfsStat::StaleClientid);
    let mut clients = 0;
    for number in 0..5000 {
        let (status, results) = client.compound(1, vec![exchange([3; 8], &format!("client {number}"))]);
        let Some(OpResult::ExchangeId(Ok(known))) = results.last() else {
            // Until the lease of the first clients is over.
            assert_eq!(status, NfsStat::Delay);
            continue;
        };
        let (status, _) = client.compound(1, vec![create(known.clientid, known.sequenceid, 1)]);
        assert!(matches!(status, NfsStat::Ok | NfsStat::Delay), "{status:?}");
        clients += usize::from(status == NfsStat::Ok);
    }
    assert!(clients > 1000, "{clients}");
    std::thread::sleep(Duration::from_secs(u64::from(LEASE_SECONDS) + 1));
    newcomer(target.address, "behind the sessions");
}

/// Number of concurrent requests of one client.
const AT_ONCE: u64 = 16;

/// Returns the number of successes and the errors of the others.
fn granted(client: &mut Client, total: u64, make: impl FnMut(u64) -> Vec<Op>) -> u64 {
    let mut count = 0;
    client.stream(AT_ONCE as usize, total, make, |status, results| match status {
        NfsStat::Ok => count += 1,
        NfsStat::Delay | NfsStat::Resource => {}
        other => panic!("{other:?}: {:?}", results.last()),
    });
    count
}

/// Opens of one file by thousands of owners, whose client disappears without closing them.
pub fn opens(target: &Target) {
    for round in 0..2 {
        let mut client = Client::new(target.address, &format!("opens {round}"));
        make(&mut client, "opened");
        let by = |number: u64| {
            let access = share::BOTH | share::WANT_NO_DELEG;
            [data(), vec![open(&format!("o{number}"), access, OpenHow::NoCreate, named("opened"))]].concat()
        };
        // One open existed before. Each running OPEN reserves one, even if it fails later.
        let count = granted(&mut client, 4_200, by);
        assert!((4_000 - 2 * AT_ONCE..4_000).contains(&count), "{count} opens, the limit of a client");
    }
    newcomer(target.address, "behind the opens");
}

/// Separate ranges of one owner; then one range for each of many owners; then all are released at once.
pub fn locks(target: &Target) {
    let mut client = Client::new(target.address, "locks");
    let (stateid, handle) = make(&mut client, "locked");
    let lock = |owner: &str, kind, offset| {
        let lock_owner = Owner { clientid: 0, owner: Opaque(owner.as_bytes().to_vec()) };
        let new = OpenToLockOwner { open_seqid: 0, open_stateid: stateid, lock_seqid: 0, lock_owner };
        let locker = Locker::New(new);
        let args = LockArgs { kind, reclaim: false, offset, length: 1, locker };
        vec![Op::PutFh(handle.clone()), Op::Lock(args)]
    };
    let (_, results) = client.call(lock("ranges", LockType::Read, 0));
    let Some(OpResult::Lock(Locked::Ok(held))) = results.last() else { panic!("{results:?}") };
    let ranges = granted(&mut client, 20_100, |number| lock("ranges", LockType::Read, 2 + 2 * number));
    // One range existed before, and one LOCK may split a range.
    assert!((20_000 - 2 * AT_ONCE..20_000).contains(&ranges), "{ranges} ranges, the limit of a client");
    // With the current seqid, whatever it is.
    let stateid = StateId { seqid: 0, ..*held };
    let all = UnlockArgs { kind: LockType::Read, seqid: 0, stateid, offset: 0, length: u64::MAX };
    assert_eq!(client.call(vec![Op::PutFh(handle.clone()), Op::LockU(all)]).0, NfsStat::Ok);
    let owners = granted(&mut client, 3_000, |number| lock(&format!("l{number}"), LockType::Read, 0));
    assert_eq!(owners, 3_000);
    // Each file is queried.
    for number in 0..200 {
        let owner = Owner { clientid: 0, owner: Opaque(format!("t{number}").into_bytes()) };
        let test = LockTestArgs { kind: LockType::Write, offset: 0, length: u64::MAX, owner };
        assert_eq!(client.call(vec![Op::PutFh(handle.clone()), Op::LockT(test)]).0, NfsStat::Denied);
    }
}
