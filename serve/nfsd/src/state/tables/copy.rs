//! Asynchronous copies.

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{StateId, Verifier};

use super::super::ids::{FileId, Ticket, Time};
use super::slot::RequestId;

/// A copy that is running, or whose result the client may not know.
#[derive(Debug)]
pub(in crate::state) struct Copy {
    pub source: (FileId, StateId),
    pub target: (FileId, StateId),
    pub verifier: Verifier,
    pub request_id: Option<RequestId>,
    pub count: u64,
    /// A slice is running.
    pub busy: bool,
    /// The ticket of an OFFLOAD_CANCEL that waits for the slice.
    pub cancelled: Option<Ticket>,
    pub ended: Option<(Time, NfsStat)>,
}
