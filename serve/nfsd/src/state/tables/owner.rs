//! Open-owners and lock-owners, with the sequence of their requests in NFSv4.0.

use std::collections::BTreeSet;
use std::sync::Arc;

use ivers_nfs4::types::ClientId;

use super::super::ids::{CachedReply, Time};

/// The kind of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::state) enum OwnerKind {
    Open,
    Lock,
}

/// An open-owner or a lock-owner.
#[derive(Debug)]
pub(in crate::state) struct Owner {
    pub client: ClientId,
    pub kind: OwnerKind,
    pub name: Vec<u8>,
    pub entries: BTreeSet<u32>,
    /// The sequence of its requests in NFSv4.0.
    pub sequence: Option<OwnerSeqid>,
}

impl Owner {
    pub fn is_busy(&self) -> bool {
        self.sequence.as_ref().is_some_and(|sequence| sequence.busy)
    }
}

#[derive(Debug)]
pub(in crate::state) struct OwnerSeqid {
    pub last: u32,
    pub reply: Option<Arc<CachedReply>>,
    pub busy: bool,
    /// The owner is confirmed: its first OPEN was not an old retransmission.
    pub confirmed: bool,
    pub last_used: Time,
    /// The stateid of the last CLOSE, which a retry of that CLOSE contains.
    pub closed: Option<[u8; 12]>,
}
