//! One memory bound for several caches.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bound on memory that several caches share (pages, buffers, inodes, dentries): each charges what it keeps.
///
/// The bound is advisory: a charge never fails, but whoever finds the budget [`over`](Budget::over) must give something
/// back before it keeps more. The counter guards no data, so every access is relaxed.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes: AtomicU64::new(limit_bytes), used_bytes: AtomicU64::new(0) }
    }

    /// A budget that is never over.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Counts `bytes` more as used.
    pub fn charge(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back.
    pub fn uncharge(&self, bytes: u64) {
        let before = self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more memory given back than was charged");
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The bound in bytes.
    pub fn limit(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the bound; caches shrink as they are next used.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// True while more is used than allowed.
    pub fn over(&self) -> bool {
        self.used() > self.limit()
    }
}
