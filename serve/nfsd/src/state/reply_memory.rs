//! ReplyMemory for kept replies: who gives it up when it is short, and who gets it back (RFC 8881 section 2.10.6.1).
//!
//! It is short when more than three quarters of the bound are held. First expired clients go, those who are silent for longest before the others, and while one of
//! them is still there nobody else gives up anything. Then sessions are asked for half of their slots, step by step, where more than a fair share is held at their
//! client's address; whoever holds no more than that keeps all he has. Below five eighths of the bound sessions grow back to what was agreed: between the two
//! nothing happens, so that nobody is asked for what he has just been given.

use std::collections::{BTreeMap, BTreeSet};

use ivers_nfs4::types::{ClientId, SessionId};

use super::client::Client;
use super::{ClientHost, StateManager, Stop, Time};

/// Clients that one look makes go.
const SLICE: usize = 64;

/// What was seen when it was last looked at.
#[derive(Debug, Default)]
pub(super) struct ReplyMemory {
    /// How often it was looked at: a session changes its size once each time.
    round: u64,
    /// Where too much of it is held.
    over_share: BTreeSet<ClientHost>,
}

impl StateManager {
    /// So much is held before reply_memory is short, and before sessions grow no further.
    fn reply_memory_marks(&self) -> (u64, u64) {
        let eighth = self.config.limits.reply_cache_bytes.1 / 8;
        (eighth * 6, eighth * 5)
    }

    /// See who has to give up reply_memory.
    pub(super) fn balance_reply_memory(&mut self, now: Time) {
        self.reply_memory.round += 1;
        self.reply_memory.over_share.clear();
        let (short, _) = self.reply_memory_marks();
        if self.reply_cache_bytes <= short || self.evict_expired(now, short) {
            return;
        }
        let mut held: BTreeMap<ClientHost, u64> = BTreeMap::new();
        for client in self.clients.values().filter(|client| client.reply_cache_bytes > 0) {
            *held.entry(client.host).or_default() += client.reply_cache_bytes;
        }
        let fair = short / held.len().max(1) as u64;
        self.reply_memory.over_share =
            held.into_iter().filter(|(_, held)| *held > fair).map(|(host, _)| host).collect();
    }

    /// Make expired clients go until no more than so much is held, or will be when they are struck out. Whether that is enough, or there are more of them.
    fn evict_expired(&mut self, now: Time, most: u64) -> bool {
        let expired = self.clients.values().filter(|client| client.confirmed && client.reply_cache_bytes > 0);
        let expired = expired.filter(|client| self.lease_expired(now, client.id));
        let goes = |client: &Client| {
            (client.evicting.is_none(), client.renewed, client.id, client.reply_cache_bytes)
        };
        let mut expired: Vec<(bool, Time, ClientId, u64)> = expired.map(goes).collect();
        expired.sort_unstable();
        let (mut going, more) = (0, expired.len() > SLICE);
        for (.., id, bytes) in expired.into_iter().take(SLICE) {
            if self.reply_cache_bytes - going <= most {
                return true;
            }
            if let Err(Stop::Wait(_)) = self.evict(id) {
                going += bytes;
            }
        }
        more || self.reply_cache_bytes - going <= most
    }

    /// Change the size of a session, if that is due.
    pub(super) fn resize_session(&mut self, sessionid: &SessionId) {
        let (_, low) = self.reply_memory_marks();
        let (round, limit) = (self.reply_memory.round, self.config.limits.reply_cache_bytes.0);
        let Some(session) = self.sessions.get_mut(sessionid) else { return };
        let Some(client) = self.clients.get_mut(&session.client) else { return };
        let slots = session.slots.len() as u32;
        if session.resized == round {
            return;
        }
        if self.reply_memory.over_share.contains(&client.host) {
            if session.target == slots && slots > 1 {
                session.set_target(slots / 2, round);
            }
        } else if self.reply_cache_bytes <= low {
            if session.target < slots {
                // He may as well keep them.
                session.set_target(slots, round);
            } else if slots < session.fore.max_requests {
                let more = slots.min(session.fore.max_requests - slots);
                let bytes = u64::from(more) * session.reserved_each();
                if self.reply_cache_bytes + bytes <= low && client.reply_cache_bytes + bytes <= limit {
                    session.grow(more as usize);
                    session.set_target(slots + more, round);
                    self.reply_cache_bytes += bytes;
                    client.reply_cache_bytes += bytes;
                }
            }
        }
    }
}
