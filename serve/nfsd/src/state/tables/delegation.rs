//! Delegations and their recalls.

use super::super::ids::{Ticket, Time};
use super::slot::RequestId;

#[derive(Debug)]
pub(in crate::state) struct Recall {
    pub since: Time,
    /// The time of the next check.
    pub check: Time,
    /// The client has acknowledged the recall.
    pub delivered: bool,
}

#[derive(Debug)]
pub(in crate::state) struct Delegation {
    pub write: bool,
    /// Change attribute and size at the grant.
    pub granted_attrs: Option<(u64, u64)>,
    /// Reclaimed after a restart: `granted_attrs` is unknown.
    pub reclaimed: bool,
    /// The server has reported changes of the holder to another client.
    pub reported_modified: bool,
    pub request_id: Option<RequestId>,
    pub recall: Option<Recall>,
    /// When the holder last wrote or opened with the delegation.
    pub last_used: Time,
    pub getattr: Option<Ticket>,
    /// The holder's reply is being passed on.
    pub reply_in_flight: Option<Ticket>,
    pub revoked: bool,
}
