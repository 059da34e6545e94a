//! What [`Core`](super::core::Core) needs of what lies around it: threads, the clock, whoever asked. Of a server with sockets, or of one without.

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
use crate::net::pool::Job;
use crate::rpc::{ReplyHandle, Workers};
use crate::state::Time;

/// What time it is.
pub(super) enum Clock {
    /// Since the start.
    Since(Instant),
    /// Milliseconds, as somebody says.
    Told(AtomicU64),
}

impl Clock {
    pub fn now(&self) -> Time {
        Time(match self {
            Self::Since(start) => u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            Self::Told(ms) => ms.load(Ordering::Relaxed),
        })
    }
}

/// A client, called by the arguments of a CB_COMPOUND, or by nothing at all: by CB_NULL. Its results, or silence.
pub type Peer = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Connects to a client's host, in the name of a server that may connect to nobody: to where, and a connection that this client has made. It may still be on its way
/// when it is given.
pub type Dial = Box<dyn Fn(SocketAddr, BorrowedFd<'_>) -> io::Result<TcpStream> + Send + Sync>;

/// Work that is not done where it falls due.
pub(super) enum Crew {
    /// By the server's threads.
    Threads(Workers),
    /// By whoever gave the request, before it is answered.
    Caller {
        /// In this order.
        jobs: Mutex<VecDeque<Job>>,
        /// Who is called instead of a connection's other side.
        peer: Peer,
    },
}

impl Crew {
    /// Soon.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self {
            Self::Threads(workers) => workers.run(job),
            Self::Caller { jobs, .. } => jobs.lock().push_back(Box::new(job)),
        }
    }

    /// Connect to a client, for calls to him.
    pub fn dial(
        &self,
        by: Option<&Dial>,
        to: SocketAddr,
        client: &Connection,
        time: Duration,
    ) -> io::Result<Arc<Connection>> {
        match (self, by) {
            (Self::Threads(workers), None) => workers.dial(to, time),
            (Self::Threads(workers), Some(by)) => workers.dialled(by(to, client.socket())?, to, time),
            (Self::Caller { .. }, _) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Later. Who has no threads says himself when time has passed.
    pub fn after(&self, time: Duration, job: impl FnOnce() + Send + 'static) {
        if let Self::Threads(workers) = self {
            workers.after(time, job);
        }
    }
}

/// Where a reply goes.
pub(super) enum Asker {
    /// Over his connection.
    Over(ReplyHandle),
    /// He is waiting beside it.
    Here(Arc<Mutex<Option<Encoder>>>),
}

impl Asker {
    pub fn send(self, results: Encoder) {
        match self {
            Self::Over(reply) => reply.send(results),
            Self::Here(place) => *place.lock() = Some(results),
        }
    }
}
