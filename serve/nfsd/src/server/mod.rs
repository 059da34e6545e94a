//! The complete server: clients' state, the execution of its effects, and NFS as an RPC program.
//!
//! | module | contains |
//! |---|---|
//! | `core` | the mutex around the state, the effects in order, connections, the clock |
//! | `state_ops` | operations on clients, sessions, locks and delegations |
//! | `open` | OPEN |
//! | `suspended` | requests that wait for a ticket |
//! | `callback` | callbacks to clients |
//! | `v40_callback` | connections to NFSv4.0 clients |
//! | `background_copy`, `copy_queue` | copies that continue after their reply |
//! | `program` | the RPC program |
//! | `runtime` | threads, clock and sinks of replies, real or simulated |
//! | `simulated` | a server without sockets and threads |
//! | `engine` | the part that is common to the real and the simulated server |
//! | `stats`, `event_log` | statistics and log lines for an administrator |

mod background_copy;
mod callback;
mod copy_queue;
mod core;
mod engine;
mod event_log;
mod open;
mod program;
mod runtime;
mod simulated;
mod state_ops;
mod stats;
mod suspended;
mod v40_callback;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_vfs::Vfs;

use self::core::Core;
use self::engine::Engine;
use self::runtime::{Clock, Runtime};
use crate::compound::{Exports, Filesystem, NameTables, Service};
use crate::exports::config::ExportConfig;
use crate::exports::handle::Handles;
use crate::exports::table::digest;
use crate::net::tls::Tls;
use crate::net::{Counters, Limits};
use crate::rpc::{Callbacks, Server, about_to_block};
use crate::stable::StableStorage;
use crate::state::{self, Rng};
pub use engine::StartError;
use program::Nfs;
pub use runtime::{Dial, Peer};
pub use simulated::{SimulatedServer, SimulatedSetup};

pub use stats::{ExportStats, Stats, StatsHandle};

/// Time limits of a stop: for running requests, then for clients to close their connections.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// A filesystem to export.
pub struct Exported {
    /// The configuration of the export.
    pub config: ExportConfig,
    /// The mounted filesystem.
    pub vfs: Arc<Vfs>,
    /// A name of the device that stays the same after a restart. `None`: the filesystem stores nothing, and
    /// its filehandles become stale.
    pub device: Option<Vec<u8>>,
}

/// The configuration of a server.
pub struct Setup {
    /// Stable storage.
    pub stable: StableStorage,
    /// The lease time in seconds.
    pub lease_seconds: u32,
    /// Whether to grant delegations. Must be false if others than this server change the filesystems: a
    /// delegation cannot hold them back.
    pub delegations: bool,
    /// Limits of connections.
    pub limits: Limits,
    /// Limits of clients' state.
    pub state_limits: state::Limits,
    /// Listening sockets.
    pub listeners: Vec<TcpListener>,
    /// The TLS configuration, if TLS is offered.
    pub tls: Option<Tls>,
    /// User and group names. `None`: decimal strings.
    pub names: Option<NameTables>,
    /// Makes connections to NFSv4.0 clients. `None`: the server makes them itself.
    pub dial: Option<Dial>,
    /// The filesystems to export.
    pub exports: Vec<Exported>,
}

impl Setup {
    /// A configuration with default limits and delegations.
    pub fn new(stable: StableStorage, listeners: Vec<TcpListener>, exports: Vec<Exported>) -> Self {
        Self {
            stable,
            lease_seconds: 90,
            delegations: true,
            limits: Limits::default(),
            state_limits: state::Limits::default(),
            listeners,
            tls: None,
            names: None,
            dial: None,
            exports,
        }
    }
}

struct ThreadRng;

impl Rng for ThreadRng {
    fn next_u64(&mut self) -> u64 {
        rand::random()
    }
}

/// A running server. Dropping it is like a crash: clients reclaim their state from the next server. Call
/// [`Self::stop`] to end it properly.
pub struct NfsServer {
    server: Server,
    core: Arc<Core>,
    service: Arc<Service>,
    stable: Arc<StableStorage>,
    tls: Option<Tls>,
    /// The identities of [`Setup::exports`], in their order.
    identities: Vec<u32>,
}

