//! Memory for kept replies: who gives it up when it is short, and who gets it back (RFC 8881 section 2.10.6.1).
//!
//! It is short when more than three quarters of the bound are held. First expired clients go, those who are silent for longest before the others, and while one of
//! them is still there nobody else gives up anything. Then sessions are asked for half of their slots, step by step, where more than a fair share is held at their
//! client's address; whoever holds no more than that keeps all he has. Below five eighths of the bound sessions grow back to what was agreed: between the two
//! nothing happens, so that nobody is asked for what he has just been given.

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::types::{ClientId, SessionId};

use super::client::Client;
use super::{Home, State, Stop, Time};

/// Clients that one look makes go.
const SLICE: usize = 64;

/// What was seen when it was last looked at.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// How often it was looked at: a session changes its size once each time.
    round: u64,
    /// Where too much of it is held.
    over: BTreeSet<Home>,
}

impl State {
    /// So much is held before memory is short, and before sessions grow no further.
    fn memory_marks(&self) -> (u64, u64) {
        let eighth = self.config.limits.kept_bytes.1 / 8;
        (eighth * 6, eighth * 5)
    }

    /// See who has to give up memory.
    pub(super) fn share_memory(&mut self, now: Time) {
        self.memory.round += 1;
        self.memory.over.clear();
        let (short, _) = self.memory_marks();
        if self.kept_bytes <= short || self.expired_go(now, short) {
            return;
        }
        let mut held: BTreeMap<Home, u64> = BTreeMap::new();
        for client in self.clients.values().filter(|client| client.kept_bytes > 0) {
            *held.entry(client.home).or_default() += client.kept_bytes;
        }
        let fair = short / held.len().max(1) as u64;
        self.memory.over = held.into_iter().filter(|(_, held)| *held > fair).map(|(home, _)| home).collect();
    }

    /// Make expired clients go until no more than so much is held, or will be when they are struck out. Whether that is enough, or there are more of them.
    fn expired_go(&mut self, now: Time, most: u64) -> bool {
        let expired = self.clients.values().filter(|client| client.confirmed && client.kept_bytes > 0);
        let expired = expired.filter(|client| self.lease_is_over(now, client.id));
        let goes =
            |client: &Client| (client.condemned.is_none(), client.renewed, client.id, client.kept_bytes);
        let mut expired: Vec<(bool, Time, ClientId, u64)> = expired.map(goes).collect();
        expired.sort_unstable();
        let (mut going, more) = (0, expired.len() > SLICE);
        for (.., id, bytes) in expired.into_iter().take(SLICE) {
            if self.kept_bytes - going <= most {
                return true;
            }
            if let Err(Stop::Gate(_)) = self.evict(id) {
                going += bytes;
            }
        }
        more || self.kept_bytes - going <= most
    }

    /// Change the size of a session, if that is due.
    pub(super) fn resize(&mut self, sessionid: &SessionId) {
        let (_, low) = self.memory_marks();
        let (round, limit) = (self.memory.round, self.config.limits.kept_bytes.0);
        let Some(session) = self.sessions.get_mut(sessionid) else { return };
        let Some(client) = self.clients.get_mut(&session.client) else { return };
        let slots = session.slots.len() as u32;
        if session.resized == round {
            return;
        }
        if self.memory.over.contains(&client.home) {
            if session.target == slots && slots > 1 {
                session.aim(slots / 2, round);
            }
        } else if self.kept_bytes <= low {
            if session.target < slots {
                // He may as well keep them.
                session.aim(slots, round);
            } else if slots < session.fore.max_requests {
                let more = slots.min(session.fore.max_requests - slots);
                let bytes = u64::from(more) * session.reserved_each();
                if self.kept_bytes + bytes <= low && client.kept_bytes + bytes <= limit {
                    session.grow(more as usize);
                    session.aim(slots + more, round);
                    self.kept_bytes += bytes;
                    client.kept_bytes += bytes;
                }
            }
        }
    }
}
