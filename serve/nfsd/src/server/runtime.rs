//! The environment of [`Core`](super::core::Core): threads, clock and sinks of replies, real or simulated.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ivers_nfs4::xdr::Encoder;
use parking_lot::Mutex;

use crate::net::connection::Connection;
use crate::net::fair_queue::Job;
use crate::rpc::{ReplyHandle, Workers};
use crate::state::Time;

/// The clock.
pub(super) enum Clock {
    /// Time since the start.
    Real(Instant),
    /// Milliseconds, set by the caller.
    Simulated(AtomicU64),
}

impl Clock {
    pub fn now(&self) -> Time {
        Time(match self {
            Self::Real(start) => u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            Self::Simulated(ms) => ms.load(Ordering::Relaxed),
        })
    }
}

/// A simulated client. Gets the arguments of a CB_COMPOUND, or none for CB_NULL. Returns the results, or
/// `None` if it does not answer.
pub type Peer = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Connects to an address on behalf of a server that is not allowed to connect. The second argument is a
/// connection that this client has made, which identifies the client. The new connection may still be in
/// progress.
pub type Dial = Box<dyn Fn(SocketAddr, BorrowedFd<'_>) -> io::Result<TcpStream> + Send + Sync>;

/// Runs jobs that must not run on the current thread.
pub(super) enum Runtime {
    /// The threads of the server.
    Threads(Workers),
    /// The caller of the simulated server, before it gets its reply.
    Simulated {
        /// Jobs in order.
        jobs: Mutex<VecDeque<Job>>,
        /// The simulated client.
        peer: Peer,
    },
}

impl Runtime {
    /// Runs a job soon.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self {
            Self::Threads(workers) => workers.run(job),
            Self::Simulated { jobs, .. } => jobs.lock().push_back(Box::new(job)),
        }
    }

    /// Connects to a client, for callbacks.
    pub fn dial(
        &self,
        by: Option<&Dial>,
        to: SocketAddr,
        client: &Connection,
        time: Duration,
    ) -> io::Result<Arc<Connection>> {
        match (self, by) {
            (Self::Threads(workers), None) => workers.dial(to, time),
            (Self::Threads(workers), Some(by)) => workers.add_dialled(by(to, client.socket())?, to, time),
            (Self::Simulated { .. }, _) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Runs a job later. In a simulated server, the caller advances the time itself.
    pub fn after(&self, time: Duration, job: impl FnOnce() + Send + 'static) {
        if let Self::Threads(workers) = self {
            workers.after(time, job);
        }
    }
}

/// The destination of a reply.
pub(super) enum ReplySink {
    /// The connection of the request.
    Connection(ReplyHandle),
    /// The caller of the simulated server.
    Slot(Arc<Mutex<Option<Encoder>>>),
}

impl ReplySink {
    pub fn send(self, results: Encoder) {
        match self {
            Self::Connection(reply) => reply.send(results),
            Self::Slot(slot) => *slot.lock() = Some(results),
        }
    }
}
