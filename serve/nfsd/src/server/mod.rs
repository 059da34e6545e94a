//! The server, put together: [`State`] behind its mutex, what carries out what it asks for, and NFS as an RPC program.
//!
//! | module | what lives there |
//! |---|---|
//! | `core` | the mutex, the effects in their order, permits, connections, the clock |
//! | `clients` | operations of clients, sessions, locks and delegations |
//! | `open` | OPEN |
//! | `waiting` | requests that wait for a ticket |
//! | `callback` | calls to clients |
//! | `copies` | copies that go on behind their reply |
//! | `dial` | the way to clients of NFSv4.0 |
//! | `program` | the RPC program |
//! | `outside` | threads, clock and askers: of a server with sockets, or of one without |
//! | `alone` | the one without |
//! | `stats` | numbers and lines for an administrator |

mod alone;
mod callback;
mod clients;
mod copies;
mod core;
mod dial;
mod open;
mod outside;
mod program;
mod stats;
mod waiting;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_vfs::Vfs;
use thiserror::Error;

use self::core::Core;
use self::outside::{Clock, Crew};
use crate::compound::{Exports, Filesystem, Service, Tables};
use crate::exports::config::ExportConfig;
use crate::exports::handle::Handles;
use crate::exports::table::{TableError, digest};
use crate::net::tls::Tls;
use crate::net::{Counters, Limits};
use crate::rpc::{Callbacks, Server};
use crate::stable::{Stable, StableError};
use crate::state::{self, Config, Dice, Span, State};
pub use alone::{Alone, AloneSetup};
use clients::Front;
pub use outside::{Dial, Peer};
use program::Nfs;

pub use stats::{ExportStats, Stats, Watch};

