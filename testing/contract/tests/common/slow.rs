//! A clock and a device that make those who use them wait now and then. Operations on memory are over so soon that hardly two of them
//! overlap. Every change asks for the time between showing itself and raising the value, with its locks held: whoever waits there
//! lets the others in at the worst of times.

use ivers_block::{BlockError, Device};
use ivers_vfs::{Clock, CoarseClock, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Every third time a yield, every seventh a nap.
fn wait(turn: &AtomicU64) {
    let turn = turn.fetch_add(1, Relaxed);
    if turn.is_multiple_of(7) {
        thread::sleep(Duration::from_micros(30));
    } else if turn.is_multiple_of(3) {
        thread::yield_now();
    }
}

/// The system's clock, which takes its time.
#[derive(Default)]
pub struct SlowClock(AtomicU64);

impl Clock for SlowClock {
    fn now(&self) -> Timestamp {
        wait(&self.0);
        CoarseClock.now()
    }
}

/// A device that takes its time.
pub struct SlowDevice {
    inner: Arc<dyn Device>,
    turn: AtomicU64,
}

impl SlowDevice {
    pub fn over(inner: Arc<dyn Device>) -> Self {
        Self { inner, turn: AtomicU64::new(0) }
    }
}

impl Device for SlowDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        wait(&self.turn);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), BlockError> {
        wait(&self.turn);
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), BlockError> {
        wait(&self.turn);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.inner.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
