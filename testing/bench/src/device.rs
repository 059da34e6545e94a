//! A block device that counts writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ivers_block::{ByteOffset, Device, FileDevice, Result};

/// Counts of writes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Writes {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    pub(crate) flushes: u64,
}

impl Writes {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            bytes: self.bytes - before.bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// An image file that counts the writes to it.
pub(crate) struct Counting {
    image: FileDevice,
    calls: AtomicU64,
    bytes: AtomicU64,
    flushes: AtomicU64,
    /// Whether something was written since the last flush; the image ignores flushes otherwise.
    unflushed: AtomicBool,
}

impl Counting {
    pub(crate) fn new(image: FileDevice) -> Self {
        let zero = || AtomicU64::new(0);
        let unflushed = AtomicBool::new(false);
        Self { image, calls: zero(), bytes: zero(), flushes: zero(), unflushed }
    }

    pub(crate) fn writes(&self) -> Writes {
        Writes {
            calls: self.calls.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }

    fn count(&self, bytes: usize) {
        self.calls.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.image.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        self.image.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.count(buf.len());
        self.unflushed.store(true, Relaxed);
        self.image.write_at(offset, buf)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.count(buf.len());
        self.flushes.fetch_add(1, Relaxed);
        self.image.write_fua(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        if self.unflushed.swap(false, Relaxed) {
            self.flushes.fetch_add(1, Relaxed);
        }
        self.image.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        self.unflushed.store(true, Relaxed);
        self.image.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.image.is_read_only()
    }

    fn describe(&self) -> String {
        self.image.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_block::{ByteOffset, OpenMode};

    #[test]
    fn only_writes_that_reach_the_device_are_counted() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let device = Counting::new(FileDevice::open(image.path(), OpenMode::ReadWrite).unwrap());
        device.flush().unwrap();
        assert_eq!(device.writes().flushes, 0);
        device.write_at(ByteOffset(0), &[1; 512]).unwrap();
        let before = device.writes();
        device.write_fua(ByteOffset(4096), &[2; 4096]).unwrap();
        device.flush().unwrap();
        device.flush().unwrap();
        let writes = device.writes().since(before);
        assert_eq!((writes.calls, writes.bytes, writes.flushes), (1, 4096, 2));
    }
}
