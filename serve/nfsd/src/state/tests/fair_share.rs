//! One host takes as much as it can, then another one comes.

use ivers_nfs4::ops::v40::{CallbackClient, SetClientIdArgs};
use ivers_nfs4::types::{NetAddr, StateId};

use super::*;

fn there(n: u8) -> ClientHost {
    ClientHost(std::net::IpAddr::from([192, 0, 2, n]))
}

fn file(inode: usize) -> FileId {
    FileId { export: 1, inode: inode as u64, generation: 3 }
}

const SHARED: usize = 1_000_000;

fn opened(state: &mut StateManager, id: ClientId, owner: &str, inode: usize) -> Step<StateId> {
    match open(state, id, owner, file(inode), share::BOTH, 0) {
        // The record of an NFSv4.0 client is written first.
        Err(Stop::Wait(_)) => {
            settle(state);
            open(state, id, owner, file(inode), share::BOTH, 0)
        }
        other => other,
    }
    .map(|opened| opened.stateid)
}

fn of_old(state: &mut StateManager, host: ClientHost, name: &str) -> ClientId {
    let args = SetClientIdArgs {
        client: ClientOwner { verifier: [1; 8], id: Opaque(name.into()) },
        callback: CallbackClient {
            program: 1,
            location: NetAddr { netid: b"tcp".to_vec(), addr: b"127.0.0.1.8.1".to_vec() },
        },
        callback_ident: 1,
    };
    let confirm = state.set_client_id(T, host, &who(1), &args).unwrap();
    state.set_client_id_confirm(T, &who(1), &confirm).unwrap();
    confirm.clientid
}

fn lock(state: &mut StateManager, id: ClientId, owner: &str, kind: LockType, offset: u64) -> Step<StateId> {
    let open = opened(state, id, "o", SHARED)?;
    let locker = Locker::New { open, owner: owner.as_bytes() };
    let request = LockRequest { locker, kind, reclaim: false, offset, length: 1 };
    state.lock(T, Caller::Client(id), file(SHARED), &request)
}

/// A resource with limits: how to take one more, and how many there are.
struct Kind {
    name: &'static str,
    bound: fn(&mut Limits, (usize, usize)),
    take: fn(&mut StateManager, ClientId, usize) -> bool,
    count: fn(&StateManager) -> usize,
    old: bool,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "opens",
        bound: |limits, to| limits.stateids = to,
        take: |state, id, n| opened(state, id, "o", n).is_ok(),
        count: |state| state.entries.len(),
        old: false,
    },
    Kind {
        name: "ranges",
        bound: |limits, to| limits.ranges = to,
        take: |state, id, n| lock(state, id, "l", LockType::Read, 2 * n as u64).is_ok(),
        count: |state| state.ranges,
        old: false,
    },
    Kind {
        name: "delegations",
        bound: |limits, to| limits.delegations = to,
        take: |state, id, n| {
            let opened = open_as(state, T, id, "o", file(n), (share::READ, 0), 0, Claim::Null).unwrap();
            matches!(opened.delegation, DelegationGrant::Read(_))
        },
        count: |state| state.delegations,
        old: false,
    },
    Kind {
        name: "waiters",
        bound: |limits, to| limits.waiters = to,
        take: |state, id, n| {
            let before = state.waiters;
            if !state.files.contains_key(&file(SHARED)) {
                let holder = client_at(state, there(250), T, "holder", 250).0;
                lock(state, holder, "h", LockType::Write, 0).unwrap();
            }
            let stop = lock(state, id, &format!("w{n}"), LockType::WriteW, 0);
            assert!(matches!(stop, Err(Stop::Denied(_))), "{stop:?}");
            state.waiters > before
        },
        count: |state| state.waiters,
        old: false,
    },
    Kind {
        name: "copies",
        bound: |limits, to| limits.copies = to,
        take: |state, id, _| {
            let (from, to) = (file(SHARED), file(SHARED + 1));
            let source = opened(state, id, "o", SHARED).unwrap();
            let target = opened(state, id, "o", SHARED + 1).unwrap();
            let wanted = CopyRequest { source: (from, source), target: (to, target), verifier: [9; 8] };
            state.copy_begin(T, id, None, &wanted).unwrap().is_some()
        },
        count: |state| state.copies.len(),
        old: false,
    },
    Kind {
        name: "owners",
        bound: |limits, to| limits.owners = to,
        take: |state, id, n| {
            let Ok(owner_request) =
                state.begin_owner_request(T, &SeqidOwner::Open(id, format!("o{n}").as_bytes()), 1)
            else {
                return false;
            };
            state.end_owner_request(
                T,
                owner_request,
                NfsStat::Access,
                CachedReply { bytes: Vec::new(), file: None },
            );
            true
        },
        count: |state| state.owners.len(),
        old: true,
    },
];

