//! What the server has to perform before an operation continues.

use ivers_nfs4::types::ClientId;

use super::super::ids::FileId;

/// The purpose of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::state) enum Pending {
    /// Writing a client's record.
    RecordPut,
    /// Recording that a client has lost a delegation.
    RevocationMark(ClientId),
    /// Removing a client's record; then the client is removed.
    Evicting(ClientId),
    /// Removing the records of clients that did not reclaim; then the grace period ends.
    GraceEnd,
    /// Bumping a file's change attribute.
    Bump(FileId),
    /// Asking the holder of this write delegation for attributes.
    Getattr(u32),
    /// Nothing to do when it is done.
    Nothing,
}
