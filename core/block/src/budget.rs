//! A memory bound for several caches.
//!
//! It is in this crate because the buffer cache charges it. The VFS charges it too and may use this crate;
//! this crate may not use the VFS.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns the resident memory of the process in bytes; `None` if it is unknown.
pub type Meter = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// The meter is read when this much was charged since.
const METER_INTERVAL_BYTES: u64 = 1 << 20;
/// Resident memory beyond the bound that is normal: the program, its stacks, what the allocator adds.
const BESIDE_BYTES: u64 = 32 << 20;
/// The share of the caches falls from the whole bound to half of it while resident memory rises by this.
const RANGE_BYTES: u64 = 16 << 20;
/// While it rises further by this, the share falls from half of the bound to an eighth: something else uses
/// the memory, such as files that clients have open.
const BRAKE_BYTES: u64 = 8 << 20;
/// The caches keep at least this much, or half of the bound if that is less.
const LEAST_BYTES: u64 = 16 << 20;
/// Part of the bound that is charged at the smallest share before the caches empty.
const PATIENCE: u64 = 16;

/// A memory bound that several caches share: pages, buffers, inodes, dentries. Each charges what it keeps.
///
/// The bound is advisory: a charge never fails. While the budget is [`over`](Budget::over), a cache must
/// evict before it keeps more. The counter guards no data, so every access is relaxed.
///
/// An allocator keeps a page while one object in it is in use. So the process can be larger than what the
/// caches keep: after work on many inodes, the few that stay hold most of the pages. A budget with a meter
/// gives the caches less while that is so. If that does not suffice, it asks them to
/// [empty](Budget::take_emptying) once, because only then the allocator has whole pages to return.
pub struct Budget {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
    metered: Option<Metered>,
}

struct Metered {
    meter: Meter,
    /// Everything that was ever charged.
    charged_bytes: AtomicU64,
    /// What the caches may not use now.
    withheld_bytes: AtomicU64,
    /// How many bytes are still charged at the smallest share before the caches should empty.
    patience_bytes: AtomicU64,
    /// The caches should evict all that they can, once.
    should_empty: AtomicBool,
}

impl Metered {
    fn charge(&self, bytes: u64, limit: u64) {
        let before = self.charged_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before / METER_INTERVAL_BYTES == before.wrapping_add(bytes) / METER_INTERVAL_BYTES {
            return;
        }
        let Some(resident) = (self.meter)() else { return };
        let excess = resident.saturating_sub(limit.saturating_add(BESIDE_BYTES));
        self.withheld_bytes.store(withheld(limit, excess), Ordering::Relaxed);
        if excess < RANGE_BYTES + BRAKE_BYTES {
            if excess == 0 {
                self.patience_bytes.store(limit / PATIENCE, Ordering::Relaxed);
            }
            return;
        }
        let mut left = self.patience_bytes.load(Ordering::Relaxed).saturating_sub(METER_INTERVAL_BYTES);
        if left == 0 {
            self.should_empty.store(true, Ordering::Relaxed);
            // If the process stays too large, other memory than the caches' is in use: empty them seldom.
            left = limit.saturating_mul(4);
        }
        self.patience_bytes.store(left, Ordering::Relaxed);
    }
}

/// What the caches may not use while the process is too large by `excess` bytes.
fn withheld(limit: u64, excess: u64) -> u64 {
    let part = |bytes: u64, excess: u64, range: u64| {
        (u128::from(bytes) * u128::from(excess.min(range)) / u128::from(range)) as u64
    };
    let least = (limit / 8).max(LEAST_BYTES);
    let brake = part((limit / 2).saturating_sub(least), excess.saturating_sub(RANGE_BYTES), BRAKE_BYTES);
    part(limit / 2, excess, RANGE_BYTES) + brake
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget")
            .field("limit", &self.limit())
            .field("used", &self.used())
            .finish_non_exhaustive()
    }
}

impl Budget {
    /// Creates a budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes: AtomicU64::new(limit_bytes), used_bytes: AtomicU64::new(0), metered: None }
    }

    /// Creates a budget of `limit_bytes` that shrinks while the process is much larger. `meter` must be
    /// quick.
    pub fn with_meter(limit_bytes: u64, meter: Meter) -> Self {
        let metered = Metered {
            meter,
            charged_bytes: AtomicU64::new(0),
            withheld_bytes: AtomicU64::new(0),
            patience_bytes: AtomicU64::new(limit_bytes / PATIENCE),
            should_empty: AtomicBool::new(false),
        };
        Self { metered: Some(metered), ..Self::new(limit_bytes) }
    }

    /// Creates a budget that is never over.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Adds `bytes` to the bytes in use.
    pub fn charge(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(metered) = &self.metered {
            metered.charge(bytes, self.limit());
        }
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

    /// What may be in use now: the bound, or less while the process is much larger.
    pub fn allowed(&self) -> u64 {
        let withheld =
            self.metered.as_ref().map_or(0, |metered| metered.withheld_bytes.load(Ordering::Relaxed));
        self.limit().saturating_sub(withheld)
    }

    /// True once when the caches should evict all that they can: the process stays too large although they
    /// have become small.
    pub fn take_emptying(&self) -> bool {
        self.metered.as_ref().is_some_and(|metered| metered.should_empty.swap(false, Ordering::Relaxed))
    }

    /// True while more bytes are in use than is allowed now.
    pub fn over(&self) -> bool {
        self.used() > self.allowed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_process_that_is_too_large_gets_less() {
        const LIMIT: u64 = 100 << 20;
        let resident = Arc::new(AtomicU64::new(0));
        let shown = resident.clone();
        let budget = Budget::with_meter(LIMIT, Box::new(move || Some(shown.load(Ordering::Relaxed))));
        let allowed = |bytes: u64| {
            resident.store(bytes, Ordering::Relaxed);
            budget.charge(METER_INTERVAL_BYTES);
            budget.uncharge(METER_INTERVAL_BYTES);
            budget.allowed()
        };
        assert_eq!(allowed(LIMIT + BESIDE_BYTES), LIMIT);
        assert_eq!(allowed(LIMIT + BESIDE_BYTES + RANGE_BYTES / 2), LIMIT / 4 * 3);
        assert_eq!(allowed(LIMIT + BESIDE_BYTES + RANGE_BYTES), LIMIT / 2);
        assert_eq!(allowed(u64::MAX), LEAST_BYTES);
        assert_eq!(withheld(1 << 30, u64::MAX), (1 << 30) / 8 * 7);
        assert_eq!(withheld(LEAST_BYTES, u64::MAX), LEAST_BYTES / 2);
        budget.charge(LEAST_BYTES + 1);
        assert!(budget.over());
        budget.uncharge(LEAST_BYTES + 1);
        assert_eq!(allowed(0), LIMIT);
        assert!(!budget.take_emptying());
        // It stays too large: the caches are to be empty, but not again and again.
        let emptied = |mib: u64| {
            (0..mib)
                .filter(|_| {
                    allowed(u64::MAX);
                    budget.take_emptying()
                })
                .count()
        };
        assert_eq!((emptied(100), emptied(300), emptied(100)), (1, 0, 1));
        // It became small: emptying helped, and is done as soon as at first.
        assert_eq!(allowed(LIMIT + BESIDE_BYTES), LIMIT);
        assert_eq!((emptied(10), emptied(1)), (1, 0));
        assert_eq!(allowed(0), LIMIT);
        // Few bytes do not read the meter.
        resident.store(u64::MAX, Ordering::Relaxed);
        budget.charge(1);
        assert_eq!(budget.allowed(), LIMIT);
    }
}