impl Kind {
    /// Clients of a host take as much as they get. Returns how much that is.
    fn flood(&self, state: &mut StateManager, host: ClientHost, clients: usize) -> usize {
        let mut got = 0;
        for number in 0..clients {
            let name = format!("{host:?} {number}");
            let id = match self.old {
                true => of_old(state, host, &name),
                false => client_at(state, host, T, &name, 1 + got as u64).0,
            };
            got += (0..).take_while(|&n| (self.take)(state, id, n)).count();
        }
        got
    }
}

#[test]
fn one_host_leaves_the_others_their_share() {
    for kind in KINDS {
        let mut state = state();
        (kind.bound)(&mut state.config.limits, (8, 32));
        let flood = kind.flood(&mut state, HERE, 6);
        // An unlock may split a range, and keeps room for that.
        assert!((31..=32).contains(&flood), "{}: {flood}", kind.name);
        state.check_invariants();
        // Half of an equal share.
        let first = kind.flood(&mut state, there(1), 2);
        assert!((7..=8).contains(&first), "{}: {first}", kind.name);
        assert_eq!(kind.flood(&mut state, HERE, 0), 0);
        let second = kind.flood(&mut state, there(2), 2);
        assert!((3..=5).contains(&second), "{}: {second}", kind.name);
        for n in 3..20 {
            kind.flood(&mut state, there(n), 1);
        }
        assert!((kind.count)(&state) <= 48, "{}", kind.name);
        state.check_invariants();
    }
}

#[test]
fn released_resources_are_available_again() {
    let mut state = state();
    state.config.limits.stateids = (8, 32);
    assert_eq!(KINDS[0].flood(&mut state, HERE, 4), 32);
    let (late, _) = client(&mut state, T, "late", 90);
    assert_eq!(failed(opened(&mut state, late, "o", 0)), NfsStat::Delay);
    let (other, _) = client_at(&mut state, there(1), T, "other", 91);
    let theirs = opened(&mut state, other, "o", 0).unwrap();
    state.close(T, Caller::Client(other), file(0), &theirs).unwrap();
    // What others hold above the limit only costs hosts that are over their share.
    assert_eq!(failed(opened(&mut state, late, "o", 0)), NfsStat::Delay);
    let first = state.entries.values().next().map(|held| held.client).unwrap();
    state.remove_client(first);
    settle(&mut state);
    opened(&mut state, late, "o", 0).unwrap();
    state.check_invariants();
}

#[test]
fn memory_for_replies_is_shared() {
    let mut state = state();
    let each = 4 * 4096;
    state.config.limits.reply_cache_bytes = (each, 4 * each);
    for number in 0..4 {
        client(&mut state, T, &format!("{number}"), 1);
    }
    let session = |state: &mut StateManager, host, name: &str| {
        let id = state.exchange_id(T, host, &who(1), &exchange(name, 1, 0)).unwrap();
        state.create_session(T, ConnId(2), 1, &who(1), &create(id.clientid, id.sequenceid))
    };
    assert_eq!(failed(session(&mut state, HERE, "more")), NfsStat::Delay);
    assert_eq!(session(&mut state, there(1), "first").unwrap().fore.max_requests, 4);
    assert!(session(&mut state, there(2), "second").unwrap().fore.max_requests > 0);
    state.check_invariants();
}

/// The default limits: eight clients of one host take all opens, then another host comes.
#[test]
fn a_flood_with_default_limits_leaves_the_others_their_share() {
    let mut state = state();
    let limits = state.config.limits.clone();
    assert_eq!(limits.stateids, (131_072, 8 * 131_072));
    for number in 0..8 {
        let (id, _) = client(&mut state, T, &format!("{number}"), 1);
        for inode in 0..limits.stateids.0 {
            opened(&mut state, id, "o", number * limits.stateids.0 + inode).unwrap();
        }
        state.take_effects();
        assert_eq!(failed(opened(&mut state, id, "o", SHARED * 100)), NfsStat::Delay);
    }
    let (late, _) = client(&mut state, T, "late", 1);
    assert_eq!(failed(opened(&mut state, late, "o", SHARED * 100)), NfsStat::Delay);
    let (other, _) = client_at(&mut state, there(1), T, "other", 2);
    for n in 0..131_072 {
        opened(&mut state, other, "o", n).unwrap();
    }
    assert_eq!(
        failed(opened(&mut state, other, "o", SHARED * 100)),
        NfsStat::Delay,
        "it is all that a client may have"
    );
    let (one_more, _) = client_at(&mut state, there(1), T, "one more", 2);
    opened(&mut state, one_more, "o", 0).unwrap();
    assert_eq!(failed(opened(&mut state, late, "o", SHARED * 100)), NfsStat::Delay);
}
