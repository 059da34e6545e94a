//! Limits of the network layer.

use std::time::Duration;

use ivers_busy_poll::BusyPoller;

use super::budget::Bounds;

/// Limits of the network layer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of threads, at least three.
    pub threads: usize,
    /// Maximum time to busy-poll for a client's next request; zero disables it.
    pub busy_poll: Duration,
    /// Maximum size of a record in bytes. A larger one closes the connection, so this must exceed the maximum
    /// request size of sessions.
    pub record_bytes: usize,
    /// Limits for requests and unread replies.
    pub bounds: Bounds,
    /// If a connection has more unsent bytes, its further requests wait.
    pub choke_bytes: usize,
    /// If a connection has more unsent bytes, it is closed.
    pub unsent_bytes: usize,
    /// Time for a record to arrive completely.
    pub record_time: Duration,
    /// Time after which an idle connection without a session is closed.
    pub idle_time: Duration,
    /// Time in which the peer must accept some of the unsent bytes.
    pub unread_time: Duration,
    /// Time for the TLS handshake.
    pub handshake_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            threads: 16,
            busy_poll: BusyPoller::default_duration(),
            record_bytes: 2 * MIB,
            bounds: Bounds {
                // A session of 64 slots, each with a write of 1 MiB.
                connection_bytes: 80 * MIB,
                client_bytes: 128 * MIB,
                total_bytes: 384 * MIB,
                client_connections: 256,
                total_connections: 1024,
            },
            choke_bytes: 4 * MIB,
            unsent_bytes: 48 * MIB,
            record_time: Duration::from_secs(120),
            idle_time: Duration::from_secs(60),
            unread_time: Duration::from_secs(60),
            handshake_time: Duration::from_secs(30),
        }
    }
}
