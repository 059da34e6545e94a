//! Statistics for an administrator.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::core::Core;
use crate::compound::{OpCount, Service};
use crate::net::NetStats;
use crate::rpc::Workers;
use crate::state::{EventCounts, StateCounts};

/// Statistics of an export.
#[derive(Debug, Clone)]
pub struct ExportStats {
    /// The path of the export.
    pub name: String,
    /// Whether the filesystem is read-only.
    pub read_only: bool,
    /// Name and value of each counter of the filesystem.
    pub counters: Vec<(&'static str, u64)>,
}

/// Statistics of a server at one moment.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Time since the start.
    pub uptime: Duration,
    /// The number of starts.
    pub boot: u32,
    /// Numbers of clients, sessions and what they hold.
    pub counts: StateCounts,
    /// Counts of events of clients and delegations.
    pub events: EventCounts,
    /// Denied accesses to exports.
    pub denials: u64,
    /// Statistics of connections.
    pub net: NetStats,
    /// Counts by operation.
    pub operations: Vec<OpCount>,
    /// Counts by name of the error.
    pub errors: Vec<(String, u64)>,
    /// The exports, sorted by path.
    pub exports: Vec<ExportStats>,
}

/// Reads the statistics of a server. Does not keep the server alive.
#[derive(Clone)]
pub struct StatsHandle {
    core: Weak<Core>,
    service: Weak<Service>,
    workers: Workers,
    boot: u32,
}

impl StatsHandle {
    pub(super) fn new(core: &Arc<Core>, service: &Arc<Service>, workers: Workers, boot: u32) -> Self {
        Self { core: Arc::downgrade(core), service: Arc::downgrade(service), workers, boot }
    }

    /// The statistics, or `None` if the server has ended.
    pub fn stats(&self) -> Option<Stats> {
        let (core, service) = (self.core.upgrade()?, self.service.upgrade()?);
        let net = self.workers.net()?;
        let ((counts, events), _) = core.section(|state, _| (state.counts(), state.events()));
        let mut exports: Vec<_> = service
            .exports()
            .exports()
            .map(|export| {
                let vfs = &export.filesystem.vfs;
                ExportStats {
                    name: export.path.clone(),
                    read_only: vfs.is_read_only(),
                    counters: vfs.counters(),
                }
            })
            .collect();
        exports.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Stats {
            uptime: Duration::from_millis(core.now().0),
            boot: self.boot,
            counts,
            events,
            denials: service.denials.count(),
            net,
            operations: service.op_stats.operations(),
            errors: service
                .op_stats
                .errors()
                .into_iter()
                .map(|(status, count)| (status.name(), count))
                .collect(),
            exports,
        })
    }
}
