//! Callbacks: over which connection, with which number (RFC 8881 sections 2.10.6.3, 20.9).

use ivers_nfs4::callback::{CbSequenceArgs, ReferringCall, ReferringCalls};
use ivers_nfs4::ops::v40::CallbackClient;
use ivers_nfs4::types::{ClientId, SessionId};
use ivers_nfs4::xdr::List;

use super::held::Kind;
use super::session::Identity;
use super::{Call, Conn, Effect, State};

/// A slot of a backchannel: here the server is the one who asks.
#[derive(Debug, Clone, Default)]
pub(super) struct BackSlot {
    sequence: u32,
    busy: bool,
    /// The connection broke before an answer came: only the same question may be asked under this number.
    unanswered: Option<Call>,
}

impl BackSlot {
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    pub fn is_stuck(&self) -> bool {
        !self.busy && self.unanswered.is_some()
    }
}

/// How a client is called back. It has to be [ended](State::channel_end).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "its slot is busy until it is ended"]
pub enum Channel {
    /// Over a connection that he has made.
    Session {
        /// Which.
        conn: Conn,
        /// The first operation of the call.
        sequence: CbSequenceArgs,
        /// The RPC program.
        program: u32,
        /// The minor version.
        minor: u32,
        /// What the server says that it is.
        identity: Identity,
    },
    /// NFSv4.0: over one that the server makes.
    Dial {
        /// Where to.
        callback: CallbackClient,
        /// `callback_ident`.
        ident: u32,
    },
}

/// Why a client cannot be called now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoChannel {
    /// All slots are in use: when a call ends.
    Busy,
    /// There is no connection. When there is one, what still matters comes as an effect again.
    Down,
}

impl State {
    /// Whether there is a way to call a client.
    pub(super) fn can_call(&self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(&id) else { return false };
        match &client.v40 {
            Some(v40) => v40.works,
            None => client.sessions.iter().any(|at| {
                let session = &self.sessions[at];
                session.back_connection().is_some() && !session.back_is_stuck()
            }),
        }
    }

    /// A way to make a call.
    pub fn channel(&mut self, id: ClientId, call: &Call) -> Result<Channel, NoChannel> {
        let Some(client) = self.clients.get(&id) else { return Err(NoChannel::Down) };
        if let Some(v40) = &client.v40 {
            return match v40.works {
                true => Ok(Channel::Dial { callback: v40.callback.clone(), ident: v40.ident }),
                false => Err(NoChannel::Down),
            };
        }
        let referring = self.referring(id, call);
        let mut none = NoChannel::Down;
        let sessions: Vec<SessionId> = client.sessions.iter().copied().collect();
        for sessionid in sessions {
            let Some(session) = self.sessions.get_mut(&sessionid) else { continue };
            let (Some(conn), Some(identity)) = (session.back_connection(), session.identity.clone()) else {
                continue;
            };
            // [RFC7862 16.1.3] It is of NFSv4.2.
            if matches!(call, Call::Offload { .. }) && session.minor < 2 {
                continue;
            }
            none = NoChannel::Busy;
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
            return Ok(Channel::Session { conn, sequence, program, minor, identity });
        }
        Err(none)
    }

    /// A call is over: answered in whatever way, or lost with its connection.
    pub fn channel_end(&mut self, id: ClientId, call: &Call, channel: &Channel, answered: bool) {
        match channel {
            Channel::Session { sequence, .. } => {
                let session = self.sessions.get_mut(&sequence.sessionid);
                if let Some(slot) = session.and_then(|it| it.back_slots.get_mut(sequence.slotid as usize)) {
                    slot.busy = false;
                    if answered {
                        slot.unanswered = None;
                    }
                }
            }
            Channel::Dial { .. } => self.callback_works(id, answered),
        }
        if let Call::Recall { stateid, .. } = call
            && let Ok(index) = self.find(self.caller_of(id), stateid)
            && let Some(Kind::Delegation(delegation)) = self.held.get_mut(&index).map(|held| &mut held.kind)
            && let Some(recall) = &mut delegation.recall
        {
            recall.delivered |= answered;
        }
    }

    /// What did not get through is said again: recalls, and ends of copies.
    pub(super) fn path_is_up(&mut self, id: ClientId) {
        self.copies_to_tell(id);
        let Some(client) = self.clients.get(&id).filter(|client| client.delegations > 0) else { return };
        let undelivered = |index: &&u32| {
            matches!(&self.held[*index].kind, Kind::Delegation(it)
                if !it.revoked && it.recall.as_ref().is_some_and(|recall| !recall.delivered))
        };
        let indices: Vec<u32> = client.held.iter().filter(undelivered).copied().collect();
        for index in indices {
            let (stateid, file) = (self.stateid(index), self.held[&index].file);
            self.effects
                .push(Effect::Call { client: id, call: Call::Recall { stateid, file, truncate: false } });
        }
    }

    /// The request in which a delegation was given, or a copy begun, as long as the client may not have seen its reply: he waits for that first.
    fn referring(&self, id: ClientId, call: &Call) -> Vec<ReferringCalls> {
        let (Call::Recall { stateid, .. } | Call::GetAttr { stateid, .. } | Call::Offload { stateid, .. }) =
            call
        else {
            return Vec::new();
        };
        let Ok(index) = self.find(self.caller_of(id), stateid) else { return Vec::new() };
        let born = match &self.held[&index].kind {
            Kind::Delegation(delegation) => delegation.born,
            Kind::Copy(copy) => copy.born,
            Kind::Open(_) | Kind::Lock(_) => None,
        };
        // [RFC8881 2.10.6.3]
        let Some(born) = born else { return Vec::new() };
        let slot = self.sessions.get(&born.session).and_then(|it| it.slots.get(born.slot as usize));
        if slot.is_none_or(|slot| slot.is_past(born.sequence)) {
            return Vec::new();
        }
        let call = ReferringCall { sequenceid: born.sequence, slotid: born.slot };
        vec![ReferringCalls { sessionid: born.session, calls: List(vec![call]) }]
    }
}
