//! The clock of leases.

use std::time::{Duration, Instant};

use ivers_vfs::sync::{Condvar, RankedMutex, rank};
use rustix::time::{ClockId, clock_gettime};

/// Returns the time in milliseconds, on a clock that also runs while the machine sleeps: leases expire then.
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    (now.tv_sec as u64).saturating_mul(1000) + now.tv_nsec as u64 / 1_000_000
}

#[derive(Default)]
struct State {
    period: Duration,
    ended: bool,
}

/// How often the lease is renewed. The thread that renews it waits here.
#[derive(Default)]
pub struct Renewal {
    state: RankedMutex<rank::Leaf, State>,
    changed: Condvar,
}

impl Renewal {
    /// Sets the lease time. The lease is renewed three times in it. A lease time below 3 s counts as 3 s, and
    /// one above 180 s as 180 s.
    pub fn set_lease(&self, seconds: u32) {
        self.state.lock().period = Duration::from_secs(seconds.clamp(3, 180).into()) / 3;
        self.changed.notify_all();
    }

    /// Waits for a period and returns it. `None`: the lease is no longer renewed.
    pub fn wait(&self) -> Option<Duration> {
        let start = Instant::now();
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            // The lease may become shorter meanwhile.
            let left = state.period.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Some(state.period);
            }
            state.wait_for(&self.changed, left);
        }
    }

    /// Ends all waits.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}
