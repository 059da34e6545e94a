//! What a mount knows of its persistent cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ivers_content_cache::ContentCache;
use ivers_nfs4::types::Verifier;
use ivers_vfs::sync::{RankedMutex, rank};

/// One run of the server, from a start to the next restart.
#[derive(Default, Clone, Copy)]
pub struct Run {
    /// The number of sessions when the verifier was asked for.
    pub sessions: u64,
    /// The write verifier. A different one means that the server may have lost changes (P3).
    pub verifier: Option<Verifier>,
    /// How many files were tried.
    pub attempts: u32,
}

/// The persistent cache of a mount.
pub struct Contents {
    /// The cache.
    pub cache: Arc<ContentCache>,
    /// The run of the server.
    pub run: RankedMutex<rank::Leaf, Run>,
    /// Reads that sent no READ.
    pub unasked: AtomicU64,
}

impl Contents {
    /// Nothing is known of the server yet.
    pub fn new(cache: Arc<ContentCache>) -> Self {
        Self { cache, run: RankedMutex::default(), unasked: AtomicU64::new(0) }
    }

    /// Returns the counters.
    pub fn counters(&self) -> [(&'static str, u64); 6] {
        let counts = self.cache.counts();
        [
            ("disk_cache_reads", self.unasked.load(Relaxed)),
            ("disk_cache_hits", counts.hits),
            ("disk_cache_misses", counts.misses),
            ("disk_cache_stored", counts.stored),
            ("disk_cache_damaged", counts.damaged),
            ("disk_cache_refused", counts.refused),
        ]
    }
}
