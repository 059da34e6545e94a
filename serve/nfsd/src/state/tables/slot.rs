//! Slots of a session, and the requests that run in them.

use std::sync::Arc;

use ivers_nfs4::types::{ClientId, SessionId};

use super::super::ids::{Digest, Principal};

/// A running request of a session. It must be [finished](super::super::StateManager::finish), even on errors.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the slot stays busy until it is finished"]
pub struct SessionRequest {
    /// The client that sent it.
    pub client: ClientId,
    /// Its session.
    pub session: SessionId,
    /// Its slot.
    pub slot: u32,
    /// Its sequence number in that slot.
    pub sequence: u32,
    /// Whether to cache its reply.
    pub keep: bool,
    /// Maximum size of its reply.
    pub reply_bytes: u32,
}

#[derive(Debug, Clone)]
pub(in crate::state) struct Completed {
    pub principal: Principal,
    pub digest: Digest,
    pub reply: Option<Arc<[u8]>>,
}

#[derive(Debug, Clone, Default)]
pub(in crate::state) enum SlotContent {
    #[default]
    Unused,
    /// The slot was retired and restored: the client continues its sequence numbers or starts again at 1.
    Restored,
    Busy {
        principal: Principal,
        digest: Digest,
    },
    Completed(Completed),
}

#[derive(Debug, Clone, Default)]
pub(in crate::state) struct Slot {
    pub sequence: u32,
    pub content: SlotContent,
    /// The `target_version` of the session that the slot's last reply contained.
    pub advertised_version: u32,
}

impl Slot {
    #[cfg(test)]
    pub fn at(sequence: u32) -> Self {
        Self { sequence, ..Self::default() }
    }

    #[cfg(test)]
    pub fn next(&self) -> u32 {
        self.sequence.wrapping_add(1)
    }

    pub fn is_busy(&self) -> bool {
        matches!(self.content, SlotContent::Busy { .. })
    }

    /// Returns whether the client has seen the reply to this request, because it has sent a later one.
    pub fn is_past(&self, sequence: u32) -> bool {
        self.sequence != sequence
    }
}

/// The request in which a delegation was granted. Callbacks refer to it until the client has seen the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::state) struct RequestId {
    pub session: SessionId,
    pub slot: u32,
    pub sequence: u32,
}

impl From<&SessionRequest> for RequestId {
    fn from(running: &SessionRequest) -> Self {
        Self { session: running.session, slot: running.slot, sequence: running.sequence }
    }
}
