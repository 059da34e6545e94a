//! Sessions, their connections, and the slot of CREATE_SESSION.

use std::collections::BTreeMap;

use ivers_nfs4::ops::v41::{CallbackSecurity, ChannelAttrs, CreateSessionOk, SequenceArgs, SequenceOk};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::ClientId;
use ivers_nfs4::xdr::List;

use super::super::ids::{ConnId, Step, fail};
use super::back_slot::BackSlot;
use super::slot::{Slot, SlotContent};

/// Minimum size for a SEQUENCE with its RPC header, and for its reply.
pub(in crate::state) const SMALLEST_MESSAGE: u32 = 128;
/// Minimum bytes reserved for a cached reply. The reply to a lone SEQUENCE is always cached.
pub(in crate::state) const SMALLEST_KEPT: u32 = 512;
/// `CDFC4_*` and `CDFS4_*`: the direction of a connection.
pub(in crate::state) const FORE: u32 = 1;
pub(in crate::state) const BACK: u32 = 2;
pub(in crate::state) const BOTH: u32 = 3;
pub(in crate::state) const BACK_OR_BOTH: u32 = 7;

/// The credentials of the server in callbacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackCred {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS with the values that the client chose.
    Sys(ivers_nfs4::rpc::AuthSys),
}

impl CallbackCred {
    /// Returns the first supported credentials. Without any, callbacks are impossible.
    pub(in crate::state) fn choose(offered: &List<CallbackSecurity>) -> Option<Self> {
        offered.0.iter().find_map(|security| match security {
            CallbackSecurity::None => Some(Self::None),
            CallbackSecurity::Sys(sys) => Some(Self::Sys(sys.clone())),
            CallbackSecurity::Gss(_) => None,
        })
    }
}

/// The slot of CREATE_SESSION: the last sequence number and its reply.
#[derive(Debug)]
pub(in crate::state) struct CreateSlot {
    pub sequence: u32,
    pub reply: Res<CreateSessionOk>,
}

impl Default for CreateSlot {
    fn default() -> Self {
        Self { sequence: 0, reply: Err(NfsStat::SeqMisordered) }
    }
}

impl CreateSlot {
    /// Returns the sequence number that the client must use next.
    pub fn next(&self) -> u32 {
        self.sequence.wrapping_add(1)
    }
}

#[derive(Debug)]
pub(in crate::state) struct Session {
    pub client: ClientId,
    pub fore: ChannelAttrs,
    pub slots: Vec<Slot>,
    /// Last sequence numbers of the retired slots, which follow `slots`.
    pub retired: Vec<u32>,
    /// The number of slots that the server asks the client to keep.
    pub target: u32,
    /// Number of changes of `target`.
    pub target_version: u32,
    /// The [round](super::reply_memory::ReplyMemory) of the last change.
    pub resized: u64,
    pub back_slots: Vec<BackSlot>,
    pub back_wanted: bool,
    pub program: u32,
    /// The minor version that created the session. Callbacks use the same one.
    pub minor: u32,
    pub identity: Option<CallbackCred>,
    /// The directions of each connection.
    pub connections: BTreeMap<ConnId, u32>,
}

impl Session {
    /// Returns whether every slot waits for a reply that never came. Only a new session helps.
    pub fn back_is_stuck(&self) -> bool {
        self.back_slots.iter().all(BackSlot::is_stuck)
    }

    /// Returns a connection for callbacks.
    pub fn back_connection(&self) -> Option<ConnId> {
        self.identity.as_ref()?;
        self.connections.iter().find(|(_, way)| **way & BACK != 0).map(|(conn, _)| *conn)
    }

    pub fn bind(&mut self, conn: ConnId, way: u32, limit: usize) -> Step<u32> {
        if !self.connections.contains_key(&conn) && self.connections.len() >= limit {
            return fail(NfsStat::Delay);
        }
        let ways = self.connections.entry(conn).or_default();
        *ways |= way;
        Ok(*ways)
    }

    /// Returns the bytes reserved for cached replies.
    pub fn reserved(&self) -> u64 {
        self.reserved_each() * self.slots.len() as u64
    }

    /// Returns the bytes reserved for one slot.
    pub fn reserved_each(&self) -> u64 {
        u64::from(self.fore.max_response_cached.max(SMALLEST_KEPT))
    }

    /// Sets another target.
    pub fn set_target(&mut self, target: u32, round: u64) {
        (self.target, self.resized) = (target, round);
        self.target_version = self.target_version.wrapping_add(1);
    }

    /// Restores retired slots.
    pub fn grow(&mut self, more: usize) {
        let numbers: Vec<u32> = self.retired.drain(..more.min(self.retired.len())).collect();
        let advertised_version = self.target_version;
        self.slots.extend(numbers.into_iter().map(|sequence| Slot {
            sequence,
            content: SlotContent::Restored,
            advertised_version,
        }));
    }

    pub fn retire(&mut self, keep: usize) {
        let gone = self.slots.split_off(keep);
        self.retired.splice(..0, gone.iter().map(|slot| slot.sequence));
    }

    pub fn highest(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    pub fn reply(&self, args: &SequenceArgs, status_flags: u32) -> SequenceOk {
        SequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: self.highest(),
            target_highest_slotid: self.target - 1,
            status_flags,
        }
    }
}
