//! A server without sockets, threads and clock, for tests and fuzzing. Every run gives the same replies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::xdr::Encoder;
use ivers_vfs::Vfs;
use parking_lot::Mutex;

use super::engine::{Engine, StartError};
use super::runtime::{Clock, Peer, ReplySink, Runtime};
use crate::compound::{Filesystem, Origin, WakeReason};
use crate::executor::GarbageArgs;
use crate::exports::config::ExportConfig;
use crate::exports::handle::Handles;
use crate::exports::table::Table;
use crate::rpc::Callbacks;
use crate::stable::StableStorage;
use crate::state::{ConnId, Limits, Millis, Rng};

/// Replies to requests given as bytes. Everything that a request waits for happens before its reply, or times
/// out.
pub struct SimulatedServer(Engine);

/// The configuration of a simulated server.
pub struct SimulatedSetup<'a> {
    /// An empty directory for stable storage.
    pub state: &'a Path,
    /// The lease time in seconds.
    pub lease_seconds: u32,
    /// The key of filehandles.
    pub secret: [u8; 16],
    /// Limits of clients' state.
    pub limits: Limits,
    /// The random number generator.
    pub rng: Box<dyn Rng>,
    /// The exports. Their identities are their positions in this list, from 1.
    pub exports: Vec<(ExportConfig, Arc<Vfs>)>,
    /// The client that gets callbacks.
    pub peer: Peer,
}

impl SimulatedServer {
    /// Starts a server at time 0. It is in the grace period if the state directory lists clients.
    pub fn start(setup: SimulatedSetup<'_>) -> Result<Self, StartError> {
        let SimulatedSetup { state, lease_seconds, secret, limits, rng, exports, peer } = setup;
        let stable = Arc::new(StableStorage::open(state)?);
        let handles = Handles::new(secret);
        let filesystem = |vfs| Filesystem { vfs, write_verifier: 0, instance: 0 };
        let rows = exports.into_iter().zip(1..).map(|((config, vfs), at)| (config, at, filesystem(vfs)));
        let exports = Table::new(&handles, rows.collect(), 1)?;
        let clock = Clock::Simulated(AtomicU64::new(0));
        let engine = Engine::new(
            stable,
            handles,
            exports,
            lease_seconds,
            true,
            limits,
            rng,
            clock,
            Callbacks::new(),
            None,
            || {},
        )?;
        let _ = engine.core.runtime.set(Runtime::Simulated { jobs: Mutex::default(), peer });
        engine.core.tick();
        Ok(Self(engine))
    }

    /// Replies to the arguments of a COMPOUND.
    pub fn call(&self, origin: Origin, arguments: Vec<u8>) -> Result<Vec<u8>, GarbageArgs> {
        let core = &self.0.core;
        let slot = Arc::new(Mutex::new(None));
        let begun = self.0.executor.begin(origin, arguments, Encoder::default())?;
        core.proceed(begun.run(), ReplySink::Slot(slot.clone()));
        loop {
            self.run_jobs();
            if let Some(reply) = slot.lock().take() {
                return Ok(reply.into_bytes());
            }
            core.suspended
                .take_all()
                .into_iter()
                .for_each(|waiter| core.resume_request(waiter, WakeReason::TimedOut));
        }
    }

    /// Ends a connection.
    pub fn disconnect(&self, conn: ConnId) {
        self.0.core.disconnected(conn.0);
        self.run_jobs();
    }

    /// Advances the clock, and does what is due then.
    pub fn advance(&self, time: Millis) {
        if let Clock::Simulated(now) = &self.0.core.clock {
            now.fetch_add(time.0, Ordering::Relaxed);
        }
        self.0.core.tick();
        self.run_jobs();
    }

    /// Panics if an invariant of clients' state is broken, or if an access has not ended.
    pub fn check_invariants(&self) {
        self.0.core.with(|state, _| {
            state.check_invariants();
            assert!(state.is_quiet(), "an access has not ended");
        });
    }

    fn run_jobs(&self) {
        let Some(Runtime::Simulated { jobs, .. }) = self.0.core.runtime.get() else { return };
        loop {
            // Unlock before running it: a job may queue another one.
            let Some(job) = jobs.lock().pop_front() else { return };
            job();
        }
    }
}
