//! Lock stateids, and the lock-owners that wait.

use ivers_nfs4::types::ClientId;

use super::super::ids::Time;
use super::super::range::Range;

#[derive(Debug)]
pub(in crate::state) struct LockState {
    pub owner: u64,
    /// The open that the locks belong to.
    pub open: u32,
}

/// A lock-owner to notify when a lock may be free. The lock is not reserved for it.
#[derive(Debug)]
pub(in crate::state) struct Waiter {
    pub client: ClientId,
    pub owner: Vec<u8>,
    pub range: Range,
    pub write: bool,
    pub since: Time,
}
