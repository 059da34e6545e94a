//! The last check of the memory for cached replies.

use std::collections::BTreeSet;

use super::super::ids::ClientHost;

/// The result of the last check.
#[derive(Debug, Default)]
pub(in crate::state) struct ReplyMemory {
    /// Number of checks. A session changes its size at most once per round.
    pub round: u64,
    /// Hosts that hold more than a fair share.
    pub over_share: BTreeSet<ClientHost>,
}
