//! Slots of back channels, in which the server is the requester.

use super::super::effects::Callback;

/// A slot of a back channel, in which the server is the requester.
#[derive(Debug, Clone, Default)]
pub(in crate::state) struct BackSlot {
    pub sequence: u32,
    pub busy: bool,
    /// The connection broke before the reply. Only the same callback may use this sequence number.
    pub unanswered: Option<Callback>,
}

impl BackSlot {
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    pub fn is_stuck(&self) -> bool {
        !self.busy && self.unanswered.is_some()
    }
}
