//! Limits per client and in total, so that one client does not starve others.

use super::ids::Millis;

/// Configuration of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How long a client's state is protected after its last request.
    pub lease: Millis,
    /// How long an expired client keeps its state if no other client needs it.
    pub courtesy: Millis,
    /// `so_major_id`.
    pub server_major: Vec<u8>,
    /// `eir_server_scope`.
    pub scope: Vec<u8>,
    /// The limits.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Millis::seconds(90),
            courtesy: Millis::seconds(24 * 3600),
            server_major: Vec::new(),
            scope: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// Limits. In a pair, the first is per client and the second in total. `fair_share` describes how hosts that
/// hold little may exceed the total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients, confirmed or not. Hosts that hold little may exceed it likewise.
    pub clients: usize,
    /// Sessions per client.
    pub sessions: usize,
    /// Slots per session.
    pub slots: u32,
    /// Slots per back channel.
    pub back_slots: u32,
    /// Connections per session.
    pub connections: usize,
    /// Bytes per request.
    pub request_bytes: u32,
    /// Bytes per reply.
    pub reply_bytes: u32,
    /// Bytes per cached reply.
    pub cached_reply_bytes: u32,
    /// Bytes reserved for cached replies.
    pub reply_cache_bytes: (u64, u64),
    /// Operations per request.
    pub operations: u32,
    /// Opens, lock states, delegations and copies.
    pub stateids: (usize, usize),
    /// Delegations.
    pub delegations: (usize, usize),
    /// Locked ranges.
    pub ranges: (usize, usize),
    /// Blocked lock requests that wait for a callback.
    pub waiters: (usize, usize),
    /// Asynchronous copies. Further copies are synchronous.
    pub copies: (usize, usize),
    /// NFSv4.0 owners, and permits.
    pub owners: (usize, usize),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096,
            sessions: 16,
            slots: 64,
            back_slots: 8,
            connections: 32,
            request_bytes: 1 << 20 | 4096,
            reply_bytes: 1 << 20 | 4096,
            cached_reply_bytes: 8192,
            reply_cache_bytes: (8 << 20, 256 << 20),
            operations: 512,
            stateids: (131_072, 1 << 20),
            delegations: (16_384, 131_072),
            ranges: (65_536, 1 << 20),
            waiters: (256, 16_384),
            copies: (16, 1024),
            owners: (65_536, 1 << 20),
        }
    }
}
