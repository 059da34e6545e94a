//! Operations in progress.

use ivers_nfs4::ops::v40::share;
use ivers_nfs4::types::ClientId;

use super::super::ids::{FileId, Ticket};
use super::open::PlannedOpen;

/// The effect of an operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// READ, READ_PLUS, SEEK, the source of COPY and CLONE.
    Read,
    /// WRITE, ALLOCATE, DEALLOCATE, the target of COPY and CLONE.
    Write,
    /// SETATTR of the size.
    Resize,
    /// SETATTR of anything else, SETXATTR, REMOVEXATTR: requires no stateid.
    Metadata,
    /// REMOVE, LINK, RENAME: requires no stateid.
    Namespace,
}

impl Access {
    pub(in crate::state) fn share_bits(self) -> u32 {
        match self {
            Self::Read => share::READ,
            Self::Write | Self::Resize => share::WRITE,
            Self::Metadata | Self::Namespace => 0,
        }
    }
}

/// Permission for one operation on a file. It must be [ended](super::super::StateManager::end_permit), even
/// if the operation fails.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the permit blocks others until it is ended"]
pub struct Permit(pub(in crate::state) u64);

/// An operation in progress.
#[derive(Debug)]
pub(in crate::state) struct InFlight {
    pub client: Option<ClientId>,
    pub file: Option<FileId>,
    pub kind: InFlightKind,
    /// It does not renew the client's lease.
    pub no_renewal: bool,
}

#[derive(Debug)]
pub(in crate::state) enum InFlightKind {
    /// A permit, and the open, lock or delegation that it is based on.
    Permit { access: Access, by: Option<u32> },
    /// An OPEN that is neither committed nor aborted.
    Open(PlannedOpen),
    /// Reading change attribute, size and times.
    Getattr,
    /// Passing on what the holder of this delegation replied. Others wait for the ticket.
    HolderReply(u32, Ticket),
}