/// So long a stop waits for requests that are under way, and then for clients to end their connections.
const DRAIN: Duration = Duration::from_secs(5);
const LINGER: Duration = Duration::from_millis(200);

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nothing can be kept.
    #[error(transparent)]
    Stable(#[from] StableError),
    /// The exports cannot be side by side.
    #[error(transparent)]
    Exports(#[from] TableError),
    /// No threads, or no sockets.
    #[error("cannot serve: {0}")]
    Io(#[from] io::Error),
}

/// A filesystem that is to be exported.
pub struct Exported {
    /// For whom, and under which name.
    pub config: ExportConfig,
    /// The filesystem.
    pub vfs: Arc<Vfs>,
    /// Where it is, by a name that is the same after a restart. Nothing: it stores nothing, and its handles are stale then.
    pub device: Option<Vec<u8>>,
}

/// What a server is made of.
pub struct Setup {
    /// What survives it, in a directory of its own.
    pub stable: Stable,
    /// The lease time in seconds.
    pub lease_seconds: u32,
    /// Whether there are delegations. Not if somebody else changes the filesystems, past this server: he is not asked to wait.
    pub delegations: bool,
    /// Bounds of connections.
    pub limits: Limits,
    /// Bounds of what clients hold.
    pub state_limits: state::Limits,
    /// Where it listens.
    pub listeners: Vec<TcpListener>,
    /// TLS, if it is offered.
    pub tls: Option<Tls>,
    /// Names of owners; none: they are numbers.
    pub names: Option<Tables>,
    /// Who connects to clients of NFSv4.0; none: the server itself.
    pub dial: Option<Dial>,
    /// The exports.
    pub exports: Vec<Exported>,
}

impl Setup {
    /// With everything else as usual.
    pub fn new(stable: Stable, listeners: Vec<TcpListener>, exports: Vec<Exported>) -> Self {
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

struct Thrown;

impl Dice for Thrown {
    fn roll(&mut self) -> u64 {
        rand::random()
    }
}

/// Serves filesystems until it is stopped. Dropped, it ends as in a crash: clients claim what they held from the next one.
pub struct NfsServer {
    server: Server,
    core: Arc<Core>,
    service: Arc<Service>,
    stable: Arc<Stable>,
    tls: Option<Tls>,
    /// The identities of [`Setup::exports`], in their order.
    places: Vec<u32>,
}

/// What answers requests, wherever they come from.
struct Parts {
    core: Arc<Core>,
    service: Arc<Service>,
}

impl Parts {
    #[expect(clippy::too_many_arguments, reason = "two callers, which differ in nearly all of them")]
    fn new(
        stable: Arc<Stable>,
        handles: Handles,
        exports: Exports,
        lease_seconds: u32,
        delegations: bool,
        limits: state::Limits,
        dice: Box<dyn Dice>,
        clock: Clock,
        callbacks: Arc<Callbacks>,
        dial: Option<Dial>,
    ) -> Result<Self, StartError> {
        let lease = Span::seconds(u64::from(lease_seconds));
        stable.lease(lease, false)?;
        let identity = stable.identity();
        let config = Config {
            lease,
            server_major: identity.owner.to_vec(),
            scope: identity.scope.to_vec(),
            limits,
            ..Config::default()
        };
        let (boot, past) = (stable.boot(), stable.past());
        if !past.clients.is_empty() {
            let seconds = past.lease.0.saturating_mul(3) / 2000;
            log::info!(clients = past.clients.len(), seconds_at_most = seconds; "grace begins: clients of the last start may claim what they held");
        }
        let state = State::new(clock.now(), config, boot, past, dice);
        let core = Arc::new(Core::new(clock, state, stable, lease, delegations, callbacks, dial));
        let mut service = Service::new(handles, Arc::new(Front(core.clone())), exports, boot);
        service.lease_seconds = lease_seconds;
        let service = Arc::new(service);
        let _ = core.service.set(Arc::downgrade(&service));
        Ok(Self { core, service })
    }
}

impl NfsServer {
    /// Serve.
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
        let places = rows.iter().map(|(_, identity, _)| *identity).collect();
        let exports = table(&stable, &handles, rows)?;
        let callbacks = Callbacks::new();
        let Parts { core, service } = Parts::new(
            stable.clone(),
            handles,
            exports,
            lease_seconds,
            delegations,
            state_limits,
            Box::new(Thrown),
            Clock::Since(Instant::now()),
            callbacks.clone(),
            dial,
        )?;
        service.owners.set(names);
        let program = Arc::new(Nfs { core: core.clone(), service: service.clone() });
        let offered = tls.clone();
        let server = Server::start(limits, listeners, tls, vec![program], callbacks)?;
        let _ = core.crew.set(Crew::Threads(server.workers()));
        core.tick();
        Ok(Self { server, core, service, stable, tls: offered, places })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.server.addresses()
    }

    /// What has happened to connections.
    pub fn counters(&self) -> &Counters {
        self.server.counters()
    }

    /// Connections that begin from now on are secured by this, if TLS is offered.
    pub fn set_tls(&self, tls: &Tls) {
        if let Some(offered) = &self.tls {
            offered.replace(tls);
        }
    }

    /// Export these from now on, each told by its place in [`Setup::exports`]. What is under way ends as it began. Handles of what is not exported any more are stale,
    /// until it is exported again: the filesystem stays, and what clients hold of it.
    pub fn set_exports(&self, exports: Vec<(ExportConfig, usize)>) -> Result<(), StartError> {
        let row = |(config, place): (ExportConfig, usize)| {
            let identity = *self.places.get(place)?;
            Some((config, identity, self.service.filesystem(identity)?))
        };
        let rows = exports.into_iter().filter_map(row).collect();
        self.service.set_exports(table(&self.stable, &self.service.handles, rows)?);
        Ok(())
    }

    /// Owners are spelled so from now on.
    pub fn set_names(&self, names: Option<Tables>) {
        self.service.owners.set(names);
    }

    /// For who wants to know how it is.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.core, &self.service, self.server.workers(), self.stable.boot())
    }

    /// End in good order: what is under way is answered, everything is flushed, and what clients hold they may claim from the next server.
    pub fn stop(self) -> Result<(), StartError> {
        let quiet = self.server.drain(DRAIN, LINGER);
        if !quiet {
            log::warn!(
                "requests that were under way when the server was stopped are not answered: their clients ask again"
            );
        }
        drop(self.core.waiting.take_all());
        self.core.copies.close();
        if quiet {
            // Before what was shown ends: who held that may claim it.
            self.core.with(|state, _| state.strike_idle());
        }
        self.core.with(|state, _| state.shut_down());
        self.core.release_all();
        let mut kept = Ok(());
        for (identity, filesystem) in self.service.filesystems() {
            match filesystem.vfs.sync() {
                Ok(()) => {
                    // One that is not written down counts as one that did not flush; the others need not.
                    kept = kept.and(self.stable.detach(identity, filesystem.newest_verifier()));
                }
                // It counts as one that did not flush.
                Err(error) => log::error!("{filesystem:?}: {error}"),
            }
        }
        Ok(kept?)
    }
}

type Row = (ExportConfig, u32, Filesystem);

fn rows(stable: &Stable, exports: Vec<Exported>) -> Result<Vec<Row>, StartError> {
    let mut rows = Vec::new();
    for Exported { config, vfs, device } in exports {
        let (identity, instance) = match device {
            Some(device) => {
                let instance = if vfs.info().numbers_last { 0 } else { rand::random() };
                (stable.identify(vfs.info().uuid, &device)?, instance)
            }
            None => (stable.identify_volatile(), rand::random()),
        };
        let write_verifier = stable.attach(identity)?;
        rows.push((config, identity, Filesystem { vfs, write_verifier, instance }));
    }
    Ok(rows)
}

fn table(stable: &Stable, handles: &Handles, rows: Vec<Row>) -> Result<Exports, StartError> {
    let digest = digest(rows.iter().map(|(config, identity, _)| (config, *identity)));
    Ok(Exports::new(handles, rows, stable.pseudo_change(digest)?)?)
}
