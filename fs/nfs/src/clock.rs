//! The clock of leases.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in milliseconds, on a clock that also runs while the machine sleeps: leases expire then.
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    (now.tv_sec as u64).saturating_mul(1000) + now.tv_nsec as u64 / 1_000_000
}
