//! Events since the start, for administrators.

use ivers_nfs4::types::ClientId;

use super::super::ids::FileId;

/// Events since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Confirmations of clients.
    pub clients_confirmed: u64,
    /// Evictions of clients.
    pub clients_evicted: u64,
    /// Recalls of delegations.
    pub recalls: u64,
    /// Revocations of delegations.
    pub revocations: u64,
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// A client was evicted.
    Evicted(ClientId),
    /// A delegation is recalled.
    Recalled(ClientId, FileId),
    /// A delegation was not returned in time, and is revoked.
    Revoked(ClientId, FileId),
    /// The grace period is over.
    GraceOver,
}
