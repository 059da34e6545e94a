//! Callbacks: connection, slot and sequence number (RFC 8881 sections 2.10.6.3, 20.9).

use ivers_nfs4::callback::{CbSequenceArgs, ReferringCall, ReferringCalls};
use ivers_nfs4::ops::v40::CallbackClient;
use ivers_nfs4::types::{ClientId, SessionId};
use ivers_nfs4::xdr::List;

use super::effects::{Callback, Effect};
use super::ids::ConnId;
use super::manager::StateManager;
use super::tables::entry::EntryKind;
use super::tables::session::CallbackCred;

/// The path of a callback. It must be [ended](StateManager::end_callback).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "its slot is busy until it is ended"]
pub enum CallbackPath {
    /// A connection of the client.
    Session {
        /// The connection.
        conn: ConnId,
        /// The first operation of the callback.
        sequence: CbSequenceArgs,
        /// The RPC program.
        program: u32,
        /// The minor version.
        minor: u32,
        /// The credentials of the server.
        identity: CallbackCred,
    },
    /// NFSv4.0: a connection that the server opens.
    V40 {
        /// The address.
        callback: CallbackClient,
        /// `callback_ident`.
        ident: u32,
    },
}

/// The reason why a callback is impossible at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCallbackPath {
    /// All slots are busy. Retry when a callback ends.
    Busy,
    /// There is no connection. When there is one, the state repeats the effects that still matter.
    Down,
}

impl StateManager {
    /// Returns whether callbacks to a client are possible.
    pub(super) fn can_call(&self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(&id) else { return false };
        match &client.v40 {
            Some(v40) => v40.path_up,
            None => client.sessions.iter().any(|at| {
                let session = &self.sessions[at];
                session.back_connection().is_some() && !session.back_is_stuck()
            }),
        }
    }

    /// Returns a path for a callback, and occupies its slot.
    pub fn begin_callback(&mut self, id: ClientId, call: &Callback) -> Result<CallbackPath, NoCallbackPath> {
        let Some(client) = self.clients.get(&id) else { return Err(NoCallbackPath::Down) };
        if let Some(v40) = &client.v40 {
            return match v40.path_up {
                true => Ok(CallbackPath::V40 { callback: v40.callback.clone(), ident: v40.ident }),
                false => Err(NoCallbackPath::Down),
            };
        }
        let referring = self.referring(id, call);
        let mut none = NoCallbackPath::Down;
        let sessions: Vec<SessionId> = client.sessions.iter().copied().collect();
        for sessionid in sessions {
            let Some(session) = self.sessions.get_mut(&sessionid) else { continue };
            let (Some(conn), Some(identity)) = (session.back_connection(), session.identity.clone()) else {
                continue;
            };
            // [RFC7862 16.1.3] CB_OFFLOAD requires NFSv4.2.
            if matches!(call, Callback::Offload { .. }) && session.minor < 2 {
                continue;
            }
            none = NoCallbackPath::Busy;
            let again = session
                .back_slots
                .iter()
                .position(|slot| !slot.busy && slot.unanswered.as_ref() == Some(call));
            let free = || session.back_slots.iter().position(|slot| !slot.busy && slot.unanswered.is_none());
            let Some(at) = again.or_else(free) else { continue };
            let highest = session.back_slots.len() as u32 - 1;
            let slot = &mut session.back_slots[at];
            if again.is_none() {
                slot.sequence = slot.sequence.wrapping_add(1);
            }
            slot.busy = true;
            slot.unanswered = Some(call.clone());
            let sequence = CbSequenceArgs {
                sessionid,
                sequenceid: slot.sequence,
                slotid: at as u32,
                highest_slotid: highest,
                cache_this: false,
                referring: List(referring),
            };
            let (program, minor) = (session.program, session.minor);
            return Ok(CallbackPath::Session { conn, sequence, program, minor, identity });
        }
        Err(none)
    }

    /// Ends a callback. `answered` is false if the connection broke before the reply.
    pub fn end_callback(&mut self, id: ClientId, call: &Callback, channel: &CallbackPath, answered: bool) {
        match channel {
            CallbackPath::Session { sequence, .. } => {
                let session = self.sessions.get_mut(&sequence.sessionid);
                if let Some(slot) = session.and_then(|it| it.back_slots.get_mut(sequence.slotid as usize)) {
                    slot.busy = false;
                    if answered {
                        slot.unanswered = None;
                    }
                }
            }
            CallbackPath::V40 { .. } => self.set_callback_path(id, answered),
        }
        if let Callback::Recall { stateid, .. } = call
            && let Ok(index) = self.find(self.caller_of(id), stateid)
            && let Some(EntryKind::Delegation(delegation)) =
                self.entries.get_mut(&index).map(|entry| &mut entry.kind)
            && let Some(recall) = &mut delegation.recall
        {
            recall.delivered |= answered;
        }
    }

    /// Repeats recalls and copy results that did not get through.
    pub(super) fn callback_path_up(&mut self, id: ClientId) {
        self.resend_copy_results(id);
        let Some(client) = self.clients.get(&id).filter(|client| client.delegations > 0) else { return };
        let undelivered = |index: &&u32| {
            matches!(&self.entries[*index].kind, EntryKind::Delegation(it)
                if !it.revoked && it.recall.as_ref().is_some_and(|recall| !recall.delivered))
        };
        let indices: Vec<u32> = client.entries.iter().filter(undelivered).copied().collect();
        for index in indices {
            let (stateid, file) = (self.stateid(index), self.entries[&index].file);
            self.effects.push(Effect::Callback {
                client: id,
                call: Callback::Recall { stateid, file, truncate: false },
            });
        }
    }

    /// Returns the request that granted the delegation or began the copy, unless the client has seen its
    /// reply. The client waits for that reply before it handles the callback.
    fn referring(&self, id: ClientId, call: &Callback) -> Vec<ReferringCalls> {
        let (Callback::Recall { stateid, .. }
        | Callback::GetAttr { stateid, .. }
        | Callback::Offload { stateid, .. }) = call
        else {
            return Vec::new();
        };
        let Ok(index) = self.find(self.caller_of(id), stateid) else { return Vec::new() };
        let request_id = match &self.entries[&index].kind {
            EntryKind::Delegation(delegation) => delegation.request_id,
            EntryKind::Copy(copy) => copy.request_id,
            EntryKind::Open(_) | EntryKind::Lock(_) => None,
        };
        // [RFC8881 2.10.6.3]
        let Some(request_id) = request_id else { return Vec::new() };
        let slot =
            self.sessions.get(&request_id.session).and_then(|it| it.slots.get(request_id.slot as usize));
        if slot.is_none_or(|slot| slot.is_past(request_id.sequence)) {
            return Vec::new();
        }
        let call = ReferringCall { sequenceid: request_id.sequence, slotid: request_id.slot };
        vec![ReferringCalls { sessionid: request_id.session, calls: List(vec![call]) }]
    }
}
