//! The server without connections, threads and a clock of its own: what tests and fuzzing ask, each time with the same answers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::xdr::Encoder;
use ivers_vfs::Vfs;
use parking_lot::Mutex;

use super::outside::{Asker, Clock, Crew, Peer};
use super::{Parts, StartError};
use crate::compound::{Compound, Filesystem, News, Origin, Unanswerable};
use crate::exports::config::ExportConfig;
use crate::exports::handle::Handles;
use crate::exports::table::Table;
use crate::rpc::Callbacks;
use crate::stable::Stable;
use crate::state::{Conn, Dice, Limits, Span};

/// Answers requests that are given to it as bytes. What a request waits for is done before it is answered, or comes too late.
pub struct Alone(Parts);

/// What it is made of.
pub struct AloneSetup<'a> {
    /// A directory of its own.
    pub state: &'a Path,
    /// The lease time in seconds.
    pub lease_seconds: u32,
    /// Makes filehandles.
    pub secret: [u8; 16],
    /// Bounds.
    pub limits: Limits,
    /// Random numbers.
    pub dice: Box<dyn Dice>,
    /// The exports; their handles know them by their places in this list.
    pub exports: Vec<(ExportConfig, Arc<Vfs>)>,
    /// Who is called back.
    pub peer: Peer,
}

impl Alone {
    /// At time 0, outside of grace unless somebody was there before.
    pub fn start(setup: AloneSetup<'_>) -> Result<Self, StartError> {
        let AloneSetup { state, lease_seconds, secret, limits, dice, exports, peer } = setup;
        let stable = Arc::new(Stable::open(state)?);
        let handles = Handles::new(secret);
        let filesystem = |vfs| Filesystem { vfs, write_verifier: 0, instance: 0 };
        let rows = exports.into_iter().zip(1..).map(|((config, vfs), at)| (config, at, filesystem(vfs)));
        let exports = Table::new(&handles, rows.collect(), 1)?;
        let clock = Clock::Told(AtomicU64::new(0));
        let parts = Parts::new(
            stable,
            handles,
            exports,
            lease_seconds,
            true,
            limits,
            dice,
            clock,
            Callbacks::new(),
            None,
        )?;
        let _ = parts.core.crew.set(Crew::Caller { jobs: Mutex::default(), peer });
        parts.core.tick();
        Ok(Self(parts))
    }

    /// The reply to the arguments of a COMPOUND.
    pub fn call(&self, origin: Origin, arguments: Vec<u8>) -> Result<Vec<u8>, Unanswerable> {
        let core = &self.0.core;
        let place = Arc::new(Mutex::new(None));
        let begun = Compound::begin(self.0.service.clone(), origin, arguments, Encoder::default())?;
        core.proceed(begun.run(), Asker::Here(place.clone()));
        loop {
            self.work_off();
            if let Some(reply) = place.lock().take() {
                return Ok(reply.into_bytes());
            }
            core.waiting.take_all().into_iter().for_each(|waiter| core.go_on(waiter, News::Late));
        }
    }

    /// A connection has ended.
    pub fn part(&self, conn: Conn) {
        self.0.core.part(conn.0);
        self.work_off();
    }

    /// Time passes, and what is due then is done.
    pub fn pass(&self, time: Span) {
        if let Clock::Told(now) = &self.0.core.clock {
            now.fetch_add(time.0, Ordering::Relaxed);
        }
        self.0.core.tick();
        self.work_off();
    }

    /// Panics if the tables of clients are not as they must be, or if a request has left something behind that was to end with it.
    pub fn audit(&self) {
        self.0.core.with(|state, _| {
            state.audit();
            assert!(state.is_quiet(), "a leave is out");
        });
    }

    fn work_off(&self) {
        let Some(Crew::Caller { jobs, .. }) = self.0.core.crew.get() else { return };
        loop {
            // Not while it is locked: one job leads to the next.
            let Some(job) = jobs.lock().pop_front() else { return };
            job();
        }
    }
}