impl NfsServer {
    /// Starts the server.
    pub fn start(setup: Setup) -> Result<Self, StartError> {
        let Setup {
            stable,
            lease_seconds,
            delegations,
            limits,
            state_limits,
            listeners,
            tls,
            names,
            dial,
            exports,
        } = setup;
        let stable = Arc::new(stable);
        let handles = Handles::new(stable.identity().secret);
        let rows = rows(&stable, exports)?;
        let identities = rows.iter().map(|(_, identity, _)| *identity).collect();
        let exports = table(&stable, &handles, rows)?;
        let callbacks = Callbacks::new();
        let Engine { core, executor } = Engine::new(
            stable.clone(),
            handles,
            exports,
            lease_seconds,
            delegations,
            state_limits,
            Box::new(ThreadRng),
            Clock::Real(Instant::now()),
            callbacks.clone(),
            dial,
            about_to_block,
        )?;
        let service = executor.service.clone();
        service.id_mapper.set_tables(names);
        let program = Arc::new(Nfs { core: core.clone(), executor });
        let offered = tls.clone();
        let server = Server::start(limits, listeners, tls, vec![program], callbacks)?;
        let _ = core.runtime.set(Runtime::Threads(server.workers()));
        core.tick();
        Ok(Self { server, core, service, stable, tls: offered, identities })
    }

    /// The addresses on which it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.server.addresses()
    }

    /// Counters of connections.
    pub fn counters(&self) -> &Counters {
        self.server.counters()
    }

    /// Replaces the TLS configuration for new connections, if TLS is offered.
    pub fn set_tls(&self, tls: &Tls) {
        if let Some(offered) = &self.tls {
            offered.replace(tls);
        }
    }

    /// Replaces the exports. Each is given with its index in [`Setup::exports`]. Running requests keep the
    /// old table. Filehandles of an export that is left out are stale until it is exported again; its
    /// filesystem and its state remain.
    pub fn set_exports(&self, exports: Vec<(ExportConfig, usize)>) -> Result<(), StartError> {
        let row = |(config, index): (ExportConfig, usize)| {
            let identity = *self.identities.get(index)?;
            Some((config, identity, self.service.filesystem(identity)?))
        };
        let rows = exports.into_iter().filter_map(row).collect();
        self.service.set_exports(table(&self.stable, &self.service.handles, rows)?);
        Ok(())
    }

    /// Replaces the user and group names.
    pub fn set_names(&self, names: Option<NameTables>) {
        self.service.id_mapper.set_tables(names);
    }

    /// A handle for statistics.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle::new(&self.core, &self.service, self.server.workers(), self.stable.boot())
    }

    /// Stops the server: completes running requests and flushes the filesystems. Clients may reclaim their
    /// state from the next server.
    pub fn stop(self) -> Result<(), StartError> {
        let quiet = self.server.drain(DRAIN_TIMEOUT, CLOSE_TIMEOUT);
        if !quiet {
            log::warn!("requests still running at the stop get no reply; their clients repeat them");
        }
        drop(self.core.suspended.take_all());
        self.core.copies.close();
        if quiet {
            // Before state is discarded: its owners may reclaim it.
            self.core.with(|state, _| state.remove_idle_records());
        }
        self.core.with(|state, _| state.shut_down());
        self.core.release_all();
        let mut kept = Ok(());
        for (identity, filesystem) in self.service.filesystems() {
            match filesystem.vfs.sync() {
                Ok(()) => {
                    // If this fails, the next start treats the filesystem as not flushed. The others are
                    // independent.
                    kept = kept.and(self.stable.detach(identity, filesystem.write_verifier_now()));
                }
                // The next start treats the filesystem as not flushed.
                Err(error) => log::error!("{filesystem:?}: {error}"),
            }
        }
        Ok(kept?)
    }
}

type Row = (ExportConfig, u32, Filesystem);

fn rows(stable: &StableStorage, exports: Vec<Exported>) -> Result<Vec<Row>, StartError> {
    let mut rows = Vec::new();
    for Exported { config, vfs, device } in exports {
        let (identity, instance) = match device {
            Some(device) => {
                let instance = if vfs.info().persistent_inos { 0 } else { rand::random() };
                (stable.identify(vfs.info().uuid, &device)?, instance)
            }
            None => (stable.identify_volatile(), rand::random()),
        };
        let write_verifier = stable.attach(identity)?;
        rows.push((config, identity, Filesystem { vfs, write_verifier, instance }));
    }
    Ok(rows)
}

fn table(stable: &StableStorage, handles: &Handles, rows: Vec<Row>) -> Result<Exports, StartError> {
    let digest = digest(rows.iter().map(|(config, identity, _)| (config, *identity)));
    Ok(Exports::new(handles, rows, stable.pseudo_change(digest)?)?)
}
