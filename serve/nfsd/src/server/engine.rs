//! The part that is common to the real and the simulated server.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use super::core::Core;
use super::runtime::{Clock, Dial};
use super::state_ops::StateFrontEnd;
use crate::compound::{Exports, Service};
use crate::executor::Executor;
use crate::exports::handle::Handles;
use crate::exports::table::TableError;
use crate::rpc::Callbacks;
use crate::stable::{StableError, StableStorage};
use crate::state::{self, Config, Millis, Rng, StateManager};

/// Why a server does not start or stop properly.
#[derive(Debug, Error)]
pub enum StartError {
    /// Stable storage failed.
    #[error(transparent)]
    StableStorage(#[from] StableError),
    /// The exports conflict.
    #[error(transparent)]
    Exports(#[from] TableError),
    /// Threads or sockets failed.
    #[error("cannot serve: {0}")]
    Io(#[from] io::Error),
}

/// Clients' state and the executor of requests.
pub(super) struct Engine {
    /// The mutex around the state.
    pub core: Arc<Core>,
    /// Executes requests.
    pub executor: Arc<Executor>,
}

impl Engine {
    #[expect(clippy::too_many_arguments, reason = "two callers, which differ in nearly all of them")]
    pub fn new(
        stable: Arc<StableStorage>,
        handles: Handles,
        exports: Exports,
        lease_seconds: u32,
        delegations: bool,
        limits: state::Limits,
        rng: Box<dyn Rng>,
        clock: Clock,
        callbacks: Arc<Callbacks>,
        dial: Option<Dial>,
        before_blocking: fn(),
    ) -> Result<Self, StartError> {
        let lease = Millis::seconds(u64::from(lease_seconds));
        stable.set_lease(lease, false)?;
        let identity = stable.identity();
        let config = Config {
            lease,
            server_major: identity.owner.to_vec(),
            scope: identity.scope.to_vec(),
            limits,
            ..Config::default()
        };
        let (boot, past) = (stable.boot(), stable.previous_boot());
        if !past.clients.is_empty() {
            let seconds = past.lease.0.saturating_mul(3) / 2000;
            log::info!(
                clients = past.clients.len(), seconds_at_most = seconds;
                "grace period begins: clients may reclaim the state that they held before the restart"
            );
        }
        let state = StateManager::new(clock.now(), config, boot, past, rng);
        let core = Arc::new(Core::new(clock, state, stable, lease, delegations, callbacks, dial));
        let front = Arc::new(StateFrontEnd(core.clone()));
        let mut service = Service::new(handles, front.clone(), exports, boot);
        service.lease_seconds = lease_seconds;
        let service = Arc::new(service);
        let _ = core.service.set(Arc::downgrade(&service));
        Ok(Self { core, executor: Executor::new(service, front, before_blocking) })
    }
}
