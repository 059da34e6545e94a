//! How much of everything there may be, a client and in all: one client does not starve the others.

use super::Millis;

/// What the server was told to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How long a client keeps what he holds without a word.
    pub lease: Millis,
    /// How long an expired client is tolerated when nobody is in need of what he holds.
    pub courtesy: Millis,
    /// `so_major_id`.
    pub server_major: Vec<u8>,
    /// `eir_server_scope`.
    pub scope: Vec<u8>,
    /// Bounds.
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

/// Bounds. Where two stand side by side, the first is for one client, the other for all; half as much again goes to those who have little (`share`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients, confirmed or not; half as many more, likewise.
    pub clients: usize,
    /// Sessions of a client.
    pub sessions: usize,
    /// Slots of a session.
    pub slots: u32,
    /// Slots of a backchannel.
    pub back_slots: u32,
    /// Connections of a session.
    pub connections: usize,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of a reply.
    pub reply_bytes: u32,
    /// Bytes of a reply that is kept.
    pub cached_reply_bytes: u32,
    /// Bytes reserved for kept replies: of a client, and in all.
    pub reply_cache_bytes: (u64, u64),
    /// Operations of a request.
    pub operations: u32,
    /// Opens, lock-owners of a file, and delegations: of a client, and in all.
    pub stateids: (usize, usize),
    /// Delegations: of a client, and in all.
    pub delegations: (usize, usize),
    /// Ranges that are locked: of a client, and in all.
    pub ranges: (usize, usize),
    /// Locks that are waited for: of a client, and in all.
    pub waiters: (usize, usize),
    /// Copies that go on behind their reply: of a client, and in all. Others are done before it.
    pub copies: (usize, usize),
    /// Owners of NFSv4.0, and permits: of a client, and in all.
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
            operations: 64,
            stateids: (65_536, 1 << 20),
            delegations: (16_384, 131_072),
            ranges: (65_536, 1 << 20),
            waiters: (256, 16_384),
            copies: (16, 1024),
            owners: (65_536, 1 << 20),
        }
    }
}
