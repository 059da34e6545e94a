//! What a stateid identifies.

use ivers_nfs4::types::ClientId;

use super::super::ids::FileId;
use super::copy::Copy;
use super::delegation::Delegation;
use super::lock::LockState;
use super::open::Open;

/// The state that an index identifies. Most are opens, so the larger kinds are on their own.
#[derive(Debug)]
pub(in crate::state) enum EntryKind {
    Open(Open),
    Lock(LockState),
    Delegation(Box<Delegation>),
    Copy(Box<Copy>),
}

/// A piece of state. Its stateid consists of boot count, index and random number.
#[derive(Debug)]
pub(in crate::state) struct StateEntry {
    pub client: ClientId,
    pub file: FileId,
    pub random: u32,
    pub seqid: u32,
    pub kind: EntryKind,
}

impl StateEntry {
    /// Increments the seqid. It skips 0, which means "the current one" in requests.
    pub fn changed(&mut self) {
        self.seqid = self.seqid.checked_add(1).unwrap_or(1);
    }
}
