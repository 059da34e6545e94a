//! A memory bound for several caches.
//!
//! It is in this crate because the buffer cache charges it. The VFS charges it too and may use this crate;
//! this crate may not use the VFS.

use std::sync::atomic::{AtomicU64, Ordering};

/// A memory bound that several caches share: pages, buffers, inodes, dentries. Each charges what it keeps.
///
/// The bound is advisory: a charge never fails. While the budget is [`over`](Budget::over), a cache must
/// evict before it keeps more. The counter guards no data, so every access is relaxed.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

impl Budget {
    /// Creates a budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes: AtomicU64::new(limit_bytes), used_bytes: AtomicU64::new(0) }
    }

    /// Creates a budget that is never over.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Adds `bytes` to the bytes in use.
    pub fn charge(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes` from the bytes in use.
    pub fn uncharge(&self, bytes: u64) {
        let before = self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more memory uncharged than charged");
    }

    /// The bytes in use.
    pub fn used(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The bound in bytes.
    pub fn limit(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the bound. Caches shrink at their next use.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// True while more bytes are in use than the bound allows.
    pub fn over(&self) -> bool {
        self.used() > self.limit()
    }
}
