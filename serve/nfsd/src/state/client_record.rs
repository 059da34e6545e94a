//! Clients on stable storage.

use super::ids::Principal;

/// A client on stable storage. After a restart it may reclaim what it held.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientRecord {
    /// Whether the client uses sessions (NFSv4.1 or later).
    pub sessions: bool,
    /// The client's own name: `co_ownerid`, or `id` in NFSv4.0.
    pub owner: Vec<u8>,
    /// Identifies the boot of the client.
    pub verifier: [u8; 8],
    /// The principal that created the client.
    pub principal: Principal,
    /// A delegation of the client was revoked, and the client may not know: it must not reclaim delegations
    /// (section 8.4.3).
    pub revoked: bool,
}

impl ClientRecord {
    /// The key of the record.
    pub(super) fn key(&self) -> (bool, Vec<u8>) {
        (self.sessions, self.owner.clone())
    }

    /// Returns whether both records are of one boot of one client.
    pub fn is_same_boot(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.sessions, it.verifier);
        key(self) == key(other) && self.owner == other.owner && self.principal == other.principal
    }
}

/// A change of the list of clients, which has one record for each `sessions` and `owner`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChange {
    /// Add a record, or replace the one with the same key.
    Put(ClientRecord),
    /// Remove the records that are still [of the same boot](ClientRecord::is_same_boot).
    Remove(Vec<ClientRecord>),
}
