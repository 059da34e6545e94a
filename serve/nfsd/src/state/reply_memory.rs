//! Memory for cached replies: which clients give it up when it is short, and which get it back (RFC 8881
//! section 2.10.6.1).
//!
//! Memory is short when more than three quarters of the limit are reserved. First, the server evicts expired
//! clients, those with the oldest lease first. While any of them is left, no other client gives up memory.
//! After that, it asks sessions for half of their slots, repeatedly, at hosts that hold more than a fair
//! share.
//!
//! Below five eighths of the limit, sessions grow back to the agreed size. The gap between the two thresholds
//! prevents oscillation.

use std::collections::BTreeMap;

use ivers_nfs4::types::{ClientId, SessionId};

use super::ids::{ClientHost, Stop, Time};
use super::manager::StateManager;
use super::tables::client::Client;

/// Maximum number of clients to evict in one round.
const SLICE: usize = 64;

impl StateManager {
    /// Returns the bytes above which memory is short, and those up to which sessions grow.
    fn reply_memory_marks(&self) -> (u64, u64) {
        let eighth = self.config.limits.reply_cache_bytes.1 / 8;
        (eighth * 6, eighth * 5)
    }

    /// Determines which hosts must give up memory.
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

    /// Evicts expired clients until at most `most` bytes are reserved, counting evictions in progress.
    /// Returns whether that suffices or more clients are expired.
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

    /// Changes the size of a session, if that is due.
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
                // The client may keep its slots.
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
