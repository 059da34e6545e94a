//! Clients, and which of them share a name.

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::types::{ClientId, SessionId, Verifier};

use super::super::client_record::ClientRecord;
use super::super::ids::{ClientHost, FileId, Principal, Ticket, Time};
use super::owner::OwnerKind;
use super::session::CreateSlot;
use super::v40::V40;

/// The clients with one name: at most one is confirmed, and at most one waits to replace it.
#[derive(Debug, Default)]
pub(in crate::state) struct Incarnations {
    pub confirmed: Option<ClientId>,
    pub unconfirmed: Option<ClientId>,
}

/// Whether stable storage knows that a delegation was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::state) enum RevocationMark {
    None,
    Writing(Ticket),
    Durable,
}

/// One boot of a client.
#[derive(Debug)]
pub(in crate::state) struct Client {
    pub id: ClientId,
    pub host: ClientHost,
    pub with_sessions: bool,
    pub owner: Vec<u8>,
    pub verifier: Verifier,
    pub principal: Principal,
    pub confirmed: bool,
    pub renewed: Time,
    /// Number of permits, plans, busy slots and owner requests of the client.
    pub busy: u32,
    pub revocation_mark: RevocationMark,
    /// The client's record is being removed. Until that is durable, others cannot get its state, and it gets
    /// nothing.
    pub evicting: Option<Ticket>,
    /// The client has reclaimed everything.
    pub reclaim_completed: bool,
    pub create: CreateSlot,
    pub sessions: BTreeSet<SessionId>,
    pub reply_cache_bytes: u64,
    /// The equivalent of sessions in NFSv4.0.
    pub v40: Option<V40>,
    /// The client held state before the restart.
    pub may_reclaim: bool,
    pub entries: BTreeSet<u32>,
    pub owners: BTreeMap<(OwnerKind, Vec<u8>), u64>,
    pub delegations: usize,
    /// Number of revoked delegations that the client has not acknowledged.
    pub revoked: usize,
    pub ranges: usize,
    pub waiters: usize,
    pub waits_on: BTreeSet<FileId>,
}

impl Client {
    pub fn as_record(&self) -> ClientRecord {
        ClientRecord {
            sessions: self.with_sessions,
            owner: self.owner.clone(),
            verifier: self.verifier,
            principal: self.principal.clone(),
            revoked: self.revocation_mark != RevocationMark::None,
        }
    }

    /// Returns whether the client holds state that others may need.
    pub fn holds_state(&self) -> bool {
        !self.entries.is_empty()
    }
}
