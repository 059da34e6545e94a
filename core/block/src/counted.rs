//! A device that counts its reads and writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{ByteOffset, Device, Result};

/// What a device was asked for, also what failed.
#[derive(Debug, Default)]
pub struct IoCounts {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

impl IoCounts {
    /// Name and value of each counter, in a fixed order. A durable write counts as a write only.
    pub fn fields(&self) -> [(&'static str, u64); 5] {
        [
            ("device_reads", self.reads.load(Relaxed)),
            ("device_read_bytes", self.read_bytes.load(Relaxed)),
            ("device_writes", self.writes.load(Relaxed)),
            ("device_written_bytes", self.written_bytes.load(Relaxed)),
            ("device_flushes", self.flushes.load(Relaxed)),
        ]
    }

    fn count_write(&self, buf: &[u8]) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(buf.len() as u64, Relaxed);
    }
}

/// A device that counts in an [`IoCounts`] and forwards to another.
pub struct CountedDevice<D> {
    base: D,
    counts: Arc<IoCounts>,
}

impl<D: Device> CountedDevice<D> {
    /// Counts what `base` is asked for in `counts`.
    pub fn new(base: D, counts: Arc<IoCounts>) -> Self {
        Self { base, counts }
    }
}

impl<D: Device> Device for CountedDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        self.counts.reads.fetch_add(1, Relaxed);
        self.counts.read_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.base.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.counts.count_write(buf);
        self.base.write_at(offset, buf)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.counts.count_write(buf);
        self.base.write_fua(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.counts.flushes.fetch_add(1, Relaxed);
        self.base.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        self.base.discard(offset, len)
    }

    fn make_room(&self, size_bytes: u64) -> Result<()> {
        self.base.make_room(size_bytes)
    }

    fn is_read_only(&self) -> bool {
        self.base.is_read_only()
    }

    fn describe(&self) -> String {
        self.base.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn each_call_counts_once() {
        let counts = Arc::new(IoCounts::default());
        let device = CountedDevice::new(MemDevice::new(8192), counts.clone());
        device.write_at(ByteOffset(0), &[1; 10]).unwrap();
        device.write_fua(ByteOffset(10), &[2; 20]).unwrap();
        device.flush().unwrap();
        device.discard(ByteOffset(4096), 4096).unwrap();
        let mut buf = [0; 15];
        device.read_at(ByteOffset(0), &mut buf).unwrap();
        assert_eq!(buf[..], [[1; 10].as_slice(), &[2; 5]].concat());
        let values = counts.fields().map(|(_, value)| value);
        assert_eq!(values, [1, 15, 2, 30, 1]);
    }
}
