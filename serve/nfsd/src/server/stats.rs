//! What an administrator is told: numbers on demand, and lines in the log.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ivers_nfs4::types::ClientId;
use ivers_vfs::StatsSnapshot;

use super::core::Core;
use crate::compound::{Context, Operation, Service};
use crate::net::NetStats;
use crate::rpc::Workers;
use crate::state::{Census, Events, Note};

/// What an export is and what was done to it.
#[derive(Debug, Clone)]
pub struct ExportStats {
    /// Where it appears.
    pub name: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// The VFS's counters.
    pub vfs: StatsSnapshot,
    /// Blocks and bytes written to the journal.
    pub journal: (u64, u64),
}

/// A server, at a moment.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Since the start.
    pub uptime: Duration,
    /// Which start this is.
    pub boot: u32,
    /// How many there are of everything.
    pub census: Census,
    /// What has happened to clients and delegations.
    pub events: Events,
    /// Somebody wanted to use an export that is not for him, or not in this way.
    pub refusals: u64,
    /// Connections.
    pub net: NetStats,
    /// What was done, by operation.
    pub operations: Vec<Operation>,
    /// How often with which error, by its name.
    pub errors: Vec<(String, u64)>,
    /// The exports, by name.
    pub exports: Vec<ExportStats>,
}

/// Tells how a server is for as long as it runs, and does not keep it alive.
#[derive(Clone)]
pub struct Watch {
    core: Weak<Core>,
    service: Weak<Service>,
    workers: Workers,
    boot: u32,
}

impl Watch {
    pub(super) fn new(core: &Arc<Core>, service: &Arc<Service>, workers: Workers, boot: u32) -> Self {
        Self { core: Arc::downgrade(core), service: Arc::downgrade(service), workers, boot }
    }

    /// How it is; nothing if it is no more.
    pub fn stats(&self) -> Option<Stats> {
        let (core, service) = (self.core.upgrade()?, self.service.upgrade()?);
        let net = self.workers.net()?;
        let ((census, events), _) = core.section(|state, _| (state.census(), state.events()));
        let mut exports: Vec<_> = service
            .exports()
            .exports()
            .map(|export| {
                let vfs = &export.filesystem.vfs;
                ExportStats {
                    name: export.path.clone(),
                    read_only: vfs.is_read_only(),
                    vfs: vfs.stats(),
                    journal: vfs.fs().journal_stats(),
                }
            })
            .collect();
        exports.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Stats {
            uptime: Duration::from_millis(core.now().0),
            boot: self.boot,
            census,
            events,
            refusals: service.refusals.count(),
            net,
            operations: service.tally.operations(),
            errors: service
                .tally
                .errors()
                .into_iter()
                .map(|(status, count)| (status.name(), count))
                .collect(),
            exports,
        })
    }
}

/// Write down who has come: once for each of his sessions.
pub(super) fn welcome(core: &Arc<Core>, client: ClientId, context: &Context) {
    let name = core.section(|state, _| state.name_of(client).map(<[u8]>::to_vec)).0.unwrap_or_default();
    let (address, minor, tls) = (context.origin.address, context.minor, context.origin.tls.is_some());
    let (client, name) = (format_args!("{client:x}"), name.escape_ascii());
    log::info!(client:%, address:%, name:%, minor, tls; "a client has come");
}

/// Write down what is worth a line.
pub(super) fn tell(notes: Vec<Note>) {
    for note in notes {
        match note {
            Note::Evicted(client) => {
                log::info!(client:% = format_args!("{client:x}"); "a client is gone, with all that it held");
            }
            Note::Recalled(client, file) => {
                log::info!(client:% = format_args!("{client:x}"), inode = file.inode; "a delegation is recalled");
            }
            Note::Revoked(client, file) => {
                log::warn!(client:% = format_args!("{client:x}"), inode = file.inode; "a delegation was not returned, and is revoked");
            }
            Note::GraceOver => log::info!("grace is over"),
        }
    }
}
