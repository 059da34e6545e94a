//! A clock and a device that sometimes wait. Operations in memory are so short that they hardly ever overlap.
//! Every change reads the clock between becoming visible and its bump, with its locks held: a wait there lets
//! other operations overlap at the worst time.

use ivers_block::{BlockError, ByteOffset, Device};
use ivers_vfs::{Clock, CoarseClock, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Yields at every third call and sleeps at every seventh.
fn wait(turn: &AtomicU64) {
    let turn = turn.fetch_add(1, Relaxed);
    if turn.is_multiple_of(7) {
        thread::sleep(Duration::from_micros(30));
    } else if turn.is_multiple_of(3) {
        thread::yield_now();
    }
}

/// The system's clock with delays.
#[derive(Default)]
pub struct SlowClock(AtomicU64);

impl Clock for SlowClock {
    fn now(&self) -> Timestamp {
        wait(&self.0);
        CoarseClock.now()
    }
}

/// A device with delays.
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

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<(), BlockError> {
        wait(&self.turn);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<(), BlockError> {
        wait(&self.turn);
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), BlockError> {
        wait(&self.turn);
        self.inner.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<(), BlockError> {
        self.inner.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
