//! Tests of the state with their own clock, random numbers and clients.

mod copies;
mod delegations;
mod driver;
mod fair_share;
mod grace;
mod locks;
mod opens;
mod sessions;
mod stats;
mod v40;

use ivers_nfs4::ops::v40::{ClientOwner, share};
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, LockType, Opaque, SessionId, StateId};
use ivers_nfs4::xdr::List;

use super::*;

/// A deterministic random generator (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Seeded(pub u64);

impl Rng for Seeded {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(super) fn state() -> StateManager {
    StateManager::new(Time(0), Config::default(), 1, PreviousBoot::default(), Box::new(Seeded(7)))
}

pub(super) const HERE: ClientHost = ClientHost(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

pub(super) fn who(user: u8) -> Principal {
    Principal::new(&[user])
}

pub(super) fn exchange(name: &str, verifier: u8, flags: u32) -> ExchangeIdArgs {
    ExchangeIdArgs {
        owner: ClientOwner { verifier: [verifier; 8], id: Opaque(name.as_bytes().to_vec()) },
        flags,
        protect: StateProtect::None,
        implementation: List(Vec::new()),
    }
}

pub(super) fn channel(slots: u32) -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_response_cached: 4096,
        max_operations: 16,
        max_requests: slots,
        rdma_ird: List(Vec::new()),
    }
}

pub(super) fn create(clientid: ClientId, sequence: u32) -> CreateSessionArgs {
    CreateSessionArgs {
        clientid,
        sequence,
        flags: session_flags::CONN_BACK_CHAN,
        fore: channel(4),
        back: channel(2),
        callback_program: 0x4000_0000,
        security: List(vec![CallbackSecurity::None]),
    }
}

pub(super) fn sequence_args(sessionid: SessionId, slotid: u32, sequenceid: u32) -> SequenceArgs {
    SequenceArgs { sessionid, sequenceid, slotid, highest_slotid: slotid, cache_this: true }
}

pub(super) fn request(digest: u64) -> RequestHeader {
    RequestHeader { principal: who(1), digest: Digest(digest), bytes: 200, operations: 3 }
}

/// Returns the effects without Pin and Unpin, which the driver checks.
pub(super) fn wanted(state: &mut StateManager) -> Vec<Effect> {
    let mut effects = state.take_effects();
    effects.retain(|effect| !matches!(effect, Effect::Pin { .. } | Effect::Unpin { .. }));
    effects
}

/// Performs the effects.
pub(super) fn settle(state: &mut StateManager) -> Vec<Effect> {
    let effects = wanted(state);
    for effect in &effects {
        match effect {
            Effect::Persist { ticket, .. } | Effect::Bump { ticket, .. } => {
                assert!(state.effect_done(*ticket))
            }
            Effect::Callback { .. } | Effect::Wake { .. } | Effect::Pin { .. } | Effect::Unpin { .. } => {}
        }
    }
    effects
}

/// Creates a client with a session that has nothing to reclaim.
pub(super) fn client(state: &mut StateManager, now: Time, name: &str, conn: u64) -> (ClientId, SessionId) {
    client_at(state, HERE, now, name, conn)
}

/// Creates a client at a host.
pub(super) fn client_at(
    state: &mut StateManager,
    host: ClientHost,
    now: Time,
    name: &str,
    conn: u64,
) -> (ClientId, SessionId) {
    let id = state.exchange_id(now, host, &who(1), &exchange(name, 1, 0)).unwrap();
    let session =
        state.create_session(now, ConnId(conn), 1, &who(1), &create(id.clientid, id.sequenceid)).unwrap();
    assert!(matches!(state.reclaim_complete(now, id.clientid, false), Err(Stop::Wait(_))));
    settle(state);
    state.reclaim_complete(now, id.clientid, false).unwrap();
    (id.clientid, session.sessionid)
}

/// Returns the error of a step.
pub(super) fn failed<T: std::fmt::Debug>(step: Step<T>) -> NfsStat {
    match step {
        Err(Stop::Fail(status)) => status,
        other => panic!("{other:?}"),
    }
}

/// The time of most tests.
pub(super) const T: Time = Time(1000);

/// Opens a file without a delegation.
pub(super) fn open(
    state: &mut StateManager,
    client: ClientId,
    owner: &str,
    file: FileId,
    access: u32,
    deny: u32,
) -> Step<Opened> {
    open_at(state, T, client, owner, file, access, deny)
}

pub(super) fn open_at(
    state: &mut StateManager,
    now: Time,
    client: ClientId,
    owner: &str,
    file: FileId,
    access: u32,
    deny: u32,
) -> Step<Opened> {
    open_as(state, now, client, owner, file, (access, deny), share::WANT_NO_DELEG, Claim::Null)
}

#[expect(clippy::too_many_arguments, reason = "an OPEN has that many")]
pub(super) fn open_as(
    state: &mut StateManager,
    now: Time,
    client: ClientId,
    owner: &str,
    file: FileId,
    (access, deny): (u32, u32),
    wants: u32,
    claim: Claim,
) -> Step<Opened> {
    let owner = owner.as_bytes();
    let request = OpenRequest { client, owner, access, deny, wants, claim, running: None };
    let plan = state.open_plan(now, &request)?;
    match state.open_claim(now, &plan, file, false) {
        Ok(()) => Ok(state.open_commit(now, plan, file, true).unwrap()),
        Err(stop) => {
            state.open_abort(now, plan);
            Err(stop)
        }
    }
}
