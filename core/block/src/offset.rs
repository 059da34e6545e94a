//! A device inside another device.

use crate::{BlockError, ByteOffset, Device, Result};

/// A range of the bytes of another device, for example a partition of a disk image.
pub struct OffsetDevice<D> {
    base: D,
    start: ByteOffset,
    size_bytes: u64,
}

impl<D: Device> OffsetDevice<D> {
    /// Creates a device of all bytes of `base` from `start` on. Fails if there are none.
    pub fn new(base: D, start: ByteOffset) -> Result<Self> {
        let rest = base.size_bytes().saturating_sub(start.0);
        Self::with_len(base, start, rest.max(1))
    }

    /// Creates a device of `len` bytes of `base` from `start` on. Fails if they are not inside `base`, or if
    /// there are none.
    pub fn with_len(base: D, start: ByteOffset, len: u64) -> Result<Self> {
        let size_bytes = base.size_bytes();
        if len == 0 || start.checked_add(len).is_none_or(|end| end.0 > size_bytes) {
            return Err(BlockError::OutOfRange {
                what: "begin",
                device: base.describe(),
                offset: start,
                len,
                size_bytes,
            });
        }
        Ok(Self { base, start, size_bytes: len })
    }

    /// Returns the position of a range on the base. Checks it against the size of this device first: a
    /// range that wraps around must not reach bytes before the start.
    fn on_base(&self, what: &'static str, offset: ByteOffset, len: u64) -> Result<ByteOffset> {
        crate::device::check_range(self, what, offset, len)?;
        Ok(self.start + offset.0)
    }
}

impl<D: Device> Device for OffsetDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        self.base.read_at(self.on_base("read", offset, buf.len() as u64)?, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.base.write_at(self.on_base("write", offset, buf.len() as u64)?, buf)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.base.write_fua(self.on_base("write", offset, buf.len() as u64)?, buf)
    }

    fn flush(&self) -> Result<()> {
        self.base.flush_range(self.start, self.size_bytes)
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        self.base.discard(self.on_base("discard", offset, len)?, len)
    }

    fn make_room(&self, size_bytes: u64) -> Result<()> {
        // Where a partition ends is not known here.
        let cause = std::io::Error::other("what follows a partition may belong to another one");
        Err(BlockError::Io {
            what: "extend",
            device: self.describe(),
            offset: ByteOffset(0),
            len: size_bytes,
            source: std::sync::Arc::new(cause),
        })
    }

    fn is_read_only(&self) -> bool {
        self.base.is_read_only()
    }

    fn describe(&self) -> String {
        format!("{} from byte {}", self.base.describe(), self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn bytes_before_the_start_are_unreachable() {
        assert!(OffsetDevice::new(MemDevice::new(8192), ByteOffset(8192)).is_err());
        let device = OffsetDevice::new(MemDevice::new(8192), ByteOffset(1000)).unwrap();
        assert_eq!(device.size_bytes(), 7192);
        device.write_at(ByteOffset(0), &[1; 10]).unwrap();
        device.write_fua(ByteOffset(7182), &[2; 10]).unwrap();
        let mut buf = [0; 10];
        device.read_at(ByteOffset(7182), &mut buf).unwrap();
        assert_eq!(buf, [2; 10]);
        for (offset, len) in [(7183, 10), (u64::MAX, 10), (u64::MAX - 999, 10)] {
            assert!(device.read_at(ByteOffset(offset), &mut vec![0; len]).is_err(), "{offset}");
            assert!(device.write_at(ByteOffset(offset), &vec![3; len]).is_err(), "{offset}");
            assert!(device.discard(ByteOffset(offset), len as u64).is_err(), "{offset}");
        }
        let all = device.base.to_bytes();
        let mut want = vec![0; 8192];
        want[1000..1010].fill(1);
        want[8182..].fill(2);
        assert!(all == want);
    }

    #[test]
    fn bytes_after_the_end_are_unreachable() {
        for (start, len) in [(0, 0), (1, 8192), (8192, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let base = MemDevice::new(8192);
            assert!(OffsetDevice::with_len(base, ByteOffset(start), len).is_err(), "{start}, {len}");
        }
        let device = OffsetDevice::with_len(MemDevice::new(8192), ByteOffset(1000), 2000).unwrap();
        assert_eq!(device.size_bytes(), 2000);
        device.write_at(ByteOffset(1990), &[1; 10]).unwrap();
        assert!(device.write_at(ByteOffset(1990), &[1; 11]).is_err());
        assert!(device.discard(ByteOffset(0), 2001).is_err());
        assert!(device.read_at(ByteOffset(2000), &mut [0]).is_err());
    }
}
