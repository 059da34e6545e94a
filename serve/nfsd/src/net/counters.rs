//! Event counts.

use std::sync::atomic::AtomicU64;

/// Event counts since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections refused.
    pub connections_refused: AtomicU64,
    /// Bytes received, including TLS.
    pub bytes_in: AtomicU64,
    /// Bytes sent, including TLS.
    pub bytes_out: AtomicU64,
    /// Calls received.
    pub calls: AtomicU64,
    /// Calls refused because a limit was reached.
    pub calls_refused: AtomicU64,
    /// Calls sent to clients.
    pub callbacks: AtomicU64,
    /// Calls to clients without a reply in time.
    pub callbacks_late: AtomicU64,
    /// Jobs that panicked, which is a bug in the server.
    pub panics: AtomicU64,
}

/// A snapshot of [`Counters`] and of current totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the counters' own are at `Counters`")]
pub struct NetStats {
    /// Open connections.
    pub connections: u64,
    /// Bytes held by requests and unread replies.
    pub held_bytes: u64,
    pub connections_total: u64,
    pub connections_refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub calls: u64,
    pub calls_refused: u64,
    pub callbacks: u64,
    pub callbacks_late: u64,
    pub panics: u64,
}
